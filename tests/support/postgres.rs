//! PostgreSQL servers of the tests' own: in folders of their own, on Unix sockets, gone with the
//! process that started them, however that ends. They flush what they commit, as a server in use
//! does. They can be killed and started again; their backends can be stopped and ended.
//!
//! Tests speak to them through `psql`, which comes with them: the driver belongs to the store's
//! room alone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::process::signal;

/// How long a start may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Owns a server: it ends when this process does, because a pipe closes; and so do its files,
/// unless it is said that they are needed again.
const GUARD: &str = r#"dir=$1; shift; "$@" >>"$dir/log" 2>&1 & server=$!
said=$(cat); kill -QUIT $server 2>/dev/null; wait $server
if [ "$said" != keep ]; then umount -l "$dir/data" 2>/dev/null; rm -rf "$dir"; fi"#;

/// What every server is started with; what a test wants comes after it.
const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=on",
    "max_connections=300",
    "shared_buffers=128MB",
    "max_wal_size=2GB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
    "huge_pages=off",
    "wal_level=replica",
    "max_wal_senders=8",
    "restart_after_crash=on",
];

/// A server.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    bin: PathBuf,
    settings: Vec<String>,
    guard: Mutex<Option<Child>>,
    /// Its data is on a disk of its own.
    is_mounted: bool,
}

/// Where the server's programs are; `None` where there is no PostgreSQL.
fn programs() -> Option<PathBuf> {
    let has_server = |folder: &Path| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    // The newest first.
    folders.sort_by_key(|folder| {
        let version = folder.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse().ok());
        std::cmp::Reverse(version.unwrap_or(0u32))
    });
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    folders.into_iter().find(|folder| has_server(folder))
}

/// A program, as a user that a server runs as: never root.
pub(super) fn as_server(program: &Path) -> Command {
    let root = Command::new("id").arg("-u").output().is_ok_and(|said| said.stdout.starts_with(b"0\n"));
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// The server that the tests of this process share; `None`, and said so, where there is no
/// PostgreSQL.
pub fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::new(&[])).as_ref()
}

impl Cluster {
    /// Makes a server with these settings and starts it; `None`, and said so, where there is no
    /// PostgreSQL.
    pub fn new(settings: &[&str]) -> Option<Cluster> {
        Cluster::empty(settings).map(Cluster::initialised)
    }

    /// The same with its data on a small disk (in memory) of its own; `None`, and said so, also
    /// where this user may not mount one.
    pub fn on_small_disk(size: &str) -> Option<Cluster> {
        let mut cluster = Cluster::empty(&[])?;
        std::fs::create_dir(cluster.data()).expect("a folder for its data");
        let options = format!("size={size},mode=0700");
        let mount = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(cluster.data()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            super::skipped("a small file system cannot be mounted here");
            return None;
        }
        cluster.is_mounted = true;
        let _ = Command::new("chown").arg("postgres").arg(cluster.data()).status();
        Some(cluster.initialised())
    }

