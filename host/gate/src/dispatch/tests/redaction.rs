//! What a provider echoes of a secret is not seen by anybody.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::io::AsyncWriteExt as _;

use super::rig::*;

fn forms() -> Vec<String> {
    let percent = SECRET.replace('+', "%2B").replace('/', "%2f");
    let basic = BASE64_STANDARD.encode(format!("user:{SECRET}"));
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let unicode: String = SECRET.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    vec![
        SECRET.to_owned(),
        percent,
        BASE64_STANDARD.encode(SECRET),
        basic,
        SECRET.replace('/', "\\/"),
        unicode,
        hex.to_uppercase(),
        hex,
    ]
}

#[tokio::test]
async fn c01_an_echoed_secret_is_redacted_in_headers_and_body_and_the_length_is_put_right() {
    for form in forms() {
        let body = format!("{{\"got\":\"{form}\"}}");
        let upstream = Upstream::answering(
            format!(
                "HTTP/1.1 401 Unauthorized\r\nLocation: https://x/?t={form}\r\nSet-Cookie: t={form}\r\n\
                 WWW-Authenticate: Bearer error=\"{form}\"\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )
        .await;
        let answer = answer(send(&plain_sender(), post(&upstream, IDEMPOTENT)).await);
        let text = String::from_utf8(answer.body.clone()).unwrap();
        // Of base64 with a user name before it, the user name's part stays.
        assert!(text.ends_with("[redacted:key]\"}") && !text.contains(&form), "{text}");
        assert_eq!(answer.header("content-length"), Some(text.len().to_string().as_str()));
        for name in ["location", "set-cookie", "www-authenticate"] {
            let value = answer.header(name).unwrap();
            assert!(value.contains("[redacted:key]") && !value.contains(&form), "{name}: {value}");
        }
    }
}

#[tokio::test]
async fn c01_chunk_borders_hide_nothing_wherever_they_are() {
    let sender = plain_sender();
    for form in forms() {
        for at in 0..=form.len() {
            let (a, b) = form.split_at(at);
            let chunk = |text: &str| {
                if text.is_empty() { String::new() } else { format!("{:x}\r\n{text}\r\n", text.len()) }
            };
            let upstream = Upstream::answering(
                format!(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
                    chunk(a),
                    chunk(b)
                )
                .as_bytes(),
            )
            .await;
            let answer = answer(send(&sender, post(&upstream, IDEMPOTENT)).await);
            let text = String::from_utf8(answer.body).unwrap();
            // Of base64 with a user name before it, the user name's part stays.
            assert!(text.ends_with("[redacted:key]") && text.len() < 24, "{form} split at {at}: {text}");
        }
    }
}

#[tokio::test]
async fn c01_packets_hide_nothing_either_in_head_or_body() {
    let sender = plain_sender();
    let answer_text = format!(
        "HTTP/1.1 401 No\r\nSet-Cookie: t={SECRET}\r\nContent-Length: {}\r\n\r\n{SECRET}",
        SECRET.len()
    );
    for at in 1..answer_text.len() {
        let (head, tail) = (answer_text[..at].to_owned(), answer_text[at..].to_owned());
        let upstream = Upstream::start(move |mut peer| {
            let (head, tail) = (head.clone(), tail.clone());
            async move {
                peer.read_request().await;
                peer.io.write_all(head.as_bytes()).await.ok();
                // Two writes are two packets unless somebody joins them; either way is right.
                tokio::task::yield_now().await;
                peer.io.write_all(tail.as_bytes()).await.ok();
                peer.read_to_end().await;
            }
        })
        .await;
        let answer = answer(send(&sender, post(&upstream, IDEMPOTENT)).await);
        assert_eq!(answer.body, b"[redacted:key]", "split at {at}");
        assert_eq!(answer.header("set-cookie"), Some("t=[redacted:key]"), "split at {at}");
    }
}

#[tokio::test]
async fn c01_a_large_body_is_searched_to_its_end() {
    let body = format!("{}{SECRET}", "x".repeat(300_000));
    let upstream = Upstream::answering(
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes(),
    )
    .await;
    let answer = answer(send(&plain_sender(), post(&upstream, IDEMPOTENT)).await);
    assert!(answer.body.ends_with(b"x[redacted:key]"));
    assert_eq!(answer.header("content-length"), Some("300014"));
}

#[tokio::test]
async fn c01_a_header_named_after_a_secret_is_dropped() {
    let upstream =
        Upstream::answering(b"HTTP/1.1 200 OK\r\nX-super-secret-name: 1\r\nContent-Length: 0\r\n\r\n").await;
    let secret = countersign_domain::secret::SecretValue::new("super-secret-name".to_owned()).unwrap();
    let sender = crate::dispatch::Dispatcher::new(
        config(),
        std::sync::Arc::new(Names::default()),
        std::sync::Arc::new(crate::dispatch::Secrets::new([("key".parse().unwrap(), secret)])),
    )
    .unwrap();
    let answer = answer(send(&sender, post(&upstream, IDEMPOTENT)).await);
    assert_eq!(answer.headers, [("content-length".to_owned(), "0".to_owned())]);
}

#[tokio::test]
async fn retry_after_reaches_the_caller() {
    let upstream =
        Upstream::answering(b"HTTP/1.1 429 Slow Down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n").await;
    let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
    let crate::dispatch::Dispatched::Sent { retry_after, .. } = &sent else { panic!() };
    assert_eq!(*retry_after, Some(std::time::Duration::from_secs(7)));
    assert_eq!(answer(sent).status, 429);
}
