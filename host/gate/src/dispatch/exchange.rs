//! One request and its answer over one connection.
//!
//! The HTTP library's connection is driven here, by the task that waits for the
//! answer: nothing goes on behind its back, and when it stops waiting the
//! connection is gone with everything that was not written yet. So the verdict
//! "not sent" cannot become untrue afterwards.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until};

use super::answer::{self, BodyError, Whole};
use super::connect::Fresh;
use super::pace::Pace;
use super::why::{Lost, NotSent};
use super::wire::{Meter, Wire};

/// Headers of an answer and bytes of its head. Chosen: large enough for every
/// provider known to us, small enough to be kept with each effect.
const MAX_HEADERS: usize = 128;
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A connection that speaks HTTP/1.1.
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    connection: Option<Connection<TokioIo<Wire>, Full<Bytes>>>,
    meter: Arc<Meter>,
    probe: TcpStream,
    plain: bool,
}

/// What became of a request.
pub(super) enum Outcome {
    NotSent(NotSent),
    Lost(Lost),
    Answered(Whole),
}

enum Failure {
    Library(hyper::Error),
    Limit(Lost),
}

impl Link {
    /// Speaks HTTP over a fresh connection; says nothing yet.
    pub(super) async fn over(fresh: Fresh) -> Result<Link, NotSent> {
        let plain = matches!(fresh.wire, Wire::Plain(_));
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(MAX_HEAD_BYTES)
            // As people and old servers write names.
            .title_case_headers(true)
            .handshake(TokioIo::new(fresh.wire))
            .await
            .map_err(|_| NotSent::Broken)?;
        Ok(Link { sender, connection: Some(connection), meter: fresh.meter, probe: fresh.probe, plain })
    }

    /// Sends the request and reads its answer whole.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        limit: u64,
        pace: Pace,
    ) -> Outcome {
        if self.is_over() {
            return Outcome::NotSent(NotSent::Broken);
        }
        self.meter.arm();
        let result = self.drive(request, limit, pace).await;
        if result.is_err() {
            // What was not written will not be.
            self.connection = None;
        }
        match result {
            // An answer to what was not asked is none.
            Ok(_) | Err(Failure::Library(_)) if !self.meter.anything_sent() => {
                Outcome::NotSent(NotSent::Broken)
            }
            Err(Failure::Limit(_)) if !self.meter.anything_sent() => Outcome::NotSent(NotSent::NoTimeLeft),
            Ok(whole) => Outcome::Answered(whole),
            Err(Failure::Limit(why)) => Outcome::Lost(why),
            Err(Failure::Library(error)) => Outcome::Lost(self.explain(&error)),
        }
    }

    async fn drive(
        &mut self,
        mut request: Request<Full<Bytes>>,
        limit: u64,
        mut pace: Pace,
    ) -> Result<Whole, Failure> {
        let meter = self.meter.clone();
        let (met, interim) = (meter.clone(), meter.clone());
        hyper::ext::on_informational(&mut request, move |_| interim.interim());
        let to_head = request.method() == Method::HEAD;
        let sender = &mut self.sender;
        let mut talk = pin!(async move {
            let (head, body) = sender.send_request(request).await.map_err(Failure::Library)?.into_parts();
            // They may all have come at once, the answer with them.
            if met.flooded() {
                return Err(Failure::Limit(Lost::Flooded));
            }
            answer::check_head(&head, to_head, limit).map_err(Failure::Limit)?;
            let body = answer::read_body(body, limit).await.map_err(|error| match error {
                BodyError::TooLarge => Failure::Limit(Lost::BodyTooLarge),
                BodyError::Broken(error) => Failure::Library(error),
            })?;
            Ok(Whole { head, body })
        });
        let connection = &mut self.connection;
        let mut alarm = pin!(sleep_until(pace.next()));
        poll_fn(|cx| {
            // The request is handed over first, then written and the answer
            // read, then the answer looked at.
            if let Poll::Ready(result) = talk.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            // When the connection is over, dropping it tells `talk` so.
            if let Some(open) = connection
                && Pin::new(open).poll(cx).is_ready()
            {
                *connection = None;
            }
            if let Poll::Ready(result) = talk.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            loop {
                if let Err(why) = pace.check(Instant::now(), meter.answer_began(), meter.read()) {
                    return Poll::Ready(Err(Failure::Limit(why)));
                }
                if alarm.deadline() != pace.next() {
                    alarm.as_mut().reset(pace.next());
                }
                if alarm.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    fn explain(&self, error: &hyper::Error) -> Lost {
        if self.meter.flooded() {
            Lost::Flooded
        } else if error.is_parse_too_large() {
            Lost::HeaderTooLarge
        } else if error.is_parse() {
            Lost::Malformed
        } else {
            Lost::Cut
        }
    }

    /// Whether another request can follow: the answer was read to its last
    /// byte, nothing came after it, and neither side wants to close.
    pub(super) async fn settle(&mut self) -> bool {
        poll_fn(|cx| {
            let Some(connection) = &mut self.connection else { return Poll::Ready(false) };
            let over = Pin::new(connection).poll(cx).is_ready();
            Poll::Ready(!over && matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(()))))
        })
        .await
    }

    /// Whether the socket has nothing for us right now, no byte and no end. The
    /// kernel is asked: what the runtime knows may be a moment old.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.probe.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether the other side has ended the connection, or spoken unasked, while
    /// the last look was taken. A request written now would be a doubt for
    /// nothing. (In TLS, bytes are no sign: servers send session tickets.)
    fn is_over(&self) -> bool {
        match self.probe.peek(&mut [0]) {
            Ok(bytes) => bytes == 0 || self.plain,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}
