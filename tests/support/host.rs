//! A host under test: `countersign serve` with its own data directory on a port of its own. It
//! can be killed at any time, or armed to stop at a named point first, and started again over
//! what it left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::http::Request;
use super::process::{signal, stand_still};
use super::told::Told;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_countersign");

/// The value of the secret `provider_key`: so that it can be looked for everywhere.
pub const SECRET: &str = "sk_canary_7Qm2xW9pT4vB8nR6";

/// How long a start, a halt or an end may take. Far more than it needs on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host, running or not.
pub struct Host {
    folder: PathBuf,
    /// Where its ledger is, if not in its folder.
    store: Option<String>,
    running: Mutex<Option<Running>>,
    said: Arc<Said>,
    temporary: Option<tempfile::TempDir>,
}

struct Running {
    child: Child,
    address: String,
}

/// What the host wrote to its standard error, in all of its lives.
#[derive(Default)]
struct Said {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Said {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// A running host in a new folder.
    pub fn start() -> Host {
        let host = Host::asleep("");
        host.wake();
        host
    }

    /// A host in a new folder that was not started yet. `toml`: more of its configuration.
    pub fn asleep(toml: &str) -> Host {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let folder = temporary.path().join("data");
        let mut host = Host::at(&folder, toml);
        host.temporary = Some(temporary);
        host
    }

    /// A host in a new folder, not started yet, whose ledger is there: `postgres://…`. `None`: in
    /// its folder.
    pub fn asleep_over(store: Option<String>, toml: &str) -> Host {
        let mut host = Host::asleep("");
        host.store = store;
        host.configure(toml);
        host
    }

    /// One more host over the same ledger, not started yet. The tokens are the first one's.
    pub fn beside(&self, toml: &str) -> Host {
        let host = Host::asleep_over(self.store.clone(), toml);
        host.borrow_tokens(self);
        host
    }

    /// Takes the tokens of another host of the same ledger, which was the first there.
    pub fn borrow_tokens(&self, first: &Host) {
        let tokens = self.file("tokens");
        std::fs::create_dir_all(&tokens).expect("a folder for its tokens");
        for role in std::fs::read_dir(first.file("tokens")).expect("the first one's tokens").flatten() {
            std::fs::copy(role.path(), tokens.join(role.file_name())).expect("a token");
        }
    }

    /// Where its ledger is, if not in its folder.
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// A host whose data directory is this folder.
    pub fn at(folder: &Path, toml: &str) -> Host {
        std::fs::create_dir_all(folder).expect("the host's folder");
        share_compiled_components(folder);
        let host = Host {
            folder: folder.into(),
            store: None,
            running: Mutex::new(None),
            said: Arc::default(),
            temporary: None,
        };
        std::fs::write(host.file("provider_key"), SECRET).expect("the secret");
        private(&host.file("provider_key"));
        host.configure(toml);
        host
    }

    /// Replaces the configuration: these top-level lines, and the one secret. Quotas are out of
    /// the way unless they are what is tested.
    pub fn configure(&self, toml: &str) {
        let secrets = "[secrets]\nprovider_key = { file = \"provider_key\" }";
        let store = self.store.as_ref().map(|url| format!("store = \"{url}\"\n")).unwrap_or_default();
        let most = "{ tenant = 1000000, tool = 1000000, ";
        let quota = match toml.contains("[quota") {
            true => String::new(),
            false => format!(
                "[quota]\nproposals_per_minute = {most}caller = 1000000 }}\npending = {most}caller = 1000000, actor = 1000000 }}\n"
            ),
        };
        let text = format!("listen = \"127.0.0.1:0\"\n{store}{toml}\n\n{quota}\n{secrets}\n");
        std::fs::write(self.file("countersign.toml"), text).expect("the configuration");
    }

    /// The data directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file of the data directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `serve` on this folder, ready to be given more and started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        // Nothing that the surroundings say may decide a test.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COUNTERSIGN_"))
        {
            command.env_remove(name);
        }
        // But for the one bug that is there to be noticed.
        #[cfg(feature = "planted-bugs")]
        if let Some(bug) = std::env::var_os(countersign_domain::planted::VARIABLE) {
            command.env(countersign_domain::planted::VARIABLE, bug);
        }
        command.env("RUST_BACKTRACE", "1").arg("serve").arg("--data-dir").arg(&self.folder);
        command
    }

