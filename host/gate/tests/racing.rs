//! Many at once, many hosts, lost words: one runs, the others get its result.

use std::time::Duration;

use countersign_domain::action::State;
use countersign_gate::execute::Execution;
use countersign_gate::{Gate, Point};
use serde_json::json;

use crate::rig::*;
use crate::windows::tell_the_truth;

#[test]
fn p3_sixty_four_executes_at_once_make_one_request_and_get_the_same_bytes() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", amount(5)).await.id;
        let second = rig.another_host();
        let executions: Vec<_> = (0..64)
            .map(|n| {
                let host = if n % 2 == 0 { rig.host() } else { &second };
                host.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await)
            })
            .collect();
        rig.provider.holds(1).await;
        rig.provider.release();
        let mut winners = 0;
        for execution in executions {
            match execution.await.unwrap().unwrap() {
                Execution::Ended { action, replayed } => {
                    winners += u32::from(!replayed);
                    assert_eq!(action.result.unwrap().as_str(), r#"{"refund":"re_1"}"#);
                }
                Execution::Running(action) => panic!("{action:?}"),
            }
        }
        assert_eq!(winners, 1);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
        assert_eq!(rig.facts(id).await, ["proposed", "policy_allowed", "claimed", "succeeded"]);
    });
}

#[test]
fn p3_losers_wait_for_the_winner_and_are_told_that_it_runs_when_their_time_is_up() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", amount(5)).await.id;
        let winner = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        let hasty = rig.spawn_execute(id, Duration::ZERO).await.unwrap().unwrap();
        assert!(matches!(hasty, Execution::Running(action) if action.state == State::Executing));
        let patient = rig.spawn_execute(id, LONG);
        rig.provider.release();
        let (winner, patient) = (ended(winner.await.unwrap()), ended(patient.await.unwrap()));
        assert_eq!(winner.result, patient.result);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p3_callers_of_an_action_in_doubt_that_settles_itself_wait_and_get_its_result() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        let waiting = rig.spawn_execute(id, LONG);
        let action = rig.until(id, |action| action.state == State::OutcomeUnknown).await;
        let hasty = rig.spawn_execute(id, Duration::ZERO).await.unwrap();
        assert_eq!(code(hasty), "execution_in_doubt");
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        assert_eq!(ended(waiting.await.unwrap()).state, State::Succeeded);
    });
}

#[test]
fn an_execute_that_waits_for_a_place_is_told_so_and_runs_nothing() {
    run(async |rig| {
        rig.reconfigure(|config| config.concurrent_attempts = 1);
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let (one, other) =
            (rig.propose("refund", amount(1)).await.id, rig.propose("refund", amount(2)).await.id);
        let first = rig.spawn_execute(one, LONG);
        rig.provider.holds(1).await;
        assert_eq!(code(rig.spawn_execute(other, Duration::ZERO).await.unwrap()), "unavailable");
        assert_eq!(rig.row(other).await.state, State::Approved);
        let second = rig.spawn_execute(other, LONG);
        rig.provider.release();
        assert_eq!(ended(first.await.unwrap()).state, State::Succeeded);
        assert_eq!(ended(second.await.unwrap()).state, State::Succeeded);
    });
}

#[test]
fn p2_break_5_a_cancel_while_a_send_runs_awaits_it_and_a_write_that_stands_is_not_called_cancelled() {
    run(async |rig| {
        rig.install("two", &keyed(), writes(2)).await;
        rig.provider.next("/w/1", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("two", json!({})).await.id;
        let execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        assert_eq!(rig.cancel(id).await.unwrap().state, State::Executing);
        assert_eq!(rig.cancel(id).await.unwrap().state, State::Executing, "asking twice is asking once");
        rig.provider.release();
        let action = ended(execution.await.unwrap());
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "cancelled"));
        assert!(action.error.unwrap().message.contains("/w/1 (200)"));
        assert_eq!((rig.provider.count("/w/1"), rig.provider.requests("/w/2").len()), (1, 0));
    });
}

