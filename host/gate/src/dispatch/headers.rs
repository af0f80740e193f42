//! The head of a request: what the component set, what the host sets, and never
//! both.
//!
//! The sandbox refuses forbidden headers already when a component sets them.
//! This is the same rule once more, at the only place that writes bytes: a
//! component's header that the host sets too is a refusal, not a choice between
//! two values, and not a silent drop, for an approver saw the request as the
//! component made it. Only what belongs to a connection is taken off silently
//! (RFC 9110 §7.6.1): the component has none.

use std::collections::HashSet;

use bytes::Bytes;
use countersign_domain::effect::Refusal;
use countersign_domain::egress::Method;
use countersign_domain::grant::HttpRoute;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Uri, Version};
use http_body_util::Full;

use super::Outgoing;
use super::secrets::Resolved;

/// Headers of a component's request, and their bytes. Chosen as for answers;
/// the sandbox's own limit is lower.
const MAX_HEADERS: usize = 128;
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// What belongs to one connection only: RFC 9110 §7.6.1, and names that were
/// used so before it.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Values that are URLs; nothing but visible ASCII can be part of one.
const URL_VALUED: &[&str] = &["content-location", "origin", "referer"];

pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(&name.as_str())
}

/// The headers that a message's own `Connection` header declares to be for this
/// connection only.
pub(super) fn named_by_connection(headers: &HeaderMap) -> HashSet<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// What the component set, checked, less what belonged to a connection. Needs
/// no secret, so it runs before anything is connected.
///
/// # Errors
/// [`Refusal::NotGranted`], naming the header.
pub(super) fn of_the_component(outgoing: &Outgoing, granted: &HttpRoute) -> Result<HeaderMap, Refusal> {
    let bytes: usize = outgoing.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if outgoing.headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return Err(refused(format!(
            "a request has at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes of them"
        )));
    }
    let mut all = HeaderMap::with_capacity(outgoing.headers.len() + 8);
    for (name, value) in &outgoing.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused(format!("{name:?} is not the name of a header")))?;
        all.append(&parsed, value_of(&parsed, value)?);
    }
    let named = named_by_connection(&all);
    let forbidden = granted.forbidden_headers();
    let mut kept = HeaderMap::with_capacity(all.len() + 8);
    for (name, value) in &all {
        if is_hop_by_hop(name) || named.contains(name) {
            continue;
        }
        if name == header::CONTENT_LENGTH {
            // The host counts. A component that counted the same is right.
            if value.to_str().ok() == Some(outgoing.body.len().to_string().as_str()) {
                continue;
            }
            return Err(refused(format!(
                "content-length does not say {}, the body's length",
                outgoing.body.len()
            )));
        }
        // A gateway that speaks CGI makes one header of `a-b` and `a_b`.
        if forbidden.contains(&name.as_str().replace('_', "-")) {
            return Err(refused(format!("the header {name} is the host's to set, not a tool's")));
        }
        kept.append(name, value.clone());
    }
    Ok(kept)
}

/// A value of the component's, as bytes.
fn value_of(name: &HeaderName, value: &str) -> Result<HeaderValue, Refusal> {
    let wrong = || refused(format!("the value of the header {name} has characters that no header may have"));
    let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let bytes = bytes.ok_or_else(wrong)?;
    if URL_VALUED.contains(&name.as_str()) && !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(wrong());
    }
    // Spaces at the ends are no part of a value (RFC 9110 §5.5): a recipient
    // drops them, and what it drops an approver need not wonder about.
    if bytes.trim_ascii() != bytes {
        return Err(wrong());
    }
    HeaderValue::from_bytes(&bytes).map_err(|_| wrong())
}

/// The whole request. `kept` is what [`of_the_component`] left; `reusable` says
/// whether the connection may serve another one afterwards.
///
/// # Errors
/// [`Refusal::NotGranted`]: the grant, a secret or the key cannot stand in a
/// header, or the grant sets a header that frames the message.
pub(super) fn request(
    outgoing: &Outgoing,
    granted: &HttpRoute,
    kept: HeaderMap,
    secrets: &Resolved,
    user_agent: &HeaderValue,
    reusable: bool,
) -> Result<Request<Full<Bytes>>, Refusal> {
    let mut headers = HeaderMap::with_capacity(kept.len() + granted.headers.len() + 6);
    set(&mut headers, header::HOST, host_value(&outgoing.route.target.authority())?)?;
    set(&mut headers, header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))?;
    let has_length = !outgoing.body.is_empty()
        || matches!(outgoing.route.method, Method::Post | Method::Put | Method::Patch);
    if has_length {
        set(&mut headers, header::CONTENT_LENGTH, HeaderValue::from(outgoing.body.len()))?;
    }
    if !reusable {
        set(&mut headers, header::CONNECTION, HeaderValue::from_static("close"))?;
    }
    if let (Some(name), Some(key)) = (&granted.idempotency_header, &outgoing.provider_key) {
        set(&mut headers, name_of(name)?, host_value(key)?)?;
    }
    for (name, template) in &granted.headers {
        let rendered = secrets.render(template).map_err(|error| refused(error.to_string()))?;
        let mut value = host_value(&rendered)?;
        value.set_sensitive(true);
        set(&mut headers, name_of(name)?, value)?;
    }
    if !headers.contains_key(header::USER_AGENT) && !kept.contains_key(header::USER_AGENT) {
        set(&mut headers, header::USER_AGENT, user_agent.clone())?;
    }
    for (name, value) in &kept {
        headers.append(name, value.clone());
    }
    let path = outgoing.route.target.path_and_query();
    let written = |uri: &Uri| uri.path_and_query().is_some_and(|written| written.as_str() == path);
    let uri = path.parse::<Uri>().ok().filter(written);
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    *request.uri_mut() = uri.ok_or_else(|| refused("the path cannot be written as it is".to_owned()))?;
    *request.method_mut() = match outgoing.route.method {
        Method::Get => http::Method::GET,
        Method::Head => http::Method::HEAD,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
    };
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Sets a header of the host's, once.
fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> Result<(), Refusal> {
    let framing = is_hop_by_hop(&name) && name != header::CONNECTION;
    if framing || headers.insert(&name, value).is_some() {
        return Err(refused(format!("the grant sets the header {name}, which is the host's own")));
    }
    Ok(())
}

fn name_of(name: &str) -> Result<HeaderName, Refusal> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| refused(format!("{name:?} is not the name of a header")))
}

/// A value of the host's: visible ASCII and inner spaces, the part of a header
/// that no two parsers read differently.
fn host_value(text: &str) -> Result<HeaderValue, Refusal> {
    let plain = !text.is_empty() && text.trim() == text && text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    let value = if plain { HeaderValue::from_str(text).ok() } else { None };
    value.ok_or_else(|| refused("a header of the host's must be visible ASCII".to_owned()))
}

fn refused(why: String) -> Refusal {
    Refusal::NotGranted(why)
}
