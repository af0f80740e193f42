//! Roles, and who may do what. Deny by default: what is not listed here is not
//! permitted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::effect::text_enum;
use crate::id::InvalidId;

text_enum! {
    /// What a token is good for. A principal may hold several, but proposing
    /// and approving the same action never fall together.
    Role("a role") {
        /// Proposes and executes; can never approve.
        Agent = "agent",
        /// Approves and declines.
        Approver = "approver",
        /// Installs tools, sets grants, resolves unknown outcomes.
        Operator = "operator",
        /// Makes and revokes tokens.
        Admin = "admin",
    }
}

text_enum! {
    /// Something a surface lets a caller do.
    Verb("a verb") {
        /// Look at tools, actions, effects, events.
        Look = "look",
        /// Propose, execute, supersede.
        Propose = "propose",
        /// Propose in somebody else's name.
        ActFor = "act_for",
        /// Approve and decline.
        Decide = "decide",
        /// Cancel.
        Cancel = "cancel",
        /// Install tools, change grants, pause.
        Install = "install",
        /// Say what came of an unknown effect.
        Resolve = "resolve",
        /// Make, list and revoke tokens.
        Tokens = "tokens",
        /// Read metrics.
        Metrics = "metrics",
    }
}

/// Whether any of these roles may do it.
pub fn may(roles: &[Role], verb: Verb) -> bool {
    let needed: &[Role] = match verb {
        Verb::Look => Role::ALL,
        Verb::Propose => &[Role::Agent],
        // A right of its own, held by platform services that speak for people.
        Verb::ActFor => &[Role::Operator],
        Verb::Decide => &[Role::Approver],
        Verb::Cancel => &[Role::Agent, Role::Operator],
        Verb::Install | Verb::Resolve | Verb::Metrics => &[Role::Operator],
        Verb::Tokens => &[Role::Admin],
    };
    // A token that may propose can never decide, whatever else it may do.
    if verb == Verb::Decide && roles.contains(&Role::Agent) {
        return false;
    }
    roles.iter().any(|role| needed.contains(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_never_decides_however_many_roles_it_holds() {
        assert!(may(&[Role::Approver], Verb::Decide));
        assert!(!may(&[Role::Agent], Verb::Decide));
        assert!(!may(&[Role::Agent, Role::Approver], Verb::Decide));
        assert!(!may(Role::ALL, Verb::Decide));
        assert!(!may(&[], Verb::Look));
    }
}
