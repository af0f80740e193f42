//! What is due for the reaper and the workers, and what the reaper may write.

use std::time::Duration;

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::ActionId;

use super::Backend;
use super::scene::{APPROVAL, LEASE, MICROSECOND, Scene, answered, error, fence, fresh_attempt, lost, made};
use crate::StoreError;
use crate::steps::{Due, EndAttempt, NewAction, Transition, When};

async fn due(scene: &Scene<'_>) -> Vec<ActionId> {
    scene.store.due(1000, false).await.unwrap().into_iter().map(|due| due.action.id).collect()
}

pub async fn a_lease_that_ran_out_is_due_at_that_microsecond(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.advance(LEASE.length - MICROSECOND).await;
    assert_eq!(due(&scene).await, []);
    scene.advance(MICROSECOND).await;
    assert_eq!(due(&scene).await, [attempt.action]);
}

pub async fn after_opening_every_lease_is_over(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let running = scene.running("running").await;
    scene.awaiting("awaiting", 1).await;
    let done = scene.running("done").await;
    scene.succeed(&done).await;
    assert_eq!(due(&scene).await, []);
    let all = scene.store.due(1000, true).await.unwrap();
    assert_eq!(all.iter().map(|due| due.action.id).collect::<Vec<_>>(), [running.action]);
    // Then its end is written although the lease would still run.
    let row = all[0].action.clone();
    let at_once = Transition { when: When::Always, ..scene.worker_lost_of(&row) };
    assert_eq!(made(scene.store.transition(at_once).await).state, State::FailedRetryable);
}

pub async fn break_18_expired_approvals_are_due(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (awaiting, approved) = (scene.awaiting("awaiting", 1).await, scene.approved("approved").await);
    scene.advance(APPROVAL - MICROSECOND).await;
    assert_eq!(due(&scene).await, []);
    scene.advance(MICROSECOND).await;
    let mut found = due(&scene).await;
    found.sort();
    let mut expected = vec![awaiting.id, approved.id];
    expected.sort();
    assert_eq!(found, expected);
    for row in [awaiting, approved] {
        let expired = scene.transition_of(&row, Fact::Expired { standing: row.standing() });
        let expired = Transition { when: When::ApprovalExpired, ..expired };
        assert_eq!(made(scene.store.transition(expired).await).state, State::Expired);
        scene.whole(row.id).await;
    }
    assert_eq!(due(&scene).await, []);
}

pub async fn break_18_spent_budgets_are_due(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.propose(NewAction { attempts: 1, ..scene.proposal("k", 0).await }).await;
    let attempt = scene.run(action.id).await;
    let fact = Fact::FailedRetryably { standing: Default::default(), why: "trap".into() };
    let end = EndAttempt {
        next_attempt_after: Some(Duration::from_secs(600)),
        ..scene.end_of(&attempt, fact, State::FailedRetryable)
    };
    let spent = made(scene.store.end_attempt(end).await);
    assert_eq!(due(&scene).await, [action.id], "at once: there is nothing to wait for");
    made(scene.store.transition(scene.transition_of(&spent, Fact::RetriesExhausted)).await);
    assert_eq!(due(&scene).await, []);
    assert_eq!(scene.whole(action.id).await.state, State::FailedTerminal);
}

pub async fn break_05_an_expired_retry_is_due_only_while_no_write_stands(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let retry_in_an_hour = |key: &'static str, writes: bool| {
        let scene = &scene;
        async move {
            let attempt = scene.running(key).await;
            if writes {
                scene.written(&attempt, 1).await;
            }
            let fact = Fact::FailedRetryably { standing: Default::default(), why: "no".into() };
            let end = EndAttempt {
                next_attempt_after: Some(Duration::from_secs(3600)),
                ..scene.end_of(&attempt, fact, State::FailedRetryable)
            };
            made(scene.store.end_attempt(end).await)
        }
    };
    let (bare, standing) = (retry_in_an_hour("bare", false).await, retry_in_an_hour("standing", true).await);
    scene.advance(APPROVAL).await;
    assert_eq!(due(&scene).await, [bare.id]);
    scene.advance(Duration::from_secs(3600)).await;
    assert_eq!(due(&scene).await.len(), 2);
    scene.run(standing.id).await;
}

