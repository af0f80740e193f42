//! What can be known of a PostgreSQL store without changing anything in it, and
//! how many actions wait in it.

use std::path::PathBuf;
use std::time::Duration;

use countersign_domain::id::Digest;
use countersign_domain::time::Timestamp;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Error, Row};

use super::connect::{self, Address};
use super::{PostgresOptions, PostgresStore, fault, migrate, sql, tls};
use crate::StoreError;
use crate::health::{self, CENSUS, Census, Examination, Finding, GRANTS_IN_FORCE};

/// Connections of a host beside those that steps take turns with: the one that
/// listens for changes.
const BESIDE: i64 = 1;

/// How far the clocks may be apart without a word. Chosen: nothing is decided by
/// the host's clock, but people compare its log with the ledger.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// What the server says of itself and of whoever asks. Columns by name.
const SETTINGS_NOW: &str = "\
select current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') as standby_names,
    current_setting('max_connections')::bigint as max_connections,
    current_setting('superuser_reserved_connections')::bigint
        + coalesce(current_setting('reserved_connections', true), '0')::bigint as reserved,
    (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()) as used,
    (select count(*) from pg_stat_activity
     where datname = current_database() and application_name = 'countersign' and pid <> pg_backend_pid()) as ours,
    (select rolconnlimit::bigint from pg_roles where rolname = current_user) as role_limit,
    (select datconnlimit::bigint from pg_database where datname = current_database()) as database_limit,
    case when pg_has_role(current_user, 'pg_read_all_settings', 'usage') then current_setting('data_directory') end
        as folder,
    to_regclass('schema_migrations') is not null as has_schema";

/// Microseconds since 1970, before there is any schema.
const CLOCK: &str = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";

impl PostgresStore {
    /// How many actions stand where, now. One read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it cannot be read.
    pub async fn census(&self) -> Result<Census, StoreError> {
        let rows = self.inner.read(CENSUS, &[]).await?;
        let row = |row: Row| Ok((row.try_get(0)?, row.try_get(1)?));
        let rows: Result<Vec<_>, Error> = rows.into_iter().map(row).collect();
        Ok(health::census(rows.map_err(|error| fault::read(&error))?))
    }
}

/// Looks at a database without changing anything. `now`: the host's clock.
pub async fn examine(options: &PostgresOptions, now: impl Fn() -> Timestamp) -> Examination {
    let mut found = Examination::default();
    let address = match Address::new(options) {
        Ok(address) => address,
        Err(error) => {
            found.findings.push(Finding::failure("store", error.to_string(), "correct `store`"));
            return found;
        }
    };
    let config = address.config();
    let (client, driver) = match address.reach().await {
        Ok(reached) => reached,
        Err(error) => {
            let advice = "see that the server runs and that `store` names it, its user and its database";
            found.findings.push(Finding::failure("store", error.to_string(), advice));
            return found;
        }
    };
    let driver = tokio::spawn(driver);
    found.findings.push(Finding::good("store", format!("{} answers", address.place())));
    found.findings.push(way(config));
    if let Err(error) = look(&client, config, options, now, &mut found).await {
        let words = format!("the server could not be asked about itself: {}", fault::text(&error));
        found.findings.push(Finding::failure("server", words, "see the server's log"));
    }
    drop(client);
    // It ends with its client; how it ended says nothing any more.
    let _ = driver.await;
    found
}

async fn look(
    client: &Client,
    config: &Config,
    options: &PostgresOptions,
    now: impl Fn() -> Timestamp,
    found: &mut Examination,
) -> Result<(), Error> {
    let row = client.query_one(sql::SERVER, &[]).await?;
    let server = connect::Server {
        version: row.try_get(0)?,
        version_text: row.try_get(1)?,
        fsync: row.try_get::<_, &str>(2)? == "on",
        full_page_writes: row.try_get::<_, &str>(3)? == "on",
        in_recovery: row.try_get(4)?,
        encoding: row.try_get(5)?,
    };
    let row = client.query_one(SETTINGS_NOW, &[]).await?;
    let standby_names: String = row.try_get("standby_names")?;
    found.findings.push(match server.judge() {
        Ok(()) => Finding::good("version", format!("PostgreSQL {}", server.version_text)),
        // It says what to do itself.
        Err(error) => Finding::failure("server", error.to_string(), ""),
    });
    found.findings.push(durability(
        &server,
        &row.try_get::<_, String>("synchronous_commit")?,
        &standby_names,
    ));
    found.findings.push(clocks(client, now).await?);
    found.findings.push(connections(&row, options)?);
    if tls::is_here(config) {
        found.folder = row.try_get::<_, Option<String>>("folder")?.map(PathBuf::from);
    }

    let mut applied = Vec::new();
    if row.try_get("has_schema")? {
        for row in client.query(sql::APPLIED_MIGRATIONS, &[]).await? {
            applied.push((row.try_get(0)?, row.try_get(2)?));
        }
    }
    let known: Vec<(i64, String)> = migrate::ALL
        .iter()
        .map(|known| (i64::from(known.number), Digest::of(known.text.as_bytes()).to_string()))
        .collect();
    found.findings.push(health::schema(&applied, &known));
    if !applied.is_empty() {
        for row in client.query(GRANTS_IN_FORCE, &[]).await? {
            let (tenant, tool): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            found.grants.extend(health::grant_in_force(&tenant, &tool, row.try_get(2)?));
        }
    }
    Ok(())
}

