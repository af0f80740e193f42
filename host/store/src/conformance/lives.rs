//! Whole lives, step by step, as a host would make them.

use countersign_domain::action::State;
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;

use super::Backend;
use super::scene::{LEASE, Scene, answer, answered, lost, made, text};
use crate::steps::ClaimKind;

pub async fn a_write_whose_answer_was_lost_is_repeated_under_its_key_and_succeeds(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, first) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let key = scene.effect(unknown.id, 1).await.provider_key;
    let attempt = scene.repeat(unknown.id).await;
    let again = made(scene.repeat_write(&attempt, 1).await);
    assert_eq!((again.record.provider_key.clone(), again.fence.send.0), (key, first.send.0 + 1));
    scene.in_time(unknown.id, again.fence, answered(200)).await;
    scene.succeed(&attempt).await;
    let effects = scene.store.effects(&scene.tenant, unknown.id, false).await.unwrap();
    assert_eq!(effects.len(), 1, "one effect");
    assert_eq!((effects[0].status, effects[0].answer.clone()), (EffectStatus::Succeeded, Some(answer(200))));
    let facts = ["proposed", "policy_allowed", "claimed", "outcome_lost", "safe_to_repeat", "succeeded"];
    assert_eq!(scene.facts(unknown.id).await, facts);
    scene.whole(unknown.id).await;
}

pub async fn five_effects_and_a_dead_worker_leave_four_to_replay(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    for ordinal in 1..=4 {
        scene.written(&attempt, ordinal).await;
    }
    scene.advance(LEASE.length).await;
    made(scene.store.transition(scene.worker_lost_of(&scene.row(attempt.action).await)).await);
    let claimed = made(scene.claim(attempt.action, ClaimKind::Run).await);
    let replayed: Vec<_> = claimed.effects.iter().map(|effect| (effect.ordinal.0, effect.status)).collect();
    assert_eq!(replayed, [1, 2, 3, 4].map(|ordinal| (ordinal, EffectStatus::Succeeded)));
    let again = super::scene::Attempt { action: attempt.action, id: claimed.action.attempt_id.unwrap() };
    for ordinal in 1..=4 {
        lost(scene.repeat_write(&again, ordinal).await);
    }
    scene.written(&again, 5).await;
    scene.succeed(&again).await;
    let row = scene.whole(attempt.action).await;
    assert_eq!((row.effects, row.standing_writes), (5, 5));
}

pub async fn two_people_approve_one_claims_and_the_result_is_there_for_all(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 2).await;
    lost(scene.claim(action.id, ClaimKind::Run).await);
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    lost(scene.claim(action.id, ClaimKind::Run).await);
    made(scene.store.approve(scene.approval(&action, "cyd")).await);
    let attempt = scene.run(action.id).await;
    lost(scene.claim(action.id, ClaimKind::Run).await);
    scene.written(&attempt, 1).await;
    scene.succeed(&attempt).await;
    for _ in 0..3 {
        let row = scene.row(action.id).await;
        assert_eq!((row.state, row.result), (State::Succeeded, Some(text(r#"{"ok":true}"#))));
    }
    assert_eq!(scene.store.due(10, true).await.unwrap(), []);
    scene.whole(action.id).await;
}
