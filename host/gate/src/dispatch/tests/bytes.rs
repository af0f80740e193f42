//! What stands on the wire, byte for byte, and what never gets there.

use countersign_domain::effect::Refusal;

use super::rig::*;
use crate::dispatch::Dispatched;

#[tokio::test]
async fn b08_b11_a_post_is_these_bytes_and_no_others() {
    let upstream = Upstream::answering(OK).await;
    let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
    assert_eq!(answer(sent).body, b"ok");
    let expected = format!(
        "POST /v1/refunds?x=1 HTTP/1.1\r\n\
         Host: 127.0.0.1:{}\r\n\
         Accept-Encoding: identity\r\n\
         Content-Length: 7\r\n\
         Idempotency-Key: {KEY}\r\n\
         Authorization: Bearer {SECRET}\r\n\
         User-Agent: countersign/{}\r\n\
         Content-Type: application/json\r\n\
         \r\n\
         {{\"a\":1}}",
        upstream.port(),
        env!("CARGO_PKG_VERSION"),
    );
    assert_eq!(upstream.seen.text(0), expected);
}

#[tokio::test]
async fn b11_only_methods_that_carry_a_body_announce_an_empty_one() {
    for (method, announced) in
        [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("HEAD", false), ("DELETE", false)]
    {
        let upstream = Upstream::answering(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        let url = format!("http://127.0.0.1:{}/", upstream.port());
        let request = outgoing(&grant("127.0.0.1", upstream.port(), MANUAL), method, &url, &[], b"");
        assert_eq!(fate(&send(&plain_sender(), request).await), "answered", "{method}");
        let seen = upstream.seen.text(0);
        assert_eq!(seen.contains("\r\nContent-Length: 0\r\n"), announced, "{seen}");
        assert!(seen.starts_with(&format!("{method} / HTTP/1.1\r\nHost: 127.0.0.1:")), "{seen}");
        assert!(!seen.to_lowercase().contains("transfer-encoding"), "{seen}");
        assert!(
            seen.contains("\r\nConnection: close\r\n"),
            "a manual route's connection serves once: {seen}"
        );
    }
}

#[tokio::test]
async fn b09_what_belongs_to_a_connection_is_taken_off_on_both_ways() {
    let upstream = Upstream::answering(
        b"HTTP/1.1 200 OK\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
          Upgrade: h2c\r\nTrailer: x\r\nX-Kept: 2\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let mut request = post(&upstream, IDEMPOTENT);
    for (name, value) in [
        ("connection", "X-Secret, close"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("trailer", "idempotency-key"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAA"),
        ("keep-alive", "1"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("user-agent", "tool/1"),
        ("content-length", "7"),
    ] {
        request.headers.push((name.to_owned(), value.to_owned()));
    }
    let answer = answer(send(&plain_sender(), request).await);
    assert_eq!(
        answer.headers,
        [("x-kept", "2"), ("content-length", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let seen = upstream.seen.text(0).to_lowercase();
    for name in [
        "connection",
        "x-secret",
        "te",
        "trailer",
        "upgrade",
        "http2-settings",
        "keep-alive",
        "transfer-encoding",
    ] {
        assert!(!seen.contains(&format!("\r\n{name}:")), "{name} went out: {seen}");
    }
    assert_eq!(seen.matches("\r\ncontent-length:").count(), 1);
    assert!(seen.contains("\r\nuser-agent: tool/1\r\n") && !seen.contains("countersign/"), "{seen}");
}

#[tokio::test]
async fn b08_b10_b11_a_header_that_is_not_the_tools_to_set_refuses_the_whole_request() {
    let upstream = Upstream::answering(OK).await;
    let sender = plain_sender();
    for (name, value) in [
        ("authorization", "Bearer mine"),
        ("Authorization", "Bearer mine"),
        ("cookie", "a=b"),
        ("proxy-authorization", "x"),
        ("host", "evil.example"),
        ("idempotency-key", "mine"),
        ("x-idempotency-key", "mine"),
        ("idempotency_key", "mine"),
        ("content-length", "5"),
        ("content-length", "+7"),
        ("content-length", "07"),
        ("content-length", "7, 7"),
        ("expect", "100-continue"),
        ("accept-encoding", "gzip"),
        ("forwarded", "for=1.1.1.1"),
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded_host", "evil"),
        ("via", "1.1 x"),
        ("traceparent", "00-0-0-00"),
        ("x", "a\r\nX: y"),
        ("x", "a\nb"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x", "a "),
        ("x", "\ta"),
        ("x", "a\u{100}"),
        ("referer", "https://x/\u{e9}"),
        ("referer", "\u{80}\u{ff}"),
        ("content-location", "\t/a"),
        ("origin", "a b"),
        ("x y", "1"),
        ("x:", "1"),
        ("", "1"),
        ("x\r\ny", "1"),
    ] {
        let mut request = post(&upstream, IDEMPOTENT);
        request.headers.push((name.to_owned(), value.to_owned()));
        let sent = send(&sender, request).await;
        assert!(matches!(sent, Dispatched::Refused(Refusal::NotGranted(_))), "{name:?}: {value:?}: {sent:?}");
    }
    let mut request = post(&upstream, IDEMPOTENT);
    request.headers.extend((0..128).map(|n| (format!("x-{n}"), "1".to_owned())));
    assert_eq!(fate(&send(&sender, request).await), "refused");
    let mut request = post(&upstream, IDEMPOTENT);
    request.headers.push(("x".to_owned(), "1".repeat(64 * 1024)));
    assert_eq!(fate(&send(&sender, request).await), "refused");
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b08_a_header_that_the_grant_sets_has_one_value() {
    let upstream = Upstream::answering(OK).await;
    let more = "recovery = \"provider-idempotent\"\nidempotency_header = \"X-Request-Key\"\n[http.headers]\n\
                X-Api-Key = \"{{secret:key}}\"\nUser-Agent = \"ours\"\n";
    for name in ["x-api-key", "x_api_key", "user-agent", "x-request-key"] {
        let mut request = post(&upstream, more);
        request.headers.push((name.to_owned(), "mine".to_owned()));
        assert_eq!(fate(&send(&plain_sender(), request).await), "refused", "{name}");
    }
    assert_eq!(upstream.seen.connections(), 0);
    assert_eq!(fate(&send(&plain_sender(), post(&upstream, more)).await), "answered");
    let seen = upstream.seen.text(0);
    assert!(seen.contains(&format!("\r\nX-Request-Key: {KEY}\r\n")), "{seen}");
    assert!(seen.contains(&format!("\r\nUser-Agent: ours\r\nX-Api-Key: {SECRET}\r\n")), "{seen}");
}

#[tokio::test]
async fn c05_placeholders_in_the_tools_own_text_stay_text() {
    let upstream = Upstream::answering(OK).await;
    let url = format!("http://127.0.0.1:{}/a?q={{{{secret:key}}}}", upstream.port());
    let request = outgoing(
        &grant("127.0.0.1", upstream.port(), MANUAL),
        "POST",
        &url,
        &[("x-a", "{{secret:key}}"), ("x-b", "${KEY}")],
        b"{{secret:key}}",
    );
    assert_eq!(fate(&send(&plain_sender(), request).await), "answered");
    let seen = upstream.seen.text(0);
    assert!(!seen.contains(SECRET));
    assert_eq!(seen.matches("{{secret:key}}").count(), 3, "{seen}");
}

#[tokio::test]
async fn c04_a_secret_goes_to_its_own_host_port_method_and_path_and_follows_no_redirect() {
    let elsewhere = Upstream::answering(OK).await;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:{}/b\r\nContent-Length: 0\r\n\r\n",
        elsewhere.port()
    );
    let bound = Upstream::answering(redirect.as_bytes()).await;
    let route = |port: u16, methods: &str, path: &str, more: &str| {
        format!(
            "[[http]]\nhost = \"127.0.0.1\"\nport = {port}\nscheme = \"http\"\nallow_private = true\n\
             methods = [{methods}]\npath = \"{path}\"\n{more}"
        )
    };
    let (own, other) = (bound.port(), elsewhere.port());
    let grant = [
        route(own, "\"POST\"", "/a", "[http.headers]\nAuthorization = \"Bearer {{secret:key}}\"\n"),
        route(own, "\"POST\"", "/other", ""),
        route(own, "\"GET\"", "/a", ""),
        route(other, "\"POST\"", "/a", ""),
    ]
    .concat();
    let sender = plain_sender();
    for (method, port, path) in
        [("POST", own, "/a"), ("POST", own, "/other"), ("GET", own, "/a"), ("POST", other, "/a")]
    {
        let request = outgoing(&grant, method, &format!("http://127.0.0.1:{port}{path}"), &[], b"");
        assert_eq!(fate(&send(&sender, request).await), "answered", "{method} {path}");
    }
    let seen: Vec<String> = (0..bound.seen.connections()).map(|n| bound.seen.text(n)).collect();
    let holding: Vec<&String> = seen.iter().filter(|text| text.contains(SECRET)).collect();
    assert_eq!(holding.len(), 1, "{seen:?}");
    assert!(holding[0].starts_with("POST /a HTTP/1.1") && holding[0].matches(SECRET).count() == 1);
    assert_eq!(elsewhere.seen.connections(), 1, "nobody followed the redirect");
    assert!(!elsewhere.seen.text(0).contains(SECRET));
    // A pattern of hosts never gets one.
    let pattern = "[[http]]\nhost = \"*.example.com\"\nmethods = [\"POST\"]\npath = \"/**\"\n[http.headers]\n\
                   Authorization = \"Bearer {{secret:key}}\"\n";
    let refused = pattern.parse::<countersign_domain::grant::Grant>().unwrap_err().to_string();
    assert!(refused.contains("one host only"), "{refused}");
}

#[tokio::test]
async fn c04_of_two_granted_hosts_at_one_address_only_the_bound_one_is_sent_the_secret() {
    let upstream = Upstream::answering(OK).await;
    let port = upstream.port();
    let route = |host: &str, more: &str| {
        format!(
            "[[http]]\nhost = \"{host}\"\nport = {port}\nscheme = \"http\"\nallow_private = true\n\
             methods = [\"POST\"]\npath = \"/**\"\nrecovery = \"provider-idempotent\"\n{more}"
        )
    };
    let bound = "[http.headers]\nX-Key = \"{{secret:key}}\"\n";
    let grant = [route("bound.example", bound), route("free.example", "")].concat();
    let at: std::net::IpAddr = "127.0.0.1".parse().unwrap();
    let names = Names::knowing(["bound.example", "free.example"].map(|name| (name, vec![vec![at]])));
    let sender = sender(config(), names);
    for name in ["free.example", "bound.example", "free.example", "FREE.example."] {
        let request = outgoing(&grant, "POST", &format!("http://{name}:{port}/"), &[], b"");
        assert_eq!(fate(&send(&sender, request).await), "answered", "{name}");
    }
    let all: String = (0..upstream.seen.connections()).map(|n| upstream.seen.text(n)).collect();
    assert_eq!(all.matches(SECRET).count(), 1, "{all}");
    let holder = all.split("POST ").find(|request| request.contains(SECRET)).unwrap();
    assert!(holder.contains("Host: bound.example:") && holder.contains("X-Key: "), "{holder}");
}

#[tokio::test]
async fn c01_a_missing_secret_refuses_before_anything_is_connected() {
    let upstream = Upstream::answering(OK).await;
    let more = "[http.headers]\nAuthorization = \"Bearer {{secret:other}}\"\n";
    let sent = send(&plain_sender(), post(&upstream, more)).await;
    let Dispatched::Refused(Refusal::NotGranted(why)) = sent else { panic!("{sent:?}") };
    assert!(why.contains("`other`"), "{why}");
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b06_what_the_grant_does_not_say_is_refused_here_once_more() {
    let upstream = Upstream::answering(OK).await;
    let mut other_method = post(&upstream, "recovery = \"manual\"\nrequest_body = \"4B\"\n");
    assert_eq!(
        send(&plain_sender(), other_method.clone()).await,
        Dispatched::Refused(Refusal::BodyTooLarge(4)),
        "the body has 7 bytes"
    );
    other_method.body = Default::default();
    other_method.route.index = 1;
    assert_eq!(fate(&send(&plain_sender(), other_method.clone()).await), "refused");
    other_method.route.index = 0;
    other_method.route.target =
        countersign_domain::egress::Target::parse("http", &format!("127.0.0.2:{}", upstream.port()), "/")
            .unwrap();
    assert_eq!(fate(&send(&plain_sender(), other_method).await), "refused");
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b07_a_redirect_is_an_answer_and_nobody_follows_it() {
    for status in [301, 302, 303, 307, 308] {
        let upstream = Upstream::answering(
            format!(
                "HTTP/1.1 {status} Moved\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
            )
            .as_bytes(),
        )
        .await;
        let answer = answer(send(&plain_sender(), post(&upstream, IDEMPOTENT)).await);
        assert_eq!((answer.status, answer.header("location")), (status, Some("http://169.254.169.254/")));
        assert_eq!(upstream.seen.connections(), 1);
    }
}

#[tokio::test]
async fn values_are_bytes_and_come_back_as_they_were() {
    let upstream =
        Upstream::answering(b"HTTP/1.1 200 OK\r\nX-Raw: \xff\xe9a\r\nContent-Length: 3\r\n\r\n\x00\xff\xfe")
            .await;
    let mut request = post(&upstream, IDEMPOTENT);
    request.headers.push(("x-raw".to_owned(), "\u{e9}\u{ff}".to_owned()));
    let answer = answer(send(&plain_sender(), request).await);
    assert_eq!(answer.header("x-raw"), Some("\u{ff}\u{e9}a"));
    assert_eq!(answer.body, b"\x00\xff\xfe");
    assert!(find(&upstream.seen.bytes(0), b"\r\nX-Raw: \xe9\xff\r\n").is_some());
}
