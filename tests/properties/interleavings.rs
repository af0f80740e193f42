//! Eight clients, each with a random script of its own, at the same actions in the same order:
//! propose, approve, decline, cancel, execute, supersede, and an approval that runs out. The seed
//! is printed; `COUNTERSIGN_SEED` runs the same scripts again.

use std::collections::{BTreeMap, BTreeSet};

use countersign_domain::id::TenantId;
use countersign_domain::key::{ActionKey, action_id};
use serde_json::json;

use super::model::follow;
use crate::support::seed::Seed;
use crate::support::stage::{REFUNDS, all_actions, body, verified_events};
use crate::support::{Stage, at_once, grants, long};

const CLIENTS: usize = 8;

/// What a client does to an action. Some more often than others: an action that is always
/// declined first teaches nothing.
const VERBS: [&str; 12] = [
    "approve",
    "approve",
    "approve",
    "execute",
    "execute",
    "execute",
    "execute",
    "propose",
    "decline",
    "cancel",
    "supersede",
    "look",
];

#[test]
fn p1_p2_and_p8_thousands_of_random_interleavings_send_at_most_once_and_only_what_was_approved() {
    let rounds = long(2_000, 20_000) as u64;
    let seed = Seed::of_this_run("random interleavings");
    let stage = Stage::set();
    // One action in eight has an approval that runs out while the others are still at it.
    let short = format!("[approval]\nexpires_after = \"1s\"\n{}", grants::grant("", &[]))
        + &grants::refund(stage.provider.port())
            .replace("show = [\"/amount\", \"/currency\", \"/payment_intent\"]\n", "");
    crate::support::stage::install(&stage.host, "?name=hasty", &crate::support::guests::REFUND, &short)
        .expect(201);
    let agents: Vec<String> =
        (0..CLIENTS).map(|n| stage.host.new_token(&format!("agent-{n}"), &["agent"], "default")).collect();
    let approvers: Vec<String> = (0..CLIENTS)
        .map(|n| stage.host.new_token(&format!("approver-{n}"), &["approver"], "default"))
        .collect();

    let answers = at_once(CLIENTS, |client| {
        let approver = stage.host.with_token(&approvers[client]);
        let mut results: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for round in 0..rounds {
            // What a round is about is the same for all clients; who does what is not. The intent
            // names its actor, so that one agent's token is used for a round by everybody.
            let tool = if seed.part(round).below(8) == 0 { "hasty" } else { "refund" };
            let mut own = seed.part(rounds + round * CLIENTS as u64 + client as u64);
            let agent = stage.host.with_token(&agents[round as usize % CLIENTS]);
            let proposal = json!({ "tool": tool, "arguments": stage.refund(&format!("r{round}"), 100 + round),
                "run_id": "race", "step": round.to_string() });
            let id = id_of(round);
            let act = |verb: &str| match verb {
                "approve" => approver.post_nothing(&format!("/v1/actions/{id}/approve")),
                "decline" => approver.post(&format!("/v1/actions/{id}/decline"), &json!({ "reason": "no" })),
                "cancel" => agent.post(&format!("/v1/actions/{id}/cancel"), &json!({ "reason": "no" })),
                "supersede" => agent.post(&format!("/v1/actions/{id}/supersede"), &json!({})),
                "execute" => agent.post_nothing(&format!("/v1/actions/{id}/execute?wait=60s")),
                "propose" => agent.post("/v1/actions", &proposal),
                _ => agent.get(&format!("/v1/actions/{id}")),
            };
            let verb = own.pick(&VERBS);
            let mut told = act(verb);
            if told.status() == 404 {
                // Nobody has proposed it yet.
                let proposed = act("propose");
                assert!([200, 201].contains(&proposed.status()), "{}", proposed.json);
                assert_eq!(proposed.id(), id, "the id is a function of tenant and key");
                told = act(verb);
            }
            assert!([200, 201, 202, 409].contains(&told.status()), "{seed:?}, round {round}: {}", told.json);
            if told.text("/status") == "succeeded" {
                results.entry(id).or_default().insert(told.raw("result"));
            }
        }
        results
    });

    let mut results: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, texts) in answers.into_iter().flatten() {
        results.entry(id).or_default().extend(texts);
    }
    assert!(results.values().all(|texts| texts.len() == 1), "P3: one result each");

    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    for line in stage.provider.requests(REFUNDS) {
        *requests.entry(line.key.expect("a key")).or_default() += 1;
    }
    let ids = all_actions(&stage.host);
    assert!(ids.len() as u64 >= rounds);
    let mut ended: BTreeMap<String, usize> = BTreeMap::new();
    for id in &ids {
        let bodies: Vec<_> = verified_events(&stage.host, id).iter().map(body).collect();
        let state = bodies.last().expect("an event").to.as_str();
        let history = follow(bodies.iter().map(|body| (body.fact.name(), body.to.as_str())));
        let history = history.unwrap_or_else(|wrong| panic!("{seed:?}: action {id}: {wrong}"));
        let sent = requests.remove(&format!("tool-action:{id}:1")).unwrap_or(0);
        assert!(sent <= 1, "{seed:?}: action {id} was sent {sent} times");
        assert!(sent == 0 || history.approvals == 1, "{seed:?}: action {id} was sent without an approval");
        assert!(sent <= history.claims, "{seed:?}: action {id} was sent without a claim: {history:?}");
        assert!(sent >= history.successes, "{seed:?}: action {id} succeeded without a send: {history:?}");
        // Claimed, and cancelled before its write: nothing was sent. Sent, it never ends as if not.
        let ends: &[&str] = if sent == 1 {
            &["succeeded", "failed_terminal"]
        } else {
            &["cancelled", "expired", "approved", "awaiting_approval"]
        };
        assert!(ends.contains(&state), "{seed:?}: action {id}, sent {sent} times, is {state}");
        *ended.entry(state.to_owned()).or_default() += 1;
    }
    assert!(requests.is_empty(), "requests that belong to no action: {requests:?}");
    eprintln!("{} actions ended: {ended:?}", ids.len());
    for state in ["succeeded", "cancelled"] {
        assert!(
            ended.get(state).is_some_and(|n| *n > 20),
            "a run in which hardly anything is {state} shows nothing: {ended:?}"
        );
    }
}

/// The id that the action of a round has, whoever proposes it.
fn id_of(round: u64) -> String {
    let tenant: TenantId = "default".parse().expect("a tenant");
    action_id(&tenant, &ActionKey::Run { run: "race".into(), step: round.to_string() }).to_string()
}
