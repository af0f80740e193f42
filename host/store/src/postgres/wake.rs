//! Wake-ups between hosts: one connection that hears what other hosts changed,
//! and tells them what this one did.
//!
//! Told apart from the steps, some at a time: `notify` in a step's transaction
//! would make all hosts' commits wait for each other, flushes and all. So a
//! wake-up may come a few milliseconds after its commit, or not at all; whoever
//! waits polls, too.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use countersign_domain::id::TenantId;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::connect::{self, Address};
use super::{PostgresOptions, fault, sql};
use crate::ledger::Changed;

/// The longest text of one notification. The server takes less than 8000 bytes.
const LONGEST: usize = 7000;

/// How often others are told at most. Chosen: nobody notices, and 200 commits a
/// second more are the most that it costs.
const PACE: Duration = Duration::from_millis(5);

/// Pauses between tries to reach the server again.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(3)];

/// The way to other hosts.
#[derive(Debug)]
pub(crate) struct Wake {
    outbox: mpsc::Sender<Changed>,
    task: AbortHandle,
}

impl Wake {
    /// Starts listening. The first connection is there when this returns, so
    /// that no change after it goes by unheard.
    pub(crate) async fn start(
        address: Address,
        options: PostgresOptions,
        changes: broadcast::Sender<Changed>,
    ) -> Result<Wake, crate::StoreError> {
        // More than that waits for nobody: the wake-ups beyond are dropped.
        let (outbox, inbox) = mpsc::channel(4096);
        let post = Arc::new(Post { origin: uuid::Uuid::new_v4().simple().to_string(), changes });
        let line = Line::open(&address, &options, post.clone()).await?;
        let task = tokio::spawn(serve(address, options, post, inbox, line)).abort_handle();
        Ok(Wake { outbox, task })
    }

    /// Tells other hosts, soon.
    pub(crate) fn tell(&self, changed: &Changed) {
        // Full or closed: they poll.
        let _ = self.outbox.try_send(changed.clone());
    }

    /// Hears and tells nothing any more.
    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

/// What to do with what is heard.
struct Post {
    /// Whose own notifications come back to it.
    origin: String,
    changes: broadcast::Sender<Changed>,
}

impl Post {
    /// One notification: the origin, then a line for each action.
    fn heard(&self, text: &str) {
        let mut lines = text.lines();
        if lines.next() == Some(&self.origin) {
            return;
        }
        for line in lines {
            let Some(changed) = read(line) else {
                tracing::debug!(line, "a notification that is not one of ours");
                continue;
            };
            let _ = self.changes.send(changed);
        }
    }
}

fn read(line: &str) -> Option<Changed> {
    let (tenant, action) = line.split_once(' ')?;
    Some(Changed { tenant: tenant.parse::<TenantId>().ok()?, action: action.parse().ok()? })
}

/// The connection; it ends when the server, or the network, says so.
struct Line {
    client: Client,
    notify: Statement,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Line {
    async fn open(
        address: &Address,
        options: &PostgresOptions,
        post: Arc<Post>,
    ) -> Result<Line, crate::StoreError> {
        let (client, driver) = address.reach().await?;
        let driver = tokio::spawn(async move {
            let mut driver = pin!(driver);
            loop {
                match poll_fn(|cx| driver.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(told))) => post.heard(told.payload()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::debug!(error = fault::text(&error), "the line to other hosts ended");
                        return;
                    }
                    None => return,
                }
            }
        });
        let conn = connect::set(client, options).await?;
        let client = conn.client;
        let say = |error: tokio_postgres::Error| fault::read(&error);
        client.batch_execute(sql::NOTIFY_SETTINGS).await.map_err(say)?;
        client.batch_execute(sql::LISTEN).await.map_err(say)?;
        let notify = client.prepare(sql::NOTIFY).await.map_err(say)?;
        Ok(Line { client, notify, driver })
    }
}

async fn serve(
    address: Address,
    options: PostgresOptions,
    post: Arc<Post>,
    mut inbox: mpsc::Receiver<Changed>,
    first: Line,
) {
    let mut line = Some(first);
    let mut tries = 0;
    loop {
        let Some(open) = &mut line else {
            let pause = PAUSES[tries.min(PAUSES.len() - 1)];
            tries += 1;
            tokio::time::sleep(pause).await;
            match Line::open(&address, &options, post.clone()).await {
                Ok(opened) => (line, tries) = (Some(opened), 0),
                Err(error) => {
                    tracing::warn!(%error, "other hosts cannot be heard; waiting goes on by polling")
                }
            }
            continue;
        };
        let first = tokio::select! {
            changed = inbox.recv() => changed,
            _ = &mut open.driver => {
                line = None;
                continue;
            }
        };
        let Some(first) = first else { return };
        let mut text = format!("{}\n{} {}", post.origin, first.tenant, first.action);
        while text.len() < LONGEST {
            let Ok(next) = inbox.try_recv() else { break };
            text = format!("{text}\n{} {}", next.tenant, next.action);
        }
        if open.client.query(&open.notify, &[&text]).await.is_err() {
            line = None;
            continue;
        }
        tokio::time::sleep(PACE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::id::ActionId;

    #[test]
    fn what_one_host_tells_another_hears_and_itself_does_not() {
        let (changes, mut hears) = broadcast::channel(8);
        let post = Post { origin: "me".into(), changes };
        let action = ActionId(uuid::Uuid::new_v4());
        post.heard(&format!("me\none {action}"));
        post.heard(&format!("other\none {action}\nnot a line\ntwo {action}"));
        post.heard("");
        let mut heard = |tenant: &str| {
            assert_eq!(hears.try_recv().unwrap(), Changed { tenant: tenant.parse().unwrap(), action });
        };
        heard("one");
        heard("two");
        assert!(hears.try_recv().is_err());
    }
}
