//! A PostgreSQL server of the benchmark's own, that flushes what it commits, in a
//! temporary folder on a Unix socket; gone with this process, however that ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

/// Ends the server and clears its folder when the pipe to it closes.
const GUARD: &str = r#"dir=$1; shift; "$@" >"$dir/log" 2>&1 & server=$!
cat >/dev/null; kill -INT $server; wait $server; rm -rf "$dir""#;

/// As most are run, but with room for our numbers of clients. The log is for
/// reading back which statements an action is made of.
const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=on",
    "synchronous_commit=on",
    "max_connections=300",
    "shared_buffers=256MB",
    "max_wal_size=4GB",
    "checkpoint_timeout=1h",
    "huge_pages=off",
    "logging_collector=on",
    "log_destination=jsonlog",
    "log_directory=statements",
    "log_filename=all",
];

/// A running server.
pub struct Cluster {
    folder: PathBuf,
    bin: PathBuf,
    guard: Child,
}

impl Cluster {
    /// Starts one where `COUNTERSIGN_BENCH_DIR` says, or among temporary files.
    pub fn start() -> anyhow::Result<Cluster> {
        let bin = programs().context("no PostgreSQL server programs: install the package postgresql")?;
        let place = std::env::var_os("COUNTERSIGN_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let folder = tempfile::Builder::new().prefix("cs-bench-").tempdir_in(place)?.keep();
        let _ = Command::new("chown").arg("postgres").arg(&folder).status();
        let data = folder.join("data");
        let made = as_server(&bin.join("initdb"))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data)
            .current_dir(&folder)
            .output()?;
        anyhow::ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = as_server(&bin.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(&folder);
        for setting in SETTINGS {
            server.arg("-c").arg(setting);
        }
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&folder)
            .arg(server.get_program())
            .args(server.get_args())
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .spawn()?;
        let cluster = Cluster { folder, bin, guard };
        let began = Instant::now();
        while cluster.sql("postgres", "select 1").is_err() {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(60), "the server did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(cluster)
    }

    /// A new database's name.
    pub fn database(&self, name: &str) -> anyhow::Result<String> {
        self.sql("postgres", &format!("create database {name}"))?;
        Ok(name.to_owned())
    }

    /// How a host reaches it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.folder.display().to_string().replace('/', "%2F"))
    }

    /// Runs SQL; columns apart by `|`.
    pub fn sql(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        let said = Command::new(self.bin.join("psql"))
            .args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-h"])
            .arg(&self.folder)
            .args(["-c", sql])
            .output()?;
        anyhow::ensure!(said.status.success(), "{sql}: {}", String::from_utf8_lossy(&said.stderr));
        Ok(String::from_utf8_lossy(&said.stdout).trim_end().to_owned())
    }

    /// Transactions so far, reads too, and flushes of the log.
    pub fn counts(&self, database: &str) -> anyhow::Result<(f64, f64)> {
        // Backends report at most once a second.
        std::thread::sleep(Duration::from_millis(1100));
        let commits = self.sql(
            "postgres",
            &format!("select xact_commit from pg_stat_database where datname = '{database}'"),
        )?;
        let flushes = self.sql("postgres", "select wal_sync from pg_stat_wal")?;
        Ok((commits.parse()?, flushes.parse()?))
    }

    /// Processor time of all its processes so far, in seconds.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let Ok(folder) = std::fs::read_link(entry.path().join("cwd")) else { continue };
            let Some((name, fields)) = stat.rsplit_once(") ") else { continue };
            if folder.starts_with(&self.folder) && name.ends_with("(postgres") {
                // utime and stime, and what ended children took.
                ticks +=
                    fields.split(' ').skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
            }
        }
        Ok(ticks as f64 / 100.0)
    }

    /// `pgbench` with this script, prepared, for so long: transactions a second.
    pub fn pgbench(
        &self,
        database: &str,
        script: &str,
        clients: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let file = self.folder.join("script.sql");
        std::fs::write(&file, script)?;
        let said = Command::new(self.bin.join("pgbench"))
            .args(["-n", "-M", "prepared", "-U", "postgres", "-j", "2"])
            .args(["-c", &clients.to_string(), "-T", &time.as_secs().to_string(), "-f"])
            .arg(&file)
            .arg("-h")
            .arg(&self.folder)
            .arg(database)
            .output()?;
        let text = String::from_utf8_lossy(&said.stdout);
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        tps.with_context(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&said.stderr)))
    }

    /// Logs every statement of a database from now on, or none any more.
    pub fn log_statements(&self, database: &str, on: bool) -> anyhow::Result<()> {
        // Only connections that begin after it hear of it.
        let what = if on { "all" } else { "none" };
        self.sql("postgres", &format!("alter database {database} set log_statement = '{what}'")).map(drop)
    }

    /// The log so far, one entry an element.
    pub fn log(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.folder.join("data/statements/all.json"))
            .context("the server keeps no JSON log: it has to be PostgreSQL 15 or newer")?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Where the server's programs are, the newest first.
fn programs() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    folders.sort();
    folders.reverse();
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    folders.into_iter().find(|folder| folder.join("initdb").is_file() && folder.join("pgbench").is_file())
}

/// A program, as a user that a server runs as: never root.
fn as_server(program: &Path) -> Command {
    let root = Command::new("id").arg("-u").output().is_ok_and(|said| said.stdout.starts_with(b"0\n"));
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}
