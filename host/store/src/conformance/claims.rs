//! Claims of actions: who may run one, and when.

use std::time::Duration;

use countersign_domain::action::State;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::AttemptNumber;

use super::Backend;
use super::scene::{APPROVAL, Attempt, LEASE, MICROSECOND, Scene, WINDOW, fresh_attempt, lost, made};
use crate::steps::{ClaimKind, EndAttempt, NewAction, Step};

const SECOND: Duration = Duration::from_secs(1);

pub async fn two_eight_sixty_four_and_two_hundred_claimers_at_once_have_one_winner(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for many in [2, 8, 64, 200] {
        let action = scene.approved(&format!("k{many}")).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..many {
            let (store, claim) = (scene.store.clone(), scene.claim_of(action.id, ClaimKind::Run));
            tasks.spawn(async move {
                let attempt = claim.attempt;
                matches!(store.claim_action(claim).await.unwrap(), Step::Made(_)).then_some(attempt)
            });
        }
        let winners: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "of {many}");
        let row = scene.whole(action.id).await;
        assert_eq!(
            (row.state, row.attempt_id, row.attempt),
            (State::Executing, Some(winners[0]), AttemptNumber(1))
        );
        assert_eq!(scene.facts(action.id).await, ["proposed", "policy_allowed", "claimed"]);
    }
}

pub async fn p1_only_an_approved_action_is_claimed(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let awaiting = scene.awaiting("awaiting", 1).await;
    assert_eq!(lost(scene.claim(awaiting.id, ClaimKind::Run).await), awaiting);
    let approved = scene.approved("cancelled").await;
    let cancelled = made(scene.store.transition(scene.cancelled_of(&approved)).await);
    assert_eq!(lost(scene.claim(cancelled.id, ClaimKind::Run).await), cancelled);
    let attempt = scene.running("done").await;
    let done = scene.succeed(&attempt).await;
    assert_eq!(lost(scene.claim(done.id, ClaimKind::Run).await), done);
    assert_eq!(lost(scene.claim(done.id, ClaimKind::Repeat).await), done);
    let (unknown, _) = scene.unknown("unknown", RecoveryClass::ProviderIdempotent).await;
    assert_eq!(lost(scene.claim(unknown.id, ClaimKind::Run).await), unknown);
}

pub async fn a_claim_before_the_approval_expires_wins_and_one_at_that_microsecond_loses(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    let (early, late) = (scene.approved("early").await, scene.approved("late").await);
    scene.advance_to(early.approval_expires, MICROSECOND).await;
    scene.run(early.id).await;
    scene.advance(MICROSECOND).await;
    assert_eq!(lost(scene.claim(late.id, ClaimKind::Run).await), late);
}

pub async fn a_claim_after_the_policy_changed_loses(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.approved("k").await;
    scene.change_policy().await;
    assert_eq!(lost(scene.claim(action.id, ClaimKind::Run).await), action);
    let newer = scene.approved("newer").await;
    scene.run(newer.id).await;
}

pub async fn a_paused_tool_is_not_claimed_until_it_goes_on(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (action, retried) = (scene.approved("k").await, scene.running("retried").await);
    made(scene.fail_retryably(&retried).await);
    let standing = scene.running("standing").await;
    scene.written(&standing, 1).await;
    made(scene.fail_retryably(&standing).await);

    scene.store.set_paused(&scene.tenant, &scene.tool.name, true).await.unwrap();
    lost(scene.claim(action.id, ClaimKind::Run).await);
    lost(scene.claim(retried.action, ClaimKind::Run).await);
    // What was begun outside is finished, and reported.
    scene.run(standing.action).await;

    scene.store.set_paused(&scene.tenant, &scene.tool.name, false).await.unwrap();
    scene.run(action.id).await;
    scene.run(retried.action).await;
}

