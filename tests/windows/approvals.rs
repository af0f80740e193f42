//! Decisions pressed at the same time, and by people who may not decide.

use std::collections::BTreeSet;

use serde_json::json;

use crate::on_both_stores;
use crate::support::host::tally;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Stage, Told, at_once, grants};

on_both_stores! {
    p8_two_eight_and_two_hundred_approvals_at_once_make_one_transition_one_event_one_effect,
    break_20_two_of_two_approvals_at_once_never_leave_it_waiting_and_one_person_counts_once,
    approve_and_decline_at_once_one_wins_and_the_rest_are_told_the_state,
    approve_decline_cancel_supersede_and_execute_at_once_end_in_one_history_with_at_most_one_send,
    whoever_proposed_cannot_approve_under_whatever_token,
    p4_an_approval_of_another_fingerprint_than_the_stored_one_is_refused,
}

fn p8_two_eight_and_two_hundred_approvals_at_once_make_one_transition_one_event_one_effect(on: Backend) {
    let stage = Stage::on(on);
    let approvers: Vec<String> =
        (0..8).map(|n| stage.host.new_token(&format!("approver-{n}"), &["approver"], "default")).collect();
    for n in [2, 8, 200] {
        let proposed = stage.propose("refund", &format!("at-once-{n}"), &stage.refund(&n.to_string(), 100));
        let (id, saw) = (proposed.id(), format!("\"{}\"", proposed.text("/fingerprint")));
        let told = at_once(n, |i| {
            let approver = stage.host.with_token(&approvers[i % approvers.len()]);
            let request =
                approver.request("POST", &format!("/v1/actions/{id}/approve")).header("If-Match", &saw);
            (i % approvers.len(), approver.send(request).outcome())
        });
        // One of them did it, and may press again; all others are told that they come too late.
        let won: BTreeSet<usize> =
            told.iter().filter(|(_, outcome)| outcome == "approved").map(|(who, _)| *who).collect();
        assert_eq!(won.len(), 1, "{told:?}");
        let late = |(who, outcome): &(usize, String)| won.contains(who) || outcome == "invalid_state";
        assert!(told.iter().all(late), "{told:?}");
        assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved"]);
        assert_eq!(stage.action(&id).json["approval"]["given"].as_array().map(Vec::len), Some(1));
        assert_eq!(stage.execute(&id).outcome(), "succeeded");
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    }
}

fn break_20_two_of_two_approvals_at_once_never_leave_it_waiting_and_one_person_counts_once(on: Backend) {
    let stage = Stage::on(on);
    let port = stage.provider.port();
    stage
        .put_grant("refund", &format!("[approval]\nrequired = 2\n{}", without_show(&grants::refund(port))))
        .expect(200);
    let tokens: Vec<String> =
        (0..2).map(|n| stage.host.new_token(&format!("approver-{n}"), &["approver"], "default")).collect();
    for round in 0..20 {
        let id =
            stage.propose("refund", &format!("2-of-2-{round}"), &stage.refund("twice", 100)).expect(201).id();
        let target = format!("/v1/actions/{id}/approve");
        // Each presses twice; the second time counts for nothing.
        at_once(4, |i| stage.host.with_token(&tokens[i % 2]).post_nothing(&target));
        assert_eq!(stage.action(&id).outcome(), "approved");
        let facts = stage.facts(&id);
        assert_eq!(facts.last().map(String::as_str), Some("approved"));
        assert_eq!(stage.action(&id).json["approval"]["given"].as_array().map(Vec::len), Some(2));
    }
    let id = stage.propose("refund", "one-of-two", &stage.refund("once", 100)).id();
    let target = format!("/v1/actions/{id}/approve");
    stage.host.with_token(&tokens[0]).post_nothing(&target).expect(200);
    stage.host.with_token(&tokens[0]).post_nothing(&target);
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
    stage.start_execute(&id).refused(409, "invalid_state");
    assert_eq!(stage.counts(REFUNDS, &id), (0, 0));
}

fn without_show(grant: &str) -> String {
    grant.lines().filter(|line| !line.starts_with("show")).collect::<Vec<_>>().join("\n")
}

