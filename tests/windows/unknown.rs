//! Outcomes that nobody knows, at providers that recognise a repeat and at those that do not.

use std::time::Duration;

use serde_json::{Value, json};

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Mode, Rule, Stage, at_once};

on_both_stores! {
    a_lost_reply_of_an_idempotent_provider_ends_succeeded_with_one_effect_under_one_key,
    p2_a_lost_reply_of_a_provider_without_keys_is_never_repeated_and_a_person_says_it_happened,
    break_9_did_not_happen_is_not_taken_before_the_send_has_settled_and_then_it_is_sent_once_more,
    a_deadline_that_passes_while_a_person_looks_does_not_keep_what_happened_from_ending_succeeded,
    a_person_who_gives_up_ends_it_with_the_words_that_it_was_never_known,
    a_cancel_asked_while_the_outcome_is_unknown_never_hides_the_write,
    an_answer_that_never_comes_is_unknown_when_the_longest_send_is_over,
    every_way_of_losing_an_answer_is_unknown_and_every_way_of_not_sending_is_not,
    e11_once_the_providers_key_window_is_over_nothing_is_repeated_and_a_person_is_asked,
    break_4_repeats_go_on_inside_the_window_and_not_one_is_sent_after_it,
    a_provider_that_forgets_keys_makes_no_second_effect_of_a_finished_action,
    a_grant_that_is_relaxed_while_a_write_is_unknown_does_not_make_it_repeatable,
}

/// A short longest send, so that `settle`, twice as long, is short as well.
const SHORT: &str = "show = [\"/mode\"]\n[limits]\nsend = \"700ms\"";

fn manual_stage(on: Backend) -> Stage {
    let stage = Stage::on(on);
    stage.provider.set_mode(Mode::Ignores);
    let port = stage.provider.port();
    stage.install_probe("manual", &grant(SHORT, &[Route::manual(port, "/any/**")]));
    stage
}

fn write_to(stage: &Stage, path: &str) -> Value {
    json!({ "mode": "writes", "url": stage.url(path), "bodies": ["once"] })
}

/// Executes a write whose reply is lost; the action waits for a person.
fn lost(stage: &Stage, path: &str) -> String {
    stage.provider.fault(Rule::once(path, Fault::LoseReply));
    let id = stage.approved("manual", path, &write_to(stage, path));
    let told = stage.execute(&id);
    let said = told.refused(409, "execution_in_doubt");
    assert!(said.contains("Do not propose it again"), "{said}");
    assert_eq!(told.text("/action"), id);
    id
}

fn a_lost_reply_of_an_idempotent_provider_ends_succeeded_with_one_effect_under_one_key(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "lost", &stage.refund("lost", 900));
    stage.provider.fault(Rule::once(REFUNDS, Fault::LoseReply));
    let told = at_once(4, |_| stage.execute(&id));
    assert!(told.iter().all(|told| told.outcome() == "succeeded"), "{:?}", told[0].json);
    let sent = stage.requests(REFUNDS, &id);
    assert_eq!((sent.len(), stage.effects(REFUNDS, &id).len()), (2, 1));
    assert_eq!((&sent[0].key, &sent[0].body_sha256), (&sent[1].key, &sent[1].body_sha256));
    assert_eq!(sent[1].outcome.as_deref(), Some("replayed"));
    assert!(stage.facts(&id).contains(&"outcome_lost".to_owned()));
}

fn p2_a_lost_reply_of_a_provider_without_keys_is_never_repeated_and_a_person_says_it_happened(on: Backend) {
    let stage = manual_stage(on);
    let id = lost(&stage, "/any/happened");
    // Asked by anybody, also after a crash: never again.
    at_once(4, |_| stage.execute(&id).refused(409, "execution_in_doubt"));
    stage.host.kill_and_wake();
    stage.execute(&id).refused(409, "execution_in_doubt");
    assert_eq!(stage.counts("/any/happened", &id), (1, 1));
    let answer = json!({ "status": 201, "headers": [["content-type", "application/json"]],
        "body": "{\"told\":\"by a person\"}", "body_encoding": "utf-8" });
    let word = json!({ "ordinal": 1, "outcome": "happened", "answer": answer, "evidence": "their statement, line 7" });
    stage.resolve(&id, word.clone()).expect(200);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert!(told.raw("result").contains("by a person"), "{}", told.json);
    assert_eq!(stage.counts("/any/happened", &id), (1, 1));
    let effect = &stage.ledger(&id)[0];
    assert_eq!(effect["evidence"]["by"], "operator");
    assert!(effect["evidence"].to_string().contains("line 7"), "{effect}");
    assert!(stage.facts(&id).contains(&"found_done".to_owned()));
    // The word is spent: nothing is in doubt any more.
    stage.resolve(&id, word).refused(409, "invalid_state");
}

