//! Instants. The domain never reads a clock: an instant is an argument, and
//! its source is the database's clock (on SQLite, the host's).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant: microseconds since 1970-01-01T00:00:00Z, the resolution both
/// databases keep. Text form: RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant moved on; saturates at the end of representable time.
    pub fn plus(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(by)))
    }

    /// This instant moved back; saturates.
    pub fn minus(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(by)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A duration in the resolution of [`Timestamp`]; saturates.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(instant) => fmt::Display::fmt(&instant, f),
            // Outside jiff's years −9999..=9999: only a saturated sum gets here.
            Err(_) => write!(f, "{}µs since 1970", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(d)?;
        let instant: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Timestamp(instant.as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_survives_its_text_form() {
        let at = Timestamp::from_micros(1_790_000_000_123_456);
        let text = serde_json::to_string(&at).unwrap();
        assert!(text.ends_with("Z\""), "{text}");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), at);
    }

    #[test]
    fn arithmetic_saturates_and_never_goes_negative() {
        let at = Timestamp::from_micros(10);
        assert_eq!(at.since(Timestamp::from_micros(20)), Duration::ZERO);
        assert_eq!(at.plus(Duration::MAX), Timestamp::from_micros(i64::MAX));
    }
}