#[test]
fn a_cancel_before_the_first_write_ends_cancelled_and_sends_nothing() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 1));
        let execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.cancel(id).await.unwrap();
        rig.host().stops.release();
        let action = ended(execution.await.unwrap());
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "cancelled"));
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn p9_a_cancel_whose_worker_died_is_carried_out_by_the_reaper() {
    run(async |rig| {
        rig.install("two", &keyed(), writes(2)).await;
        for (point, nth, state) in
            [(Point::AfterClaim, 1, State::Cancelled), (Point::BeforeWriteClaim, 2, State::FailedTerminal)]
        {
            let id =
                rig.try_propose(proposal("two", json!({}), &format!("{point:?}"))).await.unwrap().action.id;
            rig.host().stops.arm(Stop::At(point, nth));
            let _execution = rig.spawn_execute(id, LONG);
            rig.host().stops.reached().await;
            rig.cancel(id).await.unwrap();
            rig.crash_and_restart().await;
            let action = rig.settle(id).await;
            assert_eq!((action.state, row_code(&action)), (state, "cancelled"));
        }
    });
}

#[test]
fn a_component_that_only_reads_hears_a_cancel_by_its_heartbeat_and_starts_no_further_effect() {
    run(async |rig| {
        rig.config.lease.length = Duration::from_millis(60);
        // Would read for long after it was cancelled.
        let reads = Script::new(|fx| async move {
            for _ in 0..200 {
                fx.get("/stock").await;
            }
            done(json!("read it all"))
        });
        let grant = keyed().top("planning = \"none\"\n").limits("effects = 250");
        rig.install("reads", &grant, reads).await;
        let store = Faulty::new(rig.store().clone());
        let host = rig.host_over(store.clone());
        let id = rig.propose("reads", json!({})).await.id;
        rig.provider.next("/stock", Do::Hold(Box::new(Do::Act)));
        let execution = host.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
        rig.provider.holds(1).await;
        store.heartbeat_that_finds_it(true).await;
        let stopped = store.heartbeat_that_finds_it(false);
        rig.cancel(id).await.unwrap();
        stopped.await;
        rig.provider.release();
        let action = ended(execution.await.unwrap());
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "cancelled"));
        assert!(rig.provider.requests("/stock").len() < 200);
    });
}

#[test]
fn p9_with_every_wake_up_lost_waiters_and_workers_go_on_by_polling() {
    run(async |rig| {
        let deaf = Faulty::new(rig.store().clone());
        deaf.go_deaf();
        rig.config.reap_every = Duration::from_millis(20);
        let worker = rig.host_over(deaf.clone());
        let waiter = rig.host_over(deaf);
        rig.install("refund", &keyed(), refund()).await;
        let tending = worker.spawn(async move |gate: Gate| gate.keep_tending(false).await);
        let mut asked = proposal("refund", amount(5), "k");
        asked.run_by_itself = true;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.try_propose(asked).await.unwrap().action.id;
        rig.provider.holds(1).await;
        let waiting = waiter.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
        let watching = waiter.spawn(async move |gate: Gate| gate.wait(&tenant(), id, LONG).await);
        rig.provider.release();
        assert_eq!(ended(waiting.await.unwrap()).state, State::Succeeded);
        assert!(watching.await.unwrap().unwrap().state.is_terminal());
        worker.run(async move |gate: Gate| gate.drain().await).await;
        tending.await.unwrap();
    });
}

#[test]
fn a_host_that_opened_its_store_leaves_the_attempts_it_runs_itself_alone() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", amount(5)).await.id;
        let execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        rig.tend(true).await;
        assert_eq!(rig.row(id).await.state, State::Executing);
        rig.provider.release();
        assert_eq!(ended(execution.await.unwrap()).attempt.0, 1);
    });
}

