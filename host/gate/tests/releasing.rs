//! A host that is told to stop, and has something running that does not end by
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use countersign_domain::action::State;
use countersign_gate::Gate;
use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{Do, LONG, Script, done, keyed, run, unkeyed};

/// Writes once, then says so and never ends; in its second life it ends.
fn endless(now: Arc<Notify>, writes: bool) -> Script {
    let runs = AtomicU32::new(0);
    Script::new(move |fx| {
        let (run, now) = (runs.fetch_add(1, Ordering::SeqCst), now.clone());
        async move {
            if writes {
                fx.post("/refunds", "1").await;
            }
            // Planning is over with the first write, or is the first run.
            if run == 1 {
                now.notify_one();
                std::future::pending::<()>().await;
            }
            done(json!("ended"))
        }
    })
}

#[test]
fn an_attempt_that_does_not_end_is_given_back_at_the_drains_limit_and_costs_no_attempt() {
    run(async |rig| {
        let now = Arc::new(Notify::new());
        rig.install("endless", &keyed(), endless(now.clone(), true)).await;
        let id = rig.propose("endless", json!({})).await.id;
        let left = rig.row(id).await.attempts_left;
        let _execution = rig.spawn_execute(id, LONG);
        now.notified().await;
        rig.host().run(async move |gate: Gate| gate.drain_within(Duration::ZERO).await).await;
        let row = rig.row(id).await;
        assert_eq!((row.state, row.attempts_left), (State::FailedRetryable, left));
        assert!(rig.facts(id).await.contains(&"released".to_owned()));
        // Its lease is waited for by nobody.
        rig.crash_and_restart().await;
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.requests("/refunds").len(), 1, "what it sent is replayed");
    });
}

#[test]
fn p1_a_send_in_flight_is_finished_and_recorded_before_its_attempt_is_given_back() {
    run(async |rig| {
        let now = Arc::new(Notify::new());
        rig.install("endless", &unkeyed("manual"), endless(now.clone(), true)).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("endless", json!({})).await.id;
        let _execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        let draining = rig.host().spawn(async move |gate: Gate| gate.drain_within(Duration::ZERO).await);
        tokio::task::yield_now().await;
        assert!(!draining.is_finished(), "it waits for the send, whatever the limit");
        rig.provider.release();
        draining.await.unwrap();
        let row = rig.row(id).await;
        assert_eq!((row.state, row.unknown_effects, row.standing_writes), (State::FailedRetryable, 0, 1));
        rig.crash_and_restart().await;
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn within_its_limit_a_drain_lets_everything_end_by_itself() {
    run(async |rig| {
        rig.install("refund", &keyed(), crate::rig::refund()).await;
        rig.provider.next("/refunds", Do::Hold(Box::new(Do::Act)));
        let id = rig.propose("refund", json!({"amount": 5})).await.id;
        let _execution = rig.spawn_execute(id, LONG);
        rig.provider.holds(1).await;
        let draining = rig.host().spawn(async move |gate: Gate| gate.drain_within(LONG).await);
        rig.provider.release();
        draining.await.unwrap();
        assert_eq!(rig.row(id).await.state, State::Succeeded);
    });
}
