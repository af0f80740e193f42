//! What the system says of this process, under the names that Prometheus's own
//! libraries give it, and which build this is.

use std::fs;

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Grown, Reading, grow};

/// Clock ticks per second in `/proc`: fixed at 100 on every Linux that there is.
const TICKS: f64 = 100.0;

#[derive(Debug, Default)]
pub(super) struct Figures {
    cpu: Grown,
    memory: Reading,
    files: Reading,
    threads: Reading,
}

impl Figures {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register("process_cpu_seconds", "Processor time of this process", self.cpu.clone());
        all.register("process_resident_memory_bytes", "Memory of this process", self.memory.clone());
        all.register("process_open_fds", "Open files and sockets of this process", self.files.clone());
        all.register("process_threads", "Threads of this process", self.threads.clone());
        all.register("build", "Which build this is", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    }

    /// Reads anew. What the system does not say stays as it was.
    pub(super) fn look(&self) {
        if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::read) {
            grow(&self.cpu, stat.ticks / TICKS);
            self.threads.set(stat.threads);
        }
        if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident) {
            self.memory.set(bytes);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            self.files.set(i64::try_from(open.count()).unwrap_or(i64::MAX));
        }
    }
}

struct Stat {
    ticks: f64,
    threads: i64,
}

impl Stat {
    /// Fields of `proc(5)`, counted after the name, which may hold anything.
    fn read(text: &str) -> Option<Stat> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Stat { ticks: number(11)? + number(12)?, threads: fields.get(17)?.parse().ok()? })
    }
}

fn resident(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_read_whatever_the_process_is_called() {
        let stat = Stat::read("7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 1 2 3").expect("read");
        assert_eq!((stat.ticks, stat.threads), (300.0, 9));
        assert!(Stat::read("nothing").is_none());
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12 << 10));
    }
}