/// Two writes and a read between them, with the n-th step of the store failing.
fn every_step_fails(class: &'static str, fails: Fails) {
    run(async |rig| {
        let script = Script::new(|fx| async move {
            let run = fx.arguments()["amount"].to_string();
            let first = fx.post("/w/1", &run).await.status();
            fx.get("/stock").await;
            let second = fx.post("/w/2", &run).await.status();
            done(json!([first, second]))
        });
        rig.install("two", &of_class(class), script).await;
        let store = Faulty::new(rig.store().clone());
        let host = rig.host_over(store.clone());
        let mut failed = Vec::new();
        for n in 1.. {
            let run = u32::try_from(n).unwrap();
            let id = rig.propose("two", amount(run)).await.id;
            store.arm(n, fails);
            let _ = host
                .run(async move |gate: Gate| gate.execute(&tenant(), id, Duration::from_millis(1)).await)
                .await;
            host.run(async move |gate: Gate| {
                // Every attempt of this host is over once no place is taken.
                while gate.running() > 0 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            let Some(step) = store.failed() else {
                assert_eq!(rig.row(id).await.state, State::Succeeded);
                break;
            };
            failed.push(step);
            rig.clock.advance(rig.config.lease.length * 2);
            rig.tend(false).await;
            let mut action = rig.settle(id).await;
            while action.state == State::OutcomeUnknown {
                assert_ne!(class, "provider-idempotent", "{step} {fails:?}");
                action = tell_the_truth(rig, action).await;
            }
            assert_eq!(action.state, State::Succeeded, "{class} {step} {fails:?}: {:?}", action.error);
            let acted = rig.provider.acted();
            assert_eq!(
                acted.iter().filter(|one| one.body == run.to_string()).count(),
                2,
                "{class} {step} {fails:?}"
            );
        }
        let all = [
            "claim_action",
            "claim_write",
            "record_send",
            "record_settled",
            "claim_write",
            "record_send",
            "end_attempt",
        ];
        assert_eq!(failed, all);
    });
}

#[test]
fn p2_a_store_that_fails_at_any_step_of_keyed_writes_loses_and_doubles_nothing() {
    every_step_fails("provider-idempotent", Fails::Before);
}

#[test]
fn p2_a_commit_whose_word_is_lost_at_any_step_of_keyed_writes_loses_and_doubles_nothing() {
    every_step_fails("provider-idempotent", Fails::After);
}

#[test]
fn p2_a_store_that_fails_at_any_step_of_manual_writes_loses_and_doubles_nothing() {
    every_step_fails("manual", Fails::Before);
}

#[test]
fn p2_a_commit_whose_word_is_lost_at_any_step_of_manual_writes_loses_and_doubles_nothing() {
    every_step_fails("manual", Fails::After);
}

#[test]
fn a_late_answer_that_settles_its_own_send_brings_the_action_on_at_once() {
    run(async |rig| {
        rig.install("refund", &unkeyed("manual"), refund()).await;
        rig.provider.next("/refunds", Do::HoldAnswer);
        let id = rig.propose("refund", amount(5)).await.id;
        let frozen = rig.another_host();
        let _execution = frozen.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
        rig.provider.holds(1).await;
        rig.clock.advance(rig.config.lease.length * 2);
        rig.tend(false).await;
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        rig.provider.release();
        rig.until(id, |action| action.state == State::FailedRetryable).await;
        let action = rig.settle(id).await;
        assert_eq!(action.state, State::Succeeded);
        assert!(rig.facts(id).await.contains(&"found_done".to_owned()));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p2_break_31_an_answer_about_an_earlier_send_that_arrives_after_a_later_one_became_unknown_is_stale() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::HoldAnswer);
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        let slow = rig.another_host();
        let _execution = slow.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
        rig.provider.holds(1).await;
        rig.clock.advance(rig.config.lease.length * 2);
        rig.tend(false).await;
        let action = rig.row(id).await;
        assert_eq!(action.state, State::OutcomeUnknown);
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        let second = |action: &countersign_domain::action::Action| action.attempt.0 == 2;
        rig.until(id, |action| second(action) && action.state == State::OutcomeUnknown).await;
        let before = rig.row(id).await;
        rig.provider.release();
        slow.run(async move |gate: Gate| gate.drain().await).await;
        assert_eq!(rig.row(id).await, before, "nothing moved");
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!((rig.provider.requests("/refunds").len(), rig.provider.count("/refunds")), (3, 1));
    });
}

#[test]
fn p2_break_33_a_late_in_flight_to_a_repeat_settles_nothing() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Say(409, &[]))));
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        let slow = rig.another_host();
        slow.run(async move |gate: Gate| gate.tend(false).await.unwrap()).await;
        rig.provider.holds(1).await;
        // Its lease runs out while the repeat is being answered.
        rig.clock.advance(rig.config.lease.length * 2);
        rig.tend(false).await;
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        rig.provider.release();
        slow.run(async move |gate: Gate| gate.drain().await).await;
        let action = rig.row(id).await;
        assert_eq!((action.state, action.unknown_effects), (State::OutcomeUnknown, 1));
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"{"refund":"re_1"}"#);
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

