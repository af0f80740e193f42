//! Durations and sizes as people write them: one number, one unit.

use std::time::Duration;

/// Longest first, so that the largest unit that divides is the one shown.
const DURATIONS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZES: &[(&str, u64)] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `2s`, `15m`, `24h`, `400d`, `250ms`.
///
/// # Errors
/// What to write instead.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let wanted = "a duration is a whole number and one of ms, s, m, h, d: \"15m\"";
    Ok(Duration::from_millis(parse(text, DURATIONS, wanted)?))
}

/// `64MiB`, `256KiB`, `1GiB`, `512B`, in bytes.
///
/// # Errors
/// What to write instead.
pub fn parse_size(text: &str) -> Result<u64, &'static str> {
    let wanted = "a size is a whole number and one of B, KiB, MiB, GiB: \"64MiB\"";
    parse(text, SIZES, wanted)
}

/// The shortest text that [`parse_duration`] reads as this; whole milliseconds.
pub fn show_duration(duration: Duration) -> String {
    // A day is what people call 24 hours; days begin with the second.
    let units = if duration < Duration::from_secs(2 * 86_400) { &DURATIONS[1..] } else { DURATIONS };
    show(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), units)
}

/// The shortest text that [`parse_size`] reads as this many bytes.
pub fn show_size(bytes: u64) -> String {
    show(bytes, SIZES)
}

fn parse(text: &str, units: &[(&str, u64)], wanted: &'static str) -> Result<u64, &'static str> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or(wanted)?;
    if digits.is_empty() {
        return Err(wanted);
    }
    // Only digits by now: what does not parse does not fit.
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor));
    number.ok_or("the number is too large")
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .find(|(_, factor)| value != 0 && value.is_multiple_of(*factor))
        .or(units.last())
        .map_or_else(|| value.to_string(), |(name, factor)| format!("{}{name}", value / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_and_one_unit_and_back() {
        for (text, seconds) in [("2s", 2), ("15m", 900), ("24h", 86_400), ("400d", 34_560_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for (text, bytes) in [("64MiB", 64 << 20), ("256KiB", 256 << 10), ("1GiB", 1 << 30), ("512B", 512)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(show_size(bytes), text);
        }
        for text in ["250ms", "2s", "90s", "15m", "24h", "36h", "2d", "400d"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!((show_size(1025).as_str(), show_size(0).as_str()), ("1025B", "0B"));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "s",
            "15",
            "15 m",
            "1.5s",
            "-1s",
            "+1s",
            "1h30m",
            "15M",
            "15min",
            "１s",
            "99999999999999999999s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["", "64", "64MB", "64mib", "64 MiB", "1.5MiB", "-1B", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("18446744073709551615d"), Err("the number is too large"));
    }
}
