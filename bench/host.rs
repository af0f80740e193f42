//! The release binary, serving from a folder of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// Quotas are there to be met by a tenant that takes too much; this one takes all.
const UNLIMITED: &str = "[quota]
proposals_per_minute = { tenant = 100000000, tool = 100000000, caller = 100000000 }
pending = { tenant = 100000000, tool = 100000000, caller = 100000000, actor = 100000000 }
running = 256
";

/// A running host with the refund tool installed.
pub struct Host {
    child: Child,
    folder: tempfile::TempDir,
    /// `127.0.0.1:PORT`.
    pub address: String,
    /// An agent's token.
    pub agent: String,
    /// An approver's token.
    pub approver: String,
}

impl Host {
    /// Starts one on a file, whose refund tool may post to this port.
    pub fn start(upstream: u16) -> anyhow::Result<Host> {
        Host::start_on(None, upstream)
    }

    /// Starts one on this database.
    pub fn start_on(store: Option<&str>, upstream: u16) -> anyhow::Result<Host> {
        let host = Host::launch(store)?;
        host.install(upstream)?;
        Ok(host)
    }

    /// Starts another on the same database, for the same callers.
    pub fn beside(&self, store: &str) -> anyhow::Result<Host> {
        let mut other = Host::launch(Some(store))?;
        (other.agent, other.approver) = (self.agent.clone(), self.approver.clone());
        Ok(other)
    }

    fn launch(store: Option<&str>) -> anyhow::Result<Host> {
        let folder = tempfile::tempdir_in(std::env::var_os("COUNTERSIGN_BENCH_DIR").unwrap_or(".".into()))
            .or_else(|_| tempfile::tempdir())?;
        let binary = env!("CARGO_BIN_EXE_countersign");
        std::fs::write(folder.path().join("countersign.toml"), UNLIMITED)?;
        let mut child = Command::new(binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .args(store.iter().flat_map(|store| ["--store", store]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut url = None;
        let mut line = String::new();
        while url.is_none() && lines.read_line(&mut line)? > 0 {
            url = line.trim().strip_prefix("listening on ").map(str::to_owned);
            line.clear();
        }
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let url = url.context("the host did not start")?;
        // Only the first host on a database makes tokens.
        let token = |role: &str| {
            let text = std::fs::read_to_string(folder.path().join("tokens").join(role)).unwrap_or_default();
            text.trim().to_owned()
        };
        let (agent, approver) = (token("agent"), token("approver"));
        let address = url.trim_start_matches("http://").to_owned();
        Ok(Host { child, folder, address, agent, approver })
    }

    fn install(&self, upstream: u16) -> anyhow::Result<()> {
        let guests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-examples");
        let grant = std::fs::read_to_string(format!("{guests}/refund/grant.local.toml"))?
            .replace("12111", &upstream.to_string());
        let grant_file = self.folder.path().join("grant.toml");
        std::fs::write(&grant_file, grant)?;
        let added = Command::new(env!("CARGO_BIN_EXE_countersign"))
            .args(["tool", "add", &format!("{guests}/prebuilt/refund.wasm"), "--grant"])
            .arg(&grant_file)
            .arg("--data-dir")
            .arg(self.folder.path())
            .output()?;
        anyhow::ensure!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        Ok(())
    }

    /// User and system time of the process so far.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        // USER_HZ is 100 on every Linux that this runs on.
        Ok(ticks as f64 / 100.0)
    }

    /// Resident memory of the process.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages: u64 = statm.split(' ').nth(1).context("statm")?.parse()?;
        Ok(pages * 4096)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.folder.path();
    }
}