#[test]
fn p2_the_same_action_offered_to_many_workers_is_claimed_once() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let hosts: Vec<_> = (0..4).map(|_| rig.another_host()).collect();
        for cents in 0..10 {
            let mut asked = proposal("refund", amount(cents), &format!("k{cents}"));
            asked.run_by_itself = true;
            let id = rig.try_propose(asked).await.unwrap().action.id;
            let looks =
                hosts.iter().map(|host| host.run(async move |gate: Gate| gate.tend(false).await.unwrap()));
            futures::future::join_all(looks).await;
            rig.until(id, |action| action.state == State::Succeeded).await;
            assert_eq!(rig.facts(id).await, ["proposed", "policy_allowed", "claimed", "succeeded"]);
        }
        assert_eq!(rig.provider.requests("/refunds").len(), 10);
    });
}

#[test]
fn p1_p2_a_write_claim_that_races_the_reaper_at_the_leases_last_instant_has_one_winner() {
    run(async |rig| {
        rig.install("refund", &unkeyed("manual"), refund()).await;
        for (cents, before) in (0..).zip([TICK, Duration::ZERO].into_iter().cycle().take(12)) {
            let id = rig.propose("refund", amount(cents)).await.id;
            let host = rig.another_host();
            host.stops.arm(Stop::At(Point::BeforeWriteClaim, 1));
            let _execution = host.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
            host.stops.reached().await;
            let lease = rig.row(id).await.lease_expires.unwrap();
            rig.clock.advance(lease.since(rig.row(id).await.updated) - before);
            host.stops.release();
            rig.tend(false).await;
            let action = rig.quiet(id).await;
            // One tick before its end the lease is alive and the claim extends
            // it; at its end it is over, whoever comes first.
            let state = if before == TICK { State::Succeeded } else { State::FailedRetryable };
            assert_eq!(action.state, state);
            host.run(async move |gate: Gate| gate.drain().await).await;
            assert_eq!(rig.settle(id).await.state, State::Succeeded);
            assert_eq!(rig.provider.requests("/refunds").len(), usize::try_from(cents).unwrap() + 1);
        }
    });
}

#[test]
fn a_heartbeat_keeps_the_lease_of_an_attempt_that_lives() {
    run(async |rig| {
        rig.config.lease.length = Duration::from_millis(60);
        rig.install(
            "reads",
            &keyed().top("planning = \"none\"\n"),
            Script::new(|fx| async move { done(fx.get("/slow").await.json()) }),
        )
        .await;
        let store = Faulty::new(rig.store().clone());
        let host = rig.host_over(store.clone());
        let id = rig.propose("reads", json!({})).await.id;
        rig.provider.next("/slow", Do::Hold(Box::new(Do::Act)));
        let execution = host.spawn(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await);
        rig.provider.holds(1).await;
        for _ in 0..3 {
            rig.clock.advance(Duration::from_millis(50));
            // The first may have been on its way before the clock moved.
            store.heartbeat_that_finds_it(true).await;
            store.heartbeat_that_finds_it(true).await;
            rig.tend(false).await;
            assert_eq!(rig.row(id).await.state, State::Executing);
        }
        rig.provider.release();
        assert_eq!(ended(execution.await.unwrap()).attempt.0, 1);
    });
}

#[test]
fn p4_a_row_that_somebody_edited_after_its_approval_runs_nothing() {
    run(async |rig| {
        rig.install("two", &keyed(), writes(2)).await;
        let store = Faulty::new(rig.store().clone());
        let host = rig.host_over(store.clone());
        let edits: [fn(&mut countersign_domain::action::Action); 4] = [
            |action| action.arguments = arguments(&json!({"amount": 10_000})),
            |action| {
                action.plan =
                    arguments(&json!({"first_write": null, "may_follow": [], "stopped_early": false}))
            },
            |action| action.version = "9.9.9".into(),
            |action| action.actor = principal("somebody"),
        ];
        for (n, edit) in edits.into_iter().enumerate() {
            let id = rig.propose("two", json!({"n": n})).await.id;
            store.tamper(edit);
            let action =
                ended(host.run(async move |gate: Gate| gate.execute(&tenant(), id, LONG).await).await);
            assert_eq!((action.state, row_code(&action)), (State::Cancelled, "action_changed"), "edit {n}");
        }
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn a_component_that_cannot_be_loaded_costs_an_attempt_and_is_run_once_it_is_back() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.shelf.lose("refund", "1.0.0");
        let action = rig.attempt(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "unavailable"));
        rig.shelf.put("refund", "1.0.0", refund());
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
    });
}
