//! A PostgreSQL server of the tests' own: in a folder of its own, on a Unix
//! socket, gone with the process that started it, however that ends.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use crate::postgres::{PostgresOptions, PostgresStore};

/// Without PostgreSQL its tests are left out, loudly; where this is 1, they fail.
const REQUIRE_ALL: &str = "COUNTERSIGN_TESTS_REQUIRE_ALL";

/// Owns the server: it ends when this process does, because a pipe closes.
const GUARD: &str = r#"dir=$1; shift; "$@" >"$dir/log" 2>&1 & server=$!
cat >/dev/null; kill -QUIT $server; wait $server; rm -rf "$dir""#;

#[derive(Debug)]
pub(crate) struct Cluster {
    folder: PathBuf,
    bin: PathBuf,
    guard: Child,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "how the tests are run")]
fn required() -> bool {
    std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1")
}

/// Where the server's programs are.
fn programs() -> Option<PathBuf> {
    let has_server = |folder: &Path| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Ok(said) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(String::from_utf8_lossy(&said.stdout).trim().into());
    }
    for place in ["/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt"] {
        let mut versions: Vec<PathBuf> = std::fs::read_dir(place)
            .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
            .unwrap_or_default();
        versions.sort_by_key(|folder| {
            let digits =
                folder.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
            digits.and_then(|name| name.parse::<u32>().ok()).unwrap_or(0)
        });
        folders.extend(versions.into_iter().rev());
    }
    folders.push("/usr/bin".into());
    folders.push("/usr/local/bin".into());
    folders.into_iter().find(|folder| has_server(folder))
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

impl Cluster {
    /// Starts a server with these settings; `None`, and said so, where there is
    /// no PostgreSQL.
    pub(crate) fn start(settings: &[&str]) -> Option<Cluster> {
        let Some(bin) = programs() else {
            let what = "no PostgreSQL server programs (initdb, postgres) were found: its tests are LEFT OUT; install \
                        the Debian package postgresql";
            assert!(!required(), "{what} ({REQUIRE_ALL}=1)");
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("cs-pg-").tempdir().unwrap().keep();
        let data = folder.join("data");
        // The server's own user makes its files in here.
        let _ = Command::new("chown").arg("postgres").arg(&folder).status();
        let made = as_server(&bin.join("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
            .arg("--pgdata")
            .arg(&data)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        Some(Cluster::run(bin, folder, settings))
    }

    /// A standby of it, that was copied just now and follows.
    pub(crate) fn standby(&self) -> Cluster {
        let folder = tempfile::Builder::new().prefix("cs-pg-").tempdir().unwrap().keep();
        let _ = Command::new("chown").arg("postgres").arg(&folder).status();
        let copied = as_server(&self.bin.join("pg_basebackup"))
            .args(["--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--username=postgres"])
            .arg("--host")
            .arg(&self.folder)
            .arg("--pgdata")
            .arg(folder.join("data"))
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        Cluster::run(self.bin.clone(), folder, &[])
    }

    fn run(bin: PathBuf, folder: PathBuf, settings: &[&str]) -> Cluster {
        let data = folder.join("data");
        let mut server = as_server(&bin.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(&folder);
        let ours = [
            "listen_addresses=",
            "max_connections=400",
            "shared_buffers=256MB",
            "max_wal_size=4GB",
            "checkpoint_timeout=1h",
            "autovacuum=off",
            "huge_pages=off",
        ];
        for setting in ours.iter().chain(settings) {
            server.arg("-c").arg(setting);
        }
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&folder)
            .arg(server.get_program())
            .args(server.get_args())
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let cluster = Cluster { folder, bin, guard };
        cluster.wait_until_ready();
        cluster
    }

    fn wait_until_ready(&self) {
        let began = Instant::now();
        loop {
            let ready =
                Command::new(self.bin.join("pg_isready")).arg("-q").arg("-h").arg(&self.folder).status();
            if ready.is_ok_and(|status| status.success()) {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the server did not start: {}",
                std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where its socket is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Processor time that all its processes took so far, in milliseconds.
    pub(crate) fn processor_time(&self) -> f64 {
        let folder = self.folder.display().to_string();
        let mut ticks = 0u64;
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let Ok(folder_of) = std::fs::read_link(entry.path().join("cwd")) else { continue };
            if folder_of.starts_with(&folder)
                && let Some((_, fields)) = stat.rsplit_once(") ")
            {
                // utime and stime, each with what ended children took.
                ticks +=
                    fields.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
            }
        }
        // 100 ticks a second, on every Linux.
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let milliseconds = ticks as f64 * 10.0;
        milliseconds
    }

    /// How a database of it is reached.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("host='{}' user=postgres dbname={database} connect_timeout=300", self.folder.display())
    }

    /// A connection beside the store's.
    pub(crate) async fn client(&self, database: &str) -> Client {
        let (client, driver) = tokio_postgres::connect(&self.url(database), NoTls).await.unwrap();
        tokio::spawn(driver);
        client
    }

    /// An empty database.
    pub(crate) async fn database(&self) -> String {
        let name = fresh();
        let maintenance = self.client("postgres").await;
        maintenance.batch_execute(&format!("create database {name}")).await.unwrap();
        name
    }
}

fn fresh() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The database that tests' own are copied from: migrated, with a clock that
/// stands still.
const TEMPLATE: &str = "ledger";

/// A clock in a table, read by the one function through which every statement
/// asks for the time.
const CLOCK: &str = "create table test_clock (now bigint not null);
    insert into test_clock values (1790000000000000);
    create or replace function countersign_now() returns bigint language sql volatile as
    $$ select now from test_clock $$";

/// The server that most tests of this process share.
pub(crate) fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    SHARED
        .get_or_init(|| {
            let cluster = Cluster::start(&[])?;
            // In a runtime of its own: the tests each have one, too, and a
            // connection lives no longer than its own.
            std::thread::scope(|scope| {
                scope.spawn(|| make_template(&cluster)).join().unwrap();
            });
            Some(cluster)
        })
        .as_ref()
}

fn make_template(cluster: &Cluster) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let maintenance = cluster.client("postgres").await;
        maintenance.batch_execute(&format!("create database {TEMPLATE}")).await.unwrap();
        PostgresStore::open(PostgresOptions::new(cluster.url(TEMPLATE))).await.unwrap().close();
        cluster.client(TEMPLATE).await.batch_execute(CLOCK).await.unwrap();
        // It is copied only while nobody is connected to it.
        let others = format!("select count(*) from pg_stat_activity where datname = '{TEMPLATE}'");
        while maintenance.query_one(&others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    });
}

/// A migrated database of the shared server, whose clock stands still; its name.
pub(crate) async fn still(cluster: &Cluster) -> String {
    let name = fresh();
    let maintenance = cluster.client("postgres").await;
    maintenance.batch_execute(&format!("create database {name} template {TEMPLATE}")).await.unwrap();
    name
}
