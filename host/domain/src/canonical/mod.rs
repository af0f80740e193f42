//! Canonical JSON: one text for one value, so that what is shown, hashed and
//! executed is the same bytes.
//!
//! The form is RFC 8785 (JCS): members sorted by their UTF-16 code units,
//! numbers as ECMAScript prints them, no white space. A kept crate writes it.
//! What may be written in that form at all is decided here, by a reader of our
//! own that works on the raw text, because by the time a generic parser has
//! made a value of it the evidence is gone: the second of two equal keys has
//! silently won, and 9007199254740993 has become 9007199254740992.
//!
//! Read `mod.rs` for the noun and its errors, `reader.rs` for the grammar,
//! `number.rs` for which numbers are exact.
//!
//! Refused, beyond what is not JSON (RFC 8259) at all:
//!
//! | what | why |
//! |---|---|
//! | equal keys in one object, compared after unescaping | parsers differ on which one counts (RFC 7493 §2.3) |
//! | integers outside ±(2^53−1) | not every reader holds them exactly (RFC 7493 §2.2) |
//! | numbers whose canonical text is another decimal value, overflow, underflow | two different arguments would have one fingerprint |
//! | `-0` in any spelling | its canonical form `0` does not read back as it |
//! | lone surrogates | not text; they have no UTF-8 form (RFC 7493 §2.1) |
//! | U+0000 in a string or key | databases cannot store it as text |
//! | a byte order mark, anything after the value | RFC 8259 §8.1; readers differ |
//! | nesting or size over [`Limits`] | work must be bounded before it is begun |
//!
//! Accepted although it may surprise: noncharacters such as U+FFFE (Unicode
//! Corrigendum 9 allows them in interchange), `1.0` and `10e-1` (both are `1`),
//! and `6.02214076e23` (written with an exponent in canonical form too, so no
//! reader takes it for an integer).

mod number;
mod reader;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// What a JSON text may cost before it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes, of the raw text and again of its canonical form (`9e15`
    /// grows to sixteen digits).
    pub bytes: usize,
    /// Most arrays and objects open at once. `[[1]]` has depth 2.
    pub depth: usize,
}

impl Limits {
    /// Deep enough for any real argument, and half of where `serde_json` stops
    /// (128), so that the two readers never disagree about depth.
    pub const DEPTH: usize = 64;

    /// The usual depth with another size.
    pub const fn bytes(bytes: usize) -> Limits {
        Limits { bytes, depth: Limits::DEPTH }
    }
}

impl Default for Limits {
    /// 1 MiB and depth 64. Callers that know their own limit (a grant's
    /// `arguments`, a grant's `result`) pass that instead.
    fn default() -> Limits {
        Limits::bytes(1024 * 1024)
    }
}

/// A JSON value as its RFC 8785 text. Equal values are equal texts.
///
/// There is no serde implementation on purpose: whether it travels as a nested
/// value ([`CanonicalJson::value`]) or as text ([`CanonicalJson::as_str`]) is
/// for each surface to say out loud.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CanonicalJson(String);

impl CanonicalJson {
    /// Reads untrusted text strictly and puts it into canonical form.
    ///
    /// # Errors
    /// [`JsonError`] with place and reason, for everything the module's table
    /// names and for what is not JSON.
    pub fn parse(raw: impl AsRef<[u8]>, limits: Limits) -> Result<CanonicalJson, JsonError> {
        let text = reader::check(raw.as_ref(), limits)?;
        // The second reader. It sees only what the first one accepted; should
        // the two ever disagree, the text is refused rather than guessed at.
        let canonical = serde_json::from_str::<Value>(text)
            .and_then(|value| serde_json_canonicalizer::to_string(&value))
            .map_err(|_| JsonError::whole(Refusal::ReadersDisagree))?;
        if canonical.len() > limits.bytes {
            return Err(JsonError::whole(Refusal::TooLarge { bytes: canonical.len(), limit: limits.bytes }));
        }
        Ok(CanonicalJson(canonical))
    }

    /// The canonical form of a value that is already in memory, under the same
    /// rules. No size limit: it has been paid for. (Equal keys cannot be seen
    /// any more; they are the business of whoever parsed it.)
    ///
    /// # Errors
    /// [`JsonError`] as for [`CanonicalJson::parse`]; offsets count in the
    /// value's compact text.
    pub fn from_value(value: &Value) -> Result<CanonicalJson, JsonError> {
        CanonicalJson::of(value)
    }

