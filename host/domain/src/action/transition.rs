//! The transition function: one `match`, no exceptions elsewhere. The live
//! path, the reaper and the audit verifier all call it.

use super::fact::Fact;
use super::state::State;

/// A fact that cannot be stated about an action in this state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an action that is {from} cannot become something else by \"{fact}\"")]
pub struct IllegalTransition {
    /// Where the action is.
    pub from: State,
    /// The fact's name.
    pub fact: &'static str,
}

/// The state of an action that was just proposed.
pub const FIRST: State = State::Proposed;

/// Where a fact leads from a state.
///
/// # Errors
/// [`IllegalTransition`] when the fact cannot be stated there; nothing follows
/// a terminal state, ever.
pub fn next(from: State, fact: &Fact) -> Result<State, IllegalTransition> {
    use State as S;
    let to = match (from, fact) {
        (S::Proposed, Fact::PolicyAllowed) => S::Approved,
        (S::Proposed, Fact::ApprovalRequired { .. }) => S::AwaitingApproval,
        (S::Proposed, Fact::PolicyDenied) => S::Cancelled,

        (S::AwaitingApproval, Fact::Approved { .. }) => S::Approved,
        (S::AwaitingApproval, Fact::Declined { .. }) => S::Cancelled,
        (
            S::AwaitingApproval | S::Approved,
            Fact::Cancelled { .. } | Fact::Superseded | Fact::Changed { .. },
        ) => S::Cancelled,
        (S::AwaitingApproval | S::Approved, Fact::Expired { .. }) => S::Expired,
        (S::Approved, Fact::Claimed { .. }) => S::Executing,

        // An attempt with an open effect has one way out: nobody knows.
        (S::Executing, Fact::OutcomeLost { .. }) => S::OutcomeUnknown,
        (S::Executing, Fact::Succeeded { standing, .. }) if !standing.open => S::Succeeded,
        (
            S::Executing,
            Fact::FailedRetryably { standing, .. }
            | Fact::WorkerLost { standing }
            | Fact::Released { standing },
        ) if !standing.open => S::FailedRetryable,
        (S::Executing, Fact::FailedTerminally { standing, .. }) if !standing.open => S::FailedTerminal,
        (S::Executing, Fact::StoppedBeforeWrites { standing, .. })
            if !standing.open && !standing.writes_stand =>
        {
            S::Cancelled
        }

        (S::FailedRetryable, Fact::Claimed { .. }) => S::Executing,
        (S::FailedRetryable, Fact::RetriesExhausted) => S::FailedTerminal,
        (S::FailedRetryable, Fact::Cancelled { standing, .. } | Fact::Changed { standing, .. }) => {
            // What stands outside cannot be called cancelled.
            if standing.writes_stand { S::FailedTerminal } else { S::Cancelled }
        }
        (S::FailedRetryable, Fact::Expired { standing }) if !standing.writes_stand => S::Expired,

        (
            S::OutcomeUnknown,
            Fact::FoundDone { others_unknown, .. } | Fact::FoundNotDone { others_unknown, .. },
        ) => {
            if *others_unknown {
                S::OutcomeUnknown
            } else {
                S::FailedRetryable
            }
        }
        (S::OutcomeUnknown, Fact::SafeToRepeat { .. }) => S::Executing,
        (S::OutcomeUnknown, Fact::GivenUp { .. }) => S::FailedTerminal,

        (
            S::AwaitingApproval | S::Approved | S::Executing | S::FailedRetryable | S::OutcomeUnknown,
            Fact::LedgerRewound,
        ) => S::OutcomeUnknown,

        _ => return Err(IllegalTransition { from, fact: fact.name() }),
    };
    Ok(to)
}
