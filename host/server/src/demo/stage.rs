//! The stage: a provider in a process of its own, a host in another, and
//! whoever calls the host. Nothing here reaches into either: what callers are
//! told comes over HTTP, what happened comes from the provider's log.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::provider::client::Process as Provider;

/// How long a host may take to say that it listens. Far more than it needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The secret that the provider is shown and nobody else.
const SECRET: &str = "sk_demo_51H8xkPq2";

/// A host of its own: the very binary that runs the demo.
pub struct Host {
    binary: PathBuf,
    folder: PathBuf,
    planted_bug: Option<String>,
    /// Behind a lock, so that it can be killed while callers wait for it.
    running: Mutex<Option<Running>>,
    agent: ureq::Agent,
}

struct Running {
    child: Child,
    url: String,
}

/// What a caller was told.
#[derive(Debug, Clone)]
pub struct Told {
    /// HTTP status.
    pub status: u16,
    /// JSON.
    pub body: Value,
}

impl Told {
    /// In a few words, as the demo prints it.
    pub fn brief(&self) -> String {
        let replayed = if self.body["replayed"] == Value::Bool(true) { ", replayed" } else { "" };
        match (self.body["code"].as_str(), self.body["status"].as_str()) {
            (Some(code), _) => format!("{} {code}", self.status),
            (None, Some(status)) => match self.body["error"]["code"].as_str() {
                Some(code) => format!("{} {status} ({code}){replayed}", self.status),
                None => format!("{} {status}{replayed}", self.status),
            },
            (None, None) => self.status.to_string(),
        }
    }

