//! The same call again: after the caller's own crash, from a checkpoint, after an upgrade, with
//! other arguments.

use serde_json::json;

use crate::on_both_stores;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Stage, at_once, grants, guests};

on_both_stores! {
    a_re_issued_call_gets_the_same_action_and_the_stored_result_and_sends_nothing,
    p5_the_same_key_with_another_intent_names_both_and_sends_nothing,
    the_same_proposal_from_many_at_once_is_one_action,
    run_and_step_name_an_action_and_a_run_has_many,
    break_21_after_an_upgrade_of_the_tool_a_caller_still_gets_its_own_stored_result,
    p4_a_component_or_grant_replaced_after_approval_ends_it_changed_and_nothing_is_sent,
    p4_arguments_changed_after_approval_are_a_new_action_that_needs_its_own_approval,
    a_paused_tool_runs_nothing_until_it_is_resumed,
}

fn a_re_issued_call_gets_the_same_action_and_the_stored_result_and_sends_nothing(on: Backend) {
    let stage = Stage::on(on);
    let arguments = stage.refund("again", 300);
    let id = stage.approved("refund", "again", &arguments);
    let first = stage.execute(&id);
    for _ in 0..3 {
        let proposed = stage.propose("refund", "again", &arguments).expect(200);
        assert!(proposed.is_replayed());
        assert_eq!(proposed.id(), id);
        let told = stage.execute(&id).expect(200);
        assert!(told.is_replayed());
        assert_eq!(told.raw("result"), first.raw("result"));
    }
    // Member order and number spelling are no other intent: the form that is compared is
    // canonical.
    let spelled = format!(
        r#"{{"tool":"refund","arguments":{{"api_base":"{}","currency":"eur","amount":3.0e2,"payment_intent":"pi_again"}}}}"#,
        stage.provider.url()
    );
    let agent = stage.host.agent();
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "again");
    let told = agent.send(request.body("application/json", spelled)).expect(200);
    assert_eq!(told.id(), id);
    // And a restart of the host changes none of it.
    stage.host.kill_and_wake();
    assert_eq!(stage.execute(&id).raw("result"), first.raw("result"));
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn p5_the_same_key_with_another_intent_names_both_and_sends_nothing(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "key", &stage.refund("key", 700));
    let mismatch = |tool: &str, arguments: &serde_json::Value| {
        let told = stage.propose(tool, "key", arguments);
        told.refused(409, "idempotency_key_mismatch");
        assert_eq!(told.text("/action"), id);
        assert_ne!(told.text("/existing_intent"), told.text("/requested_intent"));
        assert_eq!(told.text("/existing_intent").len(), 64);
    };
    mismatch("refund", &stage.refund("key", 701));
    mismatch("refund", &stage.refund("other", 700));
    mismatch("transfer", &stage.transfer(700));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    // Also once it ended.
    mismatch("refund", &stage.refund("key", 701));
    assert_eq!(stage.provider.effects(REFUNDS).len(), 1);
}

fn the_same_proposal_from_many_at_once_is_one_action(on: Backend) {
    let stage = Stage::on(on);
    let arguments = stage.refund("same", 700);
    let told = at_once(16, |_| stage.propose("refund", "same", &arguments));
    assert_eq!(told.iter().filter(|told| told.status() == 201).count(), 1, "one of them is new");
    let ids: std::collections::BTreeSet<String> = told.iter().map(|told| told.id()).collect();
    assert_eq!(ids.len(), 1);
    let id = ids.into_iter().next().expect("an id");
    assert_eq!(stage.facts(&id), ["proposed", "approval_required"]);
}

fn run_and_step_name_an_action_and_a_run_has_many(on: Backend) {
    let stage = Stage::on(on);
    let propose = |step: &str, amount: u64| {
        let body = json!({ "tool": "refund", "arguments": stage.refund("run", amount), "run_id": "r1", "step": step });
        stage.host.agent().post("/v1/actions", &body)
    };
    let one = propose("1", 100).expect(201);
    let two = propose("2", 100).expect(201);
    assert_ne!(one.id(), two.id());
    assert_eq!(propose("1", 100).expect(200).id(), one.id());
    propose("1", 101).refused(409, "idempotency_key_mismatch");
    let listed = stage.host.agent().get("/v1/actions?run_id=r1").expect(200);
    assert_eq!(listed.json["actions"].as_array().map(Vec::len), Some(2));
}