/// Nobody but the network sees what goes to the database, or somebody might.
fn way(config: &Config) -> Finding {
    const CHECK: &str = "way";
    if tls::is_here(config) {
        return Finding::good(CHECK, "the database is on this machine");
    }
    if config.get_ssl_mode() == SslMode::Require {
        return Finding::good(CHECK, "the connection to the database is encrypted, and the server verified");
    }
    Finding::warning(
        CHECK,
        "the database is on another machine, and the connection to it is not encrypted",
        "take sslmode=disable out of the URL, or keep the database on a private network",
    )
}

fn durability(server: &connect::Server, commit: &str, standbys: &str) -> Finding {
    const CHECK: &str = "durability";
    for (name, on) in [("fsync", server.fsync), ("full_page_writes", server.full_page_writes)] {
        if !on {
            return Finding::failure(
                CHECK,
                format!("the server runs with {name} = off: what it committed is lost when the power fails"),
                format!("set {name} = on in postgresql.conf and reload"),
            );
        }
    }
    let own = format!(
        "fsync and full_page_writes are on; each commit of a host says itself how it is kept (the server's own \
         synchronous_commit is {commit})"
    );
    if standbys.is_empty() {
        return Finding::warning(
            CHECK,
            format!("{own}; there is no synchronous standby"),
            "without one, a failover may lose what was committed last: a host notices, and open actions end \
             outcome_unknown; name one in synchronous_standby_names to lose nothing",
        );
    }
    Finding::good(CHECK, format!("{own}; synchronous standby: {standbys}"))
}

/// The best of a few looks: the shorter one takes, the less it can be wrong.
async fn clocks(client: &Client, now: impl Fn() -> Timestamp) -> Result<Finding, Error> {
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..5 {
        let before = now().as_micros();
        let there: i64 = client.query_one(CLOCK, &[]).await?.try_get(0)?;
        let after = now().as_micros();
        let (took, apart) = (after - before, there - (before + (after - before) / 2));
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, apart));
        }
    }
    let (took, apart) = best.unwrap_or_default();
    let words = format!(
        "the database's clock is {} ms {} this machine's (give or take {} ms)",
        (apart / 1000).abs(),
        if apart < 0 { "behind" } else { "ahead of" },
        took / 2000 + 1
    );
    let much = i64::try_from(CLOCKS_APART.as_micros()).unwrap_or(i64::MAX);
    Ok(if apart.abs() > much + took {
        let advice = "let NTP keep both; only the database's clock decides about leases and approvals, but what \
                      people read in this host's log is off by so much";
        Finding::warning("clock", words, advice)
    } else {
        Finding::good("clock", words)
    })
}

/// Whether this host, and others like it, fit into what the server lets in.
fn connections(row: &Row, options: &PostgresOptions) -> Result<Finding, Error> {
    let get = |name: &str| row.try_get::<_, i64>(name);
    let of_server = get("max_connections")? - get("reserved")?;
    // -1: without a limit.
    let limits = [row.try_get::<_, Option<i64>>("role_limit")?, row.try_get("database_limit")?];
    let limit = limits.into_iter().flatten().filter(|limit| *limit >= 0).fold(of_server, i64::min);
    let each = i64::try_from(options.connections).unwrap_or(i64::MAX).saturating_add(BESIDE);
    Ok(judge_connections(each, limit, get("used")?, get("ours")?))
}

fn judge_connections(each: i64, limit: i64, used: i64, ours: i64) -> Finding {
    const CHECK: &str = "connections";
    let room = (limit - used).max(0) / each.max(1);
    let words = format!(
        "a host takes up to {each}; this user gets at most {limit}; in use: {used}, {ours} of them by hosts on this \
         database; room for {room} more such hosts"
    );
    if each > limit {
        return Finding::failure(
            CHECK,
            words,
            "raise the server's max_connections (or the role's or the database's limit), or lower \
             postgres.connections",
        );
    }
    if room == 0 {
        return Finding::warning(
            CHECK,
            words,
            "raise max_connections or lower postgres.connections before another host is started",
        );
    }
    Finding::good(CHECK, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Level;

    #[test]
    fn hosts_that_do_not_fit_into_the_server_are_said_before_they_are_started() {
        assert_eq!(judge_connections(9, 97, 10, 9).level, Level::Good);
        assert!(judge_connections(9, 97, 10, 9).found.contains("room for 9 more"));
        assert_eq!(judge_connections(9, 97, 90, 81).level, Level::Warning);
        assert_eq!(judge_connections(9, 5, 0, 0).level, Level::Failure);
    }

    #[test]
    fn a_server_that_forgets_fails_and_one_without_a_standby_is_said() {
        let server = |fsync, full_page_writes| connect::Server {
            version: 170_000,
            version_text: "17.0".into(),
            fsync,
            full_page_writes,
            in_recovery: false,
            encoding: "UTF8".into(),
        };
        assert_eq!(durability(&server(false, true), "on", "a").level, Level::Failure);
        assert_eq!(durability(&server(true, false), "on", "a").level, Level::Failure);
        assert_eq!(durability(&server(true, true), "off", "").level, Level::Warning);
        assert_eq!(durability(&server(true, true), "on", "a").level, Level::Good);
    }

    #[test]
    fn an_unencrypted_way_is_said_only_where_there_is_one() {
        let config = |url: &str| connect::config(url).unwrap();
        assert_eq!(way(&config("postgres://u@127.0.0.1/d")).level, Level::Good);
        assert_eq!(way(&config("host=/run/postgresql user=u")).level, Level::Good);
        assert_eq!(way(&config("postgres://u@db.example.com/d")).level, Level::Good);
        let clear = way(&config("postgres://u@db.example.com/d?sslmode=disable"));
        assert_eq!(clear.level, Level::Warning);
    }
}