    /// A text member.
    pub fn text(&self, pointer: &str) -> String {
        match self.body.pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    /// The action's status, or the problem's code.
    pub fn outcome(&self) -> String {
        self.body["code"].as_str().or(self.body["status"].as_str()).unwrap_or_default().to_owned()
    }
}

impl Host {
    /// A host that keeps everything in `folder`; not started yet.
    pub fn new(binary: &Path, folder: &Path, planted_bug: Option<String>) -> anyhow::Result<Host> {
        std::fs::create_dir_all(folder)?;
        let secret = folder.join("provider_key");
        write_private(&secret, SECRET)?;
        let quoted = serde_json::to_string(&secret)?;
        std::fs::write(
            folder.join("countersign.toml"),
            format!("listen = \"127.0.0.1:0\"\n\n[secrets]\nprovider_key = {{ file = {quoted} }}\n"),
        )?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE * 2))
            .build()
            .new_agent();
        Ok(Host {
            binary: binary.into(),
            folder: folder.into(),
            planted_bug,
            running: Mutex::new(None),
            agent,
        })
    }

    /// Starts it; returns when it listens.
    pub fn start(&self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.binary);
        command
            .args(["serve", "--config"])
            .arg(self.folder.join("countersign.toml"))
            .arg("--data-dir")
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(
                std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join("host.log"))?,
            );
        if let Some(bug) = &self.planted_bug {
            command.args(["--planted-bug", bug]);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.binary.display()))?;
        match listening(&mut child) {
            Ok(url) => {
                *self.running() = Some(Running { child, url });
                Ok(())
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                let log = std::fs::read_to_string(self.folder.join("host.log")).unwrap_or_default();
                Err(error.context(format!("the host did not start; it said:\n{log}")))
            }
        }
    }

    /// SIGKILL, as a power cut would.
    pub fn kill(&self) -> anyhow::Result<()> {
        if let Some(mut running) = self.running().take() {
            running.child.kill()?;
            running.child.wait()?;
        }
        Ok(())
    }

    /// Installs a tool.
    pub fn install(&self, component: &[u8], grant: &str) -> anyhow::Result<()> {
        const BORDER: &str = "countersign-demo-9f2c7d51";
        let mut body = Vec::with_capacity(component.len() + grant.len() + 512);
        let mut part = |name: &str, kind: &str, bytes: &[u8]| {
            body.extend_from_slice(
                format!(
                    "--{BORDER}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
                     Content-Type: {kind}\r\n\r\n"
                )
                .as_bytes(),
            );
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        };
        part("component", "application/wasm", component);
        part("grant", "application/toml", grant.as_bytes());
        body.extend_from_slice(format!("--{BORDER}--\r\n").as_bytes());
        let response = self
            .agent
            .post(format!("{}/v1/tools", self.url()?))
            .header("Authorization", self.token("operator")?)
            .content_type(format!("multipart/form-data; boundary={BORDER}"))
            .send(&body[..])?;
        let told = read(response)?;
        if told.status >= 300 {
            bail!("a tool could not be installed: {} {}", told.status, told.body);
        }
        Ok(())
    }

    /// Proposes, as the agent.
    pub fn propose(&self, tool: &str, key: &str, arguments: &Value) -> anyhow::Result<Told> {
        let body = json!({"tool": tool, "arguments": arguments});
        let response = self
            .agent
            .post(format!("{}/v1/actions", self.url()?))
            .header("Authorization", self.token("agent")?)
            .header("Idempotency-Key", key)
            .send_json(body)?;
        read(response)
    }

    /// Approves what has this fingerprint, as the approver.
    pub fn approve(&self, id: &str, fingerprint: Option<&str>) -> anyhow::Result<Told> {
        let mut request = self
            .agent
            .post(format!("{}/v1/actions/{id}/approve", self.url()?))
            .header("Authorization", self.token("approver")?);
        if let Some(fingerprint) = fingerprint {
            request = request.header("If-Match", format!("\"{fingerprint}\""));
        }
        read(request.send_empty()?)
    }

    /// Executes, as the agent, and waits.
    pub fn execute(&self, id: &str) -> anyhow::Result<Told> {
        let response = self
            .agent
            .post(format!("{}/v1/actions/{id}/execute?wait=20s", self.url()?))
            .header("Authorization", self.token("agent")?)
            .send_empty()?;
        read(response)
    }

    /// Replaces an action by one with other arguments, as the agent.
    pub fn supersede(&self, id: &str, arguments: &Value) -> anyhow::Result<Told> {
        let response = self
            .agent
            .post(format!("{}/v1/actions/{id}/supersede", self.url()?))
            .header("Authorization", self.token("agent")?)
            .send_json(json!({"arguments": arguments}))?;
        read(response)
    }

    /// Calls from `n` threads that start together.
    pub fn at_once<T: Send>(&self, n: usize, call: impl Fn(&Host) -> T + Sync) -> Vec<T> {
        let gate = std::sync::Barrier::new(n);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..n)
                .map(|_| {
                    scope.spawn(|| {
                        gate.wait();
                        call(self)
                    })
                })
                .collect();
            callers.into_iter().filter_map(|caller| caller.join().ok()).collect()
        })
    }

    fn url(&self) -> anyhow::Result<String> {
        Ok(self.running().as_ref().context("the host is not running")?.url.clone())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self, role: &str) -> anyhow::Result<String> {
        let path = self.folder.join("tokens").join(role);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("no token at {}", path.display()))?;
        Ok(format!("Bearer {}", text.trim()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Provider and host, with the demo's tools installed.
pub struct Stage {
    /// The world outside.
    pub provider: Provider,
    /// What is shown.
    pub host: Host,
    /// Where to the tools are pointed.
    pub base: String,
}

const REFUND: &[u8] = include_bytes!("../../../../guest-examples/prebuilt/refund.wasm");
const TRANSFER: &[u8] = include_bytes!("../../../../guest-examples/prebuilt/transfer.wasm");
const PROBE: &[u8] = include_bytes!("../../../../guest-examples/prebuilt/probe.wasm");

impl Stage {
    /// Sets everything up in an empty folder.
    pub fn set(binary: &Path, folder: &Path, planted_bug: Option<String>) -> anyhow::Result<Stage> {
        let provider = Provider::start(binary, &folder.join("provider.log"), &[])?;
        let base = provider.client().url().to_owned();
        let port = base.rsplit(':').next().and_then(|port| port.parse().ok()).context("no port")?;
        let host = Host::new(binary, &folder.join("host"), planted_bug)?;
        host.start()?;
        host.install(REFUND, &super::grants::refund(port))?;
        host.install(TRANSFER, &super::grants::transfer(port))?;
        host.install(PROBE, &super::grants::probe(port))?;
        Ok(Stage { provider, host, base })
    }

    /// How many requests of an action the provider's log has at a path: what was
    /// sent, whatever became of it.
    pub fn requests(&self, path: &str, action: &str) -> anyhow::Result<usize> {
        Ok(self.provider.requests(path)?.iter().filter(|line| belongs(line.key.as_deref(), action)).count())
    }

    /// How many effects of an action the provider's log has at a path: what it
    /// did.
    pub fn effects(&self, path: &str, action: &str) -> anyhow::Result<usize> {
        Ok(self.provider.effects(path)?.iter().filter(|line| belongs(line.key.as_deref(), action)).count())
    }
}

/// Provider keys carry the action's id.
fn belongs(key: Option<&str>, action: &str) -> bool {
    key.is_some_and(|key| key.contains(action))
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Told> {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string()?;
    let body = serde_json::from_str(&text).with_context(|| format!("{status}, and no JSON: {text}"))?;
    Ok(Told { status, body })
}

fn listening(child: &mut Child) -> anyhow::Result<String> {
    let output = child.stdout.take().context("no standard output")?;
    let (found, ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|n| n > 0) {
            if let Some(url) = line.trim().strip_prefix("listening on ") {
                let _ = found.send(url.to_owned());
            }
            line.clear();
        }
    });
    ready.recv_timeout(PATIENCE).context("it did not say that it listens")
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}
