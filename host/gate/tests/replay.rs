//! A component runs again from its start: what it was shown it is shown again,
//! what did not settle is asked again under its key, and what it asks for
//! differently stops it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use countersign_domain::action::State;
use countersign_domain::effect::{EffectStatus, Refusal};
use countersign_gate::Point;
use serde_json::json;

use crate::rig::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A script that knows which of its runs it is, from 0: the plan.
fn by_run<F, Fut>(body: F) -> Script
where
    F: Fn(Fx, u32) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = countersign_domain::run::Ended> + Send + 'static,
{
    let runs = AtomicU32::new(0);
    Script::new(move |fx| body(fx, runs.fetch_add(1, Ordering::SeqCst)))
}

/// The primary way, and another if that is refused.
fn with_fallback() -> Script {
    Script::new(|fx| async move {
        let primary = fx.post("/primary", "1").await;
        if let Shown::Answer(answer) = &primary {
            return done(json!(["primary", answer.status]));
        }
        done(json!(["fallback", fx.post("/fallback", "1").await.status()]))
    })
}

#[test]
fn p2_break_11_a_refusal_that_was_shown_then_a_fallback_sent_then_a_crash_shows_the_refusal_again() {
    run(async |rig| {
        // Refused while its secret is not there; by the time of the replay it is.
        let grant = GrantText::default()
            .route("POST", "/primary", "provider-idempotent", "[http.headers]\nX-Token = \"{{secret:late}}\"")
            .route("POST", "/fallback", "provider-idempotent", "unplanned = 1");
        rig.install("pays", &grant, with_fallback()).await;
        let id = rig.propose("pays", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::AfterRecord, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.safe.put("late", "a-token-that-came-late");
        rig.crash_and_restart().await;
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"["fallback",200]"#);
        assert_eq!((rig.provider.count("/primary"), rig.provider.count("/fallback")), (0, 1));
    });
}

#[test]
fn p4_a_grant_replaced_after_a_write_changes_nothing_for_the_action_that_began() {
    run(async |rig| {
        // Under its own grant the primary is refused; the new one would allow it.
        let grant = GrantText::default().route("POST", "/fallback", "provider-idempotent", "");
        rig.install("pays", &grant, with_fallback()).await;
        let id = rig.propose("pays", json!({})).await.id;
        assert_eq!(rig.row(id).await.effects, 1, "the refusal is recorded with the plan");
        rig.host().stops.arm(Stop::At(Point::AfterRecord, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.put_grant("pays", &keyed()).await;
        rig.crash_and_restart().await;
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"["fallback",200]"#);
        assert_eq!((rig.provider.count("/primary"), rig.provider.count("/fallback")), (0, 1));
    });
}

#[test]
fn p2_a_grant_and_tool_replaced_between_two_writes_leave_the_action_to_go_on_as_approved() {
    run(async |rig| {
        rig.install("two", &keyed(), writes(2)).await;
        let id = rig.propose("two", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 2));
        let execution = rig.spawn_execute(id, Duration::ZERO);
        rig.host().stops.reached().await;
        rig.install_version("two", "2.0.0", &GrantText::default(), refund()).await;
        rig.clock.advance(20 * MINUTE);
        // The lease ran out in the meantime; a later attempt goes on.
        rig.host().stops.release();
        execution.await.unwrap().unwrap();
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.version.as_str()), (State::Succeeded, "1.0.0"));
        assert_eq!((rig.provider.count("/w/1"), rig.provider.count("/w/2")), (1, 1));
    });
}

#[test]
fn p2_a_replay_that_diverges_before_any_write_ends_cancelled_and_sends_nothing() {
    run(async |rig| {
        let script = by_run(|fx, run| async move {
            fx.get(if run == 0 { "/a" } else { "/b" }).await;
            done(json!(fx.post("/pay", "1").await.status()))
        });
        rig.install("odd", &keyed(), script).await;
        let id = rig.propose("odd", json!({})).await.id;
        let action = ended(rig.execute(id).await);
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "replay_diverged"));
        assert_eq!(rig.provider.all_requests().len(), 1, "the plan's read");
    });
}

