//! One blocking HTTP request over `wasi:http`: status, headers and body, or why
//! there is no answer. For tools that want no HTTP library.
//!
//! It does not retry, follow redirects, or set headers of its own: the host
//! decides about the first, nobody should do the second unseen, and the third
//! (keys, secrets, lengths) the host sets by itself.

mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package countersign:guest-http;
            world client { import wasi:http/outgoing-handler@0.2.12; }
        ",
        world: "countersign:guest-http/client",
        generate_all,
    });
}

use bindings::wasi::http::outgoing_handler::handle;
use bindings::wasi::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, HeaderError, IncomingBody, Method, OutgoingBody,
    OutgoingRequest, Scheme,
};
use bindings::wasi::io::streams::StreamError;
use std::fmt;

/// A complete answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case, in the order received.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    /// True for 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of that name (lower case), if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(n, _)| n == name)?;
        std::str::from_utf8(value).ok()
    }

    /// `Retry-After` in seconds; none if it is absent or a date.
    pub fn retry_after(&self) -> Option<u32> {
        self.header("retry-after")?.trim().parse().ok()
    }
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub enum Problem {
    /// The URL is not `http://host…` or `https://host…`.
    Url(String),
    /// The host does not let a tool set this header.
    Header(String),
    /// The grant does not cover this call. Calling again changes nothing.
    Denied(String),
    /// No connection, or it broke. Calling again may help.
    Network(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Url(url) => write!(f, "`{url}` is not an http or https URL"),
            Problem::Header(name) => write!(f, "the header `{name}` cannot be set by a tool"),
            Problem::Denied(why) => write!(f, "the host does not allow this call: {why}"),
            Problem::Network(why) => write!(f, "no answer: {why}"),
        }
    }
}

impl std::error::Error for Problem {}

/// `GET url`, waits for the whole answer.
pub fn get(url: &str) -> Result<Answer, Problem> {
    send(Method::Get, url, &[], &[])
}

/// `POST url` with a body and its media type, waits for the whole answer.
/// `headers` are added as they are.
pub fn post(url: &str, content_type: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, Problem> {
    let mut all = vec![("content-type", content_type)];
    all.extend_from_slice(headers);
    send(Method::Post, url, &all, body)
}

fn send(method: Method, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, Problem> {
    let bad_url = |()| Problem::Url(url.to_owned());
    let (scheme, authority, path) = split(url).ok_or_else(|| bad_url(()))?;

    let fields = Fields::new();
    for (name, value) in headers {
        fields
            .append(name, value.as_bytes())
            .map_err(|_: HeaderError| Problem::Header((*name).to_owned()))?;
    }
    let request = OutgoingRequest::new(fields);
    request.set_method(&method).map_err(bad_url)?;
    request.set_scheme(Some(&scheme)).map_err(bad_url)?;
    request.set_authority(Some(authority)).map_err(bad_url)?;
    request.set_path_with_query(Some(&path)).map_err(bad_url)?;

    let outgoing = request.body().map_err(bad_url)?;
    let future = handle(request, None).map_err(problem)?;
    // A write fails when the host has already given up on the request. The reason
    // is then in the response future, so it is read in either case.
    if write(&outgoing, body).is_ok() {
        let _ = OutgoingBody::finish(outgoing, None);
    } else {
        drop(outgoing);
    }
    receive(&future)
}

/// Scheme, authority, and path with query.
fn split(url: &str) -> Option<(Scheme, &str, String)> {
    let (scheme, rest) = match url.split_once("://")? {
        ("https", rest) => (Scheme::Https, rest),
        ("http", rest) => (Scheme::Http, rest),
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let tail = tail.split('#').next().unwrap_or("");
    let path = if tail.starts_with('/') { tail.to_owned() } else { format!("/{tail}") };
    (!authority.is_empty()).then_some((scheme, authority, path))
}

fn write(body: &OutgoingBody, bytes: &[u8]) -> Result<(), StreamError> {
    let Ok(stream) = body.write() else { return Err(StreamError::Closed) };
    // The interface takes at most 4096 bytes in one blocking write.
    bytes.chunks(4096).try_for_each(|chunk| stream.blocking_write_and_flush(chunk))
}

fn receive(future: &FutureIncomingResponse) -> Result<Answer, Problem> {
    let lost = |what: &str| Problem::Network(what.to_owned());
    future.subscribe().block();
    let response = match future.get() {
        Some(Ok(Ok(response))) => response,
        Some(Ok(Err(code))) => return Err(problem(code)),
        _ => return Err(lost("the answer was not there when it was due")),
    };
    let status = response.status();
    let headers = response.headers().entries();
    let incoming = response.consume().map_err(|()| lost("the answer has no body"))?;
    let body = read(&incoming)?;
    drop(IncomingBody::finish(incoming));
    Ok(Answer { status, headers, body })
}

fn read(incoming: &IncomingBody) -> Result<Vec<u8>, Problem> {
    let broken = |why: &str| Problem::Network(format!("the answer broke off: {why}"));
    let stream = incoming.stream().map_err(|()| broken("no stream"))?;
    let mut body = Vec::new();
    loop {
        match stream.blocking_read(64 * 1024) {
            Ok(chunk) => body.extend_from_slice(&chunk),
            Err(StreamError::Closed) => return Ok(body),
            Err(StreamError::LastOperationFailed(error)) => {
                return Err(broken(&error.to_debug_string()));
            }
        }
    }
}

fn problem(code: ErrorCode) -> Problem {
    let text = format!("{code:?}");
    match code {
        ErrorCode::HttpRequestDenied
        | ErrorCode::DestinationIpProhibited
        | ErrorCode::HttpRequestBodySize(_)
        | ErrorCode::HttpRequestMethodInvalid
        | ErrorCode::HttpRequestUriInvalid
        | ErrorCode::HttpRequestUriTooLong => Problem::Denied(text),
        _ => Problem::Network(text),
    }
}

/// Percent-encodes a value for a query or a form: everything but letters, digits
/// and `-._~`.
pub fn percent_encode(value: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)].into());
            out.push(HEX[usize::from(byte & 15)].into());
        }
    }
    out
}

