//! Rows to nouns and back. A row that is not what the schema says is
//! [`StoreError::Damaged`], never a guess.

use std::str::FromStr;

use countersign_domain::action::{Action, ActionError, State};
use countersign_domain::approval::Approval;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{
    ActionId, AttemptId, AttemptNumber, ComponentDigest, Digest, EffectFingerprint, Fingerprint, GrantDigest,
    Intent, Ordinal, SendNumber, TenantId,
};
use countersign_domain::key::ActionKey;
use countersign_domain::time::Timestamp;
use countersign_domain::tool::InstalledTool;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::registry::PrincipalRow;
use crate::{StoreError, steps};

/// Reads a row's columns one after the other.
pub(crate) struct Columns<'r> {
    row: &'r Row,
    at: usize,
    what: &'static str,
}

impl<'r> Columns<'r> {
    /// From a column on.
    pub(crate) fn of(row: &'r Row, at: usize, what: &'static str) -> Columns<'r> {
        Columns { row, at, what }
    }

    fn damaged(&self, why: &dyn std::fmt::Display) -> StoreError {
        let column = self.row.columns().get(self.at.saturating_sub(1)).map_or("?", |column| column.name());
        StoreError::Damaged { what: format!("{}, column {column}: {why}", self.what) }
    }

    /// The next column.
    pub(crate) fn get<T: FromSql<'r>>(&mut self) -> Result<T, StoreError> {
        self.at += 1;
        let row: &'r Row = self.row;
        row.try_get(self.at - 1).map_err(|error| self.damaged(&super::fault::text(&error)))
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&mut self) -> Result<T, StoreError> {
        let text: &str = self.get()?;
        text.parse().map_err(|error: T::Err| self.damaged(&error))
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let text: &str = self.get()?;
        serde_json::from_str(text).map_err(|error| self.damaged(&error))
    }

    fn json_option<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get()?;
        text.map(serde_json::from_str).transpose().map_err(|error| self.damaged(&error))
    }

    /// A count: never negative.
    fn count(&mut self) -> Result<u32, StoreError> {
        let count: i64 = self.get()?;
        u32::try_from(count).map_err(|error| self.damaged(&error))
    }

    fn count_option(&mut self) -> Result<Option<u32>, StoreError> {
        let count: Option<i64> = self.get()?;
        count.map(u32::try_from).transpose().map_err(|error| self.damaged(&error))
    }

    fn canonical(&mut self) -> Result<CanonicalJson, StoreError> {
        Ok(CanonicalJson::from_trusted(self.get()?))
    }

    fn canonical_option(&mut self) -> Result<Option<CanonicalJson>, StoreError> {
        Ok(self.get::<Option<String>>()?.map(CanonicalJson::from_trusted))
    }

    fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.get().map(Timestamp::from_micros)
    }

    fn time_option(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let bytes: &[u8] = self.get()?;
        bytes.try_into().map_err(|error| self.damaged(&error))
    }

    fn bytes_option<const N: usize>(&mut self) -> Result<Option<[u8; N]>, StoreError> {
        let bytes: Option<&[u8]> = self.get()?;
        bytes.map(TryInto::try_into).transpose().map_err(|error| self.damaged(&error))
    }

    pub(crate) fn digest(&mut self) -> Result<Digest, StoreError> {
        self.bytes().map(Digest::from_bytes)
    }

    fn action_id(&mut self) -> Result<ActionId, StoreError> {
        Ok(ActionId(uuid::Uuid::from_bytes(self.bytes()?)))
    }

    fn action_id_option(&mut self) -> Result<Option<ActionId>, StoreError> {
        Ok(self.bytes_option()?.map(|bytes| ActionId(uuid::Uuid::from_bytes(bytes))))
    }
}

/// Which action, and where it is.
pub(crate) fn key(row: &Row) -> Result<(TenantId, ActionId, State), StoreError> {
    let mut c = Columns::of(row, 0, "an action");
    Ok((c.parsed()?, c.action_id()?, c.parsed()?))
}

