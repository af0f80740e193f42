//! The strict reader: RFC 8259's grammar over raw bytes, without recursion and
//! without building a value. It may not repair anything.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{JsonError, Limits, Refusal, number};

/// Reads the whole text and returns it, if nothing in it has to be refused.
pub(super) fn check(raw: &[u8], limits: Limits) -> Result<&str, JsonError> {
    if raw.len() > limits.bytes {
        return Err(JsonError::whole(Refusal::TooLarge { bytes: raw.len(), limit: limits.bytes }));
    }
    let text = std::str::from_utf8(raw).map_err(|error| JsonError {
        pointer: String::new(),
        offset: error.valid_up_to(),
        reason: Refusal::NotUtf8,
    })?;
    if text.starts_with('\u{feff}') {
        return Err(JsonError::whole(Refusal::ByteOrderMark));
    }
    let mut reader = Reader { text, at: 0, open: Vec::new(), depth: limits.depth };
    reader.document()?;
    Ok(text)
}

/// An array or object whose end has not come yet, and where we are in it.
enum Open<'a> {
    Array { index: usize },
    Object { seen: BTreeSet<Cow<'a, str>>, key: Cow<'a, str> },
}

/// What the grammar allows next.
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    CommaOrEnd,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    open: Vec<Open<'a>>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<(), JsonError> {
        let mut next = Next::Value;
        loop {
            self.skip_space();
            next = match next {
                Next::Value => self.value()?,
                Next::ValueOrEnd if self.peek() == Some(b']') => self.close(),
                Next::ValueOrEnd => self.value()?,
                Next::KeyOrEnd if self.peek() == Some(b'}') => self.close(),
                Next::KeyOrEnd => self.key("a key in double quotes, or }")?,
                Next::Key => self.key("a key in double quotes")?,
                Next::CommaOrEnd => match (self.open.last_mut(), self.text.as_bytes().get(self.at)) {
                    (None, None) => return Ok(()),
                    (None, Some(_)) => return Err(self.refuse(self.at, Refusal::TrailingData)),
                    (Some(Open::Array { .. }), Some(b']')) | (Some(Open::Object { .. }), Some(b'}')) => {
                        self.close()
                    }
                    (Some(Open::Array { index }), Some(b',')) => {
                        *index += 1;
                        self.at += 1;
                        Next::Value
                    }
                    (Some(Open::Object { .. }), Some(b',')) => {
                        self.at += 1;
                        Next::Key
                    }
                    (Some(Open::Array { .. }), _) => return Err(self.expected(", or ]")),
                    (Some(Open::Object { .. }), _) => return Err(self.expected(", or }")),
                },
            };
        }
    }

    /// Reads a scalar, or opens an array or object.
    fn value(&mut self) -> Result<Next, JsonError> {
        match self.peek() {
            Some(b'{') => {
                self.enter(Open::Object { seen: BTreeSet::new(), key: Cow::Borrowed("") }, Next::KeyOrEnd)
            }
            Some(b'[') => self.enter(Open::Array { index: 0 }, Next::ValueOrEnd),
            Some(b'"') => self.string().map(|_| Next::CommaOrEnd),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| Next::CommaOrEnd),
            _ => {
                let rest = &self.text[self.at..];
                let Some(word) = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word))
                else {
                    return Err(self.expected("a JSON value"));
                };
                self.at += word.len();
                Ok(Next::CommaOrEnd)
            }
        }
    }

    fn enter(&mut self, container: Open<'a>, next: Next) -> Result<Next, JsonError> {
        if self.open.len() >= self.depth {
            return Err(self.refuse(self.at, Refusal::TooDeep { limit: self.depth }));
        }
        self.open.push(container);
        self.at += 1;
        Ok(next)
    }

    fn close(&mut self) -> Next {
        self.open.pop();
        self.at += 1;
        Next::CommaOrEnd
    }

    fn key(&mut self, wanted: &'static str) -> Result<Next, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected(wanted));
        }
        let start = self.at;
        // Compared after unescaping: "to" and "\u0074o" are one key.
        let name = self.string()?;
        let mut new = true;
        if let Some(Open::Object { seen, key }) = self.open.last_mut() {
            new = seen.insert(name.clone());
            *key = name;
        }
        if !new {
            return Err(self.refuse(start, Refusal::DuplicateKey));
        }
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.expected("a colon after the key"));
        }
        self.at += 1;
        Ok(Next::Value)
    }

    /// Reads a string and returns what it denotes.
    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        let opening = self.at;
        self.at += 1;
        let mut plain_from = self.at;
        let mut unescaped: Option<String> = None;
        loop {
            let here = self.at;
            match self.peek() {
                None => return Err(self.refuse(opening, Refusal::UnclosedString)),
                Some(b'"') => {
                    self.at += 1;
                    let tail = &self.text[plain_from..here];
                    return Ok(match unescaped {
                        None => Cow::Borrowed(tail),
                        Some(mut text) => {
                            text.push_str(tail);
                            Cow::Owned(text)
                        }
                    });
                }
                Some(b'\\') => {
                    let text = unescaped.get_or_insert_default();
                    text.push_str(&self.text[plain_from..here]);
                    let character = self.escape()?;
                    text.push(character);
                    plain_from = self.at;
                }
                Some(0) => return Err(self.refuse(here, Refusal::Nul)),
                Some(..0x20) => return Err(self.refuse(here, Refusal::ControlCharacter)),
                // Bytes of longer characters are all ≥ 0x80; the text is UTF-8.
                Some(_) => self.at += 1,
            }
        }
    }

    /// Reads one escape, both halves of a surrogate pair included.
    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.at;
        self.at += 2;
        let character = match self.text.as_bytes().get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => match self.four_hex_digits(start)? {
                0 => return Err(self.refuse(start, Refusal::Nul)),
                high @ 0xd800..=0xdbff => {
                    if !self.text[self.at..].starts_with("\\u") {
                        return Err(self.refuse(start, Refusal::LoneSurrogate));
                    }
                    self.at += 2;
                    match self.four_hex_digits(start)? {
                        low @ 0xdc00..=0xdfff => {
                            char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
                                .unwrap_or('\u{fffd}')
                        }
                        _ => return Err(self.refuse(start, Refusal::LoneSurrogate)),
                    }
                }
                code => match char::from_u32(code) {
                    Some(character) => character,
                    None => return Err(self.refuse(start, Refusal::LoneSurrogate)),
                },
            },
            _ => return Err(self.refuse(start, Refusal::BadEscape)),
        };
        Ok(character)
    }

    fn four_hex_digits(&mut self, escape: usize) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let code = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u32::from_str_radix(digits, 16).ok()
        });
        self.at += 4;
        code.ok_or_else(|| self.refuse(escape, Refusal::BadEscape))
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits("a digit")?,
            _ => return Err(self.expected("a digit after the minus sign")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits("a digit after the decimal point")?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits("a digit in the exponent")?;
        }
        if let Some(b'0'..=b'9') = self.peek() {
            return Err(self.refuse(start, Refusal::Expected("a number without leading zeros")));
        }
        number::check(&self.text[start..self.at]).map_err(|reason| self.refuse(start, reason))
    }

    fn digits(&mut self, wanted: &'static str) -> Result<(), JsonError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(self.expected(wanted)) } else { Ok(()) }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expected(&self, what: &'static str) -> JsonError {
        self.refuse(self.at, Refusal::Expected(what))
    }

    fn refuse(&self, offset: usize, reason: Refusal) -> JsonError {
        let mut pointer = String::new();
        for container in &self.open {
            match container {
                Open::Array { index } => pointer.push_str(&format!("/{index}")),
                // No key read yet: the place is the object itself.
                Open::Object { seen, .. } if seen.is_empty() => {}
                Open::Object { key, .. } => {
                    pointer.push('/');
                    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                }
            }
        }
        JsonError { pointer, offset, reason }
    }
}
