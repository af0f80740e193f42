//! Events, as JSON pages and as `text/event-stream`.
//!
//! A stream never remembers an event to send it: it listens first, then reads
//! what stands in the store after the last one it sent, and reads again whenever
//! it hears, or half suspects, that there is more. So nothing is lost between
//! the reading and the listening, and nothing comes twice.
//!
//! An event is one line of JSON in one `data:` field. JSON escapes line breaks,
//! so nothing that anybody wrote into an event can end it or begin another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use countersign_domain::code;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, TenantId};
use countersign_store::{Changed, StoreError};
use futures::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::App;
use super::actions::one;
use super::call::Call;
use super::problem::Problem;
use super::view::EventView;
use crate::tokens::Caller;

/// Events per page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);
/// Events read at once for a stream, and bytes of them after which no more are
/// handed on: what a client does not take is held for it, and there are many.
const BATCH: u32 = 100;
const CHUNK: usize = 16 << 10;
/// How often a stream looks by itself, and whether its token is still worth
/// something. Chosen: a revoked token's streams end well within five seconds.
const LOOK: Duration = Duration::from_secs(2);
/// How long a stream is silent before it says that it is still there.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Streams at the same time: of one token, of one tenant, of the host. Each
/// costs a connection and a read per change of its tenant.
const STREAMS: (usize, usize, usize) = (5, 50, 500);

/// When it is worth asking for a stream again: some end all the time, and those
/// that nobody reads are ended within a minute.
const STREAM_RETRY: Duration = Duration::from_secs(5);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What a stream is about.
#[derive(Clone, Copy)]
enum Scope {
    /// One action; the position is the event's `seq`.
    Action(ActionId),
    /// All of a tenant; the position is the event's `cursor`.
    Tenant,
}

impl Scope {
    fn position(self, event: &Event) -> i64 {
        match self {
            Scope::Action(_) => i64::from(event.seq),
            Scope::Tenant => event.cursor,
        }
    }

    async fn read(
        self,
        app: &App,
        tenant: &TenantId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let store = app.gate.store();
        match self {
            Scope::Action(id) => {
                store.events_of(tenant, id, u32::try_from(after).unwrap_or(u32::MAX), limit).await
            }
            Scope::Tenant => store.events(tenant, after, limit).await,
        }
    }
}

/// `GET /v1/actions/{id}/events`
pub async fn of_action(call: Call) -> Result<Response, Problem> {
    let action = one(&call).await?;
    events(call, Scope::Action(action.id), action.state.is_terminal()).await
}

/// `GET /v1/events`
pub async fn of_tenant(call: Call) -> Result<Response, Problem> {
    events(call, Scope::Tenant, false).await
}

async fn events(call: Call, scope: Scope, ended: bool) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let after: Option<i64> = query.parsed("after")?;
    let limit = query.limit(PAGE.0, PAGE.1)?;
    query.finish()?;
    let caller = call.caller()?.clone();
    let invalid =
        |what: &str| Problem::new(code::INVALID_REQUEST, format!("{what} is the number of an event, from 0"));
    let resumed = match call.header(&LAST_EVENT_ID)? {
        None => None,
        Some(text) => Some(text.parse::<i64>().map_err(|_| invalid("Last-Event-ID"))?),
    };
    let after = resumed.or(after).unwrap_or(0);
    if after < 0 {
        return Err(invalid("the position"));
    }
    let accept = call.headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accept.into_iter().any(|accept| accept.contains("text/event-stream")) {
        return stream(call.app, caller, scope, after, ended).await;
    }
    let events = scope.read(&call.app, &caller.tenant, after, limit).await?;
    let next = events.last().map_or(after, |event| scope.position(event));
    #[derive(Serialize)]
    struct Page<'a> {
        events: Vec<EventView<'a>>,
        /// Where to go on from.
        next: i64,
    }
    Ok(super::json(StatusCode::OK, &Page { events: events.iter().map(EventView::of).collect(), next }))
}

async fn stream(
    app: Arc<App>,
    caller: Caller,
    scope: Scope,
    after: i64,
    ended: bool,
) -> Result<Response, Problem> {
    let place = app.streams.clone().enter(&caller)?;
    // First listen, then look.
    let changes = app.gate.store().subscribe();
    if ended && scope.read(&app, &caller.tenant, after, 1).await?.is_empty() {
        // Nothing will ever follow. By the standard this tells a browser's
        // reader not to connect again.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let now = Instant::now();
    let feed = Feed {
        app,
        caller,
        scope,
        after,
        changes,
        look: true,
        over: false,
        said: now,
        checked: now,
        _place: place,
    };
    let body = Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), feed))
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies that buffer would hold events back.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// One open stream.
struct Feed {
    app: Arc<App>,
    caller: Caller,
    scope: Scope,
    /// The last event that was sent.
    after: i64,
    changes: broadcast::Receiver<Changed>,
    /// There may be more to read.
    look: bool,
    /// The last event was one that nothing can follow.
    over: bool,
    /// When something was sent last.
    said: Instant,
    /// When the token was looked at last.
    checked: Instant,
    _place: Place,
}