    /// Starts it; returns when it listens.
    pub fn wake(&self) {
        self.wake_with(&mut self.command());
    }

    /// Starts it so that it stops at a point: `after-answer`, or `after-answer:3` for one effect.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "points to halt at are in debug builds only")
    )]
    pub fn wake_armed(&self, at: &str) {
        self.wake_with(self.command().env("COUNTERSIGN_HALT_AT", at));
    }

    /// Starts it by a command that was given more.
    pub fn wake_with(&self, command: &mut Command) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the host's process");
        let output = BufReader::new(child.stdout.take().expect("its standard output"));
        let errors = BufReader::new(child.stderr.take().expect("its standard error"));
        self.listen_to(errors);
        let (found, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // To its end, so that the host never writes into a closed pipe.
            for line in output.lines().map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on http://") {
                    let _ = found.send(url.to_owned());
                }
            }
        });
        match ready.recv_timeout(PATIENCE) {
            Ok(address) => *self.running() = Some(Running { child, address }),
            Err(_) => {
                let _ = child.kill();
                let status = child.wait();
                panic!("the host did not start ({status:?}); it said:\n{}", self.said());
            }
        }
    }

    fn listen_to(&self, errors: impl BufRead + Send + 'static) {
        let said = self.said.clone();
        let mut log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.file("host.log"))
            .expect("a file for the host's log");
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let _ = writeln!(log, "{line}");
                said.lines().push(line);
                said.more.notify_all();
            }
        });
    }

    /// Runs it to its end instead, for starts that are to be refused: how it ended, and what it
    /// said on standard error.
    pub fn refuses_to_start(&self, command: &mut Command) -> String {
        let ended = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = ended.expect("the host's process");
        let pid = child.id();
        let (over, end) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            // It started after all: it would run for ever.
            if end.recv_timeout(PATIENCE).is_err() {
                signal(pid, "KILL");
            }
        });
        drop(child.stdin.take());
        let output = child.wait_with_output().expect("its end");
        let _ = over.send(());
        watchdog.join().expect("the watchdog");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "it was to be refused; it said:\n{said}");
        said
    }

    /// Everything it said on standard error.
    pub fn said(&self) -> String {
        self.said.lines().join("\n")
    }

    /// Waits until a line of its standard error contains this.
    pub fn wait_said(&self, text: &str) {
        let lines = self.said.lines();
        let heard = |lines: &mut Vec<String>| !lines.iter().any(|line| line.contains(text));
        let (lines, late) = self.said.more.wait_timeout_while(lines, PATIENCE, heard).expect("its lines");
        assert!(!late.timed_out(), "it never said {text:?}, but:\n{}", lines.join("\n"));
    }

    /// Waits until an attempt stops at the point that was armed.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "points to halt at are in debug builds only")
    )]
    pub fn wait_halted(&self) {
        self.wait_said("halted at ");
        // The next life may be armed again.
        self.said.lines().retain(|line| !line.starts_with("halted at "));
    }

    /// SIGKILL, as a power cut would.
    pub fn kill(&self) {
        if let Some(mut running) = self.running().take() {
            running.child.kill().expect("SIGKILL");
            running.child.wait().expect("its end");
        }
    }

    /// SIGKILL, and a new life over what is left.
    pub fn kill_and_wake(&self) {
        self.kill();
        self.wake();
    }

    /// Sends a signal: `TERM`.
    pub fn signal(&self, name: &str) {
        let pid = self.running().as_ref().expect("a running host").child.id();
        signal(pid, name);
    }

    /// SIGSTOP, and waits until every thread stands still: until one of them has taken the signal,
    /// which on a busy machine may be a while, the others run on.
    pub fn stand_still(&self) {
        stand_still(self.pid());
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    /// Waits for its end.
    pub fn wait_ended(&self) -> ExitStatus {
        let mut running = self.running().take().expect("a running host");
        let (pid, (over, end)) = (running.child.id(), std::sync::mpsc::channel());
        std::thread::spawn(move || over.send(running.child.wait()));
        match end.recv_timeout(PATIENCE) {
            Ok(status) => status.expect("its end"),
            Err(_) => {
                signal(pid, "KILL");
                panic!("the host did not end; it said:\n{}", self.said());
            }
        }
    }

    /// SIGTERM, and the wait for its end.
    pub fn stop(&self) -> ExitStatus {
        self.signal("TERM");
        self.wait_ended()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.running().as_ref().expect("a running host").address.clone()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.running().as_ref().expect("a running host").child.id()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever holds a token.
    pub fn with_token(&self, token: &str) -> Caller<'_> {
        Caller { host: self, token: token.to_owned() }
    }

    /// The token of a role, as the host left it for its owner.
    pub fn token(&self, role: &str) -> String {
        let path = self.file("tokens").join(role);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    fn role(&self, role: &str) -> Caller<'_> {
        self.with_token(&self.token(role))
    }

    /// Proposes and executes.
    pub fn agent(&self) -> Caller<'_> {
        self.role("agent")
    }

    /// Approves and declines.
    pub fn approver(&self) -> Caller<'_> {
        self.role("approver")
    }

    /// Installs, grants, resolves.
    pub fn operator(&self) -> Caller<'_> {
        self.role("operator")
    }

    /// Makes tokens.
    pub fn admin(&self) -> Caller<'_> {
        self.role("admin")
    }

    /// A new token for somebody, made by the admin.
    pub fn new_token(&self, name: &str, roles: &[&str], tenant: &str) -> String {
        let body = serde_json::json!({ "name": name, "roles": roles, "tenant": tenant });
        self.admin().post("/v1/tokens", &body).expect(201).text("/token")
    }

    /// Runs a verb of the command line against this host.
    pub fn cli(&self, arguments: &[&str]) -> Cli {
        self.cli_with(arguments, &[], "")
    }

    /// The same with environment and standard input.
    pub fn cli_with(&self, arguments: &[&str], environment: &[(&str, &str)], input: &str) -> Cli {
        let mut command = Command::new(BINARY);
        command.args(arguments).env_clear().env("COUNTERSIGN_DATA_DIR", &self.folder);
        command.envs(environment.iter().copied());
        Cli::run(&mut command, input)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the host said:\n{}", self.said());
        }
        drop(self.temporary.take());
    }
}

