//! Quotas: how much of a host one tenant, one tool and one caller may take up,
//! so that none of them stops or slows the others, and so that nobody is asked
//! about more than a person can look at.
//!
//! Three kinds. *Proposals per minute* are counted by this host alone: each host
//! lets so many in, for it is the host's work that they cost. *Pending actions*
//! are counted by the database, so they hold over all hosts: what they cost is
//! people's attention. *Running actions* are places of this host ([`places`]).
//!
//! May not: remember more than a fixed number of names, whoever makes them up.
//!
//! [`places`]: crate::places

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use countersign_domain::action::Action;
use countersign_domain::id::{Principal, TenantId, ToolName};
use countersign_store::Store;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::places::{Place, PlaceLimits, Whose};
use crate::rates::Rates;
use crate::{GateError, Inner};

/// What one tenant may take up. Every number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// New proposals per minute, on each host: of the whole tenant,
    pub proposals_tenant: u32,
    /// of one of its tools,
    pub proposals_tool: u32,
    /// and of one of its callers, by principal.
    pub proposals_caller: u32,
    /// Actions that await a decision: of the whole tenant,
    pub pending_tenant: u32,
    /// of one of its tools,
    pub pending_tool: u32,
    /// of one of its callers, by principal,
    pub pending_caller: u32,
    /// and of one actor. More than a person reads, a person does not read.
    pub pending_actor: u32,
    /// Actions that run at once on each host: of the whole tenant,
    pub running_tenant: u32,
    /// of one of its tools,
    pub running_tool: u32,
    /// and of one of its callers, by the principal that proposed them.
    pub running_caller: u32,
    /// Executions that wait for one of those; one more is refused.
    pub waiting: u32,
}

impl Default for Quota {
    /// Chosen: a busy fleet of agents stays below; a loop that went wrong does
    /// not. Twenty pending actions per actor are what somebody can be expected
    /// to look at one by one.
    fn default() -> Quota {
        Quota {
            proposals_tenant: 6000,
            proposals_tool: 2400,
            proposals_caller: 1200,
            pending_tenant: 1000,
            pending_tool: 200,
            pending_caller: 200,
            pending_actor: 20,
            // Three quarters of the places: what is left is the others'.
            running_tenant: 192,
            // Two thirds of those: what is left is the other tools'.
            running_tool: 128,
            running_caller: 128,
            waiting: 1000,
        }
    }
}

impl Quota {
    /// None that anybody meets.
    pub const fn unlimited() -> Quota {
        let most = u32::MAX;
        Quota {
            proposals_tenant: most,
            proposals_tool: most,
            proposals_caller: most,
            pending_tenant: most,
            pending_tool: most,
            pending_caller: most,
            pending_actor: most,
            running_tenant: most,
            running_tool: most,
            running_caller: most,
            waiting: most,
        }
    }

    fn counts_pending(&self) -> bool {
        let limits = [self.pending_tenant, self.pending_tool, self.pending_caller, self.pending_actor];
        limits.iter().any(|limit| *limit < u32::MAX)
    }
}

/// The quotas of a host's tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quotas {
    /// Of a tenant that is not named.
    pub others: Quota,
    /// Of these.
    pub tenants: HashMap<TenantId, Quota>,
}

impl Quotas {
    /// The same for everybody.
    pub fn of(quota: Quota) -> Quotas {
        Quotas { others: quota, tenants: HashMap::new() }
    }

    /// What this tenant may take up.
    pub fn get(&self, tenant: &TenantId) -> &Quota {
        self.tenants.get(tenant).unwrap_or(&self.others)
    }

    pub(crate) fn places(&self, tenant: &TenantId) -> PlaceLimits {
        let quota = self.get(tenant);
        let count = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        PlaceLimits {
            tenant: count(quota.running_tenant),
            tool: count(quota.running_tool),
            caller: count(quota.running_caller),
            waiting: count(quota.waiting),
        }
    }
}

/// A tenant's proposals that are between their count and their row.
#[derive(Default)]
struct Door {
    lock: Arc<RwLock<()>>,
    inside: AtomicU32,
}

/// Who may propose now.
#[derive(Default)]
pub(crate) struct Admission {
    rates: Rates,
    /// Only tenants with somebody inside.
    doors: Mutex<HashMap<TenantId, Arc<Door>>>,
}

