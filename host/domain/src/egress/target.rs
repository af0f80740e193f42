//! A target: where one call goes, rebuilt from validated parts.

use std::fmt;

use super::{EgressRefusal, HostName, MAX_PATH_BYTES, PathPattern, Scheme, path};

/// Where one call goes. There is no way to make one but [`Target::parse`] and
/// [`Target::from_url`], which are equally strict, and its text never contains
/// anything that was not checked.
///
/// Displays as the URL that is sent, recorded and hashed: scheme, host, the port
/// unless it is the scheme's own, path and query. Never a fragment, never a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    scheme: Scheme,
    host: HostName,
    port: u16,
    path_and_query: String,
    decoded_path: Vec<u8>,
}

impl Target {
    /// Takes the three parts of a request as a component gave them.
    ///
    /// `authority` is `host` or `host:port`; the port defaults to the scheme's.
    /// `path_and_query` begins with a slash and has at most [`MAX_PATH_BYTES`].
    ///
    /// # Errors
    /// The [`EgressRefusal`] that names the first part which is not acceptable.
    pub fn parse(scheme: &str, authority: &str, path_and_query: &str) -> Result<Target, EgressRefusal> {
        let scheme: Scheme = scheme.parse()?;
        let (host, port) = split_authority(authority)?;
        let host: HostName = host.parse()?;
        let port = match port {
            None => scheme.default_port(),
            Some(digits) => parse_port(digits)?,
        };
        let refuse = |why| EgressRefusal::Path { given: path_and_query.to_owned(), why };
        if path_and_query.len() > MAX_PATH_BYTES {
            return Err(refuse("path and query together have at most 8192 bytes"));
        }
        let (path, query) = match path_and_query.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path_and_query, None),
        };
        let decoded_path = path::decode(path).map_err(refuse)?;
        query.map_or(Ok(()), path::check_query).map_err(refuse)?;
        Ok(Target { scheme, host, port, path_and_query: path_and_query.to_owned(), decoded_path })
    }

    /// Reads back what [`Target`] displays, for example from a stored effect.
    ///
    /// # Errors
    /// As [`Target::parse`].
    pub fn from_url(url: &str) -> Result<Target, EgressRefusal> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| EgressRefusal::Scheme { given: url.to_owned() })?;
        let (authority, path_and_query) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        Target::parse(scheme, authority, path_and_query)
    }

    /// With or without TLS.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host, for the resolver, for TLS and for the `Host` header.
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// 1–65535.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What stands in the request line. Begins with a slash.
    pub fn path_and_query(&self) -> &str {
        &self.path_and_query
    }

    /// The path alone, as it is sent.
    pub fn path(&self) -> &str {
        self.path_and_query.split_once('?').map_or(&self.path_and_query, |(path, _)| path)
    }

    /// `host` or `host:port`: the value of the `Host` header (RFC 9110 §7.2).
    pub fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether a route's path pattern means this path.
    pub fn path_matches(&self, pattern: &PathPattern) -> bool {
        pattern.matches(&self.decoded_path)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path_and_query)
    }
}

/// Splits at the one colon that can stand before a port. Any second colon, as
/// in `allowed.example:443@evil.example:80`, is left in a part that refuses it.
fn split_authority(authority: &str) -> Result<(&str, Option<&str>), EgressRefusal> {
    // A user name is refused here and not with the host, so that
    // `allowed.example:443@evil.example` is not called a bad port.
    if authority.contains('@') {
        return Err(EgressRefusal::Host {
            given: authority.to_owned(),
            why: "no user name, backslash, percent sign or zone id belongs into a host",
        });
    }
    let host_end = match authority.strip_prefix('[') {
        Some(inner) => inner.find(']').map_or(authority.len(), |at| at + 2),
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(host_end);
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok((host, None)),
        None => Err(EgressRefusal::Host {
            given: authority.to_owned(),
            why: "only a colon and a port may follow an address in brackets",
        }),
        Some(port) => Ok((host, Some(port))),
    }
}

