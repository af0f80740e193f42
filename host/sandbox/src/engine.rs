//! The engine's configuration: every setting that differs from wasmtime's own,
//! and why. What is switched off here is code that no component can reach.
//!
//! Cargo features (root `Cargo.toml`): no `winch`, no `component-model-async`,
//! no `cache`, no `profiling`. `gc`, `gc-null` and `threads` are compiled in
//! although the language features are off: two advisories of 2026 concern builds
//! without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wasmtime::{
    Config, CustomCodeMemory, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Strategy,
};

use crate::config::SandboxConfig;
use crate::error::SandboxError;
use crate::limits;

/// Core instances of one run: its code, and what the toolchain puts around it.
const CORE_INSTANCES_PER_RUN: u32 = 8;
/// Linear memories of one run; most components have one.
const MEMORIES_PER_RUN: u32 = 2;
/// Tables of one run; a component needs at least two.
const TABLES_PER_RUN: u32 = 4;

/// An engine that runs components, in a pool.
pub(crate) fn engine(config: &SandboxConfig) -> Result<Engine, SandboxError> {
    let mut c = settings();
    c.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config)));
    start(&c)
}

/// The same in a guest process, where code is in mappings that the host gave.
pub(crate) fn guest(config: &SandboxConfig, code: Arc<dyn CustomCodeMemory>) -> Result<Engine, SandboxError> {
    let mut c = settings();
    c.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config)));
    c.with_custom_code_memory(Some(code));
    start(&c)
}

/// An engine that compiles for those two, and runs nothing: it has no pool, which
/// takes more address space than a process that compiles may have.
pub(crate) fn compiler() -> Result<Engine, SandboxError> {
    start(&settings())
}

/// One that takes no notice of its clock. For a benchmark.
#[cfg(feature = "bench")]
pub(crate) fn unlimited(config: &SandboxConfig) -> Result<Engine, SandboxError> {
    let mut c = settings();
    c.epoch_interruption(false);
    c.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config)));
    start(&c)
}

fn start(config: &Config) -> Result<Engine, SandboxError> {
    Engine::new(config).map_err(|e| {
        SandboxError::Engine(format!(
            "{e:#} (if address space is short, a smaller `max_runs` needs less of it)"
        ))
    })
}

fn settings() -> Config {
    let mut c = Config::new();

    // The Cranelift compiler and nothing else; wasmtime's other one, Winch, had
    // five CVEs in April 2026 alone.
    c.strategy(Strategy::Cranelift);

    // WASI 0.3's asynchronous ABI is on by default and had a native stack
    // overflow (CVE-2026-115384). Off; a fresh call also gets twice as fast.
    c.concurrency_support(false);

    // Language features that no tool needs, each with engine code behind it.
    c.wasm_gc(false);
    c.wasm_function_references(false);
    c.wasm_exceptions(false);
    c.wasm_threads(false);
    c.shared_memory(false);
    c.wasm_memory64(false);
    c.wasm_multi_memory(false);
    c.wasm_relaxed_simd(false);
    c.wasm_tail_call(false);
    c.wasm_stack_switching(false);

    // Replay must not depend on the processor it runs on.
    c.relaxed_simd_deterministic(true);
    c.cranelift_nan_canonicalization(true);

    // What stops an endless loop. Fuel would do it too, at ten times the cost.
    c.epoch_interruption(true);
    // A component may use half a MiB of stack; its fiber has four times that, so
    // that a host call at the bottom of it has room.
    c.max_wasm_stack(512 << 10);
    c.async_stack_size(2 << 20);

    // A trap's message is what the host says about it. Frames would carry names
    // that the component chose, and cost time.
    c.wasm_backtrace_max_frames(None);

    c
}

/// Slots are reserved as address space when the host starts and become memory
/// when a component touches them.
fn pool(config: &SandboxConfig) -> PoolingAllocationConfig {
    let runs = config.max_runs;
    let mut p = PoolingAllocationConfig::new();
    p.total_component_instances(runs);
    p.total_core_instances(runs.saturating_mul(CORE_INSTANCES_PER_RUN));
    p.total_memories(runs.saturating_mul(MEMORIES_PER_RUN));
    p.total_tables(runs.saturating_mul(TABLES_PER_RUN));
    p.total_stacks(runs);
    // No component uses the collector, but the pool wants a slot for one.
    p.total_gc_heaps(1);
    p.max_core_instances_per_component(limits::INSTANCES);
    p.max_memories_per_component(limits::MEMORIES);
    p.max_tables_per_component(limits::TABLES);
    p.max_tables_per_module(limits::TABLES_PER_MODULE);
    p.max_memories_per_module(1);
    p.table_elements(limits::TABLE_ELEMENTS);
    p.max_memory_size(usize::try_from(config.max_memory).unwrap_or(usize::MAX));
    // Pages that a run has touched are set back to what they were and kept, so
    // that the next run in the slot does not fault them in again: 65 µs for a
    // fresh call became 40. Linux from 6.7 says which pages those are; before,
    // the first bytes are all rewritten.
    p.pagemap_scan(Enabled::Auto);
    p.linear_memory_keep_resident(512 << 10);
    p.table_keep_resident(16 << 10);
    // So many slots keep them while idle: 32 MiB at most.
    p.max_unused_warm_slots(64);
    p
}

/// The thread that moves the engine's epoch. Stops when it is dropped.
pub(crate) struct Ticker(Arc<AtomicBool>);

impl Ticker {
    pub(crate) fn start(engine: &Engine, every: Duration) -> Result<Ticker, SandboxError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, seen) = (engine.weak(), stop.clone());
        // A thread and not a task: it must tick when all the runtime's threads
        // are inside components.
        std::thread::Builder::new()
            .name("sandbox-epoch".to_owned())
            .spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    std::thread::sleep(every);
                    let Some(engine) = weak.upgrade() else { return };
                    engine.increment_epoch();
                }
            })
            .map_err(|e| SandboxError::Engine(format!("no thread for the epoch: {e}")))?;
        Ok(Ticker(stop))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
