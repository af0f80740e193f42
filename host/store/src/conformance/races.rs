//! Many at once. Whoever wins, exactly one does, and the chain is whole.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::event::verify;
use countersign_domain::grant::RecoveryClass;

use super::Backend;
use super::scene::{APPROVAL, Attempt, LEASE, MICROSECOND, Scene, answered, made};
use crate::steps::{ClaimKind, NewAction, SendResult, Step, Transition, When};

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same on every machine.
struct Dice(u64);

/// So many, or five times as many where there is time for it.
#[expect(clippy::disallowed_methods, reason = "how the nightly run asks for larger numbers")]
fn rounds(usual: u32) -> u32 {
    if std::env::var_os("COUNTERSIGN_LONG").is_some() { usual * 5 } else { usual }
}

impl Dice {
    /// From `COUNTERSIGN_SEED`, or anew; printed, so that a failure can be run again.
    fn thrown(test: &str) -> Dice {
        let fresh = || u64::from_le_bytes(uuid::Uuid::new_v4().as_bytes()[..8].try_into().unwrap());
        #[expect(clippy::disallowed_methods, reason = "only how a test is run again")]
        let seed =
            std::env::var("COUNTERSIGN_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh);
        println!("{test}: COUNTERSIGN_SEED={seed}");
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n as u64)).unwrap()
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n + 1));
        }
    }
}

pub async fn approve_decline_cancel_and_expire_at_once_have_one_winner(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut dice = Dice::thrown("approve_decline_cancel_and_expire_at_once_have_one_winner");
    let mut wins = [0u32; 4];
    for round in 0..rounds(2000) {
        let action = scene.awaiting(&format!("k{round}"), 1).await;
        scene.advance_to(action.approval_expires, MICROSECOND).await;
        let declined = Transition {
            when: When::ApprovalOpen,
            ..scene.transition_of(&action, Fact::Declined { reason: "no".into() })
        };
        let expired = Transition {
            when: When::ApprovalExpired,
            ..scene.transition_of(&action, Fact::Expired { standing: action.standing() })
        };
        let approval = scene.approval(&action, "ben");
        let cancelled = scene.cancelled_of(&action);

        // Each in turn is ahead of the others now and then, so that each wins
        // whatever the machine is doing; what is asked is asked of every round.
        let ahead = (round % 8) as usize;
        let mut winners = Vec::new();
        if ahead < 4 {
            if ahead == 3 {
                scene.advance(MICROSECOND).await;
            }
            let step = match ahead {
                0 => scene.store.approve(approval.clone()).await,
                1 => scene.store.transition(declined.clone()).await,
                2 => scene.store.transition(cancelled.clone()).await,
                _ => scene.store.transition(expired.clone()).await,
            };
            winners.push((ahead, made(step)));
        }

        // In any order, some of them a turn later, and time runs out among them.
        let mut order = [0, 1, 2, 3, 4];
        dice.shuffle(&mut order);
        let mut tasks = tokio::task::JoinSet::new();
        for who in order.into_iter().filter(|who| *who != ahead) {
            let (store, hesitates) = (scene.store.clone(), dice.below(3));
            let (approval, declined) = (approval.clone(), declined.clone());
            let (cancelled, expired) = (cancelled.clone(), expired.clone());
            if who == 4 {
                scene.advance(MICROSECOND).await;
                continue;
            }
            tasks.spawn(async move {
                for _ in 0..hesitates {
                    tokio::task::yield_now().await;
                }
                let step = match who {
                    0 => store.approve(approval).await,
                    1 => store.transition(declined).await,
                    2 => store.transition(cancelled).await,
                    _ => store.transition(expired).await,
                };
                match step.unwrap() {
                    Step::Made(row) => Some((who, row)),
                    Step::Lost(row) => {
                        // A loser sees who won, or that it came too early or late.
                        assert!(row.event_seq == 3 || row.state == State::AwaitingApproval);
                        None
                    }
                }
            });
        }
        winners.extend(tasks.join_all().await.into_iter().flatten());
        assert!(winners.len() <= 1, "round {round}: {winners:?}");
        let row = scene.row(action.id).await;
        let Some((who, won)) = winners.into_iter().next() else {
            // Approve and decline came too late, the reaper too early; a cancel
            // never does.
            panic!("round {round}: nobody won, it is {}", row.state);
        };
        wins[who] += 1;
        assert_eq!(row, won);
        let expected = [State::Approved, State::Cancelled, State::Cancelled, State::Expired][who];
        assert_eq!(row.state, expected);
        let events = scene.events(action.id).await;
        assert_eq!(events.len(), 3);
        verify(&scene.tenant, action.id, &events, row.state).unwrap();
    }
    assert!(wins.iter().all(|wins| *wins > 50), "each wins now and then: {wins:?}");
}

