//! An action: one intent of one caller. Read `state`, then `fact`, then
//! `transition`; this file is the row.

mod fact;
mod state;
#[cfg(test)]
mod tests;
mod transition;

use serde::{Deserialize, Serialize};

pub use fact::{Fact, Standing};
pub use state::State;
pub use transition::{FIRST, IllegalTransition, next};

use crate::approval::Approval;
use crate::canonical::CanonicalJson;
use crate::id::{
    ActionId, AttemptId, AttemptNumber, ComponentDigest, Fingerprint, GrantDigest, Intent, Ordinal,
    Principal, TenantId, ToolName,
};
use crate::key::ActionKey;
use crate::time::Timestamp;

/// Why an action ended without a result, or what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionError {
    /// Stable; see [`crate::code`].
    pub code: String,
    /// A sentence a person or a model can act on.
    pub message: String,
}

/// The row of an action. Everything up to `seed` never changes after the
/// proposal; the store holds that by trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Whose it is.
    pub tenant: TenantId,
    /// A pure function of tenant and key.
    pub id: ActionId,
    /// How the caller names it.
    pub key: ActionKey,
    /// Which tool.
    pub tool: ToolName,
    /// The version that was asked for; `None`: whichever was current.
    pub requested_version: Option<String>,
    /// The version that runs.
    pub version: String,
    /// The code that runs.
    pub component: ComponentDigest,
    /// What it may do.
    pub grant: GrantDigest,
    /// Canonical; what the tool runs on.
    pub arguments: CanonicalJson,
    /// Compared when the key comes again.
    pub intent: Intent,
    /// Compared at approval and in the claim.
    pub fingerprint: Fingerprint,
    /// In whose name.
    pub actor: Principal,
    /// Whose token proposed it; never approves it.
    pub proposer: Principal,
    /// Canonical text of the [`crate::plan::Plan`].
    pub plan: CanonicalJson,
    /// Canonical text of the [`crate::tool::Preview`].
    pub preview: Option<CanonicalJson>,
    /// Distinct approvers needed.
    pub approvals_required: u32,
    /// When the approval runs out, unless a write stands.
    pub approval_expires: Timestamp,
    /// After this no new write is claimed.
    pub execution_deadline: Timestamp,
    /// The tenant's policy epoch at proposal.
    pub policy_epoch: i64,
    /// Workers run it as soon as it is approved.
    pub run_by_itself: bool,
    /// The action that this one replaces.
    pub supersedes: Option<ActionId>,
    /// The action that this one makes good.
    pub compensates: Option<ActionId>,
    /// When it was proposed.
    pub created: Timestamp,
    /// Seed of the randomness that the component sees.
    pub seed: [u8; 32],

    /// Where it is.
    pub state: State,
    /// What was approved; from `approved` on equal to `fingerprint`.
    pub approved_fingerprint: Option<Fingerprint>,
    /// When the last approval needed was given.
    pub approved_at: Option<Timestamp>,
    /// Decisions in order.
    pub approvals: Vec<Approval>,
    /// How often it was claimed.
    pub attempt: AttemptNumber,
    /// The live attempt; present if and only if `executing`.
    pub attempt_id: Option<AttemptId>,
    /// Until when the live attempt may start effects.
    pub lease_expires: Option<Timestamp>,
    /// The effect that is `in_flight`.
    pub in_flight: Option<Ordinal>,
    /// Somebody asked for it to stop, with these words.
    pub cancel_requested: Option<String>,
    /// Attempts that may still follow.
    pub attempts_left: u32,
    /// Repeats of unknown effects that may still follow without a person.
    pub repeats_left: u32,
    /// When the next attempt is due.
    pub next_attempt: Option<Timestamp>,
    /// When its first write was claimed.
    pub first_write: Option<Timestamp>,
    /// Effects whose outcome is unknown.
    pub unknown_effects: u32,
    /// Writes that stand.
    pub standing_writes: u32,
    /// Effects recorded.
    pub effects: u32,
    /// The action that replaces it.
    pub superseded_by: Option<ActionId>,
    /// The provider's name for what happened.
    pub provider_reference: Option<String>,
    /// Canonical text; present if and only if `succeeded`.
    pub result: Option<CanonicalJson>,
    /// Why it ended without a result, or what the last attempt died of.
    pub error: Option<ActionError>,
    /// When the row last changed.
    pub updated: Timestamp,
    /// Counts changes of the row; what a decision was made on.
    pub version_counter: i64,
    /// Number of the last event.
    pub event_seq: u32,
    /// The ledger lost commits while this action was open: rows of writes that
    /// it made may be missing. Put here by [`Fact::LedgerRewound`]; for ever.
    pub rewound: bool,
    /// The event that began the doubt which somebody was told of last.
    pub announced: Option<u32>,
}

/// Whom an action waits for that nothing of ours can move on now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// An approver, until the approval runs out.
    Approver,
    /// The provider: it is asked again, or looked up, by itself.
    Provider,
    /// Somebody who finds out what came of a send, and says so.
    Person,
}

impl Action {
    /// What the row knows about the action's effects.
    pub fn standing(&self) -> Standing {
        Standing {
            open: self.in_flight.is_some() || self.unknown_effects > 0,
            // Of writes whose rows are lost, nobody knows that none stands.
            writes_stand: self.standing_writes > 0
                || (self.rewound && !crate::planted::on("rewound-ends-as-cancelled")),
        }
    }

    /// Whom it waits for, if not for a worker or its caller. A doubt waits for a
    /// person once nothing is to be tried again, or its repeats are spent.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        match self.state {
            State::AwaitingApproval => Some(WaitsFor::Approver),
            State::OutcomeUnknown if self.next_attempt.is_none() || self.repeats_left == 0 => {
                Some(WaitsFor::Person)
            }
            State::OutcomeUnknown => Some(WaitsFor::Provider),
            _ => None,
        }
    }

    /// It waits for a person and nobody was told of this doubt.
    pub fn is_to_be_announced(&self) -> bool {
        self.waits_for() == Some(WaitsFor::Person) && self.announced != Some(self.event_seq)
    }
}
