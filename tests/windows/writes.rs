//! Writes that nobody saw, and writes whose component does not stay to hear the answer.

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::{Backend, Fault, Rule, Stage, at_once, long};

on_both_stores! {
    break_23_a_second_write_that_nobody_saw_is_refused_and_named_and_the_first_one_stands,
    p4_as_many_further_writes_as_approvers_were_told_of_go_out_and_not_one_more,
    writes_started_at_once_go_out_one_after_another,
    a_component_that_traps_after_its_write_has_made_it_once_and_the_answer_is_recorded,
    a_component_that_never_waits_for_its_write_but_traps_or_spins_cannot_even_be_proposed,
    break_2_and_5_a_cancel_while_a_write_runs_awaits_and_records_it_and_starts_no_other,
    break_2_a_component_that_runs_out_of_time_while_its_write_runs_does_not_end_the_attempt_over_it,
    b17_a_component_that_drops_its_future_and_returns_has_sent_and_recorded_every_time,
    a_component_that_refuses_after_its_write_ends_with_the_write_standing_and_named,
    a_body_that_is_not_whole_is_never_sent,
    b11_a_false_length_sends_nothing_and_a_true_one_is_counted_by_the_host,
}

fn break_23_a_second_write_that_nobody_saw_is_refused_and_named_and_the_first_one_stands(on: Backend) {
    let stage = Stage::on(on);
    let path = "/keyed/second";
    let id = stage.approved("probe", "second", &json!({ "mode": "second-write", "url": stage.url(path) }));
    let told = stage.execute(&id);
    assert_eq!(told.ending(), "failed_terminal unplanned_effect", "{}", told.json);
    let message = told.text("/error/message");
    assert!(message.contains("what was sent stands") && message.contains(path), "{message}");
    assert_eq!(stage.counts(path, &id), (1, 1));
    assert_eq!(stage.requests(path, &id)[0].body.as_deref(), Some("first"));
    assert!(stage.execute(&id).is_replayed());
    assert_eq!(stage.counts(path, &id), (1, 1));
}

fn p4_as_many_further_writes_as_approvers_were_told_of_go_out_and_not_one_more(on: Backend) {
    let stage = Stage::on(on);
    let route = Route::idempotent(stage.provider.port(), "/keyed/**").with("unplanned = 2");
    stage.install_probe("more", &grant("show = [\"/mode\"]", &[route]));
    for (bodies, expected) in [(1, "succeeded"), (3, "succeeded"), (4, "failed_terminal unplanned_effect")] {
        let path = format!("/keyed/more-{bodies}");
        let texts: Vec<String> = (0..bodies).map(|n| format!("write {n}")).collect();
        let arguments = json!({ "mode": "writes", "url": stage.url(&path), "bodies": texts });
        let proposed = stage.propose("more", &path, &arguments).expect(201);
        assert_eq!(proposed.text("/plan/first_write/body"), "write 0");
        assert_eq!(proposed.number("/plan/may_follow/0/up_to"), 2);
        stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
        let told = stage.execute(&proposed.id());
        assert_eq!(told.ending(), expected, "{}", told.json);
        let sent = bodies.min(3);
        assert_eq!(stage.counts(&path, &proposed.id()), (sent, sent));
        let keys: std::collections::BTreeSet<_> =
            stage.requests(&path, &proposed.id()).into_iter().map(|line| line.key).collect();
        assert_eq!(keys.len(), sent, "each write has a key of its own");
    }
}

fn writes_started_at_once_go_out_one_after_another(on: Backend) {
    let stage = Stage::on(on);
    let route = Route::idempotent(stage.provider.port(), "/keyed/**").with("unplanned = 4");
    stage.install_probe("at-once", &grant("show = [\"/mode\"]", &[route]));
    let path = "/keyed/at-once";
    stage.provider.fault(Rule::always(path, Fault::delay(20)));
    let arguments = json!({ "mode": "at-once", "url": stage.url(path), "bodies": ["a", "b", "c", "d", "e"] });
    let id = stage.approved("at-once", "at-once", &arguments);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    let sent = stage.requests(path, &id);
    let bodies: Vec<&str> = sent.iter().filter_map(|line| line.body.as_deref()).collect();
    assert_eq!(bodies, ["a", "b", "c", "d", "e"]);
    assert!(sent.windows(2).all(|pair| pair[1].at - pair[0].at >= 20), "two were under way at the same time");
}

