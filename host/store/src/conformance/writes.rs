//! Write claims: what has to hold in the instant before something goes out.

use std::time::Duration;

use countersign_domain::action::{Fact, State};
use countersign_domain::effect::{EffectStatus, Refusal};
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{Digest, EffectFingerprint, Ordinal, SendNumber};

use super::Backend;
use super::scene::{APPROVAL, LEASE, MICROSECOND, SEND, Scene, WINDOW, answer, answered, fence, lost, made};
use crate::steps::{ClaimWrite, EndAttempt, NewAction, SendResult, Settled, Step};

pub async fn a_write_claim_marks_the_row_and_covers_the_longest_send(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.advance(LEASE.length - Duration::from_secs(1)).await;
    let now = scene.now().await;
    let mut claim = scene.write_of(&attempt, 1, RecoveryClass::Manual);
    claim.lease.length = Duration::from_secs(10);
    let claimed = made(scene.store.claim_write(claim.clone()).await);
    assert_eq!(claimed.lease_expires, now.plus(SEND).plus(LEASE.margin));
    assert_eq!(claimed.fence, fence(attempt.id, 1, 1));
    assert_eq!((claimed.window_ends, claimed.may_have_arrived), (None, false));
    assert_eq!(claimed.record.status, EffectStatus::InFlight);
    assert_eq!(claimed.record, scene.effect(attempt.action, 1).await);
    assert_eq!((&claimed.record.terms, &claimed.record.request), (&claim.terms, &claim.request));
    assert_eq!((claimed.record.first_sent, claimed.record.last_sent), (Some(now), Some(now)));
    let row = scene.whole(attempt.action).await;
    assert_eq!((row.in_flight, row.first_write, row.standing_writes), (Some(Ordinal(1)), Some(now), 1));
    assert_eq!(row.lease_expires, Some(claimed.lease_expires));

    scene.in_time(attempt.action, claimed.fence, answered(200)).await;
    scene.advance(Duration::from_secs(1)).await;
    let second = scene.write(&attempt, 2).await;
    assert_eq!(second.window_ends, Some(scene.now().await.plus(WINDOW)));
    assert_eq!(scene.whole(attempt.action).await.first_write, Some(now), "it stays the first");
}

pub async fn p1_no_write_is_claimed_under_a_lease_that_is_over(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (early, late) = (scene.running("early").await, scene.running("late").await);
    scene.advance(LEASE.length - MICROSECOND).await;
    scene.write(&early, 1).await;
    scene.advance(MICROSECOND).await;
    let row = lost(scene.claim_write(&late, 1).await);
    assert_eq!((row.in_flight, row.standing_writes), (None, 0));
    assert_eq!(scene.store.effects(&scene.tenant, late.action, false).await.unwrap(), []);
}

pub async fn nothing_is_claimed_while_a_write_is_in_flight(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let first = scene.write(&attempt, 1).await;
    lost(scene.claim_write(&attempt, 2).await);
    lost(scene.claim_write(&attempt, 1).await);
    lost(scene.repeat_write(&attempt, 1).await);
    scene.in_time(attempt.action, first.fence, answered(200)).await;
    scene.write(&attempt, 2).await;
    scene.whole(attempt.action).await;
}

pub async fn no_write_is_claimed_once_a_cancel_was_asked(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    made(scene.store.request_cancel(&scene.tenant, attempt.action, "no more").await);
    assert_eq!(lost(scene.claim_write(&attempt, 2).await).cancel_requested.as_deref(), Some("no more"));
}

pub async fn no_write_is_claimed_from_the_deadline_on(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let short = |new: NewAction| NewAction { execution_deadline_after: Duration::from_secs(30), ..new };
    let early = scene.propose(short(scene.proposal("early", 0).await)).await;
    let late = scene.propose(short(scene.proposal("late", 0).await)).await;
    let (early, late) = (scene.run(early.id).await, scene.run(late.id).await);
    // A write that stands changes nothing about it.
    scene.written(&late, 1).await;
    scene.advance(Duration::from_secs(30) - MICROSECOND).await;
    scene.write(&early, 1).await;
    scene.advance(MICROSECOND).await;
    lost(scene.claim_write(&late, 2).await);
    // What is done is reported all the same.
    assert_eq!(scene.succeed(&late).await.state, State::Succeeded);
}

pub async fn break_27_no_first_write_after_the_approval_expired(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (early, late) = (scene.approved("early").await, scene.approved("late").await);
    scene.advance_to(early.approval_expires, Duration::from_secs(10)).await;
    let (early, late) = (scene.run(early.id).await, scene.run(late.id).await);
    scene.advance(Duration::from_secs(10) - MICROSECOND).await;
    scene.write(&early, 1).await;
    scene.advance(MICROSECOND).await;
    let row = lost(scene.claim_write(&late, 1).await);
    assert_eq!((row.state, row.standing_writes), (State::Executing, 0));
}

