//! Places to run in, shared out fairly: so many runs at once on this host, no
//! more than a part of them for one tenant, and where callers wait, one of each
//! tenant in turn.
//!
//! A semaphore alone serves who came first, and a thousand calls of one tenant
//! that sleep a minute are all in front of another's one. Here nobody's place
//! depends on how many others a neighbour asks for: a tenant's part is less than
//! the whole, and what becomes free goes round.
//!
//! Counts what this host runs. What other hosts run is theirs to count: a place
//! is this host's memory, not the tenant's right.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use countersign_domain::id::TenantId;
use tokio::sync::{Notify, oneshot};

/// How many may run, and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Runs at once of one tenant.
    pub tenant: usize,
    /// Callers of one tenant that wait for a place; one more is refused.
    pub waiting: usize,
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
    /// Tenants that wait and may hold one more, each once, longest unserved
    /// first.
    turns: VecDeque<TenantId>,
}

struct Line {
    limits: PlaceLimits,
    held: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
    /// It stands in `turns`.
    has_turn: bool,
}

/// A place that is held; given back when it is dropped.
pub struct Place {
    shared: Arc<Shared>,
    tenant: TenantId,
}

impl Places {
    /// So many places.
    pub fn new(all: usize) -> Places {
        let state = State { free: all, all, lines: HashMap::new(), turns: VecDeque::new() };
        Places { shared: Arc::new(Shared { state: Mutex::new(state), freed: Notify::new() }) }
    }

