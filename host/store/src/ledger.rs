//! The life of an action, step by step. Each method says what a crash right
//! after it means, because that is what it is for.

use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, AttemptId, TenantId};
use countersign_domain::lease::LeaseTerms;
use countersign_domain::time::Timestamp;
use tokio::sync::broadcast;

use crate::StoreError;
use crate::steps::{
    Approve, ClaimAction, ClaimWrite, ClaimedAction, Due, EndAttempt, ListActions, NewAction, NewSettled,
    Proposed, RecordSend, Recorded, RepeatWrite, Resolve, Step, Transition, WriteClaimed,
};

/// Told after a commit that changed an action. May be lost: whoever waits also
/// polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub action: ActionId,
}

/// The ledger. "Flushed" means: survives a power failure once the method
/// returned. A method without that word is committed, and is flushed by the
/// next one that is: commits keep their order.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// The database's clock (on SQLite: the host's).
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// Hears of changed actions from now on.
    fn subscribe(&self) -> broadcast::Receiver<Changed>;

    /// Inserts an action with its events and the effects made while planning,
    /// or finds the one that has this key. Flushed. A crash before leaves no
    /// action; the caller proposes again and gets the same id.
    async fn propose(&self, action: NewAction) -> Result<Proposed, StoreError>;

    /// Adds a yes, and makes the move if it is the last one needed. Conditions:
    /// `awaiting_approval`, approval not expired, same policy epoch, the same
    /// fingerprint. A second yes of the same approver changes nothing and is
    /// `Made`. Flushed.
    async fn approve(&self, approve: Approve) -> Result<Step<Action>, StoreError>;

    /// Makes a transition that was decided on the row as read. Flushed. Used
    /// for everything that is not a claim, a record or an attempt's own end.
    async fn transition(&self, transition: Transition) -> Result<Step<Action>, StoreError>;

    /// Writes on an `executing` or `outcome_unknown` action that it should
    /// stop. Flushed. No event: nothing moved yet.
    async fn request_cancel(
        &self,
        tenant: &TenantId,
        action: ActionId,
        reason: &str,
    ) -> Result<Step<Action>, StoreError>;

    /// Puts off what is to be done by itself about an `outcome_unknown` action
    /// after a lookup that found nothing out: costs one of its repeats. `None`:
    /// nothing more without a person. No event: nothing moved. Not flushed:
    /// lost in a power failure, the lookup is made again.
    async fn postpone(
        &self,
        tenant: &TenantId,
        action: ActionId,
        expected: i64,
        after: Option<Duration>,
    ) -> Result<Step<Action>, StoreError>;

    /// Takes an action for one attempt. Not flushed: lost in a power failure,
    /// it was never made, and no write was claimed under it.
    async fn claim_action(&self, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError>;

    /// Extends the lease of a live attempt. `None`: it is no longer alive, or
    /// somebody asked it to stop (then the row says so).
    async fn heartbeat(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        lease: LeaseTerms,
    ) -> Result<Option<Action>, StoreError>;

    /// Claims a write: updates the action's row and inserts the effect
    /// `in_flight`. Conditions: `executing` by this attempt, lease live, no
    /// cancel asked, nothing in flight, deadline not passed, and, while no
    /// write stands or is unknown, approval not expired and the same policy
    /// epoch. The lease is extended to cover the longest send. Flushed: only
    /// after this may the first byte leave. A crash after it leaves a write
    /// that may have been sent.
    async fn claim_write(&self, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError>;

    /// Claims an effect again that is `failed` and was never shown, `unknown`
    /// with a repeatable class inside its window, or set aside inside its
    /// window; judged here, not when it was planned. The conditions of
    /// [`Ledger::claim_write`]; for an `unknown` effect all but the deadline.
    /// Flushed.
    async fn repeat_write(&self, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError>;

    /// Records what came of a send, where the action is `executing` and
    /// attempt, ordinal and send number match an effect in flight. A success
    /// grants the attempt that will report it. Flushed: the component is shown
    /// the answer only after this.
    async fn record_send(&self, record: RecordSend) -> Result<Recorded, StoreError>;

    /// Records effects that needed no claim, under a live attempt. Not flushed:
    /// whatever they lead to is flushed after them. `Lost` if the attempt is
    /// no longer alive.
    async fn record_settled(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        effects: Vec<NewSettled>,
    ) -> Result<Step<Vec<EffectRecord>>, StoreError>;

    /// Ends an attempt, only where the action is `executing` by it. Flushed. A
    /// crash before it leaves the attempt to the reaper.
    async fn end_attempt(&self, end: EndAttempt) -> Result<Step<Action>, StoreError>;

    /// Settles, or gives up on, an unknown effect by somebody's word. `Lost` if
    /// the effect moved on or it is too early. Grants the attempt it needs.
    /// Flushed.
    async fn resolve(&self, resolve: Resolve) -> Result<Step<Action>, StoreError>;

    /// One action.
    async fn action(&self, tenant: &TenantId, action: ActionId) -> Result<Option<Action>, StoreError>;

    /// Many actions, newest first.
    async fn actions(&self, tenant: &TenantId, list: ListActions) -> Result<Vec<Action>, StoreError>;

    /// An action's effects, by ordinal. With `history`, also those that were
    /// set aside and replaced.
    async fn effects(
        &self,
        tenant: &TenantId,
        action: ActionId,
        history: bool,
    ) -> Result<Vec<EffectRecord>, StoreError>;

    /// What its attempts printed and logged.
    async fn log(&self, tenant: &TenantId, action: ActionId) -> Result<Vec<String>, StoreError>;

    /// Events of one action after a `seq`.
    async fn events_of(
        &self,
        tenant: &TenantId,
        action: ActionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError>;

    /// Events of a tenant after a cursor, in commit order.
    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError>;

    /// Actions of all tenants that are due for a worker or the reaper: leases
    /// that ran out, approvals that expired, budgets that are spent, cancels
    /// asked of nobody, attempts and repeats that are due. With
    /// `all_leases_over`, every `executing` one too (one host holds the store
    /// and just opened it). Oldest due first.
    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError>;
}
