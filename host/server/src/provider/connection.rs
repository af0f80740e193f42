//! Connections: accepting them, reading requests whole, handing answers to hyper.
//!
//! Bodies that are too large or cut short end here, and so do resets before reading. What a
//! complete request means is decided in `serve`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::message::{Answer, BODY_LIMIT, Received};
use super::serve::{Provider, fault_line};
use super::socket::{Shared, peek_request_line};
use super::wire::Line;
use super::{control, faults, stripe};

/// A body this much over the limit is read to its end, so that the refusal arrives; beyond it
/// the connection is simply closed.
const DRAIN_LIMIT: u64 = 16 * BODY_LIMIT;

/// What hyper is to do with a request: answer, or close without a word.
pub(super) type Delivery = Result<Response<Full<Bytes>>, Closed>;

/// The connection ends here, on purpose.
#[derive(Debug, thiserror::Error)]
#[error("closed by the provider")]
pub struct Closed;

impl Provider {
    /// Serves until dropped.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    tokio::spawn(Arc::clone(&self).connection(socket));
                }
                Err(error) => {
                    // Out of file descriptors, or a peer that left while it waited: neither is a
                    // reason to end, both pass.
                    eprintln!("provider: cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, socket: TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        // Without this a dripped byte would wait for the one before to be acknowledged.
        let _ = socket.set_nodelay(true);
        let socket = Arc::new(socket);
        if super::log::locked(&self.faults).may_reset_before_read()
            && let Some((method, path)) = peek_request_line(&socket).await
            && let Some(fired) = self.take_fault(&method, &path, true)
        {
            let line = Line {
                event: "fault".into(),
                connection: number,
                method,
                path,
                fault: Some(fired.fault.name().into()),
                rule: Some(fired.id),
                ..Line::default()
            };
            if self.append(vec![line]).await.is_ok() {
                let _ = faults::send_raw(&socket, &fired.fault, &faults::not_done()).await;
            }
            return;
        }
        let provider = Arc::clone(&self);
        let shared = Shared(Arc::clone(&socket));
        let service = service_fn(move |request: Request<Incoming>| {
            let work = Arc::clone(&provider).handle(request, Arc::clone(&socket), number);
            async move { tokio::spawn(work).await.unwrap_or(Err(Closed)) }
        });
        let served = http1::Builder::new()
            // A caller that sends all and closes at once has sent all: its body is still read.
            .half_close(true)
            .serve_connection(shared, service)
            .await;
        if let Err(error) = served
            && error.is_parse()
        {
            let line = Line {
                event: "malformed".into(),
                connection: number,
                error: Some(error.to_string()),
                ..Line::default()
            };
            let _ = self.append(vec![line]).await;
        }
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        socket: Arc<TcpStream>,
        connection: u64,
    ) -> Delivery {
        if request.uri().path().starts_with("/_") {
            return Ok(respond(control::handle(&self, request).await));
        }
        let (head, body) = request.into_parts();
        let mut received = Received {
            connection,
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers,
            body: Bytes::new(),
        };
        if let Some(fired) = self.take_fault(&received.method, &received.path, true) {
            // The head of a second request on a connection is read by now; its body is not.
            self.append(vec![fault_line(&received, &fired)]).await?;
            let _ = faults::send_raw(&socket, &fired.fault, &faults::not_done()).await;
            return Err(Closed);
        }
        let (bytes, end) = read_body(body).await;
        received.body = bytes;
        match end {
            BodyEnd::Whole => self.process(received, socket).await,
            BodyEnd::TooLarge => {
                let mut line = received.line("request");
                line.outcome = Some("too-large".into());
                line.status = Some(413);
                self.append(vec![line]).await?;
                let message = format!("the body is over {BODY_LIMIT} bytes");
                let answer = stripe::error(413, "invalid_request_error", None, &message, None);
                Ok(respond(answer))
            }
            BodyEnd::CutShort => {
                let mut line = received.line("request");
                line.outcome = Some("incomplete".into());
                self.append(vec![line]).await?;
                Err(Closed)
            }
        }
    }
}

pub(super) fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    if let Ok(status) = http::StatusCode::from_u16(answer.status) {
        *response.status_mut() = status;
    }
    for (name, value) in answer.headers {
        // Rules were checked when they came; what the business says is ASCII, or is left out.
        if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::try_from(value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
}

pub(super) enum BodyEnd {
    Whole,
    TooLarge,
    CutShort,
}

/// Reads to the end, keeps at most the limit.
pub(super) async fn read_body(mut body: Incoming) -> (Bytes, BodyEnd) {
    let mut kept = Vec::new();
    let mut total: u64 = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return (kept.into(), BodyEnd::CutShort);
        };
        if let Ok(piece) = frame.into_data() {
            total = total.saturating_add(piece.len() as u64);
            if total <= BODY_LIMIT {
                kept.extend_from_slice(&piece);
            } else {
                kept = Vec::new();
            }
            if total > DRAIN_LIMIT {
                break;
            }
        }
    }
    match total > BODY_LIMIT {
        true => (Bytes::new(), BodyEnd::TooLarge),
        false => (kept.into(), BodyEnd::Whole),
    }
}
