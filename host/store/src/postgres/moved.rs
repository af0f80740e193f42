//! Whether the server that answers has the commits that were made. A standby
//! that took over may lack some, and so may a database that was restored; each
//! writes on another timeline, or under another identity, than what the database
//! remembers of the server that it was last used on.
//!
//! Looked at on every connection before anything else is asked of it: after a
//! failover there is no other kind. Not noticed here: a database that was copied
//! back file by file and started without recovery. Whoever restores says so
//! ([`super::PostgresOptions::after_restore`]). Nor, by a host that starts only
//! then, that a server is an old primary which a standby had taken over from.

use std::sync::{Mutex, PoisonError};

use tokio_postgres::{Client, Error};

use super::{fault, sql};
use crate::StoreError;

/// The newest place that this store was used on. An old primary that comes back
/// remembers only itself: by what stands in it, nothing was ever lost.
#[derive(Debug, Default)]
pub(crate) struct Newest(Mutex<Option<(String, i64)>>);

impl Newest {
    /// Takes a place in, or refuses one that was left behind.
    pub(crate) fn pass(&self, identity: &str, timeline: i64) -> Result<(), StoreError> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*newest {
            Some((known, last)) if known == identity && timeline < *last => Err(StoreError::Unavailable {
                what: format!(
                    "the server writes on timeline {timeline}, and timeline {last} was used before: it is an old \
                     primary that came back and lacks what was committed since; stop it, or make it a standby of the \
                     new one"
                ),
            }),
            _ => {
                *newest = Some((identity.to_owned(), timeline));
                Ok(())
            }
        }
    }
}

/// Looks, and says it to everybody if commits were lost: from then on no action
/// that was open is claimed before it is doubted. Also: whether some are still to
/// be doubted.
pub(crate) async fn look(client: &Client, newest: &Newest) -> Result<bool, StoreError> {
    let row = client.query_one(sql::PLACE, &[]).await.map_err(failed)?;
    let (identity, timeline): (String, i64) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let (last_identity, last_timeline): (String, i64) =
        (row.try_get(2).map_err(failed)?, row.try_get(3).map_err(failed)?);
    let to_doubt: bool = row.try_get(4).map_err(failed)?;
    newest.pass(&identity, timeline)?;
    if (&identity, timeline) == (&last_identity, last_timeline) {
        return Ok(to_doubt);
    }
    let first = last_identity.is_empty();
    if !first {
        tracing::warn!(
            identity,
            timeline,
            last_identity,
            last_timeline,
            "the database moved to a server that may lack commits: every open action is doubted before it goes on"
        );
    }
    // Whoever is second finds it said.
    client
        .execute(sql::MOVED, &[&last_identity, &last_timeline, &identity, &timeline, &first])
        .await
        .map_err(failed)?;
    Ok(to_doubt || !first)
}

/// Somebody says that the database was restored.
pub(crate) async fn restored(client: &Client) -> Result<(), StoreError> {
    tracing::warn!("the database is said to be restored: every open action is doubted before it goes on");
    client.execute(sql::RESTORED, &[]).await.map(|_| ()).map_err(failed)
}

fn failed(error: Error) -> StoreError {
    fault::read(&error)
}
