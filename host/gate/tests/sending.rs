//! What is known after a send, and what is done about it, by recovery class.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use countersign_domain::action::State;
use countersign_domain::effect::EffectStatus;
use countersign_gate::{Gate, GateError, Point};
use serde_json::json;
use tokio::sync::Notify;

use crate::rig::*;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn p2_a_lost_reply_to_a_keyed_write_is_asked_for_again_under_its_key_and_succeeds_with_one_effect() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        for (n, fault) in [Do::LoseReply, Do::LoseRequest].into_iter().enumerate() {
            rig.provider.next("/refunds", fault);
            let id = rig.propose("refund", amount(u32::try_from(n).unwrap())).await.id;
            assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
            assert_eq!(rig.settle(id).await.state, State::Succeeded);
            let requests: Vec<_> = rig
                .provider
                .requests("/refunds")
                .into_iter()
                .filter(|seen| seen.body == n.to_string())
                .collect();
            assert_eq!(requests.len(), 2);
            assert_eq!(requests[0].key, requests[1].key);
            assert_eq!(requests[0].key.as_deref(), Some(format!("tool-action:{id}:1").as_str()));
            assert_eq!(
                rig.facts(id).await,
                ["proposed", "policy_allowed", "claimed", "outcome_lost", "safe_to_repeat", "succeeded"]
            );
        }
        assert_eq!(rig.provider.count("/refunds"), 2);
    });
}

#[test]
fn p2_p9_a_lost_reply_to_a_manual_or_verifiable_write_waits_visibly_and_is_never_sent_again() {
    run(async |rig| {
        for class in ["manual", "verifiable"] {
            rig.install(
                class,
                &unkeyed(class),
                Script::new(move |fx| async move {
                    done(json!(fx.post(&format!("/{class}"), "1").await.status()))
                }),
            )
            .await;
            rig.provider.next(&format!("/{class}"), Do::LoseReply);
            let id = rig.propose(class, json!({})).await.id;
            match rig.execute(id).await {
                Err(GateError::InDoubt { why, .. }) => assert!(why.contains("effect 1"), "{why}"),
                other => panic!("{other:?}"),
            }
            for _ in 0..5 {
                rig.clock.advance(HOUR);
                rig.tend(false).await;
                assert_eq!(code(rig.execute(id).await), "execution_in_doubt");
            }
            let action = rig.row(id).await;
            assert_eq!((action.state, row_code(&action)), (State::OutcomeUnknown, "execution_in_doubt"));
            assert_eq!(rig.provider.requests(&format!("/{class}")).len(), 1);
        }
    });
}

#[test]
fn p9_actions_that_wait_for_a_person_do_not_stand_in_the_reapers_way() {
    run(async |rig| {
        rig.install("manual", &unkeyed("manual"), refund()).await;
        for cents in 0..120 {
            rig.provider.next("/refunds", Do::LoseReply);
            let id = rig.propose("manual", amount(cents)).await.id;
            assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
        }
        rig.clock.advance(Duration::from_secs(600));
        // More of them than one look takes, all due before what comes now.
        rig.install("refund", &keyed(), refund()).await;
        let mut asked = proposal("refund", amount(500), "k");
        asked.run_by_itself = true;
        let id = rig.try_propose(asked).await.unwrap().action.id;
        rig.clock.advance(Duration::from_secs(1));
        for _ in 0..3 {
            rig.tend(false).await;
        }
        rig.until(id, |action| action.state == State::Succeeded).await;
    });
}

