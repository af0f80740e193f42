//! Sent or not: the one fact, at every byte where a connection can break.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::rig::*;
use crate::dispatch::Dispatched;

/// An answer with a length, one in chunks, one that ends with the connection.
const ANSWERS: [&[u8]; 3] = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
];

async fn length_of_request() -> usize {
    let upstream = Upstream::answering(OK).await;
    send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
    upstream.seen.all_bytes()
}

#[tokio::test]
async fn p2_a_reset_at_any_byte_of_the_request_is_not_sent_only_if_nothing_was_read() {
    let sender = plain_sender();
    for at in 0..=length_of_request().await {
        let upstream = Upstream::start(move |mut peer| async move {
            peer.read_exactly(at).await;
            peer.reset();
        })
        .await;
        let sent = send(&sender, post(&upstream, IDEMPOTENT)).await;
        let read = upstream.seen.all_bytes();
        match fate(&sent) {
            // The port of the request has the length of this upstream's, give
            // or take a digit, so all of it may be read before the reset.
            "lost" => {}
            "not sent" => assert_eq!(read, 0, "reset after {at} bytes"),
            other => panic!("reset after {at} bytes: {other}"),
        }
        assert_eq!(upstream.seen.connections(), 1, "once");
    }
}

#[tokio::test]
async fn p2_an_answer_cut_at_any_byte_is_lost_and_a_whole_one_is_not() {
    let sender = plain_sender();
    for answer in ANSWERS {
        for at in 0..=answer.len() {
            for reset in [false, true] {
                let upstream = Upstream::start(move |mut peer| async move {
                    peer.read_request().await;
                    peer.io.write_all(&answer[..at]).await.unwrap();
                    if reset { peer.reset() } else { peer.io.shutdown().await.unwrap() }
                })
                .await;
                let sent = send(&sender, post(&upstream, IDEMPOTENT)).await;
                let place = format!("{:?}, {at} of {} bytes, reset: {reset}", answer, answer.len());
                let ends_with_connection = find(answer, b"close").is_some();
                let head = find(answer, b"\r\n\r\n").unwrap() + 4;
                match fate(&sent) {
                    "lost" => assert!(at < answer.len() || ends_with_connection && reset, "{place}"),
                    // Where nothing tells its length, an orderly end is one
                    // (RFC 9112 §8). A reset may come after all was read.
                    "answered" if ends_with_connection => assert!(at >= head && !reset, "{place}"),
                    "answered" => assert!(at == answer.len(), "{place}"),
                    other => panic!("{place}: {other}"),
                }
                assert_eq!(upstream.seen.connections(), 1, "once");
            }
        }
    }
}

#[tokio::test]
async fn p1_the_last_look_is_taken_on_a_standing_connection_before_the_first_byte() {
    for allowed in [true, false] {
        let upstream = Arc::new(Upstream::answering(OK).await);
        let watched = upstream.clone();
        let sent = plain_sender()
            .send(post(&upstream, IDEMPOTENT), || async move {
                watched.arrived(1).await;
                assert_eq!(watched.seen.all_bytes(), 0);
                allowed
            })
            .await;
        assert_eq!(fate(&sent), if allowed { "answered" } else { "not sent" });
        drop(sent);
        if !allowed {
            upstream.ended(1).await;
            assert_eq!(upstream.seen.all_bytes(), 0);
        }
    }
}

#[tokio::test]
async fn p2_a_connection_that_ends_during_the_last_look_is_not_sent() {
    for reset in [false, true] {
        let upstream = Upstream::start(move |mut peer| async move {
            if reset {
                peer.reset();
            } else {
                peer.io.shutdown().await.unwrap();
            }
        })
        .await;
        let sent = plain_sender()
            .send(post(&upstream, IDEMPOTENT), || async {
                upstream.ended(1).await;
                true
            })
            .await;
        assert_eq!((fate(&sent), why(&sent)), ("not sent", "the connection broke before the first byte"));
    }
}

#[tokio::test]
async fn p1_a_last_look_that_never_ends_sends_nothing() {
    let upstream = Upstream::answering(OK).await;
    let mut request = post(&upstream, IDEMPOTENT);
    request.route.terms.send = Duration::from_millis(100);
    let sent = plain_sender().send(request, std::future::pending::<bool>).await;
    assert_eq!(fate(&sent), "not sent");
    upstream.ended(1).await;
    assert_eq!(upstream.seen.all_bytes(), 0);
}

#[tokio::test]
async fn b14_what_is_not_there_is_not_sent() {
    let sender = plain_sender();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("http://127.0.0.1:{port}/");
    let sent = send(&sender, outgoing(&grant("127.0.0.1", port, MANUAL), "POST", &url, &[], b"x")).await;
    assert_eq!((fate(&sent), why(&sent)), ("not sent", "the connection was refused"));

    let url = format!("http://nowhere.example:{port}/");
    let sent =
        send(&sender, outgoing(&grant("nowhere.example", port, MANUAL), "POST", &url, &[], b"x")).await;
    assert_eq!((fate(&sent), why(&sent)), ("not sent", "the host's name was not resolved"));
}

#[tokio::test]
async fn b14_a_second_address_is_tried_when_the_first_is_dead() {
    let upstream = Upstream::answering(OK).await;
    let port = upstream.port();
    let names =
        Names::of("a.example", vec![vec!["127.0.0.9".parse().unwrap(), "127.0.0.1".parse().unwrap()]]);
    let url = format!("http://a.example:{port}/");
    let sent =
        send(&sender(config(), names), outgoing(&grant("a.example", port, MANUAL), "POST", &url, &[], b"x"))
            .await;
    assert_eq!(fate(&sent), "answered");
    assert!(upstream.seen.text(0).contains(&format!("\r\nHost: a.example:{port}\r\n")));
}

#[tokio::test]
async fn p2_a_server_that_speaks_before_it_is_asked_is_not_sent_to() {
    let (spoken, speech) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |mut peer| {
        let spoken = spoken.clone();
        async move {
            peer.io.write_all(OK).await.unwrap();
            spoken.send_replace(true);
            peer.read_to_end().await;
        }
    })
    .await;
    let sent = plain_sender()
        .send(post(&upstream, IDEMPOTENT), || async {
            speech.clone().wait_for(|spoken| *spoken).await.is_ok()
        })
        .await;
    assert_eq!((fate(&sent), why(&sent)), ("not sent", "the connection broke before the first byte"));
    upstream.ended(1).await;
    assert_eq!(upstream.seen.all_bytes(), 0);
}

#[tokio::test]
async fn c02_no_reason_repeats_what_the_server_or_the_request_said() {
    for answer in [
        "HTTP/1.1 200 OK\r\nX: \0sk_",
        "sk_test_c4n4ry",
        "HTTP/1.1 999 sk_test_c4n4ry\r\n\r\n",
        "HTTP/1.1 101 sk_\r\n\r\n",
    ] {
        let upstream = Upstream::answering_once(answer.as_bytes()).await;
        let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
        assert_eq!(fate(&sent), "lost", "{answer:?}");
        let Dispatched::Sent { .. } = &sent else { panic!() };
        assert!(!format!("{sent:?}").contains("sk_"), "{sent:?}");
    }
}
