//! A person's word about an outcome that nobody knows: about one send, with
//! evidence, not too early, and never lost to a budget.

use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::effect::{Answer, EffectStatus};
use countersign_gate::Point;
use countersign_gate::resolve::Word;

use crate::rig::*;

const HOUR: Duration = Duration::from_secs(3600);

fn happened() -> Word {
    Word::Happened(Answer { status: 200, headers: vec![], body: br#"{"id":"told"}"#.to_vec() })
}

/// A refund whose reply was lost, of a class that waits for a person.
async fn in_doubt(rig: &mut Rig, fault: Do) -> Action {
    rig.install("refund", &unkeyed("manual"), refund()).await;
    rig.provider.next("/refunds", fault);
    let id = rig.propose("refund", amount(5)).await.id;
    let action = rig.attempt(id).await;
    assert_eq!(action.state, State::OutcomeUnknown);
    action
}

#[test]
fn it_happened_gives_the_component_the_answer_that_the_person_read() {
    run(async |rig| {
        let id = in_doubt(rig, Do::LoseReply).await.id;
        let action = rig.resolve(id, 1, happened()).await.unwrap();
        assert_eq!(action.state, State::FailedRetryable);
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"{"refund":"told"}"#);
        let evidence = rig.effects(id).await[0].evidence.clone().unwrap();
        assert_eq!((evidence.by.as_str(), evidence.outcome.as_str()), ("ops", "happened"));
        assert_eq!(evidence.evidence, serde_json::json!("ticket 4711"));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
        let facts = rig.facts(id).await;
        assert_eq!(facts[facts.len() - 3..], ["found_done", "claimed", "succeeded"]);
    });
}

#[test]
fn p2_break_9_it_did_not_happen_is_not_believed_before_settle_has_passed_to_the_microsecond() {
    run(async |rig| {
        let action = in_doubt(rig, Do::LoseRequest).await;
        let settle = rig.effects(action.id).await[0].terms.settle;
        rig.clock.advance(settle - TICK);
        let early = rig.resolve(action.id, 1, Word::DidNotHappen).await;
        let early = early.unwrap_err().to_string();
        assert!(early.contains("too early") && early.contains("look again after"), "{early}");
        rig.clock.advance(TICK);
        rig.resolve(action.id, 1, Word::DidNotHappen).await.unwrap();
        assert_eq!(rig.settle(action.id).await.state, State::Succeeded);
        assert_eq!((rig.provider.requests("/refunds").len(), rig.provider.count("/refunds")), (2, 1));
    });
}

#[test]
fn p2_break_32_settle_runs_from_when_it_became_unknown_not_from_its_send() {
    run(async |rig| {
        let day = unkeyed("manual").approval("required = 0\nexpires_after = \"24h\"");
        rig.install("refund", &day, refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.host().stops.arm(Stop::At(Point::AfterWriteClaim, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        // It stood still for an hour; only then somebody looks.
        rig.clock.advance(HOUR);
        rig.crash_and_restart().await;
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        assert!(rig.resolve(id, 1, Word::DidNotHappen).await.is_err());
        rig.clock.advance(rig.effects(id).await[0].terms.settle);
        assert!(rig.resolve(id, 1, Word::DidNotHappen).await.is_ok());
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
    });
}

#[test]
fn p2_break_8_a_word_about_an_earlier_send_is_stale_once_a_later_one_became_unknown() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseRequest);
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        let action = rig.until(id, |action| action.attempt.0 == 2 && action.state != State::Executing).await;
        assert_eq!(action.state, State::OutcomeUnknown);
        rig.clock.advance(HOUR);
        // True about send 1, and nothing about send 2.
        let stale = rig.resolve_send(id, 1, Some(1), Word::DidNotHappen, "asked them").await;
        assert!(stale.unwrap_err().to_string().contains("send 2"));
        let unnamed = rig.resolve_send(id, 1, None, Word::DidNotHappen, "asked them").await.unwrap_err();
        assert_eq!(unnamed.code(), "invalid_request");
        assert!(unnamed.to_string().contains("its last one is 2"), "{unnamed}");
        let other = rig.resolve(id, 7, happened()).await;
        assert!(other.unwrap_err().to_string().contains("effect 7 is not in doubt"));
        assert_eq!(rig.effects(id).await[0].status, EffectStatus::Unknown);
        rig.resolve_send(id, 1, Some(2), happened(), "asked them").await.unwrap();
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

#[test]
fn p2_a_word_while_the_repeat_runs_finds_nothing_in_doubt() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(HOUR);
        rig.tend(false).await;
        rig.provider.holds(1).await;
        assert_eq!(code(rig.resolve(id, 1, Word::DidNotHappen).await), "invalid_state");
        rig.provider.release();
        assert_eq!(rig.quiet(action.id).await.state, State::Succeeded);
    });
}

#[test]
fn a_word_without_evidence_is_no_word() {
    run(async |rig| {
        let id = in_doubt(rig, Do::LoseReply).await.id;
        for evidence in ["", "   "] {
            assert_eq!(code(rig.resolve_send(id, 1, None, happened(), evidence).await), "invalid_request");
        }
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
    });
}

#[test]
fn p9_giving_up_ends_the_action_and_tells_the_next_one_to_look_first() {
    run(async |rig| {
        let id = in_doubt(rig, Do::LoseReply).await.id;
        let action = rig.resolve(id, 1, Word::GiveUp).await.unwrap();
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "outcome_never_known"));
        let message = action.error.unwrap().message;
        assert!(message.contains("do not propose this again without looking"), "{message}");
        assert!(message.contains("effect 1: POST"), "{message}");
        assert_eq!(code(rig.resolve(id, 1, happened()).await), "invalid_state");
        assert_eq!(ended(rig.execute(id).await).state, State::FailedTerminal);
        assert_eq!(rig.effects(id).await[0].status, EffectStatus::Unknown);
    });
}