#[test]
fn p2_break_12_a_grant_that_changes_later_does_not_make_an_unknown_manual_write_repeatable() {
    run(async |rig| {
        rig.install("refund", &unkeyed("manual"), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
        rig.put_grant("refund", &keyed()).await;
        rig.crash_and_restart().await;
        rig.clock.advance(HOUR);
        rig.tend(false).await;
        assert_eq!(rig.settle(id).await.state, State::OutcomeUnknown);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

/// Loses the reply, then says this to the first repeat.
async fn repeat_that_says(rig: &mut Rig, cents: u32, says: Do) {
    rig.provider.next("/refunds", Do::LoseReply);
    rig.provider.next("/refunds", says.clone());
    let id = rig.propose("refund", amount(cents)).await.id;
    let action = rig.attempt(id).await;
    assert_eq!(action.state, State::OutcomeUnknown);
    rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
    rig.tend(false).await;
    let action = rig.until(id, |action| action.attempt.0 == 2 && action.state != State::Executing).await;
    assert_eq!(action.state, State::OutcomeUnknown, "{says:?}");
    let effect = &rig.effects(id).await[0];
    assert_eq!(
        (effect.status, effect.send.0, effect.may_have_arrived),
        (EffectStatus::Unknown, 2, true),
        "{says:?}"
    );
    assert_eq!(rig.settle(id).await.state, State::Succeeded, "{says:?}");
    let body = cents.to_string();
    assert_eq!(rig.provider.acted().iter().filter(|acted| acted.body == body).count(), 1, "{says:?}");
}

#[test]
fn p2_break_10_a_repeat_answered_in_flight_or_refused_stays_unknown_until_a_success_settles_it() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        for (cents, status) in (0..).zip([409, 401, 403, 425, 429, 500, 503, 404]) {
            repeat_that_says(rig, cents, Do::Say(status, &[])).await;
        }
        repeat_that_says(rig, 100, Do::LoseRequest).await;
    });
}

#[test]
fn p2_break_10_a_repeat_that_could_not_be_sent_stays_unknown() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        rig.provider.go_down().await;
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        let action = rig.until(id, |action| action.attempt.0 == 2 && action.state != State::Executing).await;
        assert_eq!(action.state, State::OutcomeUnknown);
        rig.provider.come_back();
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

#[test]
fn an_answer_to_a_repeat_that_carries_the_replay_header_settles_it() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        rig.provider.next("/refunds", Do::Say(402, &[("Idempotent-Replayed", "true")]));
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "tool_refused"));
        assert_eq!(rig.effects(id).await[0].answer.as_ref().unwrap().status, 402);
    });
}

#[test]
fn a_retry_after_is_waited_for() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Say(429, &[("Retry-After", "600")]));
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        assert_eq!(action.state, State::OutcomeUnknown);
        assert_eq!(action.next_attempt.unwrap().since(action.updated), Duration::from_secs(600));
        rig.clock.advance(Duration::from_secs(600) - TICK);
        rig.tend(false).await;
        assert_eq!(rig.row(id).await.attempt.0, 1);
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
    });
}

#[test]
fn p2_break_4_the_keys_window_passes_between_plan_and_repeat_claim_and_nothing_is_sent() {
    run(async |rig| {
        let grant =
            GrantText::default().route("POST", "/**", "provider-idempotent", "key_retention = \"1h\"");
        rig.install("refund", &grant, refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        rig.attempt(id).await;
        let end = rig.effects(id).await[0].window_ends().unwrap();
        rig.clock.advance(end.since(rig.row(id).await.updated) - Duration::from_secs(1));
        // Planned and claimed inside the window; the write is claimed outside.
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 1));
        rig.tend(false).await;
        rig.host().stops.reached().await;
        rig.clock.advance(Duration::from_secs(1));
        rig.provider.forget_keys();
        rig.host().stops.release();
        let action = rig.quiet(id).await;
        assert_eq!((action.state, row_code(&action)), (State::OutcomeUnknown, "execution_in_doubt"));
        let action = rig.settle(id).await;
        assert_eq!(action.state, State::OutcomeUnknown, "it waits for a person");
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p2_break_4_the_keys_window_passes_between_repeat_claim_and_first_byte_and_nothing_is_sent() {
    run(async |rig| {
        let grant =
            GrantText::default().route("POST", "/**", "provider-idempotent", "key_retention = \"1h\"");
        rig.install("refund", &grant, refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        rig.attempt(id).await;
        let end = rig.effects(id).await[0].window_ends().unwrap();
        rig.clock.advance(end.since(rig.row(id).await.updated) - Duration::from_secs(1));
        rig.host().stops.arm(Stop::At(Point::BeforeFirstByte, 1));
        rig.tend(false).await;
        rig.host().stops.reached().await;
        rig.clock.advance(Duration::from_secs(1));
        rig.provider.forget_keys();
        rig.host().stops.release();
        assert_eq!(rig.quiet(id).await.state, State::OutcomeUnknown);
        assert_eq!(rig.settle(id).await.state, State::OutcomeUnknown);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p1_a_lease_that_is_shorter_than_the_longest_send_sends_nothing_and_the_write_is_claimed_again() {
    run(async |rig| {
        for class in ["manual", "provider-idempotent"] {
            rig.install(class, &of_class(class), refund()).await;
            let id = rig.propose(class, amount(u32::try_from(class.len()).unwrap())).await.id;
            let before = rig.provider.all_requests().len();
            rig.host().stops.arm(Stop::At(Point::BeforeFirstByte, 1));
            let _execution = rig.spawn_execute(id, Duration::ZERO);
            rig.host().stops.reached().await;
            rig.clock.advance(rig.config.lease.length - Duration::from_secs(30) + TICK);
            rig.host().stops.release();
            let action = rig.quiet(id).await;
            assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "not_sent"));
            assert_eq!(rig.provider.all_requests().len(), before);
            rig.crash_and_restart().await;
            assert_eq!(rig.settle(id).await.state, State::Succeeded);
        }
    });
}

#[test]
fn nothing_was_sent_to_a_provider_that_is_away_and_the_same_key_goes_out_later() {
    run(async |rig| {
        for class in ["manual", "provider-idempotent"] {
            rig.install(class, &of_class(class), refund()).await;
            let id = rig.propose(class, amount(u32::try_from(class.len()).unwrap())).await.id;
            rig.provider.go_down().await;
            let action = rig.attempt(id).await;
            assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "not_sent"));
            let before = &rig.effects(id).await[0];
            assert_eq!((before.status, before.first_sent), (EffectStatus::Failed, None));
            rig.provider.come_back();
            let action = rig.settle(id).await;
            assert_eq!(action.state, State::Succeeded, "{:?}", action.error);
            let after = &rig.effects(id).await[0];
            assert_eq!((&after.provider_key, after.send.0), (&before.provider_key, 2));
        }
        assert_eq!(rig.provider.count("/refunds"), 2);
    });
}

#[test]
fn p9_a_provider_that_stays_away_spends_the_attempts_and_the_action_ends() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.provider.go_down().await;
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "retries_exhausted"));
        assert_eq!(action.attempt.0, rig.config.retry.attempts);
        assert!(action.error.unwrap().message.contains("nothing was sent"));
    });
}

