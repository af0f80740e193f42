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
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{fault, sql};
use crate::registry::PrincipalRow;
use crate::{StoreError, steps};

/// Reads a row's columns one after the other.
struct Columns<'r, 's> {
    row: &'r Row<'s>,
    at: usize,
    what: &'static str,
}

impl<'r, 's> Columns<'r, 's> {
    fn of(row: &'r Row<'s>, what: &'static str) -> Columns<'r, 's> {
        Columns { row, at: 0, what }
    }

    fn damaged(&self, why: &dyn std::fmt::Display) -> StoreError {
        let column = self.row.as_ref().column_name(self.at - 1).unwrap_or("?").to_owned();
        StoreError::Damaged { what: format!("{}, column {column}: {why}", self.what) }
    }

    fn get<T: FromSql>(&mut self) -> Result<T, StoreError> {
        self.at += 1;
        self.row.get(self.at - 1).map_err(|error| self.damaged(&error))
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&mut self) -> Result<T, StoreError> {
        self.at += 1;
        let text = self.row.get_ref(self.at - 1).map_err(fault::statement)?;
        let text = text.as_str().map_err(|error| self.damaged(&error))?;
        text.parse().map_err(|error| self.damaged(&error))
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        self.at += 1;
        let text = self.row.get_ref(self.at - 1).map_err(fault::statement)?;
        let text = text.as_str().map_err(|error| self.damaged(&error))?;
        serde_json::from_str(text).map_err(|error| self.damaged(&error))
    }

    fn json_option<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        self.at += 1;
        let text = self.row.get_ref(self.at - 1).map_err(fault::statement)?;
        let text = text.as_str_or_null().map_err(|error| self.damaged(&error))?;
        text.map(serde_json::from_str).transpose().map_err(|error| self.damaged(&error))
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

    fn digest(&mut self) -> Result<Digest, StoreError> {
        self.get().map(Digest::from_bytes)
    }

    fn digest_option(&mut self) -> Result<Option<Digest>, StoreError> {
        Ok(self.get::<Option<[u8; 32]>>()?.map(Digest::from_bytes))
    }

    fn action_id(&mut self) -> Result<ActionId, StoreError> {
        Ok(ActionId(uuid::Uuid::from_bytes(self.get()?)))
    }

    fn action_id_option(&mut self) -> Result<Option<ActionId>, StoreError> {
        Ok(self.get::<Option<[u8; 16]>>()?.map(|bytes| ActionId(uuid::Uuid::from_bytes(bytes))))
    }

    fn attempt_option(&mut self) -> Result<Option<AttemptId>, StoreError> {
        Ok(self.get::<Option<[u8; 16]>>()?.map(|bytes| AttemptId(uuid::Uuid::from_bytes(bytes))))
    }
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

/// An action from `action_columns`; its approvals are read apart, where it has any.
pub(crate) fn action(conn: &Connection, row: &Row<'_>) -> Result<Action, StoreError> {
    let (mut action, approvals) = action_alone(row)?;
    if approvals > 0 {
        action.approvals = self::approvals(conn, &action)?;
    }
    Ok(action)
}

fn action_alone(row: &Row<'_>) -> Result<(Action, u32), StoreError> {
    let mut c = Columns::of(row, "an action");
    let tenant = c.parsed()?;
    let id = c.action_id()?;
    let state = c.parsed()?;
    let version_counter = c.get()?;
    let event_seq = c.get()?;
    let attempt = AttemptNumber(c.get()?);
    let attempt_id = c.attempt_option()?;
    let lease_expires = c.time_option()?;
    let in_flight = c.get::<Option<u32>>()?.map(Ordinal);
    let cancel_requested = c.get()?;
    let attempts_left = c.get()?;
    let repeats_left = c.get()?;
    let next_attempt = c.time_option()?;
    let first_write = c.time_option()?;
    let unknown_effects = c.get()?;
    let standing_writes = c.get()?;
    let effects = c.get()?;
    let approvals_given = c.get()?;
    let approved_fingerprint = c.digest_option()?.map(Fingerprint);
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
    let approvals_required = c.get()?;
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
    let (_run, _step): (Option<String>, Option<String>) = (c.get()?, c.get()?);
    let action = Action {
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
        seed: c.get()?,
        preview: c.canonical_option()?,
        plan: c.canonical()?,
        arguments: c.canonical()?,
        result: c.canonical_option()?,
        rewound: c.get()?,
        announced: c.get()?,
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
        approvals: Vec::new(),
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
    };
    Ok((action, approvals_given))
}

fn approvals(conn: &Connection, action: &Action) -> Result<Vec<Approval>, StoreError> {
    collect(conn, sql::APPROVALS, params![action.tenant.as_str(), action.id.0.as_bytes()], |_, row| {
        let mut c = Columns::of(row, "an approval");
        Ok(Approval { by: c.parsed()?, at: c.time()?, note: c.get()?, fingerprint: Fingerprint(c.digest()?) })
    })
}

/// An effect from `effect_columns`.
pub(crate) fn effect(row: &Row<'_>) -> Result<EffectRecord, StoreError> {
    let mut c = Columns::of(row, "an effect");
    Ok(EffectRecord {
        ordinal: Ordinal(c.get()?),
        kind: c.parsed()?,
        write: c.get()?,
        terms: c.json()?,
        fingerprint: EffectFingerprint(c.digest()?),
        request: c.json()?,
        provider_key: c.get()?,
        status: c.parsed()?,
        attempt: AttemptId(uuid::Uuid::from_bytes(c.get()?)),
        send: SendNumber(c.get()?),
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

/// Which action, and where it is.
pub(crate) fn key(row: &Row<'_>) -> Result<(TenantId, ActionId, State), StoreError> {
    let mut c = Columns::of(row, "an action");
    Ok((c.parsed()?, c.action_id()?, c.parsed()?))
}

/// An event.
pub(crate) fn event(row: &Row<'_>) -> Result<Event, StoreError> {
    let mut c = Columns::of(row, "an event");
    Ok(Event {
        cursor: c.get()?,
        tenant: c.parsed()?,
        action: c.action_id()?,
        seq: c.get()?,
        at: c.time()?,
        body: c.get()?,
        hash: c.digest()?,
    })
}

/// An installed version of a tool.
pub(crate) fn tool(row: &Row<'_>) -> Result<InstalledTool, StoreError> {
    let mut c = Columns::of(row, "a tool");
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
pub(crate) fn principal(row: &Row<'_>) -> Result<PrincipalRow, StoreError> {
    let mut c = Columns::of(row, "a principal");
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

/// All rows of a query.
pub(crate) fn collect<T>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&Connection, &Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = conn.prepare_cached(sql).map_err(fault::statement)?;
    let mut rows = statement.query(params).map_err(fault::statement)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(fault::statement)? {
        all.push(read(conn, row)?);
    }
    Ok(all)
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