pub async fn retries_and_repeats_are_due_when_their_time_comes(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let retry = scene.running("retry").await;
    let fact = Fact::FailedRetryably { standing: Default::default(), why: "no".into() };
    let end = EndAttempt {
        next_attempt_after: Some(Duration::from_secs(5)),
        ..scene.end_of(&retry, fact, State::FailedRetryable)
    };
    made(scene.store.end_attempt(end).await);
    let repeat = scene.running("repeat").await;
    let claimed = scene.write(&repeat, 1).await;
    let end = scene.outcome_lost_of(&repeat, Some(claimed.fence), Some(Duration::from_secs(5)));
    made(scene.store.end_attempt(end).await);
    let person = scene.running("person").await;
    let claimed = scene.write_as(&person, 1, RecoveryClass::Manual).await;
    let waits =
        made(scene.store.end_attempt(scene.outcome_lost_of(&person, Some(claimed.fence), None)).await);
    assert_eq!(due(&scene).await, [person.action], "nobody was told");
    assert!(scene.store.announced(&scene.tenant, person.action, waits.event_seq).await.unwrap());

    scene.advance(Duration::from_secs(5) - MICROSECOND).await;
    assert_eq!(due(&scene).await, []);
    scene.advance(MICROSECOND).await;
    let mut found = due(&scene).await;
    found.sort();
    let mut expected = vec![retry.action, repeat.action];
    expected.sort();
    assert_eq!(found, expected, "what waits for a person, and somebody was told, is not listed");
}

pub async fn approved_actions_that_run_by_themselves_are_due_unless_paused(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    scene.approved("by a call").await;
    let auto = scene.propose(NewAction { run_by_itself: true, ..scene.proposal("auto", 0).await }).await;
    let later = scene.propose(NewAction { run_by_itself: true, ..scene.proposal("later", 1).await }).await;
    assert_eq!(due(&scene).await, [auto.id]);
    scene.advance(MICROSECOND).await;
    made(scene.store.approve(scene.approval(&later, "ben")).await);
    assert_eq!(due(&scene).await, [auto.id, later.id]);

    scene.store.set_paused(&scene.tenant, &scene.tool.name, true).await.unwrap();
    assert_eq!(due(&scene).await, [], "what nobody can move now would stand before everything else");
    scene.advance(APPROVAL).await;
    assert_eq!(due(&scene).await.len(), 3, "but it expires");
}

pub async fn what_is_due_comes_oldest_first_and_with_its_unknown_effects(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut expected = Vec::new();
    for n in 0..6 {
        let (unknown, _) = scene.unknown(&format!("k{n}"), RecoveryClass::Verifiable).await;
        expected.push(unknown.id);
        scene.advance(MICROSECOND).await;
    }
    scene.change_policy().await;
    let found: Vec<Due> = scene.store.due(4, false).await.unwrap();
    assert_eq!(found.iter().map(|due| due.action.id).collect::<Vec<_>>(), expected[..4]);
    let epoch = scene.store.tool(&scene.tenant, &scene.tool.name, None).await.unwrap().unwrap().policy_epoch;
    for due in found {
        assert_eq!(due.unknown, [scene.effect(due.action.id, 1).await]);
        assert_eq!((due.policy_epoch, due.action.policy_epoch), (epoch, epoch - 1));
    }
}

pub async fn a_worker_is_lost_only_once_its_lease_ran_out(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.advance(LEASE.length - MICROSECOND).await;
    let row = scene.row(attempt.action).await;
    assert_eq!(lost(scene.store.transition(scene.worker_lost_of(&row)).await), row);
    scene.advance(MICROSECOND).await;
    let gone = made(scene.store.transition(scene.worker_lost_of(&row)).await);
    assert_eq!((gone.state, gone.attempt_id, gone.lease_expires), (State::FailedRetryable, None, None));
    assert_eq!((gone.next_attempt, gone.error.clone()), (Some(scene.now().await), error("worker_lost")));
    scene.whole(attempt.action).await;
}

pub async fn an_approval_expires_only_once_it_ran_out(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    let expired = || Transition {
        when: When::ApprovalExpired,
        ..scene.transition_of(&action, Fact::Expired { standing: action.standing() })
    };
    let open = || Transition {
        when: When::ApprovalOpen,
        ..scene.transition_of(&action, Fact::Declined { reason: "no".into() })
    };
    scene.advance(APPROVAL - MICROSECOND).await;
    assert_eq!(lost(scene.store.transition(expired()).await), action);
    scene.advance(MICROSECOND).await;
    assert_eq!(lost(scene.store.transition(open()).await), action);
    assert_eq!(made(scene.store.transition(expired()).await).state, State::Expired);
}

