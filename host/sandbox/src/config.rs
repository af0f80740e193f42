//! What the operator may choose. A plain struct: where the values come from is
//! not this room's business.

use std::path::PathBuf;
use std::time::Duration;

use crate::process::{CompileLimits, ProcessCommand};

/// How the sandbox is built. [`Default`] suits one small host.
#[derive(Clone)]
pub struct SandboxConfig {
    /// Folder for compiled components, created if it is missing; private to this
    /// host. `None`: compiled again at every start.
    pub cache_dir: Option<PathBuf>,
    /// Key that authenticates the files in `cache_dir`. A compiled component is
    /// machine code: whoever can forge one runs code where components run. Keep the
    /// key where the folder is not.
    pub cache_key: [u8; 32],
    /// The largest component that is taken, bytes. 64 MiB: one that carries a
    /// Python interpreter has about 22 MB.
    pub max_component_bytes: u64,
    /// Runs at the same time in one process; one more is `Unavailable`. Each costs
    /// address space when the process starts, and memory only while it runs (about 20 KiB while it
    /// waits, plus what the component touches). Linux allows a process 65,530
    /// memory mappings, enough for about 12,000 runs.
    pub max_runs: u32,
    /// No linear memory may become larger than this, bytes, whatever a grant
    /// says. Costs address space only.
    pub max_memory: u64,
    /// How often a running component is looked at. It may overrun its CPU limit
    /// by two of these; shorter costs speed.
    pub epoch_tick: Duration,
    /// How a process is started that compiles one component. `None`: components
    /// are compiled in this process, where nothing can stop the compiler; for
    /// components that are known.
    pub compile_in: Option<ProcessCommand>,
    /// What such a process may take.
    pub compile_limits: CompileLimits,
    /// How a process is started that runs components. `None`: they run in this
    /// process, and a hole in the engine is a hole in the host.
    pub guests_in: Option<ProcessCommand>,
    /// How many such processes one tenant may have at the same time.
    pub guest_processes: usize,
}

impl Default for SandboxConfig {
    fn default() -> SandboxConfig {
        SandboxConfig {
            cache_dir: None,
            cache_key: [0; 32],
            max_component_bytes: 64 << 20,
            max_runs: 512,
            max_memory: 1 << 30,
            epoch_tick: Duration::from_millis(10),
            compile_in: None,
            compile_limits: CompileLimits::default(),
            guests_in: None,
            guest_processes: 2,
        }
    }
}

impl std::fmt::Debug for SandboxConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxConfig")
            .field("cache_dir", &self.cache_dir)
            .field("cache_key", &"…")
            .field("max_component_bytes", &self.max_component_bytes)
            .field("max_runs", &self.max_runs)
            .field("max_memory", &self.max_memory)
            .field("epoch_tick", &self.epoch_tick)
            .field("compile_in", &self.compile_in)
            .field("compile_limits", &self.compile_limits)
            .field("guests_in", &self.guests_in)
            .field("guest_processes", &self.guest_processes)
            .finish()
    }
}
