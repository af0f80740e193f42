//! A database that lost commits: what was open is doubted before anything is
//! claimed, and what has no row is not taken for new.

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::Ordinal;

use super::Backend;
use super::scene::{MICROSECOND, Scene, WINDOW, answered, lost, made};
use crate::StoreError;
use crate::steps::{ClaimKind, ClaimWrite, Move, SendResult, Transition, When};

/// Doubts all there is; how many there were.
async fn doubt_all(scene: &Scene<'_>) -> usize {
    let mut all = 0;
    loop {
        match scene.store.doubt_rewound(2).await.unwrap() {
            0 => return all,
            some => all += some,
        }
    }
}

pub async fn break_35_a_rewound_ledger_doubts_every_open_action_before_anything_is_claimed(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    assert_eq!(scene.store.doubt_rewound(10).await.unwrap(), 0, "nothing was lost yet");
    let awaiting = scene.awaiting("awaiting", 1).await;
    let approved = scene.approved("approved").await;
    let running = scene.running("running").await;
    let flying = scene.running("in flight").await;
    let claimed = scene.write(&flying, 1).await;
    let retry = scene.running("retry").await;
    let retry = made(scene.fail_retryably(&retry).await);
    let (unknown, _) = scene.unknown("unknown", RecoveryClass::ProviderIdempotent).await;
    let done = scene.running("done").await;
    let done = scene.succeed(&done).await;

    backend.lose_commits().await;
    // Nothing that may have gone on moves before it is doubted.
    lost(scene.store.approve(scene.approval(&awaiting, "ben")).await);
    for row in [&awaiting, &approved, &retry] {
        lost(scene.store.transition(scene.cancelled_of(row)).await);
    }
    for id in [approved.id, retry.id] {
        lost(scene.claim(id, ClaimKind::Run).await);
    }
    lost(scene.claim(unknown.id, ClaimKind::Repeat).await);
    lost(scene.claim_write(&running, 1).await);
    lost(scene.fail_retryably(&running).await);
    let new = scene.approved("proposed since").await;

    assert_eq!(doubt_all(&scene).await, 6);
    for id in [awaiting.id, approved.id, running.action, flying.action, retry.id, unknown.id] {
        let row = scene.whole(id).await;
        assert_eq!(
            (row.state, row.in_flight, row.attempt_id, row.rewound),
            (State::OutcomeUnknown, None, None, true)
        );
        assert_eq!(row.next_attempt, Some(scene.now().await), "somebody looks at it at once");
        assert_eq!(scene.facts(id).await.last().unwrap(), "ledger_rewound");
    }
    assert_eq!(scene.row(done.id).await, done);
    let effect = scene.effect(flying.action, 1).await;
    assert_eq!((effect.ordinal, effect.status), (Ordinal(1), EffectStatus::Unknown));
    // Its sender lived on, and its answer still settles it.
    scene.record(flying.action, claimed.fence, answered(201)).await;
    assert_eq!(scene.whole(flying.action).await.state, State::FailedRetryable);
    scene.run(flying.action).await;
    // What is known to have been proposed since goes its way.
    scene.run(new.id).await;
    assert_eq!(doubt_all(&scene).await, 0);
}

pub async fn several_hosts_doubt_each_action_once_and_a_half_done_doubting_is_gone_on_with(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(scene.approved(&format!("k{n}")).await.id);
    }
    backend.lose_commits().await;
    assert_eq!(scene.store.doubt_rewound(4).await.unwrap(), 4);
    let mut hosts = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = scene.store.clone();
        hosts.spawn(async move {
            let mut doubted = 0;
            for _ in 0..30 {
                doubted += store.doubt_rewound(5).await.unwrap();
            }
            doubted
        });
    }
    assert_eq!(hosts.join_all().await.into_iter().sum::<usize>(), 26);
    for id in ids {
        assert_eq!(scene.whole(id).await.state, State::OutcomeUnknown);
        assert_eq!(scene.facts(id).await[2..], ["ledger_rewound"], "once");
    }
}

pub async fn what_was_not_sent_when_last_heard_of_is_doubted_too(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    scene.in_time(attempt.action, claimed.fence, SendResult::NotSent).await;
    let row = made(scene.fail_retryably(&attempt).await);
    assert_eq!((row.standing_writes, row.unknown_effects), (0, 0));
    backend.lose_commits().await;
    doubt_all(&scene).await;
    let row = scene.whole(attempt.action).await;
    assert_eq!((row.standing_writes, row.unknown_effects), (1, 1));
    let effect = scene.effect(attempt.action, 1).await;
    assert_eq!((effect.status, effect.may_have_arrived), (EffectStatus::Unknown, true));
    assert_eq!(effect.first_sent, row.approved_at, "it may have gone out from the approval on");
    let again = scene.repeat(attempt.action).await;
    let second = made(scene.repeat_write(&again, 1).await);
    assert!(second.may_have_arrived);
    scene.whole(attempt.action).await;
}

