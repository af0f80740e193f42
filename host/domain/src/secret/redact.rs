//! Taking secrets out of what a provider sent back.
//!
//! An upstream that echoes a request (an error page, a debug header, a
//! `Location`) rarely echoes it raw. So each secret is searched for as text
//! whose every character may stand raw, percent-encoded, JSON-escaped or as an
//! HTML entity, in any mixture; in hexadecimal; and in base64 at each of the
//! three alignments it can have inside a longer text, which covers base64 of
//! `user:secret`. A secret that is itself base64 of `user:password` (the form
//! `Authorization: Basic` wants) is also searched for decoded.
//!
//! Works on a whole buffer, so no chunk border can hide a match. Not found: a
//! secret in an encoding not named here, encoded twice, reversed, compressed or
//! encrypted.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD_NO_PAD;
use zeroize::Zeroizing;

use super::{MIN_SECRET_BYTES, SecretName, SecretValue};

/// Finds secrets in buffers and puts `[redacted:name]` in their place.
pub struct Redactor {
    needles: Vec<Needle>,
    /// Needles by the bytes their matches can begin with.
    by_first: Vec<Vec<usize>>,
}

/// One form of one secret.
struct Needle {
    mark: String,
    units: Vec<Unit>,
    form: Form,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Text,
    Hex,
    /// The characters that only the secret decides. The ones around them are
    /// partly decided by it, if so, and go with them.
    Base64 {
        one_before: bool,
        one_after: bool,
    },
}

/// One character of a form, and how it may be written.
struct Unit {
    exact: Vec<Zeroizing<Vec<u8>>>,
    /// Compared without regard to ASCII case: escapes, whose digits have none.
    escaped: Vec<Zeroizing<Vec<u8>>>,
}

impl Redactor {
    /// A redactor for these secrets. Building one copies their values; it wipes
    /// them on drop.
    pub fn new<'s>(secrets: impl IntoIterator<Item = (&'s SecretName, &'s SecretValue)>) -> Redactor {
        let mut needles = Vec::new();
        for (name, value) in secrets {
            let mark = format!("[redacted:{name}]");
            add_forms(&mut needles, &mark, value.expose());
            if let Some(credentials) = decoded_credentials(value.expose()) {
                add_forms(&mut needles, &mark, &credentials);
                match credentials.split_once(':') {
                    Some((_, password)) if password.len() >= MIN_SECRET_BYTES => {
                        add_forms(&mut needles, &mark, password);
                    }
                    _ => {}
                }
            }
        }
        let mut by_first = vec![Vec::new(); 256];
        for (index, needle) in needles.iter().enumerate() {
            let Some(first) = needle.units.first() else { continue };
            let mut bytes: Vec<u8> = first.exact.iter().chain(&first.escaped).map(|text| text[0]).collect();
            bytes.sort_unstable();
            bytes.dedup();
            for byte in bytes {
                by_first[usize::from(byte)].push(index);
            }
        }
        Redactor { needles, by_first }
    }

    /// The buffer with every form of every secret replaced; borrowed if there
    /// was none. Its length may change, so a `Content-Length` has to be set anew.
    pub fn redact<'b>(&self, buffer: &'b [u8]) -> Cow<'b, [u8]> {
        let mut found: Vec<(usize, usize, &str)> = Vec::new();
        for start in 0..buffer.len() {
            // Not skipping past a match: another secret may begin inside it.
            for index in &self.by_first[usize::from(buffer[start])] {
                let needle = &self.needles[*index];
                if let Some(end) = needle.match_at(buffer, start) {
                    let (start, end) = needle.widen(buffer, start, end);
                    found.push((start, end, &needle.mark));
                }
            }
        }
        if found.is_empty() {
            return Cow::Borrowed(buffer);
        }
        found.sort_by_key(|(start, end, _)| (*start, usize::MAX - end));
        let mut out = Vec::with_capacity(buffer.len());
        let mut copied_to = 0;
        let mut hidden_to = 0;
        for (start, end, mark) in found {
            if start >= hidden_to {
                out.extend_from_slice(&buffer[copied_to..start]);
                out.extend_from_slice(mark.as_bytes());
            }
            // Overlapping matches become one hole under the first one's name.
            hidden_to = hidden_to.max(end);
            copied_to = hidden_to;
        }
        out.extend_from_slice(&buffer[copied_to..]);
        Cow::Owned(out)
    }

    /// The same for text. Matches begin and end between characters, so what
    /// remains is text.
    pub fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} forms)", self.needles.len())
    }
}

