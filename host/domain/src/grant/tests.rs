//! What a grant means, what goes without saying, and every complaint with its line.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const FULL: &str = include_str!("../../testdata/grant/stripe.toml");
const SHORT: &str = include_str!("../../testdata/grant/stripe-short.toml");
const REFUSED: &str = include_str!("../../testdata/grant/refused.txt");

fn grant(text: &str) -> Grant {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A grant with one route that has these lines besides the three it needs.
fn route(lines: &str) -> HttpRoute {
    let text = format!("[[http]]\nhost = \"a.example\"\npath = \"/**\"\n{lines}");
    grant(&text).http()[0].clone()
}

#[test]
fn a_full_grant_reads_as_it_is_written() {
    let grant = grant(FULL);
    assert_eq!(grant.approval().required, 1);
    assert_eq!(grant.approval().expires_after, Duration::from_secs(900));
    assert_eq!(grant.show().iter().map(JsonPointer::as_str).collect::<Vec<_>>(), ["/amount", "/recipient"]);
    assert_eq!(grant.planning(), Planning::Reads);
    assert_eq!(grant.limits().memory, 64 << 20);
    assert_eq!(grant.limits().send, Duration::from_secs(30));
    let route = &grant.http()[0];
    assert_eq!(route.to_string(), "POST https://api.stripe.com/v1/refunds*");
    assert_eq!(route.recovery, RecoveryClass::ProviderIdempotent);
    assert_eq!(route.idempotency_header.as_deref(), Some("idempotency-key"));
    assert_eq!(route.replay_header.as_deref(), Some("idempotent-replayed"));
    assert_eq!(
        (route.on_5xx, route.key_format, route.in_flight_status),
        (On5xx::Repeat, KeyFormat::Plain, 409)
    );
    assert_eq!(route.significant_headers, BTreeSet::from(["stripe-version".to_owned()]));
    assert_eq!(route.headers["authorization"].as_str(), "Bearer {{secret:stripe_key}}");
    assert_eq!(grant.secrets().iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["stripe_key"]);
    let email = grant.email().unwrap();
    assert!(email.permits(&"someone@example.com".parse().unwrap()));
    assert!(!email.permits(&"someone@example.org".parse().unwrap()));
    assert_eq!(grant.source(), FULL);
}

#[test]
fn p4_a_digest_depends_on_meaning_and_not_on_spelling() {
    let full = grant(FULL);
    assert_eq!(full.digest(), grant(SHORT).digest());
    assert_eq!(full, grant(SHORT));
    assert_eq!(full.digest(), grant(&FULL.replace('\n', "\r\n")).digest());
    // Every line that says something other than a default changes it.
    let mut digests = BTreeSet::from([full.digest()]);
    for (line, other) in [
        ("show = [\"/amount\", \"/recipient\"]", "show = [\"/recipient\", \"/amount\"]"),
        ("planning = \"reads\"", "planning = \"none\""),
        ("required = 1", "required = 2"),
        ("expires_after = \"15m\"", "expires_after = \"16m\""),
        ("execution_deadline = \"24h\"", "execution_deadline = \"23h\""),
        ("memory = \"64MiB\"", "memory = \"65MiB\""),
        ("cpu = \"2s\"", "cpu = \"3s\""),
        ("wall = \"120s\"", "wall = \"121s\""),
        ("send = \"30s\"", "send = \"31s\""),
        ("effects = 32", "effects = 33"),
        ("arguments = \"64KiB\"", "arguments = \"65KiB\""),
        ("result = \"256KiB\"", "result = \"257KiB\""),
        ("log = \"64KiB\"", "log = \"65KiB\""),
        ("host = \"api.stripe.com\"", "host = \"api.stripe.net\""),
        ("port = 443", "port = 444"),
        ("methods = [\"POST\"]", "methods = [\"POST\", \"PUT\"]"),
        ("path = \"/v1/refunds*\"", "path = \"/v1/refunds/*\""),
        ("idempotency_header = \"Idempotency-Key\"", "idempotency_header = \"X-Key\""),
        ("key_format = \"plain\"", "key_format = \"uuid\""),
        ("key_retention = \"24h\"", "key_retention = \"23h\""),
        ("in_flight_status = 409", "in_flight_status = 425"),
        ("replay_header = \"Idempotent-Replayed\"", ""),
        ("on_5xx = \"repeat\"", "on_5xx = \"unknown\""),
        ("unplanned = 0", "unplanned = 1"),
        ("reference = \"/id\"", "reference = \"/ref\""),
        ("significant_headers = [\"Stripe-Version\"]", ""),
        ("request_body = \"1MiB\"", "request_body = \"2MiB\""),
        ("response_body = \"8MiB\"", "response_body = \"9MiB\""),
        ("allow_private = false", "allow_private = true"),
        ("stripe_key", "other_key"),
        ("from = \"billing@example.com\"", "from = \"sales@example.com\""),
        ("recipients = [\"*@example.com\"]", "recipients = [\"a@example.com\"]"),
    ] {
        assert!(FULL.contains(line), "{line}");
        assert!(digests.insert(grant(&FULL.replacen(line, other, 1)).digest()), "{line} does not count");
    }
}

#[test]
fn an_empty_grant_allows_nothing_and_asks_one_person() {
    let grant = grant("");
    assert_eq!(grant.approval().required, 1);
    assert_eq!(grant.approval().execution_deadline, Duration::from_secs(86_400));
    assert!(grant.http().is_empty() && grant.email().is_none() && grant.show().is_empty());
    let target = Target::parse("https", "api.stripe.com", "/v1/refunds").unwrap();
    assert!(grant.route(Method::Post, &target).is_err());
}

#[test]
fn what_goes_without_saying_depends_on_methods_and_class() {
    let read = route("methods = [\"GET\", \"HEAD\"]");
    assert_eq!((read.recovery, read.on_5xx), (RecoveryClass::Read, On5xx::Answer));
    assert_eq!((read.port, read.scheme, read.idempotency_header), (443, Scheme::Https, None));
    let mixed = route("methods = [\"GET\", \"POST\"]");
    assert_eq!((mixed.recovery, mixed.on_5xx), (RecoveryClass::Manual, On5xx::Unknown));
    assert_eq!((mixed.idempotency_header, mixed.unplanned), (None, 0));
    assert_eq!((mixed.request_body, mixed.response_body), (1 << 20, 8 << 20));
    let search = route("methods = [\"POST\"]\nrecovery = \"read\"");
    assert_eq!(search.recovery, RecoveryClass::Read);
    let keyed = route("methods = [\"POST\"]\nrecovery = \"provider-idempotent\"");
    assert_eq!(keyed.idempotency_header.as_deref(), Some("idempotency-key"));
    assert_eq!((keyed.on_5xx, keyed.key_retention), (On5xx::Repeat, Duration::from_secs(86_400)));
    assert_eq!((keyed.in_flight_status, keyed.replay_header), (409, None));
    let looked_up = route(
        "methods = [\"POST\"]\nrecovery = \"verifiable\"\nidempotency_header = \"X-Ref\"\nkey_format = \"uuid\"",
    );
    assert_eq!((looked_up.on_5xx, looked_up.key_format), (On5xx::Unknown, KeyFormat::Uuid));
    assert_eq!(looked_up.idempotency_header.as_deref(), Some("x-ref"));
    let local = route("methods = [\"GET\"]\nscheme = \"http\"\nallow_private = true");
    assert_eq!((local.port, local.scheme), (80, Scheme::Http));
    // What is not said follows what is.
    let short = grant("[limits]\nwall = \"1s\"");
    assert_eq!((short.limits().send, short.limits().cpu), (Duration::from_secs(1), Duration::from_secs(1)));
    let soon = grant("[approval]\nexecution_deadline = \"5m\"");
    assert_eq!(soon.approval().expires_after, Duration::from_secs(300));
}

#[test]
fn p6_the_first_matching_route_wins_and_a_refusal_says_how_close_it_was() {
    let grant = grant(
        r#"
        [[http]]
        host = "api.example.com"
        methods = ["POST"]
        path = "/v1/refunds*"
        recovery = "manual"
        [[http]]
        host = "api.example.com"
        methods = ["GET", "POST"]
        path = "/v1/**"
        recovery = "read"
        [[http]]
        host = "*.files.example.com"
        port = 8443
        methods = ["GET"]
        path = "/**"
        [[http]]
        host = "127.0.0.1"
        scheme = "http"
        port = 9000
        allow_private = true
        methods = ["GET"]
        path = "/"
        "#,
    );
    let find = |method, scheme: &str, authority: &str, path: &str| {
        grant.route(method, &Target::parse(scheme, authority, path).unwrap()).map(|(index, _)| index)
    };
    assert_eq!(find(Method::Post, "https", "api.example.com", "/v1/refunds?x=1"), Ok(0));
    assert_eq!(find(Method::Post, "https", "api.example.com", "/v1/refunds/7"), Ok(1));
    assert_eq!(find(Method::Get, "https", "API.example.com.:443", "/v1/refunds"), Ok(1));
    // Another spelling of the same path does not slip to the laxer route.
    assert_eq!(find(Method::Post, "https", "api.example.com", "/v1/%72efunds"), Ok(0));
    assert_eq!(find(Method::Get, "https", "a.files.example.com:8443", "/x/y"), Ok(2));
    assert_eq!(find(Method::Get, "http", "127.0.0.1:9000", "/"), Ok(3));
    for (method, scheme, authority, path, expected) in [
        (Method::Post, "https", "evil.example.com", "/v1/refunds", Mismatch::Host),
        (Method::Get, "https", "a.b.files.example.com:8443", "/", Mismatch::Host),
        (Method::Get, "https", "localhost:9000", "/", Mismatch::Host),
        (Method::Post, "https", "api.example.com:22", "/v1/refunds", Mismatch::Port),
        (Method::Post, "http", "api.example.com", "/v1/refunds", Mismatch::Port),
        (Method::Post, "http", "api.example.com:443", "/v1/refunds", Mismatch::Scheme),
        (Method::Delete, "https", "api.example.com", "/v1/refunds", Mismatch::Method),
        (Method::Get, "https", "api.example.com", "/v2/refunds", Mismatch::Path),
        (Method::Post, "https", "api.example.com", "/V1/refunds", Mismatch::Path),
    ] {
        match find(method, scheme, authority, path) {
            Err(EgressRefusal::NotGranted { mismatch, .. }) => {
                assert_eq!(mismatch, expected, "{authority}{path}")
            }
            other => panic!("{authority}{path}: {other:?}"),
        }
    }
    let refusal = find(Method::Delete, "https", "api.example.com", "/v1/refunds").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "no route of the grant allows DELETE \"https://api.example.com/v1/refunds\": \
         host, port and scheme are granted, but not with this method"
    );
}

