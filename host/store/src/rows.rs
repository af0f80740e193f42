//! Rows to nouns and back, the same for every database: what a database says of a
//! column is behind [`Columns`]. A row that is not what the schema says is
//! [`StoreError::Damaged`], never a guess.
//!
//! The order of the columns is that of the lists at the head of each `sql`.

use std::fmt::Display;
use std::str::FromStr;

use countersign_domain::action::{Action, ActionError, State};
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

use crate::registry::PrincipalRow;
use crate::{StoreError, steps};

/// The columns of a row, one after the other. What `'r` is borrowed from is the row.
pub(crate) trait Columns<'r> {
    /// The next column.
    fn text_option(&mut self) -> Result<Option<&'r str>, StoreError>;
    /// The next column.
    fn number_option(&mut self) -> Result<Option<i64>, StoreError>;
    /// The next column.
    fn blob_option(&mut self) -> Result<Option<&'r [u8]>, StoreError>;
    /// The next column.
    fn truth(&mut self) -> Result<bool, StoreError>;
    /// What is wrong with the column read last.
    fn damaged(&self, why: &dyn Display) -> StoreError;

    /// What may not be null.
    fn there<T>(&self, column: Option<T>) -> Result<T, StoreError> {
        column.ok_or_else(|| self.damaged(&"it is null"))
    }

    fn text(&mut self) -> Result<&'r str, StoreError> {
        let text = self.text_option()?;
        self.there(text)
    }

    fn owned(&mut self) -> Result<String, StoreError> {
        self.text().map(str::to_owned)
    }

    fn owned_option(&mut self) -> Result<Option<String>, StoreError> {
        Ok(self.text_option()?.map(str::to_owned))
    }

    fn parsed<T: FromStr<Err: Display>>(&mut self) -> Result<T, StoreError> {
        self.text()?.parse().map_err(|error: T::Err| self.damaged(&error))
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        serde_json::from_str(self.text()?).map_err(|error| self.damaged(&error))
    }

    fn json_option<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        self.text_option()?.map(serde_json::from_str).transpose().map_err(|error| self.damaged(&error))
    }

    fn canonical(&mut self) -> Result<CanonicalJson, StoreError> {
        self.owned().map(CanonicalJson::from_trusted)
    }

    fn canonical_option(&mut self) -> Result<Option<CanonicalJson>, StoreError> {
        Ok(self.owned_option()?.map(CanonicalJson::from_trusted))
    }

    fn number(&mut self) -> Result<i64, StoreError> {
        let number = self.number_option()?;
        self.there(number)
    }

    /// A count: never negative.
    fn count(&mut self) -> Result<u32, StoreError> {
        self.number()?.try_into().map_err(|error: std::num::TryFromIntError| self.damaged(&error))
    }

    fn count_option(&mut self) -> Result<Option<u32>, StoreError> {
        self.number_option()?.map(u32::try_from).transpose().map_err(|error| self.damaged(&error))
    }

    fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.number().map(Timestamp::from_micros)
    }

    fn time_option(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.number_option()?.map(Timestamp::from_micros))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let bytes = self.bytes_option()?;
        self.there(bytes)
    }

    fn bytes_option<const N: usize>(&mut self) -> Result<Option<[u8; N]>, StoreError> {
        self.blob_option()?.map(<[u8; N]>::try_from).transpose().map_err(|error| self.damaged(&error))
    }

    fn digest(&mut self) -> Result<Digest, StoreError> {
        self.bytes().map(Digest::from_bytes)
    }

    fn action_id(&mut self) -> Result<ActionId, StoreError> {
        Ok(ActionId(uuid::Uuid::from_bytes(self.bytes()?)))
    }

    fn action_id_option(&mut self) -> Result<Option<ActionId>, StoreError> {
        Ok(self.bytes_option()?.map(|bytes| ActionId(uuid::Uuid::from_bytes(bytes))))
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

/// An action, without its approvals: how those come along differs.
pub(crate) fn action<'r>(c: &mut impl Columns<'r>) -> Result<Action, StoreError> {
    let tenant = c.parsed()?;
    let id = c.action_id()?;
    let state = c.parsed()?;
    let version_counter = c.number()?;
    let event_seq = c.count()?;
    let attempt = AttemptNumber(c.count()?);
    let attempt_id = c.bytes_option()?.map(|bytes| AttemptId(uuid::Uuid::from_bytes(bytes)));
    let lease_expires = c.time_option()?;
    let in_flight = c.count_option()?.map(Ordinal);
    let cancel_requested = c.owned_option()?;
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
    let provider_reference = c.owned_option()?;
    let error = match (c.owned_option()?, c.owned_option()?) {
        (Some(code), Some(message)) => Some(ActionError { code, message }),
        _ => None,
    };
    let updated = c.time()?;
    let policy_epoch = c.number()?;
    let approval_expires = c.time()?;
    let execution_deadline = c.time()?;
    let approvals_required = c.count()?;
    let run_by_itself = c.truth()?;
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
        requested_version: c.owned_option()?,
        version: c.owned()?,
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
        rewound: c.truth()?,
        announced: c.count_option()?,
        approvals: Vec::new(),
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

/// An effect from `effect_columns`.
pub(crate) fn effect<'r>(c: &mut impl Columns<'r>) -> Result<EffectRecord, StoreError> {
    Ok(EffectRecord {
        ordinal: Ordinal(c.count()?),
        kind: c.parsed()?,
        write: c.truth()?,
        terms: c.json()?,
        fingerprint: EffectFingerprint(c.digest()?),
        request: c.json()?,
        provider_key: c.owned_option()?,
        status: c.parsed()?,
        attempt: AttemptId(uuid::Uuid::from_bytes(c.bytes()?)),
        send: SendNumber(c.count()?),
        first_sent: c.time_option()?,
        last_sent: c.time_option()?,
        may_have_arrived: c.truth()?,
        unknown_since: c.time_option()?,
        answer: c.json_option()?,
        refusal: c.json_option()?,
        set_aside: c.truth()?,
        evidence: c.json_option()?,
        recorded_at: c.time_option()?,
    })
}

/// Which action, and where it is.
pub(crate) fn key<'r>(c: &mut impl Columns<'r>) -> Result<(TenantId, ActionId, State), StoreError> {
    Ok((c.parsed()?, c.action_id()?, c.parsed()?))
}

/// An event.
pub(crate) fn event<'r>(c: &mut impl Columns<'r>) -> Result<Event, StoreError> {
    Ok(Event {
        cursor: c.number()?,
        tenant: c.parsed()?,
        action: c.action_id()?,
        seq: c.count()?,
        at: c.time()?,
        body: c.owned()?,
        hash: c.digest()?,
    })
}

/// An installed version of a tool.
pub(crate) fn tool<'r>(c: &mut impl Columns<'r>) -> Result<InstalledTool, StoreError> {
    Ok(InstalledTool {
        tenant: c.parsed()?,
        name: c.parsed()?,
        version: c.owned()?,
        current: c.truth()?,
        component: ComponentDigest(c.digest()?),
        grant: GrantDigest(c.digest()?),
        grant_source: c.owned()?,
        inspection: c.json()?,
        paused: c.truth()?,
        policy_epoch: c.number()?,
        installed: c.time()?,
    })
}

/// A token's holder.
pub(crate) fn principal<'r>(c: &mut impl Columns<'r>) -> Result<PrincipalRow, StoreError> {
    Ok(PrincipalRow {
        tenant: c.parsed()?,
        token_id: c.owned()?,
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
