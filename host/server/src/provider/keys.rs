//! What the provider remembers under an idempotency key, and for how long.
//!
//! Time is an argument: the provider's retention clock can be moved, and this file must not know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::log::locked;
use super::message::Answer;

/// The keys in use. Cheap to clone; all clones are one table.
#[derive(Clone, Default)]
pub struct Keys(Arc<Mutex<HashMap<String, Entry>>>);

struct Entry {
    /// Method, path and body together: what must be equal when the key comes again.
    fingerprint: [u8; 32],
    first_used_ms: u64,
    /// None while the first request is being worked on.
    answer: Option<Answer>,
}

/// What a key says about a request.
pub enum Found {
    /// Nobody has used it, or it is forgotten: act, then finish the ticket.
    Fresh(Ticket),
    /// Acted already; this was the answer.
    Stored(Answer),
    /// The first request with it is still being worked on.
    InFlight,
    /// It was used for something else.
    Different,
}

impl Keys {
    /// Takes the key for a request, or says why not. A key is forgotten once it is `retention_ms`
    /// old, counted from its first use, but never while its request is in flight.
    pub fn begin(&self, key: &str, fingerprint: [u8; 32], now_ms: u64, retention_ms: u64) -> Found {
        let mut table = locked(&self.0);
        if let Some(entry) = table.get(key) {
            let age = now_ms.saturating_sub(entry.first_used_ms);
            match &entry.answer {
                Some(_) if age >= retention_ms => {}
                _ if entry.fingerprint != fingerprint => return Found::Different,
                Some(answer) => return Found::Stored(answer.clone()),
                None => return Found::InFlight,
            }
        }
        let entry = Entry { fingerprint, first_used_ms: now_ms, answer: None };
        table.insert(key.to_owned(), entry);
        Found::Fresh(Ticket { keys: self.clone(), key: Some(key.to_owned()) })
    }

    /// How many keys are held, forgotten ones included until they are used again.
    pub fn len(&self) -> usize {
        locked(&self.0).len()
    }
}

/// The right to act under a key. Dropped unfinished it frees the key, as a request that was
/// refused before any work does.
pub struct Ticket {
    keys: Keys,
    key: Option<String>,
}

impl Ticket {
    /// From now on this is what every repeat is answered.
    pub fn finish(mut self, answer: Answer) {
        if let Some(key) = self.key.take()
            && let Some(entry) = locked(&self.keys.0).get_mut(&key)
        {
            entry.answer = Some(answer);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            locked(&self.keys.0).remove(&key);
        }
    }
}
