//! How a route is written: one `[[http]]` section.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::headers;
use super::parse::{DAY, MIB};
use super::read::{Found, Section};
use super::{GrantError, HttpRoute, JsonPointer, KeyFormat, On5xx, RecoveryClass};
use crate::egress::{HostPattern, Method, Scheme};
use crate::secret::HeaderTemplate;

/// Bodies are held whole, and stored: chosen, above it another design is needed.
const MAX_BODY: u64 = 256 * MIB;

/// What a provider that follows the IETF's Idempotency-Key draft reads.
const DEFAULT_KEY_HEADER: &str = "idempotency-key";

/// Reads one route.
pub(super) fn route(section: &Section<'_>) -> Result<HttpRoute, GrantError> {
    let host_example = "for example host = \"api.example.com\"";
    let host =
        section.required(section.parsed::<HostPattern>("host", host_example)?, "host", host_example)?;
    let host_place = host.clone();
    let allow_private = section.boolean("allow_private")?.is_some_and(|found| found.value);
    let scheme = section.parsed::<Scheme>("scheme", "write \"https\"")?;
    if let Some(found) = scheme.as_ref().filter(|found| found.value == Scheme::Http && !allow_private) {
        return Err(found.bad(
            "is \"http\", in the clear",
            "use https; http goes only to private addresses, with allow_private = true",
        ));
    }
    let scheme = scheme.map_or(Scheme::Https, |found| found.value);
    let port = section.integer("port", 1..=65535)?;
    let port = port.map_or(scheme.default_port(), |found| u16::try_from(found.value).unwrap_or(u16::MAX));

    let ca = authority(section, scheme)?;

    let methods = methods(section)?;
    let path_example = "for example path = \"/v1/refunds*\"; * stays within a segment, ** crosses";
    let path = section.required(section.parsed("path", path_example)?, "path", path_example)?.value;

    let recovery = section.parsed::<RecoveryClass>("recovery", "for example recovery = \"manual\"")?;
    let recovery = recovery.map_or_else(
        || {
            if methods.iter().all(|method| method.is_safe()) {
                RecoveryClass::Read
            } else {
                RecoveryClass::Manual
            }
        },
        |found| found.value,
    );
    let keyed = keyed(section, recovery)?;
    let on_5xx = on_5xx(section, recovery)?;
    let unplanned = section.integer("unplanned", 0..=10_000)?;
    if let Some(found) = unplanned.as_ref().filter(|found| found.value > 0 && !recovery.is_write()) {
        return Err(found.bad("counts writes, and this route has only reads", "leave it out"));
    }
    let reference = section.parsed::<JsonPointer>("reference", "for example reference = \"/id\"")?;
    let headers = host_headers(section, keyed.idempotency_header.as_deref())?;
    if !host.value.is_exact() && headers.values().any(|template| template.secrets().next().is_some()) {
        return Err(host_place.bad(
            "is a pattern, and the route's headers hold a secret",
            "a secret goes to one host only: write a route for each host that gets it",
        ));
    }
    let significant_headers = significant_headers(section, &headers, keyed.idempotency_header.as_deref())?;
    let body = |key, default| Ok(section.size(key, 0..=MAX_BODY)?.map_or(default, |found| found.value));
    Ok(HttpRoute {
        host: host.value,
        port,
        scheme,
        methods,
        path,
        recovery,
        idempotency_header: keyed.idempotency_header,
        key_format: keyed.key_format,
        key_retention: keyed.key_retention,
        in_flight_status: keyed.in_flight_status,
        replay_header: keyed.replay_header,
        on_5xx,
        unplanned: unplanned.map_or(0, |found| found.value),
        reference: reference.map(|found| found.value),
        significant_headers,
        request_body: body("request_body", MIB)?,
        response_body: body("response_body", 8 * MIB)?,
        allow_private,
        ca,
        headers,
    })
}

fn authority(section: &Section<'_>, scheme: Scheme) -> Result<Option<String>, GrantError> {
    let Some(text) = section.text("ca")? else { return Ok(None) };
    let example = "name one of the operator's [ca] entries, for example ca = \"internal\"";
    if scheme == Scheme::Http {
        return Err(text.bad("is for TLS, and this route has none", "leave it out, or use https"));
    }
    let name = text.value;
    let fits = (1..=64).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !fits {
        return Err(text.bad("is no name (a letter, then letters, digits, _ and -)", example));
    }
    Ok(Some(name.to_owned()))
}

fn methods(section: &Section<'_>) -> Result<BTreeSet<Method>, GrantError> {
    let example = "for example methods = [\"POST\"]";
    let texts = section.required(section.texts("methods")?, "methods", example)?;
    if texts.value.is_empty() {
        return Err(texts.bad("is empty", example));
    }
    texts
        .value
        .iter()
        .map(|text| {
            text.value.parse::<Method>().map_err(|error| text.bad(format!("is refused: {error}"), example))
        })
        .collect()
}

/// What a route says about idempotency keys.
struct Keyed {
    idempotency_header: Option<String>,
    key_format: KeyFormat,
    key_retention: Duration,
    in_flight_status: u16,
    replay_header: Option<String>,
}

