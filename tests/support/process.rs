//! Signals to processes that a test started.

use std::process::Command;
use std::time::{Duration, Instant};

/// How long a process may take to stand still on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal to a process, by its number.
pub fn signal(pid: u32, name: &str) {
    // The shell's own, which every system has.
    let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status();
    assert!(sent.is_ok_and(|status| status.success()), "SIG{name} could not be sent to {pid}");
}

/// SIGSTOP, and waits until every thread stands still.
pub fn stand_still(pid: u32) {
    signal(pid, "STOP");
    let until = Instant::now() + PATIENCE;
    while !stands_still(pid) {
        assert!(Instant::now() < until, "{pid} was told to stand still and does not");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether every thread of a process was stopped by a signal.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before it may have anything in it but this.
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}
