//! The provider as the tests use it: started from the real binary, with a log of its own.
//!
//! Everything here panics instead of returning an error: in a test a provider that cannot be
//! driven is a failure. All of it blocks; in async tests call it through `spawn_blocking`, or
//! directly where nothing else has to run meanwhile.
#![allow(dead_code, reason = "not every test uses every control")]

#[path = "../../host/server/src/provider/client.rs"]
mod client;
#[path = "../../host/server/src/provider/wire.rs"]
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

#[allow(unused_imports, reason = "not every test binary needs all of it")]
pub use client::{Client, read_log};
#[allow(unused_imports, reason = "not every test binary needs all of it")]
pub use wire::{Fault, Line, Match, Mode, Rule};

/// A provider that lives as long as this value. Its log goes with it.
pub struct Provider {
    process: client::Process,
    // After the process: it writes here until it is killed.
    _folder: tempfile::TempDir,
}

impl Provider {
    /// Starts `binary provider` on a free port, honouring keys for a day.
    pub fn start(binary: impl AsRef<Path>) -> Self {
        Self::start_with(binary, &[])
    }

    /// The same with further options: `&["--mode", "ignores"]`.
    pub fn start_with(binary: impl AsRef<Path>, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("provider.jsonl");
        let process = told(client::Process::start(binary.as_ref(), &log, options));
        Self { process, _folder: folder }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.client().url().to_owned()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.url().trim_start_matches("http://").to_owned()
    }

    /// The port alone, for a grant.
    pub fn port(&self) -> u16 {
        let address = self.address();
        let (_, port) = address.rsplit_once(':').expect("host and port");
        port.parse().expect("a port")
    }

    /// The controls, to clone into another thread.
    pub fn client(&self) -> &Client {
        self.process.client()
    }

    /// Adds a rule; its id. `Rule::once("/v1/refunds", Fault::LoseReply)`.
    pub fn fault(&self, rule: Rule) -> u64 {
        told(self.client().fault(rule))
    }

    /// Forgets all rules.
    pub fn clear_faults(&self) {
        told(self.client().clear_faults());
    }

    /// What keys are worth from now on.
    pub fn set_mode(&self, mode: Mode) {
        told(self.client().set_mode(mode));
    }

    /// What keys are worth from now on, on the bank's paths.
    pub fn set_bank_mode(&self, mode: Mode) {
        told(self.client().set_bank_mode(mode));
    }

    /// How long keys are kept from now on.
    pub fn set_key_retention(&self, retention: Duration) {
        told(self.client().set_key_retention(retention));
    }

    /// Moves the clock by which keys are forgotten.
    pub fn advance_clock(&self, by: Duration) {
        told(self.client().advance_clock(by));
    }

    /// Waits until `count` requests to the path have acted, or are kept waiting by a rule,
    /// counted from the start.
    pub fn wait_acted(&self, path: &str, count: u64) {
        told(self.client().wait_acted(path, count));
    }

    /// Waits until `count` requests to the path are in the log.
    pub fn wait_requests(&self, path: &str, count: u64) {
        told(self.client().wait_requests(path, count));
    }

    /// Waits until `count` requests are held at the same time.
    pub fn wait_held(&self, count: u64) {
        told(self.client().wait_held(count));
    }

    /// Lets go of everything held; how many that was.
    pub fn release(&self) -> u64 {
        told(self.client().release())
    }

    /// The whole log, from the file.
    pub fn log(&self) -> Vec<Line> {
        told(self.process.log())
    }

    /// Where the log is.
    pub fn log_path(&self) -> PathBuf {
        self.process.log_path().to_owned()
    }

    /// What was done at a path: the verdict.
    pub fn effects(&self, path: &str) -> Vec<Line> {
        told(self.process.effects(path))
    }

    /// What was received at a path, replays and refusals included.
    pub fn requests(&self, path: &str) -> Vec<Line> {
        told(self.process.requests(path))
    }

    /// Which faults fired at a path.
    pub fn faults(&self, path: &str) -> Vec<Line> {
        told(self.process.faults(path))
    }
}

fn told<T>(result: anyhow::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("provider: {error:#}"))
}