fn break_9_did_not_happen_is_not_taken_before_the_send_has_settled_and_then_it_is_sent_once_more(
    on: Backend,
) {
    let stage = manual_stage(on);
    stage.provider.fault(Rule::once("/any/not", Fault::ResetAtByte { n: 0 }).acting(false));
    let id = stage.approved("manual", "not", &write_to(&stage, "/any/not"));
    stage.execute(&id).refused(409, "execution_in_doubt");
    let word = |send: u64| json!({ "ordinal": 1, "send": send, "outcome": "did_not_happen", "evidence": "asked them" });
    let early = stage.resolve(&id, word(1)).refused(409, "invalid_state");
    assert!(early.contains("too early"), "{early}");
    // About a send that was never made, nobody's word counts.
    stage.resolve(&id, word(2)).refused(409, "invalid_state");
    let settles = stage.ledger(&id)[0]["settles_at"].as_str().expect("a time").to_owned();
    super::expiry::wait_until(&settles);
    stage.resolve(&id, word(1)).expect(200);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.counts("/any/not", &id), (2, 1));
    let sent = stage.requests("/any/not", &id);
    assert_eq!(sent[0].key, sent[1].key);
    let facts = stage.facts(&id);
    assert!(facts.contains(&"found_not_done".to_owned()), "{facts:?}");
}

fn a_deadline_that_passes_while_a_person_looks_does_not_keep_what_happened_from_ending_succeeded(
    on: Backend,
) {
    let stage = Stage::on(on);
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe(
        "manual",
        &grant(
            &format!("[approval]\nexecution_deadline = \"2s\"\n{SHORT}").replace("show = [\"/mode\"]\n", ""),
            &[route],
        ),
    );
    let id = lost(&stage, "/any/deadline");
    // An approval lasts no longer than the deadline, and here no shorter.
    super::expiry::wait_until(&stage.action(&id).text("/approval/expires_at"));
    let answer = json!({ "status": 200, "body": "" });
    let word = json!({ "ordinal": 1, "outcome": "happened", "answer": answer, "evidence": "their list" });
    stage.resolve(&id, word).expect(200);
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts("/any/deadline", &id), (1, 1));
    stage.facts(&id);
}

fn a_person_who_gives_up_ends_it_with_the_words_that_it_was_never_known(on: Backend) {
    let stage = manual_stage(on);
    let id = lost(&stage, "/any/never");
    let word = json!({ "ordinal": 1, "outcome": "give_up", "evidence": "they do not answer" });
    let told = stage.resolve(&id, word).expect(200);
    assert_eq!(told.ending(), "failed_terminal outcome_never_known");
    assert!(told.text("/error/message").contains("do not propose this again without looking"));
    assert_eq!(stage.execute(&id).ending(), "failed_terminal outcome_never_known");
    assert_eq!(stage.counts("/any/never", &id), (1, 1));
    stage.facts(&id);
}

fn a_cancel_asked_while_the_outcome_is_unknown_never_hides_the_write(on: Backend) {
    let stage = manual_stage(on);
    let id = lost(&stage, "/any/cancelled");
    let told = stage.cancel(&id).expect(200);
    assert_eq!(told.outcome(), "outcome_unknown");
    let answer = json!({ "status": 200, "body": "" });
    stage
        .resolve(&id, json!({ "ordinal": 1, "outcome": "happened", "answer": answer, "evidence": "seen" }))
        .expect(200);
    let ended = stage.wait_for(&id, &["failed_terminal", "succeeded", "cancelled"]);
    // It stands outside: whatever it ends as, it does not end as if nothing had been sent.
    assert_ne!(ended.outcome(), "cancelled", "{}", ended.json);
    assert_eq!(stage.counts("/any/cancelled", &id), (1, 1));
    stage.facts(&id);
}

fn an_answer_that_never_comes_is_unknown_when_the_longest_send_is_over(on: Backend) {
    let stage = manual_stage(on);
    stage.provider.fault(Rule::once("/any/silent", Fault::hold()));
    let id = stage.approved("manual", "silent", &write_to(&stage, "/any/silent"));
    stage.execute(&id).refused(409, "execution_in_doubt");
    assert_eq!(stage.ledger(&id)[0]["status"], "unknown");
    stage.provider.release();
    assert_eq!(stage.counts("/any/silent", &id), (1, 1));
}

