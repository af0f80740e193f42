//! Reads, apart from the writer: a few read-only connections, each used by one
//! read at a time on a thread that may block.

use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::StoreError;

/// A connection that goes back even when the read that has it panics.
struct Lent {
    conn: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(conn), Ok(mut idle)) = (self.conn.take(), self.idle.lock()) {
            idle.push(conn);
        }
    }
}

/// The pool. A read sees every commit that was answered before it began.
#[derive(Debug)]
pub(crate) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(connections: Vec<Connection>) -> Readers {
        let turns = Arc::new(Semaphore::new(connections.len()));
        Readers { idle: Arc::new(Mutex::new(connections)), turns }
    }

    /// Runs a read.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let closed = || StoreError::Unavailable { what: "it is shutting down".into() };
        let turn = self.turns.clone().acquire_owned().await.map_err(|_| closed())?;
        let idle = self.idle.clone();
        tokio::task::spawn_blocking(move || {
            // The turn is held until the connection is back.
            let _turn = turn;
            let conn = idle.lock().ok().and_then(|mut idle| idle.pop()).ok_or_else(closed)?;
            let lent = Lent { conn: Some(conn), idle };
            lent.conn.as_ref().map_or_else(|| Err(closed()), work)
        })
        .await
        .unwrap_or_else(|error| Err(StoreError::Unavailable { what: format!("a read met a bug: {error}") }))
    }

    /// Runs a read of a few rows by their key where it is called, if a connection
    /// is free: it takes some microseconds, and the way to another thread and back
    /// takes longer. Not for lists, nor for what may be large.
    pub(crate) async fn glance<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        if let Ok(_turn) = self.turns.clone().try_acquire_owned()
            && let Some(conn) = self.idle.lock().ok().and_then(|mut idle| idle.pop())
        {
            let lent = Lent { conn: Some(conn), idle: self.idle.clone() };
            if let Some(conn) = &lent.conn {
                return work(conn);
            }
        }
        self.read(work).await
    }

    /// Ends all reads that have not begun, and closes the connections.
    pub(crate) fn close(&self) {
        self.turns.close();
        if let Ok(mut idle) = self.idle.lock() {
            idle.clear();
        }
    }
}