/// Held while the row is made.
pub(crate) struct Pass<'a> {
    admission: &'a Admission,
    tenant: TenantId,
    door: Option<Arc<Door>>,
    // Before the door is looked at in `drop`, so options.
    together: Option<OwnedRwLockReadGuard<()>>,
    alone: Option<OwnedRwLockWriteGuard<()>>,
}

/// Whose proposal.
pub(crate) struct Who<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) tool: &'a ToolName,
    pub(crate) caller: &'a Principal,
    pub(crate) actor: &'a Principal,
    /// It takes the place of another one, which may be pending still.
    pub(crate) replaces: bool,
}

impl Admission {
    /// Counts a new proposal.
    ///
    /// # Errors
    /// [`GateError::QuotaExceeded`]
    pub(crate) fn proposes(&self, quota: &Quota, who: &Who<'_>) -> Result<(), GateError> {
        let (tenant, tool, caller) = (who.tenant.as_str(), who.tool.as_str(), who.caller.as_str());
        let names: [(&[&str], u32); 3] = [
            (&["tenant", tenant], quota.proposals_tenant),
            (&["tool", tenant, tool], quota.proposals_tool),
            (&["caller", tenant, caller], quota.proposals_caller),
        ];
        self.rates.take(&names).map_err(|(at, retry_after)| {
            let (key, whose, limit) = match at {
                0 => ("tenant", format!("tenant {tenant}"), quota.proposals_tenant),
                1 => ("tool", format!("tool {tool}"), quota.proposals_tool),
                _ => ("caller", format!("caller {caller}"), quota.proposals_caller),
            };
            GateError::QuotaExceeded {
                quota: format!("proposals_per_minute.{key}"),
                why: format!("{whose} may propose {limit} new actions a minute; slow down"),
                whose,
                limit,
                retry_after,
            }
        })
    }

    /// Looks whether one more may be pending, before anything is spent on it.
    ///
    /// # Errors
    /// [`GateError::QuotaExceeded`]
    pub(crate) async fn looks(
        &self,
        store: &dyn Store,
        quota: &Quota,
        who: &Who<'_>,
    ) -> Result<(), GateError> {
        if quota.counts_pending() { self.room(store, quota, who, 0).await } else { Ok(()) }
    }

    /// Lets a proposal in to make its row. Far from a limit many at once go in
    /// and count themselves; close to it, one after another, so that a limit is
    /// met exactly. (Hosts do not wait for each other: those that propose at the
    /// same moment can go over by what they have in hand.)
    ///
    /// # Errors
    /// [`GateError::QuotaExceeded`]
    pub(crate) async fn enter<'a>(
        &'a self,
        store: &dyn Store,
        quota: &Quota,
        who: &Who<'_>,
    ) -> Result<Pass<'a>, GateError> {
        let mut pass =
            Pass { admission: self, tenant: who.tenant.clone(), door: None, together: None, alone: None };
        if !quota.counts_pending() {
            return Ok(pass);
        }
        let door = self.door(who.tenant);
        pass.door = Some(door.clone());
        pass.together = Some(door.lock.clone().read_owned().await);
        // Before the count: whoever leaves in between has made its row.
        let beside = door.inside.fetch_add(1, Ordering::SeqCst);
        if self.room(store, quota, who, beside).await.is_ok() {
            return Ok(pass);
        }
        door.inside.fetch_sub(1, Ordering::SeqCst);
        drop(pass.together.take());
        pass.alone = Some(door.lock.clone().write_owned().await);
        self.room(store, quota, who, 0).await?;
        Ok(pass)
    }

    async fn room(
        &self,
        store: &dyn Store,
        quota: &Quota,
        who: &Who<'_>,
        beside: u32,
    ) -> Result<(), GateError> {
        let pending = store.pending(who.tenant, who.tool, who.caller, who.actor).await?;
        let one_more = u32::from(!who.replaces).saturating_add(beside);
        for (key, whose, limit, found) in [
            ("actor", format!("actor {}", who.actor), quota.pending_actor, pending.actor),
            ("caller", format!("caller {}", who.caller), quota.pending_caller, pending.caller),
            ("tool", format!("tool {}", who.tool), quota.pending_tool, pending.tool),
            ("tenant", format!("tenant {}", who.tenant), quota.pending_tenant, pending.tenant),
        ] {
            if found.saturating_add(one_more) > limit {
                return Err(GateError::QuotaExceeded {
                    quota: format!("pending.{key}"),
                    why: format!(
                        "{whose} has {found} actions that await a decision, and {limit} may; wait for decisions, or \
                         cancel what is not needed any more"
                    ),
                    whose,
                    limit,
                    retry_after: PENDING_RETRY,
                });
            }
        }
        Ok(())
    }

    fn door(&self, tenant: &TenantId) -> Arc<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.entry(tenant.clone()).or_default().clone()
    }
}

