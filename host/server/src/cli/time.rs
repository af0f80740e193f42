//! Instants as people read them. The host's times are the ones that count; this
//! side's clock only says how far away they are.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use countersign_domain::time::{Timestamp, micros};

use super::text::plain;

/// This side's clock.
#[expect(clippy::disallowed_methods, reason = "only for what people read; nothing is decided by it")]
pub fn now() -> Timestamp {
    Timestamp::from_micros(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)))
}

/// `2026-10-01 12:15:00 UTC` for an RFC 3339 text in UTC; what is none is shown
/// as it is.
pub fn moment(text: &str) -> String {
    match (read(text), text.get(..19)) {
        (Some(_), Some(seconds)) if text.ends_with('Z') => format!("{} UTC", seconds.replace('T', " ")),
        _ => plain(text),
    }
}

/// The same, and how far it is from `now`.
pub fn moment_from(text: &str, now: Timestamp) -> String {
    let shown = moment(text);
    match read(text) {
        None => shown,
        Some(at) if at > now => format!("{shown} (in {})", about(at.since(now))),
        Some(at) => format!("{shown} ({} ago)", about(now.since(at))),
    }
}

fn read(text: &str) -> Option<Timestamp> {
    serde_json::from_value(text.into()).ok()
}

/// A length of time, rounded down to what matters at its size.
pub fn about(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_read_with_its_distance() {
        let now = read("2026-10-01T12:00:00Z").unwrap();
        for (text, shown) in [
            ("2026-10-01T12:15:00.5Z", "2026-10-01 12:15:00 UTC (in 15 min)"),
            ("2026-10-01T11:59:59Z", "2026-10-01 11:59:59 UTC (1 s ago)"),
            ("2026-10-09T12:00:00Z", "2026-10-09 12:00:00 UTC (in 8 days)"),
            ("soon\u{1b}", "soon\\u{1b}"),
            ("", ""),
        ] {
            assert_eq!(moment_from(text, now), shown);
        }
    }
}
