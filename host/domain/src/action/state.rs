//! The ten states of an action, as every surface names them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::effect::text_enum;
use crate::id::InvalidId;

text_enum! {
    /// Where an action is. Each says who puts a row there and who takes it away.
    State("an action state") {
        /// Proposed, not yet judged. Never seen alone: the same commit moves on.
        Proposed = "proposed",
        /// Put here at proposal when policy asks for a person; taken away by
        /// the last approval needed, a decline, a cancel, or the reaper when
        /// the approval expires.
        AwaitingApproval = "awaiting_approval",
        /// Put here by the last approval, or at proposal when policy allows;
        /// taken away by an action claim, a cancel, or the reaper at expiry.
        Approved = "approved",
        /// Put here by an action claim, and only then has it a lease; taken
        /// away by the end of its attempt, or by the reaper when the lease ran
        /// out.
        Executing = "executing",
        /// It ran and returned a result. Nothing takes it away.
        Succeeded = "succeeded",
        /// An attempt ended, no outcome is unknown, another may follow. Put
        /// here by a worker, the reaper, or a settled unknown; taken away by
        /// the next claim, or by the reaper when the budget is spent.
        FailedRetryable = "failed_retryable",
        /// It ended without a result. Nothing takes it away.
        FailedTerminal = "failed_terminal",
        /// An effect was perhaps sent and nobody knows. Put here by a worker or
        /// the reaper; taken away by a lookup, a person, or a repeat under the
        /// provider's own idempotency key.
        OutcomeUnknown = "outcome_unknown",
        /// It ended before anything outside happened. Nothing takes it away.
        Cancelled = "cancelled",
        /// Its approval ran out before anything outside happened. Nothing takes
        /// it away.
        Expired = "expired",
    }
}

impl State {
    /// Whether nothing can ever follow.
    pub const fn is_terminal(self) -> bool {
        matches!(self, State::Succeeded | State::FailedTerminal | State::Cancelled | State::Expired)
    }

    /// Whether somebody runs it or will, without a person.
    pub const fn is_running(self) -> bool {
        matches!(self, State::Executing | State::FailedRetryable)
    }
}
