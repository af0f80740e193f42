//! Approvals: what counts, what counts once, what comes too late.

use countersign_domain::action::State;
use countersign_domain::id::{Digest, Fingerprint};

use super::Backend;
use super::scene::{APPROVAL, MICROSECOND, Scene, lost, made, principal};
use crate::steps::{Approve, Step};
use std::time::Duration;

pub async fn the_last_approval_needed_makes_one_transition_and_one_event(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 2).await;
    let first = made(scene.store.approve(scene.approval(&action, "ben")).await);
    assert_eq!((first.state, first.approvals.len()), (State::AwaitingApproval, 1));
    assert_eq!((first.approved_fingerprint, first.approved_at), (None, None));
    assert_eq!(scene.facts(action.id).await, ["proposed", "approval_required"], "nothing moved yet");

    scene.advance(MICROSECOND).await;
    let second = made(scene.store.approve(scene.approval(&action, "cyd")).await);
    assert_eq!(second.state, State::Approved);
    assert_eq!(second.approved_fingerprint, Some(action.fingerprint));
    assert_eq!(second.approved_at, Some(scene.now().await));
    let given: Vec<_> =
        second.approvals.iter().map(|given| (given.by.as_str(), given.note.as_deref())).collect();
    assert_eq!(given, [("ben", Some("ben says yes")), ("cyd", Some("cyd says yes"))]);
    assert_eq!(scene.facts(action.id).await, ["proposed", "approval_required", "approved"]);
    assert_eq!(scene.whole(action.id).await, second);
}

pub async fn two_eight_and_two_hundred_approvals_at_once_make_one_transition(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for many in [2, 8, 200] {
        let action = scene.awaiting(&format!("k{many}"), 1).await;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..many {
            let (store, approval) = (scene.store.clone(), scene.approval(&action, &format!("approver-{n}")));
            tasks.spawn(async move { store.approve(approval).await.unwrap() });
        }
        let outcomes = tasks.join_all().await;
        let winners = outcomes.iter().filter(|step| matches!(step, Step::Made(_))).count();
        assert_eq!(winners, 1, "of {many}");
        for step in outcomes {
            let row = match step {
                Step::Made(row) => row,
                Step::Lost(row) => *row,
            };
            assert_eq!(row.state, State::Approved, "the others see why they lost");
        }
        let row = scene.whole(action.id).await;
        assert_eq!(row.approvals.len(), 1);
        assert_eq!(scene.facts(action.id).await, ["proposed", "approval_required", "approved"]);
    }
}

pub async fn break_20_approvals_given_at_once_are_all_counted(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for (round, needed) in [(0, 2u32), (1, 2), (2, 2), (3, 5), (4, 50)] {
        let action = scene.awaiting(&format!("k{round}"), needed).await;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..needed {
            let (store, approval) = (scene.store.clone(), scene.approval(&action, &format!("approver-{n}")));
            tasks.spawn(async move { store.approve(approval).await });
        }
        let rows: Vec<_> = tasks.join_all().await.into_iter().map(made).collect();
        assert_eq!(rows.iter().filter(|row| row.state == State::Approved).count(), 1, "one was the last");
        let row = scene.whole(action.id).await;
        assert_eq!((row.state, row.approvals.len()), (State::Approved, needed as usize));
    }
}

pub async fn an_approver_who_presses_again_counts_once_and_is_told_it_was_made(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 2).await;
    let first = made(scene.store.approve(scene.approval(&action, "ben")).await);
    scene.advance(MICROSECOND).await;
    let again = made(scene.store.approve(scene.approval(&action, "ben")).await);
    assert_eq!(again, first, "nothing changed, not even a time");
    made(scene.store.approve(scene.approval(&action, "cyd")).await);
    let after = made(scene.store.approve(scene.approval(&action, "ben")).await);
    assert_eq!((after.state, after.approvals.len()), (State::Approved, 2));
    scene.whole(action.id).await;
}

pub async fn one_approver_pressing_two_hundred_times_at_once_counts_once(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 2).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (store, approval) = (scene.store.clone(), scene.approval(&action, "ben"));
        tasks.spawn(async move { store.approve(approval).await });
    }
    for row in tasks.join_all().await.into_iter().map(made) {
        assert_eq!((row.state, row.approvals.len()), (State::AwaitingApproval, 1));
    }
    scene.whole(action.id).await;
}

pub async fn p4_an_approval_of_something_else_than_stands_there_is_refused(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    let other = Fingerprint(Digest::of(b"what an older page showed"));
    let stale = Approve { fingerprint: other, ..scene.approval(&action, "ben") };
    assert_eq!(lost(scene.store.approve(stale).await), action);
    assert_eq!(scene.whole(action.id).await, action);
    // Another action with the same arguments is another action.
    let twin = scene.awaiting("twin", 1).await;
    let meant_for_twin = Approve { action: twin.id, ..scene.approval(&action, "ben") };
    assert_eq!(lost(scene.store.approve(meant_for_twin).await), twin);
}

pub async fn an_approval_lands_until_the_last_microsecond_and_not_after(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (early, late) = (scene.awaiting("early", 1).await, scene.awaiting("late", 1).await);
    assert_eq!(early.approval_expires, scene.now().await.plus(APPROVAL));
    scene.advance_to(early.approval_expires, MICROSECOND).await;
    assert_eq!(made(scene.store.approve(scene.approval(&early, "ben")).await).state, State::Approved);
    scene.advance(MICROSECOND).await;
    assert_eq!(lost(scene.store.approve(scene.approval(&late, "ben")).await), late);
    scene.advance(Duration::from_secs(1)).await;
    assert_eq!(lost(scene.store.approve(scene.approval(&late, "ben")).await), late);
}

pub async fn an_approval_after_the_policy_changed_is_refused(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    scene.change_policy().await;
    assert_eq!(lost(scene.store.approve(scene.approval(&action, "ben")).await), action);
}

pub async fn an_approval_after_the_end_is_refused(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    let ended = made(scene.store.transition(scene.cancelled_of(&action)).await);
    assert_eq!(lost(scene.store.approve(scene.approval(&action, "ben")).await), ended);
    let nobody =
        Approve { tenant: "nobody".parse().unwrap(), by: principal("ben"), ..scene.approval(&action, "ben") };
    assert!(matches!(scene.store.approve(nobody).await, Err(crate::StoreError::NotFound { .. })));
}