#[test]
fn p6_a_tool_may_set_neither_credentials_nor_keys_nor_what_the_host_sets() {
    let text = format!(
        "{FULL}\n[[http]]\nhost = \"b.example\"\nmethods = [\"POST\"]\npath = \"/\"\nheaders = {{ X-Api-Key = \"{{{{secret:b}}}}\" }}"
    );
    let grant = grant(&text);
    let forbidden = grant.forbidden_headers();
    for name in [
        "authorization",
        "cookie",
        "proxy-authorization",
        "host",
        "idempotency-key",
        "x-idempotency-key",
        "idempotency_key",
        "content-length",
        "expect",
        "te",
        "accept-encoding",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "via",
        "traceparent",
        "connection",
        "trailer",
        "upgrade",
        "http2-settings",
        "transfer-encoding",
        "keep-alive",
        "proxy-connection",
        "x-api-key",
        "x_api_key",
        "x_forwarded_for",
        "content_length",
    ] {
        assert!(forbidden.contains(name), "{name}");
    }
    for name in ["content-type", "accept", "user-agent", "stripe-version", "if-match"] {
        assert!(!forbidden.contains(name), "{name}");
    }
    assert!(!grant.http()[0].forbidden_headers().contains("x-api-key"));
    assert!(grant.http()[1].forbidden_headers().contains("x-api-key"));
}

