//! Paths: what may stand in one, and patterns over them.
//!
//! Patterns match the *decoded* path, so `%3A` and `:` are one to them: a call
//! cannot slip from a strict route to a laxer one by another spelling. What
//! would change the path's segments when decoded is refused, so decoding is
//! safe. The query is not matched.
//!
//! Not checked: an upstream that ignores case, or folds a trailing slash, makes
//! one route of two paths. Grants for such upstreams list the lax route with
//! the stricter class.

use std::fmt;
use std::str::FromStr;

use super::EgressRefusal;

/// Longest path and query together. 8,000 octets is what RFC 9110 §4.1 asks of
/// every recipient; this is the power of two above.
pub const MAX_PATH_BYTES: usize = 8192;

/// Longest pattern, and most stars in one: matching costs their product.
const MAX_PATTERN_BYTES: usize = 1024;
const MAX_STARS: usize = 16;

/// Checks a path without its query and decodes it.
pub(super) fn decode(path: &str) -> Result<Vec<u8>, &'static str> {
    if !path.starts_with('/') {
        return Err("a path begins with a slash");
    }
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() && segments.peek().is_some() {
            return Err("two slashes in a row: some servers read a host there, others drop one");
        }
        // `..;x` is a dot segment to servers that strip parameters first.
        if matches!(segment.split(';').next(), Some("." | "..")) {
            return Err("dot segments are not followed; write the path they lead to");
        }
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match hex_pair(bytes.next(), bytes.next()) {
                None => return Err("a percent sign is followed by two hexadecimal digits"),
                Some(..0x20 | 0x7f) => return Err("an encoded control character in the path"),
                Some(b'/' | b'\\') => {
                    return Err("an encoded slash in the path: servers disagree what it is");
                }
                Some(b'.') => return Err("an encoded dot in the path; write it plainly"),
                Some(b'%') => return Err("an encoded percent sign in the path hides a second encoding"),
                Some(byte) => decoded.push(byte),
            },
            // RFC 3986 §3.3, and the three that browsers leave as they are.
            b'/' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => decoded.push(byte),
            _ if b"-._~!$&'()*+,;=:@|[]".contains(&byte) => decoded.push(byte),
            _ => return Err("a character that has to be percent-encoded in a path"),
        }
    }
    Ok(decoded)
}

/// Checks a query. It is sent as it is: nothing of it decides where a call goes.
pub(super) fn check_query(query: &str) -> Result<(), &'static str> {
    let mut bytes = query.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' if hex_pair(bytes.next(), bytes.next()).is_none() => {
                return Err("a percent sign in the query is followed by two hexadecimal digits");
            }
            0x21..=0x7e if !b"\"#<>\\".contains(&byte) => {}
            _ => return Err("a character that has to be percent-encoded in a query"),
        }
    }
    Ok(())
}

fn hex_pair(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high?)? * 16 + digit(low?)?).ok()
}

/// Which paths a route means. `*` stands for any characters within one segment,
/// also for none; `**` for any characters, slashes included. Everything else is
/// itself; a literal star is `%2A`.
///
/// `/v1/refunds*` means `/v1/refunds` and `/v1/refunds_2`, not
/// `/v1/refunds/7`. `/v1/**` means all below `/v1/`, and `/v1/` itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Piece {
    Literal(Vec<u8>),
    WithinSegment,
    AcrossSegments,
}

impl PathPattern {
    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the route means this decoded path. Time is bounded by pattern
    /// times path; there is no backtracking for a path to provoke.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        // reached[i]: the pieces so far can stand for path[..i].
        let mut reached = vec![false; path.len() + 1];
        reached[0] = true;
        for piece in &self.pieces {
            let mut next = vec![false; path.len() + 1];
            match piece {
                Piece::Literal(literal) => {
                    for at in (0..=path.len()).filter(|at| reached[*at]) {
                        if path[at..].starts_with(literal) {
                            next[at + literal.len()] = true;
                        }
                    }
                }
                Piece::WithinSegment | Piece::AcrossSegments => {
                    let mut alive = false;
                    for at in 0..=path.len() {
                        alive |= reached[at];
                        next[at] = alive;
                        if *piece == Piece::WithinSegment && path.get(at) == Some(&b'/') {
                            alive = false;
                        }
                    }
                }
            }
            reached = next;
        }
        reached[path.len()]
    }
}

impl FromStr for PathPattern {
    type Err = EgressRefusal;

    /// Under the rules for paths: a pattern that no path could match is refused.
    fn from_str(given: &str) -> Result<PathPattern, EgressRefusal> {
        pattern(given).map_err(|why| EgressRefusal::Path { given: given.to_owned(), why })
    }
}

fn pattern(given: &str) -> Result<PathPattern, &'static str> {
    if given.len() > MAX_PATTERN_BYTES || given.matches('*').count() > MAX_STARS {
        return Err("a pattern has at most 1024 bytes and 16 stars");
    }
    if given.contains(['?', '#']) {
        return Err("a pattern is for the path alone; the query is not matched");
    }
    if given.contains("***") {
        return Err("one star stays within a segment, two cross segments, three mean nothing");
    }
    decode(given)?;
    let mut pieces = Vec::new();
    let mut rest = given;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("**") {
            pieces.push(Piece::AcrossSegments);
            rest = after;
        } else if let Some(after) = rest.strip_prefix('*') {
            pieces.push(Piece::WithinSegment);
            rest = after;
        } else {
            let (literal, after) = rest.split_at(rest.find('*').unwrap_or(rest.len()));
            pieces.push(Piece::Literal(decode_checked(literal)));
            rest = after;
        }
    }
    Ok(PathPattern { text: given.to_owned(), pieces })
}

