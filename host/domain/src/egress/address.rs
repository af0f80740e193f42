//! Addresses that are not the public internet.
//!
//! A table of our own, because no crate knows the whole of it: the standard
//! library's predicates leave out shared, benchmarking and reserved space, and
//! `to_ipv4` sees nothing inside NAT64, 6to4 or Teredo; `ip_network`, the nearest,
//! calls IPv4-mapped and all of those global. For IPv6 the rule is
//! turned round: only global unicast space (2000::/3) can be public, and the
//! table names what is special inside and what is well known outside it.
//!
//! Not checked: NAT64 under a network's own prefix (RFC 6052 §2.2), which looks
//! like any other address, and public addresses that route inside by a network's
//! own arrangement. Who runs the host there closes them in the firewall.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IANA IPv4 Special-Purpose Address Registry, less the blocks that it marks as
/// globally reachable (AS112, AMT); blocks with a reachable piece inside are
/// refused whole. Then multicast, and one address of a vendor.
const V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network (RFC 791 §3.2)"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private (RFC 1918)"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared, carrier-grade NAT (RFC 6598)"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback (RFC 1122 §3.2.1.3)"),
    // Every cloud's metadata service at .254, and more.
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local and cloud metadata (RFC 3927)"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private (RFC 1918)"),
    // Holds 192.0.0.192, the metadata service of Oracle's cloud.
    (Ipv4Addr::new(192, 0, 0, 0), 24, "IETF protocol assignments (RFC 6890 §2.1)"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation (RFC 5737)"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relay, withdrawn (RFC 7526)"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private (RFC 1918)"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking (RFC 2544)"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation (RFC 5737)"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation (RFC 5737)"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast (RFC 5771)"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved and broadcast (RFC 1112 §4, RFC 919)"),
    // learn.microsoft.com, "What is IP address 168.63.129.16?"
    (Ipv4Addr::new(168, 63, 129, 16), 32, "Azure platform services"),
];

/// IANA IPv6 Special-Purpose Address Registry and IPv6 Address Space; the first
/// match names the range.
const V6: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified (RFC 4291 §2.5.2)"),
    (Ipv6Addr::LOCALHOST, 128, "loopback (RFC 4291 §2.5.3)"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, "IPv4-mapped (RFC 4291 §2.5.5.2)"),
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, "IPv4-translated (RFC 2765 §2.1)"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, "IPv4-compatible (RFC 4291 §2.5.5.1)"),
    // Any IPv4 address inside: whether a public one is reached through it is up
    // to a translator we know nothing of.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, "NAT64 (RFC 6052)"),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "NAT64, local use (RFC 8215)"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "discard (RFC 6666)"),
    (Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 0), 64, "dummy prefix (RFC 9780)"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "Teredo (RFC 4380)"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "IETF protocol assignments (RFC 2928)"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation (RFC 3849)"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4 (RFC 3056)"),
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16, "6bone, returned (RFC 3701)"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation (RFC 9637)"),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "segment routing (RFC 9602)"),
    // docs.aws.amazon.com, instance metadata over IPv6; also its DNS and time.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, "AWS instance services"),
    // docs.cloud.google.com, metadata server of IPv6-only instances.
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32, "Google Cloud metadata"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "unique local (RFC 4193)"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local (RFC 4291 §2.5.6)"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "site-local, withdrawn (RFC 3879)"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast (RFC 4291 §2.7)"),
];

/// What `allow_private` opens: the developer's own machine and network. Not
/// link-local space, where clouds keep their metadata services.
const PRIVATE: &[&str] = &[
    "private (RFC 1918)",
    "loopback (RFC 1122 §3.2.1.3)",
    "loopback (RFC 4291 §2.5.3)",
    "unique local (RFC 4193)",
];

/// The special range an address lies in; `None` if it may be on the public
/// internet.
pub fn blocked(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => {
            let within = |(base, length, _): &&(Ipv4Addr, u32, _)| {
                (u32::from(ip) ^ u32::from(*base)).leading_zeros() >= *length
            };
            V4.iter().find(within).map(|(_, _, name)| *name)
        }
        IpAddr::V6(ip) => {
            let within = |(base, length, _): &&(Ipv6Addr, u32, _)| {
                (u128::from(ip) ^ u128::from(*base)).leading_zeros() >= *length
            };
            if let Some((_, _, name)) = V6.iter().find(within) {
                return Some(name);
            }
            match ip.segments() {
                // An IPv4 address as interface identifier, tunnelled to.
                [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => Some("ISATAP (RFC 5214 §6.1)"),
                [0x2000..=0x3fff, ..] => None,
                _ => Some("outside global unicast space (RFC 4291 §2.4)"),
            }
        }
    }
}

