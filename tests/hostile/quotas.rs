//! Tenants and agents that want more than their part: of the host's work, of people's attention.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::grants::{Route, grant};
use crate::support::host::Caller;
use crate::support::stage::multipart;
use crate::support::{Backend, Fault, Rule, Stage, Told, at_once, guests, is_set, long, postgres};
use crate::{on_both_stores, skip};

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
fn i01_p7_an_agent_that_floods_meets_its_own_limit_and_no_other_tenant_does() {
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
    assert_eq!(over(&stage.start_execute(&late)), "running.tenant");
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

#[test]
fn i01_p7_a_tool_and_a_caller_that_hang_leave_room_for_the_rest_of_their_tenant() {
    let toml = "[quota]\nrunning = { tenant = 4, tool = 2, caller = 3 }\npending = { actor = 1000 }\n";
    let stage = Stage::on_with(Backend::Sqlite, toml, "60s");
    let held = "/any/held";
    for name in ["hangs", "hangs-too"] {
        let route = Route::manual(stage.provider.port(), "/any/**");
        stage.install_probe(name, &grant("[limits]\nsend = \"60s\"", &[route]));
    }
    stage.provider.fault(Rule::always(held, Fault::hold()));
    let writes = |key: &str, path: &str| json!({ "mode": "writes", "url": stage.url(path), "bodies": [key] });
    let begin = |tool: &str, key: &str| {
        let id = stage.approved(tool, key, &writes(key, held));
        (stage.execute_unheard(&id), id)
    };
    let mut begun = vec![begin("hangs", "one"), begin("hangs", "two")];
    stage.provider.wait_held(2);
    // The tool has its two: one more is told so, and whose quota it is.
    let third = stage.approved("hangs", "three", &writes("three", held));
    let told = stage.start_execute(&third);
    assert_eq!(over(&told), "running.tool");
    assert_eq!((told.text("/whose"), told.number("/limit")), ("tool hangs".into(), 2));
    // Another tool of the same caller runs beside it; a fourth run would be the caller's fourth.
    begun.push(begin("hangs-too", "other"));
    stage.provider.wait_held(3);
    let fourth = stage.approved("refund", "fourth", &stage.refund("fourth", 5));
    let told = stage.start_execute(&fourth);
    assert_eq!(over(&told), "running.caller");
    assert_eq!((told.text("/whose"), told.number("/limit")), ("caller agent".into(), 3));
    // What another agent proposed is that agent's, and has the tenant's last place.
    let second = stage.host.new_token("second-agent", &["agent"], "default");
    let second = stage.host.with_token(&second);
    let proposed = propose(&second, "refund", "second", &stage.refund("second", 6)).expect(201);
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    let told = second.post_nothing(&format!("/v1/actions/{}/execute?wait=60s", proposed.id()));
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    // Those that waited get their turn.
    stage.provider.clear_faults();
    stage.provider.release();
    for (_caller, id) in &begun {
        stage.wait_for(id, &["succeeded"]);
        assert_eq!(stage.counts(held, id), (1, 1));
    }
    for id in [&third, &fourth] {
        assert_eq!(stage.execute(id).outcome(), "succeeded");
    }
}

on_both_stores! {
    i02_pending_actions_of_one_token_are_counted_whoever_it_speaks_for_and_after_a_crash,
}

fn i02_pending_actions_of_one_token_are_counted_whoever_it_speaks_for_and_after_a_crash(on: Backend) {
    let toml = "[quota]\npending = { caller = 3, actor = 2 }\n";
    let stage = Stage::over(on.new_store(), toml, "30s");
    // It may speak for others; each of those is one actor, and all of them are its own.
    let speaker = stage.host.new_token("speaker", &["agent", "operator"], "default");
    let speak = |n: usize| {
        let arguments = stage.refund(&format!("spoken-{n}"), 100);
        let body = json!({ "tool": "refund", "arguments": arguments, "actor": format!("actor-{n}") });
        let caller = stage.host.with_token(&speaker);
        let request = caller.request("POST", "/v1/actions").header("Idempotency-Key", &format!("spoken-{n}"));
        caller.send(request.body("application/json", body.to_string()))
    };
    for n in 0..3 {
        speak(n).expect(201);
    }
    let told = speak(3);
    assert_eq!(over(&told), "pending.caller");
    assert_eq!((told.text("/whose"), told.number("/limit")), ("caller speaker".into(), 3));
    // It is the ledger that counts.
    stage.host.kill_and_wake();
    assert_eq!(over(&speak(4)), "pending.caller");
    stage.propose("refund", "another", &stage.refund("another", 100)).expect(201);
    // The same again is no new one.
    assert_eq!(speak(0).status(), 200);
}

#[test]
fn i02_what_is_pending_counts_on_every_host_of_a_ledger() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let fleet = Fleet::of(2, cluster, "[quota]\npending = { actor = 3 }\n", "10s");
    let stage = &fleet.stage;
    let told: Vec<Told> = (0..5)
        .map(|n| {
            let key = format!("spread-{n}");
            propose(&fleet.host(n).agent(), "refund", &key, &stage.refund(&key, 100))
        })
        .collect();
    assert!(told[..3].iter().all(|told| told.status() == 201));
    assert!(told[3..].iter().all(|told| over(told) == "pending.actor"), "one refusal on each host");
}

#[test]
fn a14_p7_a_thousand_sleeping_calls_of_one_tenant_do_not_delay_anothers() {
    // What a host has that was told nothing: more wait than run, by far.
    let stage = Stage::on_with(Backend::Sqlite, "[quota]\n", "60s");
    let other = Other::on(&stage);
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("sleeps", &grant("[limits]\nsend = \"60s\"", &[route]));
    stage.provider.fault(Rule::always("/any/asleep", Fault::hold()));
    let all = long(320, 1_000);
    let next = AtomicUsize::new(0);
    let asleep = at_once(8, |_| {
        let mut callers = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= all {
                return callers;
            }
            let key = format!("asleep-{n}");
            let arguments = json!({ "mode": "writes", "url": stage.url("/any/asleep"), "bodies": [key] });
            let id = stage.approved("sleeps", &key, &arguments);
            callers.push(stage.execute_unheard(&id));
        }
    });
    // As many as one tool may.
    stage.provider.wait_held(128);
    let calls: Vec<Duration> = (0..10)
        .map(|n| {
            let asked = Instant::now();
            assert_eq!(other.act(&format!("calm-{n}"), "/any/calm").outcome(), "succeeded");
            asked.elapsed()
        })
        .collect();
    let slowest = calls.iter().max().expect("calls");
    eprintln!("another tenant's calls beside {all} asleep: {calls:?}");
    // From proposal to result, in a debug build, on a machine that has other work too.
    assert!(*slowest < Duration::from_secs(if is_set("COUNTERSIGN_TESTS_ALONE") { 1 } else { 10 }));
    assert_eq!(stage.provider.requests("/any/asleep").len(), 128);
    drop(asleep);
}
