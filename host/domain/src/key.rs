//! Idempotency keys: the caller's (one per action) and the provider's (one per
//! write of an action).
//!
//! Both derive from what is wanted and from nothing else, never from a random
//! number or a time. So they come out the same after a crash, on another host,
//! and even when a restored backup forgot that the action existed.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::grant::KeyFormat;
use crate::id::{ActionId, TenantId};

/// The longest caller's key, run id or step, in bytes. Chosen: room for a URL
/// or a hash with a prefix, small enough for an index page.
pub const MAX_KEY_BYTES: usize = 255;

/// How a caller names its intent so that it can find it again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ActionKey {
    /// An `Idempotency-Key` of the caller's own making.
    Key(String),
    /// Where the caller is: its run, and the step within the run.
    Run {
        /// The caller's name of the run.
        run: String,
        /// The caller's name of the step. One run has many actions, so the run
        /// alone is no key.
        step: String,
    },
}

/// Why a caller's key is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// Nothing names the action.
    #[error("an action needs either an Idempotency-Key header, or run_id and step; neither was given")]
    Missing,
    /// A run without a step, or a step without a run.
    #[error("run_id and step go together: one of them alone does not name an action")]
    Half,
    /// Two names for one action.
    #[error("give either an Idempotency-Key header, or run_id and step, not both")]
    Both,
    /// Empty, too long, or not plain text.
    #[error("{part} must be 1 to {MAX_KEY_BYTES} bytes of text without control characters")]
    Form {
        /// Which one.
        part: &'static str,
    },
}

impl ActionKey {
    /// From what a caller sent; exactly one of the two ways.
    pub fn from_parts(
        key: Option<String>,
        run: Option<String>,
        step: Option<String>,
    ) -> Result<ActionKey, InvalidKey> {
        let checked = |part: &'static str, text: String| {
            let fits = (1..=MAX_KEY_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
            if fits { Ok(text) } else { Err(InvalidKey::Form { part }) }
        };
        match (key, run, step) {
            (Some(key), None, None) => Ok(ActionKey::Key(checked("Idempotency-Key", key)?)),
            (None, Some(run), Some(step)) => {
                Ok(ActionKey::Run { run: checked("run_id", run)?, step: checked("step", step)? })
            }
            (None, None, None) => Err(InvalidKey::Missing),
            (None, _, _) => Err(InvalidKey::Half),
            (Some(_), _, _) => Err(InvalidKey::Both),
        }
    }

    /// The canonical text, `["key","…"]` or `["run","…","…"]`; unique per tenant.
    pub fn canonical(&self) -> String {
        let parts: Vec<&str> = match self {
            ActionKey::Key(key) => vec!["key", key],
            ActionKey::Run { run, step } => vec!["run", run, step],
        };
        serde_json_canonicalizer::to_string(&parts)
            .unwrap_or_else(|never| unreachable!("an array of texts did not canonicalise: {never}"))
    }

    /// The caller's run, if it named one.
    pub fn run(&self) -> Option<(&str, &str)> {
        match self {
            ActionKey::Key(_) => None,
            ActionKey::Run { run, step } => Some((run, step)),
        }
    }

    /// The caller's own key, if it gave one.
    pub fn key(&self) -> Option<&str> {
        match self {
            ActionKey::Key(key) => Some(key),
            ActionKey::Run { .. } => None,
        }
    }
}

/// The id of the action that this tenant calls by this key. UUID version 8 of
/// SHA-256 over a tag, the tenant and the canonical key, lengths first.
pub fn action_id(tenant: &TenantId, key: &ActionKey) -> ActionId {
    let mut hash = Sha256::new();
    for part in ["countersign/action-id/1", tenant.as_str(), &key.canonical()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    ActionId(Uuid::new_v8(bytes))
}

/// The key under which the provider gets write `n` of an action, `n` counted
/// from 1 over the action's different writes.
///
/// Writes are counted, not effects: how many reads came before a write may
/// differ when an action is proposed anew after its row was lost, and the key
/// must not.
pub fn provider_key(action: ActionId, n: u32, format: KeyFormat) -> String {
    let plain = format!("tool-action:{action}:{n}");
    match format {
        KeyFormat::Plain => plain,
        KeyFormat::Uuid => Uuid::new_v5(&PROVIDER_KEYS, plain.as_bytes()).to_string(),
        KeyFormat::Sha256 => hex::encode(Sha256::digest(plain.as_bytes())),
    }
}

/// Namespace of the `uuid` key format (RFC 9562 §5.5). Chosen once; changing it
/// changes every key that a provider already holds.
const PROVIDER_KEYS: Uuid = Uuid::from_u128(0x5d1c_7f3e_90ab_5c64_8e2d_3b41_7a95_c0de);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_exactly_one_way() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(ActionKey::from_parts(None, None, None), Err(InvalidKey::Missing));
        assert_eq!(ActionKey::from_parts(some("k"), some("r"), some("s")), Err(InvalidKey::Both));
        assert_eq!(ActionKey::from_parts(some("k"), some("r"), None), Err(InvalidKey::Both));
        assert_eq!(ActionKey::from_parts(None, some("r"), None), Err(InvalidKey::Half));
        assert_eq!(ActionKey::from_parts(None, None, some("s")), Err(InvalidKey::Half));
        for bad in ["", "a\0b", "a\nb", &"x".repeat(256)] {
            assert!(ActionKey::from_parts(some(bad), None, None).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn p5_two_keys_never_share_an_id() {
        let tenant: TenantId = "default".parse().unwrap();
        let other: TenantId = "other".parse().unwrap();
        let run = |run: &str, step: &str| ActionKey::Run { run: run.into(), step: step.into() };
        let ids = [
            action_id(&tenant, &ActionKey::Key("ab".into())),
            action_id(&tenant, &run("a", "b")),
            action_id(&tenant, &run("ab", "c")),
            action_id(&tenant, &run("a", "bc")),
            action_id(&other, &run("a", "b")),
        ];
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(ids.iter().all(|id| id.0.get_version_num() == 8));
    }

    #[test]
    fn break_25_the_same_intent_has_the_same_provider_key_after_its_row_was_lost() {
        let tenant: TenantId = "default".parse().unwrap();
        let key = ActionKey::Run { run: "run-1".into(), step: "refund".into() };
        let (before, after) = (action_id(&tenant, &key), action_id(&tenant, &key.clone()));
        for format in [KeyFormat::Plain, KeyFormat::Uuid, KeyFormat::Sha256] {
            assert_eq!(provider_key(before, 1, format), provider_key(after, 1, format));
            assert_ne!(provider_key(before, 1, format), provider_key(before, 2, format));
        }
        // Golden: a change here would change keys that providers already hold.
        assert_eq!(before.to_string(), "d8da417d-0178-80f4-ac10-c10bf9e4f03d");
    }
}
