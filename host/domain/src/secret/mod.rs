//! Secrets: their names, where a grant puts them, and how they are taken out of
//! what comes back.
//!
//! A component never holds a secret and never says where one goes: only header
//! templates of its grant do ([`HeaderTemplate`]), and text of the component is
//! never expanded. What a provider sends back is searched for the values by the
//! [`Redactor`] before anybody, the ledger included, sees it.
//!
//! This module does not know where values come from; it holds one no longer
//! than its owner does and wipes it on drop. Not defended: copies that an
//! allocator or an HTTP library made on the way out.

mod redact;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

pub use redact::Redactor;

/// Shortest value that counts as a secret, in bytes. Chosen: below it, its
/// encoded forms turn up in ordinary text, and redaction would eat answers.
pub const MIN_SECRET_BYTES: usize = 8;

/// Longest value, in bytes. Chosen: a header of one is near what servers take.
pub const MAX_SECRET_BYTES: usize = 8 * 1024;

/// Why a secret, its name or a template is not accepted. No message contains a
/// value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not the name of a secret.
    #[error("a secret's name is 1 to 64 letters, digits, `_` or `-`, beginning with a letter")]
    Name,
    /// The value is shorter than [`MIN_SECRET_BYTES`] or longer than [`MAX_SECRET_BYTES`].
    #[error(
        "a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes; shorter ones cannot be found again in an answer"
    )]
    Size,
    /// The value holds a control character, a line break for example.
    #[error("a secret holds no control characters; only one line break at its end is ignored")]
    ControlCharacter,
    /// The template has `{{` without a well-formed placeholder, or a stray `}}`.
    #[error("the only placeholder is {{{{secret:name}}}}, written exactly so")]
    Placeholder,
    /// The template is empty, or has characters that no header value may have.
    #[error("a header value is printable ASCII without spaces at its ends, and not empty")]
    HeaderValue,
    /// A template names a secret that nobody configured.
    #[error("no secret named `{0}` is configured")]
    Missing(SecretName),
    /// The value cannot stand in a header.
    #[error("the secret `{0}` holds characters that no header may have; it must be printable ASCII")]
    NotForHeaders(SecretName),
}

/// The name by which grants, records and messages speak of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

impl SecretName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<SecretName, SecretError> {
        let fits = text.len() <= 64
            && text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if fits { Ok(SecretName(text.to_owned())) } else { Err(SecretError::Name) }
    }
}

impl TryFrom<String> for SecretName {
    type Error = SecretError;
    fn try_from(text: String) -> Result<SecretName, SecretError> {
        text.parse()
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> String {
        name.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of a secret. Wiped on drop; has no `Display`, no `Serialize`, no
/// `Clone` (share it behind an `Arc`), and a `Debug` that says nothing.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct SecretValue(String);

impl SecretValue {
    /// From the content of a file or variable; one line break at its end, as
    /// editors leave it, does not belong to it.
    ///
    /// # Errors
    /// [`SecretError::Size`], [`SecretError::ControlCharacter`].
    pub fn new(text: String) -> Result<SecretValue, SecretError> {
        let text = Zeroizing::new(text);
        let line =
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
        if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&line.len()) {
            return Err(SecretError::Size);
        }
        if line.chars().any(char::is_control) {
            return Err(SecretError::ControlCharacter);
        }
        Ok(SecretValue(line.to_owned()))
    }

    /// The value itself. Each use of this is a place to look at twice.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue([redacted])")
    }
}

/// The value of a header that the host sets: literal text and placeholders,
/// `Bearer {{secret:stripe_key}}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderTemplate {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Part {
    Literal(String),
    Secret(SecretName),
}

impl HeaderTemplate {
    /// The template as it was written; secrets stand in it by name.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The secrets it needs, in order of appearance.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        self.parts.iter().filter_map(|part| match part {
            Part::Secret(name) => Some(name),
            Part::Literal(_) => None,
        })
    }

    /// The header's value, to be sent and wiped. Values are put in as they are
    /// and not expanded again.
    ///
    /// # Errors
    /// [`SecretError::Missing`] if `value_of` does not know a name, so that a
    /// request never goes out with an empty header; [`SecretError::NotForHeaders`].
    pub fn render<'v>(
        &self,
        value_of: impl Fn(&SecretName) -> Option<&'v SecretValue>,
    ) -> Result<Zeroizing<String>, SecretError> {
        let mut out = Zeroizing::new(String::with_capacity(256));
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Secret(name) => {
                    let value = value_of(name).ok_or_else(|| SecretError::Missing(name.clone()))?.expose();
                    if !is_header_text(value) {
                        return Err(SecretError::NotForHeaders(name.clone()));
                    }
                    out.push_str(value);
                }
            }
        }
        Ok(out)
    }
}

/// Printable ASCII, no space at either end: the part of RFC 9110's field values
/// that nobody reads in two ways.
fn is_header_text(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x20..=0x7e).contains(&b)) && text.trim() == text
}

