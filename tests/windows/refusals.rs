//! What was shown to a component stays as it was shown.

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{Route, grant, sending_for};
use crate::support::{Backend, Fault, Rule, Stage};

on_both_stores! {
    break_11_a_refusal_that_was_shown_and_a_fallback_that_was_sent_stay_so_after_a_crash_and_a_wider_grant,
    an_answer_that_was_shown_and_a_fallback_after_it_are_replayed_not_sent_again,
}

fn break_11_a_refusal_that_was_shown_and_a_fallback_that_was_sent_stay_so_after_a_crash_and_a_wider_grant(
    on: Backend,
) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let narrow = grant("show = [\"/mode\"]", &[Route::idempotent(port, "/keyed/fallback")]);
    stage.install_probe("fallback", &sending_for(&narrow, on.send()));
    let arguments = json!({ "mode": "fallback", "url": stage.url("/keyed/primary"),
        "fallback_url": stage.url("/keyed/fallback"), "body": "pay" });
    let id = stage.approved("fallback", "fallback", &arguments);
    // The fallback is sent, acts, and the host dies before it hears of it. In its next life the
    // repeat is told to wait; meanwhile the primary becomes permitted.
    stage.provider.fault(Rule::once("/keyed/fallback", Fault::hold()));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    stage.host.kill_and_wake();
    stage.provider.wait_requests("/keyed/fallback", 2);
    let wide = grant("show = [\"/mode\"]", &[Route::idempotent(port, "/keyed/**").with("unplanned = 5")]);
    stage.put_grant("fallback", &wide).expect(200);
    stage.provider.release();
    stage.host.kill_and_wake();
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.json["result"]["fell_back"], true);
    assert_eq!(told.json["result"]["first"]["error"], "HttpRequestDenied", "{}", told.json);
    assert_eq!(stage.provider.requests("/keyed/primary").len(), 0, "the refusal became a permission");
    assert_eq!(stage.effects("/keyed/fallback", &id).len(), 1);
    let ledger = stage.ledger(&id);
    assert_eq!(
        (ledger[0]["status"].as_str(), ledger[1]["status"].as_str()),
        (Some("failed"), Some("succeeded"))
    );
    stage.facts(&id);
}

fn an_answer_that_was_shown_and_a_fallback_after_it_are_replayed_not_sent_again(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let routes = [
        Route::idempotent(port, "/keyed/primary"),
        Route::idempotent(port, "/keyed/fallback").with("unplanned = 1"),
    ];
    stage.install_probe("pair", &grant("show = [\"/mode\"]", &routes));
    stage.host.kill();
    stage.host.wake_armed("after-record:2");
    stage.provider.fault(Rule::once("/keyed/primary", Fault::status(404)));
    let arguments = json!({ "mode": "fallback", "url": stage.url("/keyed/primary"),
        "fallback_url": stage.url("/keyed/fallback"), "body": "pay" });
    let id = stage.approved("pair", "pair", &arguments);
    let _caller = stage.execute_unheard(&id);
    stage.host.wait_halted();
    stage.host.kill_and_wake();
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.json["result"]["first"]["status"], 404);
    assert_eq!(stage.counts("/keyed/primary", &id), (1, 0));
    assert_eq!(stage.counts("/keyed/fallback", &id), (1, 1));
}
