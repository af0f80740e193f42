//! Host names: one spelling each, and patterns that cannot match by accident.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

use super::EgressRefusal;

/// A host in its one spelling: a lower-case DNS name in A-label form without a
/// trailing dot, a dotted quad, or an IPv6 address in brackets (RFC 5952).
///
/// A name is refused if a resolver or another parser could take it for
/// something else: `127.1`, `0x7f.1`, `2130706433` and `0` are addresses to a
/// C library, `ａpi.example` is `api.example` to a browser.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName {
    text: String,
    ip: Option<IpAddr>,
}

impl HostName {
    /// The spelling described at the type.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The address, if the host is written as one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }
}

impl FromStr for HostName {
    type Err = EgressRefusal;

    /// Lower-cases, removes one trailing dot, and refuses everything else that
    /// is not already the one spelling (IPv6 addresses are respelled).
    fn from_str(given: &str) -> Result<HostName, EgressRefusal> {
        parse(given).map_err(|why| EgressRefusal::Host { given: given.to_owned(), why })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(given: &str) -> Result<HostName, &'static str> {
    if given.is_empty() {
        return Err("no host was given");
    }
    if !given.is_ascii() {
        return Err("write an international name in its ASCII form (xn--…)");
    }
    if given.contains(['@', '\\', '%']) {
        return Err("no user name, backslash, percent sign or zone id belongs into a host");
    }
    if let Some(inner) = given.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("an IPv6 address stands in square brackets")?;
        let ip: Ipv6Addr = inner.parse().map_err(|_| "not an IPv6 address")?;
        return Ok(HostName { text: format!("[{ip}]"), ip: Some(IpAddr::V6(ip)) });
    }
    if given.contains([':', '/', '?', '#']) {
        return Err("a host stands alone: scheme, port and path are given apart");
    }
    let name = given.strip_suffix('.').unwrap_or(given).to_ascii_lowercase();
    if ends_in_a_number(&name) {
        // The standard library takes four decimal numbers without leading zeros
        // and nothing else.
        let ip: Ipv4Addr = name
            .parse()
            .map_err(|_| "a host that ends in a number must be four decimal numbers (1.2.3.4)")?;
        return Ok(HostName { text: name, ip: Some(IpAddr::V4(ip)) });
    }
    let ascii = Uts46::new()
        .to_ascii(name.as_bytes(), AsciiDenyList::STD3, Hyphens::CheckFirstLast, DnsLength::Verify)
        .map_err(
            |_| "a host is labels of letters, digits and inner hyphens, 63 bytes each, 253 in all; xn-- labels must decode",
        )?;
    // An A-label whose decoded form encodes to another A-label has two spellings.
    // `idna` refuses those itself; should it ever map them instead, we do.
    if ascii != name.as_str() {
        return Err("the xn-- label is not the one spelling of its name");
    }
    Ok(HostName { text: name, ip: None })
}

/// What the WHATWG URL standard calls "ends in a number": such hosts are
/// addresses to one parser or another, whatever they look like to the next.
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    !last.is_empty() && (hex || last.bytes().all(|b| b.is_ascii_digit()))
}

/// Which hosts a route means.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host and no other. The only way to mean an address.
    Exact(HostName),
    /// `*.example.com`: exactly one label in front of the name. Neither the
    /// name itself nor `a.b.example.com`; a grant that means those says so.
    OneLabelBelow(HostName),
}

impl HostPattern {
    /// Whether the route means this host.
    pub fn matches(&self, host: &HostName) -> bool {
        match self {
            HostPattern::Exact(exact) => exact == host,
            HostPattern::OneLabelBelow(parent) => {
                let front = host.text.strip_suffix(parent.as_str()).and_then(|front| front.strip_suffix('.'));
                front.is_some_and(|label| !label.is_empty() && !label.contains('.'))
            }
        }
    }

    /// Whether it means one host only. Secrets are bound to such routes.
    pub fn is_exact(&self) -> bool {
        matches!(self, HostPattern::Exact(_))
    }
}

impl FromStr for HostPattern {
    type Err = EgressRefusal;

