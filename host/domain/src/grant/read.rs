//! Reading TOML sections so that every complaint has a line: keys are taken by
//! name and type, and one that nobody would take is an error.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::GrantError;
use super::units::{parse_duration, parse_size, show_duration, show_size};

/// The keys of each section, by the name by which messages speak of it.
pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    ("the top of the file", &["show", "planning", "approval", "limits", "http", "email"]),
    ("[approval]", &["required", "expires_after", "execution_deadline"]),
    ("[limits]", &["memory", "cpu", "wall", "send", "effects", "arguments", "result", "log"]),
    (
        "[[http]]",
        &[
            "host",
            "port",
            "scheme",
            "methods",
            "path",
            "recovery",
            "idempotency_header",
            "key_format",
            "key_retention",
            "in_flight_status",
            "replay_header",
            "on_5xx",
            "unplanned",
            "reference",
            "significant_headers",
            "request_body",
            "response_body",
            "allow_private",
            "ca",
            "headers",
        ],
    ),
    ("[email]", &["from", "reply_to", "recipients", "size", "unplanned", "recovery"]),
];

/// The text being read, for places.
#[derive(Clone, Copy)]
pub(super) struct Source<'a>(pub(super) &'a str);

impl Source<'_> {
    /// Line and column of a byte, both counted from 1.
    pub(super) fn place(self, offset: usize) -> (usize, usize) {
        let before = self.0.get(..offset).unwrap_or(self.0);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    fn bad(self, span: &Range<usize>, key: &str, problem: impl Display, remedy: impl Display) -> GrantError {
        let (line, column) = self.place(span.start);
        GrantError::BadValue {
            line,
            column,
            key: key.to_owned(),
            problem: problem.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

/// A value with its key and place, so that it can be complained about later.
#[derive(Clone)]
pub(super) struct Found<'a, T> {
    pub(super) value: T,
    key: &'a str,
    span: Range<usize>,
    source: Source<'a>,
}

impl<'a, T> Found<'a, T> {
    pub(super) fn bad(&self, problem: impl Display, remedy: impl Display) -> GrantError {
        self.source.bad(&self.span, self.key, problem, remedy)
    }

    /// The place alone, for a complaint that does not depend on the value.
    pub(super) fn place(&self) -> Found<'a, ()> {
        self.with(())
    }

    pub(super) fn with<U>(&self, value: U) -> Found<'a, U> {
        Found { value, key: self.key, span: self.span.clone(), source: self.source }
    }
}