    /// A place for this tenant, at once or when its turn comes. Dropped, the wait
    /// takes no place.
    ///
    /// # Errors
    /// [`QueueFull`] if as many of this tenant wait as may.
    pub fn acquire(
        &self,
        tenant: &TenantId,
        limits: PlaceLimits,
    ) -> Result<impl Future<Output = Place> + Send + use<>, QueueFull> {
        let (give, given) = oneshot::channel();
        let mut state = self.shared.lock();
        let line = state.line(tenant, limits);
        line.limits = limits;
        if line.waiting.len() >= limits.waiting {
            // Whoever gave up waiting makes room.
            line.waiting.retain(|caller| !caller.is_closed());
        }
        let (held, before) = (line.held, line.waiting.len());
        let served_at_once = before == 0 && held < limits.tenant && state.free > 0;
        if !served_at_once && before >= limits.waiting {
            state.forget_if_idle(tenant);
            return Err(QueueFull);
        }
        state.line(tenant, limits).waiting.push_back(give);
        state.give_turn(tenant);
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
                Err(_) => Place::taken(&shared, &tenant, limits),
            }
        })
    }

    /// Places that are held.
    pub fn held(&self) -> usize {
        let state = self.shared.lock();
        state.all.saturating_sub(state.free)
    }

    /// Places that this tenant holds.
    pub fn held_by(&self, tenant: &TenantId) -> usize {
        self.shared.lock().lines.get(tenant).map_or(0, |line| line.held)
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
            waiting: VecDeque::new(),
            has_turn: false,
        })
    }

    /// Puts a tenant at the end of the turns, if it waits and may hold one more.
    fn give_turn(&mut self, tenant: &TenantId) {
        if let Some(line) = self.lines.get_mut(tenant)
            && !line.has_turn
            && !line.waiting.is_empty()
            && line.held < line.limits.tenant
        {
            line.has_turn = true;
            self.turns.push_back(tenant.clone());
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
            if let Some(caller) = line.waiting.pop_front()
                && !caller.is_closed()
            {
                line.held += 1;
                self.free -= 1;
                let place = Place { shared: shared.clone(), tenant: tenant.clone() };
                unwanted.extend(caller.send(place).err());
            }
            self.give_turn(&tenant);
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

impl Place {
    fn taken(shared: &Arc<Shared>, tenant: &TenantId, limits: PlaceLimits) -> Place {
        let mut state = shared.lock();
        state.free = state.free.saturating_sub(1);
        state.line(tenant, limits).held += 1;
        Place { shared: shared.clone(), tenant: tenant.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.free = (state.free + 1).min(state.all);
        if let Some(line) = state.lines.get_mut(&self.tenant) {
            line.held = line.held.saturating_sub(1);
        }
        state.give_turn(&self.tenant);
        let unwanted = state.share_out(&self.shared);
        state.forget_if_idle(&self.tenant);
        drop(state);
        self.shared.freed.notify_waiters();
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const LIMITS: PlaceLimits = PlaceLimits { tenant: 3, waiting: 100 };
    const ALL: usize = 4;

    fn tenant(name: &str) -> TenantId {
        name.parse().unwrap()
    }

    fn now(places: &Places, name: &str) -> Option<Place> {
        places.acquire(&tenant(name), LIMITS).unwrap().now_or_never()
    }

    #[test]
    fn a14_a_tenant_that_wants_everything_leaves_a_place_for_another() {
        let places = Places::new(ALL);
        let held: Vec<Place> = (0..3).map(|_| now(&places, "greedy").unwrap()).collect();
        assert!(now(&places, "greedy").is_none(), "its part is three of four");
        let other = now(&places, "modest");
        assert!(other.is_some(), "who asks later is not behind it");
        assert_eq!((places.held(), places.held_by(&tenant("greedy"))), (4, 3));
        drop((held, other));
        assert_eq!(places.held(), 0);
        assert!(places.shared.lock().lines.is_empty(), "nobody's name is left");
    }

    #[test]
    fn a14_what_becomes_free_goes_to_each_waiting_tenant_in_turn() {
        let places = Places::new(ALL);
        let mut held: Vec<Place> = ["a", "a", "a", "b"].map(|name| now(&places, name).unwrap()).into();
        let wait = |name: &str| Box::pin(places.acquire(&tenant(name), LIMITS).unwrap());
        // Fifty of one, then one each of two others.
        let mut greedy: Vec<_> = (0..50).map(|_| wait("a")).collect();
        let (mut c, mut d) = (wait("c"), wait("d"));
        held.remove(0);
        let first = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
        let second = c.as_mut().now_or_never();
        assert!(first.is_none() && second.is_some(), "a was over its part when the others came");
        held.remove(0);
        let again = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
        let third = d.as_mut().now_or_never();
        assert!(again.is_none() && third.is_some(), "d asked before a could have one more");
        drop(held.pop());
        let fourth = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
        assert!(fourth.is_some(), "and then it is a's turn");
        drop((second, third, fourth));
    }

    #[test]
    fn a14_who_gives_up_waiting_takes_no_place_and_makes_room_in_the_queue() {
        let limits = PlaceLimits { tenant: 1, waiting: 2 };
        let places = Places::new(1);
        let held = places.acquire(&tenant("a"), limits).unwrap().now_or_never().unwrap();
        let one = places.acquire(&tenant("a"), limits).unwrap();
        let two = places.acquire(&tenant("a"), limits).unwrap();
        assert!(places.acquire(&tenant("a"), limits).is_err(), "two wait already");
        drop(one);
        let three = places.acquire(&tenant("a"), limits).unwrap();
        drop(two);
        drop(held);
        assert!(three.now_or_never().is_some(), "the two that left are passed over");
        assert_eq!(places.held(), 0);
    }

    #[test]
    fn a_place_that_was_given_and_never_taken_comes_back() {
        let places = Places::new(1);
        let held = now(&places, "a").unwrap();
        let waiting = places.acquire(&tenant("b"), LIMITS).unwrap();
        drop(held);
        assert_eq!(places.held(), 1, "it is b's, who has not looked yet");
        drop(waiting);
        assert_eq!(places.held(), 0);
        assert!(now(&places, "c").is_some());
    }

    #[tokio::test]
    async fn all_free_is_told_when_the_last_one_is_given_back() {
        let places = Places::new(2);
        let (one, two) = (now(&places, "a").unwrap(), now(&places, "b").unwrap());
        let mut drained = Box::pin(places.all_free());
        assert!(drained.as_mut().now_or_never().is_none());
        drop(one);
        assert!(drained.as_mut().now_or_never().is_none());
        drop(two);
        assert!(drained.as_mut().now_or_never().is_some());
    }
}
