//! Drives a provider from outside: starts it, sets its faults, waits for it, reads its log.
//!
//! Blocking, on purpose: tests and the demo call it between the steps they watch. In async code
//! use `spawn_blocking`. The end-to-end tests include this file by path with `wire.rs` beside it,
//! so it may use nothing else of this crate.
#![allow(dead_code, reason = "the demo and the tests each use a different part of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::wire::{Change, Line, Mode, Rule, path_matches};

/// How long a start and a wait may take before they count as failed. Far more than either needs
/// on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The controls of a running provider.
#[derive(Clone)]
pub struct Client {
    base: String,
    agent: ureq::Agent,
}

impl Client {
    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn new(base: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // A proxy from the environment has no business on loopback.
            .proxy(None)
            .timeout_global(Some(PATIENCE * 2))
            .build()
            .new_agent();
        Self { base: base.to_owned(), agent }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Adds a rule at the end of the queue; its id.
    pub fn fault(&self, rule: Rule) -> anyhow::Result<u64> {
        let answer = self.change(&Change { rules: vec![rule], ..Change::default() })?;
        answer["added"][0].as_u64().context("no id for the rule")
    }

    /// Forgets all rules. What is held stays held until released.
    pub fn clear_faults(&self) -> anyhow::Result<()> {
        self.change(&Change { clear: true, ..Change::default() }).map(drop)
    }

    /// What keys are worth from now on, for everything.
    pub fn set_mode(&self, mode: Mode) -> anyhow::Result<()> {
        self.change(&Change { mode: Some(mode), ..Change::default() }).map(drop)
    }

    /// What keys are worth from now on, on the bank's paths.
    pub fn set_bank_mode(&self, mode: Mode) -> anyhow::Result<()> {
        self.change(&Change { bank_mode: Some(mode), ..Change::default() }).map(drop)
    }

    /// How long keys are kept from now on, counted from their first use.
    pub fn set_key_retention(&self, retention: Duration) -> anyhow::Result<()> {
        self.change(&Change { key_retention_ms: Some(milliseconds(retention)), ..Change::default() })
            .map(drop)
    }

    /// Any change; the whole state after it.
    pub fn change(&self, change: &Change) -> anyhow::Result<Value> {
        self.post("/_control", &serde_json::to_value(change)?)
    }

    /// Rules with their ids and how often they fired, modes, retention, held requests.
    pub fn state(&self) -> anyhow::Result<Value> {
        self.get("/_control")
    }

    /// Moves the clock by which keys are forgotten.
    pub fn advance_clock(&self, by: Duration) -> anyhow::Result<()> {
        let body = json!({ "advance_ms": milliseconds(by) });
        self.post("/_control/clock", &body).map(drop)
    }

    /// Waits until `count` requests to the path have acted since the provider started, or were
    /// kept waiting by a rule.
    pub fn wait_acted(&self, path: &str, count: u64) -> anyhow::Result<()> {
        self.wait("reached", path, count)
    }

    /// Waits until `count` requests to the path are in the log, whatever came of them.
    pub fn wait_requests(&self, path: &str, count: u64) -> anyhow::Result<()> {
        self.wait("requests", path, count)
    }

    /// Waits until `count` requests are held at the same time, whatever their paths.
    pub fn wait_held(&self, count: u64) -> anyhow::Result<()> {
        self.wait("held", "*", count)
    }

    /// Lets go of everything held at this moment; how many that was.
    pub fn release(&self) -> anyhow::Result<u64> {
        let answer = self.post("/_control/release", &json!({}))?;
        answer["released"].as_u64().context("no count released")
    }

    /// The log as the provider itself tells it.
    pub fn lines(&self) -> anyhow::Result<Vec<Line>> {
        Ok(serde_json::from_value(self.get("/_log")?)?)
    }

    /// How many effects, counted by the provider.
    pub fn count_effects(&self, path: &str) -> anyhow::Result<u64> {
        let answer = self.get(&format!("/_count?event=effect&path={path}"))?;
        answer["count"].as_u64().context("no count")
    }

    fn wait(&self, what: &str, path: &str, count: u64) -> anyhow::Result<()> {
        let timeout = PATIENCE.as_millis();
        let at = format!("/_control/waiting?what={what}&path={path}&count={count}&timeout_ms={timeout}");
        let mut response = self.agent.get(format!("{}{at}", self.base)).call()?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string()?;
        ensure!(status == 200, "waited for {count} on {path} ({what}), got {status}: {text}");
        Ok(())
    }

    fn get(&self, at: &str) -> anyhow::Result<Value> {
        let response = self.agent.get(format!("{}{at}", self.base)).call()?;
        read(at, response)
    }

    fn post(&self, at: &str, body: &Value) -> anyhow::Result<Value> {
        let url = format!("{}{at}", self.base);
        let response = self.agent.post(url).send_json(body)?;
        read(at, response)
    }
}

fn read(at: &str, mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Value> {
    let status = response.status().as_u16();
    let text = response.body_mut().with_config().limit(1 << 30).read_to_string()?;
    ensure!(status == 200, "{at}: {status}: {text}");
    Ok(serde_json::from_str(&text)?)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A provider's process. Killed when dropped; it also ends by itself should whoever holds this be
/// killed, because its standard input closes then.
pub struct Process {
    child: Child,
    client: Client,
    log: PathBuf,
}

impl Process {
    /// Starts `binary provider --listen 127.0.0.1:0 --log LOG` with further options, and returns
    /// when it is listening.
    pub fn start(binary: &Path, log: &Path, options: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(binary)
            .args(["provider", "--until-stdin-closes", "--log"])
            .arg(log)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        match ready_line(&mut child) {
            Ok(base) => Ok(Self { client: Client::new(&base), child, log: log.to_owned() }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its controls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where it writes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The file's lines: the verdict, also when the process is gone. A torn last line is left out.
    pub fn log(&self) -> anyhow::Result<Vec<Line>> {
        read_log(&self.log)
    }

    /// What was done at a path, from the file. `*` at the end of a path means everything below.
    pub fn effects(&self, path: &str) -> anyhow::Result<Vec<Line>> {
        self.events("effect", path)
    }

    /// What was received at a path, from the file, replays and refusals included.
    pub fn requests(&self, path: &str) -> anyhow::Result<Vec<Line>> {
        self.events("request", path)
    }

    /// Which faults fired at a path, from the file.
    pub fn faults(&self, path: &str) -> anyhow::Result<Vec<Line>> {
        self.events("fault", path)
    }

    fn events(&self, event: &str, path: &str) -> anyhow::Result<Vec<Line>> {
        let mut lines = self.log()?;
        lines.retain(|line| line.event == event && path_matches(path, &line.path));
        Ok(lines)
    }

    /// Kills it now.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All whole lines of a provider's log.
pub fn read_log(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the provider's log {}", path.display()))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn ready_line(child: &mut Child) -> anyhow::Result<String> {
    let output = child.stdout.take().context("no standard output")?;
    let (found, ready) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let _ = output.read_line(&mut line);
        let _ = found.send(line);
        // Reading on keeps the pipe open for as long as the provider lives.
        let _ = std::io::copy(&mut output, &mut std::io::sink());
    });
    let line = ready
        .recv_timeout(PATIENCE)
        .context("the provider said nothing; its own words are on the standard error")?;
    match line.trim_end().strip_prefix("listening on ") {
        Some(base) => Ok(base.to_owned()),
        None => bail!("the provider did not start; its own words are on the standard error"),
    }
}
