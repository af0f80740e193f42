//! A row of SQLite, and rows by the query. What a row means is in [`crate::rows`].

use std::fmt::Display;

use countersign_domain::action::{Action, State};
use countersign_domain::approval::Approval;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, Fingerprint, TenantId};
use countersign_domain::tool::InstalledTool;
use rusqlite::types::{FromSqlError, ValueRef};
use rusqlite::{Connection, Row, params};

use super::{fault, sql};
use crate::StoreError;
use crate::registry::PrincipalRow;
use crate::rows::{self, Columns as _};
pub(crate) use crate::rows::{json, json_option, when};

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

    fn next<T>(
        &mut self,
        read: impl FnOnce(ValueRef<'r>) -> Result<T, FromSqlError>,
    ) -> Result<T, StoreError> {
        self.at += 1;
        let value = self.row.get_ref(self.at - 1).map_err(fault::statement)?;
        read(value).map_err(|error| rows::Columns::damaged(self, &error))
    }
}

impl<'r> rows::Columns<'r> for Columns<'r, '_> {
    fn text_option(&mut self) -> Result<Option<&'r str>, StoreError> {
        self.next(|value| value.as_str_or_null())
    }

    fn number_option(&mut self) -> Result<Option<i64>, StoreError> {
        self.next(|value| value.as_i64_or_null())
    }

    fn blob_option(&mut self) -> Result<Option<&'r [u8]>, StoreError> {
        self.next(|value| value.as_blob_or_null())
    }

    fn truth(&mut self) -> Result<bool, StoreError> {
        self.next(|value| value.as_i64()).map(|number| number != 0)
    }

    fn damaged(&self, why: &dyn Display) -> StoreError {
        let column = self.row.as_ref().column_name(self.at.saturating_sub(1)).unwrap_or("?").to_owned();
        StoreError::Damaged { what: format!("{}, column {column}: {why}", self.what) }
    }
}

/// An action from `action_columns`; its approvals are read apart, where it has any.
pub(crate) fn action(conn: &Connection, row: &Row<'_>) -> Result<Action, StoreError> {
    let mut c = Columns::of(row, "an action");
    let mut action = rows::action(&mut c)?;
    if c.count()? > 0 {
        let of = params![action.tenant.as_str(), action.id.0.as_bytes()];
        action.approvals = collect(conn, sql::APPROVALS, of, |_, row| approval(row))?;
    }
    Ok(action)
}

fn approval(row: &Row<'_>) -> Result<Approval, StoreError> {
    let mut c = Columns::of(row, "an approval");
    Ok(Approval {
        by: c.parsed()?,
        at: c.time()?,
        note: c.owned_option()?,
        fingerprint: Fingerprint(c.digest()?),
    })
}

pub(crate) fn effect(row: &Row<'_>) -> Result<EffectRecord, StoreError> {
    rows::effect(&mut Columns::of(row, "an effect"))
}

pub(crate) fn key(row: &Row<'_>) -> Result<(TenantId, ActionId, State), StoreError> {
    rows::key(&mut Columns::of(row, "an action"))
}

pub(crate) fn event(row: &Row<'_>) -> Result<Event, StoreError> {
    rows::event(&mut Columns::of(row, "an event"))
}

pub(crate) fn tool(row: &Row<'_>) -> Result<InstalledTool, StoreError> {
    rows::tool(&mut Columns::of(row, "a tool"))
}

pub(crate) fn principal(row: &Row<'_>) -> Result<PrincipalRow, StoreError> {
    rows::principal(&mut Columns::of(row, "a principal"))
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
