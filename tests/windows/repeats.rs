//! Repeats of a send that may have arrived: what settles them and what does not.

use std::collections::BTreeMap;

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Rule, Stage, at_once};

on_both_stores! {
    break_10_a_repeat_that_is_answered_in_flight_401_403_425_429_500_or_nothing_settles_nothing,
    a_429_on_the_first_send_is_repeated_under_the_same_key_no_sooner_than_the_provider_asked,
    another_4xx_on_a_first_send_is_an_answer_and_ends_as_the_tool_says,
    break_30_a_component_that_retries_the_same_write_after_a_500_uses_the_same_key,
    break_29_a_component_that_retries_at_a_provider_without_keys_is_refused_not_sent_again,
    try_later_asks_a_read_again_and_a_write_again_only_under_its_key,
    a_provider_that_works_long_and_says_in_flight_to_the_repeat_acts_once,
}

fn break_10_a_repeat_that_is_answered_in_flight_401_403_425_429_500_or_nothing_settles_nothing(on: Backend) {
    let stage = Stage::on(on);
    let answers: Vec<(&str, Fault)> = vec![
        ("409", Fault::status(409)),
        ("401", Fault::status(401)),
        ("403", Fault::status(403)),
        ("404", Fault::status(404)),
        ("425", Fault::status(425)),
        ("429", Fault::status(429)),
        ("500", Fault::status(500)),
        ("503", Fault::status(503)),
        ("lost", Fault::LoseReply),
        ("reset", Fault::ResetBeforeRead),
    ];
    at_once(answers.len(), |i| {
        let (name, answer) = &answers[i];
        let path = format!("/keyed/repeat-{name}");
        // The first send acts and its reply is lost; the repeat is answered so; then it is well.
        stage.provider.fault(Rule::once(&path, Fault::LoseReply));
        stage.provider.fault(Rule::once(&path, answer.clone()));
        let id = stage.approved(
            "probe",
            name,
            &json!({ "mode": "writes", "url": stage.url(&path), "bodies": ["b"] }),
        );
        let told = stage.execute(&id);
        assert_eq!(told.outcome(), "succeeded", "{name}: {}", told.json);
        // The component saw the success and nothing of what came before it.
        assert_eq!(told.json["result"]["answers"][0]["status"], 200, "{name}: {}", told.json);
        assert_eq!(stage.effects(&path, &id).len(), 1, "{name}");
        let sent = stage.requests(&path, &id);
        let heard = if *name == "reset" { 2 } else { 3 };
        assert_eq!(sent.len(), heard, "{name}");
        assert!(sent.iter().all(|line| line.key == sent[0].key && line.body_sha256 == sent[0].body_sha256));
        let lost = stage.facts(&id).iter().filter(|fact| *fact == "outcome_lost").count();
        assert_eq!(lost, 2, "{name}: {:?}", stage.facts(&id));
    });
}

fn a_429_on_the_first_send_is_repeated_under_the_same_key_no_sooner_than_the_provider_asked(on: Backend) {
    let stage = Stage::on(on);
    let mut headers = BTreeMap::new();
    headers.insert("Retry-After".to_owned(), "1".to_owned());
    stage.provider.fault(Rule::once(REFUNDS, Fault::Status { code: 429, headers, body: None }));
    let id = stage.approved("refund", "later", &stage.refund("later", 100));
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.counts(REFUNDS, &id), (2, 1));
    let sent = stage.requests(REFUNDS, &id);
    assert_eq!(sent[0].key, sent[1].key);
    assert!(sent[1].at - sent[0].at >= 1000, "{} ms later", sent[1].at - sent[0].at);
}

fn another_4xx_on_a_first_send_is_an_answer_and_ends_as_the_tool_says(on: Backend) {
    let stage = Stage::on(on);
    // The provider declines this payment, and keeps the answer under the key.
    let id = stage.approved("refund", "declined", &stage.refund("declined", 100));
    let told = stage.execute(&id);
    assert_eq!(told.ending(), "failed_terminal tool_refused", "{}", told.json);
    assert!(told.text("/error/message").contains("declined"), "{}", told.json);
    assert_eq!(stage.requests(REFUNDS, &id).len(), 1);
    assert_eq!(stage.ledger(&id)[0]["status"], "succeeded");
    assert_eq!(stage.ledger(&id)[0]["answer"]["status"], 402);
    assert!(stage.execute(&id).is_replayed());
    assert_eq!(stage.requests(REFUNDS, &id).len(), 1);
}

