//! A row of PostgreSQL. What a row means is in [`crate::rows`].

use std::fmt::Display;

use countersign_domain::action::{Action, State};
use countersign_domain::approval::Approval;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, Fingerprint, TenantId};
use countersign_domain::time::Timestamp;
use countersign_domain::tool::InstalledTool;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::StoreError;
use crate::registry::PrincipalRow;
use crate::rows::{self, Columns as _};
pub(crate) use crate::rows::{json, json_option, when};

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

    /// The next column.
    pub(crate) fn get<T: FromSql<'r>>(&mut self) -> Result<T, StoreError> {
        self.at += 1;
        let row: &'r Row = self.row;
        row.try_get(self.at - 1).map_err(|error| rows::Columns::damaged(self, &super::fault::text(&error)))
    }
}

impl<'r> rows::Columns<'r> for Columns<'r> {
    fn text_option(&mut self) -> Result<Option<&'r str>, StoreError> {
        self.get()
    }

    fn number_option(&mut self) -> Result<Option<i64>, StoreError> {
        self.get()
    }

    fn blob_option(&mut self) -> Result<Option<&'r [u8]>, StoreError> {
        self.get()
    }

    fn truth(&mut self) -> Result<bool, StoreError> {
        self.get()
    }

    fn damaged(&self, why: &dyn Display) -> StoreError {
        let column = self.row.columns().get(self.at.saturating_sub(1)).map_or("?", |column| column.name());
        StoreError::Damaged { what: format!("{}, column {column}: {why}", self.what) }
    }
}

/// Text for people from outside. This database holds no U+0000, and a step must
/// not fail for a character in somebody's words; what is compared, hashed or
/// returned is JSON, which spells it.
pub(crate) fn plain(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// An approval as it stands in an action's row: who, when, their words, the fingerprint.
#[derive(serde::Deserialize)]
struct Given(String, i64, Option<String>, String);

/// An action from `action_columns`, with its approvals.
pub(crate) fn action(row: &Row, at: usize) -> Result<Action, StoreError> {
    let mut c = Columns::of(row, at, "an action");
    let mut action = rows::action(&mut c)?;
    let given: Option<Vec<Given>> = c.json_option()?;
    for Given(by, at, note, fingerprint) in given.unwrap_or_default() {
        action.approvals.push(Approval {
            by: by.parse().map_err(|error| c.damaged(&error))?,
            at: Timestamp::from_micros(at),
            note,
            fingerprint: Fingerprint(fingerprint.parse().map_err(|error| c.damaged(&error))?),
        });
    }
    Ok(action)
}

/// An effect from `effect_columns`; `None` where there is none.
pub(crate) fn effect_option(row: &Row, at: usize) -> Result<Option<EffectRecord>, StoreError> {
    let there: Option<i64> = Columns::of(row, at, "an effect").get()?;
    there.map(|_| effect(row, at)).transpose()
}

pub(crate) fn effect(row: &Row, at: usize) -> Result<EffectRecord, StoreError> {
    rows::effect(&mut Columns::of(row, at, "an effect"))
}

pub(crate) fn key(row: &Row) -> Result<(TenantId, ActionId, State), StoreError> {
    rows::key(&mut Columns::of(row, 0, "an action"))
}

pub(crate) fn event(row: &Row) -> Result<Event, StoreError> {
    rows::event(&mut Columns::of(row, 0, "an event"))
}

pub(crate) fn tool(row: &Row) -> Result<InstalledTool, StoreError> {
    rows::tool(&mut Columns::of(row, 0, "a tool"))
}

pub(crate) fn principal(row: &Row) -> Result<PrincipalRow, StoreError> {
    rows::principal(&mut Columns::of(row, 0, "a principal"))
}
