//! How a grant is written, but for its routes: the sections, what goes without
//! saying, and what cannot stand together.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeTable;

use super::effective::effective;
use super::read::{Section, Source};
use super::route::route;
use super::{
    Approval, EmailGrant, Grant, GrantError, JsonPointer, Limits, MAX_GRANT_BYTES, Planning, RecoveryClass,
};
use super::{HttpRoute, show_duration};
use crate::canonical::CanonicalJson;
use crate::retry::key_window;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest time in which an approval may be given and used (OWASP Transaction
/// Authorization Cheat Sheet 2.9: authorisation has a limited time).
const MAX_EXPIRY: Duration = DAY;

/// Largest linear memory of a 32-bit component.
const MAX_MEMORY: u64 = 4 << 30;

impl FromStr for Grant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Grant, GrantError> {
        if text.len() > MAX_GRANT_BYTES {
            return Err(GrantError::TooLarge { bytes: text.len() });
        }
        let source = Source(text);
        let document = DeTable::parse(text).map_err(|error| {
            let (line, column) = source.place(error.span().map_or(0, |span| span.start));
            GrantError::Syntax { line, column, message: error.message().to_owned() }
        })?;
        let top = Section::open(source, "the top of the file", 0..0, document.get_ref())?;

        let approval = approval(top.section("approval", "[approval]")?)?;
        let show = show(&top)?;
        let planning = top.parsed::<Planning>("planning", "write \"reads\" or \"none\"")?;
        let planning = planning.map_or(Planning::Reads, |found| found.value);
        let limits = limits(top.section("limits", "[limits]")?)?;
        let sections = top.sections("http", "[[http]]")?;
        let http = sections.iter().map(route).collect::<Result<Vec<_>, _>>()?;
        for (section, route) in sections.iter().zip(&http) {
            keys_outlive_sends(section, route, limits.send)?;
        }
        let email = top.section("email", "[email]")?.as_ref().map(email).transpose()?;

        let effective = effective(&approval, &show, planning, &limits, &http, email.as_ref());
        let effective = CanonicalJson::from_value(&effective).map_err(|error| GrantError::Syntax {
            line: 1,
            column: 1,
            message: format!("the grant has no canonical form: {error}"),
        })?;
        Ok(Grant { approval, show, planning, limits, http, email, source: text.to_owned(), effective })
    }
}

/// A key that is forgotten before a send under it must be over could never be
/// sent again, nor even once: every action under the grant would end without.
fn keys_outlive_sends(section: &Section<'_>, route: &HttpRoute, send: Duration) -> Result<(), GrantError> {
    let idempotent = route.recovery == RecoveryClass::ProviderIdempotent;
    if !idempotent || !key_window(route.key_retention, send).is_zero() {
        return Ok(());
    }
    match section.duration("key_retention", Duration::ZERO..=Duration::MAX)? {
        Some(found) => Err(found.bad(
            format!("is no longer than one send may take ({})", show_duration(send)),
            "lower `send` in [limits], or use another class: a repeat could never be sent in time",
        )),
        None => Ok(()),
    }
}

fn approval(section: Option<Section<'_>>) -> Result<Approval, GrantError> {
    let mut approval =
        Approval { required: 1, expires_after: Duration::from_secs(15 * 60), execution_deadline: DAY };
    let Some(section) = section else { return Ok(approval) };
    let second = Duration::from_secs(1);
    if let Some(required) = section.integer("required", 0..=5)? {
        approval.required = u8::try_from(required.value).unwrap_or(5);
    }
    let expiry = section.duration("expires_after", second..=MAX_EXPIRY)?;
    if let Some(deadline) = section.duration("execution_deadline", second..=30 * DAY)? {
        approval.execution_deadline = deadline.value;
    }
    approval.expires_after = approval.expires_after.min(approval.execution_deadline);
    if let Some(expiry) = expiry {
        if expiry.value > approval.execution_deadline {
            return Err(
                expiry.bad("is later than execution_deadline", "an approval must be usable while it lasts")
            );
        }
        approval.expires_after = expiry.value;
    }
    Ok(approval)
}

