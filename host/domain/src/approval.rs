//! Approvals: who may decide about an action, and what a decision says.

use serde::{Deserialize, Serialize};

use crate::id::{Fingerprint, Principal};
use crate::time::Timestamp;

/// One approver's yes. An approver counts once, however often they press.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Who.
    pub by: Principal,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Their words.
    pub note: Option<String>,
    /// What they approved.
    pub fingerprint: Fingerprint,
}

/// Why somebody may not decide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MayNotDecide {
    /// The proposer decides nothing about its own proposal.
    #[error("{0} proposed this action and cannot decide about it: another approver has to")]
    Proposer(Principal),
    /// It was proposed in their name.
    #[error(
        "this action was proposed in the name of {0}, who cannot decide about it: another approver has to"
    )]
    Actor(Principal),
}

/// Nobody decides about what they proposed, or what was proposed for them,
/// whatever tokens they hold.
///
/// # Errors
/// [`MayNotDecide`] names which of the two they are.
pub fn may_decide(approver: &Principal, proposer: &Principal, actor: &Principal) -> Result<(), MayNotDecide> {
    if approver == proposer {
        return Err(MayNotDecide::Proposer(approver.clone()));
    }
    if approver == actor {
        return Err(MayNotDecide::Actor(approver.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_decides_about_their_own() {
        let name = |text: &str| text.parse::<Principal>().unwrap();
        let (ann, ben, cyd) = (name("ann"), name("ben"), name("cyd"));
        assert!(may_decide(&ann, &ann, &ann).is_err());
        assert!(may_decide(&ann, &ben, &ann).is_err());
        assert!(may_decide(&ann, &ben, &cyd).is_ok());
    }
}
