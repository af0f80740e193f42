//! Where the store is: `sqlite:PATH` or `postgres://…`, and what a database on a
//! server is told besides.

use std::fmt;
use std::path::{Path, PathBuf};

use countersign_store::postgres::{Durability, PostgresOptions};
use serde::Deserialize;

use super::{ConfigError, Source, invalid};

/// Where a host keeps its ledger.
pub enum StorePlace {
    /// A file, of one host.
    Sqlite(PathBuf),
    /// A database on a server, of any number of hosts.
    Postgres(Box<PostgresOptions>),
}

/// Shows no password.
impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePlace::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            StorePlace::Postgres(options) => f.debug_tuple("Postgres").field(options).finish(),
        }
    }
}

/// `[postgres]` in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Postgres {
    /// Connections of this host, at least one.
    connections: Option<usize>,
    /// `flushed` or `applied`.
    durability: Option<String>,
    /// Certificates in PEM of authorities that vouch for the server, beside the
    /// public ones.
    ca_file: Option<PathBuf>,
    /// The password, where it shall not stand in the URL.
    password: Option<Source>,
}

/// Most connections of one host. Chosen: a server serves few hundred well, and
/// several hosts share it.
const MOST_CONNECTIONS: usize = 64;

/// Reads where the store is. `beside`: what a relative path is relative to.
///
/// # Errors
/// Says what it must be; shows no URL with a password in it.
pub(super) fn place(
    text: &str,
    beside: &Path,
    postgres: Postgres,
    password: Option<String>,
) -> Result<StorePlace, ConfigError> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let mut options = PostgresOptions::new(text);
        if let Some(connections) = postgres.connections {
            if !(1..=MOST_CONNECTIONS).contains(&connections) {
                let why = format!("a host has 1 to {MOST_CONNECTIONS} connections");
                return Err(invalid("postgres.connections", connections.to_string(), why));
            }
            options.connections = connections;
        }
        options.durability = match postgres.durability.as_deref() {
            None | Some("flushed") => Durability::Flushed,
            Some("applied") => Durability::Applied,
            Some(other) => {
                let why = "\"flushed\" (by the server, and by its synchronous standby if it has one) or \"applied\" \
                           (by that standby, too)";
                return Err(invalid("postgres.durability", other.to_owned(), why));
            }
        };
        if let Some(file) = postgres.ca_file {
            let file = beside.join(file);
            options.roots = std::fs::read(&file).map_err(|error| {
                invalid("postgres.ca_file", file.display().to_string(), error.to_string())
            })?;
        }
        // One line break at the end, as editors leave it, is none of it.
        options.password = password.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        return Ok(StorePlace::Postgres(Box::new(options)));
    }
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() && !path.starts_with("//") => {
            Ok(StorePlace::Sqlite(beside.join(path)))
        }
        _ => Err(invalid(
            "store",
            // What looks like a URL may hold a password.
            text.split_once("://").map_or_else(|| text.to_owned(), |(scheme, _)| format!("{scheme}://…")),
            "\"sqlite:\" and the path of a file, for example \"sqlite:/var/lib/countersign/store.db\"; or \
             \"postgres://user@host:5432/database\"",
        )),
    }
}

impl Postgres {
    /// Where the password is, if it is not in the URL.
    pub(super) fn password(&self) -> Option<&Source> {
        self.password.as_ref()
    }
}
