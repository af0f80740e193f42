//! Waiting for an action to change. The store says which action changed; this
//! wakes only those who wait for that one. A wake-up may be lost, so whoever
//! waits also looks again by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use countersign_domain::id::ActionId;
use countersign_store::Changed;
use tokio::sync::{Notify, broadcast};

/// How long a waiter sleeps at most before it looks by itself. Chosen: a lost
/// wake-up costs half a second, not an answer.
pub const LOOK_AGAIN: Duration = Duration::from_millis(500);

type Map = HashMap<ActionId, (usize, Arc<Notify>)>;

/// Those who wait, by action.
#[derive(Clone, Default)]
pub struct Waiters {
    map: Arc<Mutex<Map>>,
}

/// One who waits. Make it before reading the row, or the change between the
/// reading and the waiting is missed.
pub struct Waiter {
    action: ActionId,
    notify: Arc<Notify>,
    map: Arc<Mutex<Map>>,
}

impl Waiters {
    /// Starts to pass on what the store says, until the store is gone.
    pub fn listen(self, mut changes: broadcast::Receiver<Changed>) {
        tokio::spawn(async move {
            loop {
                match changes.recv().await {
                    Ok(change) => self.wake(change.action),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.wake_all(),
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
    }

    /// Begins to wait for an action.
    pub fn wait_for(&self, action: ActionId) -> Waiter {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = map.entry(action).or_insert_with(|| (0, Arc::new(Notify::new())));
        entry.0 += 1;
        Waiter { action, notify: entry.1.clone(), map: self.map.clone() }
    }

    fn wake(&self, action: ActionId) {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, notify)) = map.get(&action) {
            notify.notify_waiters();
        }
    }

    fn wake_all(&self) {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.values().for_each(|(_, notify)| notify.notify_waiters());
    }
}

impl Waiter {
    /// Something to await that is woken by changes from this call on.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let notified = self.notify.notified();
        async move {
            let _ = tokio::time::timeout(LOOK_AGAIN, notified).await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = map.get_mut(&self.action) {
            entry.0 -= 1;
            if entry.0 == 0 {
                map.remove(&self.action);
            }
        }
    }
}
