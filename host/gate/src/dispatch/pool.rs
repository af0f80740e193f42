//! Connections that wait for a next request.
//!
//! A server may close an idle connection at the very moment at which we write
//! to it, and then nobody knows what it has read. A used connection is still
//! worth having: a local send takes 30 µs of CPU on one and 130 µs on a fresh
//! one, both ends together (the measurement is in `tests/reuse.rs`), and with
//! TLS two round trips less. Hence:
//!
//! - Only for `read` and `provider-idempotent` routes, where such a doubt costs
//!   a repeat. A `verifiable` or `manual` write always gets its own connection:
//!   there it would cost a lookup, or a person's attention.
//! - Only within [`MAX_IDLE`], well before any common server closes by itself.
//! - Only if the socket, asked right before, has neither bytes nor an end for
//!   us. Whatever a server said unasked is never taken for an answer.
//!
//! Never across a boundary: the key is all that two sends must share, down to
//! the secrets by name. (A server that keeps state per connection, or a proxy
//! that mixes up answers, then does so within one tool of one tenant.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use countersign_domain::egress::Scheme;
use countersign_domain::grant::HttpRoute;
use countersign_domain::id::{TenantId, ToolName};
use tokio::time::{Instant, sleep};

use super::Outgoing;
use super::exchange::Link;

/// How long a connection may wait. Chosen: half of the shortest default among
/// common servers (Gunicorn 2 s; Node, Apache and uvicorn 5 s; nginx 75 s).
pub(super) const MAX_IDLE: Duration = Duration::from_secs(1);

/// Connections that wait, per key and in all. Chosen: as many attempts as one
/// host runs at once; beyond it the newcomer is closed.
const MAX_PER_KEY: usize = 128;
const MAX_IN_ALL: usize = 512;

/// What two sends over one connection have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    tenant: TenantId,
    tool: ToolName,
    scheme: Scheme,
    host: String,
    port: u16,
    allow_private: bool,
    ca: Option<String>,
    /// The host-set headers, secrets by name.
    headers: Vec<(String, String)>,
}

impl Key {
    pub(super) fn of(outgoing: &Outgoing, granted: &HttpRoute) -> Key {
        let target = &outgoing.route.target;
        Key {
            tenant: outgoing.tenant.clone(),
            tool: outgoing.tool.clone(),
            scheme: target.scheme(),
            host: target.host().as_str().to_owned(),
            port: target.port(),
            allow_private: granted.allow_private,
            ca: granted.ca.clone(),
            headers: granted
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
        }
    }
}

#[derive(Default)]
struct Waiting {
    by_key: HashMap<Key, Vec<(Instant, Link)>>,
    count: usize,
    swept: bool,
}

/// The connections that wait.
#[derive(Clone, Default)]
pub(super) struct Pool(Arc<Mutex<Waiting>>);

impl Pool {
    /// A connection that is certainly open now, the one used last.
    pub(super) fn take(&self, key: &Key) -> Option<Link> {
        let now = Instant::now();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = waiting.by_key.get_mut(key)?;
        let (mut gone, mut found) = (0, None);
        while let Some((since, link)) = list.pop() {
            gone += 1;
            if now.duration_since(since) < MAX_IDLE && link.is_quiet() {
                found = Some(link);
                break;
            }
        }
        if list.is_empty() {
            waiting.by_key.remove(key);
        }
        waiting.count -= gone;
        found
    }

    /// Keeps a connection for a while.
    pub(super) fn put(&self, key: Key, link: Link) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = waiting.by_key.get(&key).map_or(0, Vec::len);
        if waiting.count >= MAX_IN_ALL || list >= MAX_PER_KEY {
            return;
        }
        waiting.count += 1;
        waiting.by_key.entry(key).or_default().push((Instant::now(), link));
        if !std::mem::replace(&mut waiting.swept, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

/// Closes what has waited too long, until nothing waits.
async fn sweep(pool: Weak<Mutex<Waiting>>) {
    loop {
        sleep(MAX_IDLE).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let mut waiting = pool.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.by_key.retain(|_, list| {
            list.retain(|(since, _)| now.duration_since(*since) < MAX_IDLE);
            !list.is_empty()
        });
        waiting.count = waiting.by_key.values().map(Vec::len).sum();
        if waiting.count == 0 {
            waiting.swept = false;
            return;
        }
    }
}
