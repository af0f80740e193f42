//! Places to run in, shared out fairly: so many runs at once on this host, no
//! more than a part of them for one tenant, of those no more than a part for one
//! of its tools and one of its callers, and where runs wait, one of each tenant
//! in turn.
//!
//! A semaphore alone serves who came first, and a thousand calls of one tenant
//! that sleep a minute are all in front of another's one. Here nobody's place
//! depends on how many others a neighbour asks for: a tenant's part is less than
//! the whole, and what becomes free goes round. Within a tenant's line, runs of a
//! tool or a caller that has all it may are passed over by the ones behind them.
//!
//! Counts what this host runs. What other hosts run is theirs to count: a place
//! is this host's memory, not the tenant's right.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use countersign_domain::action::Action;
use countersign_domain::id::{Principal, TenantId, ToolName};
use tokio::sync::{Notify, oneshot};

/// How many may run, and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Runs at once of one tenant.
    pub tenant: usize,
    /// Of those, runs of one tool,
    pub tool: usize,
    /// and runs that one caller proposed.
    pub caller: usize,
    /// Runs of one tenant that wait for a place; one more is refused.
    pub waiting: usize,
}

/// Whose run it is, within its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose {
    /// The tool that runs.
    pub tool: ToolName,
    /// Who proposed it, whoever asked for it to be run.
    pub caller: Principal,
}

impl Whose {
    /// Whose an action's run is.
    pub fn of(action: &Action) -> Whose {
        Whose { tool: action.tool.clone(), caller: action.proposer.clone() }
    }
}

/// How many places are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// By the tenant.
    pub tenant: usize,
    /// Of those, by the tool.
    pub tool: usize,
    /// Of those, by the caller.
    pub caller: usize,
}

/// Why nobody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

/// The places of a host. Cheap to clone.
#[derive(Clone)]
pub struct Places {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Told whenever a place is given back.
    freed: Notify,
}

struct State {
    free: usize,
    all: usize,
    /// Only tenants that hold or wait: nobody's name stays behind.
    lines: HashMap<TenantId, Line>,
    /// Tenants with somebody who waits and may be served, each once, longest
    /// unserved first.
    turns: VecDeque<TenantId>,
}

struct Line {
    limits: PlaceLimits,
    held: usize,
    /// Of those held, the ones of which it is not known yet whose they are. They
    /// count against every tool and every caller.
    nameless: usize,
    by_tool: HashMap<ToolName, usize>,
    by_caller: HashMap<Principal, usize>,
    waiting: VecDeque<Waiting>,
    /// It stands in `turns`.
    has_turn: bool,
}

struct Waiting {
    whose: Whose,
    give: oneshot::Sender<Place>,
}

/// A place that is held; given back when it is dropped.
pub struct Place {
    shared: Arc<Shared>,
    tenant: TenantId,
    /// `None`: not known yet.
    whose: Option<Whose>,
}

impl Places {
    /// So many places.
    pub fn new(all: usize) -> Places {
        let state = State { free: all, all, lines: HashMap::new(), turns: VecDeque::new() };
        Places { shared: Arc::new(Shared { state: Mutex::new(state), freed: Notify::new() }) }
    }

    /// A place at once, before it is known whose run it is for, if that cannot
    /// matter: the tenant holds fewer than any tool or caller may. Far from the
    /// limits this spares the look at what is to be run. The place is to be named
    /// by [`Place::is_for`].
    pub fn at_once(&self, tenant: &TenantId, limits: PlaceLimits) -> Option<Place> {
        let mut state = self.shared.lock();
        let line = state.lines.get(tenant);
        let (held, waits) = line.map_or((0, false), |line| (line.held, !line.waiting.is_empty()));
        if state.free == 0 || waits || held >= limits.tenant.min(limits.tool).min(limits.caller) {
            return None;
        }
        Some(Place::taken(&self.shared, &mut state, tenant, None, limits))
    }

    /// A place for a run, at once or when its turn comes. Dropped, the wait takes
    /// no place.
    ///
    /// # Errors
    /// [`QueueFull`] if as many of this tenant wait as may.
    pub fn acquire(
        &self,
        tenant: &TenantId,
        whose: Whose,
        limits: PlaceLimits,
    ) -> Result<impl Future<Output = Place> + Send + use<>, QueueFull> {
        let (give, given) = oneshot::channel();
        let mut state = self.shared.lock();
        let free = state.free > 0;
        let line = state.line(tenant, limits);
        line.limits = limits;
        if line.waiting.len() >= limits.waiting {
            // Whoever gave up waiting makes room.
            line.waiting.retain(|waiting| !waiting.give.is_closed());
        }
        // Where there is a free place, nobody waits who may have it.
        let may = line.may_hold(&whose);
        if !(may && free) && line.waiting.len() >= limits.waiting {
            state.forget_if_idle(tenant);
            return Err(QueueFull);
        }
        line.waiting.push_back(Waiting { whose: whose.clone(), give });
        if may {
            state.give_turn(tenant);
        }
        let unwanted = state.share_out(&self.shared);
        drop(state);
        drop(unwanted);
        let shared = self.shared.clone();
        let tenant = tenant.clone();
        Ok(async move {
            match given.await {
                Ok(place) => place,
                // The line is only ever emptied by serving it; should that be
                // untrue one day, running is right and being stuck is not.
                Err(_) => Place::taken(&shared, &mut shared.lock(), &tenant, Some(whose), limits),
            }
        })
    }

    /// Places that are held.
    pub fn held(&self) -> usize {
        let state = self.shared.lock();
        state.all.saturating_sub(state.free)
    }

