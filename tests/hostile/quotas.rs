//! Tenants and agents that want more than their part: of the host's work, of people's attention.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::grants::{Route, grant};
use crate::support::host::Caller;
use crate::support::stage::multipart;
use crate::support::{Backend, Fault, Rule, Stage, Told, at_once, guests};

/// Another tenant on the same host, with the probe.
struct Other<'a> {
    stage: &'a Stage,
    agent: String,
    approver: String,
}

impl Other<'_> {
    fn on(stage: &Stage) -> Other<'_> {
        let token = |role: &str| stage.host.new_token(&format!("other-{role}"), &[role], "other");
        let operator = token("operator");
        let route = grant("", &[Route::manual(stage.provider.port(), "/any/**")]);
        let (media, body) = multipart(&[("component", &guests::PROBE), ("grant", route.as_bytes())]);
        let caller = stage.host.with_token(&operator);
        caller.send(caller.request("POST", "/v1/tools").body(&media, body)).expect(201);
        Other { stage, agent: token("agent"), approver: token("approver") }
    }

    fn agent(&self) -> Caller<'_> {
        self.stage.host.with_token(&self.agent)
    }

    /// From proposal to result.
    fn act(&self, key: &str, path: &str) -> Told {
        let arguments = json!({ "mode": "writes", "url": self.stage.url(path), "bodies": [key] });
        let proposed = propose(&self.agent(), "probe", key, &arguments).expect(201);
        let approver = self.stage.host.with_token(&self.approver);
        let fingerprint = format!("\"{}\"", proposed.text("/fingerprint"));
        let request = approver.request("POST", &format!("/v1/actions/{}/approve", proposed.id()));
        approver.send(request.header("If-Match", &fingerprint)).expect(200);
        self.agent().post_nothing(&format!("/v1/actions/{}/execute?wait=60s", proposed.id()))
    }
}

fn propose(caller: &Caller<'_>, tool: &str, key: &str, arguments: &Value) -> Told {
    let body = json!({ "tool": tool, "arguments": arguments }).to_string();
    let request = caller.request("POST", "/v1/actions").header("Idempotency-Key", key);
    caller.send(request.body("application/json", body))
}

/// Which quota, and that it says how to go on.
#[track_caller]
fn over(told: &Told) -> String {
    let said = told.clone().refused(429, "quota_exceeded");
    assert!(said.contains("operator") && said.contains("[quota]"), "{said}");
    let after = told.answer.header("retry-after").expect("when to try again");
    assert!(after.parse::<u32>().is_ok_and(|seconds| seconds >= 1), "{after}");
    assert_eq!(told.json["retryable"], true);
    told.text("/quota")
}

#[test]
fn i02_a_thousand_proposals_are_twenty_pending_and_the_rest_are_told_so() {
    // What a host has that was told nothing.
    let stage = Stage::on_with(Backend::Sqlite, "[quota]\n", "30s");
    let told: Vec<Told> = at_once(8, |thread| {
        (0..125)
            .map(|n| {
                let key = format!("tired-{thread}-{n}");
                stage.propose("refund", &key, &stage.refund(&key, 100 + n))
            })
            .collect::<Vec<_>>()
    })
    .into_iter()
    .flatten()
    .collect();
    let (made, refused): (Vec<&Told>, Vec<&Told>) = told.iter().partition(|told| told.status() == 201);
    assert_eq!((made.len(), refused.len()), (20, 980));
    assert!(refused.iter().all(|told| over(told).starts_with("pending.")));
    // A decision makes room for one, and one only.
    let id = made[0].id();
    stage.host.approver().post(&format!("/v1/actions/{id}/decline"), &json!({ "reason": "no" })).expect(200);
    stage.propose("refund", "room", &stage.refund("room", 1)).expect(201);
    assert_eq!(over(&stage.propose("refund", "no-room", &stage.refund("no-room", 1))), "pending.actor");
}

#[test]
fn i01_an_agent_that_floods_meets_its_own_limit_and_no_other_tenant_does() {
    let toml = "[quota]\nproposals_per_minute = { caller = 60 }\npending = { actor = 1000 }\n";
    let stage = Stage::on_with(Backend::Sqlite, toml, "30s");
    let other = Other::on(&stage);
    let told = at_once(4, |thread| {
        (0..50)
            .map(|n| {
                let key = format!("flood-{thread}-{n}");
                stage.propose("refund", &key, &stage.refund(&key, 100 + n))
            })
            .collect::<Vec<_>>()
    });
    let told: Vec<Told> = told.into_iter().flatten().collect();
    let made = told.iter().filter(|told| told.status() == 201).count();
    // A minute's worth at once, and what a second of the flood adds.
    assert!((60..120).contains(&made), "{made}");
    let refused = told.iter().filter(|told| told.status() != 201);
    assert!(refused.map(over).all(|quota| quota == "proposals_per_minute.caller"));
    // The same again is no new proposal; a neighbour is not even slowed.
    let known = told.iter().find(|told| told.status() == 201).expect("one");
    let key = known.text("/idempotency_key");
    let again = stage.propose("refund", &key, &known.json["arguments"]);
    assert_eq!(again.status(), 200, "{}", again.json);
    assert_eq!(other.act("calm", "/any/calm").outcome(), "succeeded");
}

#[test]
fn a14_forty_calls_that_hang_leave_another_tenant_its_place_and_end_once_each() {
    let toml = "[quota]\nrunning = 4\nwaiting = 36\npending = { actor = 1000 }\n";
    let stage = Stage::on_with(Backend::Sqlite, toml, "60s");
    let other = Other::on(&stage);
    let held = "/any/held";
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("hangs", &grant("[limits]\nsend = \"60s\"", &[route]));
    stage.provider.fault(Rule::always(held, Fault::hold()));
    let ids: Vec<String> = (0..40)
        .map(|n| {
            let key = format!("hang-{n}");
            let arguments = json!({ "mode": "writes", "url": stage.url(held), "bodies": [key] });
            stage.approved("hangs", &key, &arguments)
        })
        .collect();
    let callers: Vec<_> = ids.iter().map(|id| stage.execute_unheard(id)).collect();
    stage.provider.wait_held(4);
    // One more of the same tenant is told whose quota it is.
    let arguments = json!({ "mode": "writes", "url": stage.url("/any/late"), "bodies": ["late"] });
    let late = stage.approved("hangs", "late", &arguments);
    assert_eq!(over(&stage.start_execute(&late)), "running");
    // The neighbour's call begins and ends while all of these hang.
    let asked = Instant::now();
    assert_eq!(other.act("calm", "/any/calm").outcome(), "succeeded");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}, on a machine that has other work too");
    assert_eq!(stage.provider.requests(held).len(), 4, "no more than four began");
    // Let go, every one of them gets its turn.
    stage.provider.clear_faults();
    stage.provider.release();
    for id in &ids {
        stage.wait_for(id, &["succeeded"]);
        assert_eq!(stage.counts(held, id), (1, 1));
    }
    drop(callers);
}
