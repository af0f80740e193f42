//! Words about effects whose outcome is unknown: a lookup's, a person's.

use std::time::Duration;

use countersign_domain::action::{Fact, State, WaitsFor};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::Ordinal;

use super::Backend;
use super::scene::{MICROSECOND, SETTLE, Scene, answer, answered, error, fence, fresh_attempt, lost, made};
use crate::steps::{ClaimKind, NewAction, Putoff, Recorded, Resolve, Step};

pub async fn break_08_a_word_about_an_earlier_send_is_stale(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, first) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    let second = made(scene.repeat_write(&attempt, 1).await);
    let again = scene.lose(&attempt, second.fence).await;
    scene.advance(SETTLE).await;
    // Truthful when it was looked up; by now it speaks of nothing.
    for stale in [first, fence(attempt.id, 1, 1), fence(fresh_attempt(), 1, 2), fence(attempt.id, 2, 2)] {
        assert_eq!(lost(scene.store.resolve(scene.found_not_done_of(&again, stale)).await), again);
        assert_eq!(lost(scene.store.resolve(scene.found_done_of(&again, stale)).await), again);
    }
    made(scene.store.resolve(scene.found_not_done_of(&again, second.fence)).await);
    scene.whole(unknown.id).await;
}

pub async fn break_09_not_done_is_not_believed_before_settle(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, sent) = scene.unknown("k", RecoveryClass::Manual).await;
    lost(scene.store.resolve(scene.found_not_done_of(&unknown, sent)).await);
    scene.advance(SETTLE - MICROSECOND).await;
    assert_eq!(lost(scene.store.resolve(scene.found_not_done_of(&unknown, sent)).await), unknown);
    scene.advance(MICROSECOND).await;
    let settled = made(scene.store.resolve(scene.found_not_done_of(&unknown, sent)).await);
    assert_eq!(settled.state, State::FailedRetryable);
    // That it happened is believed at any time.
    let (unknown, sent) = scene.unknown("done", RecoveryClass::Manual).await;
    made(scene.store.resolve(scene.found_done_of(&unknown, sent)).await);
}

pub async fn break_32_settle_runs_from_the_commit_that_made_it_unknown(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Verifiable).await;
    // A sender that stalls for long, then perhaps sends.
    scene.advance(Duration::from_secs(600)).await;
    let unknown = scene.lose(&attempt, claimed.fence).await;
    scene.advance(SETTLE - MICROSECOND).await;
    lost(scene.store.resolve(scene.found_not_done_of(&unknown, claimed.fence)).await);
    scene.advance(MICROSECOND).await;
    made(scene.store.resolve(scene.found_not_done_of(&unknown, claimed.fence)).await);
    scene.whole(attempt.action).await;
}

pub async fn break_16_what_is_found_done_grants_an_attempt(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let new = scene.proposal("k", 0).await;
    let short = NewAction { attempts: 1, execution_deadline_after: Duration::from_secs(10), ..new };
    let action = scene.propose(short).await;
    let attempt = scene.run(action.id).await;
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
    let unknown = scene.lose(&attempt, claimed.fence).await;
    assert_eq!(unknown.attempts_left, 0);
    // The person takes their time: deadline, approval and budget are spent.
    scene.advance(Duration::from_secs(100_000)).await;
    let resolve = scene.found_done_of(&unknown, claimed.fence);
    let settled = made(scene.store.resolve(resolve).await);
    assert_eq!(
        (settled.state, settled.attempts_left, settled.unknown_effects),
        (State::FailedRetryable, 1, 0)
    );
    assert_eq!(settled.next_attempt, Some(scene.now().await));
    let effect = scene.effect(action.id, 1).await;
    assert_eq!((effect.status, effect.answer), (EffectStatus::Succeeded, Some(answer(200))));
    let evidence = effect.evidence.unwrap();
    assert_eq!((evidence.by.as_str(), evidence.outcome.as_str()), ("olga", "happened"));
    assert_eq!(evidence.at, scene.now().await, "by the store's clock, whatever was handed in");
    let again = scene.run(action.id).await;
    assert_eq!(scene.succeed(&again).await.state, State::Succeeded);
    scene.whole(action.id).await;
}

