//! What came of a send, and the ends of attempts.

use std::time::Duration;

use countersign_domain::action::{Fact, Standing, State};
use countersign_domain::effect::{EffectStatus, Refusal};
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{ActionId, Ordinal};

use super::Backend;
use super::scene::{
    LEASE, MICROSECOND, Scene, answer, answered, error, fence, fresh_attempt, lost, made, text,
};
use crate::StoreError;
use crate::steps::{EndAttempt, NewAction, Putoff, RecordSend, Recorded, SendResult, Settled};

pub async fn break_01_an_attempt_that_is_over_ends_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.advance(LEASE.length).await;
    let gone = made(scene.store.transition(scene.worker_lost_of(&scene.row(attempt.action).await)).await);
    assert_eq!(gone.state, State::FailedRetryable);
    // Its worker was only slow, and now writes its failure.
    assert_eq!(lost(scene.fail_terminally(&attempt).await), gone);
    assert_eq!(lost(scene.fail_retryably(&attempt).await), gone);
    let again = scene.run(attempt.action).await;
    let done = scene.succeed(&again).await;
    assert_eq!(lost(scene.fail_terminally(&attempt).await), done);
    assert_eq!(lost(scene.fail_terminally(&again).await), done, "also its own end comes once");
    assert_eq!(scene.whole(attempt.action).await, done);
}

pub async fn break_02_an_attempt_does_not_end_while_its_send_runs(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    lost(scene.fail_retryably(&attempt).await);
    lost(scene.fail_terminally(&attempt).await);
    lost(scene.store.end_attempt(scene.success_of(&attempt, "{}").await).await);
    let stopped = Fact::StoppedBeforeWrites { standing: Standing::default(), code: "cancelled".into() };
    lost(scene.store.end_attempt(scene.end_of(&attempt, stopped, State::Cancelled)).await);
    scene.in_time(attempt.action, claimed.fence, answered(200)).await;
    made(scene.fail_terminally(&attempt).await);
    scene.whole(attempt.action).await;
}

pub async fn break_06_an_attempt_does_not_end_over_an_unknown_effect(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    // The component fails before it comes to the unknown write.
    lost(scene.fail_terminally(&attempt).await);
    lost(scene.fail_retryably(&attempt).await);
    lost(scene.store.end_attempt(scene.success_of(&attempt, "{}").await).await);
    let again = made(scene.store.end_attempt(scene.outcome_lost_of(&attempt, None, None)).await);
    assert_eq!((again.state, again.unknown_effects), (State::OutcomeUnknown, 1));
    // And where nothing is open, nothing is lost.
    let clear = scene.running("clear").await;
    lost(scene.store.end_attempt(scene.outcome_lost_of(&clear, None, None)).await);
    scene.whole(unknown.id).await;
}

pub async fn break_10_a_repeat_that_was_not_sent_undoes_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    let claimed = made(scene.repeat_write(&attempt, 1).await);
    let refused = SendResult::Refused(Refusal::AddressProhibited("10.0.0.1".into()));
    for nothing_sent in [SendResult::NotSent, refused] {
        assert_eq!(scene.record(unknown.id, claimed.fence, nothing_sent).await, Recorded::Stale);
    }
    let effect = scene.effect(unknown.id, 1).await;
    assert_eq!((effect.status, effect.may_have_arrived), (EffectStatus::InFlight, true));
    let again = scene.lose(&attempt, claimed.fence).await;
    assert_eq!((again.unknown_effects, again.standing_writes), (1, 1));
    scene.whole(unknown.id).await;
}

pub async fn break_31_a_record_of_an_earlier_send_is_not_taken_for_a_later_one(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let first = scene.write(&attempt, 1).await;
    scene.in_time(attempt.action, first.fence, SendResult::NotSent).await;
    let second = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!((first.fence.send.0, second.fence.send.0), (1, 2));
    // Of the same attempt and the same place.
    assert_eq!(scene.record(attempt.action, first.fence, answered(402)).await, Recorded::Stale);
    assert_eq!(scene.effect(attempt.action, 1).await.status, EffectStatus::InFlight);
    for wrong in [fence(attempt.id, 2, 2), fence(fresh_attempt(), 1, 2), fence(attempt.id, 1, 3)] {
        assert_eq!(scene.record(attempt.action, wrong, answered(402)).await, Recorded::Stale);
    }
    assert_eq!(scene.in_time(attempt.action, second.fence, answered(201)).await.answer, Some(answer(201)));
    // And not twice.
    assert_eq!(scene.record(attempt.action, second.fence, answered(500)).await, Recorded::Stale);
    assert_eq!(scene.effect(attempt.action, 1).await.answer, Some(answer(201)));
    scene.whole(attempt.action).await;
}