/// What a verb of the command line did.
#[derive(Debug)]
pub struct Cli {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Cli {
    /// Runs a command to its end.
    pub fn run(command: &mut Command, input: &str) -> Cli {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command's process");
        // Whoever does not read its input closes it.
        let _ = child.stdin.take().expect("its standard input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("its end");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Cli { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Somebody with a token.
#[derive(Clone)]
pub struct Caller<'a> {
    host: &'a Host,
    token: String,
}

impl Caller<'_> {
    /// A request of theirs, to be given more.
    pub fn request(&self, method: &str, target: &str) -> Request {
        Request::new(method, target).header("Authorization", &format!("Bearer {}", self.token))
    }

    /// Sends a request that ought to be answered.
    pub fn send(&self, request: Request) -> Told {
        self.try_send(request).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Sends a request to a host that may be killed meanwhile.
    pub fn try_send(&self, request: Request) -> std::io::Result<Told> {
        let running = self.host.running().as_ref().map(|running| running.address.clone());
        // Killed already, and not started again yet.
        let address = running.ok_or(std::io::ErrorKind::NotConnected)?;
        request.send(&address).map(Told::of)
    }

    /// `GET`
    pub fn get(&self, target: &str) -> Told {
        self.send(self.request("GET", target))
    }

    /// `POST` with JSON.
    pub fn post(&self, target: &str, body: &Value) -> Told {
        self.send(self.request("POST", target).body("application/json", body.to_string()))
    }

    /// `POST` with a body as it is, declared to be JSON.
    pub fn post_text(&self, target: &str, body: &str) -> Told {
        self.send(self.request("POST", target).body("application/json", body))
    }

    /// `POST` without a body.
    pub fn post_nothing(&self, target: &str) -> Told {
        self.send(self.request("POST", target))
    }
}

/// Compiling the three guests takes a debug build longer than most tests. Hosts under test share
/// what one of them compiled, as the hosts of one user would after a restart.
fn share_compiled_components(folder: &Path) {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled-components");
    std::fs::create_dir_all(&shared).expect("the folder of compiled components");
    let link = folder.join("components");
    if !link.exists() {
        std::os::unix::fs::symlink(&shared, link).expect("a link to the compiled components");
    }
    let key = folder.join("components.key");
    std::fs::write(&key, [7; 32]).expect("the key of the compiled components");
    private(&key);
}

/// Readable by its owner only.
fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("permissions");
}

/// Equal texts, counted.
pub fn tally(texts: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    texts.into_iter().for_each(|text| *counts.entry(text).or_default() += 1);
    counts
}
