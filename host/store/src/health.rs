//! What a store knows of its own condition, for an operator who asks before
//! trusting it, and how many actions wait in it now.
//!
//! Nothing here is needed for a step to be right, and nothing here changes
//! anything: an examination takes no host's place, and neither makes nor
//! migrates a database.

use std::path::PathBuf;

use countersign_domain::action::State;
use countersign_domain::id::{TenantId, ToolName};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// It works, and somebody should know.
    Warning,
    /// A host would not start on it, or could lose what it promised.
    Failure,
}

impl Level {
    /// `ok`, `warn` or `fail`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Warning => "warn",
            Level::Failure => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What: one or two words, always the same for the same check.
    pub check: &'static str,
    /// How it is.
    pub level: Level,
    /// What was found: a sentence without its full stop.
    pub found: String,
    /// What to do about it; empty where nothing has to be done.
    pub advice: String,
}

impl Finding {
    /// As it should be.
    pub fn good(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, level: Level::Good, found: found.into(), advice: String::new() }
    }

    /// It works, and somebody should know.
    pub fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, level: Level::Warning, found: found.into(), advice: advice.into() }
    }

    /// A host would not start on it, or could lose what it promised.
    pub fn failure(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, level: Level::Failure, found: found.into(), advice: advice.into() }
    }
}

/// A grant that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantInForce {
    /// Whose.
    pub tenant: TenantId,
    /// Of which tool.
    pub tool: ToolName,
    /// TOML.
    pub source: String,
}

/// What was found out about a store from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// One per check, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// What tools may reach, as far as the database could be read.
    pub grants: Vec<GrantInForce>,
    /// The folder that the database's files are in, where it is on this
    /// machine.
    pub folder: Option<PathBuf>,
    /// A running host holds the store (only a file is held): its process, or 0
    /// where that is not known.
    pub held_by: Option<u32>,
}

/// States that an action does not stay in for good, and so the ones that are
/// worth counting: those that end it only ever grow.
pub const OPEN_STATES: [State; 5] = [
    State::AwaitingApproval,
    State::Approved,
    State::Executing,
    State::FailedRetryable,
    State::OutcomeUnknown,
];

/// How far is counted, per state. Chosen: an index range of so many rows is
/// read within milliseconds; more than this is a number for a person to look
/// into, whatever it is exactly.
pub const COUNTED_AT_MOST: u32 = 10_000;

/// How many actions of all tenants stand where, now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Open actions by state, in the order of [`OPEN_STATES`]; each up to
    /// [`COUNTED_AT_MOST`].
    pub open: Vec<(State, u32)>,
    /// Of those in `outcome_unknown`, the ones that nothing will be done about
    /// unless a person says what came of them.
    pub waiting_for_person: u32,
}

/// The census in SQL, the same text in both databases: per state, over the
/// index by tenant and state, and no further than [`COUNTED_AT_MOST`]. The row
/// without a state counts what waits for a person.
pub(crate) const CENSUS: &str = "\
select w.state, (
    select count(*) from (
        select 1 from tenants t join actions a on a.tenant_id = t.tenant_id and a.state = w.state limit 10000
    ) x
) from (
    select 'awaiting_approval' as state union all select 'approved' union all select 'executing'
    union all select 'failed_retryable' union all select 'outcome_unknown'
) w
union all
select 'waits_for_person', (
    select count(*) from (
        select 1 from tenants t join actions a on a.tenant_id = t.tenant_id and a.state = 'outcome_unknown'
        where a.due_at is null limit 10000
    ) x
)";

/// Grants that are in force, the same text in both databases.
pub(crate) const GRANTS_IN_FORCE: &str = "select t.tenant_id, t.name, g.source from tools t \
     join grants g on g.tenant_id = t.tenant_id and g.digest = t.grant_digest order by t.tenant_id, t.name";

/// A census from its rows.
pub(crate) fn census(rows: impl IntoIterator<Item = (String, i64)>) -> Census {
    let mut census = Census::default();
    for (state, count) in rows {
        let count = u32::try_from(count).unwrap_or(COUNTED_AT_MOST);
        match state.parse() {
            Ok(state) => census.open.push((state, count)),
            Err(_) => census.waiting_for_person = count,
        }
    }
    census.open.sort_by_key(|(state, _)| OPEN_STATES.iter().position(|open| open == state));
    census
}

/// A grant in force from its row; `None`: the row is damaged, and is said
/// elsewhere to be.
pub(crate) fn grant_in_force(tenant: &str, tool: &str, source: String) -> Option<GrantInForce> {
    Some(GrantInForce { tenant: tenant.parse().ok()?, tool: tool.parse().ok()?, source })
}

/// A finding about migrations: what is applied, by number and checksum, against
/// what this version knows.
pub(crate) fn schema(applied: &[(i64, String)], known: &[(i64, String)]) -> Finding {
    const CHECK: &str = "schema";
    for (number, checksum) in applied {
        match known.iter().find(|(found, _)| found == number) {
            None => {
                return Finding::failure(
                    CHECK,
                    format!("the database was made by a newer version: it has migration {number}"),
                    "start that version, or restore a backup from before the upgrade",
                );
            }
            Some((_, wanted)) if wanted != checksum => {
                return Finding::failure(
                    CHECK,
                    format!("migration {number} of the database is another build's"),
                    "start that build, or restore a backup",
                );
            }
            Some(_) => {}
        }
    }
    let missing = known.len().saturating_sub(applied.len());
    if missing > 0 {
        return Finding::warning(
            CHECK,
            format!("{missing} of {} migrations are still to be applied", known.len()),
            "the next `countersign serve` applies them; take a backup before",
        );
    }
    Finding::good(CHECK, format!("at migration {}, as this version wants it", applied.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_is_newer_or_anothers_fails_and_one_that_is_older_is_only_said() {
        let known = [(1, "a".to_owned()), (2, "b".to_owned())];
        assert_eq!(schema(&known, &known).level, Level::Good);
        assert_eq!(schema(&known[..1], &known).level, Level::Warning);
        assert_eq!(schema(&known, &known[..1]).level, Level::Failure);
        assert_eq!(schema(&[(1, "x".to_owned())], &known).level, Level::Failure);
    }

    #[test]
    fn the_census_counts_as_far_as_it_says() {
        assert!(CENSUS.contains(&format!("limit {COUNTED_AT_MOST}")));
        for state in OPEN_STATES {
            assert!(CENSUS.contains(&format!("'{}'", state.as_str())), "{state}");
        }
        let found =
            census([("outcome_unknown".into(), 2), ("waits_for_person".into(), 1), ("approved".into(), 3)]);
        assert_eq!(found.open, [(State::Approved, 3), (State::OutcomeUnknown, 2)]);
        assert_eq!(found.waiting_for_person, 1);
    }
}