impl Needle {
    /// The end of the longest match that begins here.
    fn match_at(&self, buffer: &[u8], start: usize) -> Option<usize> {
        let mut end = start;
        for (index, unit) in self.units.iter().enumerate() {
            let at = self.next_unit(buffer, end, index);
            let (mut length, mut ambiguous) = (None, false);
            unit.matches(&buffer[at..], |found| ambiguous |= *length.get_or_insert(found) != found);
            if ambiguous {
                return self.match_all(buffer, end, index);
            }
            end = at + length?;
        }
        Some(end)
    }

    /// The same from some unit on, where a place can be read in several ways
    /// (`%` may be itself or begin an escape): all their ends are carried along.
    fn match_all(&self, buffer: &[u8], start: usize, from: usize) -> Option<usize> {
        let mut ends = vec![start];
        for (index, unit) in self.units.iter().enumerate().skip(from) {
            let mut next = Vec::with_capacity(2);
            for end in ends {
                let at = self.next_unit(buffer, end, index);
                unit.matches(&buffer[at..], |length| {
                    if !next.contains(&(at + length)) {
                        next.push(at + length);
                    }
                });
            }
            ends = next;
        }
        ends.into_iter().max()
    }

    /// Where the next unit is to be looked for, when the one before ended here.
    fn next_unit(&self, buffer: &[u8], end: usize, index: usize) -> usize {
        match self.form {
            Form::Base64 { .. } if index > 0 => skip_line_breaks(buffer, end),
            _ => end,
        }
    }

    /// Takes in the base64 characters at both ends that hold a few of the
    /// secret's bits, and padding.
    fn widen(&self, buffer: &[u8], mut start: usize, mut end: usize) -> (usize, usize) {
        if let Form::Base64 { one_before, one_after } = self.form {
            if one_before {
                start -= base64_char_before(&buffer[..start]);
            }
            if one_after {
                end += base64_char_after(&buffer[end..]);
                for _ in 0..2 {
                    end += [&b"="[..], b"%3d", b"%3D", b"\\u003d", b"\\u003D"]
                        .iter()
                        .find(|padding| buffer[end..].starts_with(padding))
                        .map_or(0, |padding| padding.len());
                }
            }
        }
        (start, end)
    }
}

impl Unit {
    fn matches(&self, rest: &[u8], mut found: impl FnMut(usize)) {
        for exact in &self.exact {
            if rest.starts_with(exact) {
                found(exact.len());
            }
        }
        for escaped in &self.escaped {
            if rest.get(..escaped.len()).is_some_and(|here| here.eq_ignore_ascii_case(escaped)) {
                found(escaped.len());
            }
        }
    }

    /// A character of text in all its spellings.
    fn text(character: char) -> Unit {
        let mut utf8 = [0; 4];
        let utf8 = character.encode_utf8(&mut utf8).as_bytes();
        let mut unit = Unit { exact: vec![Zeroizing::new(utf8.to_vec())], escaped: Vec::new() };
        unit.add_escapes(character);
        match character {
            // application/x-www-form-urlencoded
            ' ' => unit.exact.push(Zeroizing::new(b"+".to_vec())),
            '"' | '\\' | '/' => unit.exact.push(Zeroizing::new(vec![b'\\', utf8[0]])),
            _ => {}
        }
        for (plain, entity) in [
            ('&', "&amp;"),
            ('<', "&lt;"),
            ('>', "&gt;"),
            ('"', "&quot;"),
            ('\'', "&apos;"),
            ('\'', "&#039;"),
        ] {
            if character == plain {
                unit.escaped.push(Zeroizing::new(entity.as_bytes().to_vec()));
            }
        }
        for entity in [format!("&#{};", u32::from(character)), format!("&#x{:x};", u32::from(character))] {
            unit.escaped.push(Zeroizing::new(entity.into_bytes()));
        }
        unit
    }