pub async fn a_failed_attempt_is_claimed_again_once_it_is_due_and_costs_an_attempt(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let after = EndAttempt {
        next_attempt_after: Some(SECOND),
        ..scene.end_of(
            &attempt,
            countersign_domain::action::Fact::FailedRetryably {
                standing: Default::default(),
                why: "no".into(),
            },
            State::FailedRetryable,
        )
    };
    let failed = made(scene.store.end_attempt(after).await);
    assert_eq!(failed.next_attempt, Some(scene.now().await.plus(SECOND)));
    assert_eq!((failed.attempts_left, failed.attempt), (2, AttemptNumber(1)));
    assert_eq!((failed.attempt_id, failed.lease_expires), (None, None));
    scene.advance(SECOND - MICROSECOND).await;
    assert_eq!(lost(scene.claim(attempt.action, ClaimKind::Run).await), failed);
    scene.advance(MICROSECOND).await;
    let claimed = made(scene.claim(attempt.action, ClaimKind::Run).await).action;
    assert_eq!((claimed.attempts_left, claimed.attempt), (1, AttemptNumber(2)));
    // Neither the approval's end nor a new policy keeps what was begun from its end.
    let again = Attempt { action: claimed.id, id: claimed.attempt_id.unwrap() };
    made(scene.fail_retryably(&again).await);
    scene.advance(APPROVAL).await;
    scene.change_policy().await;
    scene.run(attempt.action).await;
    scene.whole(attempt.action).await;
}

pub async fn an_action_without_attempts_left_is_not_claimed(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.propose(NewAction { attempts: 1, ..scene.proposal("k", 0).await }).await;
    let attempt = scene.run(action.id).await;
    let failed = made(scene.fail_retryably(&attempt).await);
    assert_eq!(failed.attempts_left, 0);
    assert_eq!(lost(scene.claim(action.id, ClaimKind::Run).await), failed);
}

pub async fn break_22_the_fence_is_the_attempt_and_not_its_number(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let old = scene.running("k").await;
    let first = scene.row(old.action).await;
    scene.advance(LEASE.length).await;
    made(scene.store.transition(scene.worker_lost_of(&first)).await);
    let new = scene.run(old.action).await;
    assert_ne!(old.id, new.id);
    // The old worker wakes up, at each of its steps.
    let as_if = Attempt { action: old.action, id: fresh_attempt() };
    for stale in [&old, &as_if] {
        assert_eq!(scene.store.heartbeat(&scene.tenant, stale.action, stale.id, LEASE).await.unwrap(), None);
        lost(scene.claim_write(stale, 1).await);
        lost(scene.repeat_write(stale, 1).await);
        lost(scene.store.record_settled(&scene.tenant, stale.action, stale.id, vec![]).await);
        lost(scene.fail_retryably(stale).await);
        lost(scene.store.end_attempt(scene.success_of(stale, "{}").await).await);
    }
    scene.written(&new, 1).await;
    scene.succeed(&new).await;
    scene.whole(old.action).await;
}

pub async fn a_heartbeat_extends_a_live_lease_and_revives_no_dead_one(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let beat = || scene.store.heartbeat(&scene.tenant, attempt.action, attempt.id, LEASE);
    scene.advance(LEASE.length - MICROSECOND).await;
    let row = beat().await.unwrap().unwrap();
    assert_eq!(row.lease_expires, Some(scene.now().await.plus(LEASE.length)));
    scene.advance(LEASE.length).await;
    assert_eq!(beat().await.unwrap(), None, "it is over at its last microsecond");
    let row = scene.whole(attempt.action).await;
    assert_eq!(row.lease_expires, Some(scene.now().await), "and stays so");
}

pub async fn a_heartbeat_of_an_attempt_that_shall_stop_says_so(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    made(scene.store.request_cancel(&scene.tenant, attempt.action, "no more").await);
    assert_eq!(scene.store.heartbeat(&scene.tenant, attempt.action, attempt.id, LEASE).await.unwrap(), None);
    let row = scene.row(attempt.action).await;
    assert_eq!((row.state, row.cancel_requested.as_deref()), (State::Executing, Some("no more")));
}

