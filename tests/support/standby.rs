//! A primary server and its standby, by PostgreSQL's own replication over the primary's socket.
//! The primary can be killed and the standby promoted; the way that hosts take then leads there.

use std::time::{Duration, Instant};

use super::postgres::{Cluster, as_server};
use super::proxy::Proxy;

/// How long a standby may take to follow, and to become a primary.
const PATIENCE: Duration = Duration::from_secs(60);

/// A primary, its standby, and the way to whichever takes writes.
pub struct Pair {
    /// Takes writes.
    pub primary: Cluster,
    /// Follows.
    pub standby: Cluster,
    /// The way that hosts take.
    pub way: Proxy,
    settings: &'static [&'static str],
}

/// Every commit waits until the standby has flushed it.
pub const SYNCHRONOUS: &[&str] = &["synchronous_standby_names=*"];
/// No commit waits for the standby.
pub const ASYNCHRONOUS: &[&str] = &[];

impl Pair {
    /// Both running, the standby following; `None`, and said so, where there is no PostgreSQL.
    pub fn start(settings: &'static [&'static str]) -> Option<Pair> {
        let primary = Cluster::new(&[])?;
        let standby = follow(&primary)?;
        let way = Proxy::to(primary.socket());
        let pair = Pair { primary, standby, way, settings };
        pair.keep_in_step();
        Some(pair)
    }

    /// The primary's commits wait for the standby as the settings say, from now on.
    fn keep_in_step(&self) {
        for setting in self.settings {
            let (name, value) = setting.split_once('=').expect("name=value");
            self.primary.sql("postgres", &format!("alter system set {name} = '{value}'"));
        }
        self.primary.sql("postgres", "select pg_reload_conf()");
        let follows = "select count(*) from pg_stat_replication where state = 'streaming'";
        wait("the standby does not follow", || self.primary.sql("postgres", follows) == "1");
    }

    /// How a host reaches a database of whichever takes writes.
    pub fn url(&self, database: &str) -> String {
        self.way.url(database)
    }

    /// The standby hears nothing more: what is committed from now on, it lacks.
    pub fn part(&self) {
        self.standby.sql("postgres", "alter system set primary_conninfo = ''");
        self.standby.sql("postgres", "select pg_reload_conf()");
        let follows = "select count(*) from pg_stat_replication";
        wait("the standby still follows", || self.primary.sql("postgres", follows) == "0");
    }

    /// Waits until the standby has everything.
    pub fn catch_up(&self) {
        let behind = "select count(*) from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()";
        wait("the standby is behind", || self.primary.sql("postgres", behind) != "0");
    }

    /// Kills the primary, promotes the standby, and leads hosts there.
    pub fn fail_over(&self) {
        self.primary.kill();
        self.way.cut();
        let promoted = self.standby.sql("postgres", "select pg_promote()");
        assert_eq!(promoted, "t", "not promoted: {}", self.standby.log());
        // It would wait for a standby of its own, which is not there yet.
        self.standby.sql("postgres", "alter system reset synchronous_standby_names");
        self.standby.sql("postgres", "select pg_reload_conf()");
        self.way.point_at(self.standby.socket());
    }

    /// After a failover: the new primary gets a new standby, and both are a pair again.
    pub fn pair_again(self) -> Option<Pair> {
        let Pair { primary: gone, standby: primary, way, settings } = self;
        drop(gone);
        let standby = follow(&primary)?;
        let pair = Pair { primary, standby, way, settings };
        pair.keep_in_step();
        Some(pair)
    }
}

/// A new server that follows this one.
fn follow(primary: &Cluster) -> Option<Cluster> {
    let standby = Cluster::empty(&["hot_standby=on"])?;
    let copied = as_server(&primary.program("pg_basebackup"))
        .args([
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-sync",
            "--write-recovery-conf",
            "--username=postgres",
        ])
        .arg("--host")
        .arg(primary.socket().parent().expect("a folder"))
        .arg("--pgdata")
        .arg(standby.data())
        .output()
        .expect("pg_basebackup");
    assert!(copied.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
    standby.start();
    Some(standby)
}

fn wait(otherwise: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "{otherwise}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
