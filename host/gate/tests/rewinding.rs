//! A backup is put back: what the ledger forgot is doubted before anything is
//! sent, and nobody is told that nothing happened.

use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::effect::{Answer, EffectStatus};
use countersign_domain::id::ActionId;
use countersign_gate::resolve::Word;

use crate::rig::*;

const HOUR: Duration = Duration::from_secs(3600);

fn happened() -> Word {
    Word::Happened(Answer { status: 200, headers: vec![], body: br#"{"id":"told"}"#.to_vec() })
}

/// A route for refunds that nobody may follow with another write.
fn only_one(recovery: &str) -> GrantText {
    GrantText::default().route("POST", "/**", recovery, "")
}

/// A refund that was made after the backup which is put back then.
async fn forgotten(rig: &mut Rig, grant: &GrantText, told: bool) -> ActionId {
    rig.install("refund", grant, refund()).await;
    let id = rig.propose("refund", amount(5)).await.id;
    rig.backup().await;
    assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
    rig.restore(told).await;
    id
}

/// … and what became of it without anybody's help.
async fn by_itself(rig: &mut Rig, grant: &GrantText) -> Action {
    let id = forgotten(rig, grant, false).await;
    rig.left_to_a_person(id).await
}

#[test]
fn p2_break_35_what_a_provider_recognises_is_asked_again_under_its_key_and_succeeds() {
    run(async |rig| {
        let id = forgotten(rig, &keyed(), false).await;
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.rewound), (State::Succeeded, true));
        let facts = rig.facts(id).await;
        assert_eq!(facts[2..], ["ledger_rewound", "safe_to_repeat", "succeeded"]);
        let requests = rig.provider.requests("/refunds");
        assert_eq!((requests.len(), rig.provider.count("/refunds")), (2, 1));
        assert_eq!(requests[0].key, requests[1].key);
    });
}

#[test]
fn break_35_a_restore_that_only_the_operator_knows_of_is_taken_from_their_word() {
    run(async |rig| {
        let id = forgotten(rig, &keyed(), true).await;
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!((rig.provider.requests("/refunds").len(), rig.provider.count("/refunds")), (2, 1));
    });
}

#[test]
fn p2_break_35_what_a_restored_backup_forgot_is_asked_about_and_not_sent_as_new() {
    run(async |rig| {
        let action = by_itself(rig, &only_one("manual")).await;
        assert_eq!(action.state, State::OutcomeUnknown);
        let effect = rig.effects(action.id).await.remove(0);
        assert_eq!((effect.status, effect.first_sent), (EffectStatus::Unknown, action.approved_at));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
        rig.resolve(action.id, 1, happened()).await.unwrap();
        assert_eq!(rig.settle(action.id).await.result.unwrap().as_str(), r#"{"refund":"told"}"#);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn a_restored_write_that_its_tool_can_look_up_is_looked_up() {
    run(async |rig| {
        rig.install("refund", &unkeyed("verifiable"), looked_up_refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.backup().await;
        assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
        rig.restore(false).await;
        assert_eq!(rig.settle(id).await.result.unwrap().as_str(), r#"{"refund":"re_looked_up"}"#);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn every_write_without_a_row_is_doubted_and_not_only_the_next_one() {
    run(async |rig| {
        rig.install("five", &unkeyed("manual"), writes(3)).await;
        let id = rig.propose("five", serde_json::json!({})).await.id;
        rig.backup().await;
        assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
        rig.restore(false).await;
        for n in 1..=3 {
            let action = rig.settle(id).await;
            assert_eq!((action.state, action.unknown_effects), (State::OutcomeUnknown, 1), "{n}");
            rig.resolve(id, n, happened()).await.unwrap();
        }
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.all_requests().len(), 3);
    });
}

#[test]
fn p2_break_35_what_may_have_been_replaced_is_not_sent_again() {
    run(async |rig| {
        // Other writes may follow, and one of them may have been made instead.
        let id = by_itself(rig, &unkeyed("manual")).await.id;
        let settle = rig.effects(id).await[0].terms.settle;
        rig.clock.advance(settle);
        rig.resolve(id, 1, Word::DidNotHappen).await.unwrap();
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "outcome_never_known"));
        assert!(action.error.unwrap().message.contains("another write may have been made in its place"));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn what_nothing_can_have_replaced_is_made_once_somebody_knows_that_it_did_not_happen() {
    run(async |rig| {
        rig.install("refund", &only_one("manual"), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.backup().await;
        // The host never got to it.
        rig.restore(false).await;
        assert_eq!(rig.settle(id).await.state, State::OutcomeUnknown);
        let settle = rig.effects(id).await[0].terms.settle;
        rig.clock.advance(settle);
        rig.resolve(id, 1, Word::DidNotHappen).await.unwrap();
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p2_break_35_a_cancel_after_a_restore_does_not_say_that_nothing_happened() {
    run(async |rig| {
        let id = by_itself(rig, &only_one("manual")).await.id;
        rig.cancel(id).await.unwrap();
        let settle = rig.effects(id).await[0].terms.settle;
        rig.clock.advance(settle);
        rig.resolve(id, 1, Word::DidNotHappen).await.unwrap();
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "cancelled"));
        assert!(action.error.unwrap().message.contains("the ledger lost commits"));
    });
}

#[test]
fn p2_break_35_nothing_is_sent_anew_under_an_approval_that_is_over() {
    run(async |rig| {
        let id = by_itself(rig, &only_one("manual")).await.id;
        rig.clock.advance(HOUR);
        rig.resolve(id, 1, Word::DidNotHappen).await.unwrap();
        let action = rig.settle(id).await;
        assert_eq!(action.state, State::FailedTerminal, "{:?}", action.error);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn what_nobody_approved_as_far_as_the_ledger_knows_can_only_be_given_up() {
    run(async |rig| {
        let needs_one = only_one("manual").approval("required = 1");
        rig.install("refund", &needs_one, refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.backup().await;
        rig.approve(id, "ben").await.unwrap();
        assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
        rig.restore(false).await;
        assert_eq!(rig.left_to_a_person(id).await.state, State::OutcomeUnknown);
        assert!(rig.approve(id, "ben").await.is_err());
        let why = rig.resolve(id, 1, happened()).await.unwrap_err().to_string();
        assert!(why.contains("give it up"), "{why}");
        let action = rig.resolve(id, 1, Word::GiveUp).await.unwrap();
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "outcome_never_known"));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}
