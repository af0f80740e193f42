//! What the demo plays. Each scene says what callers were told, and checks what
//! the provider's own log counted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::stage::{Stage, Told};
use crate::provider::wire::{Fault, Rule};

/// What came of a scene.
pub struct Scene {
    /// What is played.
    pub title: &'static str,
    /// What callers were told, in their order.
    pub told: Vec<String>,
    /// What was counted, and what it has to be.
    pub counts: Vec<Count>,
}

/// One number, and what it has to be.
pub struct Count {
    /// Of what, in whose log.
    pub what: String,
    /// What is right.
    pub expected: usize,
    /// What was found.
    pub found: usize,
}

/// A scene on a stage.
pub type Play = fn(&Stage) -> anyhow::Result<Scene>;

/// All of them, in order.
pub const ALL: &[Play] = &[
    eight_approvals_and_eight_executes,
    arguments_changed_after_approval,
    same_key_other_arguments,
    checkpoint_replay,
    killed_after_the_provider_acted,
    lost_reply,
    five_effects_killed_after_the_fourth,
    a_tool_that_misbehaves,
];

const REFUNDS: &str = "/v1/refunds";

fn refund(stage: &Stage, payment: &str, amount: u64) -> Value {
    json!({"payment_intent": payment, "amount": amount, "currency": "eur", "api_base": stage.base})
}

/// Proposes and approves; the action's id.
fn approved(stage: &Stage, tool: &str, key: &str, arguments: &Value) -> anyhow::Result<String> {
    let proposed = stage.host.propose(tool, key, arguments)?;
    let id = proposed.text("/id");
    anyhow::ensure!(
        proposed.status == 201,
        "proposing {tool} was answered {}: {}",
        proposed.status,
        proposed.body
    );
    let told = stage.host.approve(&id, Some(&proposed.text("/fingerprint")))?;
    anyhow::ensure!(told.status == 200, "approving was answered {}: {}", told.status, told.body);
    Ok(id)
}

fn count(what: impl Into<String>, expected: usize, found: usize) -> Count {
    Count { what: what.into(), expected, found }
}

/// Equal answers as one line.
fn tally(who: &str, told: &[String]) -> Vec<String> {
    let mut by_answer: BTreeMap<&str, usize> = BTreeMap::new();
    told.iter().for_each(|answer| *by_answer.entry(answer).or_default() += 1);
    by_answer.into_iter().map(|(answer, n)| format!("{who}: {n} × {answer}")).collect()
}

fn briefs(told: Vec<anyhow::Result<Told>>) -> anyhow::Result<(Vec<String>, Vec<Told>)> {
    let told = told.into_iter().collect::<anyhow::Result<Vec<Told>>>()?;
    Ok((told.iter().map(Told::brief).collect(), told))
}

fn eight_approvals_and_eight_executes(stage: &Stage) -> anyhow::Result<Scene> {
    let proposed = stage.host.propose("refund", "demo-1", &refund(stage, "pi_1", 1250))?;
    let (id, fingerprint) = (proposed.text("/id"), proposed.text("/fingerprint"));
    let (approvals, _) = briefs(stage.host.at_once(8, |host| host.approve(&id, Some(&fingerprint))))?;
    let (executes, told) = briefs(stage.host.at_once(8, |host| host.execute(&id)))?;
    let results: std::collections::BTreeSet<String> = told.iter().map(|told| told.text("/result")).collect();
    let winners = told.iter().filter(|told| told.body["replayed"] == json!(false)).count();
    let succeeded = told.iter().filter(|told| told.outcome() == "succeeded").count();
    Ok(Scene {
        title: "eight approvals at once, then eight executes at once",
        told: [tally("approvers", &approvals), tally("agents", &executes)].concat(),
        counts: vec![
            count("agents told that it succeeded", 8, succeeded),
            count("agents whose call ran it", 1, winners),
            count("different results handed out", 1, results.len()),
            count("requests in the provider's log", 1, stage.requests(REFUNDS, &id)?),
            count("refunds in the provider's log", 1, stage.effects(REFUNDS, &id)?),
        ],
    })
}