pub async fn break_34_a_recorded_success_grants_the_attempt_that_reports_it(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let last = scene.propose(NewAction { attempts: 1, ..scene.proposal("k", 0).await }).await;
    let attempt = scene.run(last.id).await;
    assert_eq!(scene.row(last.id).await.attempts_left, 0);
    scene.written(&attempt, 1).await;
    // The worker dies; the budget is spent, the work is done.
    scene.advance(Duration::from_secs(120)).await;
    let reaped = made(scene.store.transition(scene.worker_lost_of(&scene.row(last.id).await)).await);
    assert_eq!((reaped.state, reaped.attempts_left), (State::FailedRetryable, 1));
    let again = scene.run(last.id).await;
    assert_eq!(scene.succeed(&again).await.state, State::Succeeded);

    // What was not sent grants nothing.
    let last = scene.propose(NewAction { attempts: 1, ..scene.proposal("not sent", 0).await }).await;
    let attempt = scene.run(last.id).await;
    let claimed = scene.write(&attempt, 1).await;
    scene.in_time(last.id, claimed.fence, SendResult::NotSent).await;
    assert_eq!(scene.row(last.id).await.attempts_left, 0);
}

pub async fn p3_a_result_is_returned_byte_for_byte(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let result = text(r#"{"b":[1.5,-0.25,1e+30],"a":"é \u0001 \" \\ 💶 ' ; --","c":{"z":null,"y":true}}"#);
    let end = EndAttempt { result: Some(result.clone()), ..scene.success_of(&attempt, "{}").await };
    let ended = made(scene.store.end_attempt(end).await);
    assert_eq!(ended.result.as_ref(), Some(&result));
    assert_eq!((ended.state, ended.error.clone(), ended.next_attempt), (State::Succeeded, None, None));
    assert_eq!(scene.whole(attempt.action).await, ended);
}

pub async fn p8_nothing_follows_a_terminal_state(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let done = scene.succeed(&attempt).await;
    lost(scene.store.request_cancel(&scene.tenant, done.id, "too late").await);
    lost(scene.store.approve(scene.approval(&done, "ben")).await);
    lost(scene.store.postpone(&scene.tenant, done.id, done.version_counter, Putoff::ToPerson).await);
    // Even a step that claims to know the row is refused by the database itself.
    let mut forced = scene.cancelled_of(&scene.approved("other").await);
    forced.action = done.id;
    forced.expected = done.version_counter;
    let refused = scene.store.transition(forced).await.unwrap_err();
    assert_eq!(refused, StoreError::Constraint { name: "actions_terminal_never_changes".into() });
    assert_eq!(scene.whole(done.id).await, done);
}

pub async fn a_lost_outcome_becomes_unknown_with_its_since(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    scene.advance(Duration::from_secs(3)).await;
    // A word about another send moves nothing.
    for wrong in [fence(attempt.id, 1, 2), fence(attempt.id, 2, 1)] {
        lost(scene.store.end_attempt(scene.outcome_lost_of(&attempt, Some(wrong), None)).await);
    }
    let end = scene.outcome_lost_of(&attempt, Some(claimed.fence), Some(Duration::from_secs(9)));
    let end = EndAttempt { error: error("execution_in_doubt"), ..end };
    let unknown = made(scene.store.end_attempt(end).await);
    assert_eq!((unknown.state, unknown.in_flight, unknown.unknown_effects), (State::OutcomeUnknown, None, 1));
    assert_eq!(unknown.next_attempt, Some(scene.now().await.plus(Duration::from_secs(9))));
    assert_eq!(unknown.error, error("execution_in_doubt"));
    let effect = scene.effect(attempt.action, 1).await;
    assert_eq!((effect.status, effect.unknown_since), (EffectStatus::Unknown, Some(scene.now().await)));
    assert_eq!(effect.first_sent, claimed.record.first_sent);
    scene.whole(attempt.action).await;
}

pub async fn a_late_answer_settles_what_became_unknown(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let last = scene.propose(NewAction { attempts: 1, ..scene.proposal("k", 0).await }).await;
    let attempt = scene.run(last.id).await;
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
    scene.advance(Duration::from_secs(3600)).await;
    let row = scene.row(last.id).await;
    let lost = Fact::OutcomeLost { ordinal: Ordinal(1), why: "the lease ran out".into() };
    let mut reaped = scene.transition_of(&row, lost);
    reaped.in_flight_becomes_unknown = true;
    let reaped = made(scene.store.transition(reaped).await);
    assert_eq!((reaped.state, reaped.in_flight, reaped.unknown_effects), (State::OutcomeUnknown, None, 1));

    let result = SendResult::Answered { answer: answer(201), reference: Some("re_1".into()) };
    let Recorded::Late(settled) = scene.record(last.id, claimed.fence, result).await else {
        panic!("not taken")
    };
    assert_eq!((settled.state, settled.unknown_effects), (State::FailedRetryable, 0));
    assert_eq!((settled.attempts_left, settled.next_attempt), (1, Some(scene.now().await)));
    assert_eq!(settled.provider_reference.as_deref(), Some("re_1"));
    assert_eq!(scene.facts(last.id).await.last().unwrap(), "found_done");
    let effect = scene.effect(last.id, 1).await;
    assert_eq!(
        (effect.status, effect.answer, effect.unknown_since),
        (EffectStatus::Succeeded, Some(answer(201)), None)
    );
    assert_eq!(scene.whole(last.id).await, *settled);
    let again = scene.run(last.id).await;
    scene.succeed(&again).await;
}

pub async fn a_late_answer_without_a_word_for_it_is_dropped(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, fence) = scene.unknown("k", RecoveryClass::Manual).await;
    let silent = RecordSend {
        tenant: scene.tenant.clone(),
        action: unknown.id,
        fence,
        result: answered(409),
        if_late: None,
    };
    assert_eq!(scene.store.record_send(silent).await.unwrap(), Recorded::Stale);
    assert_eq!(scene.record(unknown.id, fence, SendResult::NotSent).await, Recorded::Stale);
    assert_eq!(scene.whole(unknown.id).await, unknown);
}

