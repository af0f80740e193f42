//! What one store may take: counts that are the same for every run, the total of
//! its memories, and the time it has spent running.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wasmtime::ResourceLimiter;

use crate::error::Halt;

/// Core instances of one component. Chosen; raise it if a toolchain splits its
/// output further (the pool's `max_core_instances_per_component` follows).
pub(crate) const INSTANCES: u32 = 32;
/// Tables of one component.
pub(crate) const TABLES: u32 = 32;
/// Tables of one core module: its own, and one that is passed in and out.
pub(crate) const TABLES_PER_MODULE: u32 = 4;
/// Linear memories of one component.
pub(crate) const MEMORIES: u32 = 4;
/// Elements of one table: one per function that is called through a pointer.
/// Chosen; an interpreter with more of them does not start, and says so.
pub(crate) const TABLE_ELEMENTS: usize = 20_000;
/// Bytes that one host call may take over from a component. wasmtime's own limit
/// is 128 MiB.
pub(crate) const HOST_CALL_BYTES: usize = 4 << 20;
/// Host resources at the same time: header lists, bodies, streams, timers.
pub(crate) const RESOURCES: usize = 512;
/// Handles at the same time, of the host's resources and of its own.
pub(crate) const HANDLES: usize = 4_096;
/// Bytes of one header list, names, values and bookkeeping.
pub(crate) const FIELDS_BYTES: usize = 16 << 10;
/// Random bytes in one call.
pub(crate) const RANDOM_BYTES: u64 = 64 << 10;

/// Counts all linear memories of a store together; wasmtime's own counts each.
pub(crate) struct Limiter {
    memory: u64,
    memory_limit: u64,
    refused: Option<&'static str>,
}

impl Limiter {
    pub(crate) fn new(memory_limit: u64) -> Limiter {
        Limiter { memory: 0, memory_limit, refused: None }
    }

    /// What it was refused last. A component that is refused memory usually traps
    /// right after, with a message that does not say why.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        self.refused
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let total = self.memory.saturating_add(more);
        if total > self.memory_limit {
            self.refused = Some("memory");
            return Ok(false);
        }
        // Growth that fails afterwards stays counted: at the pool's own maximum,
        // so nothing that could still be granted is lost.
        self.memory = total;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            self.refused = Some("table");
            return Ok(false);
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

/// How long a component has run, waiting left out. The epoch ticks while it waits
/// as well, so the ticks themselves do not count; time between entering and
/// leaving the run's future does. It includes host calls that return at once, and
/// time in which the system let another process run.
pub(crate) struct CpuAccount {
    start: Instant,
    limit: Duration,
    used: AtomicU64,
    entered: AtomicU64,
    looks: AtomicU64,
}

impl CpuAccount {
    pub(crate) fn new(limit: Duration) -> CpuAccount {
        CpuAccount {
            start: Instant::now(),
            limit,
            used: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn enter(&self) {
        self.entered.store(self.clock(), Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.used.store(self.now_used(), Ordering::Relaxed);
    }

    fn now_used(&self) -> u64 {
        let entered = self.entered.load(Ordering::Relaxed);
        self.used.load(Ordering::Relaxed).saturating_add(self.clock().saturating_sub(entered))
    }

    /// How often the engine has looked at it: once for each tick that found the
    /// component running. Unlike time, that does not depend on who else has the
    /// processors.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Called from inside a running component.
    pub(crate) fn check(&self) -> Result<(), Halt> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if Duration::from_nanos(self.now_used()) < self.limit {
            return Ok(());
        }
        Err(Halt::Limit { limit: "cpu", why: format!("it ran longer than {:?}", self.limit) })
    }
}