fn arguments_changed_after_approval(stage: &Stage) -> anyhow::Result<Scene> {
    let proposed = stage.host.propose("refund", "demo-2", &refund(stage, "pi_2", 100))?;
    let (id, saw) = (proposed.text("/id"), proposed.text("/fingerprint"));
    let approved = stage.host.approve(&id, Some(&saw))?;
    // The agent swaps the amount for one that nobody saw …
    let changed = stage.host.supersede(&id, &refund(stage, "pi_2", 990_000))?;
    let new = changed.text("/id");
    // … presses on with the old and with the new one, and the approver's page,
    // still showing the old one, is pressed once more.
    let old_executed = stage.host.execute(&id)?;
    let stale = stage.host.approve(&new, Some(&saw))?;
    let new_executed = stage.host.execute(&new)?;
    let requests = stage.requests(REFUNDS, &id)? + stage.requests(REFUNDS, &new)?;
    Ok(Scene {
        title: "arguments changed after approval: 1.00 becomes 9,900.00",
        told: vec![
            format!("approver, who saw 1.00: {}", approved.brief()),
            format!("agent, changing it: {}", changed.brief()),
            format!("agent, executing the old one: {}", old_executed.brief()),
            format!("approver, pressing a page that shows the old one: {}", stale.brief()),
            format!("agent, executing the new one: {}", new_executed.brief()),
        ],
        counts: vec![
            count("stale approvals refused", 1, usize::from(stale.outcome() == "fingerprint_precondition")),
            count("executions refused", 2, refused(&old_executed) + refused(&new_executed)),
            count("requests in the provider's log", 0, requests),
        ],
    })
}

fn refused(told: &Told) -> usize {
    usize::from(matches!(told.outcome().as_str(), "cancelled" | "invalid_state" | "action_changed"))
}

fn same_key_other_arguments(stage: &Stage) -> anyhow::Result<Scene> {
    let id = approved(stage, "refund", "demo-3", &refund(stage, "pi_3", 700))?;
    let first = stage.host.execute(&id)?;
    let again = stage.host.propose("refund", "demo-3", &refund(stage, "pi_3", 700))?;
    let other = stage.host.propose("refund", "demo-3", &refund(stage, "pi_3", 70_000))?;
    Ok(Scene {
        title: "the same idempotency key, other arguments",
        told: vec![
            format!("agent, first: {}", first.brief()),
            format!("agent, the same again: {}", again.brief()),
            format!("agent, same key, other amount: {}", other.brief()),
        ],
        counts: vec![
            count(
                "told that the intent differs",
                1,
                usize::from(other.outcome() == "idempotency_key_mismatch"),
            ),
            count("told the action it has already", 1, usize::from(again.text("/id") == id)),
            count("refunds in the provider's log", 1, stage.effects(REFUNDS, &id)?),
        ],
    })
}

fn checkpoint_replay(stage: &Stage) -> anyhow::Result<Scene> {
    let arguments = refund(stage, "pi_4", 300);
    let id = approved(stage, "refund", "demo-4", &arguments)?;
    let first = stage.host.execute(&id)?;
    // The agent's framework restores an older checkpoint and runs on from there:
    // every call it made comes once more.
    let mut told = Vec::new();
    for _ in 0..3 {
        let proposed = stage.host.propose("refund", "demo-4", &arguments)?;
        told.push(stage.host.execute(&proposed.text("/id"))?);
    }
    let same = told.iter().filter(|told| told.text("/result") == first.text("/result")).count();
    let replayed: Vec<String> = told.iter().map(Told::brief).collect();
    Ok(Scene {
        title: "a finished action, replayed from a checkpoint three times",
        told: [vec![format!("agent, first: {}", first.brief())], tally("agent, again", &replayed)].concat(),
        counts: vec![
            count("replays with the first result, byte for byte", 3, same),
            count("requests in the provider's log", 1, stage.requests(REFUNDS, &id)?),
        ],
    })
}

fn killed_after_the_provider_acted(stage: &Stage) -> anyhow::Result<Scene> {
    let id = approved(stage, "refund", "demo-5", &refund(stage, "pi_5", 4200))?;
    let client = stage.provider.client().clone();
    client.fault(Rule::once(REFUNDS, Fault::hold()))?;
    let cut_off = std::thread::scope(|scope| {
        let host = &stage.host;
        let caller = scope.spawn(|| host.execute(&id));
        // The refund is made; its answer is on the way and will not arrive.
        client.wait_held(1)?;
        host.kill()?;
        let told = caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?;
        anyhow::Ok(match told {
            Ok(told) => told.brief(),
            Err(_) => "the connection broke, no answer".to_owned(),
        })
    })?;
    client.release()?;
    stage.host.start()?;
    let after = stage.host.execute(&id)?;
    Ok(Scene {
        title: "the host killed (SIGKILL) right after the provider acted, started again, re-entered",
        told: vec![
            format!("agent, when the host died: {cut_off}"),
            format!("agent, after the restart: {}", after.brief()),
        ],
        counts: vec![
            count("told in the end that it succeeded", 1, usize::from(after.outcome() == "succeeded")),
            count("requests in the provider's log, under one key", 2, stage.requests(REFUNDS, &id)?),
            count("refunds in the provider's log", 1, stage.effects(REFUNDS, &id)?),
        ],
    })
}