impl FromStr for HeaderTemplate {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<HeaderTemplate, SecretError> {
        if !is_header_text(text) {
            return Err(SecretError::HeaderValue);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let literal = &rest[..rest.find("{{").unwrap_or(rest.len())];
            if literal.contains("}}") {
                return Err(SecretError::Placeholder);
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            rest = &rest[literal.len()..];
            if let Some(placeholder) = rest.strip_prefix("{{") {
                let (name, after) = placeholder
                    .strip_prefix("secret:")
                    .and_then(|inner| inner.split_once("}}"))
                    .ok_or(SecretError::Placeholder)?;
                parts.push(Part::Secret(name.parse()?));
                rest = after;
            }
        }
        Ok(HeaderTemplate { text: text.to_owned(), parts })
    }
}

impl TryFrom<String> for HeaderTemplate {
    type Error = SecretError;
    fn try_from(text: String) -> Result<HeaderTemplate, SecretError> {
        text.parse()
    }
}

impl From<HeaderTemplate> for String {
    fn from(template: HeaderTemplate) -> String {
        template.text
    }
}

impl fmt::Display for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SecretName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "stripe_key", "Stripe-Key-2", &"x".repeat(64)] {
            assert!(good.parse::<SecretName>().is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "-a", "a b", "a.b", "a}", "a{", "é", "a\n", &"x".repeat(65)] {
            assert_eq!(bad.parse::<SecretName>(), Err(SecretError::Name), "{bad}");
        }
    }

    #[test]
    fn c06_p6_a_value_shows_itself_to_nobody() {
        let value = SecretValue::new("correct horse\n".to_owned()).unwrap();
        assert_eq!(value.expose(), "correct horse");
        assert_eq!(format!("{value:?} {:#?}", Some(&value)).matches("horse").count(), 0);
        assert_eq!(SecretValue::new("12345678\r\n".to_owned()).unwrap().expose(), "12345678");
        for (bad, why) in [
            ("", SecretError::Size),
            ("1234567", SecretError::Size),
            ("1234567\n", SecretError::Size),
            ("12345678\n\n", SecretError::ControlCharacter),
            ("1234\n5678", SecretError::ControlCharacter),
            ("1234\x005678", SecretError::ControlCharacter),
        ] {
            assert_eq!(SecretValue::new(bad.to_owned()).unwrap_err(), why, "{bad:?}");
        }
        assert!(SecretValue::new("x".repeat(MAX_SECRET_BYTES)).is_ok());
        assert!(SecretValue::new("x".repeat(MAX_SECRET_BYTES + 1)).is_err());
    }

    #[test]
    fn c05_a_template_is_filled_from_names() {
        let template: HeaderTemplate = "Bearer {{secret:stripe_key}}".parse().unwrap();
        assert_eq!(template.secrets().collect::<Vec<_>>(), [&name("stripe_key")]);
        let value = SecretValue::new("sk_test_{{secret:x}}".to_owned()).unwrap();
        let filled = template.render(|asked| (*asked == name("stripe_key")).then_some(&value)).unwrap();
        // The value is not expanded again.
        assert_eq!(filled.as_str(), "Bearer sk_test_{{secret:x}}");
        assert_eq!(template.to_string(), "Bearer {{secret:stripe_key}}");

        let two: HeaderTemplate = "{{secret:a}}:{{secret:b}}".parse().unwrap();
        assert_eq!(two.secrets().count(), 2);
        let plain: HeaderTemplate = "2026-01-01 {not} a {placeholder}".parse().unwrap();
        assert_eq!(plain.render(|_| None).unwrap().as_str(), "2026-01-01 {not} a {placeholder}");
    }

    #[test]
    fn c01_a_missing_secret_is_an_error_and_not_an_empty_header() {
        let template: HeaderTemplate = "Bearer {{secret:stripe_key}}".parse().unwrap();
        assert_eq!(template.render(|_| None).unwrap_err(), SecretError::Missing(name("stripe_key")));
        for odd in ["pässword", " leading", "trailing "] {
            let value = SecretValue::new(format!("{odd:<12}")).unwrap();
            let error = template.render(|_| Some(&value)).unwrap_err();
            assert_eq!(error, SecretError::NotForHeaders(name("stripe_key")), "{odd}");
        }
    }

    #[test]
    fn c05_templates_that_are_almost_placeholders_are_refused() {
        for bad in [
            "{{secret:a}",
            "{{secret:a",
            "{{",
            "}}",
            "a}}b",
            "{{secret}}",
            "{{a}}",
            "{{ secret:a }}",
            "{{Secret:a}}",
            "{{secret:a}}}}",
        ] {
            assert_eq!(bad.parse::<HeaderTemplate>().unwrap_err(), SecretError::Placeholder, "{bad}");
        }
        for bad in ["{{secret:}}", "{{secret: a}}", "{{secret:a b}}", "{{secret:{{secret:a}}}}"] {
            assert!(bad.parse::<HeaderTemplate>().is_err(), "{bad}");
        }
        for bad in ["", " a", "a ", "a\r\nX: y", "a\tb", "a\0", "é", "\u{7f}"] {
            assert_eq!(bad.parse::<HeaderTemplate>().unwrap_err(), SecretError::HeaderValue, "{bad:?}");
        }
    }
}