    fn initialised(self) -> Cluster {
        let made = as_server(&self.program("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
            .arg("--pgdata")
            .arg(self.data())
            .current_dir(&self.folder)
            .output()
            .expect("initdb");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        self.start();
        self
    }

    /// A server without data, not started.
    pub(super) fn empty(settings: &[&str]) -> Option<Cluster> {
        let Some(bin) = programs() else {
            super::skipped(
                "no PostgreSQL server programs (initdb, postgres); install the package postgresql",
            );
            return None;
        };
        // A short name: a socket's path may have 107 bytes.
        let folder = tempfile::Builder::new().prefix("cs-pg-").tempdir().expect("a folder").keep();
        // The server's own user makes its files in here.
        let _ = Command::new("chown").arg("postgres").arg(&folder).status();
        let settings = settings.iter().map(ToString::to_string).collect();
        Some(Cluster { folder, bin, settings, guard: Mutex::new(None), is_mounted: false })
    }

    /// One of the server's programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Where its data is.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Starts it, and waits until it answers.
    pub fn start(&self) {
        let mut server = as_server(&self.program("postgres"));
        server.arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        for setting in SETTINGS.iter().map(ToString::to_string).chain(self.settings.iter().cloned()) {
            server.arg("-c").arg(setting);
        }
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&self.folder)
            .arg(server.get_program())
            .args(server.get_args())
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the server's process");
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
        let began = Instant::now();
        while !self.answers() {
            assert!(began.elapsed() < PATIENCE, "the server did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let mut ready = Command::new(self.program("pg_isready"));
        ready.arg("-q").arg("-h").arg(&self.folder).status().is_ok_and(|status| status.success())
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The main process.
    fn postmaster(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        text.lines().next().and_then(|line| line.trim().parse().ok())
    }

    /// All of its processes, the main one first.
    fn processes(&self) -> Vec<u32> {
        // It may have ended by itself.
        let Some(main) = self.postmaster() else { return Vec::new() };
        let children = Command::new("ps").args(["-o", "pid=", "--ppid", &main.to_string()]).output();
        let children = children.map(|said| said.stdout).unwrap_or_default();
        let children = String::from_utf8_lossy(&children);
        std::iter::once(main).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// SIGKILL to every process of it, as a power cut would. What was committed is in its files.
    pub fn kill(&self) {
        for pid in self.processes() {
            // A child may be gone already.
            let _ = Command::new("sh").arg("-c").arg(format!("kill -KILL {pid} 2>/dev/null")).status();
        }
        if let Some(mut guard) = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take() {
            if let Some(mut pipe) = guard.stdin.take() {
                let _ = std::io::Write::write_all(&mut pipe, b"keep");
            }
            let _ = guard.wait();
        }
        // Nobody removes it for a server that was killed, and another may have its number by then.
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
        let _ = std::fs::remove_file(self.socket());
    }

    /// Fills its disk, for that long. A server that could not bear it is started again.
    pub fn fill_disk(&self, time: Duration) {
        let path = self.data().join("everything");
        let mut file = std::fs::File::create(&path).expect("a file");
        while std::io::Write::write_all(&mut file, &[0; 65_536]).is_ok() {}
        while std::io::Write::write_all(&mut file, &[0; 512]).is_ok() {}
        std::thread::sleep(time);
        std::fs::remove_file(path).expect("room");
        let until = Instant::now() + Duration::from_secs(3);
        while !self.answers() {
            if Instant::now() > until {
                self.kill();
                return self.start();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops all of its processes where they are, for that long.
    pub fn pause(&self, time: Duration) {
        let processes = self.processes();
        let each = |name: &str| {
            for pid in &processes {
                let _ = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid} 2>/dev/null")).status();
            }
        };
        each("STOP");
        std::thread::sleep(time);
        each("CONT");
    }

    /// Ends every connection to a database, from the server's side.
    pub fn end_connections(&self, database: &str) {
        let end = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '{database}' and pid <> pg_backend_pid()"
        );
        self.sql("postgres", &end);
    }

    /// Runs SQL; what it gave, one row a line, columns apart by `|`.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The same on a server that may be gone.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let said = Command::new(self.program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-h"])
            .arg(&self.folder)
            .args(["-c", sql])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
    }

    /// A database as `pg_dump` writes it down.
    #[track_caller]
    pub fn dump(&self, database: &str) -> String {
        let said = Command::new(self.program("pg_dump"))
            .args(["-U", "postgres", "-d", database, "-h"])
            .arg(&self.folder)
            .output()
            .expect("pg_dump");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// An empty database; its name.
    pub fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("create database {name}"));
        name
    }

    /// How a host reaches a database of it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.folder.display().to_string().replace('/', "%2F"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A server whose processes were stopped would not hear that it should end.
            if let Some(pid) = self.postmaster()
                && Path::new(&format!("/proc/{pid}")).exists()
            {
                signal(pid, "QUIT");
            }
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(self.data()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
