//! The store's clock. SQLite has none of its own that could be trusted more
//! than the host's, so here it is the host's, made never to go back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use countersign_domain::time::{Timestamp, micros};

/// Where the store takes the time from.
pub trait Clock: Send + Sync + 'static {
    /// Now. Never earlier than what it said before.
    fn now(&self) -> Timestamp;
}

/// The host's clock. When somebody sets it back, time here goes on at its usual
/// pace from where it was: leases still run out, and no approval that expired
/// is open again. (After a restart it believes the host again; a clock that
/// stood in the future once would otherwise never be believed any more.)
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The largest difference seen between the wall clock and the time since
    /// `start`, in microseconds.
    ahead: AtomicI64,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { start: Instant::now(), ahead: AtomicI64::new(i64::MIN) }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one clock of a store in SQLite")]
    fn now(&self) -> Timestamp {
        let running = micros(self.start.elapsed());
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        self.advance(running, wall)
    }
}

impl SystemClock {
    fn advance(&self, running: i64, wall: i64) -> Timestamp {
        let ahead = wall - running;
        let before = self.ahead.fetch_max(ahead, Ordering::AcqRel);
        Timestamp::from_micros(running + before.max(ahead))
    }
}

/// A clock that only moves when it is told to, for tests.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Stands at this instant.
    pub fn new(at: Timestamp) -> ManualClock {
        ManualClock(Arc::new(AtomicI64::new(at.as_micros())))
    }

    /// Moves on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::AcqRel);
    }
}

impl Default for ManualClock {
    /// Stands at an instant in 2026.
    fn default() -> ManualClock {
        ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_an_hour_neither_goes_back_nor_stands_still() {
        const HOUR: i64 = 3_600_000_000;
        let clock = SystemClock::default();
        assert_eq!(clock.advance(0, 10 * HOUR).as_micros(), 10 * HOUR);
        assert_eq!(clock.advance(5, 10 * HOUR + 5).as_micros(), 10 * HOUR + 5);
        assert_eq!(clock.advance(7, 9 * HOUR).as_micros(), 10 * HOUR + 7, "set back");
        assert_eq!(clock.advance(HOUR, 10 * HOUR).as_micros(), 11 * HOUR, "an hour later");
        assert_eq!(clock.advance(HOUR + 1, 12 * HOUR).as_micros(), 12 * HOUR, "set forward");
    }
}