pub async fn break_03_a_safe_repeat_is_stated_and_claimed_in_one_commit(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let claimed = made(scene.claim(unknown.id, ClaimKind::Repeat).await);
    assert_eq!((claimed.action.state, claimed.action.unknown_effects), (State::Executing, 1));
    assert_eq!(claimed.effects.len(), 1, "with what it replays");
    assert_eq!(claimed.action.event_seq, unknown.event_seq + 1, "one event for both");
    assert_eq!(scene.facts(unknown.id).await.last().unwrap(), "safe_to_repeat");
    // A cancel that comes now asks; it hides nothing.
    let asked = made(scene.store.request_cancel(&scene.tenant, unknown.id, "no more").await);
    assert_eq!(asked.state, State::Executing);
    let attempt = Attempt { action: unknown.id, id: claimed.action.attempt_id.unwrap() };
    lost(scene.fail_retryably(&attempt).await);
    let doubt = made(scene.store.end_attempt(scene.outcome_lost_of(&attempt, None, None)).await);
    assert_eq!((doubt.state, doubt.unknown_effects), (State::OutcomeUnknown, 1));
    scene.whole(unknown.id).await;
}

pub async fn break_03_a_cancel_before_the_repeat_claim_stops_it_and_hides_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let asked = made(scene.store.request_cancel(&scene.tenant, unknown.id, "no more").await);
    assert_eq!((asked.state, asked.unknown_effects), (State::OutcomeUnknown, 1));
    assert_eq!(lost(scene.claim(unknown.id, ClaimKind::Repeat).await), asked);
    // Once more is the same word, not another.
    let again = made(scene.store.request_cancel(&scene.tenant, unknown.id, "really").await);
    assert_eq!(again, asked);
}

pub async fn break_04_a_repeat_claim_judges_the_window_itself(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (inside, _) = scene.unknown("inside", RecoveryClass::ProviderIdempotent).await;
    let (outside, _) = scene.unknown("outside", RecoveryClass::ProviderIdempotent).await;
    let end = scene.effect(inside.id, 1).await.window_ends().unwrap();
    assert_eq!(end, scene.now().await.plus(WINDOW));
    scene.advance_to(end, MICROSECOND).await;
    scene.repeat(inside.id).await;
    scene.advance(MICROSECOND).await;
    assert_eq!(
        lost(scene.claim(outside.id, ClaimKind::Repeat).await),
        outside,
        "planned inside, claimed outside"
    );
}

pub async fn break_12_only_effects_claimed_as_repeatable_are_repeated(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for class in [RecoveryClass::Manual, RecoveryClass::Verifiable] {
        let (unknown, _) = scene.unknown(class.as_str(), class).await;
        // What the grant says by now is of no account.
        scene.change_policy().await;
        assert_eq!(lost(scene.claim(unknown.id, ClaimKind::Repeat).await), unknown);
    }
}

pub async fn repeats_cost_repeats_and_wait_until_they_are_due(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.propose(NewAction { repeats: 1, ..scene.proposal("k", 0).await }).await;
    let attempt = scene.run(action.id).await;
    let claimed = scene.write(&attempt, 1).await;
    let end = scene.outcome_lost_of(&attempt, Some(claimed.fence), Some(SECOND));
    let unknown = made(scene.store.end_attempt(end).await);
    lost(scene.claim(action.id, ClaimKind::Repeat).await);
    scene.advance(SECOND).await;
    let again = made(scene.claim(action.id, ClaimKind::Repeat).await).action;
    assert_eq!((again.repeats_left, again.attempts_left), (0, unknown.attempts_left));
    let again = Attempt { action: action.id, id: again.attempt_id.unwrap() };
    made(scene.store.end_attempt(scene.outcome_lost_of(&again, None, Some(Duration::ZERO))).await);
    lost(scene.claim(action.id, ClaimKind::Repeat).await);

    // Without a time it waits for a person.
    let attempt = scene.running("waits").await;
    let claimed = scene.write(&attempt, 1).await;
    made(scene.store.end_attempt(scene.outcome_lost_of(&attempt, Some(claimed.fence), None)).await);
    scene.advance(SECOND).await;
    lost(scene.claim(attempt.action, ClaimKind::Repeat).await);
}