fn show(top: &Section<'_>) -> Result<Vec<JsonPointer>, GrantError> {
    let Some(texts) = top.texts("show")? else { return Ok(Vec::new()) };
    if texts.value.len() > 32 {
        return Err(texts.bad("names more than 32 fields", "name those that a person decides by"));
    }
    let mut show = Vec::new();
    for text in &texts.value {
        let pointer: JsonPointer = text
            .value
            .parse()
            .map_err(|why| text.bad(format!("is refused: {why}"), "name a field like \"/amount\""))?;
        if show.contains(&pointer) {
            return Err(text.bad(format!("names {:?} twice", text.value), "name it once"));
        }
        show.push(pointer);
    }
    Ok(show)
}

fn limits(section: Option<Section<'_>>) -> Result<Limits, GrantError> {
    let mut limits = Limits {
        memory: 64 * MIB,
        cpu: Duration::from_secs(2),
        wall: Duration::from_secs(120),
        send: Duration::from_secs(30),
        effects: 32,
        arguments: 64 * KIB,
        result: 256 * KIB,
        log: 64 * KIB,
    };
    let Some(section) = section else { return Ok(limits) };
    let size = |key, field: &mut u64, range: RangeInclusive<u64>| -> Result<(), GrantError> {
        *field = section.size(key, range)?.map_or(*field, |found| found.value);
        Ok(())
    };
    size("memory", &mut limits.memory, 64 * KIB..=MAX_MEMORY)?;
    size("arguments", &mut limits.arguments, 2..=16 * MIB)?;
    size("result", &mut limits.result, 2..=64 * MIB)?;
    size("log", &mut limits.log, 0..=64 * MIB)?;
    limits.effects = section.integer("effects", 0..=10_000)?.map_or(limits.effects, |found| found.value);

    // What is not said follows `wall`; what is said must fit into it.
    let range = Duration::from_millis(10)..=DAY;
    limits.wall = section.duration("wall", range.clone())?.map_or(limits.wall, |found| found.value);
    for (key, field) in [("cpu", &mut limits.cpu), ("send", &mut limits.send)] {
        match section.duration(key, range.clone())? {
            Some(found) if found.value > limits.wall => {
                return Err(found.bad("is longer than wall, the whole call", "lower it, or raise wall"));
            }
            Some(found) => *field = found.value,
            None => *field = limits.wall.min(*field),
        }
    }
    Ok(limits)
}

/// One mail, unless the grant says otherwise, and the most that it can say. What
/// a component hands over in one call is bounded anyway, at 4 MiB.
const MAIL_BYTES: u64 = 1 << 20;
const MAX_MAIL_BYTES: u64 = 3 << 20;

fn email(section: &Section<'_>) -> Result<EmailGrant, GrantError> {
    let example = "for example from = \"billing@example.com\"";
    let from = section.required(section.parsed("from", example)?, "from", example)?.value;
    let example = "for example recipients = [\"*@example.com\"]";
    let texts = section.required(section.texts("recipients")?, "recipients", example)?;
    if texts.value.is_empty() {
        return Err(texts.bad("is empty", example));
    }
    let recipients = texts
        .value
        .iter()
        .map(|text| {
            text.value.parse().map_err(|why| text.bad(format!("holds {:?}: {why}", text.value), example))
        })
        .collect::<Result<_, _>>()?;
    if let Some(found) = section.parsed::<RecoveryClass>("recovery", "write \"manual\"")?
        && found.value != RecoveryClass::Manual
    {
        return Err(found.bad(
            format!("is \"{}\", and mail has neither idempotency keys nor lookup", found.value),
            "write \"manual\", or leave it out",
        ));
    }
    let example = "for example reply_to = \"support@example.com\"";
    Ok(EmailGrant {
        from,
        reply_to: section.parsed("reply_to", example)?.map(|found| found.value),
        recipients,
        size: section.size("size", 1..=MAX_MAIL_BYTES)?.map_or(MAIL_BYTES, |found| found.value),
        unplanned: section.integer("unplanned", 0..=10_000)?.map_or(0, |found| found.value),
        recovery: RecoveryClass::Manual,
    })
}