/// A value as JSON text.
pub(crate) fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Damaged { what: format!("a value to be stored: {error}") })
}

/// An optional value as JSON text.
pub(crate) fn json_option<T: Serialize>(value: Option<&T>) -> Result<Option<String>, StoreError> {
    value.map(json).transpose()
}

/// Text for people from outside. This database holds no U+0000, and a step must
/// not fail for a character in somebody's words; what is compared, hashed or
/// returned is JSON, which spells it.
pub(crate) fn plain(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// An action from `action_columns`.
pub(crate) fn action(row: &Row, at: usize) -> Result<Action, StoreError> {
    let mut c = Columns::of(row, at, "an action");
    let tenant = c.parsed()?;
    let id = c.action_id()?;
    let state = c.parsed()?;
    let version_counter = c.get()?;
    let event_seq = c.count()?;
    let attempt = AttemptNumber(c.count()?);
    let attempt_id = c.bytes_option()?.map(|bytes| AttemptId(uuid::Uuid::from_bytes(bytes)));
    let lease_expires = c.time_option()?;
    let in_flight = match c.get::<Option<i64>>()? {
        None => None,
        Some(ordinal) => Some(Ordinal(u32::try_from(ordinal).map_err(|error| c.damaged(&error))?)),
    };
    let cancel_requested = c.get()?;
    let attempts_left = c.count()?;
    let repeats_left = c.count()?;
    let next_attempt = c.time_option()?;
    let first_write = c.time_option()?;
    let unknown_effects = c.count()?;
    let standing_writes = c.count()?;
    let effects = c.count()?;
    let approved_fingerprint = c.bytes_option()?.map(Digest::from_bytes).map(Fingerprint);
    let approved_at = c.time_option()?;
    let superseded_by = c.action_id_option()?;
    let provider_reference = c.get()?;
    let error = match (c.get::<Option<String>>()?, c.get::<Option<String>>()?) {
        (Some(code), Some(message)) => Some(ActionError { code, message }),
        _ => None,
    };
    let updated = c.time()?;
    let policy_epoch = c.get()?;
    let approval_expires = c.time()?;
    let execution_deadline = c.time()?;
    let approvals_required = c.count()?;
    let run_by_itself = c.get()?;
    let created = c.time()?;
    let fingerprint = Fingerprint(c.digest()?);
    let intent = Intent(c.digest()?);
    let key: Vec<String> = c.json()?;
    let key = match key.as_slice() {
        [kind, key] if kind == "key" => ActionKey::Key(key.clone()),
        [kind, run, step] if kind == "run" => ActionKey::Run { run: run.clone(), step: step.clone() },
        _ => return Err(c.damaged(&"not an action key")),
    };
    Ok(Action {
        tenant,
        id,
        key,
        tool: c.parsed()?,
        requested_version: c.get()?,
        version: c.get()?,
        component: ComponentDigest(c.digest()?),
        grant: GrantDigest(c.digest()?),
        actor: c.parsed()?,
        proposer: c.parsed()?,
        supersedes: c.action_id_option()?,
        compensates: c.action_id_option()?,
        seed: c.bytes()?,
        preview: c.canonical_option()?,
        plan: c.canonical()?,
        arguments: c.canonical()?,
        result: c.canonical_option()?,
        rewound: c.get()?,
        announced: c.count_option()?,
        approvals: approvals(&mut c)?,
        intent,
        fingerprint,
        approvals_required,
        approval_expires,
        execution_deadline,
        policy_epoch,
        run_by_itself,
        created,
        state,
        approved_fingerprint,
        approved_at,
        attempt,
        attempt_id,
        lease_expires,
        in_flight,
        cancel_requested,
        attempts_left,
        repeats_left,
        next_attempt,
        first_write,
        unknown_effects,
        standing_writes,
        effects,
        superseded_by,
        provider_reference,
        error,
        updated,
        version_counter,
        event_seq,
    })
}

fn approvals(c: &mut Columns<'_>) -> Result<Vec<Approval>, StoreError> {
    let given: Vec<(String, i64, Option<String>, String)> = c.json_option()?.unwrap_or_default();
    given
        .into_iter()
        .map(|(by, at, note, fingerprint)| {
            let damaged =
                |why: &dyn std::fmt::Display| StoreError::Damaged { what: format!("an approval: {why}") };
            Ok(Approval {
                by: by.parse().map_err(|error| damaged(&error))?,
                at: Timestamp::from_micros(at),
                note,
                fingerprint: Fingerprint(fingerprint.parse().map_err(|error| damaged(&error))?),
            })
        })
        .collect()
}

/// An effect from `effect_columns`; `None` where there is none.
pub(crate) fn effect_option(row: &Row, at: usize) -> Result<Option<EffectRecord>, StoreError> {
    let there: Option<i64> = Columns::of(row, at, "an effect").get()?;
    there.map(|_| effect(row, at)).transpose()
}

/// An effect from `effect_columns`.
pub(crate) fn effect(row: &Row, at: usize) -> Result<EffectRecord, StoreError> {
    let mut c = Columns::of(row, at, "an effect");
    Ok(EffectRecord {
        ordinal: Ordinal(c.count()?),
        kind: c.parsed()?,
        write: c.get()?,
        terms: c.json()?,
        fingerprint: EffectFingerprint(c.digest()?),
        request: c.json()?,
        provider_key: c.get()?,
        status: c.parsed()?,
        attempt: AttemptId(uuid::Uuid::from_bytes(c.bytes()?)),
        send: SendNumber(c.count()?),
        first_sent: c.time_option()?,
        last_sent: c.time_option()?,
        may_have_arrived: c.get()?,
        unknown_since: c.time_option()?,
        answer: c.json_option()?,
        refusal: c.json_option()?,
        set_aside: c.get()?,
        evidence: c.json_option()?,
        recorded_at: c.time_option()?,
    })
}

/// An event.
pub(crate) fn event(row: &Row) -> Result<Event, StoreError> {
    let mut c = Columns::of(row, 0, "an event");
    Ok(Event {
        cursor: c.get()?,
        tenant: c.parsed()?,
        action: c.action_id()?,
        seq: c.count()?,
        at: c.time()?,
        body: c.get()?,
        hash: c.digest()?,
    })
}

/// An installed version of a tool.
pub(crate) fn tool(row: &Row) -> Result<InstalledTool, StoreError> {
    let mut c = Columns::of(row, 0, "a tool");
    Ok(InstalledTool {
        tenant: c.parsed()?,
        name: c.parsed()?,
        version: c.get()?,
        current: c.get()?,
        component: ComponentDigest(c.digest()?),
        grant: GrantDigest(c.digest()?),
        grant_source: c.get()?,
        inspection: c.json()?,
        paused: c.get()?,
        policy_epoch: c.get()?,
        installed: c.time()?,
    })
}

/// A token's holder.
pub(crate) fn principal(row: &Row) -> Result<PrincipalRow, StoreError> {
    let mut c = Columns::of(row, 0, "a principal");
    Ok(PrincipalRow {
        tenant: c.parsed()?,
        token_id: c.get()?,
        token_hash: c.digest()?,
        name: c.parsed()?,
        roles: c.json()?,
        created: c.time()?,
        revoked: c.time_option()?,
    })
}

/// The word for a condition on time in `sql::TRANSITION`.
pub(crate) const fn when(when: steps::When) -> &'static str {
    match when {
        steps::When::Always => "always",
        steps::When::ApprovalExpired => "approval_expired",
        steps::When::ApprovalOpen => "approval_open",
        steps::When::LeaseExpired => "lease_expired",
    }
}