fn every_way_of_losing_an_answer_is_unknown_and_every_way_of_not_sending_is_not(on: Backend) {
    let stage = manual_stage(on);
    let faults: Vec<(&str, Fault)> = vec![
        ("reset-head", Fault::ResetAtByte { n: 9 }),
        ("reset-headers", Fault::ResetAtByte { n: 40 }),
        ("truncated", Fault::Truncate { n: None }),
        ("raw", Fault::Raw { body: "not HTTP at all\r\n\r\n".into() }),
        ("error", Fault::status(503)),
        ("big", Fault::BigBody { bytes: 9 << 20, chunked: true }),
    ];
    let ids: Vec<String> = at_once(faults.len(), |i| {
        let (name, fault) = &faults[i];
        let path = format!("/any/{name}");
        stage.provider.fault(Rule::once(&path, fault.clone()).acting(true));
        let id = stage.approved("manual", name, &write_to(&stage, &path));
        stage.execute(&id).refused(409, "execution_in_doubt");
        assert_eq!(stage.requests(&path, &id).len(), 1, "{name}");
        id
    });
    ids.iter().for_each(|id| drop(stage.facts(id)));

    // A port where nobody listens: not a byte was sent, so it is simply tried again.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("its address").port();
    drop(nobody);
    stage.install_probe("nobody", &grant(SHORT, &[Route::manual(port, "/any/**")]));
    let url = format!("http://127.0.0.1:{port}/any/nobody");
    let id = stage.approved("nobody", "nobody", &json!({ "mode": "writes", "url": url, "bodies": ["x"] }));
    let told = stage.start_execute(&id);
    assert_eq!(told.status(), 202, "{}", told.json);
    let told = stage.wait_for(&id, &["failed_retryable"]);
    assert_eq!(told.text("/error/code"), "not_sent");
    stage.cancel(&id).expect(200);
    assert_eq!(stage.wait_for(&id, &["cancelled", "failed_terminal"]).outcome(), "cancelled");
}

/// A grant under which a second is left of the key's window: what the provider promises, less the
/// longest send.
fn install_closing(stage: &Stage) {
    let route = Route::idempotent(stage.provider.port(), "/keyed/**").with("key_retention = \"60s\"");
    stage.install_probe("closing", &grant("[limits]\nsend = \"59s\"", &[route]));
}

fn wait_for_the_windows_end(stage: &Stage, id: &str) {
    let ends = stage.ledger(id)[0]["key_window_ends_at"].as_str().expect("a time").to_owned();
    super::expiry::wait_until(&ends);
}

fn e11_once_the_providers_key_window_is_over_nothing_is_repeated_and_a_person_is_asked(on: Backend) {
    let stage = Stage::on(on);
    install_closing(&stage);
    let path = "/keyed/closed";
    // The provider acts, says that it is busy, and asks for more patience than the window has.
    let headers = std::collections::BTreeMap::from([("Retry-After".to_owned(), "2".to_owned())]);
    stage.provider.fault(Rule::once(path, Fault::Status { code: 429, headers, body: None }).acting(true));
    let id = stage.approved("closing", "closed", &write_to(&stage, path));
    let _caller = stage.execute_unheard(&id);
    stage.wait_for(&id, &["outcome_unknown"]);
    wait_for_the_windows_end(&stage, &id);
    stage.start_execute(&id).refused(409, "execution_in_doubt");
    stage.host.kill_and_wake();
    stage.start_execute(&id).refused(409, "execution_in_doubt");
    assert_eq!(stage.counts(path, &id), (1, 1));
    let answer = json!({ "status": 200, "body": "" });
    let word =
        json!({ "ordinal": 1, "outcome": "happened", "answer": answer, "evidence": "their list of charges" });
    stage.resolve(&id, word).expect(200);
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts(path, &id), (1, 1));
    stage.facts(&id);
}

fn break_4_repeats_go_on_inside_the_window_and_not_one_is_sent_after_it(on: Backend) {
    let stage = Stage::on(on);
    install_closing(&stage);
    let path = "/keyed/closing";
    stage.provider.fault(Rule::once(path, Fault::LoseReply));
    stage.provider.fault(Rule::always(path, Fault::status(409)));
    let id = stage.approved("closing", "closing", &write_to(&stage, path));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_requests(path, 2);
    wait_for_the_windows_end(&stage, &id);
    stage.wait_for(&id, &["outcome_unknown"]);
    // With the provider well again, still nothing follows: the key may be forgotten by now.
    stage.provider.clear_faults();
    stage.start_execute(&id).refused(409, "execution_in_doubt");
    stage.host.kill_and_wake();
    stage.start_execute(&id).refused(409, "execution_in_doubt");
    let sent = stage.requests(path, &id);
    assert_eq!(stage.effects(path, &id).len(), 1);
    assert!(sent.iter().all(|line| line.at - sent[0].at < 1_000), "sent after the window: {sent:?}");
}

fn a_provider_that_forgets_keys_makes_no_second_effect_of_a_finished_action(on: Backend) {
    let stage = Stage::on(on);
    stage.provider.set_mode(Mode::Forgets);
    let id = stage.approved("refund", "forget", &stage.refund("forget", 100));
    let told = stage.execute(&id);
    stage.provider.advance_clock(Duration::from_secs(25 * 3600));
    stage.host.kill_and_wake();
    assert_eq!(stage.execute(&id).raw("result"), told.raw("result"));
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn a_grant_that_is_relaxed_while_a_write_is_unknown_does_not_make_it_repeatable(on: Backend) {
    let stage = manual_stage(on);
    let id = lost(&stage, "/any/relaxed");
    let port = stage.provider.port();
    let relaxed = grant(SHORT, &[Route::idempotent(port, "/any/**")]);
    stage.put_grant("manual", &relaxed).expect(200);
    stage.host.kill_and_wake();
    stage.execute(&id).refused(409, "execution_in_doubt");
    assert_eq!(stage.counts("/any/relaxed", &id), (1, 1));
}
