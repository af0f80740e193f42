//! The store that a host under test has. A test that takes a [`Backend`] is run on both by
//! [`on_both_stores!`](crate::on_both_stores).

use super::postgres::{self, Cluster};

/// Which store.
#[derive(Debug, Clone, Copy)]
pub enum Backend {
    /// A file in the host's own folder.
    Sqlite,
    /// A database of its own on this server.
    Postgres(&'static Cluster),
}

/// The server that this process's tests share; `None`, and said so, where there is none.
pub fn on_postgres() -> Option<Backend> {
    postgres::shared().map(Backend::Postgres)
}

impl Backend {
    /// A new store; `None`: the file that a host has without being told.
    pub fn new_store(self) -> Option<String> {
        match self {
            Backend::Sqlite => None,
            Backend::Postgres(cluster) => Some(cluster.url(&cluster.database())),
        }
    }

    /// Whether other hosts may use it: then nobody knows that a worker is gone before its lease is.
    pub fn is_shared(self) -> bool {
        matches!(self, Backend::Postgres(_))
    }

    /// The longest send that a test's grants allow: a write's lease covers it, and where leases are
    /// waited for it is short.
    pub fn send(self) -> &'static str {
        if self.is_shared() { "2s" } else { "30s" }
    }

    /// The lease of a test's hosts, as a line of their configuration.
    pub fn lease(self) -> &'static str {
        if self.is_shared() { "lease = \"1s\"" } else { "" }
    }

    /// How many windows to try at the same time: where each waits for leases, many.
    pub fn side_by_side(self) -> usize {
        if self.is_shared() { 6 } else { 2 }
    }
}

/// Makes two tests of each function: `name::sqlite` and `name::postgres`.
#[macro_export]
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn sqlite() {
                super::$name($crate::support::Backend::Sqlite);
            }

            #[test]
            fn postgres() {
                if let Some(backend) = $crate::support::backend::on_postgres() {
                    super::$name(backend);
                }
            }
        }
    )*};
}
