//! Telling somebody that an action waits for a person. Who is told, and how, is
//! not known here; that they are told at least once for each doubt is.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::id::Ordinal;
use countersign_store::steps::Due;

use crate::Inner;
use crate::reaper::Busy;

/// How long until somebody who could not be told is told again. Chosen: what
/// waits for a person does not wait for seconds.
const AGAIN: Duration = Duration::from_secs(5);

/// Who wants to know what waits for a person.
#[async_trait]
pub trait Announce: Debug + Send + Sync + 'static {
    /// An `outcome_unknown` action has begun to wait for a person: nothing of
    /// ours moves it on any more. Called once for each beginning, and again after
    /// a failure or a crash before it was remembered; the action's id and
    /// `event_seq` tell beginnings apart. `ordinal`: the first effect in doubt;
    /// `None` where a ledger that lost commits knows of none.
    ///
    /// # Errors
    /// Why nobody was told, for the log; they are told again a little later.
    async fn waits_for_person(
        &self,
        action: &Action,
        ordinal: Option<Ordinal>,
        why: &str,
    ) -> Result<(), String>;
}

impl Inner {
    /// Tells, and remembers it afterwards: in that order a crash tells twice
    /// rather than never.
    pub(crate) fn announce_later(self: Arc<Inner>, due: Due) {
        let Some(busy) = Busy::with(&self.telling, due.action.id) else { return };
        tokio::spawn(async move {
            let busy = busy;
            let action = &due.action;
            let ordinal = due.unknown.first().map(|record| record.ordinal);
            let why = action.error.as_ref().map_or("its worker is gone", |error| error.message.as_str());
            let told = match &self.config.announce {
                None => Ok(()),
                Some(announce) => announce.waits_for_person(action, ordinal, why).await,
            };
            let kept = match told {
                Err(why) => Err(why),
                Ok(()) => self
                    .store
                    .announced(&action.tenant, action.id, action.event_seq)
                    .await
                    .map_err(|error| error.to_string()),
            };
            if let Err(why) = kept {
                tracing::warn!(action = %action.id, why, "nobody could be told that it waits for a person");
                tokio::time::sleep(AGAIN).await;
            }
            drop(busy);
        });
    }
}
