//! Headers that are the host's to set, seen from the other end of the wire.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::json;

use crate::support::grants::{Route, grant};
use crate::support::{SECRET, Stage};

/// An upstream that answers one request and returns its raw bytes.
fn raw_upstream() -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a timeout");
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        while !whole(&bytes) {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        // What comes after the one request belongs to nobody.
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(300)));
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..n]);
        }
        bytes
    });
    (port, heard)
}

fn whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    length.is_none_or(|length| body.len() >= length)
}

/// The header lines of a request, in lower case.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, _) = text.split_once("\r\n\r\n").expect("a head");
    head.split("\r\n").skip(1).map(str::to_lowercase).collect()
}

const FORBIDDEN: [&str; 25] = [
    "authorization",
    "Authorization",
    "cookie",
    "proxy-authorization",
    "host",
    "Host",
    "idempotency-key",
    "Idempotency-Key",
    "x-idempotency-key",
    "idempotency_key",
    "IDEMPOTENCY_KEY",
    "transfer-encoding",
    "expect",
    "te",
    "accept-encoding",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "via",
    "traceparent",
    "connection",
    "keep-alive",
    "upgrade",
    "http2-settings",
    "trailer",
];

#[test]
fn b08_the_tool_sets_none_of_the_hosts_headers_and_the_upstream_sees_each_exactly_once() {
    let stage = Stage::set();
    let (port, heard) = raw_upstream();
    let route = Route::idempotent(port, "/raw/**")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"");
    stage.install_probe("raw", &grant("show = [\"/mode\"]", &[route]));
    let url = format!("http://127.0.0.1:{port}/raw/b08");
    let arguments = json!({ "mode": "forbidden-headers", "url": url, "headers": FORBIDDEN, "text": "set-by-the-tool", "body": "body" });
    let id = stage.approved("raw", "raw", &arguments);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    for name in FORBIDDEN {
        for way in ["set", "append", "from_list", "clone"] {
            let word = told.json["result"]["headers"][name][way].as_str().unwrap_or_default();
            assert_eq!(word, "forbidden", "{name} by {way}");
        }
    }
    assert_eq!(told.json["result"]["kept"], json!([]));
    let bytes = heard.join().expect("the upstream");
    let lines = lines(&bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(!text.contains("set-by-the-tool"), "{text}");
    for (name, value) in [
        ("host", format!("127.0.0.1:{port}")),
        ("authorization", format!("bearer {}", SECRET.to_lowercase())),
        ("idempotency-key", format!("tool-action:{id}:1")),
        ("content-length", "4".to_owned()),
        ("accept-encoding", "identity".to_owned()),
    ] {
        let found: Vec<&str> =
            lines.iter().filter_map(|line| line.strip_prefix(&format!("{name}: "))).collect();
        assert_eq!(found, [value.as_str()], "{name}:\n{text}");
    }
    assert!(
        !lines.iter().any(|line| line.starts_with("transfer-encoding") || line.starts_with("cookie")),
        "{text}"
    );
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "one request on the connection:\n{text}");
}

