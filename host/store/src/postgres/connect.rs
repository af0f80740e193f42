//! Connections: how each is set, that the server keeps what it is told to keep,
//! and the few of them that steps and reads take turns with.
//!
//! A few, because a server does most work with about as many as it has cores
//! for, and less with every one more: callers wait here, not there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Connection, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::{self, Failed};
use super::{PostgresOptions, moved, sql, tls};
use crate::StoreError;

/// The oldest server: `xid8` and its functions are of 13, and 13 is no longer
/// maintained.
const OLDEST: i64 = 140_000;

/// How long a server may take to let us in. Chosen: longer than a busy one
/// needs, short enough that whoever waits is told.
const CONNECT: Duration = Duration::from_secs(5);

/// A statement's parameters.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

fn cannot(what: String) -> StoreError {
    StoreError::CannotOpen { what }
}

/// Reads a URL, or says what is wrong with it. The URL has a password in it, so
/// it is in no message.
///
/// # Errors
/// [`StoreError::CannotOpen`].
pub(crate) fn config(url: &str) -> Result<Config, StoreError> {
    let mut config: Config = tls::verified(url).parse().map_err(|error: tokio_postgres::Error| {
        cannot(format!(
            "the database's URL cannot be read ({}); it looks like postgres://user:password@host:5432/database",
            fault::text(&error)
        ))
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(cannot(
            "the database's URL names no host: write postgres://user@host:5432/database".into(),
        ));
    }
    tls::unless_said(url, &mut config);
    if config.get_application_name().is_none() {
        config.application_name("countersign");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    // A server that went away without a word is noticed in half a minute.
    config.keepalives_idle(Duration::from_secs(10)).keepalives_interval(Duration::from_secs(5));
    config.keepalives_retries(3).tcp_user_timeout(Duration::from_secs(30));
    Ok(config)
}

/// Where a database is, for messages.
pub(crate) fn place(config: &Config) -> String {
    use tokio_postgres::config::Host;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => config.get_hostaddrs().first().map(ToString::to_string).unwrap_or_default(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{} on {host}:{port}", config.get_dbname().or(config.get_user()).unwrap_or("?"))
}

/// A connection with the statements it has prepared.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) client: Client,
    prepared: HashMap<(usize, usize), Statement>,
}

/// The driver of a connection's socket.
pub(crate) type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A server, and how it is reached.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Address {
    /// From what the operator says.
    ///
    /// # Errors
    /// [`StoreError::CannotOpen`].
    pub(crate) fn new(options: &PostgresOptions) -> Result<Address, StoreError> {
        let mut config = config(&options.url)?;
        if let Some(password) = &options.password {
            config.password(password);
        }
        Ok(Address { config, tls: tls::connector(&options.roots)? })
    }

    /// What the URL says, with what goes without saying.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The database, its host and port, for messages.
    pub(crate) fn place(&self) -> String {
        place(&self.config)
    }

    /// Reaches the server: a connection that has not been set yet, and the
    /// driver of its socket.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; [`StoreError::CannotOpen`] where waiting would
    /// not help.
    pub(crate) async fn reach(&self) -> Result<(Client, Driver), StoreError> {
        self.config.connect(self.tls.clone()).await.map_err(|error| {
            let text = fault::text(&error);
            let what = format!("the database {} cannot be reached: {text}", self.place());
            match error.code().map(|code| code.code().to_owned()).as_deref() {
                Some("3D000") => cannot(format!("{what}; make it with createdb")),
                Some("28P01" | "28000") => cannot(format!(
                    "{what}; look at the user and password in the URL, and at the server's pg_hba.conf"
                )),
                _ if text.contains("TLS") => cannot(format!(
                    "{what}; name the authority that signed the server's certificate (ca_file under [postgres]), or, \
                     where nobody else is on the network, say sslmode=disable in the URL"
                )),
                _ => StoreError::Unavailable { what },
            }
        })
    }
}

/// Sets a connection, and looks at what the server is.
pub(crate) async fn set(client: Client, options: &PostgresOptions) -> Result<Conn, StoreError> {
    let failed = |error: tokio_postgres::Error| fault::read(&error);
    client.batch_execute(sql::SETTINGS).await.map_err(failed)?;
    if let Some(more) = &options.more_settings {
        client.batch_execute(more).await.map_err(failed)?;
    }
    let row = client.query_one(sql::SERVER, &[]).await.map_err(failed)?;
    let get = |error: tokio_postgres::Error| StoreError::Damaged { what: fault::text(&error) };
    let server = Server {
        version: row.try_get(0).map_err(get)?,
        version_text: row.try_get(1).map_err(get)?,
        fsync: row.try_get::<_, &str>(2).map_err(get)? == "on",
        full_page_writes: row.try_get::<_, &str>(3).map_err(get)? == "on",
        in_recovery: row.try_get(4).map_err(get)?,
        encoding: row.try_get(5).map_err(get)?,
    };
    server.judge()?;
    Ok(Conn { client, prepared: HashMap::new() })
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) version: i64,
    pub(crate) version_text: String,
    pub(crate) fsync: bool,
    pub(crate) full_page_writes: bool,
    pub(crate) in_recovery: bool,
    pub(crate) encoding: String,
}

impl Server {
    /// Refuses a server that may forget what it committed. Asked of every
    /// connection: after a failover the next one may lead elsewhere.
    ///
    /// Not checked here: whether the disk under it keeps what was flushed, and
    /// whether a standby has it too.
    pub(crate) fn judge(&self) -> Result<(), StoreError> {
        if self.version < OLDEST {
            return Err(cannot(format!(
                "the server is PostgreSQL {}; {} or newer is needed",
                self.version_text,
                OLDEST / 10_000
            )));
        }
        if self.encoding != "UTF8" {
            return Err(cannot(format!(
                "the database's encoding is {}: make one with createdb -E UTF8 -T template0",
                self.encoding
            )));
        }
        for (name, on) in [("fsync", self.fsync), ("full_page_writes", self.full_page_writes)] {
            if !on {
                return Err(cannot(format!(
                    "the server runs with {name} = off, so it loses what it committed when the power fails, and a \
                     send would go out twice: set {name} = on in postgresql.conf and reload"
                )));
            }
        }
        if self.in_recovery {
            return Err(StoreError::Unavailable {
                what: "the server is a standby or still recovering, and takes no writes; name the primary in the \
                       database's URL, or wait"
                    .into(),
            });
        }
        Ok(())
    }
}

/// The connections.
pub(crate) struct Pool {
    address: Address,
    options: PostgresOptions,
    turns: Semaphore,
    idle: Mutex<Vec<Conn>>,
    /// Set where a connection finds that commits were lost.
    rewound: Arc<AtomicBool>,
    newest: moved::Newest,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("place", &self.address.place()).finish_non_exhaustive()
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable { what: "it is shutting down".into() }
}

impl Pool {
    pub(crate) fn new(
        address: Address,
        options: PostgresOptions,
        rewound: Arc<AtomicBool>,
        newest: moved::Newest,
    ) -> Pool {
        let turns = Semaphore::new(options.connections.max(1));
        Pool { address, turns, idle: Mutex::default(), options, rewound, newest }
    }

    /// Waits for a turn and a connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if there is none for long; nothing was done.
    pub(crate) async fn lend(&self) -> Result<Lent<'_>, StoreError> {
        let turn = tokio::time::timeout(self.options.patience, self.turns.acquire())
            .await
            .map_err(|_| StoreError::Unavailable {
                what: format!(
                    "all {} connections to the database were busy for {:?}",
                    self.options.connections, self.options.patience
                ),
            })?
            .map_err(|_| closed())?;
        loop {
            let idle = self.idle.lock().map_err(|_| closed())?.pop();
            match idle {
                Some(conn) if conn.client.is_closed() => {}
                Some(conn) => return Ok(Lent { conn: Some(conn), pool: self, _turn: turn }),
                None => break,
            }
        }
        let (client, driver) = self.address.reach().await.map_err(unavailable)?;
        tokio::spawn(drive(driver));
        let conn = set(client, &self.options).await.map_err(unavailable)?;
        if moved::look(&conn.client, &self.newest).await.map_err(unavailable)? {
            self.rewound.store(true, Ordering::Release);
        }
        Ok(Lent { conn: Some(conn), pool: self, _turn: turn })
    }

    /// Ends all turns that have not begun, and closes the connections.
    pub(crate) fn close(&self) {
        self.turns.close();
        if let Ok(mut idle) = self.idle.lock() {
            idle.clear();
        }
    }
}

