//! `[limits]`: the most that a grant of this host may ask for. A key that is left out keeps the
//! default, which has room for real tools on one machine.

use std::time::Duration;

use countersign_domain::grant::{Ceiling, parse_duration, parse_size};
use serde::Deserialize;

use super::{ConfigError, invalid};

/// The largest memory that the sandbox has places for.
const MOST_MEMORY: u64 = 1 << 30;

/// The section. Keys are called as in a grant, and mean the most that one may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    memory: Option<String>,
    cpu: Option<String>,
    wall: Option<String>,
    send: Option<String>,
    effects: Option<u32>,
    arguments: Option<String>,
    result: Option<String>,
    log: Option<String>,
    request_body: Option<String>,
    response_body: Option<String>,
    unplanned: Option<u32>,
    /// Fewest approvers that a grant has to ask for.
    least_required: Option<u8>,
    allow_private: Option<bool>,
}

impl Limits {
    /// The ceiling that it makes.
    ///
    /// # Errors
    /// The first value that is not one, with what it must be.
    pub fn ceiling(&self) -> Result<Ceiling, ConfigError> {
        let usual = Ceiling::default();
        let least_required = self.least_required.unwrap_or(usual.least_required);
        if least_required > 5 {
            let why = "a grant cannot ask for more than 5 approvers";
            return Err(invalid("limits.least_required", least_required.to_string(), why));
        }
        let memory = size("limits.memory", &self.memory, usual.memory)?;
        if memory > MOST_MEMORY {
            let why = "places for components are 1GiB large in this version; write \"1GiB\" or less";
            return Err(invalid("limits.memory", self.memory.clone().unwrap_or_default(), why));
        }
        Ok(Ceiling {
            memory,
            cpu: time("limits.cpu", &self.cpu, usual.cpu)?,
            wall: time("limits.wall", &self.wall, usual.wall)?,
            send: time("limits.send", &self.send, usual.send)?,
            effects: self.effects.unwrap_or(usual.effects),
            arguments: size("limits.arguments", &self.arguments, usual.arguments)?,
            result: size("limits.result", &self.result, usual.result)?,
            log: size("limits.log", &self.log, usual.log)?,
            request_body: size("limits.request_body", &self.request_body, usual.request_body)?,
            response_body: size("limits.response_body", &self.response_body, usual.response_body)?,
            unplanned: self.unplanned.unwrap_or(usual.unplanned),
            least_required,
            allow_private: self.allow_private.unwrap_or(usual.allow_private),
        })
    }
}

fn size(name: &'static str, text: &Option<String>, usual: u64) -> Result<u64, ConfigError> {
    let Some(text) = text else { return Ok(usual) };
    parse_size(text).map_err(|why| invalid(name, text.clone(), why))
}

fn time(name: &'static str, text: &Option<String>, usual: Duration) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(usual) };
    parse_duration(text).map_err(|why| invalid(name, text.clone(), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Ceiling, String> {
        let limits: Limits = toml::from_str(text).map_err(|error| error.to_string())?;
        limits.ceiling().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_keeps_its_default() {
        assert_eq!(read(""), Ok(Ceiling::default()));
        let ceiling = read("memory = \"128MiB\"\nwall = \"1m\"\nleast_required = 1\nallow_private = false");
        let expected = Ceiling {
            memory: 128 << 20,
            wall: Duration::from_secs(60),
            least_required: 1,
            allow_private: false,
            ..Ceiling::default()
        };
        assert_eq!(ceiling, Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_named_and_said_how_it_should_be() {
        for (text, hint) in [
            ("memory = \"64\"", "limits.memory"),
            ("memory = \"2GiB\"", "1GiB"),
            ("cpu = \"2 s\"", "ms, s, m, h, d"),
            ("memori = \"64MiB\"", "memory"),
            ("least_required = 6", "5 approvers"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(hint), "{refused}");
        }
    }
}
