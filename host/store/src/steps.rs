//! The steps of an action's life, as data: what each compares, and what it sets.

use std::time::Duration;

use countersign_domain::action::{Action, ActionError, Fact, State, next};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::code;
use countersign_domain::effect::{
    Answer, EffectKind, EffectRecord, Evidence, RecordedRequest, Refusal, Terms,
};
use countersign_domain::id::{
    ActionId, AttemptId, ComponentDigest, EffectFingerprint, Fingerprint, GrantDigest, Intent, Ordinal,
    Principal, TenantId, ToolName,
};
use countersign_domain::key::ActionKey;
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;

use crate::StoreError;

/// How a step that compares before it sets came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    /// It was made, and is committed.
    Made(T),
    /// Somebody else was first, or a condition did not hold: the row as it
    /// stands, for saying why. Nothing was changed.
    Lost(Box<Action>),
}

/// One statement of fact and where it leads, for the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The fact.
    pub fact: Fact,
    /// Where the rules say it leads.
    pub to: State,
    /// Who states it.
    pub by: String,
}

impl Move {
    /// The move by which an answer settles a send that became `unknown` while
    /// it ran.
    pub fn found_done_late(ordinal: Ordinal) -> Move {
        let by = "worker".to_owned();
        // A write claim waits until nothing is in flight, so at most one effect
        // of an action becomes unknown per attempt. Where another is unknown
        // all the same, the store says so from the row and asks the rules anew.
        let fact = Fact::FoundDone { ordinal, by: by.clone(), others_unknown: false };
        Move { fact, to: State::FailedRetryable, by }
    }
}

impl Move {
    /// The move by which an action in this state is doubted, where the ledger
    /// lost commits.
    pub(crate) fn rewound(from: State) -> Result<Move, StoreError> {
        let fact = Fact::LedgerRewound;
        let to = next(from, &fact).map_err(|illegal| StoreError::Damaged { what: illegal.to_string() })?;
        Ok(Move { fact, to, by: "ledger".to_owned() })
    }

    /// What stands in the row of such an action.
    pub(crate) fn rewound_error() -> ActionError {
        ActionError {
            code: code::EXECUTION_IN_DOUBT.into(),
            message: "the ledger lost commits (it was restored from a backup, or a standby took over), so it is not \
                      known what this action did that is not recorded"
                .into(),
        }
    }
}

impl Putoff {
    /// After how long it is looked at again, and the repeats that this costs.
    pub(crate) fn terms(self) -> (Option<Duration>, u32) {
        match self {
            Putoff::Costly(after) => (Some(after), 1),
            Putoff::Free(after) => (Some(after), 0),
            Putoff::ToPerson => (None, 0),
        }
    }
}

/// A proposal. The store derives nothing: ids and digests come computed.
#[derive(Debug, Clone)]
pub struct NewAction {
    /// Whose.
    pub tenant: TenantId,
    /// From tenant and key.
    pub id: ActionId,
    /// The caller's name for it.
    pub key: ActionKey,
    /// Which tool.
    pub tool: ToolName,
    /// As asked for.
    pub requested_version: Option<String>,
    /// As resolved.
    pub version: String,
    /// The code.
    pub component: ComponentDigest,
    /// The grant.
    pub grant: GrantDigest,
    /// Canonical.
    pub arguments: CanonicalJson,
    /// For the same key again.
    pub intent: Intent,
    /// What is approved.
    pub fingerprint: Fingerprint,
    /// In whose name.
    pub actor: Principal,
    /// Whose token.
    pub proposer: Principal,
    /// Canonical plan.
    pub plan: CanonicalJson,
    /// Canonical preview.
    pub preview: Option<CanonicalJson>,
    /// Distinct approvers needed.
    pub approvals_required: u32,
    /// From the proposal.
    pub approval_expires_after: Duration,
    /// From the proposal.
    pub execution_deadline_after: Duration,
    /// As read with the tool.
    pub policy_epoch: i64,
    /// Workers run it by themselves.
    pub run_by_itself: bool,
    /// Replaced action.
    pub supersedes: Option<ActionId>,
    /// Action made good.
    pub compensates: Option<ActionId>,
    /// When planning began; the component's clock starts here.
    pub created: Timestamp,
    /// Of the component's randomness.
    pub seed: [u8; 32],
    /// Attempts in all.
    pub attempts: u32,
    /// Repeats of unknown effects without a person, in all.
    pub repeats: u32,
    /// Reads and refusals made while planning, recorded with the proposal.
    pub planned_effects: Vec<NewSettled>,
    /// `proposed`, then where policy leads: two events, one commit.
    pub moves: Vec<Move>,
}

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposed {
    /// It is new.
    New(Box<Action>),
    /// This key has an action already; the caller compares intents.
    Again(Box<Action>),
}