/// Once a store is open, what keeps it from another connection may pass.
fn unavailable(error: StoreError) -> StoreError {
    match error {
        StoreError::CannotOpen { what } => StoreError::Unavailable { what },
        other => other,
    }
}

async fn drive(driver: Driver) {
    if let Err(error) = driver.await {
        tracing::debug!(error = fault::text(&error), "a connection to the database ended");
    }
}

/// A connection for a while. It goes back only between statements: one that is
/// let go of while something is under way is closed, and the server undoes it.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    conn: Option<Conn>,
    pool: &'a Pool,
    _turn: SemaphorePermit<'a>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take()
            && !self.pool.turns.is_closed()
            && let Ok(mut idle) = self.pool.idle.lock()
        {
            idle.push(conn);
        }
    }
}

impl Lent<'_> {
    /// Runs a statement to its end, which is after its commit where it stands
    /// alone. After [`Failed::Gone`] this connection is no more.
    pub(crate) async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Failed> {
        let (conn, statement) = self.prepared(sql).await?;
        let answer =
            tokio::time::timeout(self.pool.options.patience, conn.client.query(&statement, params)).await;
        self.answered(conn, answer)
    }

    /// The same for one that gives no rows; how many it changed.
    pub(crate) async fn run(&mut self, sql: &'static str, params: Params<'_>) -> Result<u64, Failed> {
        let (conn, statement) = self.prepared(sql).await?;
        let answer =
            tokio::time::timeout(self.pool.options.patience, conn.client.execute(&statement, params)).await;
        self.answered(conn, answer)
    }

    /// Takes the connection, so that one that is let go of meanwhile is closed.
    /// Nothing is done by preparing, so whatever goes wrong undoes nothing.
    async fn prepared(&mut self, sql: &'static str) -> Result<(Conn, Statement), Failed> {
        let Some(mut conn) = self.conn.take() else {
            return Err(Failed::Undone(StoreError::Unavailable { what: "the connection was lost".into() }));
        };
        let place = (sql.as_ptr() as usize, sql.len());
        if let Some(statement) = conn.prepared.get(&place) {
            let statement = statement.clone();
            return Ok((conn, statement));
        }
        let patience = self.pool.options.patience;
        let statement = tokio::time::timeout(patience, conn.client.prepare(sql))
            .await
            .map_err(|_| Failed::Undone(StoreError::Unavailable { what: late(patience) }))?
            .map_err(|error| Failed::Undone(fault::read(&error)))?;
        conn.prepared.insert(place, statement.clone());
        Ok((conn, statement))
    }

    fn answered<T>(
        &mut self,
        conn: Conn,
        answer: Result<Result<T, tokio_postgres::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Failed> {
        match answer {
            Ok(Ok(answer)) => {
                self.conn = Some(conn);
                Ok(answer)
            }
            Ok(Err(error)) => {
                let failed = fault::statement(&error);
                if !matches!(failed, Failed::Gone(_)) {
                    self.conn = Some(conn);
                }
                Err(failed)
            }
            // It may still be made, so it is not known that it was not.
            Err(_) => Err(Failed::Gone(StoreError::CommitUnknown { what: late(self.pool.options.patience) })),
        }
    }

    /// Closes it instead of giving it back.
    pub(crate) fn discard(&mut self) {
        self.conn = None;
    }
}

fn late(patience: Duration) -> String {
    format!("the database did not answer within {patience:?}")
}