pub async fn what_is_found_not_done_may_be_claimed_again(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for class in [RecoveryClass::Manual, RecoveryClass::Verifiable, RecoveryClass::ProviderIdempotent] {
        let (unknown, sent) = scene.unknown(class.as_str(), class).await;
        scene.advance(SETTLE).await;
        let settled = made(scene.store.resolve(scene.found_not_done_of(&unknown, sent)).await);
        assert_eq!(
            (settled.state, settled.standing_writes, settled.unknown_effects),
            (State::FailedRetryable, 0, 0)
        );
        let effect = scene.effect(unknown.id, 1).await;
        assert_eq!(
            (effect.status, effect.may_have_arrived, effect.answer),
            (EffectStatus::Failed, false, None)
        );
        let attempt = scene.run(unknown.id).await;
        let claimed = made(scene.repeat_write(&attempt, 1).await);
        assert!(!claimed.may_have_arrived, "somebody who knows said that it did not");
        scene.in_time(unknown.id, claimed.fence, answered(201)).await;
        scene.succeed(&attempt).await;
        scene.whole(unknown.id).await;
    }
}

pub async fn while_another_effect_is_unknown_the_action_stays_so(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, first) = scene.unknown("k", RecoveryClass::ProviderIdempotent).await;
    let attempt = scene.repeat(unknown.id).await;
    let second = scene.write(&attempt, 2).await;
    let both = scene.lose(&attempt, second.fence).await;
    let due = both.next_attempt;
    scene.advance(SETTLE).await;
    let one = made(scene.store.resolve(scene.found_not_done_of(&both, second.fence)).await);
    assert_eq!((one.state, one.unknown_effects, one.next_attempt), (State::OutcomeUnknown, 1, due));
    let none = made(scene.store.resolve(scene.found_done_of(&one, first)).await);
    assert_eq!((none.state, none.unknown_effects, none.standing_writes), (State::FailedRetryable, 0, 1));
    assert_eq!(scene.facts(unknown.id).await[5..], ["outcome_lost", "found_not_done", "found_done"]);
    scene.whole(unknown.id).await;
}

pub async fn a_word_decided_on_an_older_row_is_refused(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, sent) = scene.unknown("k", RecoveryClass::Manual).await;
    let late = scene.found_done_of(&unknown, sent);
    let asked = made(scene.store.request_cancel(&scene.tenant, unknown.id, "no more").await);
    assert_eq!(lost(scene.store.resolve(late).await), asked);
    let settled = made(scene.store.resolve(scene.found_done_of(&asked, sent)).await);
    // Nor twice, whatever row it names.
    let twice = Resolve { expected: settled.version_counter, ..scene.found_done_of(&asked, sent) };
    assert_eq!(lost(scene.store.resolve(twice).await), settled);
    assert_eq!(scene.record(unknown.id, sent, answered(500)).await, Recorded::Stale, "a late answer neither");
}

pub async fn giving_up_ends_the_action_and_keeps_the_unknown_in_sight(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, sent) = scene.unknown("k", RecoveryClass::Manual).await;
    let give_up = Resolve {
        error: error("outcome_never_known"),
        ..scene.resolve_of(&unknown, sent, Fact::GivenUp { by: "olga".into() })
    };
    let ended = made(scene.store.resolve(give_up).await);
    assert_eq!((ended.state, ended.unknown_effects, ended.standing_writes), (State::FailedTerminal, 1, 1));
    assert_eq!(ended.error, error("outcome_never_known"));
    let effect = scene.effect(unknown.id, 1).await;
    assert_eq!((effect.status, effect.evidence.unwrap().by.as_str()), (EffectStatus::Unknown, "olga"));
    lost(scene.claim(unknown.id, ClaimKind::Repeat).await);
    scene.whole(unknown.id).await;
}