fn a_component_that_traps_after_its_write_has_made_it_once_and_the_answer_is_recorded(on: Backend) {
    let stage = Stage::on(on);
    let path = "/keyed/write-then-trap";
    let id = stage.approved(
        "probe",
        "trap",
        &json!({ "mode": "write-then-trap", "url": stage.url(path), "body": "b" }),
    );
    stage.start_execute(&id);
    let told = stage.wait_for(&id, &["failed_retryable", "failed_terminal"]);
    assert_eq!(told.text("/error/code"), "tool_trapped", "{}", told.json);
    assert_eq!(stage.counts(path, &id), (1, 1));
    let effect = &stage.ledger(&id)[0];
    assert_eq!(
        (effect["status"].as_str(), effect["answer"]["status"].as_u64()),
        (Some("succeeded"), Some(200))
    );
    // Its budget of attempts is spent on replays; the write is never made again.
    let ended = stage.wait_for(&id, &["failed_terminal", "cancelled"]);
    assert_eq!(ended.ending(), "failed_terminal retries_exhausted", "{}", ended.json);
    assert_eq!(stage.counts(path, &id), (1, 1));
    stage.facts(&id);
}

fn a_component_that_never_waits_for_its_write_but_traps_or_spins_cannot_even_be_proposed(on: Backend) {
    let stage = Stage::on(on);
    for mode in ["trap-in-flight", "spin-in-flight", "truncated-body"] {
        let path = format!("/keyed/{mode}");
        let told =
            stage.propose("probe", mode, &json!({ "mode": mode, "url": stage.url(&path), "body": "b" }));
        told.refused(422, "planning_failed");
        assert_eq!(stage.provider.requests(&path).len(), 0, "{mode}");
    }
    assert_eq!(stage.audit(), 0, "nothing was written down for them");
}

fn break_2_and_5_a_cancel_while_a_write_runs_awaits_and_records_it_and_starts_no_other(on: Backend) {
    let stage = Stage::on(on);
    stage.provider.fault(Rule::once("/transfers", Fault::hold()));
    let id = stage.approved("transfer", "cancelled", &stage.transfer(900));
    let caller = std::thread::scope(|scope| {
        let caller = scope.spawn(|| stage.execute(&id));
        stage.provider.wait_held(1);
        let told = stage.cancel(&id).expect(200);
        assert_eq!(told.outcome(), "executing", "it is a request: the write in flight is awaited");
        assert_eq!(told.text("/cancel_requested"), "not any more");
        stage.provider.release();
        caller.join().expect("a caller")
    });
    // Not `cancelled`: two writes stand outside, and the end says which.
    assert_eq!(caller.ending(), "failed_terminal cancelled", "{}", caller.json);
    let message = caller.text("/error/message");
    assert!(message.contains("/reserve") && message.contains("/transfers"), "{message}");
    assert_eq!((stage.counts("/reserve", &id), stage.counts("/transfers", &id)), ((1, 1), (1, 1)));
    assert_eq!((stage.counts("/ledger", &id), stage.counts("/notify", &id)), ((0, 0), (0, 0)));
    assert!(stage.ledger(&id).iter().all(|effect| effect["status"] == "succeeded"));
    stage.facts(&id);
}

fn break_2_a_component_that_runs_out_of_time_while_its_write_runs_does_not_end_the_attempt_over_it(
    on: Backend,
) {
    let stage = Stage::on(on);
    let route = Route::manual(stage.provider.port(), "/any/**").with("unplanned = 1");
    // The first write takes its time, so that the second one's ends well after the call's: the
    // component is ended first.
    stage.install_probe("hasty", &grant("[limits]\nwall = \"1s\"\nsend = \"1s\"", &[route]));
    let path = "/any/hasty";
    stage.provider.fault(Rule::once(path, Fault::delay(500)));
    stage.provider.fault(Rule::once(path, Fault::hold()));
    let arguments = json!({ "mode": "writes", "url": stage.url(path), "bodies": ["x", "y"] });
    let id = stage.approved("hasty", "hasty", &arguments);
    stage.execute(&id).refused(409, "execution_in_doubt");
    assert_eq!(stage.ledger(&id)[1]["status"], "unknown");
    assert_eq!(stage.facts(&id).last().map(String::as_str), Some("outcome_lost"));
    stage.cancel(&id).expect(200);
    assert_eq!(stage.action(&id).outcome(), "outcome_unknown", "a cancel hides nothing");
    assert_eq!(stage.counts(path, &id), (2, 2));
}