impl Feed {
    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over || self.app.is_stopping() {
                return None;
            }
            if self.checked.elapsed() >= LOOK {
                self.checked = Instant::now();
                self.look = true;
                if !self.is_permitted().await {
                    return None;
                }
            }
            if std::mem::take(&mut self.look) {
                self.hear_all();
                let events = self.scope.read(&self.app, &self.caller.tenant, self.after, BATCH).await;
                let events =
                    events.inspect_err(|error| tracing::warn!(%error, "a stream could not be read")).ok()?;
                if let Some((chunk, written)) = self.write(&events) {
                    // A full page, or a part of one: there is probably more.
                    self.look = events.len() == BATCH as usize || written < events.len();
                    self.said = Instant::now();
                    return Some(chunk);
                }
            }
            if self.said.elapsed() >= HEARTBEAT {
                self.said = Instant::now();
                return Some(Bytes::from_static(b": still here\n\n"));
            }
            let app = self.app.clone();
            tokio::select! {
                heard = self.changes.recv() => self.look = self.is_ours(&heard),
                () = tokio::time::sleep(LOOK) => {}
                () = app.stopped() => {}
            }
        }
    }

    fn is_ours(&self, heard: &Result<Changed, broadcast::error::RecvError>) -> bool {
        match (heard, self.scope) {
            (Ok(changed), Scope::Tenant) => changed.tenant == self.caller.tenant,
            (Ok(changed), Scope::Action(id)) => changed.action == id,
            // Something was missed; or the store is gone, and reading says so.
            (Err(_), _) => true,
        }
    }

    /// Forgets what was heard so far: the read that follows covers it.
    fn hear_all(&mut self) {
        while !matches!(
            self.changes.try_recv(),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
        ) {}
    }

    /// Whether the token is still worth something.
    async fn is_permitted(&self) -> bool {
        let row = self.app.gate.store().principal(&self.caller.token_id).await;
        matches!(row, Ok(Some(row)) if row.revoked.is_none())
    }

    /// As many of these as go into one chunk, and how many those are.
    fn write(&mut self, events: &[Event]) -> Option<(Bytes, usize)> {
        let mut text = String::new();
        let mut written = 0;
        for event in events {
            if text.len() >= CHUNK {
                break;
            }
            // Views have nothing that cannot be written; an event that could
            // not be must not be passed over silently, so the stream ends.
            let Ok(data) = serde_json::to_string(&EventView::of(event)) else {
                self.over = true;
                break;
            };
            self.after = self.scope.position(event);
            text.push_str(&format!("id: {}\ndata: {data}\n\n", self.after));
            self.over |= matches!(self.scope, Scope::Action(_)) && EventView::is_last(event);
            written += 1;
        }
        (written > 0).then(|| (text.into(), written))
    }
}

/// The open streams of this host, counted.
#[derive(Default)]
pub struct Streams {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_tenant: HashMap<TenantId, usize>,
    by_token: HashMap<String, usize>,
}

/// A stream's place; given back when the stream ends, however it ends.
struct Place {
    streams: Arc<Streams>,
    tenant: TenantId,
    token: String,
}

impl Streams {
    fn enter(self: Arc<Streams>, caller: &Caller) -> Result<Place, Problem> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_token = open.by_token.get(&caller.token_id).copied().unwrap_or_default();
        let of_tenant = open.by_tenant.get(&caller.tenant).copied().unwrap_or_default();
        for (quota, whose, limit, found) in [
            ("streams.token", "this token", STREAMS.0, of_token),
            ("streams.tenant", "this tenant", STREAMS.1, of_tenant),
            ("streams.host", "this host", STREAMS.2, open.all),
        ] {
            if found >= limit {
                let detail =
                    format!("{whose} has {limit} open event streams, which is all it may; close one");
                let limit = u32::try_from(limit).unwrap_or(u32::MAX);
                return Err(Problem::over(quota, whose, limit, STREAM_RETRY, detail));
            }
        }
        open.all += 1;
        *open.by_token.entry(caller.token_id.clone()).or_default() += 1;
        *open.by_tenant.entry(caller.tenant.clone()).or_default() += 1;
        drop(open);
        Ok(Place { streams: self, tenant: caller.tenant.clone(), token: caller.token_id.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all = open.all.saturating_sub(1);
        leave(&mut open.by_token, &self.token);
        leave(&mut open.by_tenant, &self.tenant);
    }
}

fn leave<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str, token: &str) -> Caller {
        Caller {
            tenant: tenant.parse().expect("a tenant"),
            principal: "ann".parse().expect("a principal"),
            roles: Vec::new(),
            token_id: token.into(),
        }
    }

    #[test]
    fn i03_streams_are_counted_per_token_per_tenant_and_in_all_and_given_back() {
        let streams: Arc<Streams> = Arc::default();
        let mut places = Vec::new();
        for token in 0..10 {
            for _ in 0..5 {
                let place = streams.clone().enter(&caller("a", &token.to_string()));
                places.push(place.unwrap_or_else(|_| panic!("no place for token {token}")));
            }
            assert!(streams.clone().enter(&caller("a", &token.to_string())).is_err(), "a sixth of one token");
        }
        assert!(streams.clone().enter(&caller("a", "new")).is_err(), "a fifty-first of one tenant");
        assert!(streams.clone().enter(&caller("b", "new")).is_ok(), "another tenant's");
        places.clear();
        let open = streams.open.lock().expect("the lock");
        assert_eq!((open.all, open.by_token.len(), open.by_tenant.len()), (0, 0, 0));
    }
}