pub async fn break_18_a_cancel_asked_of_nobody_is_due(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, sent) = scene.unknown("k", RecoveryClass::Manual).await;
    let asked = made(scene.store.request_cancel(&scene.tenant, unknown.id, "no more").await);
    let settled = made(scene.store.resolve(scene.found_done_of(&asked, sent)).await);
    assert_eq!(settled.cancel_requested.as_deref(), Some("no more"));
    lost(scene.claim(unknown.id, ClaimKind::Run).await);
    let due = scene.store.due(10, false).await.unwrap();
    assert_eq!(due.iter().map(|due| &due.action).collect::<Vec<_>>(), [&settled]);
    // What stands outside cannot be called cancelled.
    let end = scene.cancelled_of(&settled);
    assert_eq!(end.moved.to, State::FailedTerminal);
    made(scene.store.transition(end).await);
    assert_eq!(scene.store.due(10, false).await.unwrap(), []);
    scene.whole(unknown.id).await;
}

pub async fn a_lookup_that_found_nothing_out_is_put_off_and_costs_a_repeat(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::Verifiable).await;
    assert_eq!(scene.store.due(10, false).await.unwrap().len(), 1);
    let pause = Putoff::Costly(Duration::from_secs(20));
    let put_off = made(scene.store.postpone(&scene.tenant, unknown.id, unknown.version_counter, pause).await);
    assert_eq!(put_off.next_attempt, Some(scene.now().await.plus(Duration::from_secs(20))));
    assert_eq!((put_off.repeats_left, put_off.event_seq), (unknown.repeats_left - 1, unknown.event_seq));
    lost(scene.store.postpone(&scene.tenant, unknown.id, unknown.version_counter, pause).await);
    assert_eq!(scene.store.due(10, false).await.unwrap(), []);
    scene.advance(Duration::from_secs(20)).await;
    let due = scene.store.due(10, false).await.unwrap();
    assert_eq!((due.len(), due[0].unknown.len(), due[0].unknown[0].ordinal), (1, 1, Ordinal(1)));
    // The budget is spent: it waits for a person.
    let mut row = put_off;
    while row.repeats_left > 0 {
        row = made(
            scene
                .store
                .postpone(&scene.tenant, row.id, row.version_counter, Putoff::Costly(Duration::ZERO))
                .await,
        );
    }
    assert_eq!(row.waits_for(), Some(WaitsFor::Person));
    assert!(scene.store.announced(&scene.tenant, row.id, row.event_seq).await.unwrap());
    assert_eq!(scene.store.due(10, false).await.unwrap(), []);
    let once_more = Putoff::Costly(Duration::ZERO);
    lost(scene.store.postpone(&scene.tenant, row.id, row.version_counter, once_more).await);
    scene.whole(unknown.id).await;
}

pub async fn of_several_who_would_look_one_puts_it_off_and_looks(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::Verifiable).await;
    let mut lookers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, tenant, id) = (scene.store.clone(), scene.tenant.clone(), unknown.id);
        let expected = unknown.version_counter;
        let pause = Putoff::Costly(Duration::from_secs(5));
        lookers.spawn(async move { store.postpone(&tenant, id, expected, pause).await.unwrap() });
    }
    let won = lookers.join_all().await.into_iter().filter(|step| matches!(step, Step::Made(_))).count();
    assert_eq!(won, 1);
    assert_eq!(scene.whole(unknown.id).await.repeats_left, unknown.repeats_left - 1);
}

pub async fn waiting_for_a_send_to_settle_and_leaving_it_to_a_person_cost_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, _) = scene.unknown("k", RecoveryClass::Verifiable).await;
    let wait = Putoff::Free(Duration::from_secs(5));
    let waits = made(scene.store.postpone(&scene.tenant, unknown.id, unknown.version_counter, wait).await);
    assert_eq!(
        (waits.repeats_left, waits.next_attempt, waits.waits_for()),
        (
            unknown.repeats_left,
            Some(scene.now().await.plus(Duration::from_secs(5))),
            Some(WaitsFor::Provider)
        )
    );
    let left =
        made(scene.store.postpone(&scene.tenant, waits.id, waits.version_counter, Putoff::ToPerson).await);
    assert_eq!(
        (left.repeats_left, left.next_attempt, left.waits_for()),
        (unknown.repeats_left, None, Some(WaitsFor::Person))
    );
    scene.whole(unknown.id).await;
}

