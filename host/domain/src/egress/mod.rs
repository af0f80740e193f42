//! Where a component may reach: targets and patterns by name, addresses by range.
//!
//! A component hands over a scheme, an authority and a path as it likes them.
//! [`Target::parse`] takes them apart, refuses what two parsers could read in
//! two ways, and puts a target together again from the validated parts; nothing
//! downstream ever sees the original text. A grant's route matches that target
//! ([`HostPattern`], [`PathPattern`]), and only at connect time, when the name
//! has been resolved, does [`address::refused`] decide about the address.
//!
//! Not checked here: what a name resolves to, and anything that is said after
//! the connection stands. A name that is allowed and points inside is caught by
//! address alone.

pub mod address;
mod host;
mod path;
mod target;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use host::{HostName, HostPattern};
pub use path::{MAX_PATH_BYTES, PathPattern};
pub use target::Target;

/// Why a call goes nowhere. Every variant carries what was given, and says what
/// would do; untrusted text is shown escaped and cut short.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressRefusal {
    /// Not `http` or `https`.
    #[error("scheme {}: only https and, where the grant says so, http can be called", shown(given))]
    Scheme {
        /// As the component gave it; empty if it gave none.
        given: String,
    },
    /// Not one of the six methods.
    #[error("method {}: only GET, HEAD, POST, PUT, PATCH and DELETE can be called", shown(given))]
    Method {
        /// As the component gave it.
        given: String,
    },
    /// The host is no host name and no address.
    #[error("host {}: {why}", shown(given))]
    Host {
        /// As the component gave it.
        given: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The port is no port.
    #[error("port {}: a port is a number from 1 to 65535 without leading zeros", shown(given))]
    Port {
        /// As the component gave it, without the colon.
        given: String,
    },
    /// The path or query could be read in two ways, or is too long.
    #[error("path {}: {why}", shown(given))]
    Path {
        /// As the component gave it.
        given: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Well-formed, but no route of the grant allows it.
    #[error("no route of the grant allows {method} {}: {}", shown(target), mismatch.told())]
    NotGranted {
        /// The method of the call.
        method: Method,
        /// The rebuilt URL.
        target: String,
        /// What the route that came closest did not match.
        mismatch: Mismatch,
    },
}

/// The part of a call that the closest route of a grant did not match. In this
/// order routes are compared, so `Path` means that all else matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch {
    /// No route names this host.
    Host,
    /// A route names the host, with another port.
    Port,
    /// A route names host and port, with another scheme.
    Scheme,
    /// A route names host, port and scheme, without this method.
    Method,
    /// A route matches in everything but the path.
    Path,
}

impl Mismatch {
    /// The part by name: `host`, `port`, `scheme`, `method`, `path`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mismatch::Host => "host",
            Mismatch::Port => "port",
            Mismatch::Scheme => "scheme",
            Mismatch::Method => "method",
            Mismatch::Path => "path",
        }
    }

    const fn told(self) -> &'static str {
        match self {
            Mismatch::Host => "no route names this host",
            Mismatch::Port => "the host is granted, but not with this port",
            Mismatch::Scheme => "host and port are granted, but not with this scheme",
            Mismatch::Method => "host, port and scheme are granted, but not with this method",
            Mismatch::Path => "only the path does not match",
        }
    }
}

/// How a target is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// In the clear; only towards private addresses.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that goes without saying: 80 or 443.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl FromStr for Scheme {
    type Err = EgressRefusal;
    /// In either case: schemes have none (RFC 3986 §3.1).
    fn from_str(text: &str) -> Result<Scheme, EgressRefusal> {
        [Scheme::Http, Scheme::Https]
            .into_iter()
            .find(|scheme| scheme.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| EgressRefusal::Scheme { given: text.to_owned() })
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The methods that can be called at all. `CONNECT` would open a tunnel,
/// `TRACE` would echo secrets, and what an extension method does nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "each is the HTTP method of its name")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// All of them.
    pub const ALL: &'static [Method] =
        &[Method::Get, Method::Head, Method::Post, Method::Put, Method::Patch, Method::Delete];

    /// Upper-case, as on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    /// GET and HEAD, which by their definition ask for nothing to be changed
    /// (RFC 9110 §9.2.1). Whether that is true of a route, its grant says.
    pub const fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head)
    }
}

impl FromStr for Method {
    type Err = EgressRefusal;
    /// Exactly as on the wire: methods have a case (RFC 9110 §9.1).
    fn from_str(text: &str) -> Result<Method, EgressRefusal> {
        Method::ALL
            .iter()
            .copied()
            .find(|method| method.as_str() == text)
            .ok_or_else(|| EgressRefusal::Method { given: text.to_owned() })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Untrusted text for a message: quoted, everything but printable ASCII
/// escaped, at most 80 characters of it.
fn shown(text: &str) -> String {
    let mut out = String::from("\"");
    out.extend(text.chars().take(80).flat_map(char::escape_default));
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b06_p6_only_six_methods_exist_and_they_have_a_case() {
        for method in Method::ALL {
            assert_eq!(method.as_str().parse(), Ok(*method));
        }
        for other in ["", "get", "CONNECT", "TRACE", "OPTIONS", "SEARCH", "POST ", "POST\r\nX: y"] {
            assert!(other.parse::<Method>().is_err(), "{other:?}");
        }
    }

    #[test]
    fn b06_p6_only_two_schemes_exist() {
        assert_eq!("HTTPS".parse(), Ok(Scheme::Https));
        for other in ["", "ftp", "file", "ws", "https:", " https", "javascript"] {
            assert!(other.parse::<Scheme>().is_err(), "{other:?}");
        }
    }

    #[test]
    fn untrusted_text_is_escaped_and_cut_in_messages() {
        let refusal = EgressRefusal::Scheme { given: format!("\x1b]52;\u{202e}{}", "x".repeat(200)) };
        let told = refusal.to_string();
        assert!(told.starts_with(r#"scheme "\u{1b}]52;\u{202e}xxx"#), "{told}");
        assert!(told.contains("x…\": only https") && told.len() < 250, "{told}");
    }
}
