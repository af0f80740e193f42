//! What the gate says waits for a person, as a message to the receivers.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::id::Ordinal;
use countersign_gate::Announce;
use serde_json::json;

use super::{Told, Webhooks};

/// How long the gate is kept waiting for a receiver. Chosen: one that is well has
/// acknowledged by then; while it is waited for, nothing else is done about the
/// action.
const PATIENCE: Duration = Duration::from_secs(2);

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").field("receivers", &self.inner.receivers).finish_non_exhaustive()
    }
}

#[async_trait]
impl Announce for Webhooks {
    async fn waits_for_person(
        &self,
        action: &Action,
        ordinal: Option<Ordinal>,
        why: &str,
    ) -> Result<(), String> {
        // Each doubt has one name, on whatever host and after whatever crash.
        let id = format!("{}.{}", action.id, action.event_seq);
        let told = tokio::time::timeout(PATIENCE, async {
            loop {
                let settled = self.inner.settled.notified();
                if self.tell(&id, || body(action, ordinal, why)) == Told::Everybody {
                    return;
                }
                settled.await;
            }
        });
        if told.await.is_err() {
            return Err("a webhook's receiver has not acknowledged yet; it is tried again".into());
        }
        self.inner.metrics.announced();
        tracing::warn!(action = %action.id, tool = %action.tool, why, "an action waits for a person");
        Ok(())
    }
}

/// Names and a reason: whoever may see more asks the host for it.
fn body(action: &Action, ordinal: Option<Ordinal>, why: &str) -> Vec<u8> {
    let at = format!("/v1/actions/{}", action.id);
    let message = json!({
        "type": "action.waits_for_person",
        "timestamp": action.updated,
        "data": {
            "action": action.id.to_string(),
            "tenant": action.tenant,
            "tool": action.tool,
            "version": action.version,
            "actor": action.actor,
            "status": action.state,
            "ordinal": ordinal,
            "why": why,
            "links": { "self": at, "effects": format!("{at}/effects"), "resolve": format!("{at}/resolve") },
        },
    });
    message.to_string().into_bytes()
}