pub async fn a_late_answer_of_a_send_that_was_repeated_since_is_stale(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, first) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    assert_eq!(scene.record(unknown.id, first, answered(201)).await, Recorded::Stale, "an attempt runs");
    let second = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!(scene.record(unknown.id, first, answered(201)).await, Recorded::Stale, "and sends");
    scene.lose(&attempt, second.fence).await;
    assert_eq!(scene.record(unknown.id, first, answered(201)).await, Recorded::Stale, "and lost that one");
    assert!(matches!(scene.record(unknown.id, second.fence, answered(201)).await, Recorded::Late(_)));
    scene.whole(unknown.id).await;
}

pub async fn a_late_answer_leaves_the_action_unknown_while_another_effect_is(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, first) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    let second = scene.write(&attempt, 2).await;
    let both = scene.lose(&attempt, second.fence).await;
    assert_eq!(both.unknown_effects, 2);
    let Recorded::Late(one) = scene.record(unknown.id, second.fence, answered(201)).await else {
        panic!("not taken")
    };
    assert_eq!((one.state, one.unknown_effects), (State::OutcomeUnknown, 1));
    let Recorded::Late(none) = scene.record(unknown.id, first, answered(201)).await else {
        panic!("not taken")
    };
    assert_eq!((none.state, none.unknown_effects), (State::FailedRetryable, 0));
    scene.whole(unknown.id).await;
}

pub async fn a_refusal_at_the_last_moment_is_recorded_and_final(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    let refusal = Refusal::AddressProhibited("169.254.169.254".into());
    let effect = scene.in_time(attempt.action, claimed.fence, SendResult::Refused(refusal.clone())).await;
    assert_eq!((effect.status, effect.refusal), (EffectStatus::Failed, Some(refusal)));
    let row = scene.whole(attempt.action).await;
    assert_eq!((row.standing_writes, row.effects, row.in_flight), (0, 1, None));
    lost(scene.repeat_write(&attempt, 1).await);
    scene.write(&attempt, 2).await;
}

