//! Keeping an attempt's lease alive while it runs, and hearing that it should
//! stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attempt::Attempt;

/// A heartbeat that stops when it is dropped.
pub(crate) struct Heartbeat(tokio::task::JoinHandle<()>);

impl Heartbeat {
    pub(crate) fn of(attempt: &Arc<Attempt>) -> Heartbeat {
        Heartbeat(tokio::spawn(beat(attempt.clone())))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps an attempt's lease alive, and hears whether it should stop.
async fn beat(attempt: Arc<Attempt>) {
    let gate = &attempt.gate;
    let every = gate.config.lease.length / 3;
    loop {
        tokio::time::sleep(every).await;
        let action = &attempt.action;
        match gate.store.heartbeat(&action.tenant, action.id, attempt.id, gate.config.lease).await {
            Ok(Some(row)) if row.cancel_requested.is_none() => {}
            Ok(_) => {
                attempt.halted.store(true, Ordering::Release);
                return;
            }
            // Not heard: the lease decides. It is looked at before every send.
            Err(error) => tracing::warn!(action = %action.id, %error, "a heartbeat was not recorded"),
        }
    }
}