impl Inner {
    /// Why an action that waited for a place has none.
    ///
    /// # Errors
    /// [`GateError::QuotaExceeded`] if its caller, its tool or its tenant has all
    /// it may have, [`GateError::Unavailable`] if the host has no more.
    pub(crate) fn may_run_one_more(&self, action: &Action) -> Result<(), GateError> {
        let limits = self.config.quotas.places(&action.tenant);
        let held = self.places.held_by(&action.tenant, &Whose::of(action));
        for (key, whose, limit, held) in [
            // The widest first: who is over that one is helped by no other.
            ("tenant", format!("tenant {}", action.tenant), limits.tenant, held.tenant),
            ("tool", format!("tool {}", action.tool), limits.tool, held.tool),
            ("caller", format!("caller {}", action.proposer), limits.caller, held.caller),
        ] {
            if held >= limit {
                return Err(GateError::QuotaExceeded {
                    quota: format!("running.{key}"),
                    why: format!(
                        "{whose} runs {limit} actions at once on this host, which is all it may; execute it again \
                         when some have ended"
                    ),
                    whose,
                    limit: u32::try_from(limit).unwrap_or(u32::MAX),
                    retry_after: RUNNING_RETRY,
                });
            }
        }
        if self.places.held() >= self.config.concurrent_attempts {
            return Err(GateError::unavailable(
                "this host runs as many actions as it may at once; try again",
            ));
        }
        Ok(())
    }

    /// A place to plan in.
    ///
    /// # Errors
    /// [`GateError::QuotaExceeded`]
    pub(crate) async fn planning_place(&self, who: &Who<'_>) -> Result<Place, GateError> {
        let tenant = who.tenant;
        let limits = self.config.quotas.places(tenant);
        // The same part of the planning places as of the others.
        let part = limits.tenant.min(self.config.concurrent_plans.saturating_mul(3).div_ceil(4));
        let limits = PlaceLimits { tenant: part, ..limits };
        let busy = |limit: usize, why: &str| GateError::QuotaExceeded {
            quota: "running.tenant".into(),
            why: format!("tenant {tenant} has {limit} proposals {why}"),
            whose: format!("tenant {tenant}"),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            retry_after: RUNNING_RETRY,
        };
        let whose = Whose { tool: who.tool.clone(), caller: who.caller.clone() };
        let acquire = self
            .planning
            .acquire(tenant, whose, limits)
            .map_err(|_| busy(limits.waiting, "waiting to be looked at; slow down"))?;
        tokio::time::timeout(PLANNING_WAIT, acquire).await.map_err(|_| {
            busy(part, "being looked at, which is all it may, or its tool and caller may; try again")
        })
    }
}

/// How long a proposal waits to be looked at. Chosen: less than callers wait
/// for an answer.
const PLANNING_WAIT: Duration = Duration::from_secs(20);

/// Runs end in seconds.
const RUNNING_RETRY: Duration = Duration::from_secs(2);

/// People decide in minutes; this is when it is worth another look.
const PENDING_RETRY: Duration = Duration::from_secs(30);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let Some(door) = self.door.take() else { return };
        if self.together.take().is_some() {
            door.inside.fetch_sub(1, Ordering::SeqCst);
        }
        self.alone = None;
        let mut doors = self.admission.doors.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's and this one: nobody else is inside or waits.
        if Arc::strong_count(&door) <= 2
            && doors.get(&self.tenant).is_some_and(|kept| Arc::ptr_eq(kept, &door))
        {
            doors.remove(&self.tenant);
        }
    }
}