pub async fn a_transition_decided_on_an_older_row_loses(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 2).await;
    let decided = scene.cancelled_of(&action);
    let moved = made(scene.store.approve(scene.approval(&action, "ben")).await);
    assert_eq!(lost(scene.store.transition(decided).await), moved);
    let cancelled = made(scene.store.transition(scene.cancelled_of(&moved)).await);
    assert_eq!((cancelled.state, cancelled.approvals.len()), (State::Cancelled, 1));
    scene.whole(action.id).await;
}

fn forced(scene: &Scene<'_>, row: &Action, to: State) -> Transition {
    let fact = Fact::Cancelled { standing: Default::default(), reason: "whatever stands".into() };
    let moved = crate::steps::Move { fact, to, by: "nobody".into() };
    let like = Transition { moved, ..scene.transition_of(row, Fact::LedgerRewound) };
    Transition { when: When::Always, ..like }
}

pub async fn break_05_what_stands_outside_is_not_called_cancelled_or_expired(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    let row = made(scene.fail_retryably(&attempt).await);
    assert_eq!(scene.cancelled_of(&row).moved.to, State::FailedTerminal, "so the rules say");
    for to in [State::Cancelled, State::Expired] {
        let refused = scene.store.transition(forced(&scene, &row, to)).await.unwrap_err();
        assert_eq!(refused, StoreError::Constraint { name: "actions_undone_has_no_writes".into() });
    }
    assert_eq!(scene.whole(attempt.action).await, row);
}

pub async fn break_17_an_unknown_is_hidden_behind_no_other_state(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let (row, _) = scene.unknown("k", RecoveryClass::Verifiable).await;
    let refused = scene.store.transition(forced(&scene, &row, State::FailedRetryable)).await.unwrap_err();
    assert_eq!(refused, StoreError::Constraint { name: "actions_unknown_never_hidden".into() });
    assert_eq!(scene.whole(row.id).await, row);
    // Nor does a send in flight disappear with its attempt.
    let attempt = scene.running("in flight").await;
    scene.write(&attempt, 1).await;
    let row = scene.row(attempt.action).await;
    let refused = scene.store.transition(forced(&scene, &row, State::FailedTerminal)).await.unwrap_err();
    assert_eq!(refused, StoreError::Constraint { name: "actions_in_flight_only_executing".into() });
    assert_eq!(scene.whole(row.id).await, row);
}

pub async fn a_lost_worker_is_given_the_attempt_that_is_granted_with_it(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    for (key, grants, left) in [("granted", 1, 1), ("not granted", 0, 0)] {
        let action = scene.propose(NewAction { attempts: 1, ..scene.proposal(key, 0).await }).await;
        let attempt = scene.run(action.id).await;
        let claimed = scene.write(&attempt, 1).await;
        scene.in_time(action.id, claimed.fence, answered(201)).await;
        // The record granted one; the attempt that was to use it is lost, too.
        scene.advance(LEASE.length * 2).await;
        let row = scene.row(action.id).await;
        made(scene.store.transition(scene.worker_lost_of(&row)).await);
        scene.run(action.id).await;
        scene.advance(LEASE.length * 2).await;
        let row = scene.row(action.id).await;
        assert_eq!(row.attempts_left, 0);
        let gone = Transition { grants, ..scene.worker_lost_of(&row) };
        assert_eq!(made(scene.store.transition(gone).await).attempts_left, left, "{key}");
        scene.whole(action.id).await;
    }
}

pub async fn the_last_look_sees_whether_the_attempt_still_holds_the_row(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let live = |fence: countersign_domain::lease::SendFence, id| {
        let scene = &scene;
        async move {
            let look = scene.store.still_live(&scene.tenant, id, fence).await.unwrap();
            assert_eq!(look.now, scene.now().await);
            look.live
        }
    };
    let attempt = scene.running("k").await;
    let claimed = scene.write(&attempt, 1).await;
    let id = attempt.action;
    assert!(live(claimed.fence, id).await);
    for other in [fence(fresh_attempt(), 1, 1), fence(attempt.id, 2, 1), fence(attempt.id, 1, 2)] {
        assert!(!live(other, id).await, "{other:?}");
    }
    let unknown = scene.lose(&attempt, claimed.fence).await;
    assert!(!live(claimed.fence, id).await, "the attempt is over");
    let again = scene.repeat(unknown.id).await;
    let second = made(scene.repeat_write(&again, 1).await);
    assert!(live(second.fence, id).await);
    assert!(!live(claimed.fence, id).await, "another send is out now");
    scene.in_time(id, second.fence, answered(201)).await;
    assert!(!live(second.fence, id).await, "it is recorded");
}
