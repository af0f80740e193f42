//! When a connection serves a second request, and whose.

use std::future::Future;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

use super::rig::*;
use crate::dispatch::DispatcherConfig;

#[tokio::test]
async fn b13_one_tool_of_one_tenant_uses_its_connection_again_and_nobody_else_does() {
    let upstream = Upstream::answering(OK).await;
    let sender = plain_sender();
    for _ in 0..10 {
        assert_eq!(fate(&send(&sender, post(&upstream, IDEMPOTENT)).await), "answered");
    }
    assert_eq!(upstream.seen.connections(), 1);

    let mut tenant = post(&upstream, IDEMPOTENT);
    tenant.tenant = "other".parse().unwrap();
    let mut tool = post(&upstream, IDEMPOTENT);
    tool.tool = "other".parse().unwrap();
    let secrets = post(&upstream, &format!("{IDEMPOTENT}X-More = \"{{{{secret:key}}}}\"\n"));
    for (expected, request) in [(2, tenant), (3, tool), (4, secrets)] {
        assert_eq!(fate(&send(&sender, request).await), "answered");
        assert_eq!(upstream.seen.connections(), expected);
    }
}

#[tokio::test]
async fn b13_a_write_that_could_not_be_repeated_never_rides_on_a_used_connection() {
    for class in ["manual", "verifiable"] {
        let upstream = Upstream::answering(OK).await;
        let sender = plain_sender();
        for sends in 1..=3 {
            let sent = send(&sender, post(&upstream, &format!("recovery = \"{class}\"\n"))).await;
            assert_eq!((fate(&sent), upstream.seen.connections()), ("answered", sends), "{class}");
        }
    }
    let upstream = Upstream::answering(OK).await;
    let sender = sender(DispatcherConfig { reuse: false, ..config() }, Names::default());
    for sends in 1..=3 {
        send(&sender, post(&upstream, IDEMPOTENT)).await;
        assert_eq!(upstream.seen.connections(), sends);
    }
}

/// A server that answers, and does one thing more on each connection when it is
/// told to, and not before.
async fn afterwards<F, Fut>(more: F) -> (Upstream, watch::Sender<usize>, watch::Receiver<usize>)
where
    F: Fn(Peer) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Peer> + Send,
{
    let (tell, told) = watch::channel(0);
    let (doing, done) = watch::channel(0);
    let upstream = Upstream::start(move |mut peer| {
        let (more, mut told, doing) = (more.clone(), told.clone(), doing.clone());
        async move {
            told.mark_unchanged();
            peer.read_request().await;
            peer.io.write_all(OK).await.unwrap();
            told.changed().await.ok();
            let mut peer = more(peer).await;
            doing.send_modify(|count| *count += 1);
            peer.read_to_end().await;
        }
    })
    .await;
    (upstream, tell, done)
}

#[tokio::test]
async fn b13_a_second_answer_that_nobody_asked_for_answers_nobody() {
    const UNASKED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nEVIL";
    let together = Upstream::answering(&[OK, UNASKED].concat()).await;
    let (apart, tell, mut done) = afterwards(|mut peer| async move {
        peer.io.write_all(UNASKED).await.unwrap();
        peer
    })
    .await;
    let sender = plain_sender();
    for sends in 1..=20 {
        for upstream in [&together, &apart] {
            assert_eq!(answer(send(&sender, post(upstream, IDEMPOTENT)).await).body, b"ok");
            assert_eq!(upstream.seen.connections(), sends);
        }
        tell.send_modify(|count| *count += 1);
        done.wait_for(|count| *count == sends).await.unwrap();
    }
    for upstream in [&together, &apart] {
        let mut other = post(upstream, IDEMPOTENT);
        other.tenant = "other".parse().unwrap();
        assert_eq!(answer(send(&sender, other).await).body, b"ok");
    }
}

#[tokio::test]
async fn b13_a_connection_that_the_server_closes_while_it_waits_costs_nothing() {
    let (upstream, tell, mut done) = afterwards(|mut peer| async move {
        peer.io.shutdown().await.unwrap();
        peer
    })
    .await;
    let sender = plain_sender();
    for sends in 1..=100 {
        let sent = send(&sender, post(&upstream, IDEMPOTENT)).await;
        assert_eq!(fate(&sent), "answered", "send {sends}: {sent:?}");
        assert_eq!(upstream.seen.connections(), sends, "each was sent on its own connection");
        tell.send_modify(|count| *count += 1);
        done.wait_for(|count| *count == sends).await.unwrap();
    }
}

#[tokio::test]
async fn b13_a_server_that_says_close_is_taken_at_its_word() {
    let upstream =
        Upstream::answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
    let sender = plain_sender();
    for sends in 1..=3 {
        assert_eq!(fate(&send(&sender, post(&upstream, IDEMPOTENT)).await), "answered");
        assert_eq!(upstream.seen.connections(), sends);
    }
}

#[tokio::test]
async fn c06_a_connection_that_waits_too_long_is_closed() {
    let upstream = Upstream::answering(OK).await;
    let sender = plain_sender();
    send(&sender, post(&upstream, IDEMPOTENT)).await;
    // Its end at the server is our closing; nothing else ends it.
    upstream.ended(1).await;
    send(&sender, post(&upstream, IDEMPOTENT)).await;
    assert_eq!(upstream.seen.connections(), 2);
}

/// What a local send costs with and without a used connection; CPU time, since
/// a wall clock on a busy machine says little. Not a test:
/// `cargo test --release -p countersign-gate -- --ignored --nocapture local_post`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn a_local_post_costs() {
    let upstream = Upstream::start(|mut peer| async move {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut peer.io, &mut buffer).await {
            if buffer[..count].ends_with(b"}") && peer.io.write_all(OK).await.is_err() {
                return;
            }
        }
    })
    .await;
    const SENDS: u32 = 10_000;
    for reuse in [false, true, false, true] {
        let sender = sender(DispatcherConfig { reuse, ..config() }, Names::default());
        let request = post(&upstream, IDEMPOTENT);
        let (started, before) = (std::time::Instant::now(), cpu());
        for _ in 0..SENDS {
            assert_eq!(fate(&send(&sender, request.clone()).await), "answered");
        }
        let (wall, cpu) = (started.elapsed() / SENDS, (cpu() - before) / SENDS);
        println!("reuse {reuse}: {cpu:?} of CPU, {wall:?} by the clock, the server's part included");
    }
}

/// User and system time of this process (proc(5): fields 14 and 15 of `stat`,
/// in hundredths of a second).
fn cpu() -> std::time::Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse().unwrap())
        .collect();
    std::time::Duration::from_millis(10 * (fields[0] + fields[1]))
}
