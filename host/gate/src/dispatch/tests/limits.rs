//! Servers that never stop, never start, or send a mountain.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::rig::*;
use crate::dispatch::{DispatcherConfig, SlowestPace};

fn impatient() -> DispatcherConfig {
    DispatcherConfig { slowest: SlowestPace { window: Duration::from_millis(500), bytes: 1000 }, ..config() }
}

#[tokio::test]
async fn b14_a_server_that_never_answers_loses_the_send_at_the_first_byte_limit() {
    for wish in [Duration::ZERO, Duration::from_nanos(1)] {
        let upstream = Upstream::start(|mut peer| async move { peer.read_to_end().await }).await;
        let mut request = post(&upstream, IDEMPOTENT);
        request.first_byte_timeout = Some(wish);
        let started = std::time::Instant::now();
        let sent = send(&plain_sender(), request).await;
        assert_eq!((fate(&sent), why(&sent)), ("lost", "no answer came in time"));
        // A wish for nothing is a wish for one second: it does not make the
        // tool's own writes unknown.
        assert!((Duration::from_secs(1)..Duration::from_secs(4)).contains(&started.elapsed()));
    }
}

#[tokio::test]
async fn b14_no_wish_outlasts_the_longest_send() {
    let upstream = Upstream::start(|mut peer| async move { peer.read_to_end().await }).await;
    for wish in [None, Some(Duration::from_nanos(u64::MAX)), Some(Duration::MAX)] {
        let mut request = post(&upstream, IDEMPOTENT);
        request.first_byte_timeout = wish;
        request.route.terms.send = Duration::from_millis(200);
        assert_eq!(fate(&send(&plain_sender(), request).await), "lost");
    }
}

