//! The most that the operator of a host lets any grant ask for.

use std::time::Duration;

use super::units::{show_duration, show_size};
use super::{Grant, GrantError};

/// One ceiling for all tools of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// Bytes of linear memory.
    pub memory: u64,
    /// CPU time of one call.
    pub cpu: Duration,
    /// Duration of one call.
    pub wall: Duration,
    /// Duration of one send. Leases are longer than this, so recovery waits for it.
    pub send: Duration,
    /// Effects of one action.
    pub effects: u32,
    /// Bytes of canonical arguments. What is longer, no person reads.
    pub arguments: u64,
    /// Bytes of a canonical result.
    pub result: u64,
    /// Bytes of log of one call.
    pub log: u64,
    /// Bytes of one request body.
    pub request_body: u64,
    /// Bytes of one answer.
    pub response_body: u64,
    /// Writes beyond the planned one, per route.
    pub unplanned: u32,
    /// Fewest approvers that a grant has to ask for.
    pub least_required: u8,
    /// Whether grants may open private addresses at all.
    pub allow_private: bool,
}

impl Default for Ceiling {
    /// Room for real tools on one machine; chosen, raise what is in the way.
    /// Private addresses are open to grants that ask: that is off by default in
    /// a grant, and whoever installs grants is an operator.
    fn default() -> Ceiling {
        Ceiling {
            memory: 512 << 20,
            cpu: Duration::from_secs(60),
            wall: Duration::from_secs(15 * 60),
            send: Duration::from_secs(120),
            effects: 256,
            arguments: 1 << 20,
            result: 4 << 20,
            log: 1 << 20,
            request_body: 16 << 20,
            response_body: 64 << 20,
            unplanned: 64,
            least_required: 0,
            allow_private: true,
        }
    }
}

impl Grant {
    /// Whether this host allows all that the grant asks for.
    ///
    /// # Errors
    /// [`GrantError::AboveCeiling`] for the first key that asks for more.
    pub fn within(&self, ceiling: &Ceiling) -> Result<(), GrantError> {
        let limits = self.limits();
        let size = |key: &str, asked: u64, most: u64| at_most(key, asked, most, show_size);
        let time = |key: &str, asked: Duration, most: Duration| at_most(key, asked, most, show_duration);
        size("limits.memory", limits.memory, ceiling.memory)?;
        time("limits.cpu", limits.cpu, ceiling.cpu)?;
        time("limits.wall", limits.wall, ceiling.wall)?;
        time("limits.send", limits.send, ceiling.send)?;
        at_most("limits.effects", limits.effects, ceiling.effects, |n| n.to_string())?;
        size("limits.arguments", limits.arguments, ceiling.arguments)?;
        size("limits.result", limits.result, ceiling.result)?;
        size("limits.log", limits.log, ceiling.log)?;
        if self.approval().required < ceiling.least_required {
            return Err(GrantError::AboveCeiling {
                key: "approval.required".to_owned(),
                asked: self.approval().required.to_string(),
                allowed: format!("no fewer than {}", ceiling.least_required),
            });
        }
        for (index, route) in self.http().iter().enumerate() {
            let key = |name: &str| format!("http[{index}].{name}");
            size(&key("request_body"), route.request_body, ceiling.request_body)?;
            size(&key("response_body"), route.response_body, ceiling.response_body)?;
            at_most(&key("unplanned"), route.unplanned, ceiling.unplanned, |n| n.to_string())?;
            if route.allow_private && !ceiling.allow_private {
                return Err(GrantError::AboveCeiling {
                    key: key("allow_private"),
                    asked: "true".to_owned(),
                    allowed: "only false".to_owned(),
                });
            }
        }
        if let Some(email) = self.email() {
            size("email.size", email.size, ceiling.request_body)?;
            at_most("email.unplanned", email.unplanned, ceiling.unplanned, |n| n.to_string())?;
        }
        Ok(())
    }
}

fn at_most<T: PartialOrd + Copy>(
    key: &str,
    asked: T,
    most: T,
    show: fn(T) -> String,
) -> Result<(), GrantError> {
    if asked <= most {
        return Ok(());
    }
    Err(GrantError::AboveCeiling {
        key: key.to_owned(),
        asked: show(asked),
        allowed: format!("at most {}", show(most)),
    })
}
