//! The ledger with somebody who counts standing beside it: each step is handed
//! on as it is and timed; nothing is changed, kept back or decided here.
//!
//! This is the place to count at because every fact of an action passes it, made
//! or refused, whoever states it. What a send came to is read off its record;
//! one that is never recorded, off the end of its attempt.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use countersign_domain::action::{Action, State};
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{
    ActionId, AttemptId, ComponentDigest, GrantDigest, Principal, TenantId, ToolName,
};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use countersign_domain::tool::InstalledTool;
use countersign_store::steps::{
    Approve, ClaimAction, ClaimWrite, ClaimedAction, Due, EndAttempt, ListActions, Liveness, NewAction,
    NewSettled, Proposed, Putoff, RecordSend, Recorded, RepeatWrite, Resolve, SendResult, Step, Transition,
    When, WriteClaimed,
};
use countersign_store::{
    Changed, Ledger, NewPrincipal, NewTool, Pending, PrincipalRow, Registry, Store, StoreError,
};
use tokio::sync::broadcast;

use super::Metrics;

/// A store that is watched.
pub struct Observed {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
}

impl Observed {
    /// Watches a store.
    pub fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Observed {
        Observed { store, metrics }
    }

    async fn timed<T>(
        &self,
        name: &'static str,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let made = step.await;
        // What was asked wrongly is no failure of the store.
        let failed = made
            .as_ref()
            .is_err_and(|error| !matches!(error, StoreError::NotFound { .. } | StoreError::Conflict { .. }));
        self.metrics.stepped(name, began.elapsed(), failed);
        made
    }

    fn moved(&self, step: &Step<Action>) {
        if let Step::Made(action) = step {
            self.metrics.moved(action.state);
        }
    }
}

#[async_trait]
impl Ledger for Observed {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.store.now().await
    }

    fn subscribe(&self) -> broadcast::Receiver<Changed> {
        self.store.subscribe()
    }

    async fn propose(&self, action: NewAction) -> Result<Proposed, StoreError> {
        let made = self.timed("propose", self.store.propose(action)).await?;
        if let Proposed::New(action) = &made {
            self.metrics.proposals.inc();
            self.metrics.moved(action.state);
        }
        Ok(made)
    }

    async fn approve(&self, approve: Approve) -> Result<Step<Action>, StoreError> {
        let last = approve.if_last.to;
        let made = self.timed("approve", self.store.approve(approve)).await?;
        if let Step::Made(action) = &made
            && action.state == last
        {
            self.metrics.moved(last);
        }
        Ok(made)
    }

    async fn transition(&self, transition: Transition) -> Result<Step<Action>, StoreError> {
        let reaps = transition.when == When::LeaseExpired;
        let made = self.timed("transition", self.store.transition(transition)).await?;
        self.moved(&made);
        if reaps && matches!(made, Step::Made(_)) {
            self.metrics.leases_reaped.inc();
        }
        Ok(made)
    }

    async fn request_cancel(
        &self,
        tenant: &TenantId,
        action: ActionId,
        reason: &str,
    ) -> Result<Step<Action>, StoreError> {
        self.timed("request_cancel", self.store.request_cancel(tenant, action, reason)).await
    }

    async fn postpone(
        &self,
        tenant: &TenantId,
        action: ActionId,
        expected: i64,
        putoff: Putoff,
    ) -> Result<Step<Action>, StoreError> {
        self.store.postpone(tenant, action, expected, putoff).await
    }

    async fn announced(
        &self,
        tenant: &TenantId,
        action: ActionId,
        event_seq: u32,
    ) -> Result<bool, StoreError> {
        self.timed("announced", self.store.announced(tenant, action, event_seq)).await
    }

    async fn doubt_rewound(&self, limit: u32) -> Result<usize, StoreError> {
        let doubted = self.store.doubt_rewound(limit).await?;
        for _ in 0..doubted {
            self.metrics.moved(State::OutcomeUnknown);
        }
        Ok(doubted)
    }

    async fn doubt_write(&self, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
        self.timed("doubt_write", self.store.doubt_write(claim)).await
    }

    async fn still_live(
        &self,
        tenant: &TenantId,
        action: ActionId,
        fence: SendFence,
    ) -> Result<Liveness, StoreError> {
        self.timed("still_live", self.store.still_live(tenant, action, fence)).await
    }

    async fn claim_action(&self, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
        let made = self.timed("claim_action", self.store.claim_action(claim)).await?;
        self.metrics.claim("action", matches!(made, Step::Made(_)));
        if let Step::Made(claimed) = &made {
            self.metrics.moved(claimed.action.state);
        }
        Ok(made)
    }

    async fn heartbeat(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        lease: LeaseTerms,
    ) -> Result<Option<Action>, StoreError> {
        let row = self.timed("heartbeat", self.store.heartbeat(tenant, action, attempt, lease)).await?;
        // Told no as well is one that somebody asked to stop: its row says so.
        if row.is_none()
            && let Ok(Some(row)) = self.store.action(tenant, action).await
            && (row.attempt_id != Some(attempt) || row.cancel_requested.is_none())
        {
            self.metrics.leases_lost.inc();
        }
        Ok(row)
    }

    async fn claim_write(&self, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
        let made = self.timed("claim_write", self.store.claim_write(claim)).await?;
        self.metrics.claim("write", matches!(made, Step::Made(_)));
        if let Step::Made(claimed) = &made {
            self.metrics.send_claimed(claimed.fence.attempt, claimed.record.terms.class);
        }
        Ok(made)
    }

    async fn repeat_write(&self, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
        let made = self.timed("repeat_write", self.store.repeat_write(repeat)).await?;
        self.metrics.claim("repeat", matches!(made, Step::Made(_)));
        if let Step::Made(claimed) = &made {
            self.metrics.send_claimed(claimed.fence.attempt, claimed.record.terms.class);
        }
        Ok(made)
    }

    async fn record_send(&self, record: RecordSend) -> Result<Recorded, StoreError> {
        let attempt = record.fence.attempt;
        let outcome = match &record.result {
            SendResult::Answered { .. } => "answered",
            SendResult::NotSent => "not_sent",
            SendResult::Refused(_) => "refused",
        };
        let made = self.timed("record_send", self.store.record_send(record)).await?;
        match &made {
            Recorded::InTime(_) => self.metrics.send_ended(attempt, Some(outcome)),
            Recorded::Late(action) => {
                self.metrics.send_ended(attempt, Some(outcome));
                self.metrics.moved(action.state);
            }
            Recorded::Stale => self.metrics.send_ended(attempt, None),
        }
        Ok(made)
    }

    async fn record_settled(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        effects: Vec<NewSettled>,
    ) -> Result<Step<Vec<EffectRecord>>, StoreError> {
        self.timed("record_settled", self.store.record_settled(tenant, action, attempt, effects)).await
    }

    async fn end_attempt(&self, end: EndAttempt) -> Result<Step<Action>, StoreError> {
        let (attempt, lost) = (end.attempt, end.lost.is_some());
        let made = self.timed("end_attempt", self.store.end_attempt(end)).await?;
        self.moved(&made);
        let unknown = lost && matches!(made, Step::Made(_));
        self.metrics.send_ended(attempt, unknown.then_some("unknown"));
        Ok(made)
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Step<Action>, StoreError> {
        let made = self.timed("resolve", self.store.resolve(resolve)).await?;
        self.moved(&made);
        Ok(made)
    }

    async fn action(&self, tenant: &TenantId, action: ActionId) -> Result<Option<Action>, StoreError> {
        self.store.action(tenant, action).await
    }

    async fn actions(&self, tenant: &TenantId, list: ListActions) -> Result<Vec<Action>, StoreError> {
        self.store.actions(tenant, list).await
    }

    async fn effects(
        &self,
        tenant: &TenantId,
        action: ActionId,
        history: bool,
    ) -> Result<Vec<EffectRecord>, StoreError> {
        self.store.effects(tenant, action, history).await
    }

    async fn log(&self, tenant: &TenantId, action: ActionId) -> Result<Vec<String>, StoreError> {
        self.store.log(tenant, action).await
    }

    async fn events_of(
        &self,
        tenant: &TenantId,
        action: ActionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        self.store.events_of(tenant, action, after, limit).await
    }

    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError> {
        self.store.events(tenant, after, limit).await
    }

    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError> {
        self.timed("due", self.store.due(limit, all_leases_over)).await
    }
}

