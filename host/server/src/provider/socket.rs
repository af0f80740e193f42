//! A TCP connection that hyper reads and writes while a fault may write to it beside hyper.
//!
//! hyper writes nothing between a request and the service's answer, so whoever holds the request
//! may write first, and then give hyper no answer at all: it closes. Only ever one of the two
//! writes; that is kept by the handler, not checked here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use tokio::net::TcpStream;

/// hyper's half of a shared connection.
pub struct Shared(pub Arc<TcpStream>);

impl hyper::rt::Read for Shared {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Through a buffer of its own: filling hyper's directly would need unsafe code.
        let mut piece = [0; 16 * 1024];
        let size = buffer.remaining().min(piece.len());
        let Some(room) = piece.get_mut(..size) else {
            return Poll::Ready(Ok(()));
        };
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(room) {
                Ok(read) => {
                    buffer.put_slice(room.get(..read).unwrap_or_default());
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl hyper::rt::Write for Shared {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection closes when the last holder drops it, which may be a held request.
        Poll::Ready(Ok(()))
    }
}

/// The method and path of the first request, left unread in the socket. None where the peer
/// sent no request line.
pub async fn peek_request_line(socket: &TcpStream) -> Option<(String, String)> {
    let mut buffer = vec![0; 8 * 1024];
    let mut seen = 0;
    loop {
        let size = socket.peek(&mut buffer).await.ok()?;
        let bytes = buffer.get(..size)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(bytes.get(..end)?).into_owned();
            let mut words = line.split_ascii_whitespace();
            let method = words.next()?.to_owned();
            let target = words.next()?;
            let path = target.split('?').next()?.to_owned();
            return Some((method, path));
        }
        if size == 0 || size == buffer.len() {
            return None;
        }
        if size == seen {
            // Peeking does not consume, so readiness stays; wait for the rest of the line.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        seen = size;
    }
}