/// A yes.
#[derive(Debug, Clone)]
pub struct Approve {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub action: ActionId,
    /// Who; counted once.
    pub by: Principal,
    /// Their words.
    pub note: Option<String>,
    /// What they saw; it must be what stands in the row.
    pub fingerprint: Fingerprint,
    /// The move if this is the last approval needed.
    pub if_last: Move,
}

/// A transition decided on a row that was read: made only if the row has not
/// changed since (`version_counter`), and only if the time is as said.
#[derive(Debug, Clone)]
pub struct Transition {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub action: ActionId,
    /// The row it was decided on.
    pub expected: i64,
    /// What happens.
    pub moved: Move,
    /// Compared with the store's clock in the same statement.
    pub when: When,
    /// Error to stand in the row from now on.
    pub error: Option<ActionError>,
    /// When the next attempt is due, from now; for `failed_retryable` and
    /// `outcome_unknown`.
    pub next_attempt_after: Option<Duration>,
    /// Turns the effect that is `in_flight` into `unknown`.
    pub in_flight_becomes_unknown: bool,
    /// The action that replaces it.
    pub superseded_by: Option<ActionId>,
    /// At least so many attempts are left then: what was done is always
    /// reported, whoever dies over it.
    pub grants: u32,
}

/// What is put off about an action in doubt, and what that costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Putoff {
    /// A lookup is about to be made, or was: looked at again after this, at the
    /// price of one of the action's repeats.
    Costly(Duration),
    /// It is too early to look: looked at again after this.
    Free(Duration),
    /// Nothing more without a person.
    ToPerson,
}

/// Whether a send may start, as the store knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// The store's clock.
    pub now: Timestamp,
    /// The row is `executing` by this very attempt, and this effect is out.
    pub live: bool,
}

/// The condition on time that goes with a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At any time.
    Always,
    /// Only after the approval ran out.
    ApprovalExpired,
    /// Only while the approval has not run out.
    ApprovalOpen,
    /// Only once the lease ran out.
    LeaseExpired,
}

/// A claim of an action.
#[derive(Debug, Clone)]
pub struct ClaimAction {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub action: ActionId,
    /// Fresh and random.
    pub attempt: AttemptId,
    /// Who, for people.
    pub owner: String,
    /// How long.
    pub lease: LeaseTerms,
    /// From which states: `approved` and `failed_retryable` by a claim,
    /// `outcome_unknown` only by a claim that is safe to repeat.
    pub kind: ClaimKind,
}

/// Why an action may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimKind {
    /// `approved` (unexpired, same policy epoch, the approved fingerprint is
    /// the fingerprint, no cancel asked, tool not paused) or `failed_retryable`
    /// (due, attempts left, no cancel asked). States `claimed`.
    Run,
    /// `outcome_unknown` whose unknown effects are all `provider-idempotent`
    /// and inside their key window now, due, no cancel asked. States
    /// `safe_to_repeat`. Costs one of the action's repeats.
    Repeat,
}

/// An action with the effects that its attempt replays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedAction {
    /// The row after the claim.
    pub action: Action,
    /// All its effects, by ordinal.
    pub effects: Vec<EffectRecord>,
}

/// A claim of a write that was not made before.
#[derive(Debug, Clone)]
pub struct ClaimWrite {
    /// Whose.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// The live attempt.
    pub attempt: AttemptId,
    /// Its place.
    pub ordinal: Ordinal,
    /// Which import.
    pub kind: EffectKind,
    /// Fixed in the row.
    pub terms: Terms,
    /// Fixed in the row.
    pub fingerprint: EffectFingerprint,
    /// Fixed in the row.
    pub request: RecordedRequest,
    /// The provider's idempotency key.
    pub provider_key: String,
    /// Start of the key's window, if an earlier write of this action was sent
    /// under the same key.
    pub first_sent: Option<Timestamp>,
    /// How long.
    pub lease: LeaseTerms,
}