/// Decodes a piece of a pattern that [`decode`] has accepted as a whole.
fn decode_checked(literal: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(literal.len());
    let mut bytes = literal.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' { hex_pair(bytes.next(), bytes.next()).unwrap_or(byte) } else { byte });
    }
    decoded
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str) -> bool {
        pattern
            .parse::<PathPattern>()
            .unwrap()
            .matches(&decode(path).unwrap_or_else(|why| panic!("{path}: {why}")))
    }

    #[test]
    fn p6_a_star_stays_within_its_segment_and_two_cross() {
        for (pattern, yes, no) in [
            (
                "/v1/refunds",
                vec!["/v1/refunds"],
                vec!["/v1/refunds/", "/v1/refund", "/V1/refunds", "/v1/refundsx"],
            ),
            ("/v1/refunds*", vec!["/v1/refunds", "/v1/refunds_2"], vec!["/v1/refunds/7", "/v1/refund"]),
            ("/v1/*/capture", vec!["/v1/ch_1/capture"], vec!["/v1/a/b/capture", "/v1/capture"]),
            ("/v1/**", vec!["/v1/", "/v1/a", "/v1/a/b/c"], vec!["/v1", "/v2/a", "/v10/"]),
            ("/**/end", vec!["/a/end", "/a/b/end"], vec!["/end", "/a/end/x"]),
            ("/a*b*c", vec!["/abc", "/aXbYc", "/abbbc"], vec!["/ab/c", "/acb"]),
            ("/x:*", vec!["/x:cancel", "/x%3Acancel", "/x%3acancel"], vec!["/xcancel"]),
            ("/100%2A", vec!["/100*", "/100%2a"], vec!["/100", "/100x"]),
            ("/", vec!["/"], vec!["/a"]),
            ("/**", vec!["/", "/a/b"], vec![]),
            ("/caf%C3%A9", vec!["/caf%c3%a9"], vec!["/cafe"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} should match {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} should not match {path}");
            }
        }
    }

    #[test]
    fn b10_p6_paths_that_two_servers_read_differently_are_refused() {
        for path in [
            "",
            "v1",
            "*",
            "//evil",
            "/a//b",
            "/a//",
            "//",
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a/..",
            "/a/.;x/b",
            "/a/..;/b",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a%5Cb",
            "/%2e%2e/b",
            "/a%2E",
            "/%252e%252e/",
            "/a%00",
            "/a%0d%0aX:1",
            "/a%7f",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a b",
            "/a\tb",
            "/\r\nX:1",
            "/a\0",
            "/a\\b",
            "/a\"b",
            "/a<b",
            "/a^b",
            "/a`b",
            "/a{b}",
            "/\u{e9}",
            "/a?b",
            "/a#b",
        ] {
            assert!(decode(path).is_err(), "{path:?} was taken");
        }
        for path in [
            "/",
            "/a",
            "/a/",
            "/...",
            "/.well-known/x",
            "/a..b",
            "/a;v=1",
            "/a%20b",
            "/@me",
            "/x:y",
            "/a|b[0]",
        ] {
            assert!(decode(path).is_ok(), "{path:?} was refused: {:?}", decode(path));
        }
    }

    #[test]
    fn a_query_may_hold_what_browsers_send_in_one() {
        for query in ["", "a=b&c=%2F%00", "expand[]=x", "q={a|b}^`'", "u=https://x/../y?z@w:1"] {
            assert!(check_query(query).is_ok(), "{query:?}");
        }
        for query in ["a b", "a#b", "a\"b", "<", "\\", "%", "%2", "%zz", "\u{e9}", "a\r\nb", "\0", "\x7f"] {
            assert!(check_query(query).is_err(), "{query:?}");
        }
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        let (long, starry) = (format!("/{}", "a".repeat(1024)), "/*".repeat(17));
        for pattern in
            ["", "*", "v1/*", "/a/../*", "/a?b=*", "/a***", "/a%2f*", "/a b", "//", "/%2", &long, &starry]
        {
            assert!(pattern.parse::<PathPattern>().is_err(), "{pattern:?} was taken");
        }
    }

    proptest! {
        /// Against the plain recursive definition, over a small alphabet.
        #[test]
        fn matching_is_what_its_definition_says(pattern in "/[ab/*]{0,8}", path in "/[ab/]{0,8}") {
            fn defined(pattern: &[u8], path: &[u8]) -> bool {
                match pattern {
                    [] => path.is_empty(),
                    [b'*', b'*', rest @ ..] => (0..=path.len()).any(|at| defined(rest, &path[at..])),
                    [b'*', rest @ ..] => (0..=path.len())
                        .take_while(|at| *at == 0 || path[at - 1] != b'/')
                        .any(|at| defined(rest, &path[at..])),
                    [byte, rest @ ..] => path.first() == Some(byte) && defined(rest, &path[1..]),
                }
            }
            if let (Ok(compiled), Ok(decoded)) = (pattern.parse::<PathPattern>(), decode(&path)) {
                prop_assert_eq!(compiled.matches(&decoded), defined(pattern.as_bytes(), path.as_bytes()));
            }
        }

        #[test]
        fn no_path_makes_a_check_panic(path in "\\PC{0,16}|/[a-z%0-9./;*?\\\\]{0,16}") {
            let _ = (decode(&path), check_query(&path), path.parse::<PathPattern>());
        }
    }
}