fn keyed(section: &Section<'_>, recovery: RecoveryClass) -> Result<Keyed, GrantError> {
    let idempotent = recovery == RecoveryClass::ProviderIdempotent;
    // A key that says nothing in this class was written by somebody who thinks
    // it does: better refused than ignored.
    let only_idempotent = |found: Option<Found<'_, ()>>| match found {
        Some(found) if !idempotent => Err(found.bad(
            format!("says nothing about the class `{recovery}`"),
            "leave it out, or write recovery = \"provider-idempotent\"",
        )),
        _ => Ok(()),
    };
    let example = "for example \"Idempotency-Key\"";
    let header = header_name(section, "idempotency_header", example)?;
    if let Some(found) = &header {
        if !recovery.is_write() {
            return Err(found.bad("is for writes, and this route has only reads", "leave it out"));
        }
        if headers::HOST_ONLY.contains(&headers::folded(&found.value).as_str()) {
            return Err(found.bad("is a header that the host writes for itself", example));
        }
    }
    let key_format = section.parsed::<KeyFormat>("key_format", "for example key_format = \"plain\"")?;
    if let Some(found) = key_format.as_ref().filter(|_| !idempotent && header.is_none()) {
        return Err(
            found.bad("shapes a key that no idempotency_header carries", "name the header, or leave it out")
        );
    }
    let key_retention = section.duration("key_retention", Duration::from_secs(60)..=400 * DAY)?;
    only_idempotent(key_retention.as_ref().map(Found::place))?;
    let in_flight_status = section.integer("in_flight_status", 400..=499)?;
    only_idempotent(in_flight_status.as_ref().map(Found::place))?;
    let replay_header = header_name(section, "replay_header", "for example \"Idempotent-Replayed\"")?;
    only_idempotent(replay_header.as_ref().map(Found::place))?;

    let default_header = idempotent.then(|| DEFAULT_KEY_HEADER.to_owned());
    Ok(Keyed {
        idempotency_header: header.map(|found| found.value).or(default_header),
        key_format: key_format.map_or(KeyFormat::Plain, |found| found.value),
        key_retention: key_retention.map_or(DAY, |found| found.value),
        in_flight_status: in_flight_status.map_or(409, |found| u16::try_from(found.value).unwrap_or(409)),
        replay_header: replay_header.map(|found| found.value),
    })
}

fn on_5xx(section: &Section<'_>, recovery: RecoveryClass) -> Result<On5xx, GrantError> {
    let Some(found) = section.parsed::<On5xx>("on_5xx", "for example on_5xx = \"unknown\"")? else {
        return Ok(recovery.default_on_5xx());
    };
    match (found.value, recovery) {
        (On5xx::Repeat, RecoveryClass::ProviderIdempotent) | (On5xx::Answer, _) => Ok(found.value),
        (On5xx::Unknown, class) if class.is_write() => Ok(found.value),
        (On5xx::Unknown, _) => {
            Err(found.bad("is \"unknown\", and a read has no unknown outcome", "leave it out"))
        }
        (On5xx::Repeat, class) => Err(found.bad(
            format!("is \"repeat\", and the class `{class}` is never repeated blindly"),
            "write \"unknown\" or \"answer\", or recovery = \"provider-idempotent\"",
        )),
    }
}

fn header_name<'a>(
    section: &Section<'a>,
    key: &'static str,
    example: &'static str,
) -> Result<Option<Found<'a, String>>, GrantError> {
    let Some(text) = section.text(key)? else { return Ok(None) };
    let name = headers::name(text.value).ok_or_else(|| text.bad("is no header name", example))?;
    Ok(Some(text.with(name)))
}

fn host_headers(
    section: &Section<'_>,
    key_header: Option<&str>,
) -> Result<BTreeMap<String, HeaderTemplate>, GrantError> {
    let mut out = BTreeMap::new();
    for entry in section.entries("headers")? {
        let (written, template) = entry.value;
        let name = headers::name(written)
            .ok_or_else(|| entry.bad("is no header name", "write it as on the wire"))?;
        let folded = headers::folded(&name);
        if headers::HOST_ONLY.contains(&folded.as_str()) {
            return Err(entry.bad("is a header that the host writes for itself", "leave it out"));
        }
        if headers::KEYS.contains(&folded.as_str()) || key_header.map(headers::folded) == Some(folded) {
            return Err(entry.bad(
                "is the idempotency key, which differs for each write",
                "name it as idempotency_header, and leave its value to the host",
            ));
        }
        let template = template.parse().map_err(|error| {
            entry.bad(format!("is refused: {error}"), "for example \"Bearer {{secret:stripe_key}}\"")
        })?;
        if out.insert(name, template).is_some() {
            return Err(entry.bad("is set twice; header names have no case", "keep one of them"));
        }
    }
    Ok(out)
}

fn significant_headers(
    section: &Section<'_>,
    set_by_host: &BTreeMap<String, HeaderTemplate>,
    key_header: Option<&str>,
) -> Result<BTreeSet<String>, GrantError> {
    let Some(texts) = section.texts("significant_headers")? else { return Ok(BTreeSet::new()) };
    let forbidden = headers::forbidden(set_by_host.keys().map(String::as_str).chain(key_header));
    texts
        .value
        .iter()
        .map(|text| {
            let name = headers::name(text.value).ok_or_else(|| {
                text.bad(format!("holds {:?}, no header name", text.value), "for example \"Stripe-Version\"")
            })?;
            if forbidden.contains(&name) {
                return Err(text.bad(
                    format!("holds {:?}, which the tool cannot set", text.value),
                    "leave it out: what the host sets is approved with the grant",
                ));
            }
            Ok(name)
        })
        .collect()
}