pub async fn two_hundred_claimers_of_a_thousand_actions_have_a_thousand_winners(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut dice = Dice::thrown("two_hundred_claimers_of_a_thousand_actions_have_a_thousand_winners");
    let mut ids = Vec::new();
    for n in 0..1000 {
        ids.push(scene.approved(&format!("k{n}")).await.id);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        dice.shuffle(&mut ids);
        let claims: Vec<_> = ids.iter().map(|id| scene.claim_of(*id, ClaimKind::Run)).collect();
        let store = scene.store.clone();
        tasks.spawn(async move {
            let mut won = 0;
            for claim in claims {
                won += usize::from(matches!(store.claim_action(claim).await.unwrap(), Step::Made(_)));
            }
            won
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 1000);
    for id in ids {
        let row = scene.row(id).await;
        assert_eq!((row.state, row.attempt.0, row.event_seq), (State::Executing, 1, 3));
    }
}

pub async fn workers_reaper_and_people_at_random_leave_every_chain_whole(backend: &dyn Backend) {
    let scene = Arc::new(Scene::new(backend).await);
    let mut dice = Dice::thrown("workers_reaper_and_people_at_random_leave_every_chain_whole");
    let mut ids = Vec::new();
    for n in 0..30 {
        let approvals = u32::try_from(n % 3).unwrap();
        let new =
            NewAction { run_by_itself: n % 2 == 0, ..scene.proposal(&format!("k{n}"), approvals).await };
        ids.push(scene.propose(new).await.id);
    }
    // Everybody walks at random; what they hold may be long out of date.
    let mut held: Vec<(Attempt, u32)> = Vec::new();
    for _ in 0..rounds(4000) {
        let id = ids[dice.below(ids.len())];
        let old_row = scene.row(id).await;
        match dice.below(12) {
            0 => {
                let by = format!("approver-{}", dice.below(3));
                scene.store.approve(scene.approval(&old_row, &by)).await.unwrap();
            }
            1 | 2 => {
                let kind = if dice.below(2) == 0 { ClaimKind::Run } else { ClaimKind::Repeat };
                if let Step::Made(claimed) = scene.claim(id, kind).await.unwrap() {
                    let ordinal = u32::try_from(claimed.effects.len()).unwrap();
                    held.push((Attempt { action: id, id: claimed.action.attempt_id.unwrap() }, ordinal));
                }
            }
            3..=6 if !held.is_empty() => {
                let at = dice.below(held.len());
                let (attempt, last) = &mut held[at];
                let class = if dice.below(2) == 0 {
                    RecoveryClass::Manual
                } else {
                    RecoveryClass::ProviderIdempotent
                };
                let claimed = if *last > 0 && dice.below(2) == 0 {
                    scene
                        .repeat_write(attempt, 1 + u32::try_from(dice.below(*last as usize)).unwrap())
                        .await
                        .unwrap()
                } else {
                    let step = scene.store.claim_write(scene.write_of(attempt, *last + 1, class)).await;
                    // A zombie may name a place that is taken.
                    let Ok(step) = step else { continue };
                    step
                };
                let Step::Made(claimed) = claimed else { continue };
                *last = (*last).max(claimed.fence.ordinal.0);
                match dice.below(4) {
                    0 => drop(scene.record(attempt.action, claimed.fence, SendResult::NotSent).await),
                    1 | 2 => drop(scene.record(attempt.action, claimed.fence, answered(200)).await),
                    _ => {
                        let after = Some(Duration::from_secs(1));
                        let end = scene.outcome_lost_of(attempt, Some(claimed.fence), after);
                        scene.store.end_attempt(end).await.unwrap();
                        // The answer may still come.
                        if dice.below(2) == 0 {
                            scene.record(attempt.action, claimed.fence, answered(201)).await;
                        }
                    }
                }
            }
            7 if !held.is_empty() => {
                let (attempt, _) = &held[dice.below(held.len())];
                match dice.below(3) {
                    0 => drop(scene.fail_retryably(attempt).await.unwrap()),
                    1 => drop(scene.store.end_attempt(scene.success_of(attempt, "{}").await).await.unwrap()),
                    _ => drop(
                        scene
                            .store
                            .heartbeat(&scene.tenant, attempt.action, attempt.id, LEASE)
                            .await
                            .unwrap(),
                    ),
                }
            }
            8 => drop(scene.store.request_cancel(&scene.tenant, id, "no more").await.unwrap()),
            9 => {
                // The reaper, on a row that it read a while ago.
                let expired = when_expired(&scene, &old_row);
                scene.advance(Duration::from_secs(dice.next() % 20)).await;
                if let Some(step) = expired {
                    scene.store.transition(step).await.unwrap();
                }
            }
            10 => {
                for effect in scene.store.effects(&scene.tenant, id, false).await.unwrap() {
                    let fence = super::scene::fence(effect.attempt, effect.ordinal.0, effect.send.0);
                    if old_row.state != State::OutcomeUnknown {
                        continue;
                    }
                    let word = if dice.below(2) == 0 {
                        scene.found_done_of(&old_row, fence)
                    } else {
                        scene.found_not_done_of(&old_row, fence)
                    };
                    scene.store.resolve(word).await.unwrap();
                }
            }
            _ => {
                if old_row.state == State::AwaitingApproval && dice.below(8) == 0 {
                    scene.store.transition(scene.cancelled_of(&old_row)).await.unwrap();
                }
            }
        }
        if dice.below(8) == 0 {
            scene.whole(id).await;
        }
    }
    let mut ends = std::collections::BTreeSet::new();
    for id in ids {
        ends.insert(scene.whole(id).await.state);
    }
    assert!(ends.len() >= 3, "the walk went nowhere: {ends:?}");
    // And nothing is stuck: everything that has not ended is due at some time,
    // or waits for a person.
    scene.advance(APPROVAL * 100).await;
    let due: Vec<_> =
        scene.store.due(1000, false).await.unwrap().into_iter().map(|due| due.action.id).collect();
    for (state, id) in scene
        .store
        .actions(&scene.tenant, crate::steps::ListActions { limit: 100, ..Default::default() })
        .await
        .unwrap()
        .iter()
        .map(|row: &Action| (row.state, row.id))
    {
        let waits = state == State::OutcomeUnknown;
        assert!(state.is_terminal() || waits || due.contains(&id), "{id} is {state} and nobody's");
    }
}

fn when_expired(scene: &Scene<'_>, row: &Action) -> Option<Transition> {
    match row.state {
        State::AwaitingApproval | State::Approved => Some(Transition {
            when: When::ApprovalExpired,
            ..scene.transition_of(row, Fact::Expired { standing: row.standing() })
        }),
        State::Executing if !row.standing().open => Some(scene.worker_lost_of(row)),
        State::Executing => {
            let ordinal = row.in_flight.unwrap_or(countersign_domain::id::Ordinal(1));
            let fact = Fact::OutcomeLost { ordinal, why: "the lease ran out".into() };
            Some(Transition {
                when: When::LeaseExpired,
                in_flight_becomes_unknown: true,
                next_attempt_after: Some(Duration::ZERO),
                ..scene.transition_of(row, fact)
            })
        }
        _ => None,
    }
}
