//! `guest_processes`: where components run.

use super::{ConfigError, invalid};

/// The most that one tenant may be given; all of them together have as many.
const MOST: i64 = 32;

/// In which processes components run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestProcesses {
    /// In the host's own. For operators who wrote every component themselves:
    /// calls are faster, and a component that breaks out of the engine is in the
    /// process that has the secrets.
    Off,
    /// In processes of their own, so many per tenant at the most.
    PerTenant(usize),
}

impl Default for GuestProcesses {
    /// As many as half of the processors, four at the most: each is one thread, so
    /// a tenant whose components do nothing but compute leaves half of the machine
    /// to the others and to the host.
    fn default() -> GuestProcesses {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        GuestProcesses::PerTenant((processors / 2).clamp(1, 4))
    }
}

/// Reads the key.
///
/// # Errors
/// It is neither `"off"` nor a number that may be.
pub fn guest_processes(value: &toml::Value) -> Result<GuestProcesses, ConfigError> {
    match value {
        toml::Value::String(text) if text == "off" => Ok(GuestProcesses::Off),
        toml::Value::Integer(count @ 1..=MOST) => {
            Ok(GuestProcesses::PerTenant(usize::try_from(*count).unwrap_or(1)))
        }
        other => {
            let shown = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            Err(invalid(
                "guest_processes",
                shown,
                format!("how many processes one tenant's tools may run in, 1 to {MOST}, or \"off\""),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_run_in_processes_of_their_own_unless_that_is_switched_off_in_so_many_words() {
        assert!(matches!(GuestProcesses::default(), GuestProcesses::PerTenant(1..=4)));
        let read = |text: &str| {
            let table: toml::Table = format!("guest_processes = {text}").parse().expect("a table");
            guest_processes(&table["guest_processes"]).map_err(|error| error.to_string())
        };
        assert_eq!(read("\"off\""), Ok(GuestProcesses::Off));
        assert_eq!(read("3"), Ok(GuestProcesses::PerTenant(3)));
        for bad in ["0", "-1", "33", "\"Off\"", "\"no\"", "false", "1.5", "[]"] {
            let refused = read(bad).expect_err(bad);
            assert!(refused.contains("guest_processes") && refused.contains("\"off\""), "{refused}");
        }
    }
}
