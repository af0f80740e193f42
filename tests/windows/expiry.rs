//! Approvals and deadlines that run out.

use std::time::Duration;

use countersign_domain::time::Timestamp;
use serde_json::json;

use crate::on_both_stores;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Rule, Stage, grants};

on_both_stores! {
    an_approval_that_comes_after_expiry_and_an_execution_after_it_send_nothing,
    executed_in_time_it_is_done_although_the_approval_runs_out_while_it_is_sent,
    an_expiry_while_the_outcome_is_unknown_never_ends_it_as_expired,
    break_27_an_approval_that_expires_between_the_claim_and_the_first_write_stops_it,
}

/// Waits until a moment that the host named has come. Only time can bring it.
pub fn wait_until(moment: &str) {
    let at: Timestamp = serde_json::from_value(json!(moment)).expect("a moment");
    #[expect(clippy::disallowed_methods, reason = "the host's own clock is this machine's")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let at = Duration::from_micros(u64::try_from(at.as_micros()).expect("after 1970"));
    std::thread::sleep(at.saturating_sub(now) + Duration::from_millis(2));
}

fn short_lived(on: Backend) -> Stage {
    let stage = Stage::on(on);
    let grant = format!(
        "[approval]\nexpires_after = \"1s\"\n{}",
        without_show(&grants::refund(stage.provider.port()))
    );
    stage.put_grant("refund", &grant).expect(200);
    stage
}

fn without_show(grant: &str) -> String {
    grant.lines().filter(|line| !line.starts_with("show")).collect::<Vec<_>>().join("\n")
}

fn an_approval_that_comes_after_expiry_and_an_execution_after_it_send_nothing(on: Backend) {
    let stage = short_lived(on);
    let late = stage.propose("refund", "late", &stage.refund("late", 100)).expect(201);
    let approved = stage.approved("refund", "approved", &stage.refund("approved", 100));
    let unasked = stage.propose("refund", "unasked", &stage.refund("unasked", 100)).expect(201);
    wait_until(&stage.action(&unasked.id()).text("/approval/expires_at"));
    let refused = stage.approve(&late.id(), &late.text("/fingerprint"));
    assert_eq!(refused.status(), 409, "{}", refused.json);
    let told = stage.execute(&approved);
    assert_eq!((told.status(), told.ending().as_str()), (200, "expired approval_expired"));
    // Nobody asked about the third: the reaper writes it down all the same.
    stage.wait_for(&unasked.id(), &["expired"]);
    for id in [late.id(), approved, unasked.id()] {
        assert_eq!(stage.wait_for(&id, &["expired"]).outcome(), "expired");
        assert_eq!(stage.facts(&id).last().map(String::as_str), Some("expired"));
        assert_eq!(stage.counts(REFUNDS, &id), (0, 0));
        // It can be proposed anew, which needs a new approval.
        let new = stage.host.agent().post(&format!("/v1/actions/{id}/supersede"), &json!({})).expect(201);
        assert_eq!(new.outcome(), "awaiting_approval");
    }
}

fn executed_in_time_it_is_done_although_the_approval_runs_out_while_it_is_sent(on: Backend) {
    let stage = short_lived(on);
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    let id = stage.approved("refund", "intime", &stage.refund("intime", 100));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    wait_until(&stage.action(&id).text("/approval/expires_at"));
    stage.provider.release();
    assert_eq!(stage.wait_for(&id, &["succeeded", "expired", "failed_terminal"]).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn an_expiry_while_the_outcome_is_unknown_never_ends_it_as_expired(on: Backend) {
    let stage = short_lived(on);
    stage.provider.fault(Rule::once(REFUNDS, Fault::LoseReply));
    stage.provider.fault(Rule::times(REFUNDS, 2, Fault::status(409)));
    let id = stage.approved("refund", "doubt", &stage.refund("doubt", 100));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_acted(REFUNDS, 1);
    wait_until(&stage.action(&id).text("/approval/expires_at"));
    let ended = stage.wait_for(&id, &["succeeded", "expired", "failed_terminal", "cancelled"]);
    assert_eq!(ended.outcome(), "succeeded", "{}", ended.json);
    assert_eq!(stage.effects(REFUNDS, &id).len(), 1);
    stage.facts(&id);
}

fn break_27_an_approval_that_expires_between_the_claim_and_the_first_write_stops_it(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    // The component reads before it writes, and the read is slow: the approval runs out meanwhile.
    let routes = [
        grants::Route::idempotent(port, "/keyed/**").with("unplanned = 1"),
        grants::Route::read(port, "/keyed/**"),
    ];
    let head = "planning = \"none\"\nshow = [\"/mode\"]\n[approval]\nexpires_after = \"1s\"";
    stage.install_probe("slow", &grants::grant(head, &routes));
    let arguments = json!({ "mode": "read-then-write", "url": stage.url("/keyed/read"), "fallback_url": stage.url("/keyed/write") });
    stage.provider.fault(Rule::once("/keyed/read", Fault::hold()));
    let id = stage.approved("slow", "slow", &arguments);
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    wait_until(&stage.action(&id).text("/approval/expires_at"));
    stage.provider.release();
    let ended = stage.wait_for(&id, &["expired", "cancelled", "succeeded", "failed_terminal"]);
    assert_eq!(ended.outcome(), "expired", "{}", ended.json);
    assert_eq!(stage.provider.requests("/keyed/write").len(), 0);
    stage.facts(&id);
}
