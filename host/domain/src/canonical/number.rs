//! Which numbers are exact: the text, the double it reads as, and that double's
//! canonical text must all denote one decimal value.

use super::Refusal;

/// 2^53 − 1, the largest integer such that it and its neighbours are all
/// doubles (RFC 7493 §2.2).
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Checks one number that is already known to follow the JSON grammar.
pub(super) fn check(text: &str) -> Result<(), Refusal> {
    // Correctly rounded, as the standard library promises.
    let value: f64 = text.parse().map_err(|_| Refusal::Expected("a number"))?;
    let canonical = match serde_json_canonicalizer::to_string(&value) {
        Ok(canonical) if value.is_finite() => canonical,
        _ => return Err(if is_integer(text) { Refusal::IntegerOutOfRange } else { Refusal::InexactNumber }),
    };
    // An integer is what is written as one: in the text, or in the canonical
    // form, which has no exponent below 1e21. Otherwise `1e16` would be let in
    // and its own canonical form refused.
    if value.abs() > MAX_SAFE_INTEGER && (is_integer(text) || is_integer(&canonical)) {
        return Err(Refusal::IntegerOutOfRange);
    }
    let written = Decimal::of(text);
    if written.digits.is_empty() && text.starts_with('-') {
        return Err(Refusal::NegativeZero);
    }
    if written != Decimal::of(&canonical) {
        return Err(Refusal::InexactNumber);
    }
    Ok(())
}

fn is_integer(text: &str) -> bool {
    !text.contains(['.', 'e', 'E'])
}

/// A decimal value without its spelling: 0.digits × 10^exponent, the digits
/// without zeros at either end. Zero has no digits.
#[derive(PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Decimal {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            // An exponent beyond i64 belongs to zero, or to a value that is no
            // double and never comes here.
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().unwrap_or(0)),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let Some(first) = all.iter().position(|digit| *digit != b'0') else {
            return Decimal { negative, digits: Vec::new(), exponent: 0 };
        };
        let last = all.iter().rposition(|digit| *digit != b'0').unwrap_or(first);
        Decimal {
            negative,
            digits: all[first..=last].to_vec(),
            exponent: exponent.saturating_add(whole.len() as i64).saturating_sub(first as i64),
        }
    }
}
