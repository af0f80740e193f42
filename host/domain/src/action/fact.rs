//! What can happen to an action. A fact carries what its transition needs to
//! know, and nothing that its event does not want to keep.

use serde::{Deserialize, Serialize};

use crate::id::{AttemptNumber, Digest, Fingerprint, Ordinal};

/// What the ledger knows about the action's effects when a fact is stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Standing {
    /// Some effect is `in_flight` or `unknown`.
    pub open: bool,
    /// Some write was sent and did not definitely fail.
    pub writes_stand: bool,
}

/// A fact about an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// A caller proposed it.
    Proposed {
        /// What an approver would approve.
        fingerprint: Fingerprint,
    },
    /// Policy needs nobody.
    PolicyAllowed,
    /// Policy needs so many people.
    ApprovalRequired {
        /// Distinct approvers.
        required: u32,
    },
    /// Policy forbids it.
    PolicyDenied,
    /// The last approval needed was given.
    Approved {
        /// What was approved.
        fingerprint: Fingerprint,
    },
    /// An approver said no.
    Declined {
        /// Their words.
        reason: String,
    },
    /// Its proposer or an operator took it back, and no attempt is alive.
    Cancelled {
        /// What stands decides where this leads.
        standing: Standing,
        /// Their words.
        reason: String,
    },
    /// A new proposal replaces it.
    Superseded,
    /// Component, grant, policy or role is not what was approved, before any
    /// write.
    Changed {
        /// What stands decides where this leads.
        standing: Standing,
        /// What differs.
        what: String,
    },
    /// The approval ran out.
    Expired {
        /// Only while no write stands.
        standing: Standing,
    },
    /// The ledger lost commits: failover, or a restored backup.
    LedgerRewound,
    /// A worker claimed it.
    Claimed {
        /// Counting from 1.
        attempt: AttemptNumber,
    },
    /// The component returned a result.
    Succeeded {
        /// Nothing may be open.
        standing: Standing,
        /// SHA-256 of the result's text.
        result: Digest,
        /// SHA-256 over the effects' ordinals, fingerprints and statuses.
        effects: Digest,
    },
    /// The attempt failed and another may follow.
    FailedRetryably {
        /// Nothing may be open.
        standing: Standing,
        /// Why.
        why: String,
    },
    /// The attempt's lease ran out, or its host is gone, with nothing open.
    WorkerLost {
        /// Nothing may be open.
        standing: Standing,
    },
    /// The worker gave the attempt back, at shutdown.
    Released {
        /// Nothing may be open.
        standing: Standing,
    },
    /// The attempt failed for good.
    FailedTerminally {
        /// Nothing may be open.
        standing: Standing,
        /// An error code.
        code: String,
    },
    /// The attempt was told to stop, and nothing stands.
    StoppedBeforeWrites {
        /// Nothing open, nothing standing.
        standing: Standing,
        /// An error code.
        code: String,
    },
    /// The attempt ended with an effect whose outcome is not known.
    OutcomeLost {
        /// Which effect.
        ordinal: Ordinal,
        /// Why.
        why: String,
    },
    /// The budget is spent, nothing is open.
    RetriesExhausted,
    /// A lookup or a person found that it happened.
    FoundDone {
        /// Which effect.
        ordinal: Ordinal,
        /// Who says so. Not "by" in the event, which says who stated the fact.
        #[serde(rename = "said_by")]
        by: String,
        /// Another effect is still unknown.
        others_unknown: bool,
    },
    /// A lookup or a person found that it did not happen.
    FoundNotDone {
        /// Which effect.
        ordinal: Ordinal,
        /// Who says so. Not "by" in the event, which says who stated the fact.
        #[serde(rename = "said_by")]
        by: String,
        /// Another effect is still unknown.
        others_unknown: bool,
    },
    /// The provider will recognise the key, and a worker claimed the action to
    /// ask again. One fact: stated apart, a cancel could come between the two
    /// and hide an unknown write behind `cancelled`.
    SafeToRepeat {
        /// Counting from 1.
        attempt: AttemptNumber,
    },
    /// A person said that nobody will ever know.
    GivenUp {
        /// Who says so. Not "by" in the event, which says who stated the fact.
        #[serde(rename = "said_by")]
        by: String,
    },
}

impl Fact {
    /// The fact's name, as in events.
    pub const fn name(&self) -> &'static str {
        match self {
            Fact::Proposed { .. } => "proposed",
            Fact::PolicyAllowed => "policy_allowed",
            Fact::ApprovalRequired { .. } => "approval_required",
            Fact::PolicyDenied => "policy_denied",
            Fact::Approved { .. } => "approved",
            Fact::Declined { .. } => "declined",
            Fact::Cancelled { .. } => "cancelled",
            Fact::Superseded => "superseded",
            Fact::Changed { .. } => "changed",
            Fact::Expired { .. } => "expired",
            Fact::LedgerRewound => "ledger_rewound",
            Fact::Claimed { .. } => "claimed",
            Fact::Succeeded { .. } => "succeeded",
            Fact::FailedRetryably { .. } => "failed_retryably",
            Fact::WorkerLost { .. } => "worker_lost",
            Fact::Released { .. } => "released",
            Fact::FailedTerminally { .. } => "failed_terminally",
            Fact::StoppedBeforeWrites { .. } => "stopped_before_writes",
            Fact::OutcomeLost { .. } => "outcome_lost",
            Fact::RetriesExhausted => "retries_exhausted",
            Fact::FoundDone { .. } => "found_done",
            Fact::FoundNotDone { .. } => "found_not_done",
            Fact::SafeToRepeat { .. } => "safe_to_repeat",
            Fact::GivenUp { .. } => "given_up",
        }
    }
}