/// `name=value` pairs joined by `&`, encoded; for queries and
/// `application/x-www-form-urlencoded` bodies. Names may carry brackets.
pub fn form<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(&percent_encode(name).replace("%5B", "[").replace("%5D", "]"));
        out.push('=');
        out.push_str(&percent_encode(value));
    }
    out
}

/// An amount in minor units as a person reads it: 1250 and `eur` give
/// `12.50 EUR`, 500 and `jpy` give `500 JPY`.
pub fn money(minor: u64, currency: &str) -> String {
    const WHOLE: [&str; 16] = [
        "BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "UGX", "VND", "VUV", "XAF",
        "XOF", "XPF",
    ];
    const THOUSANDTHS: [&str; 5] = ["BHD", "JOD", "KWD", "OMR", "TND"];
    let currency = currency.to_ascii_uppercase();
    let is_in = |list: &[&str]| list.contains(&currency.as_str());
    if is_in(&WHOLE) {
        format!("{minor} {currency}")
    } else if is_in(&THOUSANDTHS) {
        format!("{}.{:03} {currency}", minor / 1000, minor % 1000)
    } else {
        format!("{}.{:02} {currency}", minor / 100, minor % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_split_into_what_the_host_matches() {
        let (_, authority, path) = split("http://127.0.0.1:80/a?b=c#d").unwrap();
        assert_eq!((authority, path.as_str()), ("127.0.0.1:80", "/a?b=c"));
        let (_, authority, path) = split("https://x.example?q").unwrap();
        assert_eq!((authority, path.as_str()), ("x.example", "/?q"));
        assert!(split("ftp://x").is_none());
        assert!(split("https:///path").is_none());
    }

    #[test]
    fn forms_keep_brackets_in_names_only() {
        assert_eq!(form([("a", "1 +é"), ("m[k]", "[&]")]), "a=1%20%2B%C3%A9&m[k]=%5B%26%5D");
    }

    #[test]
    fn money_follows_the_minor_unit_of_the_currency() {
        assert_eq!(money(1250, "eur"), "12.50 EUR");
        assert_eq!(money(5, "USD"), "0.05 USD");
        assert_eq!(money(500, "jpy"), "500 JPY");
        assert_eq!(money(1250, "KWD"), "1.250 KWD");
    }
}