    /// The canonical form of anything that serialises to JSON, under the same
    /// rules: a `u64` above 2^53−1 inside it is refused, not rounded.
    ///
    /// # Errors
    /// As for [`CanonicalJson::from_value`]; also when `serde_json` cannot
    /// write it (a map with keys that are not text, NaN).
    pub fn of(value: &impl Serialize) -> Result<CanonicalJson, JsonError> {
        let text = serde_json::to_vec(value).map_err(|_| JsonError::whole(Refusal::NotSerialisable))?;
        CanonicalJson::parse(text, Limits { bytes: usize::MAX, depth: Limits::DEPTH })
    }

    /// Takes text that this type produced before, read back from our own
    /// database. Not checked in release builds: a row that somebody changed by
    /// hand is caught by the digests that were computed over it, not here.
    pub fn from_trusted(text: String) -> CanonicalJson {
        debug_assert!(
            CanonicalJson::parse(&text, Limits { bytes: usize::MAX, depth: Limits::DEPTH })
                .is_ok_and(|again| again.0 == text),
            "stored text is not canonical JSON: {text}"
        );
        CanonicalJson(text)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The canonical text, given away.
    pub fn into_string(self) -> String {
        self.0
    }

    /// The value, read from the canonical text. A damaged database row (see
    /// [`CanonicalJson::from_trusted`]) comes back as one string holding its
    /// raw text: visible as it is, and equal to nothing that was approved.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_else(|_| Value::String(self.0.clone()))
    }
}

impl fmt::Display for CanonicalJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for CanonicalJson {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A JSON text that was refused: where and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} (byte {offset}): {reason}", if pointer.is_empty() { "at the top" } else { pointer })]
pub struct JsonError {
    /// JSON Pointer (RFC 6901) to the value being read; empty for the document.
    pub pointer: String,
    /// Bytes before the place, counted in the text as it was given.
    pub offset: usize,
    /// What was wrong there.
    pub reason: Refusal,
}

impl JsonError {
    fn whole(reason: Refusal) -> JsonError {
        JsonError { pointer: String::new(), offset: 0, reason }
    }
}

/// Why a JSON text is refused. The messages say what to do instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// More bytes than the limit.
    #[error("{bytes} bytes of JSON, but at most {limit} are allowed")]
    TooLarge {
        /// Size of the text, or of its canonical form if only that is too large.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// More arrays and objects inside each other than the limit.
    #[error("nested deeper than {limit} levels; flatten it")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// The bytes are not UTF-8.
    #[error("not UTF-8; JSON is sent as UTF-8")]
    NotUtf8,
    /// The text begins with U+FEFF.
    #[error("a byte order mark before the JSON; send the text without it")]
    ByteOrderMark,
    /// The grammar wanted something else here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// Something follows the one value.
    #[error("more text after the JSON value; send exactly one value")]
    TrailingData,
    /// A string has no closing quote.
    #[error("the string is not closed")]
    UnclosedString,
    /// A backslash is followed by something JSON does not know.
    #[error("not an escape that JSON knows; write \\\\ for a backslash")]
    BadEscape,
    /// A raw character below U+0020 inside a string.
    #[error("a raw control character in a string; escape it as \\u00XX")]
    ControlCharacter,
    /// U+0000, raw or escaped.
    #[error("the character U+0000 in a string; it cannot be stored as text, leave it out")]
    Nul,
    /// Half of a surrogate pair.
    #[error("half of a surrogate pair; it is not a character, send both halves or neither")]
    LoneSurrogate,
    /// The object has this key already.
    #[error("the key appears twice in one object; keep one of them")]
    DuplicateKey,
    /// An integer that not every reader holds exactly.
    #[error("an integer outside ±9007199254740991 (2^53−1); send it as a string")]
    IntegerOutOfRange,
    /// The nearest double is another decimal value.
    #[error(
        "a number that a double cannot hold exactly as written; send it as a string, or with fewer digits"
    )]
    InexactNumber,
    /// Minus zero.
    #[error("minus zero; write 0")]
    NegativeZero,
    /// The strict reader accepted the text and the general one did not.
    #[error("not JSON to every reader; simplify it")]
    ReadersDisagree,
    /// A value in memory has no JSON text.
    #[error("the value has no JSON form (a key that is not text, or a number that is not finite)")]
    NotSerialisable,
}
