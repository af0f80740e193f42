//! What one tenant, tool or actor may take up, and what those are told who want
//! more.

use countersign_domain::action::State;
use countersign_gate::quota::{Quota, Quotas};
use countersign_gate::{Gate, GateError};
use countersign_store::Registry as _;
use serde_json::json;

use crate::rig::*;

#[track_caller]
fn over(error: &GateError) -> &str {
    let GateError::QuotaExceeded { quota, retry_after, .. } = error else { panic!("{error:?}") };
    assert_eq!(error.code(), "quota_exceeded");
    assert!(!retry_after.is_zero());
    assert!(error.to_string().contains(quota) && error.to_string().contains("operator"), "{error}");
    quota
}

#[test]
fn i02_a_thousand_proposals_at_once_are_twenty_pending_and_the_rest_are_told_so() {
    run(async |rig| {
        rig.reconfigure(|config| {
            config.quotas = Quotas::of(Quota { pending_actor: 20, ..Quota::unlimited() });
        });
        rig.install("refund", &keyed().approval("required = 1"), refund()).await;
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let proposal = proposal("refund", amount(n), &format!("key-{n}"));
                rig.host().spawn(async move |gate: Gate| gate.propose(proposal).await)
            })
            .collect();
        let mut ids = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Ok(proposed) => ids.push(proposed.action.id),
                Err(error) => assert_eq!(over(&error), "pending.actor"),
            }
        }
        assert_eq!(ids.len(), 20, "exactly as many as may, however many come at once");
        let pending = {
            let agent = principal("agent");
            rig.store().pending(&tenant(), &tool("refund"), &agent, &agent).await.unwrap()
        };
        assert_eq!(pending.actor, 20);
        // The same key finds its action, and costs nothing of the quota.
        let again = rig.row(ids[0]).await;
        let amount = again.arguments.value();
        let key = format!("key-{}", amount["amount"]);
        assert!(rig.try_propose(proposal("refund", amount, &key)).await.unwrap().replayed);
        // Another actor has their own; a decision makes room for one.
        let mut other = proposal("refund", json!({"amount": 7000}), "other");
        other.actor = principal("somebody");
        rig.try_propose(other).await.unwrap();
        assert!(rig.try_propose(proposal("refund", json!({"amount": 7001}), "full")).await.is_err());
        rig.decline(ids[0], "ben").await.unwrap();
        rig.try_propose(proposal("refund", json!({"amount": 7002}), "room")).await.unwrap();
    });
}

#[test]
fn i01_tools_and_tenants_have_limits_of_their_own_and_what_needs_nobody_is_not_pending() {
    run(async |rig| {
        rig.reconfigure(|config| {
            config.quotas = Quotas::of(Quota { pending_tool: 2, pending_tenant: 3, ..Quota::unlimited() });
        });
        let asks = keyed().approval("required = 1");
        rig.install("refund", &asks, refund()).await;
        rig.install("other", &asks, refund()).await;
        rig.install("free", &keyed(), refund()).await;
        let propose = async |name: &str, n: u32| {
            rig.try_propose(proposal(name, amount(n), &format!("{name}-{n}"))).await
        };
        propose("refund", 1).await.unwrap();
        propose("refund", 2).await.unwrap();
        assert_eq!(over(&propose("refund", 3).await.unwrap_err()), "pending.tool");
        propose("other", 1).await.unwrap();
        assert_eq!(over(&propose("other", 2).await.unwrap_err()), "pending.tenant");
        assert_eq!(propose("free", 1).await.unwrap().action.state, State::Approved);
    });
}

#[test]
fn i01_new_proposals_have_a_rate_and_the_same_again_has_none() {
    run(async |rig| {
        rig.reconfigure(|config| {
            config.quotas = Quotas::of(Quota { proposals_caller: 3, ..Quota::unlimited() });
        });
        rig.install("refund", &keyed(), refund()).await;
        let propose = async |n: u32, by: &str| {
            let mut proposal = proposal("refund", amount(n), &format!("key-{n}"));
            proposal.proposer = principal(by);
            rig.try_propose(proposal).await
        };
        for n in 0..3 {
            propose(n, "agent").await.unwrap();
        }
        assert_eq!(over(&propose(3, "agent").await.unwrap_err()), "proposals_per_minute.caller");
        for _ in 0..10 {
            assert!(propose(0, "agent").await.unwrap().replayed);
        }
        propose(4, "another").await.unwrap();
    });
}