#[tokio::test]
async fn b14_a_dripping_answer_is_given_up() {
    for head in [
        "HTTP/1.1 200 OK\r\nX: ",
        "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ] {
        let upstream = Upstream::start(move |mut peer| async move {
            peer.read_request().await;
            for byte in head.bytes().chain(std::iter::repeat(b'1')) {
                // The drip itself; nothing waits for it.
                tokio::time::sleep(Duration::from_millis(1)).await;
                if peer.io.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        })
        .await;
        let sent = send(&sender(impatient(), Names::default()), post(&upstream, IDEMPOTENT)).await;
        assert_eq!((fate(&sent), why(&sent)), ("lost", "the answer came too slowly"), "{head:?}");
    }
}

#[tokio::test]
async fn b14_a_steady_answer_is_read_however_long_it_takes() {
    let upstream = Upstream::start(|mut peer| async move {
        peer.read_request().await;
        peer.io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1500000\r\n\r\n").await.unwrap();
        for _ in 0..150 {
            peer.io.write_all(&[b'x'; 10_000]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let sent = send(&sender(impatient(), Names::default()), post(&upstream, IDEMPOTENT)).await;
    assert_eq!(answer(sent).body.len(), 1_500_000);
}

#[tokio::test]
async fn b14_a_server_that_does_not_read_is_given_up_at_the_end() {
    let upstream = Upstream::start(|peer| async move {
        std::future::pending::<()>().await;
        drop(peer);
    })
    .await;
    let mut request = post(&upstream, "recovery = \"manual\"\nrequest_body = \"32MiB\"\n");
    request.body = vec![b'x'; 32 << 20].into();
    request.route.terms.send = Duration::from_millis(500);
    assert_eq!(fate(&send(&plain_sender(), request).await), "lost");
}

/// Sends `head`, then `piece` for ever, and says how much of it was taken.
async fn endless(head: &'static str, piece: Vec<u8>) -> (&'static str, String, usize) {
    let taken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = taken.clone();
    let upstream = Upstream::start(move |mut peer| {
        let (piece, counted) = (piece.clone(), counted.clone());
        async move {
            peer.read_request().await;
            peer.io.write_all(head.as_bytes()).await.ok();
            while peer.io.write_all(&piece).await.is_ok() {
                counted.fetch_add(piece.len(), std::sync::atomic::Ordering::Relaxed);
            }
        }
    })
    .await;
    let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
    upstream.ended(1).await;
    (fate(&sent), why(&sent).to_owned(), taken.load(std::sync::atomic::Ordering::Relaxed))
}

#[tokio::test]
async fn b12_bombs_are_cut_off_at_their_limit() {
    const MIB: usize = 1 << 20;
    let chunk =
        |bytes: usize| [format!("{bytes:x}\r\n").into_bytes(), vec![b'x'; bytes], b"\r\n".to_vec()].concat();
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (head, piece, expected, most) in [
        (chunked, chunk(64 * 1024), "the answer is over the limit", 16 * MIB),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n",
            vec![b'x'; 65536],
            "the answer is over the limit",
            8 * MIB,
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
            vec![b'x'; 65536],
            "the answer is over the limit",
            16 * MIB,
        ),
        ("HTTP/1.1 200 OK\r\n", b"x: 1\r\n".repeat(100), "the answer's header is over the limit", 8 * MIB),
        ("HTTP/1.1 200 OK\r\nX: ", vec![b'x'; 65536], "the answer's header is over the limit", 8 * MIB),
        ("", b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000), "too many interim answers came", 8 * MIB),
        (
            "",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".to_vec(),
            "too many interim answers came",
            8 * MIB,
        ),
    ] {
        let (fate, why, taken) = endless(head, piece).await;
        assert_eq!((fate, why.as_str()), ("lost", expected), "{head:?}");
        assert!(taken < most, "{head:?}: {taken} bytes were taken");
    }
}

#[tokio::test]
async fn b12_limits_are_reached_exactly() {
    for (headers, expected) in [(128, "answered"), (129, "lost")] {
        let lines: String = (0..headers - 1).map(|n| format!("x-{n}: 1\r\n")).collect();
        let upstream =
            Upstream::answering(format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n").as_bytes())
                .await;
        assert_eq!(fate(&send(&plain_sender(), post(&upstream, IDEMPOTENT)).await), expected, "{headers}");
    }
    for (body, expected) in [(1000, "answered"), (1001, "lost")] {
        for told in [true, false] {
            let head = if told {
                format!("Content-Length: {body}")
            } else {
                "Transfer-Encoding: chunked".to_owned()
            };
            let text = "x".repeat(body);
            let body = if told { text } else { format!("{body:x}\r\n{text}\r\n0\r\n\r\n") };
            let upstream =
                Upstream::answering(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes()).await;
            let request = post(&upstream, "recovery = \"manual\"\nresponse_body = \"1000B\"\n");
            assert_eq!(fate(&send(&plain_sender(), request).await), expected, "{head}");
        }
    }
    for (interim, expected) in [(16, "answered"), (17, "lost")] {
        let upstream =
            Upstream::answering(&[b"HTTP/1.1 100 Continue\r\n\r\n".repeat(interim), OK.to_vec()].concat())
                .await;
        let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
        assert_eq!(fate(&sent), expected, "{interim}: {sent:?}");
    }
}

#[tokio::test]
async fn b12_a_million_small_chunks_are_one_answer() {
    let body = b"1\r\nx\r\n".repeat(1_000_000);
    let upstream = Upstream::answering(
        &[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &body[..], b"0\r\nX-Trailer: 1\r\n\r\n"]
            .concat(),
    )
    .await;
    let mut request = post(&upstream, IDEMPOTENT);
    request.route.terms.send = Duration::from_secs(60);
    let answer = answer(send(&plain_sender(), request).await);
    assert_eq!((answer.body.len(), answer.headers.len()), (1_000_000, 0));
}

#[tokio::test]
async fn b12_nothing_is_decompressed() {
    let upstream = Upstream::answering(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    )
    .await;
    let answer = answer(send(&plain_sender(), post(&upstream, IDEMPOTENT)).await);
    assert_eq!(
        (answer.header("content-encoding"), &answer.body[..]),
        (Some("gzip"), &b"\x1f\x8b\x08\x00"[..])
    );
}

#[tokio::test]
async fn b12_a_body_that_would_unfold_a_thousandfold_costs_what_it_weighs() {
    // A run of zeroes as gzip has it: 10 MB of such blocks would be 10 GB. The limit is on what came.
    let block = [[0xed, 0xc1, 0x01, 0x0d].as_slice(), &[0; 1020]].concat();
    for (blocks, expected) in [(7 * 1024, "answered"), (10 * 1024, "lost")] {
        let body = [b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".as_slice(), &block.repeat(blocks)].concat();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
            body.len()
        );
        let text = [head.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
        let upstream = Upstream::answering(&text).await;
        let mut request = post(&upstream, IDEMPOTENT);
        request.route.terms.send = Duration::from_secs(60);
        let sent = send(&plain_sender(), request).await;
        assert_eq!(fate(&sent), expected, "{blocks} blocks");
        if expected == "answered" {
            assert!(answer(sent).body == body, "as it came");
        }
    }
}

#[tokio::test]
async fn b12_answers_that_are_not_quite_http_are_lost() {
    for bad in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX Y: 1\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 600 High\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "\x15\x03\x01\x00\x02\x02\x28",
    ] {
        let upstream = Upstream::answering_once(bad.as_bytes()).await;
        let sent = send(&plain_sender(), post(&upstream, IDEMPOTENT)).await;
        assert_eq!(fate(&sent), "lost", "{bad:?}: {sent:?}");
    }
}

#[tokio::test]
async fn a_head_tells_a_length_that_does_not_come() {
    let upstream = Upstream::answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n").await;
    let url = format!("http://127.0.0.1:{}/", upstream.port());
    let request =
        outgoing(&grant("127.0.0.1", upstream.port(), "recovery = \"read\"\n"), "HEAD", &url, &[], b"");
    let answer = answer(send(&plain_sender(), request).await);
    assert_eq!((answer.header("content-length"), answer.body.len()), (Some("99999999999"), 0));
}