#[async_trait]
impl Registry for Observed {
    async fn install_tool(&self, tool: NewTool) -> Result<InstalledTool, StoreError> {
        self.store.install_tool(tool).await
    }

    async fn put_grant(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        grant: GrantDigest,
        source: &str,
        by: &Principal,
    ) -> Result<InstalledTool, StoreError> {
        self.store.put_grant(tenant, name, grant, source, by).await
    }

    async fn tool(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        version: Option<&str>,
    ) -> Result<Option<InstalledTool>, StoreError> {
        self.store.tool(tenant, name, version).await
    }

    async fn tools(&self, tenant: &TenantId) -> Result<Vec<InstalledTool>, StoreError> {
        self.store.tools(tenant).await
    }

    async fn component(
        &self,
        tenant: &TenantId,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.component(tenant, digest).await
    }

    async fn grant(&self, tenant: &TenantId, digest: GrantDigest) -> Result<Option<String>, StoreError> {
        self.store.grant(tenant, digest).await
    }

    async fn set_paused(&self, tenant: &TenantId, name: &ToolName, paused: bool) -> Result<(), StoreError> {
        self.store.set_paused(tenant, name, paused).await
    }

    async fn add_principal(&self, principal: NewPrincipal) -> Result<PrincipalRow, StoreError> {
        self.store.add_principal(principal).await
    }

    async fn principal(&self, token_id: &str) -> Result<Option<PrincipalRow>, StoreError> {
        self.store.principal(token_id).await
    }

    async fn principals(&self, tenant: &TenantId) -> Result<Vec<PrincipalRow>, StoreError> {
        self.store.principals(tenant).await
    }

    async fn pending(
        &self,
        tenant: &TenantId,
        tool: &ToolName,
        caller: &Principal,
        actor: &Principal,
    ) -> Result<Pending, StoreError> {
        self.store.pending(tenant, tool, caller, actor).await
    }

    async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
        self.store.revoke(tenant, token_id).await
    }
}