#[test]
fn b08_a_length_that_the_tool_states_in_any_way_is_true_or_nothing_is_sent() {
    let stage = Stage::set();
    let (port, heard) = raw_upstream();
    stage.install_probe("length", &grant("", &[Route::idempotent(port, "/raw/**")]));
    let url = format!("http://127.0.0.1:{port}/raw/length");
    let run = |text: &str| {
        let arguments = json!({ "mode": "forbidden-headers", "url": url, "headers": ["content-length"], "text": text,
            "body": "body" });
        let id = stage.approved("length", text, &arguments);
        stage.execute(&id)
    };
    for text in ["5", "3"] {
        let result = run(text).json["result"].clone();
        let answer = &result["answer"];
        assert!(answer["status"].is_null() && answer["error"].is_string(), "{text}: {result}");
    }
    // What is no number never becomes a header.
    for text in ["+4", "4, 4", "set-by-the-tool"] {
        let arguments = json!({ "mode": "forbidden-headers", "url": stage.url("/keyed/length"),
            "headers": ["content-length"], "text": text, "body": "body" });
        let id = stage.approved("probe", text, &arguments);
        let result = stage.execute(&id).json["result"].clone();
        for way in ["set", "append", "from_list", "clone"] {
            assert_eq!(
                result["headers"]["content-length"][way], "invalid-syntax",
                "{text} by {way}: {result}"
            );
        }
        let sent = &stage.requests("/keyed/length", &id)[0];
        assert_eq!(sent.headers.iter().filter(|name| *name == "content-length").count(), 1, "{text}");
    }
    let told = run("4");
    assert_eq!(told.json["result"]["answer"]["status"], 200, "{}", told.json);
    let bytes = heard.join().expect("the upstream");
    let lengths: Vec<String> =
        lines(&bytes).into_iter().filter(|line| line.starts_with("content-length")).collect();
    assert_eq!(lengths, ["content-length: 4"], "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn b09_trailers_of_a_request_are_dropped_whatever_they_are_called() {
    let stage = Stage::set();
    let (port, heard) = raw_upstream();
    stage.install_probe("trailers", &grant("", &[Route::idempotent(port, "/raw/**")]));
    let url = format!("http://127.0.0.1:{port}/raw/b09");
    let arguments = json!({ "mode": "trailers", "url": url, "body": "body",
        "headers": ["idempotency-key", "authorization", "x-harmless"] });
    let proposed = stage.propose("trailers", "trailers", &arguments).expect(201);
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    let told = stage.execute(&proposed.id());
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    let bytes = heard.join().expect("the upstream");
    let text = String::from_utf8_lossy(&bytes).to_lowercase();
    assert!(text.ends_with("\r\n\r\nbody"), "nothing comes after the body:\n{text}");
    assert!(!text.contains("trailer") && !text.contains("x-harmless"), "{text}");
    assert_eq!(text.matches("idempotency-key").count(), 1, "{text}");
}

#[test]
fn c05_what_looks_like_a_template_in_the_tools_text_goes_out_as_the_text_it_is() {
    let stage = Stage::set();
    let (port, heard) = raw_upstream();
    let route = Route::idempotent(port, "/raw/**")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"");
    stage.install_probe("steer", &grant("", &[route]));
    let text = "{{secret:provider_key}} ${PROVIDER_KEY} {{secret:provider_key@1}}";
    let url = format!("http://127.0.0.1:{port}/raw/c05");
    let steps = json!([{ "method": "POST", "url": url, "headers": { "x-note": text }, "body": text }]);
    let id = stage.approved("steer", "steer", &json!({ "mode": "script", "steps": steps }));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    let heard = String::from_utf8(heard.join().expect("the upstream")).expect("a text");
    assert!(
        heard.to_lowercase().contains(&format!("x-note: {}", text.to_lowercase())) && heard.ends_with(text),
        "{heard}"
    );
    assert_eq!(heard.matches(SECRET).count(), 1, "only where the grant names it");
}

#[test]
fn b10_values_with_line_breaks_or_control_bytes_are_refused_before_anything_is_sent() {
    let stage = Stage::set();
    for (i, value) in ["a\r\nX-Evil: 1", "a\nb", "a\0b"].iter().enumerate() {
        let path = format!("/keyed/value-{i}");
        let steps = json!([{ "method": "POST", "url": stage.url(&path), "headers": { "x-note": value, "x-good": "kept" } }]);
        let arguments = json!({ "mode": "script", "steps": steps });
        if value.contains('\0') {
            // NUL does not even get into the arguments.
            stage.propose("probe", &path, &arguments).refused(400, "invalid_json");
            continue;
        }
        let id = stage.approved("probe", &path, &arguments);
        stage.execute(&id);
        for line in stage.provider.requests(&path) {
            assert!(
                !line.headers.iter().any(|name| name == "x-evil" || name == "x-note"),
                "{:?}",
                line.headers
            );
        }
    }
}