fn approve_and_decline_at_once_one_wins_and_the_rest_are_told_the_state(on: Backend) {
    let stage = Stage::on(on);
    let approvers: Vec<String> =
        (0..6).map(|n| stage.host.new_token(&format!("approver-{n}"), &["approver"], "default")).collect();
    for round in 0..30 {
        let id =
            stage.propose("refund", &format!("race-{round}"), &stage.refund("race", 100)).expect(201).id();
        let told = at_once(6, |i| {
            let approver = stage.host.with_token(&approvers[i]);
            match i {
                0..3 => approver.post_nothing(&format!("/v1/actions/{id}/approve")),
                _ => approver.post(&format!("/v1/actions/{id}/decline"), &json!({ "reason": "no" })),
            }
        });
        let won: Vec<&Told> = told.iter().filter(|told| told.status() == 200).collect();
        assert_eq!(won.len(), 1, "{:?}", tally(told.iter().map(Told::outcome)));
        for lost in told.iter().filter(|told| told.status() != 200) {
            lost.refused(409, "invalid_state");
            assert_eq!(lost.text("/state"), won[0].outcome());
        }
        let facts = stage.facts(&id);
        assert_eq!(facts.len(), 3, "{facts:?}");
        assert!(["approved", "declined"].contains(&facts[2].as_str()), "{facts:?}");
    }
}

fn approve_decline_cancel_supersede_and_execute_at_once_end_in_one_history_with_at_most_one_send(
    on: Backend,
) {
    let stage = Stage::on(on);
    for round in 0..30 {
        let arguments = stage.refund(&format!("race{round}"), 100 + round);
        let proposed = stage.propose("refund", &format!("all-{round}"), &arguments).expect(201);
        let (id, saw) = (proposed.id(), proposed.text("/fingerprint"));
        at_once(10, |i| match i / 2 {
            0 => stage.approve(&id, &saw),
            1 => stage.host.approver().post(&format!("/v1/actions/{id}/decline"), &json!({ "reason": "no" })),
            2 => stage.cancel(&id),
            3 => stage.host.agent().post(&format!("/v1/actions/{id}/supersede"), &json!({})),
            _ => stage.execute(&id),
        });
        let ended = stage.action(&id);
        let (requests, effects) = stage.counts(REFUNDS, &id);
        assert!(requests <= 1, "{requests} requests");
        let facts = stage.facts(&id);
        if requests == 1 {
            assert!(facts.contains(&"approved".to_owned()), "sent without an approval: {facts:?}");
            assert!(["succeeded", "failed_terminal"].contains(&ended.outcome().as_str()), "{}", ended.json);
        }
        assert_eq!(effects == 1, ended.outcome() == "succeeded" || requests == 1, "{facts:?}");
        assert_ne!(ended.outcome(), "executing");
    }
    stage.audit();
}

fn whoever_proposed_cannot_approve_under_whatever_token(on: Backend) {
    let stage = Stage::on(on);
    // The same person, holding both tokens.
    let agent = stage.host.new_token("mallory", &["agent"], "default");
    let approver = stage.host.new_token("mallory", &["approver"], "default");
    let both = stage.host.new_token("trent", &["agent", "approver"], "default");
    let proposal =
        json!({ "tool": "refund", "arguments": stage.refund("own", 100), "run_id": "r", "step": "1" });
    let id = stage.host.with_token(&agent).post("/v1/actions", &proposal).expect(201).id();
    for verb in ["approve", "decline"] {
        let target = format!("/v1/actions/{id}/{verb}");
        let body = if verb == "approve" { json!({}) } else { json!({ "reason": "mine" }) };
        stage.host.with_token(&approver).post(&target, &body).refused(403, "not_permitted");
        stage.host.with_token(&agent).post(&target, &body).refused(403, "not_permitted");
        // A token that may propose never decides, whatever else it may do.
        stage.host.with_token(&both).post(&target, &body).refused(403, "not_permitted");
    }
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
    assert_eq!(stage.facts(&id).len(), 2);
}

fn p4_an_approval_of_another_fingerprint_than_the_stored_one_is_refused(on: Backend) {
    let stage = Stage::on(on);
    let one = stage.propose("refund", "one", &stage.refund("one", 100)).expect(201);
    let other = stage.propose("refund", "other", &stage.refund("one", 100)).expect(201);
    // Equal arguments, two actions: two fingerprints, and each needs its own approval.
    assert_ne!(one.text("/fingerprint"), other.text("/fingerprint"));
    let refused = stage.approve(&one.id(), &other.text("/fingerprint"));
    refused.refused(412, "fingerprint_precondition");
    assert_eq!(refused.text("/fingerprint"), one.text("/fingerprint"));
    assert_eq!(stage.action(&one.id()).outcome(), "awaiting_approval");
    stage.approve(&one.id(), &one.text("/fingerprint")).expect(200);
    stage.start_execute(&other.id()).refused(409, "invalid_state");
    assert_eq!(stage.counts(REFUNDS, &other.id()), (0, 0));
}
