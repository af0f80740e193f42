//! A host that stops in good order, and does not wait for what does not end by
//! itself: a component that loops, or that waits for answers which do not come.
//!
//! Nothing is given back over a send: it is awaited and recorded first, whatever
//! the limit.

use std::time::Duration;

use crate::attempt::Attempt;
use crate::conclude::Stop;
use crate::{Gate, Inner};

impl Gate {
    /// As [`Gate::drain`], but attempts that are not over within the limit are
    /// given back as soon as nothing of theirs is being sent: another host, or
    /// the next start, runs them again at once and from their records. A send is
    /// waited for in any case; its own limit ends it.
    pub async fn drain_within(&self, limit: Duration) {
        let mut drained = std::pin::pin!(self.drain());
        if tokio::time::timeout(limit, drained.as_mut()).await.is_err() {
            self.inner.releasing.send_replace(true);
            drained.await;
        }
    }
}

impl Inner {
    /// Returns when this host gives its attempts back, once nothing of this one
    /// is being sent; nothing more of it will be.
    pub(crate) async fn released(&self, attempt: &Attempt) {
        let mut releasing = self.releasing.subscribe();
        if releasing.wait_for(|releasing| *releasing).await.is_err() {
            // The gate is gone, and whatever it ran with it.
            return std::future::pending().await;
        }
        // Held across a send, its record included.
        let mut progress = attempt.progress.lock().await;
        // Why it was stopped before, if it was, says more.
        progress.stop.get_or_insert(Stop::Released);
    }
}