fn break_21_after_an_upgrade_of_the_tool_a_caller_still_gets_its_own_stored_result(on: Backend) {
    let stage = Stage::on(on);
    let arguments = stage.refund("old", 300);
    let id = stage.approved("refund", "old", &arguments);
    let first = stage.execute(&id).expect(200);
    let upgraded = guests::as_version(&guests::REFUND, "0.2.0");
    let grant = grants::sending_for(&grants::refund(stage.provider.port()), on.send());
    let tool = stage.install(&upgraded, &grant).expect(201);
    let versions: Vec<String> = tool.json["versions"]
        .as_array()
        .expect("versions")
        .iter()
        .map(|version| version["version"].as_str().expect("a version").to_owned())
        .collect();
    assert!(versions.contains(&"0.1.0".to_owned()) && versions.contains(&"0.2.0".to_owned()), "{versions:?}");
    let again = stage.propose("refund", "old", &arguments).expect(200);
    assert!(again.is_replayed());
    assert_eq!((again.id(), again.text("/tool/version")), (id.clone(), "0.1.0".to_owned()));
    assert_eq!(stage.execute(&id).raw("result"), first.raw("result"));
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn p4_a_component_or_grant_replaced_after_approval_ends_it_changed_and_nothing_is_sent(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    let by_grant = stage.approved("refund", "grant", &stage.refund("grant", 100));
    let waits = stage.propose("refund", "waits", &stage.refund("waits", 100)).expect(201);
    stage.put_grant("refund", &format!("{}X-Team = \"other\"\n", grants::refund(port))).expect(200);
    let ended = stage.execute(&by_grant);
    assert_eq!(ended.ending(), "cancelled action_changed", "{}", ended.json);
    let late = stage.approve(&waits.id(), &waits.text("/fingerprint"));
    assert_eq!(late.outcome(), "action_changed", "{}", late.json);

    let by_component = stage.approved("refund", "component", &stage.refund("component", 100));
    stage.install(&guests::as_version(&guests::REFUND, "0.2.0"), &grants::refund(port)).expect(201);
    let told = stage.execute(&by_component);
    assert_eq!(told.ending(), "cancelled action_changed", "{}", told.json);
    for id in [&by_grant, &by_component, &waits.id()] {
        assert_eq!(stage.counts(REFUNDS, id), (0, 0));
        assert!(stage.facts(id).contains(&"changed".to_owned()));
    }
}

fn p4_arguments_changed_after_approval_are_a_new_action_that_needs_its_own_approval(on: Backend) {
    let stage = Stage::on(on);
    let old = stage.approved("refund", "change", &stage.refund("change", 100));
    let saw = stage.action(&old).text("/fingerprint");
    let body = json!({ "arguments": stage.refund("change", 990_000) });
    let target = format!("/v1/actions/{old}/supersede");
    let told = at_once(4, |_| stage.host.agent().post(&target, &body));
    let new = told[0].id();
    assert!(told.iter().all(|told| told.id() == new), "pressed four times, it is one new action");
    assert_eq!(stage.action(&old).text("/superseded_by"), new);
    assert_eq!(stage.action(&new).text("/supersedes"), old);
    // Neither the old approval nor the old page is worth anything for it.
    assert_eq!(stage.execute(&old).ending(), "cancelled superseded");
    stage.start_execute(&new).refused(409, "invalid_state");
    stage.approve(&new, &saw).refused(412, "fingerprint_precondition");
    assert_eq!(stage.counts(REFUNDS, &old), (0, 0));
    assert_eq!(stage.counts(REFUNDS, &new), (0, 0));
    // The old key keeps naming the old action.
    assert_eq!(stage.propose("refund", "change", &stage.refund("change", 100)).expect(200).id(), old);
}

fn a_paused_tool_runs_nothing_until_it_is_resumed(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "paused", &stage.refund("paused", 100));
    stage.host.operator().post_nothing("/v1/tools/refund/pause").expect(200);
    stage.execute(&id).refused(409, "invalid_state");
    assert_eq!(stage.counts(REFUNDS, &id), (0, 0));
    stage.host.operator().post_nothing("/v1/tools/refund/resume").expect(200);
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}