pub async fn a_provider_reference_is_kept(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let named = |name: &str| SendResult::Answered { answer: answer(201), reference: Some(name.into()) };
    for (ordinal, result, expected) in
        [(1, named("re_1"), "re_1"), (2, answered(200), "re_1"), (3, named("re_3"), "re_3")]
    {
        let claimed = scene.write(&attempt, ordinal).await;
        scene.in_time(attempt.action, claimed.fence, result).await;
        assert_eq!(scene.row(attempt.action).await.provider_reference.as_deref(), Some(expected));
    }
    assert_eq!(scene.succeed(&attempt).await.provider_reference.as_deref(), Some("re_3"));
}

pub async fn try_later_sets_aside_and_says_when(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    scene.settled(&attempt, 2, Settled::Answered(answer(200))).await;
    let fact =
        Fact::FailedRetryably { standing: scene.standing(attempt.action).await, why: "try-later".into() };
    let end = EndAttempt {
        set_aside: vec![Ordinal(2)],
        next_attempt_after: Some(Duration::from_secs(30)),
        error: error("tool_try_later"),
        ..scene.end_of(&attempt, fact, State::FailedRetryable)
    };
    let ended = made(scene.store.end_attempt(end).await);
    assert_eq!(ended.next_attempt, Some(scene.now().await.plus(Duration::from_secs(30))));
    assert_eq!(ended.error, error("tool_try_later"));
    assert!(!scene.effect(attempt.action, 1).await.set_aside);
    assert!(scene.effect(attempt.action, 2).await.set_aside);
    scene.whole(attempt.action).await;
}

pub async fn an_attempt_given_back_costs_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.approved("k").await;
    for _ in 0..10 {
        let attempt = scene.run(action.id).await;
        let fact = Fact::Released { standing: Standing::default() };
        let released =
            made(scene.store.end_attempt(scene.end_of(&attempt, fact, State::FailedRetryable)).await);
        assert_eq!((released.attempts_left, released.next_attempt), (3, Some(scene.now().await)));
    }
    scene.whole(action.id).await;
}

pub async fn logs_are_kept_by_attempt(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let fact = Fact::FailedRetryably { standing: Standing::default(), why: "trap".into() };
    let end = EndAttempt {
        log: vec!["first".into(), "\u{1b}[2Jsecond\n".into()],
        ..scene.end_of(&attempt, fact, State::FailedRetryable)
    };
    made(scene.store.end_attempt(end).await);
    assert_eq!(scene.store.log(&scene.tenant, attempt.action).await.unwrap(), ["first", "\u{1b}[2Jsecond\n"]);
    scene.advance(MICROSECOND).await;
    let again = scene.run(attempt.action).await;
    let end = EndAttempt { log: vec!["third".into()], ..scene.success_of(&again, "{}").await };
    made(scene.store.end_attempt(end).await);
    let log = scene.store.log(&scene.tenant, attempt.action).await.unwrap();
    assert_eq!(log, ["first", "\u{1b}[2Jsecond\n", "third"]);
}

pub async fn a_record_for_an_unknown_action_is_stale_and_an_end_is_not_found(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let nowhere = ActionId(uuid::Uuid::new_v4());
    assert_eq!(scene.record(nowhere, fence(fresh_attempt(), 1, 1), answered(200)).await, Recorded::Stale);
    let attempt = super::scene::Attempt { action: nowhere, id: fresh_attempt() };
    for refused in [
        scene.fail_retryably(&attempt).await.map(|_| ()),
        scene.claim_write(&attempt, 1).await.map(|_| ()),
        scene.claim(nowhere, crate::steps::ClaimKind::Run).await.map(|_| ()),
        scene.store.request_cancel(&scene.tenant, nowhere, "no").await.map(|_| ()),
    ] {
        assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    }
    assert_eq!(scene.store.action(&scene.tenant, nowhere).await.unwrap(), None);
}