    /// A host, or `*.` before a name that somebody registered: `*`, `*.com`,
    /// `*.co.uk` and `*.github.io` would mean everybody's hosts and are refused
    /// (public suffix list, private section included).
    fn from_str(given: &str) -> Result<HostPattern, EgressRefusal> {
        let refuse = |why| EgressRefusal::Host { given: given.to_owned(), why };
        let Some(parent) = given.strip_prefix("*.") else {
            if given.contains('*') {
                return Err(refuse("a star stands only in front: *.example.com"));
            }
            return given.parse().map(HostPattern::Exact);
        };
        let parent: HostName = parent.parse().map_err(|error| match error {
            EgressRefusal::Host { why, .. } => refuse(why),
            other => other,
        })?;
        if parent.ip.is_some() {
            return Err(refuse("an address has no names below it"));
        }
        if psl::domain(parent.text.as_bytes()).is_none() {
            return Err(refuse("a star must stand before a registered name, not before a public suffix"));
        }
        Ok(HostPattern::OneLabelBelow(parent))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(host) => write!(f, "{host}"),
            HostPattern::OneLabelBelow(parent) => write!(f, "*.{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(text: &str) -> HostName {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn b03_p6_a_host_has_one_spelling() {
        for (given, spelled) in [
            ("api.stripe.com", "api.stripe.com"),
            ("A.Example.COM.", "a.example.com"),
            ("localhost", "localhost"),
            ("XN--MNCHEN-3YA.de", "xn--mnchen-3ya.de"),
            ("r3---sn-4g5ednle.googlevideo.com", "r3---sn-4g5ednle.googlevideo.com"),
            ("1.example.com", "1.example.com"),
            ("0x7f.example", "0x7f.example"),
            ("93.184.216.34", "93.184.216.34"),
            ("127.0.0.1.", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0:0::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(host(given).as_str(), spelled, "{given}");
            assert_eq!(host(spelled), host(given), "{given}");
        }
    }

    #[test]
    fn b03_b04_p6_odd_spellings_of_hosts_are_refused() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = format!("{}example.com", "a.".repeat(125));
        for given in [
            // numbers that some resolver takes for an address
            "127.1",
            "0x7f.1",
            "2130706433",
            "017700000001",
            "0",
            "0x0",
            "0x",
            "127.0.0.01",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.0x4",
            "example.1",
            "1.2.3.4..",
            // user names, zones, other parsers' delimiters
            "user@example.com",
            "user:pw@x",
            "allowed.example\\@evil.example",
            "a%2eexample.com",
            "[fe80::1%eth0]",
            "[::1",
            "::1",
            "[::1]x",
            "[1.2.3.4]",
            "[]",
            "a/b",
            "a?b",
            "a#b",
            "a b",
            "a\tb",
            "a\0b",
            "a\r\nb",
            // not ASCII, though a browser would make it so
            "\u{ff41}llowed.example",
            "allowed\u{3002}example",
            "m\u{fc}nchen.de",
            "exam\u{ad}ple.com",
            "\u{feff}a.b",
            // labels
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "-a.example",
            "a-.example",
            "a_b.example",
            "*",
            "*.example.com",
            &long_label,
            &long_name,
            // A-labels that decode to nothing, or to another spelling
            "xn--example-.org",
            "xn--.org",
            "xn--a.org",
            "xn--mnchen-3YA-.de",
            "xn--zzzzzz99999.org",
        ] {
            assert!(
                given.parse::<HostName>().is_err(),
                "{given:?} was taken as {:?}",
                given.parse::<HostName>()
            );
        }
    }

    #[test]
    fn b05_p6_a_star_is_exactly_one_label_of_a_registered_name() {
        let pattern: HostPattern = "*.Example.com.".parse().unwrap();
        assert_eq!(pattern.to_string(), "*.example.com");
        assert!(pattern.matches(&host("a.example.com")) && pattern.matches(&host("A.Example.COM.")));
        for other in
            ["example.com", "evilexample.com", "example.com.evil.net", "a.b.example.com", "aexample.com"]
        {
            assert!(!pattern.matches(&host(other)), "{other}");
        }
        let exact: HostPattern = "example.com".parse().unwrap();
        assert!(exact.is_exact() && exact.matches(&host("EXAMPLE.com.")));
        assert!(!exact.matches(&host("a.example.com")));
        for fine in ["*.api.example.com", "*.example.co.uk", "*.me.github.io", "*.svc.corp"] {
            assert!(fine.parse::<HostPattern>().is_ok(), "{fine}");
        }
        for wide in [
            "*",
            "*.",
            "*.*",
            "**.example.com",
            "*.com",
            "*.co.uk",
            "*.github.io",
            "*.corp",
            "*.localhost",
            "a.*.com",
            "*example.com",
            "*.xn--55qx5d.cn",
            "*.1.2.3.4",
            "*.[::1]",
            "*.2.3.4",
        ] {
            assert!(wide.parse::<HostPattern>().is_err(), "{wide} was taken");
        }
    }

    #[test]
    fn b05_p6_an_address_is_granted_only_by_itself() {
        let pattern: HostPattern = "[::1]".parse().unwrap();
        assert!(pattern.matches(&host("[0:0::1]")));
        assert!(!pattern.matches(&host("[::2]")) && !pattern.matches(&host("localhost")));
        let quad: HostPattern = "127.0.0.1".parse().unwrap();
        assert!(quad.matches(&host("127.0.0.1")) && !quad.matches(&host("[::ffff:127.0.0.1]")));
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_spelled_the_same_when_read_again(text in "\\PC{0,24}|[a-zA-Z0-9.:%@\\[\\]x-]{0,24}") {
            if let Ok(host) = text.parse::<HostName>() {
                prop_assert_eq!(&host.as_str().parse::<HostName>().unwrap(), &host);
                prop_assert!(host.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-[]:".contains(&b)));
            }
        }
    }
}