pub async fn after_one_of_several_is_settled_the_rest_is_looked_at_again(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for (key, by_late_answer) in [("a word", false), ("a late answer", true)] {
        let (unknown, first) = scene.unknown(key, RecoveryClass::ProviderIdempotent).await;
        let attempt = scene.repeat(unknown.id).await;
        let second = scene.write_as(&attempt, 2, RecoveryClass::Manual).await;
        let both = scene.lose(&attempt, second.fence).await;
        let left =
            made(scene.store.postpone(&scene.tenant, both.id, both.version_counter, Putoff::ToPerson).await);
        assert_eq!((left.unknown_effects, left.next_attempt), (2, None));
        // Now only the one is left that its provider can be asked about again.
        if by_late_answer {
            assert!(matches!(
                scene.record(left.id, second.fence, answered(201)).await,
                Recorded::Late(row) if row.state == State::OutcomeUnknown
            ));
        } else {
            made(scene.store.resolve(scene.found_done_of(&left, second.fence)).await);
        }
        let rest = scene.row(left.id).await;
        assert_eq!((rest.unknown_effects, rest.next_attempt), (1, Some(scene.now().await)), "{key}");
        let attempt = scene.repeat(left.id).await;
        let again = made(scene.repeat_write(&attempt, 1).await);
        assert_eq!(again.fence.send.0, first.send.0 + 1);
        scene.whole(left.id).await;
    }
}

pub async fn a_doubt_that_waits_for_a_person_is_due_until_somebody_was_told(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (unknown, sent) = scene.unknown("k", RecoveryClass::Manual).await;
    let waits = made(
        scene.store.postpone(&scene.tenant, unknown.id, unknown.version_counter, Putoff::ToPerson).await,
    );
    let due = async || scene.store.due(10, false).await.unwrap().len();
    assert!(waits.is_to_be_announced());
    assert_eq!(due().await, 1);
    // About a doubt that is over nobody was told.
    assert!(!scene.store.announced(&scene.tenant, waits.id, waits.event_seq - 1).await.unwrap());
    assert_eq!(due().await, 1);
    assert!(scene.store.announced(&scene.tenant, waits.id, waits.event_seq).await.unwrap());
    assert_eq!(due().await, 0);
    let told = scene.row(waits.id).await;
    assert!(!told.is_to_be_announced());
    assert_eq!(told.version_counter, waits.version_counter, "whoever decides meanwhile is not in its way");
    made(scene.store.resolve(scene.found_done_of(&waits, sent)).await);
    // The next doubt is another one.
    let attempt = scene.run(waits.id).await;
    let second = scene.write_as(&attempt, 2, RecoveryClass::Manual).await;
    let end = scene.outcome_lost_of(&attempt, Some(second.fence), None);
    assert!(made(scene.store.end_attempt(end).await).is_to_be_announced());
    assert_eq!(due().await, 1);
    scene.whole(waits.id).await;
}

pub async fn a_late_answer_a_person_and_two_lookups_at_once_have_one_winner(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for round in 0..40 {
        let (unknown, sent) = scene.unknown(&format!("k{round}"), RecoveryClass::Verifiable).await;
        scene.advance(SETTLE).await;
        let words = [
            scene.found_done_of(&unknown, sent),
            scene.found_not_done_of(&unknown, sent),
            scene.found_not_done_of(&unknown, sent),
        ];
        let mut all = tokio::task::JoinSet::new();
        let late = scene.record_of(unknown.id, sent, answered(201));
        let store = scene.store.clone();
        all.spawn(async move { matches!(store.record_send(late).await.unwrap(), Recorded::Late(_)) });
        for word in words {
            let store = scene.store.clone();
            all.spawn(async move { matches!(store.resolve(word).await.unwrap(), Step::Made(_)) });
        }
        assert_eq!(all.join_all().await.into_iter().filter(|won| *won).count(), 1);
        assert_eq!(scene.whole(unknown.id).await.state, State::FailedRetryable);
    }
}
