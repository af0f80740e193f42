//! Which request headers a component may not set, and which not even a grant.

use std::collections::BTreeSet;

/// Written by the host alone, from what it sends: framing, connection handling,
/// tracing, and `Accept-Encoding`, because answers are recorded as they are
/// (RFC 9110 §7.6.1, RFC 9112 §6). A grant cannot set them either.
pub(super) const HOST_ONLY: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Idempotency keys by their usual names. A fixed one would make every call the
/// same call, so a grant names the header and never its value.
pub(super) const KEYS: &[&str] = &["idempotency-key", "x-idempotency-key"];

/// Who is asking and where from: credentials and forwarding. Only a grant says.
const WHO_ASKS: &[&str] = &[
    "authorization",
    "cookie",
    "forwarded",
    "proxy-authorization",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
];

/// The fixed lists and these names. Each name also with underscores for its
/// dashes: gateways that speak CGI make one header of the two.
pub(super) fn forbidden<'n>(names: impl Iterator<Item = &'n str>) -> BTreeSet<String> {
    let fixed = [HOST_ONLY, KEYS, WHO_ASKS].into_iter().flatten().copied();
    fixed.chain(names).flat_map(|name| [name.to_owned(), name.replace('-', "_")]).collect()
}

/// Lower-cases a header name; `None` if it is none (RFC 9110 §5.6.2 token).
pub(super) fn name(text: &str) -> Option<String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(token);
    fits.then(|| text.to_ascii_lowercase())
}

/// The name with dashes, by which names are compared.
pub(super) fn folded(name: &str) -> String {
    name.replace('_', "-")
}