fn break_30_a_component_that_retries_the_same_write_after_a_500_uses_the_same_key(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let route = Route::idempotent(port, "/keyed/**").with("on_5xx = \"answer\"");
    stage.install_probe("answered", &grant("show = [\"/mode\"]", &[route]));
    // The provider acts and still says 500; asked again under the key, it says what it did.
    let path = "/keyed/own-retry";
    stage.provider.fault(Rule::once(path, Fault::status(500)).acting(true));
    let arguments = json!({ "mode": "same-write-retry", "url": stage.url(path), "body": "same", "n": 3 });
    let id = stage.approved("answered", "own-retry", &arguments);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.json["result"]["statuses"], json!([500, 200]));
    let sent = stage.requests(path, &id);
    assert_eq!((sent.len(), stage.effects(path, &id).len()), (2, 1));
    assert_eq!(sent[0].key, sent[1].key);
    // Not counted as a write that nobody saw: the grant allows none.
    assert_eq!(stage.ledger(&id).len(), 2);
}

fn break_29_a_component_that_retries_at_a_provider_without_keys_is_refused_not_sent_again(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let route = Route::manual(port, "/any/**").with("on_5xx = \"answer\"").with("unplanned = 5");
    stage.install_probe("manual", &grant("show = [\"/mode\"]", &[route]));
    let path = "/any/no-keys";
    stage.provider.fault(Rule::once(path, Fault::status(500)).acting(true));
    let arguments = json!({ "mode": "same-write-retry", "url": stage.url(path), "body": "same", "n": 3 });
    let id = stage.approved("manual", "no-keys", &arguments);
    let told = stage.execute(&id);
    assert_eq!(told.json["result"]["statuses"][0], 500, "{}", told.json);
    assert_eq!(stage.counts(path, &id), (1, 1));
}

fn try_later_asks_a_read_again_and_a_write_again_only_under_its_key(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let routes =
        [Route::idempotent(port, "/keyed/**").with("on_5xx = \"answer\""), Route::read(port, "/keyed/**")];
    stage.install_probe("later", &grant("show = [\"/mode\"]", &routes));
    let path = "/keyed/later";
    stage.provider.fault(Rule::times(path, 2, Fault::status(503)).acting(true));
    let id = stage.approved(
        "later",
        "later",
        &json!({ "mode": "write-then-try-later", "url": stage.url(path), "body": "b" }),
    );
    let told = stage.execute(&id);
    let ended =
        if told.status() == 202 { stage.wait_for(&id, &["succeeded", "failed_terminal"]) } else { told };
    assert_eq!(ended.outcome(), "succeeded", "{}", ended.json);
    let sent = stage.requests(path, &id);
    assert_eq!(stage.effects(path, &id).len(), 1);
    assert!(sent.len() >= 2 && sent.iter().all(|line| line.key == sent[0].key), "{} sent", sent.len());
    stage.facts(&id);
}

fn a_provider_that_works_long_and_says_in_flight_to_the_repeat_acts_once(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "inflight", &stage.refund("inflight", 100));
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    // The host dies while the provider works; in its next life it asks again, and is told 409
    // for as long as the first request is being worked on.
    stage.host.kill_and_wake();
    stage.provider.wait_requests(REFUNDS, 2);
    let told = stage.start_execute(&id);
    assert!(["execution_in_doubt", "executing"].contains(&told.outcome().as_str()), "{}", told.json);
    stage.provider.release();
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.effects(REFUNDS, &id).len(), 1);
    let sent = stage.requests(REFUNDS, &id);
    assert!(sent.iter().all(|line| line.key == sent[0].key));
    assert!(sent.iter().any(|line| line.outcome.as_deref() == Some("in-flight")), "{sent:?}");
}