#[test]
fn p9_break_17_repeats_that_settle_nothing_are_bounded_and_then_a_person_is_waited_for() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.reconfigure(|config| config.repeats = 3);
        for _ in 0..8 {
            rig.provider.next("/refunds", Do::LoseReply);
        }
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.repeats_left), (State::OutcomeUnknown, 0));
        assert_eq!(rig.provider.requests("/refunds").len(), 4);
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

#[test]
fn what_a_5xx_means_is_for_the_grant_to_say() {
    run(async |rig| {
        for (n, (class, on_5xx, state)) in [
            ("provider-idempotent", "repeat", State::OutcomeUnknown),
            ("provider-idempotent", "unknown", State::OutcomeUnknown),
            ("provider-idempotent", "answer", State::FailedTerminal),
            ("manual", "unknown", State::OutcomeUnknown),
            ("manual", "answer", State::FailedTerminal),
            ("verifiable", "answer", State::FailedTerminal),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("tool-{n}");
            let grant = GrantText::default().route("POST", "/**", class, &format!("on_5xx = \"{on_5xx}\""));
            rig.install(&name, &grant, refund()).await;
            rig.provider.next("/refunds", Do::Say(503, &[]));
            let id = rig.propose(&name, amount(u32::try_from(n).unwrap())).await.id;
            assert_eq!(rig.attempt(id).await.state, state, "{class} {on_5xx}");
        }
    });
}