/// One table of the grant.
pub(super) struct Section<'a> {
    source: Source<'a>,
    name: &'static str,
    span: Range<usize>,
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    /// Opens a table, and refuses it if it has a key that the section does not know.
    pub(super) fn open(
        source: Source<'a>,
        name: &'static str,
        span: Range<usize>,
        table: &'a DeTable<'a>,
    ) -> Result<Section<'a>, GrantError> {
        let known = SECTIONS.iter().find(|(section, _)| *section == name).map_or(&[][..], |(_, keys)| keys);
        let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        if let Some(key) = unknown.min_by_key(|key| key.span().start) {
            let (line, column) = source.place(key.span().start);
            return Err(GrantError::UnknownKey {
                line,
                column,
                key: key.get_ref().to_string(),
                place: if name.starts_with('[') { format!("in {name}") } else { format!("at {name}") },
                remedy: remedy_for(key.get_ref(), known),
            });
        }
        Ok(Section { source, name, span, table })
    }

    fn find(&self, key: &'static str) -> Option<Found<'a, &'a DeValue<'a>>> {
        let value: &'a Spanned<DeValue<'a>> = self.table.get(key)?;
        Some(Found { value: value.get_ref(), key, span: value.span(), source: self.source })
    }

    /// The value, or the complaint that the section needs one.
    pub(super) fn required<T>(
        &self,
        found: Option<Found<'a, T>>,
        key: &'static str,
        example: &'static str,
    ) -> Result<Found<'a, T>, GrantError> {
        found.ok_or_else(|| {
            let (line, column) = self.source.place(self.span.start);
            GrantError::MissingKey { line, column, key, place: self.name.to_owned(), remedy: example }
        })
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<Found<'a, &'a str>>, GrantError> {
        self.find(key).map(|found| as_text(&found, "write it in double quotes")).transpose()
    }

    pub(super) fn parsed<T: FromStr<Err: Display>>(
        &self,
        key: &'static str,
        remedy: &str,
    ) -> Result<Option<Found<'a, T>>, GrantError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let value =
            text.value.parse().map_err(|error: T::Err| text.bad(format!("is refused: {error}"), remedy))?;
        Ok(Some(text.with(value)))
    }

    pub(super) fn texts(
        &self,
        key: &'static str,
    ) -> Result<Option<Found<'a, Vec<Found<'a, &'a str>>>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(None) };
        let DeValue::Array(array) = found.value else {
            return Err(found.bad(format!("is {}", kind(found.value)), "write a list: [\"…\", \"…\"]"));
        };
        let items = array
            .iter()
            .map(|item| {
                let found = Found { value: item.get_ref(), key, span: item.span(), source: self.source };
                as_text(&found, "a list of texts in double quotes is needed")
            })
            .collect::<Result<_, _>>()?;
        Ok(Some(found.with(items)))
    }

    pub(super) fn boolean(&self, key: &'static str) -> Result<Option<Found<'a, bool>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(None) };
        match found.value {
            DeValue::Boolean(value) => Ok(Some(found.with(*value))),
            other => Err(found.bad(format!("is {}", kind(other)), "write true or false, without quotes")),
        }
    }

    pub(super) fn integer(
        &self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<Found<'a, u32>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(None) };
        let remedy =
            format!("write a whole number from {} to {}, without quotes", range.start(), range.end());
        let DeValue::Integer(digits) = found.value else {
            return Err(found.bad(format!("is {}", kind(found.value)), remedy));
        };
        match u32::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(value) if range.contains(&value) => Ok(Some(found.with(value))),
            _ => Err(found.bad(format!("is {digits}"), remedy)),
        }
    }

    pub(super) fn duration(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Found<'a, Duration>>, GrantError> {
        self.unit(key, range, parse_duration, |value| show_duration(*value))
    }

    pub(super) fn size(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Found<'a, u64>>, GrantError> {
        self.unit(key, range, parse_size, |value| show_size(*value))
    }

    fn unit<T: PartialOrd>(
        &self,
        key: &'static str,
        range: RangeInclusive<T>,
        parse: fn(&str) -> Result<T, &'static str>,
        show: fn(&T) -> String,
    ) -> Result<Option<Found<'a, T>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(None) };
        let span = format!("from \"{}\" to \"{}\"", show(range.start()), show(range.end()));
        let text = as_text(&found, &format!("write it with its unit in double quotes, {span}"))?;
        let value = parse(text.value).map_err(|wanted| text.bad(format!("is {:?}", text.value), wanted))?;
        if range.contains(&value) {
            Ok(Some(text.with(value)))
        } else {
            Err(text.bad(format!("is {:?}", text.value), format!("it can be {span}")))
        }
    }

    /// The table under a key, as a section of its own.
    pub(super) fn section(
        &self,
        key: &'static str,
        name: &'static str,
    ) -> Result<Option<Section<'a>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(None) };
        match found.value {
            DeValue::Table(table) => Section::open(self.source, name, found.span, table).map(Some),
            other => Err(found.bad(format!("is {}", kind(other)), format!("write a section {name}"))),
        }
    }

    /// The tables under a key, each as a section.
    pub(super) fn sections(
        &self,
        key: &'static str,
        name: &'static str,
    ) -> Result<Vec<Section<'a>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(Vec::new()) };
        let wrong = |found: &Found<'_, &DeValue<'_>>| {
            found.bad(
                format!("is {}", kind(found.value)),
                format!("write each route under a line {name} of its own"),
            )
        };
        let DeValue::Array(array) = found.value else { return Err(wrong(&found)) };
        array
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::Table(table) => Section::open(self.source, name, item.span(), table),
                other => Err(wrong(&Found { value: other, key, span: item.span(), source: self.source })),
            })
            .collect()
    }

    /// A table from free names to texts.
    pub(super) fn entries(
        &self,
        key: &'static str,
    ) -> Result<Vec<Found<'a, (&'a str, &'a str)>>, GrantError> {
        let Some(found) = self.find(key) else { return Ok(Vec::new()) };
        let DeValue::Table(table) = found.value else {
            return Err(found.bad(format!("is {}", kind(found.value)), "write a section of names and texts"));
        };
        table
            .iter()
            .map(|(name, value)| {
                let found = Found {
                    value: value.get_ref(),
                    key: name.get_ref(),
                    span: name.span(),
                    source: self.source,
                };
                let text = as_text(&found, "write it in double quotes")?;
                Ok(text.with((text.key, text.value)))
            })
            .collect()
    }
}

fn as_text<'a>(found: &Found<'a, &'a DeValue<'a>>, remedy: &str) -> Result<Found<'a, &'a str>, GrantError> {
    match found.value {
        DeValue::String(text) => Ok(found.with(text.as_ref())),
        other => Err(found.bad(format!("is {}", kind(other)), remedy)),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// What to do about an unknown key: move it, respell it, or see the list.
fn remedy_for(key: &str, known: &[&str]) -> String {
    if let Some(near) = known.iter().find(|near| is_near(key, near)) {
        return format!("did you mean `{near}`?");
    }
    let home = SECTIONS.iter().find(|(_, keys)| keys.contains(&key)).map(|(section, _)| *section);
    match home {
        // In TOML, whatever follows a section's line belongs to that section.
        Some("the top of the file") => format!("`{key}` belongs before the first [section] of the file"),
        Some(section) => format!("`{key}` belongs in {section}"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// One letter too many, too few or wrong, two neighbours swapped, or a dash for
/// an underscore.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b) = (a.replace('-', "_").to_lowercase(), b.to_owned());
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let same_front = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let same_back = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let differing =
        |side: &[char]| side.len() - (same_front + same_back).min(side.len().min(a.len().min(b.len())));
    match (differing(&a), differing(&b)) {
        (0 | 1, 0 | 1) => true,
        (2, 2) => a[same_front] == b[same_front + 1] && a[same_front + 1] == b[same_front],
        _ => false,
    }
}
