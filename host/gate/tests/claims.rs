//! Between the action's claim and a write's: what changed in between, or ran out,
//! sends nothing.

use std::time::Duration;

use countersign_domain::action::State;
use countersign_gate::Point;
use serde_json::json;

use crate::rig::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Stops before the first write claim, does this, and lets it go on.
async fn before_the_first_write(rig: &mut Rig, name: &str, meanwhile: impl AsyncFnOnce(&mut Rig)) -> State {
    let id = rig.propose(name, json!({})).await.id;
    rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 1));
    let _execution = rig.spawn_execute(id, Duration::ZERO);
    rig.host().stops.reached().await;
    meanwhile(rig).await;
    rig.host().stops.release();
    rig.quiet(id).await;
    rig.settle(id).await.state
}

#[test]
fn p1_break_27_what_changes_between_action_claim_and_write_claim_sends_nothing() {
    run(async |rig| {
        let long_lease = |rig: &mut Rig| rig.reconfigure(|config| config.lease.length = HOUR);
        long_lease(rig);
        // A plan's read is no write: it opens nothing (13).
        let copies = || {
            Script::new(|fx| async move {
                let read = fx.get("/stock").await.json();
                done(json!(fx.post("/orders", &read.to_string()).await.status()))
            })
        };
        rig.install("copies", &keyed(), copies()).await;
        let changed = before_the_first_write(rig, "copies", async |rig| {
            rig.put_grant("copies", &keyed().limits("effects = 9")).await;
        });
        assert_eq!(changed.await, State::Cancelled);
        rig.install("expires", &keyed(), copies()).await;
        let expired = before_the_first_write(rig, "expires", async |rig| rig.clock.advance(15 * MINUTE));
        assert_eq!(expired.await, State::Expired);
        assert_eq!(rig.provider.requests("/orders").len(), 0);
    });
}

#[test]
fn p1_break_28_a_write_that_was_not_sent_is_not_claimed_again_once_its_approval_expired_or_policy_changed() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let (late, changed) =
            (rig.propose("refund", amount(1)).await.id, rig.propose("refund", amount(2)).await.id);
        rig.provider.go_down().await;
        for id in [late, changed] {
            assert_eq!(rig.attempt(id).await.state, State::FailedRetryable);
        }
        rig.provider.come_back();
        // Claimed again inside, and the write's claim comes too late.
        let row = rig.row(late).await;
        rig.clock.advance(row.approval_expires.since(row.updated) - Duration::from_secs(1));
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 1));
        let _execution = rig.spawn_execute(late, Duration::ZERO);
        rig.host().stops.reached().await;
        rig.clock.advance(Duration::from_secs(1));
        rig.host().stops.release();
        rig.quiet(late).await;
        assert_eq!(rig.settle(late).await.state, State::Expired);
        rig.put_grant("refund", &keyed().limits("effects = 9")).await;
        assert!(matches!(rig.settle(changed).await.state, State::Cancelled | State::Expired));
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn a_write_after_the_execution_deadline_is_not_sent_and_the_end_says_so_and_names_what_stands() {
    run(async |rig| {
        let grant = keyed().approval("required = 0\nexpires_after = \"1m\"\nexecution_deadline = \"10m\"");
        rig.install("two", &grant, writes(2)).await;
        rig.reconfigure(|config| config.lease.length = HOUR);
        let id = rig.propose("two", json!({})).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeWriteClaim, 2));
        let execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        rig.clock.advance(10 * MINUTE);
        rig.host().stops.release();
        let action = ended(execution.await.unwrap());
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "deadline_passed"));
        assert!(action.error.unwrap().message.contains("/w/1 (200)"));
        assert_eq!(rig.provider.count("/w/2"), 0);
    });
}

#[test]
fn an_unknown_write_is_asked_about_after_the_deadline_too() {
    run(async |rig| {
        let grant = keyed().approval("required = 0\nexpires_after = \"1m\"\nexecution_deadline = \"10m\"");
        rig.install("refund", &grant, refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
        rig.clock.advance(HOUR);
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}
