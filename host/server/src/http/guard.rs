//! Before anything else looks at a request: is it meant for this host at all?
//!
//! A web page that somebody happens to have open can make their browser send
//! requests to `127.0.0.1`, and can point a name of its own there (DNS
//! rebinding). Such requests carry the page's name in `Host`, or its origin in
//! `Origin`. Both are compared with what this host is called. What is *not*
//! checked here is who asks: that is the token's business.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Uri};

use super::App;
use super::problem::Problem;

/// What this host is called.
#[derive(Debug, Clone)]
pub struct Allowed {
    /// Lower-case names and addresses, without port.
    hosts: Vec<String>,
    /// Any address literal: the host listens on all of its addresses. A page
    /// can rebind names, not addresses.
    any_address: bool,
    /// `scheme://host[:port]` of the public address.
    public_origin: Option<String>,
}

impl Allowed {
    /// From where it listens and how it is reached from outside.
    pub fn new(listen: SocketAddr, public_url: Option<&Uri>) -> Allowed {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()];
        let ip = match listen.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        hosts.push(ip);
        let mut public_origin = None;
        if let Some((url, authority)) = public_url.and_then(|url| Some((url, url.authority()?))) {
            hosts.push(authority.host().to_ascii_lowercase());
            let scheme = url.scheme_str().unwrap_or("https");
            public_origin = Some(format!("{scheme}://{}", authority.as_str().to_ascii_lowercase()));
        }
        Allowed { hosts, any_address: listen.ip().is_unspecified(), public_origin }
    }

    /// Whether a request with this target and these headers is for us.
    ///
    /// # Errors
    /// 403 with what is wrong.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|value| value.to_str().ok()).map(str::to_ascii_lowercase);
        let Some(host) = host.filter(|_| hosts.next().is_none()) else {
            return Err(Problem::not_permitted("exactly one Host header is needed"));
        };
        let in_target = uri.authority().is_none_or(|authority| self.is_host(authority.as_str()));
        if !self.is_host(&host) || !in_target {
            return Err(Problem::not_permitted(
                "this host is not called what the Host header says; if it should be, set public_url",
            ));
        }
        let foreign = headers.get_all(header::ORIGIN).iter().any(|origin| {
            let origin = origin.to_str().unwrap_or("null").to_ascii_lowercase();
            let own = origin.strip_prefix("http://").is_some_and(|origin| origin == host);
            !own && self.public_origin.as_ref() != Some(&origin)
        });
        if foreign {
            return Err(Problem::not_permitted(
                "requests from other web pages are not taken (Origin header)",
            ));
        }
        Ok(())
    }

    fn is_host(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        self.hosts.contains(&host) || (self.any_address && literal.parse::<IpAddr>().is_ok())
    }
}

/// Nothing that is answered here is to be kept, or taken for something else
/// than it says it is.
const ALWAYS: [(HeaderName, HeaderValue); 2] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

/// Around every route, those that do not exist included.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match app.allowed.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    response.headers_mut().extend(ALWAYS);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: &Allowed, headers: &[(&'static str, &'static str)]) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        allowed.check(&Uri::from_static("/v1/actions"), &headers).is_ok()
    }

    #[test]
    fn f01_names_that_were_pointed_here_and_foreign_pages_are_refused() {
        let listen = "127.0.0.1:7171".parse().expect("an address");
        let url = Uri::from_static("https://gate.example.com");
        let allowed = Allowed::new(listen, Some(&url));
        for host in [
            "127.0.0.1:7171",
            "localhost:9",
            "localhost",
            "[::1]:7171",
            "gate.example.com",
            "GATE.example.com",
        ] {
            assert!(check(&allowed, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.com",
            "localhost.evil.com",
            "evil.com:7171",
            "a@localhost",
            "",
            "10.0.0.1",
            "127.0.0.1.nip.io",
        ] {
            assert!(!check(&allowed, &[("host", host)]), "{host}");
        }
        assert!(!check(&allowed, &[]));
        assert!(!check(&allowed, &[("host", "localhost"), ("host", "localhost")]));
        for origin in
            ["https://evil.com", "null", "http://localhost:9999", "http://gate.example.com", "file://"]
        {
            assert!(!check(&allowed, &[("host", "localhost:7171"), ("origin", origin)]), "{origin}");
        }
        for origin in ["http://localhost:7171", "https://gate.example.com"] {
            assert!(check(&allowed, &[("host", "localhost:7171"), ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn a_host_on_all_addresses_answers_to_addresses_and_still_not_to_names() {
        let allowed = Allowed::new("0.0.0.0:7171".parse().expect("an address"), None);
        assert!(check(&allowed, &[("host", "192.168.1.5:7171")]));
        assert!(!check(&allowed, &[("host", "evil.com:7171")]));
    }
}
