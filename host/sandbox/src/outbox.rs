//! Requests between the component's `handle` and the gate's answer.
//!
//! Nothing here runs beside the component. Its bodies are gathered while it
//! waits; a request whose body is whole is submitted when it waits next, or when
//! it returns. Three things follow, and the tests hold them:
//! - *What leaves is whole.* A body ends when the component says so in a host
//!   call of a living store. One that is torn down with the store ends in a way
//!   that looks the same to the body, and nobody is there to look: submitting
//!   needs the store.
//! - *What leaves does not depend on speed.* Which requests are submitted, and in
//!   which order, follows from what the component did before it waited.
//! - *What left is recorded.* The gate runs in a task of its own. The run may end
//!   meanwhile, by the clock for example: it ends, and whoever started it is told
//!   only when the gate is done ([`InFlight::finish`]).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use countersign_domain::effect::{Answer, Effect, OutboundRequest, Passage, Refusal};
use http_body_util::BodyExt;
use tokio::task::JoinHandle;
use wasmtime_wasi_http::{Error, WasiBody};

use crate::effect_gate::EffectGate;
use crate::error::Halt;
use crate::http;
use crate::state::State;

/// Requests that are not answered yet, at the same time, finished or not.
const OPEN: usize = 32;
/// Bodies of all open requests together, as a multiple of one body's limit.
const BODIES: u64 = 4;

/// How the component finds its answer.
pub(crate) struct Ticket {
    /// The response future's place in the resource table. The component may have
    /// dropped it, and the place may be taken by the next one.
    pub(crate) rep: u32,
    /// Tells the two apart.
    pub(crate) task: tokio::task::Id,
}

enum Body {
    Open(WasiBody),
    Whole,
    Broken(Error),
}

struct Outgoing {
    ticket: Ticket,
    /// Its body is filled in as it comes.
    request: OutboundRequest,
    /// What the component's own `content-length` says.
    stated: Option<u64>,
    body: Body,
}

struct Outbox {
    open: Vec<Outgoing>,
    body_limit: u64,
}

/// Shared by the store, which submits, and the driver, which gathers.
#[derive(Clone)]
pub(crate) struct SharedOutbox(Arc<Mutex<Outbox>>);

impl SharedOutbox {
    pub(crate) fn new(body_limit: u64) -> SharedOutbox {
        SharedOutbox(Arc::new(Mutex::new(Outbox { open: Vec::new(), body_limit })))
    }

    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().open.len() >= OPEN
    }

    pub(crate) fn add(
        &self,
        ticket: Ticket,
        request: OutboundRequest,
        stated: Option<u64>,
        body: Option<WasiBody>,
    ) {
        let body = body.map_or(Body::Whole, Body::Open);
        self.lock().open.push(Outgoing { ticket, request, stated, body });
    }

    /// Takes over what the component has written by now, so that it can write on.
    pub(crate) fn gather(&self, cx: &mut Context<'_>) {
        self.lock().gather(cx);
    }
}

impl Outbox {
    fn gather(&mut self, cx: &mut Context<'_>) {
        let limit = self.body_limit;
        let mut total: u64 = self.open.iter().map(|o| o.request.body.len() as u64).sum();
        for outgoing in &mut self.open {
            outgoing.gather(cx, limit, &mut total);
        }
    }

    /// The earliest request that waits for nothing more from the component.
    fn next(&mut self, cx: &mut Context<'_>) -> Option<Outgoing> {
        self.gather(cx);
        let ready = self.open.iter().position(|o| !matches!(o.body, Body::Open(_)))?;
        Some(self.open.remove(ready))
    }
}

impl Outgoing {
    fn gather(&mut self, cx: &mut Context<'_>, limit: u64, total: &mut u64) {
        loop {
            let Body::Open(body) = &mut self.body else { return };
            let frame = match pin!(body.frame()).poll(cx) {
                Poll::Pending => return,
                Poll::Ready(frame) => frame,
            };
            self.body = match frame {
                Some(Ok(frame)) => {
                    // Anything but data is trailers, and trailers are dropped.
                    let Ok(data) = frame.into_data() else { continue };
                    *total += data.len() as u64;
                    let size = (self.request.body.len() + data.len()) as u64;
                    if size <= limit && *total <= limit.saturating_mul(BODIES) {
                        self.request.body.extend_from_slice(&data);
                        continue;
                    }
                    self.request.body = Vec::new();
                    Body::Broken(Error::HttpRequestBodySize(Some(limit)))
                }
                Some(Err(error)) => Body::Broken(error),
                None => match self.stated {
                    Some(stated) if stated != self.request.body.len() as u64 => {
                        Body::Broken(Error::HttpRequestBodySize(Some(self.request.body.len() as u64)))
                    }
                    _ => Body::Whole,
                },
            };
        }
    }
}

impl State {
    /// Submits every request that is whole, one after the other, and delivers the
    /// answers. Called before the component observes anything, and when it has
    /// returned.
    pub(crate) async fn settle(&mut self) -> Result<(), Halt> {
        while let Some(outgoing) = poll_fn(|cx| Poll::Ready(self.outbox.lock().next(cx))).await {
            let answer = match outgoing.body {
                Body::Whole => self.submit(outgoing.request).await?,
                Body::Broken(error) => Err(error),
                // `next` gives none of these.
                Body::Open(_) => Err(Error::InternalError(None)),
            };
            http::deliver(&mut self.table, &outgoing.ticket, answer);
        }
        Ok(())
    }

    async fn submit(&mut self, request: OutboundRequest) -> Result<http::Answered, Halt> {
        Ok(match self.pass(Effect::Http(request)).await? {
            Some(Ok(answer)) => http::response(answer),
            Some(Err(refusal)) => Err(http::refusal(&refusal)),
            // `describe` and `preview`: nothing is granted, and nobody is asked.
            None => Err(Error::HttpRequestDenied),
        })
    }

    /// Lets the gate decide about one effect, and moves the clock to its record.
    /// `None`: this run has no gate.
    pub(crate) async fn pass(&mut self, effect: Effect) -> Result<Option<Result<Answer, Refusal>>, Halt> {
        let Some(gate) = self.gate.clone() else { return Ok(None) };
        match self.in_flight.submit(gate, effect).await {
            Some(Passage::Answered { answer, at }) => {
                self.clock.reach(at);
                Ok(Some(Ok(answer)))
            }
            Some(Passage::Refused { refusal, at }) => {
                self.clock.reach(at);
                Ok(Some(Err(refusal)))
            }
            Some(Passage::Stopped) => Err(Halt::Stopped),
            None => Err(Halt::GateFailed),
        }
    }
}

/// The gate's task, if one is running.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Option<JoinHandle<()>>>>);

impl InFlight {
    /// `None` if the gate panicked.
    async fn submit(&self, gate: Arc<dyn EffectGate>, effect: Effect) -> Option<Passage> {
        let (answer, passage) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            // Nobody listens when the run has ended by now; the gate has its own
            // record, and the next attempt will read it.
            let _ = answer.send(gate.submit(effect).await);
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        passage.await.ok()
    }

    /// Waits until the gate is done with what it was given.
    pub(crate) async fn finish(&self) {
        let task = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A panic was seen as `None` above, or the run ended before it.
            let _ = task.await;
        }
    }
}
