//! Asking the provider what came of a send, at an operator's request: over HTTP and on the command
//! line. What the lookup finds settles the action; what it does not find leaves it in doubt.

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::{Backend, Fault, Mode, Rule, Stage};

on_both_stores! {
    what_the_provider_has_on_file_settles_the_action_with_one_send,
}

/// The bank recognises no repeat, but has every transfer on file under its key. A long send, so
/// that nothing is looked up by itself while the test looks on.
fn stage(on: Backend) -> Stage {
    let stage = Stage::on(on);
    stage.provider.set_mode(Mode::Ignores);
    let port = stage.provider.port();
    let more = |path| Route::verifiable(port, path).with("unplanned = 1");
    let routes = [
        Route::read(port, "/quote"),
        Route::read(port, "/lookup"),
        Route::verifiable(port, "/reserve"),
        more("/transfers"),
        more("/ledger"),
        more("/notify"),
    ];
    let head = "show = [\"/amount\", \"/from\", \"/to\"]\n[limits]\nsend = \"30s\"";
    stage.put_grant("transfer", &grant(head, &routes)).expect(200);
    stage
}

/// Executes a transfer whose first write meets this, and is in doubt.
fn in_doubt(stage: &Stage, key: &str, fault: Rule) -> String {
    stage.provider.fault(fault);
    let id = stage.approved("transfer", key, &stage.transfer(700));
    let _caller = stage.execute_unheard(&id);
    stage.wait_for(&id, &["outcome_unknown"]);
    id
}

fn what_the_provider_has_on_file_settles_the_action_with_one_send(on: Backend) {
    let stage = stage(on);
    let id = in_doubt(&stage, "filed", Rule::once("/reserve", Fault::LoseReply));
    let told = stage.host.operator().post_nothing(&format!("/v1/actions/{id}/reconcile")).expect(200);
    assert_eq!(told.text("/lookups/0/found"), "happened", "{}", told.json);
    assert_eq!(told.outcome(), "failed_retryable");
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts("/reserve", &id), (1, 1));
    assert!(stage.facts(&id).contains(&"found_done".to_owned()));
    // What is settled is not asked about again.
    let again = stage.host.operator().post_nothing(&format!("/v1/actions/{id}/reconcile"));
    again.refused(409, "invalid_state");
}

#[test]
fn what_is_not_on_file_yet_may_still_arrive_and_is_not_believed() {
    let stage = stage(Backend::Sqlite);
    let rule = Rule::once("/reserve", Fault::ResetAtByte { n: 0 }).acting(false);
    let id = in_doubt(&stage, "early", rule);
    let told = stage.host.cli(&["reconcile", &id]);
    assert_eq!(told.code, 5, "{told:?}");
    assert!(told.out.contains("may still arrive") && told.out.contains("ask again"), "{told:?}");
    assert_eq!(stage.action(&id).outcome(), "outcome_unknown");
    let told = stage.host.cli(&["reconcile", &id, "--json"]);
    assert_eq!(told.json()["lookups"][0]["found"], json!("too_early"), "{told:?}");
    assert_eq!(stage.counts("/reserve", &id), (1, 0));
}

#[test]
fn who_may_not_ask_and_what_cannot_be_asked_is_refused_with_what_to_do() {
    let stage = stage(Backend::Sqlite);
    let waits = stage.propose("transfer", "waits", &stage.transfer(100)).expect(201).id();
    let target = format!("/v1/actions/{waits}/reconcile");
    stage.host.agent().post_nothing(&target).refused(403, "not_permitted");
    stage.host.approver().post_nothing(&target).refused(403, "not_permitted");
    stage.host.operator().post_nothing(&target).refused(409, "invalid_state");
    stage.host.operator().post(&target, &json!({ "ordinal": 1 })).refused(400, "invalid_request");
    // Nobody can look up what a provider without a lookup did.
    let short = "show = [\"/mode\"]\n[limits]\nsend = \"700ms\"";
    stage.install_probe("manual", &grant(short, &[Route::manual(stage.provider.port(), "/any/**")]));
    stage.provider.fault(Rule::once("/any/lost", Fault::LoseReply));
    let write = json!({ "mode": "writes", "url": stage.url("/any/lost"), "bodies": ["once"] });
    let lost = stage.approved("manual", "lost", &write);
    stage.execute(&lost).refused(409, "execution_in_doubt");
    let told = stage.host.cli(&["reconcile", &lost]);
    assert!(told.code == 4 && told.err.contains("resolve it"), "{told:?}");
    let nobody = stage.host.cli(&["reconcile", "00000000-0000-8000-8000-000000000000"]);
    assert_eq!(nobody.code, 3, "{nobody:?}");
}
