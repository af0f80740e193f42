//! A component's time and chance: the same on every replay of its action.
//!
//! **Time.** There is one clock per run. It starts at `RunContext::started` and
//! stands still but for three things, all of which happen again on a replay:
//! - a reading, of either clock, moves it on by [`PER_READING`] (a component that
//!   polls a deadline gets there);
//! - an answer or a refusal moves it to the instant of its record, if that is
//!   later;
//! - a wait in which nothing but timers can happen moves it to the earliest
//!   timer. Nobody really waits: a tool that polls a provider once a minute would
//!   hold its place for hours. One that wants time to pass returns `try-later`.
//!
//! The monotonic clock is the same clock, counted from [`MONOTONIC_START`].
//!
//! **Chance.** Three streams of ChaCha20 from `RunContext::seed`: `random`,
//! `insecure`, and the seed for hash maps. A component's secrets are then no
//! better kept than the seed; it has none to keep that the host does not see.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use countersign_domain::time::Timestamp;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::clocks::{monotonic_clock, wall_clock};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use crate::error::Halt;
use crate::limits::RANDOM_BYTES;
use crate::state::State;

/// Nanoseconds that one reading takes.
pub(crate) const PER_READING: u64 = 1_000;
/// The monotonic clock's first value, nanoseconds: one hour, so that a component
/// may subtract from it without falling below zero.
pub(crate) const MONOTONIC_START: u64 = 3_600_000_000_000;

/// One run's clock. Shared with the timers in the resource table.
pub(crate) struct VirtualClock {
    started: Timestamp,
    /// Nanoseconds since `started`, plus [`MONOTONIC_START`].
    now: AtomicU64,
    /// The earliest timer that somebody waits for; `u64::MAX` also when none is.
    earliest: AtomicU64,
    /// How many timers were asked since `earliest` was reset.
    waiting: AtomicU64,
}

impl VirtualClock {
    pub(crate) fn new(started: Timestamp) -> VirtualClock {
        VirtualClock {
            started,
            now: AtomicU64::new(MONOTONIC_START),
            earliest: AtomicU64::new(u64::MAX),
            waiting: AtomicU64::new(0),
        }
    }

    /// The value, and then a step on.
    pub(crate) fn read(&self) -> u64 {
        let now = self.now.load(Ordering::Relaxed);
        self.now.store(now.saturating_add(PER_READING), Ordering::Relaxed);
        now
    }

    /// To the instant of a record; never back.
    pub(crate) fn reach(&self, at: Timestamp) {
        let since = u64::try_from(at.since(self.started).as_nanos()).unwrap_or(u64::MAX);
        self.now.fetch_max(since.saturating_add(MONOTONIC_START), Ordering::Relaxed);
    }

    fn wall(&self) -> wall_clock::Datetime {
        let since = self.read() - MONOTONIC_START;
        let started = u64::try_from(self.started.as_micros()).unwrap_or(0);
        let nanoseconds = u128::from(started) * 1_000 + u128::from(since);
        wall_clock::Datetime {
            // Below 2^44 + 2^34 by the ranges of the two terms.
            seconds: u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(u64::MAX),
            nanoseconds: (nanoseconds % 1_000_000_000) as u32,
        }
    }

    /// Before timers are asked: forgets who waited the last time.
    pub(crate) fn ask(&self) {
        self.earliest.store(u64::MAX, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// After timers were asked: goes to the earliest one. False if there is none.
    pub(crate) fn jump(&self) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.now.fetch_max(self.earliest.load(Ordering::Relaxed), Ordering::Relaxed);
        true
    }

    fn rings(&self, at: u64) -> bool {
        if self.now.load(Ordering::Relaxed) >= at {
            return true;
        }
        self.earliest.fetch_min(at, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        false
    }
}

struct Timer {
    at: u64,
    clock: Arc<VirtualClock>,
}

#[async_trait::async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        // No waker: whoever polls moves the clock and asks again.
        poll_fn(|_| if self.clock.rings(self.at) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl State {
    fn timer(&mut self, at: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.table.push(Timer { at, clock: self.clock.clone() })?;
        subscribe(&mut self.table, timer)
    }
}

impl monotonic_clock::Host for State {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.clock.read())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(PER_READING)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.timer(when)
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let now = self.clock.now.load(Ordering::Relaxed);
        self.timer(now.saturating_add(duration))
    }
}

impl wall_clock::Host for State {
    fn now(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        Ok(self.clock.wall())
    }

    fn resolution(&mut self) -> wasmtime::Result<wall_clock::Datetime> {
        Ok(wall_clock::Datetime { seconds: 0, nanoseconds: PER_READING as u32 })
    }
}

/// One run's chance.
pub(crate) struct Chance {
    random: ChaCha20Rng,
    insecure: ChaCha20Rng,
    seed: (u64, u64),
}

impl Chance {
    pub(crate) fn new(seed: [u8; 32]) -> Chance {
        let stream = |n| {
            let mut rng = ChaCha20Rng::from_seed(seed);
            rng.set_stream(n);
            rng
        };
        let mut third = stream(2);
        Chance { random: stream(0), insecure: stream(1), seed: (third.next_u64(), third.next_u64()) }
    }

    fn bytes(rng: &mut ChaCha20Rng, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES {
            let why = format!("it asked for {len} random bytes at once; {RANDOM_BYTES} is the most");
            return Err(Halt::Limit { limit: "random", why }.into());
        }
        let mut bytes = vec![0; len as usize];
        rng.fill_bytes(&mut bytes);
        Ok(bytes)
    }
}

impl random::Host for State {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        Chance::bytes(&mut self.chance.random, len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.chance.random.next_u64())
    }
}

impl insecure::Host for State {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        Chance::bytes(&mut self.chance.insecure, len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.chance.insecure.next_u64())
    }
}

impl insecure_seed::Host for State {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok(self.chance.seed)
    }
}