pub async fn break_27_no_first_write_after_the_policy_changed(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.change_policy().await;
    lost(scene.claim_write(&attempt, 1).await);
    assert_eq!(scene.whole(attempt.action).await.standing_writes, 0);
}

pub async fn after_a_write_stands_approval_and_policy_are_those_it_was_made_under(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    scene.change_policy().await;
    let claimed = scene.write(&attempt, 2).await;
    scene.in_time(attempt.action, claimed.fence, answered(200)).await;
    made(scene.fail_retryably(&attempt).await);
    scene.advance(APPROVAL).await;
    let again = scene.run(attempt.action).await;
    scene.write(&again, 3).await;
    scene.whole(attempt.action).await;
}

pub async fn break_13_a_read_does_not_stand_for_a_write(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let planned = vec![scene.settled_of(1, Settled::Answered(answer(200)))];
    let new = NewAction { planned_effects: planned, ..scene.proposal("k", 0).await };
    let action = scene.propose(new).await;
    let attempt = scene.run(action.id).await;
    scene.settled(&attempt, 2, Settled::Answered(answer(200))).await;
    scene.settled(&attempt, 3, Settled::Refused(Refusal::NotGranted("no".into()))).await;
    scene.change_policy().await;
    let row = lost(scene.claim_write(&attempt, 4).await);
    assert_eq!((row.effects, row.standing_writes, row.first_write), (3, 0, None));
    scene.whole(action.id).await;
}

pub async fn break_14_a_write_claim_voids_what_the_reaper_decided_before_it(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    // The reaper reads the row in the lease's last microsecond, then is slow.
    scene.advance(LEASE.length - MICROSECOND).await;
    let decided = scene.worker_lost_of(&scene.row(attempt.action).await);
    scene.write(&attempt, 1).await;
    scene.advance(MICROSECOND).await;
    let row = lost(scene.store.transition(decided).await);
    assert_eq!((row.state, row.in_flight), (State::Executing, Some(Ordinal(1))));
    scene.whole(attempt.action).await;
}

pub async fn break_14_write_claim_races_the_reaper_one_wins(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut claims_won = 0;
    for round in 0..60 {
        let attempt = scene.running(&format!("k{round}")).await;
        scene.advance(LEASE.length - MICROSECOND).await;
        let decided = scene.worker_lost_of(&scene.row(attempt.action).await);
        let claim = scene.write_of(&attempt, 1, RecoveryClass::Manual);
        let (for_worker, for_reaper) = (scene.store.clone(), scene.store.clone());
        let mut worker = tokio::spawn(async move { for_worker.claim_write(claim).await.unwrap() });
        // Some rounds are no race, so that both ends are sure to be seen.
        let early = if round % 3 == 0 { Some((&mut worker).await.unwrap()) } else { None };
        scene.advance(MICROSECOND).await;
        let reaper = tokio::spawn(async move { for_reaper.transition(decided).await.unwrap() });
        let claimed = match early {
            Some(claimed) => claimed,
            None => worker.await.unwrap(),
        };
        let reaped = reaper.await.unwrap();
        let (claimed, reaped) = (matches!(claimed, Step::Made(_)), matches!(reaped, Step::Made(_)));
        assert!(!(claimed && reaped), "round {round}: a send without a live claim");
        let row = scene.whole(attempt.action).await;
        match (claimed, reaped) {
            (true, _) => assert_eq!(row.state, State::Executing),
            (_, true) => assert_eq!((row.state, row.standing_writes), (State::FailedRetryable, 0)),
            // Neither: the claim came after the lease, and voided nothing.
            (false, false) => panic!("round {round}: the reaper lost to a claim that was not made"),
        }
        claims_won += usize::from(claimed);
    }
    assert!(claims_won > 0, "it never was a race");
}

pub async fn break_19_a_write_that_was_not_sent_is_claimed_again(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    let failed = scene.in_time(attempt.action, claimed.fence, SendResult::NotSent).await;
    assert_eq!((failed.status, failed.first_sent), (EffectStatus::Failed, None));
    let row = scene.whole(attempt.action).await;
    assert_eq!((row.standing_writes, row.in_flight), (0, None));

    let same_attempt = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!(same_attempt.fence, fence(attempt.id, 1, 2));
    assert!(!same_attempt.may_have_arrived);
    scene.in_time(attempt.action, same_attempt.fence, SendResult::NotSent).await;
    made(scene.fail_retryably(&attempt).await);

    let next = scene.run(attempt.action).await;
    let claimed = made(scene.repeat_write(&next, 1).await);
    assert_eq!(claimed.fence, fence(next.id, 1, 3));
    assert_eq!(claimed.record.provider_key, failed.provider_key, "under the same key");
    scene.in_time(attempt.action, claimed.fence, answered(200)).await;
    lost(scene.repeat_write(&next, 1).await);
    scene.whole(attempt.action).await;
}