#[test]
fn a_429_of_a_provider_without_keys_is_given_to_the_component_as_the_answer() {
    run(async |rig| {
        rig.install("refund", &unkeyed("manual"), refund()).await;
        rig.provider.next("/refunds", Do::Say(429, &[]));
        let id = rig.propose("refund", amount(5)).await.id;
        let action = ended(rig.execute(id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "tool_refused"));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

/// Asks for its write in a task of its own and traps, when told, while it runs.
fn traps_while_sending(now: Arc<Notify>) -> Script {
    let runs = AtomicU32::new(0);
    Script::new(move |fx| {
        // The first run is the plan.
        let (run, now) = (runs.fetch_add(1, Ordering::SeqCst), now.clone());
        async move {
            let sending = tokio::spawn(async move { fx.post("/refunds", "1").await });
            if run == 1 {
                now.notified().await;
                return trapped("unreachable executed");
            }
            done(json!(sending.await.unwrap().status()))
        }
    })
}

#[test]
fn p2_break_2_a_trap_while_the_send_runs_awaits_it_records_its_answer_and_the_action_ends_right() {
    run(async |rig| {
        for class in ["manual", "provider-idempotent"] {
            let now = Arc::new(Notify::new());
            rig.install(class, &of_class(class), traps_while_sending(now.clone())).await;
            rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
            let id = rig.propose(class, json!({})).await.id;
            rig.host().stops.arm(Stop::At(Point::BeforeEnd, 1));
            let _execution = rig.spawn_execute(id, Duration::ZERO);
            rig.provider.holds(1).await;
            now.notify_one();
            // The component is gone; its send is not over, nor is the attempt.
            rig.host().stops.reached().await;
            rig.host().stops.release();
            assert_eq!(rig.cancel(id).await.unwrap().state, State::Executing, "asked, not done");
            rig.provider.release();
            let action = rig.quiet(id).await;
            assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "tool_trapped"));
            assert_eq!(rig.effects(id).await[0].status, EffectStatus::Succeeded);
            // The cancel finds a write that stands.
            let action = rig.settle(id).await;
            assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "cancelled"));
            let message = action.error.unwrap().message;
            assert!(message.contains("effect 1: POST"), "its end names what stands: {message}");
            rig.crash_and_restart().await;
        }
        rig.doubles_allowed = true;
        assert_eq!(rig.provider.count("/refunds"), 2, "one per action");
    });
}

#[test]
fn a_caller_that_goes_away_while_its_action_runs_changes_nothing() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", amount(5)).await.id;
        let execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        execution.abort();
        assert!(execution.await.unwrap_err().is_cancelled());
        rig.provider.release();
        assert_eq!(rig.quiet(id).await.state, State::Succeeded);
        let again = ended(rig.execute(id).await);
        assert_eq!(again.result.unwrap().as_str(), r#"{"refund":"re_1"}"#);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn a_host_that_drains_finishes_its_send_records_it_and_takes_nothing_new() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let (id, other) =
            (rig.propose("refund", amount(5)).await.id, rig.propose("refund", amount(6)).await.id);
        let _execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        let draining = rig
            .host()
            .run(async move |gate: Gate| {
                let mut draining = Box::pin(async move { gate.drain().await });
                assert!(futures::poll!(&mut draining).is_pending(), "it waits for the send");
                // Given back as the task that it is, not awaited here.
                (tokio::spawn(draining),)
            })
            .await
            .0;
        // The caller of another is told at once, long before the send is over.
        assert_eq!(code(rig.spawn_execute(other, LONG).await.unwrap()), "unavailable");
        assert!(!draining.is_finished());
        rig.provider.release();
        draining.await.unwrap();
        assert_eq!(rig.row(id).await.state, State::Succeeded);
        assert_eq!(rig.row(other).await.state, State::Approved);
        rig.crash_and_restart().await;
        assert_eq!(ended(rig.execute(other).await).state, State::Succeeded);
    });
}

#[test]
fn p9_a_read_that_cannot_be_made_costs_an_attempt_and_is_made_later() {
    run(async |rig| {
        let grant = keyed().top("planning = \"none\"\n");
        rig.install("reads", &grant, Script::new(|fx| async move { done(fx.get("/stock").await.json()) }))
            .await;
        let id = rig.propose("reads", json!({})).await.id;
        rig.provider.go_down().await;
        assert_eq!(rig.attempt(id).await.state, State::FailedRetryable);
        rig.provider.come_back();
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"{"asked":1}"#);
    });
}

#[test]
fn p9_a_host_that_panics_while_it_runs_a_tool_ends_the_attempt_and_awaits_its_send() {
    run(async |rig| {
        let now = Arc::new(Notify::new());
        let (told, runs) = (now.clone(), AtomicU32::new(0));
        let script = Script::new(move |fx| {
            let (run, now) = (runs.fetch_add(1, Ordering::SeqCst), told.clone());
            async move {
                let sending = tokio::spawn(async move { fx.post("/refunds", "1").await });
                if run == 1 {
                    now.notified().await;
                    panic!("a bug of whoever runs components");
                }
                done(json!(sending.await.unwrap().status()))
            }
        });
        rig.install("refund", &unkeyed("manual"), script).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", json!({})).await.id;
        let _execution = rig.spawn_execute(id, Duration::ZERO);
        rig.provider.holds(1).await;
        now.notify_one();
        rig.provider.release();
        let action = rig.quiet(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "tool_trapped"));
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}