    /// One of some equivalent ASCII characters.
    fn any_of(characters: &[u8]) -> Unit {
        let mut unit = Unit { exact: Vec::new(), escaped: Vec::new() };
        for byte in characters {
            unit.exact.push(Zeroizing::new(vec![*byte]));
            unit.add_escapes(char::from(*byte));
            if *byte == b'/' {
                unit.exact.push(Zeroizing::new(b"\\/".to_vec()));
            }
        }
        unit
    }

    fn add_escapes(&mut self, character: char) {
        let mut utf8 = [0; 4];
        let percent: String = character.encode_utf8(&mut utf8).bytes().map(|b| format!("%{b:02x}")).collect();
        let mut utf16 = [0; 2];
        let json: String =
            character.encode_utf16(&mut utf16).iter().map(|unit| format!("\\u{unit:04x}")).collect();
        self.escaped.push(Zeroizing::new(percent.into_bytes()));
        self.escaped.push(Zeroizing::new(json.into_bytes()));
    }
}

fn add_forms(needles: &mut Vec<Needle>, mark: &str, secret: &str) {
    let mut add = |units: Vec<Unit>, form| needles.push(Needle { mark: mark.to_owned(), units, form });
    add(secret.chars().map(Unit::text).collect(), Form::Text);

    let hex = Zeroizing::new(hex::encode(secret));
    add(hex.bytes().map(|digit| Unit::any_of(&[digit, digit.to_ascii_uppercase()])).collect(), Form::Hex);

    for before in 0..3 {
        let mut bytes = Zeroizing::new(vec![0; before]);
        bytes.extend_from_slice(secret.as_bytes());
        let encoded = Zeroizing::new(BASE64_STANDARD_NO_PAD.encode(&bytes));
        // A character is six bits: these hold none from before or after.
        let first = (before * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        let units = encoded.as_bytes()[first..last]
            .iter()
            .map(|character| match character {
                b'+' => Unit::any_of(b"+-"),
                b'/' => Unit::any_of(b"/_"),
                other => Unit::any_of(&[*other]),
            })
            .collect();
        add(units, Form::Base64 { one_before: before != 0, one_after: bytes.len() % 3 != 0 });
    }
}

/// `user:password`, if the secret is that in base64.
fn decoded_credentials(secret: &str) -> Option<Zeroizing<String>> {
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    [&alphabet::STANDARD, &alphabet::URL_SAFE].into_iter().find_map(|alphabet| {
        let bytes = Zeroizing::new(GeneralPurpose::new(alphabet, lenient).decode(secret).ok()?);
        let text = Zeroizing::new(std::str::from_utf8(&bytes).ok()?.to_owned());
        let credentials =
            text.contains(':') && text.len() >= MIN_SECRET_BYTES && !text.chars().any(char::is_control);
        credentials.then_some(text)
    })
}

/// Base64 in mail and PEM is broken into lines; in JSON the breaks are escaped.
fn skip_line_breaks(buffer: &[u8], mut at: usize) -> usize {
    while let Some(length) = [&b"\r"[..], b"\n", b"\\r", b"\\n"]
        .iter()
        .find(|line_break| buffer[at..].starts_with(line_break))
        .map(|line_break| line_break.len())
    {
        at += length;
    }
    at
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte)
}

/// Bytes of the base64 character that ends here: itself, `\/`, or `%2B`.
fn base64_char_before(front: &[u8]) -> usize {
    match front {
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => 3,
        [.., b'\\', b'/'] => 2,
        [.., last] if is_base64(*last) => 1,
        _ => 0,
    }
}

/// Bytes of the base64 character that begins here.
fn base64_char_after(rest: &[u8]) -> usize {
    match rest {
        // `%3D` is padding, not a character.
        [b'%', b'2' | b'5', low, ..] if low.is_ascii_hexdigit() => 3,
        [b'\\', b'/', ..] => 2,
        [first, ..] if is_base64(*first) => 1,
        _ => 0,
    }
}