pub async fn break_28_a_repeat_of_what_was_not_sent_has_the_conditions_of_a_write_claim(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    // An attempt whose only write was not sent, and which is alive in `at`.
    let not_sent = |new: NewAction| async {
        let action = scene.propose(new).await;
        let attempt = scene.run(action.id).await;
        let claimed = scene.write(&attempt, 1).await;
        scene.in_time(action.id, claimed.fence, SendResult::NotSent).await;
        attempt
    };

    let expiring = scene.proposal("expiry", 0).await;
    let expiring = not_sent(NewAction { approval_expires_after: Duration::from_secs(20), ..expiring }).await;
    scene.advance(Duration::from_secs(20)).await;
    lost(scene.repeat_write(&expiring, 1).await);

    let ending = scene.proposal("deadline", 0).await;
    let ending = not_sent(NewAction { execution_deadline_after: Duration::from_secs(20), ..ending }).await;
    scene.advance(Duration::from_secs(20)).await;
    lost(scene.repeat_write(&ending, 1).await);

    let leased = not_sent(scene.proposal("lease", 0).await).await;
    scene.advance(LEASE.length).await;
    lost(scene.repeat_write(&leased, 1).await);

    let stopped = not_sent(scene.proposal("cancel", 0).await).await;
    made(scene.store.request_cancel(&scene.tenant, stopped.action, "no more").await);
    lost(scene.repeat_write(&stopped, 1).await);

    let changed = not_sent(scene.proposal("policy", 0).await).await;
    scene.change_policy().await;
    let row = lost(scene.repeat_write(&changed, 1).await);
    assert_eq!((row.standing_writes, row.in_flight), (0, None));
    scene.whole(changed.action).await;
}

pub async fn an_unknown_write_is_asked_again_after_the_deadline_but_not_after_its_window(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    let new = scene.proposal("k", 0).await;
    let action = scene.propose(NewAction { execution_deadline_after: Duration::from_secs(60), ..new }).await;
    let attempt = scene.run(action.id).await;
    let claimed = scene.write(&attempt, 1).await;
    scene.lose(&attempt, claimed.fence).await;
    scene.advance(Duration::from_secs(61)).await;
    scene.change_policy().await;
    let again = scene.repeat(action.id).await;
    let repeated = made(scene.repeat_write(&again, 1).await);
    assert!(repeated.may_have_arrived, "it remembers that it was unknown");
    assert_eq!(repeated.window_ends, claimed.window_ends);
    assert_eq!(
        (repeated.record.first_sent, repeated.record.send),
        (claimed.record.first_sent, SendNumber(2))
    );
    let row = scene.whole(action.id).await;
    assert_eq!((row.unknown_effects, row.standing_writes, row.in_flight), (0, 1, Some(Ordinal(1))));
    // But nothing new is sent by now.
    scene.in_time(action.id, repeated.fence, answered(200)).await;
    lost(scene.claim_write(&again, 2).await);
}

pub async fn break_04_a_repeat_is_judged_again_when_it_is_claimed(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let end = scene.effect(unknown.id, 1).await.window_ends().unwrap();
    scene.advance_to(end, MICROSECOND).await;
    let attempt = scene.repeat(unknown.id).await;
    scene.advance(MICROSECOND).await;
    let row = lost(scene.repeat_write(&attempt, 1).await);
    assert_eq!((row.unknown_effects, row.in_flight), (1, None));
    scene.whole(unknown.id).await;
}

pub async fn break_30_a_components_own_retry_keeps_the_start_of_the_window(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let first = scene.write(&attempt, 1).await;
    let record = scene.in_time(attempt.action, first.fence, answered(500)).await;
    let retry = |ordinal: u32| ClaimWrite {
        fingerprint: record.fingerprint,
        provider_key: record.provider_key.clone().unwrap(),
        first_sent: record.first_sent,
        ..scene.write_of(&attempt, ordinal, RecoveryClass::ProviderIdempotent)
    };
    scene.advance(Duration::from_secs(30)).await;
    let retried = made(scene.store.claim_write(retry(2)).await);
    assert_eq!(retried.record.first_sent, record.first_sent);
    assert_eq!(retried.window_ends, first.window_ends);
    assert!(retried.may_have_arrived, "it repeats one that may have");
    // Not sent, and so not undone either: the first one may have arrived.
    assert_eq!(
        scene.record(attempt.action, retried.fence, SendResult::NotSent).await,
        crate::steps::Recorded::Stale
    );
    scene.in_time(attempt.action, retried.fence, answered(500)).await;

    // Outside the window the provider has forgotten the key.
    let beat = || scene.store.heartbeat(&scene.tenant, attempt.action, attempt.id, super::scene::LEASE);
    while scene.now().await < first.window_ends.unwrap() {
        beat().await.unwrap().unwrap();
        scene.advance(Duration::from_secs(30)).await;
    }
    lost(scene.store.claim_write(retry(3)).await);
    scene.whole(attempt.action).await;
}