fn b17_a_component_that_drops_its_future_and_returns_has_sent_and_recorded_every_time(on: Backend) {
    let stage = Stage::on(on);
    let path = "/keyed/drop-future";
    at_once(4, |thread| {
        for round in 0..long(10, 250) {
            let key = format!("drop-{thread}-{round}");
            let id = stage.approved(
                "probe",
                &key,
                &json!({ "mode": "drop-future", "url": stage.url(path), "body": key }),
            );
            let told = stage.execute(&id);
            assert_eq!(told.outcome(), "succeeded", "{}", told.json);
            assert_eq!(stage.counts(path, &id), (1, 1));
            assert_eq!(stage.ledger(&id)[0]["status"], "succeeded");
        }
    });
}

fn a_component_that_refuses_after_its_write_ends_with_the_write_standing_and_named(on: Backend) {
    let stage = Stage::on(on);
    let path = "/keyed/write-then-refuse";
    let id = stage.approved(
        "probe",
        "refuse",
        &json!({ "mode": "write-then-refuse", "url": stage.url(path), "body": "b" }),
    );
    let told = stage.execute(&id);
    assert_eq!(told.ending(), "failed_terminal tool_refused", "{}", told.json);
    assert!(told.text("/error/message").contains(path), "its end names what stands: {}", told.json);
    assert_eq!(stage.counts(path, &id), (1, 1));
    stage.cancel(&id).refused(409, "invalid_state");
}

fn a_body_that_is_not_whole_is_never_sent(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let quick = grant(
        "show = [\"/mode\"]\n[limits]\nwall = \"3s\"\nsend = \"2s\"\ncpu = \"1s\"",
        &[Route::idempotent(port, "/keyed/**")],
    );
    stage.install_probe("half", &quick);
    let cases = [
        json!({ "mode": "truncated-body", "n": 8192 }),
        json!({ "mode": "dont-finish", "body": "unfinished" }),
        json!({ "mode": "hold-body", "body": "held" }),
    ];
    at_once(cases.len(), |i| {
        let mut arguments = cases[i].clone();
        let path = format!("/keyed/half-{i}");
        arguments["url"] = json!(stage.url(&path));
        let proposed = stage.propose("half", &path, &arguments);
        if proposed.status() == 201 {
            let id = proposed.id();
            stage.approve(&id, &proposed.text("/fingerprint")).expect(200);
            stage.start_execute(&id);
            stage.wait_for(&id, &["succeeded", "failed_terminal", "failed_retryable", "cancelled"]);
            stage.cancel(&id);
            stage.wait_for(&id, &["succeeded", "failed_terminal", "cancelled"]);
        }
        assert_eq!(stage.provider.requests(&path).len(), 0, "{arguments}: {}", proposed.json);
    });
}

fn b11_a_false_length_sends_nothing_and_a_true_one_is_counted_by_the_host(on: Backend) {
    let stage = Stage::on(on);
    for (n, body) in [(10, "short"), (5, "much too long"), (0, "x"), (5, "right")] {
        let path = format!("/keyed/length-{n}-{}", body.len());
        let arguments = json!({ "mode": "wrong-length", "url": stage.url(&path), "n": n, "body": body });
        let id = stage.approved("probe", &path, &arguments);
        let told = stage.execute(&id);
        let sent = stage.requests(&path, &id);
        if n != body.len() {
            assert!(sent.is_empty(), "{n} for {body:?}: {}", told.json);
            assert!(told.json["result"]["answer"]["error"].is_string(), "it is told so: {}", told.json);
            continue;
        }
        assert_eq!(sent.len(), 1, "{}", told.json);
        assert_eq!((sent[0].body.as_deref(), sent[0].body_bytes), (Some(body), body.len() as u64));
        let lengths = sent[0].headers.iter().filter(|name| *name == "content-length").count();
        assert_eq!((lengths, sent[0].headers.iter().any(|name| name == "transfer-encoding")), (1, false));
    }
}
