//! Connections: accepted, bounded in time and number, and ended in good order.
//!
//! Three clocks run for every connection, all outside of what is sent on it: its
//! next request's head must be whole within [`HEAD_TIME`] (so an idle connection
//! ends, too); the bodies have limits of their own, see `call`; and a client
//! that takes nothing of what is written for [`STALLED`] is cut off, even if
//! nobody is writing at that moment. The system keeps the last of these, too, for
//! a client that is not there any more and cannot say so: see [`patience`].

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::wrong_tokens::Peer;

/// Time for a request's head, from the end of the request before it.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// How long a client may take nothing.
const STALLED: Duration = Duration::from_secs(30);
/// Bytes that are read ahead of whoever reads a body, and after which no more of an
/// answer is asked for that a client does not take. Chosen: two heads.
const BUFFER: usize = 32 << 10;
/// Bytes that the system holds for a client that does not take them, which it
/// doubles. Chosen: without a bound it would be 4 MiB for each.
const UNTAKEN: usize = 64 << 10;
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Connections at the same time; one more waits to be accepted. Each costs a
/// file descriptor and some 40 KiB.
const CONNECTIONS: usize = 4096;
/// How long connections have to finish once everything else is done.
const GOODBYE: Duration = Duration::from_secs(5);

/// Serves until told to stop, then lets every request that was begun end.
/// `drained` says when nothing more can come of them.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    drained: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (stream, peer, place) = tokio::select! {
            (accepted, Ok(place)) = accepted => match accepted {
                Ok((stream, peer)) => (stream, peer.ip(), place),
                Err(error) => {
                    // Out of file descriptors, most likely: some will be freed.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (router, stopping) = (router.clone(), stopping.clone());
        connections.spawn(async move {
            connection(stream, Peer(peer), router, stopping).await;
            drop(place);
        });
    }
    // Closed at once: who connects now is refused, not left hanging.
    drop(listener);
    drained.await;
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE, all).await.is_err() {
        tracing::warn!("some connections did not end in time and were cut off");
        connections.shutdown().await;
    }
}

async fn connection(stream: TcpStream, peer: Peer, router: Router, mut stopping: watch::Receiver<bool>) {
    // A connection without these is a connection.
    let _ = patience(&stream);
    let watched = Arc::new(Stall::default());
    let io = TokioIo::new(Watched { stream, stall: watched.clone() });
    let routed = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        routed.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let mut look = tokio::time::interval(LOOK);
    let mut told = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            _ = stopping.wait_for(|stopping| *stopping), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = look.tick() => {
                if watched.lasts() >= STALLED {
                    tracing::info!("a client that took nothing was cut off");
                    return;
                }
            }
        }
    }
}

/// Says to the system how long a client may take nothing, and how long it may not
/// be heard of, before the connection is over; and how much is held for it.
fn patience(stream: &TcpStream) -> io::Result<()> {
    // Answers are small and whole: waiting to fill a packet only delays them.
    stream.set_nodelay(true)?;
    sockopt::set_socket_send_buffer_size(stream, UNTAKEN)?;
    // What was sent and not confirmed, and what its window has no room for.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(STALLED.as_millis()).unwrap_or(u32::MAX))?;
    // Where nothing is sent: asked after so long, and so often, until it counts
    // as gone.
    sockopt::set_tcp_keepidle(stream, LOOK * 3)?;
    sockopt::set_tcp_keepintvl(stream, LOOK)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Since when a client takes nothing.
struct Stall {
    born: Instant,
    /// Milliseconds after `born`, plus one; 0: it takes what there is.
    since: AtomicU64,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { born: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Stall {
    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1).saturating_add(1)
    }

    fn lasts(&self) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }

    fn saw<T>(&self, written: &Poll<T>) {
        if written.is_ready() {
            self.since.store(0, Ordering::Relaxed);
        } else if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(self.now(), Ordering::Relaxed);
        }
    }
}

/// A connection whose writes are watched.
struct Watched {
    stream: TcpStream,
    stall: Arc<Stall>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.stall.saw(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.stall.saw(&written);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn i03_the_system_ends_a_connection_whose_other_side_is_gone_without_a_word() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.expect("a connection");
        patience(&stream).expect("the system knows these");
        // Packets cannot be dropped here; what the system does when they are is its own, and known.
        let told = sockopt::tcp_user_timeout(&stream).map(|millis| Duration::from_millis(millis.into()));
        assert_eq!(told.expect("a time"), STALLED);
        assert!(sockopt::socket_keepalive(&stream).expect("yes or no"));
        let silent = sockopt::tcp_keepidle(&stream).expect("a time")
            + sockopt::tcp_keepintvl(&stream).expect("a time")
                * sockopt::tcp_keepcnt(&stream).expect("a number");
        assert!(silent <= STALLED, "{silent:?}");
        assert!(sockopt::socket_send_buffer_size(&stream).expect("bytes") <= 2 * UNTAKEN);
    }
}