#[test]
fn every_complaint_names_line_column_problem_and_remedy() {
    // Each case: the grant, a line `---`, the message, an empty line.
    let mut checked = 0;
    for case in REFUSED.split("\n\n\n").map(str::trim).filter(|case| !case.is_empty()) {
        let (text, expected) = case.split_once("\n---\n").unwrap_or_else(|| panic!("no --- in {case}"));
        let told = text.parse::<Grant>().expect_err(text).to_string();
        assert_eq!(told, expected, "{text}");
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn a_grant_that_is_too_long_is_not_even_read() {
    let text = "#".repeat(MAX_GRANT_BYTES + 1);
    assert_eq!(text.parse::<Grant>().unwrap_err(), GrantError::TooLarge { bytes: MAX_GRANT_BYTES + 1 });
    assert!("#".repeat(MAX_GRANT_BYTES).parse::<Grant>().is_ok());
}

#[test]
fn nesting_does_not_exhaust_the_stack() {
    for text in [format!("show = {}", "[".repeat(60_000)), format!("{}x = 1", "a.".repeat(30_000))] {
        assert!(text.parse::<Grant>().is_err());
    }
}

#[test]
fn p7_no_grant_exceeds_the_operators_ceiling() {
    let ceiling = Ceiling::default();
    assert_eq!(grant(FULL).within(&ceiling), Ok(()));
    assert_eq!(grant("").within(&ceiling), Ok(()));
    let exact = grant("[limits]\nmemory = \"512MiB\"\ncpu = \"60s\"");
    assert_eq!(exact.within(&ceiling), Ok(()));
    for (text, told) in [
        ("[limits]\nmemory = \"513MiB\"", "`limits.memory` is 513MiB, and this host allows at most 512MiB; "),
        ("[limits]\ncpu = \"61s\"", "`limits.cpu` is 61s, and this host allows at most 1m; "),
        ("[limits]\nwall = \"16m\"", "`limits.wall` is 16m, and this host allows at most 15m; "),
        (
            "[limits]\nwall = \"5m\"\nsend = \"121s\"",
            "`limits.send` is 121s, and this host allows at most 2m; ",
        ),
        ("[limits]\neffects = 257", "`limits.effects` is 257, and this host allows at most 256; "),
        ("[limits]\narguments = \"2MiB\"", "`limits.arguments` is 2MiB, and this host allows at most 1MiB; "),
        ("[limits]\nresult = \"5MiB\"", "`limits.result` is 5MiB, and this host allows at most 4MiB; "),
        ("[limits]\nlog = \"2MiB\"", "`limits.log` is 2MiB, and this host allows at most 1MiB; "),
    ] {
        let error = grant(text).within(&ceiling).unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
    }
    let with_route = |line: &str| {
        grant(&format!("[[http]]\nhost = \"a.example\"\npath = \"/\"\nmethods = [\"POST\"]\n{line}"))
    };
    let strict = Ceiling { allow_private: false, least_required: 2, ..Ceiling::default() };
    for (grant, ceiling, key) in [
        (with_route("request_body = \"17MiB\""), &ceiling, "http[0].request_body"),
        (with_route("response_body = \"65MiB\""), &ceiling, "http[0].response_body"),
        (with_route("unplanned = 65"), &ceiling, "http[0].unplanned"),
        (grant(""), &strict, "approval.required"),
        (
            grant(&format!(
                "[approval]\nrequired = 2\n{}",
                "[[http]]\nhost = \"a.example\"\npath = \"/\"\nmethods = [\"POST\"]\nallow_private = true"
            )),
            &strict,
            "http[0].allow_private",
        ),
    ] {
        match grant.within(ceiling) {
            Err(GrantError::AboveCeiling { key: named, .. }) => assert_eq!(named, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn the_words_of_a_grant_are_its_words_everywhere() {
    for class in RecoveryClass::ALL {
        assert_eq!(class.as_str().parse(), Ok(*class));
        assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        assert_eq!(class.is_write(), *class != RecoveryClass::Read);
    }
    assert_eq!("provider-idempotent".parse(), Ok(RecoveryClass::ProviderIdempotent));
    assert_eq!(
        "idempotent".parse::<RecoveryClass>().unwrap_err().to_string(),
        "a recovery class must be one of `read` `provider-idempotent` `verifiable` `manual`"
    );
    assert_eq!(serde_json::from_str::<On5xx>("\"repeat\"").unwrap(), On5xx::Repeat);
    assert_eq!("sha256".parse(), Ok(KeyFormat::Sha256));
    assert_eq!("none".parse(), Ok(Planning::Nothing));
}

#[test]
fn json_pointers_are_checked_and_resolve() {
    let value = serde_json::json!({"a": [{"b/c": 1, "~": 2}]});
    for (pointer, found) in [("/a/0/b~1c", Some(1)), ("/a/0/~0", Some(2)), ("/a/1", None), ("/x", None)] {
        let pointer: JsonPointer = pointer.parse().unwrap();
        assert_eq!(pointer.resolve(&value).and_then(serde_json::Value::as_i64), found, "{pointer}");
    }
    for bad in ["amount", "#/amount", "/a~2", "/a~", "/a\0", "/a\n"] {
        assert!(bad.parse::<JsonPointer>().is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(
        at in any::<prop::sample::Index>(),
        length in 0usize..8,
        piece in "[\\[\\]\"'={}.,a-z0-9 \n\\\\-]{0,8}|\\PC{0,4}",
    ) {
        // One place of a good grant, changed.
        let start = at.index(FULL.len());
        let end = (start + length).min(FULL.len());
        let text = format!("{}{piece}{}", &FULL[..start], &FULL[end..]);
        if let Err(error) = text.parse::<Grant>() {
            prop_assert!(error.to_string().starts_with("grant line "), "{}", error);
        }
    }
}

#[test]
fn b15_a_route_names_its_authority_and_its_name_is_part_of_the_digest() {
    assert_eq!(route("methods = [\"GET\"]\nca = \"internal\"\n").ca.as_deref(), Some("internal"));
    assert_eq!(route("methods = [\"GET\"]\n").ca, None);
    let text = |ca: &str| format!("[[http]]\nhost = \"a.example\"\npath = \"/\"\nmethods = [\"GET\"]\n{ca}");
    let digests = BTreeSet::from(["", "ca = \"a\"", "ca = \"b\""].map(|ca| grant(&text(ca)).digest()));
    assert_eq!(digests.len(), 3);
    for (ca, why) in [
        ("ca = \"../x\"", "line 5"),
        ("ca = \"\"", "no name"),
        ("scheme = \"http\"\nallow_private = true\nca = \"a\"", "for TLS"),
    ] {
        let refused = text(ca).parse::<Grant>().unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}