fn parse_port(digits: &str) -> Result<u16, EgressRefusal> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    match digits.parse::<u16>() {
        Ok(port) if plain => Ok(port),
        _ => Err(EgressRefusal::Port { given: digits.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn https(authority: &str) -> Result<Target, EgressRefusal> {
        Target::parse("https", authority, "/v1?x=1")
    }

    #[test]
    fn b04_p6_a_target_is_rebuilt_from_its_parts() {
        for (authority, url) in [
            ("api.example.com", "https://api.example.com/v1?x=1"),
            ("API.Example.com.:443", "https://api.example.com/v1?x=1"),
            ("api.example.com:8443", "https://api.example.com:8443/v1?x=1"),
            ("[::1]", "https://[::1]/v1?x=1"),
            ("[0:0::1]:8080", "https://[::1]:8080/v1?x=1"),
            ("127.0.0.1:65535", "https://127.0.0.1:65535/v1?x=1"),
        ] {
            let target = https(authority).unwrap();
            assert_eq!(target.to_string(), url);
            assert_eq!(Target::from_url(url).unwrap(), target);
        }
        let target = Target::parse("HTTP", "a.example:443", "/p").unwrap();
        assert_eq!((target.port(), target.authority().as_str()), (443, "a.example:443"));
        assert_eq!(target.to_string(), "http://a.example:443/p");
        let target = https("a.example").unwrap();
        assert_eq!((target.path(), target.path_and_query()), ("/v1", "/v1?x=1"));
    }

    #[test]
    fn b04_p6_authorities_that_two_parsers_read_differently_are_refused() {
        for authority in [
            "",
            ":443",
            "allowed.example:443@evil.example",
            "user:pw@x",
            "@x",
            "allowed.example:65536",
            "allowed.example:",
            "allowed.example:0",
            "allowed.example:00443",
            "allowed.example:0443",
            "allowed.example:+443",
            "allowed.example:443:443",
            "allowed.example:443/",
            "allowed.example:99999999999",
            "allowed.example: 443",
            "allowed.example:４４３",
            "\u{ff41}llowed.example",
            "allowed\u{3002}example",
            "[::1]443",
            "[::1",
            "[::1]]:1",
            "::1:443",
            "[fe80::1%25eth0]:443",
            "allowed.example\\.evil.example",
            "allowed.example#@evil.example",
            "allowed.example?.evil.example",
            "127.1:80",
            "0x7f.1",
            "2130706433",
            "017700000001",
            "0",
        ] {
            assert!(https(authority).is_err(), "{authority:?} was taken as {}", https(authority).unwrap());
        }
    }

    #[test]
    fn b04_p6_the_port_is_told_apart_from_the_host_in_a_refusal() {
        assert!(matches!(https("a.example:00443"), Err(EgressRefusal::Port { given }) if given == "00443"));
        assert!(matches!(https("a.example:443@evil.example"), Err(EgressRefusal::Host { .. })));
        assert!(matches!(Target::parse("ftp", "a.example", "/"), Err(EgressRefusal::Scheme { .. })));
        assert!(matches!(Target::parse("https", "a.example", "x"), Err(EgressRefusal::Path { .. })));
        assert!(matches!(Target::parse("https", "a.example", ""), Err(EgressRefusal::Path { .. })));
    }

    #[test]
    fn b10_p6_paths_are_limited_in_size_and_characters() {
        let path = |length: usize| format!("/{}", "a".repeat(length - 1));
        assert!(Target::parse("https", "a.example", &path(MAX_PATH_BYTES)).is_ok());
        assert!(Target::parse("https", "a.example", &path(MAX_PATH_BYTES + 1)).is_err());
        for bad in [
            "/a b",
            "/\r\nX:1",
            "//evil",
            "/../x",
            "/a%2Fb",
            "/a#b",
            "/a?b#c",
            "/a?b c",
            "*",
            "?a",
            "https://x/",
        ] {
            assert!(Target::parse("https", "a.example", bad).is_err(), "{bad:?} was taken");
        }
        // Dots and slashes in a query go nowhere.
        assert!(Target::parse("https", "a.example", "/a?to=/../b%2Fc").is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_reads_back_the_same(
            authority in "\\PC{0,16}|[a-c.:@0-9\\[\\]%-]{0,16}",
            path in "/[a-z0-9./%?&=*;|-]{0,24}",
        ) {
            if let Ok(target) = https(&authority).and_then(|_| Target::parse("https", &authority, &path)) {
                prop_assert_eq!(&Target::from_url(&target.to_string()).unwrap(), &target);
                prop_assert!(target.to_string().bytes().all(|b| (0x21..=0x7e).contains(&b)));
            }
        }
    }
}