#[test]
fn p9_break_16_the_deadline_and_every_budget_spent_meanwhile_the_action_still_ends_succeeded() {
    run(async |rig| {
        rig.reconfigure(|config| config.retry.attempts = 1);
        let id = in_doubt(rig, Do::LoseReply).await.id;
        rig.clock.advance(25 * HOUR);
        rig.tend(false).await;
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        rig.resolve(id, 1, happened()).await.unwrap();
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
    });
}

#[test]
fn it_did_not_happen_after_the_approval_expired_ends_expired_and_sends_nothing_more() {
    run(async |rig| {
        let id = in_doubt(rig, Do::LoseRequest).await.id;
        rig.clock.advance(HOUR);
        rig.resolve(id, 1, Word::DidNotHappen).await.unwrap();
        assert_eq!(rig.settle(id).await.state, State::Expired);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p2_a_cancel_while_in_doubt_stops_repeats_and_the_word_decides_how_it_ends() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        for (cents, fault, word, state) in [
            (1, Do::LoseReply, happened(), State::FailedTerminal),
            (2, Do::LoseRequest, Word::DidNotHappen, State::Cancelled),
        ] {
            rig.provider.next("/refunds", fault);
            let id = rig.propose("refund", amount(cents)).await.id;
            assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
            assert_eq!(rig.cancel(id).await.unwrap().state, State::OutcomeUnknown);
            let before = rig.provider.requests("/refunds").len();
            for _ in 0..3 {
                rig.clock.advance(HOUR);
                rig.tend(false).await;
            }
            assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
            rig.resolve(id, 1, word).await.unwrap();
            let action = rig.settle(id).await;
            assert_eq!((action.state, row_code(&action)), (state, "cancelled"));
            assert_eq!(rig.provider.requests("/refunds").len(), before);
        }
    });
}