/// An approved action, doubted, and a run that finds out what it would do.
async fn found_out(scene: &Scene<'_>, backend: &dyn Backend, key: &str) -> (Action, super::scene::Attempt) {
    let action = scene.approved(key).await;
    scene.advance(MICROSECOND * 1000).await;
    backend.lose_commits().await;
    doubt_all(scene).await;
    let attempt = scene.repeat(action.id).await;
    (scene.row(action.id).await, attempt)
}

pub async fn a_write_without_a_row_is_entered_as_unknown_and_was_first_sent_at_the_approval(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    let (row, attempt) = found_out(&scene, backend, "k").await;
    let claim = scene.write_of(&attempt, 1, RecoveryClass::ProviderIdempotent);
    let entered = made(scene.store.doubt_write(claim).await);
    assert_eq!(entered, scene.effect(row.id, 1).await);
    assert_eq!(
        (entered.status, entered.may_have_arrived, entered.first_sent, entered.unknown_since),
        (EffectStatus::Unknown, true, row.approved_at, Some(scene.now().await))
    );
    let stands = scene.whole(row.id).await;
    assert_eq!((stands.unknown_effects, stands.standing_writes, stands.in_flight), (1, 1, None));
    // Under its key, and only as long as the key is known since the approval.
    let claimed = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!((claimed.fence.send.0, claimed.may_have_arrived), (2, true));
    assert_eq!(claimed.window_ends, Some(row.approved_at.unwrap().plus(WINDOW)));
    scene.in_time(row.id, claimed.fence, answered(200)).await;
    // A later write of it is no newer.
    let second = ClaimWrite {
        first_sent: Some(scene.now().await),
        ..scene.write_of(&attempt, 2, RecoveryClass::ProviderIdempotent)
    };
    let second = made(scene.store.doubt_write(second).await);
    assert_eq!(second.first_sent, row.approved_at);
    scene.whole(row.id).await;
    // Of an action whose ledger is whole there is nothing to doubt.
    let whole = scene.running("whole").await;
    lost(scene.store.doubt_write(scene.write_of(&whole, 1, RecoveryClass::Manual)).await);
}

pub async fn a_rewound_action_ends_neither_cancelled_nor_expired(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (row, attempt) = found_out(&scene, backend, "k").await;
    assert!(row.standing().writes_stand, "of lost rows nobody knows that none stands");
    let retry = made(scene.fail_retryably(&attempt).await);
    assert_eq!(scene.cancelled_of(&retry).moved.to, State::FailedTerminal, "so the rules say");
    for to in [State::Cancelled, State::Expired] {
        let fact = Fact::Cancelled { standing: Default::default(), reason: "whatever stands".into() };
        let moved = Move { fact, to, by: "nobody".into() };
        let forced = Transition { moved, when: When::Always, ..scene.cancelled_of(&retry) };
        let refused = scene.store.transition(forced).await.unwrap_err();
        assert_eq!(refused, StoreError::Constraint { name: "actions_rewound_never_undone".into() });
    }
    made(scene.store.transition(scene.cancelled_of(&retry)).await);
    assert_eq!(scene.whole(row.id).await.state, State::FailedTerminal);
}

pub async fn a_rewound_action_with_nothing_in_doubt_is_claimed_to_find_out(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let awaiting = scene.awaiting("never approved", 1).await;
    let (row, attempt) = found_out(&scene, backend, "k").await;
    assert_eq!((row.state, row.unknown_effects), (State::Executing, 0));
    assert_eq!(row.repeats_left, 2, "it costs a repeat");
    assert_eq!(scene.facts(row.id).await[2..], ["ledger_rewound", "safe_to_repeat"]);
    scene.succeed(&attempt).await;
    scene.whole(row.id).await;
    lost(scene.claim(awaiting.id, ClaimKind::Repeat).await);
    assert_eq!(scene.whole(awaiting.id).await.state, State::OutcomeUnknown);
}

pub async fn a_second_rewind_doubts_again(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (row, attempt) = found_out(&scene, backend, "k").await;
    scene.write(&attempt, 1).await;
    backend.lose_commits().await;
    lost(scene.fail_terminally(&attempt).await);
    assert_eq!(doubt_all(&scene).await, 1);
    assert_eq!(scene.effect(row.id, 1).await.status, EffectStatus::Unknown);
    assert_eq!(scene.whole(row.id).await.state, State::OutcomeUnknown);
    let again = scene.repeat(row.id).await;
    made(scene.repeat_write(&again, 1).await);
}
