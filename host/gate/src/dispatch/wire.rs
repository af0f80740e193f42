//! The socket, and the one fact everything rests on: has any byte of the
//! request been handed to the kernel.
//!
//! The count is taken below TLS, from what the kernel said it took: a write that
//! failed whole counts as nothing, plaintext that TLS still holds back counts as
//! nothing, and one byte of a record counts as sent. It runs from
//! [`Meter::arm`], after the handshake. What else TLS may write after that (an
//! alert, a key update) counts as well; that errs towards "perhaps sent".

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Interim answers (1xx) before the real one. Chosen: real servers send one or
/// two; more than this is a server that never comes to the point.
const MAX_INTERIM: u32 = 16;

/// What passed over one connection during one exchange. One task polls a
/// connection, so relaxed atomics are only there to make this `Sync`.
#[derive(Debug, Default)]
pub(super) struct Meter {
    armed: AtomicBool,
    written: AtomicU64,
    read: AtomicU64,
    /// `read` as it stood when the last interim answer was parsed.
    interim_until: AtomicU64,
    interims: AtomicU32,
}

impl Meter {
    /// From now on every byte belongs to one request and its answer.
    pub(super) fn arm(&self) {
        self.written.store(0, Relaxed);
        self.read.store(0, Relaxed);
        self.interim_until.store(0, Relaxed);
        self.interims.store(0, Relaxed);
        self.armed.store(true, Relaxed);
    }

    /// The kernel took at least one byte of the request.
    pub(super) fn anything_sent(&self) -> bool {
        self.written.load(Relaxed) > 0
    }

    /// Bytes of the answer so far, those of TLS included.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Something came that is not an interim answer.
    pub(super) fn answer_began(&self) -> bool {
        self.read() > self.interim_until.load(Relaxed)
    }

    /// Notes an interim answer; the connection fails once there are too many.
    pub(super) fn interim(&self) {
        self.interims.fetch_add(1, Relaxed);
        self.interim_until.store(self.read(), Relaxed);
    }

    /// More interim answers came than any server has reason to send.
    pub(super) fn flooded(&self) -> bool {
        self.interims.load(Relaxed) > MAX_INTERIM
    }
}

/// A TCP stream that counts.
#[derive(Debug)]
pub(super) struct Metered {
    tcp: TcpStream,
    meter: Arc<Meter>,
}

impl Metered {
    pub(super) fn new(tcp: TcpStream, meter: Arc<Meter>) -> Metered {
        Metered { tcp, meter }
    }

    fn count(&self, poll: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = poll
            && self.meter.armed.load(Relaxed)
        {
            self.meter.written.fetch_add(*bytes as u64, Relaxed);
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.meter.flooded() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut this.tcp).poll_read(cx, buf);
        this.meter.read.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        poll
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.tcp).poll_write(cx, buf);
        this.count(&poll);
        poll
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs);
        this.count(&poll);
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}

/// What HTTP is spoken over.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(Metered),
    Tls(Box<TlsStream<Metered>>),
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Wire::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Wire::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Wire::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(io) => io.is_write_vectored(),
            Wire::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(io) => Pin::new(io).poll_flush(cx),
            Wire::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Wire::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn p2_sent_is_what_the_kernel_took_after_arming() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let meter = Arc::new(Meter::default());
        let mut metered = Metered::new(tcp, meter.clone());

        metered.write_all(b"handshake").await.unwrap();
        assert!(!meter.anything_sent(), "that was not the request");
        meter.arm();
        assert!(!meter.anything_sent() && !meter.answer_began());
        metered.write_all(b"G").await.unwrap();
        assert!(meter.anything_sent());

        peer.write_all(b"HTTP").await.unwrap();
        metered.read_exact(&mut [0; 4]).await.unwrap();
        assert!(meter.answer_began() && meter.read() == 4);
        meter.interim();
        assert!(!meter.answer_began(), "an interim answer is none");

        meter.arm();
        assert!(!meter.anything_sent(), "another request");
        peer.set_zero_linger().unwrap();
        drop(peer);
        assert!(metered.write_all(b"GET").await.is_err());
        assert!(!meter.anything_sent(), "a write that failed whole took nothing");
    }
}