/// Whether a call must not connect to this address, and why. `allow_private` is
/// the route's: it opens loopback, RFC 1918 and unique local addresses in their
/// plain form, and nothing else (no mapped form, no metadata service).
pub fn refused(ip: IpAddr, allow_private: bool) -> Option<&'static str> {
    blocked(ip).filter(|range| !(allow_private && PRIVATE.contains(range)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn b02_p6_every_special_address_is_blocked_by_name() {
        for (address, name) in [
            ("0.0.0.0", "this network"),
            ("0.1.2.3", "this network"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("100.64.0.1", "shared"),
            ("100.127.255.255", "shared"),
            ("100.100.100.200", "shared"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.169.254", "link-local"),
            ("169.254.170.2", "link-local"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.192", "IETF"),
            ("192.0.0.9", "IETF"),
            ("192.0.2.1", "documentation"),
            ("192.88.99.1", "6to4"),
            ("192.168.1.1", "private"),
            ("198.18.0.1", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("168.63.129.16", "Azure"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "IPv4-mapped"),
            ("::ffff:8.8.8.8", "IPv4-mapped"),
            ("::127.0.0.1", "IPv4-compatible"),
            ("::8.8.8.8", "IPv4-compatible"),
            ("::ffff:0:127.0.0.1", "IPv4-translated"),
            ("64:ff9b::7f00:1", "NAT64"),
            ("64:ff9b::808:808", "NAT64"),
            ("64:ff9b:1::7f00:1", "NAT64, local"),
            ("2002:7f00:1::", "6to4"),
            ("2002:808:808::1", "6to4"),
            ("2001::80ff:fffe", "Teredo"),
            ("2001:0:53aa:64c::1", "Teredo"),
            ("2001:1::1", "IETF"),
            ("2001:20::1", "IETF"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("feff::1", "site-local"),
            ("fc00::1", "unique local"),
            ("fdff::1", "unique local"),
            ("fd00:ec2::254", "AWS"),
            ("fd20:ce::254", "Google"),
            ("100::1", "discard"),
            ("100:0:0:1::1", "dummy"),
            ("2001:db8::1", "documentation"),
            ("3fff:fff::1", "documentation"),
            ("3ffe::1", "6bone"),
            ("5f00::1", "segment routing"),
            ("ff02::1", "multicast"),
            ("ff0e::1", "multicast"),
            ("2606:4700::5efe:7f00:1", "ISATAP"),
            ("2606:4700::200:5efe:a00:1", "ISATAP"),
            ("::1:2:3", "outside"),
            ("64:ff9b:2::1", "outside"),
            ("200::1", "outside"),
            ("4000::1", "outside"),
            ("1fff::1", "outside"),
            ("e000::1", "outside"),
            ("fe00::1", "outside"),
        ] {
            let range = blocked(ip(address)).unwrap_or_else(|| panic!("{address} is open"));
            assert!(range.starts_with(name), "{address}: {range}");
            assert!(refused(ip(address), false).is_some(), "{address}");
        }
    }

    #[test]
    fn b02_public_addresses_next_to_special_ranges_are_open() {
        for address in [
            "1.0.0.0",
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "93.184.216.34",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.31.196.1",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "2606:4700::5eff:1",
            "3ffd::1",
            "3fff:1000::1",
        ] {
            assert_eq!(blocked(ip(address)), None, "{address}");
        }
    }

    #[test]
    fn b02_allow_private_opens_the_own_machine_and_network_and_nothing_else() {
        for address in
            ["127.0.0.1", "10.1.2.3", "172.20.0.1", "192.168.0.7", "::1", "fd12:3456::1", "8.8.8.8"]
        {
            assert_eq!(refused(ip(address), true), None, "{address}");
        }
        for address in [
            "169.254.169.254",
            "168.63.129.16",
            "192.0.0.192",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "0.0.0.0",
            "::",
            "224.0.0.1",
        ] {
            assert!(refused(ip(address), true).is_some(), "{address}");
        }
        // Every name that allow_private opens exists in the tables.
        let names: Vec<&str> = V4.iter().map(|row| row.2).chain(V6.iter().map(|row| row.2)).collect();
        assert!(PRIVATE.iter().all(|name| names.contains(name)));
    }
}