    /// Places that this tenant holds, and how many of them are for runs like this
    /// one.
    pub fn held_by(&self, tenant: &TenantId, whose: &Whose) -> Held {
        let state = self.shared.lock();
        let Some(line) = state.lines.get(tenant) else { return Held::default() };
        Held {
            tenant: line.held,
            tool: line.by_tool.get(&whose.tool).copied().unwrap_or(0),
            caller: line.by_caller.get(&whose.caller).copied().unwrap_or(0),
        }
    }

    /// Returns when nobody holds a place.
    pub async fn all_free(&self) {
        loop {
            let freed = self.shared.freed.notified();
            tokio::pin!(freed);
            // Before the look, so that no return between the two is missed.
            freed.as_mut().enable();
            if self.held() == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, tenant: &TenantId, limits: PlaceLimits) -> &mut Line {
        self.lines.entry(tenant.clone()).or_insert_with(|| Line {
            limits,
            held: 0,
            nameless: 0,
            by_tool: HashMap::new(),
            by_caller: HashMap::new(),
            waiting: VecDeque::new(),
            has_turn: false,
        })
    }

    /// Puts a tenant at the end of the turns.
    fn give_turn(&mut self, tenant: &TenantId) {
        if let Some(line) = self.lines.get_mut(tenant)
            && !line.has_turn
        {
            line.has_turn = true;
            self.turns.push_back(tenant.clone());
        }
    }

    /// The same, if it waits with a run that may have a place now.
    fn give_turn_if_due(&mut self, tenant: &TenantId) {
        if self.lines.get(tenant).is_some_and(|line| line.next_due().is_some()) {
            self.give_turn(tenant);
        }
    }

    /// Serves turns while there are places. What nobody wants any more is
    /// returned, to be dropped when the lock is not held.
    fn share_out(&mut self, shared: &Arc<Shared>) -> Vec<Place> {
        let mut unwanted = Vec::new();
        while self.free > 0 {
            let Some(tenant) = self.turns.pop_front() else { break };
            let Some(line) = self.lines.get_mut(&tenant) else { continue };
            line.has_turn = false;
            if let Some(Waiting { whose, give }) =
                line.next_due().and_then(|at| line.waiting.remove(at)).filter(|next| !next.give.is_closed())
            {
                let limits = line.limits;
                let place = Place::taken(shared, self, &tenant, Some(whose), limits);
                unwanted.extend(give.send(place).err());
            }
            self.give_turn_if_due(&tenant);
            self.forget_if_idle(&tenant);
        }
        unwanted
    }

    fn forget_if_idle(&mut self, tenant: &TenantId) {
        if self.lines.get(tenant).is_some_and(|line| line.held == 0 && line.waiting.is_empty()) {
            self.lines.remove(tenant);
        }
    }
}

impl Line {
    /// Whether its tenant may hold one more place, for a run like this.
    fn may_hold(&self, whose: &Whose) -> bool {
        let held = |count: Option<&usize>| count.copied().unwrap_or(0).saturating_add(self.nameless);
        self.held < self.limits.tenant
            && held(self.by_tool.get(&whose.tool)) < self.limits.tool
            && held(self.by_caller.get(&whose.caller)) < self.limits.caller
    }

    /// Where in the line the first is that may have a place, or that nobody waits
    /// for any more.
    fn next_due(&self) -> Option<usize> {
        if self.held >= self.limits.tenant {
            return None;
        }
        self.waiting.iter().position(|next| next.give.is_closed() || self.may_hold(&next.whose))
    }

    fn take(&mut self, whose: Option<&Whose>) {
        self.held += 1;
        self.count(whose);
    }

    fn count(&mut self, whose: Option<&Whose>) {
        match whose {
            None => self.nameless += 1,
            Some(whose) => {
                *self.by_tool.entry(whose.tool.clone()).or_default() += 1;
                *self.by_caller.entry(whose.caller.clone()).or_default() += 1;
            }
        }
    }

    fn uncount(&mut self, whose: Option<&Whose>) {
        match whose {
            None => self.nameless = self.nameless.saturating_sub(1),
            Some(whose) => {
                one_less(&mut self.by_tool, &whose.tool);
                one_less(&mut self.by_caller, &whose.caller);
            }
        }
    }
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, name: &K) {
    if let Some(count) = counts.get_mut(name) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(name);
        }
    }
}

impl Place {
    fn taken(
        shared: &Arc<Shared>,
        state: &mut State,
        tenant: &TenantId,
        whose: Option<Whose>,
        limits: PlaceLimits,
    ) -> Place {
        state.free = state.free.saturating_sub(1);
        state.line(tenant, limits).take(whose.as_ref());
        Place { shared: shared.clone(), tenant: tenant.clone(), whose }
    }

    /// Says whose run a place is for that was taken before it was known.
    pub fn is_for(&mut self, whose: Whose) {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if let Some(line) = state.lines.get_mut(&self.tenant) {
            line.uncount(self.whose.as_ref());
            line.count(Some(&whose));
        }
        self.whose = Some(whose);
        // It counts against everybody no more.
        state.give_turn_if_due(&self.tenant);
        let unwanted = state.share_out(&shared);
        drop(state);
        drop(unwanted);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.free = (state.free + 1).min(state.all);
        if let Some(line) = state.lines.get_mut(&self.tenant) {
            line.held = line.held.saturating_sub(1);
            line.uncount(self.whose.as_ref());
        }
        state.give_turn_if_due(&self.tenant);
        let unwanted = state.share_out(&self.shared);
        state.forget_if_idle(&self.tenant);
        drop(state);
        self.shared.freed.notify_waiters();
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests;
