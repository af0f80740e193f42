//! How long an exchange may take: a wait for the first byte, a pace after it,
//! an end in any case. Pure: the instants are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::why::Lost;

/// The slowest answer that is waited for: so many bytes in every window. A
/// server that sends a byte now and then holds an attempt, its lease and its
/// component for as long as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowestPace {
    /// How long a window is.
    pub window: Duration,
    /// How many bytes, those of TLS included, must come within each.
    pub bytes: u64,
}

impl Default for SlowestPace {
    /// 1 KiB/s, judged every 10 s. Chosen: a tenth of the slowest mobile link,
    /// and long enough for a pause that is only a pause.
    fn default() -> SlowestPace {
        SlowestPace { window: Duration::from_secs(10), bytes: 10 * 1024 }
    }
}

/// The clock of one exchange.
#[derive(Debug)]
pub(super) struct Pace {
    slowest: SlowestPace,
    end: Instant,
    first_byte: Instant,
    /// The end of the running window, and what had been read when it began;
    /// `None` until the answer begins.
    window: Option<(Instant, u64)>,
}

impl Pace {
    pub(super) fn new(now: Instant, slowest: SlowestPace, end: Instant, first_byte: Duration) -> Pace {
        let first_byte = now.checked_add(first_byte).map_or(end, |at| at.min(end));
        Pace { slowest, end, first_byte, window: None }
    }

    /// When to look again, if nothing happens before.
    pub(super) fn next(&self) -> Instant {
        match self.window {
            None => self.first_byte,
            Some((ends, _)) => ends.min(self.end),
        }
    }

    /// Notes what has been read by now, and says when that is too little.
    pub(super) fn check(&mut self, now: Instant, began: bool, read: u64) -> Result<(), Lost> {
        if now >= self.end {
            return Err(if self.window.is_none() && !began { Lost::NoAnswer } else { Lost::TooLong });
        }
        match self.window {
            None if began => self.window = Some((now + self.slowest.window, read)),
            None if now >= self.first_byte => return Err(Lost::NoAnswer),
            Some((ends, before)) if now >= ends => {
                if read - before < self.slowest.bytes {
                    return Err(Lost::TooSlow);
                }
                self.window = Some((now + self.slowest.window, read));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn b14_each_limit_ends_the_wait_by_itself() {
        let start = Instant::now();
        let pace = || Pace::new(start, SlowestPace::default(), start + 30 * S, 5 * S);

        let mut waiting = pace();
        assert_eq!(waiting.next(), start + 5 * S);
        assert_eq!(waiting.check(start + 4 * S, false, 0), Ok(()));
        assert_eq!(waiting.check(start + 5 * S, false, 0), Err(Lost::NoAnswer));

        let mut dripping = pace();
        assert_eq!(dripping.check(start + S, true, 1), Ok(()));
        assert_eq!(dripping.next(), start + 11 * S);
        assert_eq!(dripping.check(start + 10 * S, true, 10_000), Ok(()));
        assert_eq!(dripping.check(start + 11 * S, true, 10_240), Err(Lost::TooSlow));

        let mut steady = pace();
        for second in 1..30 {
            assert_eq!(steady.check(start + second * S, true, u64::from(second) * 1100), Ok(()));
        }
        assert_eq!(steady.check(start + 30 * S, true, 33_000), Err(Lost::TooLong));
    }

    #[test]
    fn b14_a_wish_longer_than_the_send_does_not_lengthen_it() {
        let start = Instant::now();
        let pace = Pace::new(start, SlowestPace::default(), start + 30 * S, Duration::from_nanos(u64::MAX));
        assert_eq!(pace.next(), start + 30 * S);
        let pace = Pace::new(start, SlowestPace::default(), start + 30 * S, Duration::MAX);
        assert_eq!(pace.next(), start + 30 * S);
    }
}