#[test]
fn p2_a_replay_that_diverges_over_a_write_that_stands_ends_failed_and_names_it() {
    run(async |rig| {
        let script = by_run(|fx, run| async move {
            let status = fx.post("/pay", if run < 2 { "1" } else { "2" }).await.status();
            done(json!(status))
        });
        rig.install("odd", &keyed(), script).await;
        let id = rig.propose("odd", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::AfterRecord, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.crash_and_restart().await;
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "replay_diverged"));
        assert!(action.error.unwrap().message.contains("effect 1: POST"));
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

#[test]
fn p2_break_7_a_replay_that_diverges_over_an_unknown_write_stays_unknown_and_is_left_to_a_person() {
    run(async |rig| {
        let script = by_run(|fx, run| async move {
            let status = fx.post("/pay", if run < 2 { "1" } else { "2" }).await.status();
            done(json!(status))
        });
        rig.install("odd", &keyed(), script).await;
        rig.provider.next("/pay", Do::LoseReply);
        let id = rig.propose("odd", json!({})).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        let action = rig.until(id, |action| action.attempt.0 == 2 && action.state != State::Executing).await;
        assert_eq!((action.state, row_code(&action)), (State::OutcomeUnknown, "replay_diverged"));
        for _ in 0..5 {
            rig.clock.advance(HOUR);
            rig.tend(false).await;
        }
        let action = rig.row(id).await;
        assert_eq!((action.state, action.attempt.0), (State::OutcomeUnknown, 2));
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

#[test]
fn p2_a_component_that_returns_without_asking_about_its_unknown_write_has_no_result() {
    run(async |rig| {
        let script = by_run(|fx, run| async move {
            if run < 2 {
                fx.post("/pay", "1").await;
            }
            done(json!("done"))
        });
        rig.install("forgets", &keyed(), script).await;
        rig.provider.next("/pay", Do::LoseReply);
        let id = rig.propose("forgets", json!({})).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(action.next_attempt.unwrap().since(action.updated));
        rig.tend(false).await;
        let action = rig.until(id, |action| action.attempt.0 == 2 && action.state != State::Executing).await;
        assert_eq!((action.state, row_code(&action)), (State::OutcomeUnknown, "execution_in_doubt"));
        assert_eq!(rig.settle(id).await.state, State::OutcomeUnknown, "a person has to say");
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

#[test]
fn a_read_after_a_write_is_recorded_and_not_made_again_by_the_next_attempt() {
    run(async |rig| {
        let script = Script::new(|fx| async move {
            fx.post("/pay", "1").await;
            done(fx.get("/stock").await.json())
        });
        rig.install("reads", &keyed(), script).await;
        let id = rig.propose("reads", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeEnd, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.crash_and_restart().await;
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), r#"{"asked":1}"#);
        assert_eq!((rig.provider.requests("/stock").len(), rig.provider.count("/pay")), (1, 1));
    });
}

// ---- try-later ------------------------------------------------------------------

#[test]
fn break_26_try_later_asks_reads_after_the_last_write_again_and_replays_the_write() {
    run(async |rig| {
        let script = Script::new(|fx| async move {
            fx.post("/pay", "1").await;
            let asked = fx.get("/settled").await.json()["asked"].as_u64().unwrap();
            if asked < 3 { try_later("not settled yet") } else { done(json!(asked)) }
        });
        rig.install("waits", &keyed(), script).await;
        let id = rig.propose("waits", json!({})).await.id;
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.result.unwrap().as_str()), (State::Succeeded, "3"));
        assert_eq!((rig.provider.requests("/settled").len(), rig.provider.requests("/pay").len()), (3, 1));
        let history = rig.history(id).await;
        let ordinals: Vec<_> = history.iter().map(|effect| (effect.ordinal.0, effect.set_aside)).collect();
        assert_eq!(ordinals, [(1, false), (2, true), (2, true), (2, false)], "kept for audit");
    });
}

#[test]
fn try_later_after_a_refusal_asks_it_again_and_it_may_pass_by_then() {
    run(async |rig| {
        let secret = "[http.headers]\nX-Token = \"{{secret:late}}\"";
        let grant = GrantText::default().route("POST", "/pay", "manual", secret);
        let script = Script::new(|fx| async move {
            match fx.post("/pay", "1").await {
                Shown::Refused(_) => try_later("not set up yet"),
                Shown::Answer(answer) => done(json!(answer.status)),
            }
        });
        rig.install("waits", &grant, script).await;
        let id = rig.propose("waits", json!({})).await.id;
        let action = rig.attempt(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "tool_try_later"));
        rig.safe.put("late", "a-token-that-came-late");
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.error), (State::Succeeded, None));
        let history: Vec<_> = rig.history(id).await.iter().map(|e| (e.ordinal.0, e.status)).collect();
        assert_eq!(history, [(1, EffectStatus::Failed), (1, EffectStatus::Succeeded)]);
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

/// Tries later on whatever is no success.
fn patient() -> Script {
    Script::new(|fx| async move {
        match fx.post("/pay", "1").await.status() {
            200 => done(json!("paid")),
            status => try_later(&format!("the provider said {status}")),
        }
    })
}

#[test]
fn p2_break_26_try_later_repeats_the_unsuccessful_write_of_a_keyed_route_under_its_key() {
    run(async |rig| {
        for (name, fault) in [("did-not-act", Do::Say(503, &[])), ("acted", Do::ActThenSay(503))] {
            let grant =
                GrantText::default().route("POST", "/**", "provider-idempotent", "on_5xx = \"answer\"");
            rig.install(name, &grant, patient()).await;
            rig.provider.next("/pay", fault);
            let id = rig.propose(name, json!({})).await.id;
            let action = rig.settle(id).await;
            assert_eq!(action.result.unwrap().as_str(), r#""paid""#);
            let effects = rig.effects(id).await;
            assert_eq!((effects.len(), effects[0].ordinal.0, effects[0].send.0), (1, 1, 2));
            let keys: Vec<_> = rig.provider.requests("/pay").into_iter().map(|seen| seen.key).collect();
            assert_eq!(keys[keys.len() - 1], keys[keys.len() - 2]);
        }
        rig.doubles_allowed = true;
        assert_eq!(rig.provider.count("/pay"), 2, "one per action");
    });
}

#[test]
fn p2_break_29_try_later_does_not_set_aside_the_answer_to_a_write_without_keys() {
    run(async |rig| {
        for class in ["manual", "verifiable"] {
            let grant = GrantText::default().route("POST", "/**", class, "on_5xx = \"answer\"");
            rig.install(class, &grant, patient()).await;
            rig.provider.next("/pay", Do::ActThenSay(500));
            let before = rig.provider.requests("/pay").len();
            let id = rig.propose(class, json!({})).await.id;
            let action = rig.settle(id).await;
            assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "retries_exhausted"));
            assert!(action.error.unwrap().message.contains("effect 1: POST"));
            assert_eq!(rig.provider.requests("/pay").len(), before + 1, "{class}");
        }
        rig.doubles_allowed = true;
    });
}

#[test]
fn p2_break_29_outside_the_keys_window_the_answer_that_was_set_aside_stands_again() {
    run(async |rig| {
        let more = "on_5xx = \"answer\"\nkey_retention = \"1h\"";
        let grant = GrantText::default().route("POST", "/**", "provider-idempotent", more);
        rig.install("patient", &grant, patient()).await;
        rig.provider.next("/pay", Do::ActThenSay(503));
        let id = rig.propose("patient", json!({})).await.id;
        rig.attempt(id).await;
        rig.clock.advance(HOUR);
        rig.provider.forget_keys();
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "retries_exhausted"));
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

// ---- the component's own retry ----------------------------------------------------

/// Writes again, by itself, what was answered with a 500.
fn retries_by_itself() -> Script {
    Script::new(|fx| async move {
        let first = fx.post("/pay", "1").await;
        if first.status() != 500 {
            return done(json!([first.status()]));
        }
        let second = fx.post("/pay", "1").await;
        let refused = matches!(second, Shown::Refused(Refusal::MayHaveHappened(_)));
        done(json!([first.status(), second.status(), refused]))
    })
}

#[test]
fn p2_break_30_a_components_own_retry_goes_out_under_the_same_key_and_window_and_is_not_unplanned() {
    run(async |rig| {
        let grant = GrantText::default().route("POST", "/**", "provider-idempotent", "on_5xx = \"answer\"");
        rig.install("retries", &grant, retries_by_itself()).await;
        rig.provider.next("/pay", Do::ActThenSay(500));
        let id = rig.propose("retries", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 2));
        let execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.clock.advance(Duration::from_secs(5));
        rig.host().stops.release();
        let action = ended(execution.await.unwrap());
        assert_eq!(action.result.unwrap().as_str(), "[500,200,false]");
        let requests = rig.provider.requests("/pay");
        assert_eq!((requests.len(), &requests[0].key), (2, &requests[1].key));
        assert_eq!(rig.provider.count("/pay"), 1);
        let effects = rig.effects(id).await;
        assert_eq!(effects[0].first_sent, effects[1].first_sent, "the window began with the first");
        assert!(effects[1].may_have_arrived);
    });
}

#[test]
fn p2_break_30_a_components_own_retry_outside_the_window_of_its_key_is_not_sent() {
    run(async |rig| {
        let more = "on_5xx = \"answer\"\nkey_retention = \"60s\"";
        let grant = GrantText::default().route("POST", "/**", "provider-idempotent", more);
        rig.install("retries", &grant, retries_by_itself()).await;
        rig.provider.next("/pay", Do::ActThenSay(500));
        let id = rig.propose("retries", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 2));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        // Within the lease, and after the window: 60 s less the longest send.
        rig.clock.advance(Duration::from_secs(30));
        rig.provider.forget_keys();
        rig.host().stops.release();
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "retries_exhausted"));
        assert_eq!(rig.provider.requests("/pay").len(), 1);
    });
}

#[test]
fn p2_an_own_retry_that_is_answered_in_flight_is_unknown_until_settled() {
    run(async |rig| {
        let grant = GrantText::default().route("POST", "/**", "provider-idempotent", "on_5xx = \"answer\"");
        rig.install("retries", &grant, retries_by_itself()).await;
        rig.provider.next("/pay", Do::ActThenSay(500));
        rig.provider.next("/pay", Do::Say(409, &[]));
        let id = rig.propose("retries", json!({})).await.id;
        assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
        assert_eq!(rig.effects(id).await[1].status, EffectStatus::Unknown);
        let action = rig.settle(id).await;
        assert_eq!(action.result.unwrap().as_str(), "[500,200,false]");
        assert_eq!(rig.provider.count("/pay"), 1);
    });
}

#[test]
fn p2_an_own_retry_of_a_write_without_keys_is_refused_and_the_refusal_is_replayed() {
    run(async |rig| {
        for class in ["manual", "verifiable"] {
            let grant =
                GrantText::default().route("POST", "/**", class, "on_5xx = \"answer\"\nunplanned = 5");
            rig.install(class, &grant, retries_by_itself()).await;
            rig.provider.next("/pay", Do::ActThenSay(500));
            let before = rig.provider.requests("/pay").len();
            let id = rig.propose(class, json!({})).await.id;
            rig.host().stops.arm(Stop::At(Point::BeforeEnd, 1));
            let _execution = rig.spawn_execute(id, LONG);
            rig.host().stops.reached().await;
            rig.crash_and_restart().await;
            let action = rig.settle(id).await;
            assert_eq!(action.result.unwrap().as_str(), "[500,0,true]");
            assert_eq!(rig.provider.requests("/pay").len(), before + 1, "{class}");
        }
        rig.doubles_allowed = true;
    });
}
