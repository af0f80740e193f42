//! Bad input: every request gets a clear answer, none of them ends the provider.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::{ProviderArgs, parse_time, run};
use super::{Rig, bank_text, post_text, refund_text};

#[tokio::test]
async fn bad_refunds_are_refused_in_stripes_shape() {
    let rig = Rig::start().await;
    for (form, status, code, param) in [
        ("amount=100", 400, "parameter_missing", "payment_intent"),
        ("payment_intent=pi_1", 400, "parameter_missing", "amount"),
        ("payment_intent=pi_1&amount=1.5", 400, "parameter_invalid_integer", "amount"),
        ("payment_intent=pi_1&amount=0", 400, "parameter_invalid_integer", "amount"),
        ("payment_intent=pi_1&amount=-5", 400, "parameter_invalid_integer", "amount"),
        ("payment_intent=pi_1&amount=100000000", 400, "amount_too_large", "amount"),
        ("payment_intent=pi_missing_1&amount=1", 404, "resource_missing", "payment_intent"),
        ("payment_intent=ch_1&amount=1", 404, "resource_missing", "payment_intent"),
    ] {
        let refused = rig.send(&refund_text(None, form)).await;
        let error = refused.json()["error"].clone();
        assert_eq!(refused.status, status, "{form}");
        assert_eq!(error["code"], code, "{form}");
        assert_eq!(error["param"], param, "{form}");
        assert_eq!(error["type"], "invalid_request_error", "{form}");
        assert!(error["message"].is_string(), "{form}");
    }
    for text in [
        refund_text(None, "payment_intent=pi_1&amount=1&currency=euros"),
        refund_text(None, "payment_intent=%ff%fe&amount=1"),
        post_text("/v1/refunds", "", "application/json", "{}"),
    ] {
        assert_eq!(rig.send(&text).await.status, 400);
    }
    assert_eq!(rig.effects(), 0);
}

#[tokio::test]
async fn a_form_is_decoded_as_browsers_write_it() {
    let rig = Rig::start().await;
    let form = "payment_intent=pi%5F1&amount=100&metadata%5Bnote%5D=two+words%21&currency=EUR";
    let body = rig.send(&refund_text(None, form)).await.json();
    assert_eq!(body["payment_intent"], "pi_1");
    assert_eq!(body["metadata"]["note"], "two words!");
    assert_eq!(body["currency"], "eur");
}

#[tokio::test]
async fn bad_bank_bodies_wrong_methods_and_unknown_paths_are_told_apart() {
    let rig = Rig::start().await;
    for (text, status) in [
        (bank_text("/transfers", None, "{"), 400),
        (bank_text("/transfers", None, "[]"), 400),
        (bank_text("/transfers", None, r#"{"amount":"5"}"#), 400),
        (bank_text("/quote", None, "{}"), 405),
        (bank_text("/nowhere", None, "{}"), 404),
        (bank_text("/_nowhere", None, "{}"), 404),
        (bank_text("/_control", None, "{"), 400),
        (bank_text("/_control/clock", None, "{}"), 400),
    ] {
        let reply = rig.send(&text).await;
        assert_eq!(reply.status, status, "{text}");
        assert!(reply.json()["message"].is_string(), "{text}");
    }
    for target in ["/lookup", "/_control/waiting?count=x", "/_control/waiting?what=x"] {
        assert_eq!(rig.get(target).await.status, 400, "{target}");
    }
    assert_eq!(rig.effects(), 0);
}

#[tokio::test]
async fn waiting_gives_up_with_how_many_there_are() {
    let rig = Rig::start().await;
    rig.refund(None).await;
    let late = rig.get("/_control/waiting?path=/v1/refunds&count=2&timeout_ms=1").await;
    assert_eq!(late.status, 408);
    assert_eq!(late.json()["count"], 1);
}

#[tokio::test]
async fn garbage_and_a_body_cut_short_end_their_connection_only() {
    let rig = Rig::start().await;
    let (_, _) = rig.exchange("\0\u{1}\u{2} no http\r\n\r\n").await;
    let mut socket = rig.connect().await;
    let text = refund_text(None, "payment_intent=pi_1&amount=100");
    let (part, _) = text.split_at(text.len() - 3);
    socket.write_all(part.as_bytes()).await.expect("sent");
    socket.shutdown().await.expect("half closed");
    let _ = socket.read_to_end(&mut Vec::new()).await;
    rig.refund(None).await;
    assert_eq!(rig.effects(), 1);
    assert_eq!(rig.events("malformed", "*").len(), 1);
    let outcomes: Vec<_> =
        rig.events("request", "/v1/refunds").into_iter().filter_map(|line| line.outcome).collect();
    assert!(outcomes.contains(&"incomplete".to_owned()), "{outcomes:?}");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_logged_without_it() {
    let rig = Rig::start().await;
    let most = "x".repeat(16 * 1024 * 1024);
    let kept = post_text("/echo", "", "text/plain", &most);
    assert_eq!(rig.send(&kept).await.status, 200);
    let over = post_text("/any/big", "", "text/plain", &format!("{most}x"));
    assert_eq!(rig.send(&over).await.status, 413);
    assert_eq!(rig.effects(), 0);
    let lines = rig.events("request", "*");
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.body.as_deref().is_none_or(str::is_empty)));
}

#[tokio::test]
async fn anything_below_any_acts_once_per_request_with_every_method() {
    let rig = Rig::start().await;
    for (n, method) in ["GET", "POST", "PUT", "DELETE", "PATCH"].iter().enumerate() {
        let text = format!(
            "{method} /any/thing HTTP/1.1\r\nhost: p\r\nconnection: close\r\n\
             idempotency-key: k\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(rig.send(&text).await.json()["n"], n + 1);
    }
    assert_eq!(rig.events("effect", "/any/*").len(), 5);
}

#[tokio::test]
async fn a_port_in_use_and_an_unwritable_log_are_said_clearly() {
    let rig = Rig::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let args = |listen, log| ProviderArgs {
        listen,
        log,
        key_retention: None,
        mode: super::Mode::Honours,
        bank_mode: None,
        until_stdin_closes: false,
    };
    let taken = run(args(rig.address, folder.path().join("log"))).await;
    let message = format!("{:#}", taken.expect_err("the port is taken"));
    assert!(message.contains(&rig.address.to_string()), "{message}");
    let free = "127.0.0.1:0".parse().expect("an address");
    let unwritable = run(args(free, folder.path().join("missing/log"))).await;
    let message = format!("{:#}", unwritable.expect_err("no such folder"));
    assert!(message.contains("missing/log"), "{message}");
}

#[test]
fn times_are_whole_numbers_with_a_unit() {
    for (text, ms) in [("24h", 86_400_000), ("60s", 60_000), ("500ms", 500), ("0s", 0)] {
        let time = parse_time(text).expect(text);
        assert_eq!(time.as_millis(), ms);
    }
    for text in ["", "h", "24", "1.5h", "-1s", "1 h", "99999999999999999999s", "18446744073709551615d"] {
        assert!(parse_time(text).is_err(), "{text}");
    }
}