pub async fn a_window_that_never_began_begins_with_the_next_send(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    scene.in_time(attempt.action, claimed.fence, SendResult::NotSent).await;
    scene.advance(Duration::from_secs(10)).await;
    let repeated = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!(repeated.window_ends, Some(scene.now().await.plus(WINDOW)));
    // From now on it stays.
    scene.lose(&attempt, repeated.fence).await;
    scene.advance(Duration::from_secs(10)).await;
    let again = scene.repeat(attempt.action).await;
    assert_eq!(made(scene.repeat_write(&again, 1).await).window_ends, repeated.window_ends);
}

pub async fn a_write_that_was_refused_is_never_claimed_again(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.settled(&attempt, 1, Settled::Refused(Refusal::NotGranted("no route".into()))).await;
    lost(scene.repeat_write(&attempt, 1).await);
    assert!(scene.claim_write(&attempt, 1).await.is_err(), "its place is taken");
    scene.whole(attempt.action).await;
}

pub async fn a_write_that_was_set_aside_is_asked_again_inside_its_window_only(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let set_aside = |key: &'static str| {
        let scene = &scene;
        async move {
            let attempt = scene.running(key).await;
            let claimed = scene.write(&attempt, 1).await;
            scene.in_time(attempt.action, claimed.fence, answered(429)).await;
            let fact = Fact::FailedRetryably { standing: Default::default(), why: "try-later".into() };
            let end = EndAttempt {
                set_aside: vec![Ordinal(1)],
                ..scene.end_of(&attempt, fact, State::FailedRetryable)
            };
            made(scene.store.end_attempt(end).await);
            attempt.action
        }
    };
    let (inside, outside) = (set_aside("inside").await, set_aside("outside").await);
    let before = scene.effect(inside, 1).await;
    assert!(before.set_aside && before.stands());
    scene.advance_to(before.window_ends().unwrap(), MICROSECOND).await;
    let (inside, outside) = (scene.run(inside).await, scene.run(outside).await);
    let repeated = made(scene.repeat_write(&inside, 1).await);
    assert_eq!((repeated.record.send, repeated.may_have_arrived), (SendNumber(2), true));
    assert_eq!((repeated.window_ends, repeated.record.set_aside), (before.window_ends(), false));
    assert_eq!(repeated.record.answer, None);
    scene.in_time(inside.action, repeated.fence, answered(200)).await;
    let history = scene.store.effects(&scene.tenant, inside.action, true).await.unwrap();
    let answers: Vec<_> = history.iter().map(|effect| effect.answer.as_ref().unwrap().status).collect();
    assert_eq!(answers, [429, 200], "what was set aside is kept");
    scene.whole(inside.action).await;

    scene.advance(MICROSECOND).await;
    lost(scene.repeat_write(&outside, 1).await);
    assert_eq!(scene.effect(outside.action, 1).await.answer, Some(answer(429)), "its answer stands again");
}

pub async fn a_read_that_was_set_aside_is_replaced_and_kept_as_history(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.settled(&attempt, 1, Settled::Answered(answer(503))).await;
    scene.settled(&attempt, 2, Settled::Refused(Refusal::TooMany(1))).await;
    let fact = Fact::FailedRetryably { standing: Default::default(), why: "try-later".into() };
    let end = EndAttempt {
        set_aside: vec![Ordinal(1), Ordinal(2)],
        ..scene.end_of(&attempt, fact, State::FailedRetryable)
    };
    made(scene.store.end_attempt(end).await);
    let again = scene.run(attempt.action).await;
    scene.settled(&again, 1, Settled::Answered(answer(200))).await;
    // A write may come where a refusal was; nothing of it ever happened.
    let other = ClaimWrite {
        fingerprint: EffectFingerprint(Digest::of(b"another question")),
        ..scene.write_of(&again, 2, RecoveryClass::Manual)
    };
    let claimed = made(scene.store.claim_write(other).await);
    scene.in_time(again.action, claimed.fence, answered(201)).await;
    let row = scene.whole(again.action).await;
    assert_eq!((row.effects, row.standing_writes), (2, 1));
    let history = scene.store.effects(&scene.tenant, again.action, true).await.unwrap();
    let told: Vec<_> = history
        .iter()
        .map(|effect| {
            (effect.ordinal.0, effect.answer.as_ref().map(|answer| answer.status), effect.set_aside)
        })
        .collect();
    assert_eq!(told, [(1, Some(503), true), (1, Some(200), false), (2, None, true), (2, Some(201), false)]);
}