/// A claim of an effect that was claimed before and did not settle, or whose
/// answer `try-later` set aside.
#[derive(Debug, Clone)]
pub struct RepeatWrite {
    /// Whose.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// The live attempt.
    pub attempt: AttemptId,
    /// Its place.
    pub ordinal: Ordinal,
    /// How long.
    pub lease: LeaseTerms,
}

/// A claim that is committed and flushed: the send may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteClaimed {
    /// By which its record is matched.
    pub fence: SendFence,
    /// Until when the attempt may start a send.
    pub lease_expires: Timestamp,
    /// Last instant, exclusive, at which the key may be sent; `None`: always.
    pub window_ends: Option<Timestamp>,
    /// An earlier send may have arrived.
    pub may_have_arrived: bool,
    /// The row as it stands.
    pub record: EffectRecord,
}

/// What came of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// A definite answer.
    Answered {
        /// Whole, redacted.
        answer: Answer,
        /// The provider's name for what happened.
        reference: Option<String>,
    },
    /// No byte was written; never shown to the component.
    NotSent,
    /// It was refused before anything was sent (its address, a missing secret);
    /// the component is shown that, so it is final.
    Refused(Refusal),
}

/// A record of a send.
#[derive(Debug, Clone)]
pub struct RecordSend {
    /// Whose.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// Which send.
    pub fence: SendFence,
    /// What came of it.
    pub result: SendResult,
    /// States `found_done` if the send became `unknown` in the meantime and the
    /// answer still settles it (the caller judged that with the effect's own
    /// terms). `None`: a late answer is dropped.
    pub if_late: Option<Move>,
}

/// How a record was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The attempt is alive and goes on; the row as it stands.
    InTime(Box<EffectRecord>),
    /// The action had become `outcome_unknown`; the answer settled it.
    Late(Box<Action>),
    /// The effect moved on; nothing was changed.
    Stale,
}

/// An effect that needs no claim: a read that was answered, or a refusal.
#[derive(Debug, Clone)]
pub struct NewSettled {
    /// Its place.
    pub ordinal: Ordinal,
    /// Which import.
    pub kind: EffectKind,
    /// What was refused was a write.
    pub write: bool,
    /// Fixed in the row.
    pub terms: Terms,
    /// Fixed in the row.
    pub fingerprint: EffectFingerprint,
    /// Fixed in the row.
    pub request: RecordedRequest,
    /// What the component is shown.
    pub outcome: Settled,
}

/// What a component is shown of an effect that needed no claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// A read's answer.
    Answered(Answer),
    /// A refusal.
    Refused(Refusal),
}

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct EndAttempt {
    /// Whose.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// The attempt that ends.
    pub attempt: AttemptId,
    /// What happened. Needs no effect open, except `outcome_lost`.
    pub moved: Move,
    /// Present exactly for `succeeded`.
    pub result: Option<CanonicalJson>,
    /// Why, for everything but `succeeded`.
    pub error: Option<ActionError>,
    /// When the next attempt is due, from now.
    pub next_attempt_after: Option<Duration>,
    /// `try-later`: ordinals to set aside.
    pub set_aside: Vec<Ordinal>,
    /// For `outcome_lost`: the send that is not known; it becomes `unknown`.
    pub lost: Option<SendFence>,
    /// What the component printed and logged.
    pub log: Vec<String>,
}

/// A lookup's or a person's word about an effect that is `unknown`.
#[derive(Debug, Clone)]
pub struct Resolve {
    /// Whose.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// The send it speaks of; stale if the effect moved on.
    pub fence: SendFence,
    /// The row it was decided on.
    pub expected: i64,
    /// `found_done`, `found_not_done` or `given_up`.
    pub moved: Move,
    /// What the component is to see; only for `found_done`.
    pub answer: Option<Answer>,
    /// Who says so and why.
    pub evidence: Evidence,
    /// Not before this long after it became unknown.
    pub not_before: Option<Duration>,
    /// For `given_up`.
    pub error: Option<ActionError>,
}

/// Which actions to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct ListActions {
    /// Only these states; empty: all.
    pub states: Vec<State>,
    /// Only this tool.
    pub tool: Option<ToolName>,
    /// Only this run.
    pub run: Option<String>,
    /// Continue after this action.
    pub after: Option<ActionId>,
    /// At most so many.
    pub limit: u32,
}

/// An action that may need the reaper, or a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The row.
    pub action: Action,
    /// Its unknown effects.
    pub unknown: Vec<EffectRecord>,
    /// The tenant's policy epoch now.
    pub policy_epoch: i64,
}
