//! The life of an action, step by step. Each method says what a crash right
//! after it means, because that is what it is for.

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, AttemptId, TenantId};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use tokio::sync::broadcast;

use crate::StoreError;
use crate::steps::{
    Approve, ClaimAction, ClaimWrite, ClaimedAction, Due, EndAttempt, ListActions, Liveness, NewAction,
    NewSettled, Proposed, Putoff, RecordSend, Recorded, RepeatWrite, Resolve, Step, Transition, WriteClaimed,
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

    /// Puts off what is to be done by itself about an `outcome_unknown` action.
    /// Whoever makes it, out of several who decided on the same row, is the one
    /// to look. No event: nothing moved. Not flushed: lost in a power failure,
    /// the lookup is made again.
    async fn postpone(
        &self,
        tenant: &TenantId,
        action: ActionId,
        expected: i64,
        putoff: Putoff,
    ) -> Result<Step<Action>, StoreError>;

    /// Remembers that somebody was told of the doubt that began with this event
    /// of an `outcome_unknown` action. No event, and no change of what others
    /// decided on. Not flushed: lost in a power failure, they are told again.
    async fn announced(
        &self,
        tenant: &TenantId,
        action: ActionId,
        event_seq: u32,
    ) -> Result<bool, StoreError>;

    /// Doubts so many of the actions that were open when commits were found to
    /// be lost: each becomes `outcome_unknown`, with its event, and what was in
    /// flight, or was not sent when last heard of, becomes `unknown`. How many
    /// there were; 0: none is left, or no commit was lost. Flushed, each for
    /// itself: a crash half-way leaves the rest to the next call, anybody's.
    /// Until it is doubted, nothing claims, approves or ends such an action.
    async fn doubt_rewound(&self, limit: u32) -> Result<usize, StoreError>;

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

    /// Enters a write that has no row, of an action whose ledger was rewound, as
    /// `unknown`: perhaps it was sent before. First sent: when the action was
    /// approved, or with the earlier write that had its key. Needs a live
    /// attempt and nothing in flight. Not flushed: whatever sends it again is
    /// flushed after it.
    async fn doubt_write(&self, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError>;

    /// The last look before the first byte: what time it is, and whether the
    /// send's attempt still holds the row with this effect out.
    async fn still_live(
        &self,
        tenant: &TenantId,
        action: ActionId,
        fence: SendFence,
    ) -> Result<Liveness, StoreError>;

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

    /// Events of a tenant after a cursor, in commit order, none passed by. The newest
    /// may be held back for a moment, until no transaction is open that could still
    /// write one before them.
    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError>;

    /// Actions of all tenants that are due for a worker or the reaper: leases
    /// that ran out, approvals that expired, budgets that are spent, cancels
    /// asked of nobody, attempts, repeats and lookups that are due, doubts that
    /// wait for a person nobody told. With
    /// `all_leases_over`, every `executing` one too (one host holds the store
    /// and just opened it). Oldest due first.
    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError>;
}