fn lost_reply(stage: &Stage) -> anyhow::Result<Scene> {
    let id = approved(stage, "refund", "demo-6", &refund(stage, "pi_6", 900))?;
    stage.provider.client().fault(Rule::once(REFUNDS, Fault::LoseReply))?;
    let told = stage.host.execute(&id)?;
    Ok(Scene {
        title: "the provider acts and its reply is lost",
        told: vec![format!("agent: {}", told.brief())],
        counts: vec![
            count("told that it succeeded", 1, usize::from(told.outcome() == "succeeded")),
            count("requests in the provider's log, under one key", 2, stage.requests(REFUNDS, &id)?),
            count("refunds in the provider's log", 1, stage.effects(REFUNDS, &id)?),
        ],
    })
}

fn five_effects_killed_after_the_fourth(stage: &Stage) -> anyhow::Result<Scene> {
    let arguments = json!({
        "from": "DE02120300000000202051", "to": "FR1420041010050500013M02606",
        "amount": 12_000, "currency": "eur", "api_base": stage.base,
    });
    let id = approved(stage, "transfer", "demo-7", &arguments)?;
    let quotes = stage.provider.requests("/quote")?.len();
    let client = stage.provider.client().clone();
    // The fifth effect hangs before the provider acts: four are done.
    client.fault(Rule::once("/notify", Fault::hold()).acting(false))?;
    std::thread::scope(|scope| {
        let host = &stage.host;
        let caller = scope.spawn(|| host.execute(&id));
        client.wait_held(1)?;
        host.kill()?;
        let _ = caller.join();
        anyhow::Ok(())
    })?;
    client.release()?;
    stage.host.start()?;
    let after = stage.host.execute(&id)?;
    let mut counts = vec![
        count("told in the end that it succeeded", 1, usize::from(after.outcome() == "succeeded")),
        // The quote was asked for while planning, before anybody approved.
        count("GET /quote after planning", 0, stage.provider.requests("/quote")?.len() - quotes),
    ];
    for path in ["/reserve", "/transfers", "/ledger"] {
        counts.push(count(
            format!("POST {path} requests in the provider's log"),
            1,
            stage.requests(path, &id)?,
        ));
    }
    counts.push(count(
        "POST /notify requests (the one cut off, and its repeat)",
        2,
        stage.requests("/notify", &id)?,
    ));
    counts.push(count("notifications in the provider's log", 1, stage.effects("/notify", &id)?));
    Ok(Scene {
        title: "five effects, the host killed after the fourth, resumed: only the fifth is sent again",
        told: vec![format!("agent, after the restart: {}", after.brief())],
        counts,
    })
}

fn a_tool_that_misbehaves(stage: &Stage) -> anyhow::Result<Scene> {
    let base = stage.base.clone();
    let (granted, elsewhere) = (format!("{base}/any/probe"), format!("{base}/any/elsewhere"));
    let before = stage.provider.requests("/any/*")?.len();

    let outside = json!({"mode": "forbidden-host", "url": elsewhere, "method": "POST"});
    let id = approved(stage, "probe", "demo-8a", &outside)?;
    let outside = stage.host.execute(&id)?;
    let outside_requests = stage.provider.requests("/any/*")?.len() - before;

    let names = json!(["Idempotency-Key", "Authorization"]);
    let id = approved(
        stage,
        "probe",
        "demo-8b",
        &json!({"mode": "forbidden-headers", "url": granted, "headers": names}),
    )?;
    let headers = stage.host.execute(&id)?;
    let sent = stage.provider.requests("/any/probe")?;
    let keys: Vec<String> = sent.iter().filter_map(|line| line.key.clone()).collect();
    let own_key = keys.iter().filter(|key| key.contains(&id)).count();

    let id = approved(stage, "probe", "demo-8c", &json!({"mode": "second-write", "url": granted}))?;
    let second = stage.host.execute(&id)?;
    let writes = stage.effects("/any/probe", &id)?;
    Ok(Scene {
        title: "a tool that reaches outside its grant, sets the host's headers, writes what nobody saw",
        told: vec![
            format!("agent, host outside the grant: {} {}", outside.brief(), outside.text("/result")),
            format!("agent, setting Idempotency-Key and Authorization: {}", headers.brief()),
            format!("agent, a second write that nobody saw: {}", second.brief()),
        ],
        counts: vec![
            count("requests outside the grant in the provider's log", 0, outside_requests),
            count("requests that carry the host's key, not the tool's", 1, own_key),
            count(
                "told of an unplanned effect",
                1,
                usize::from(second.text("/error/code") == "unplanned_effect"),
            ),
            count("writes of the third tool in the provider's log", 1, writes),
        ],
    })
}
