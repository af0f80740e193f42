//! How often a name may do something, in memory of a fixed size, whoever makes
//! the names up.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Names whose rate is remembered. Chosen: 64 Ki times 24 bytes is nothing, and
/// more than a host has tenants, tools and callers that are busy within the
/// same minute.
const REMEMBERED: usize = 64 * 1024;

/// Rates by name, in memory of a fixed size.
///
/// The generic cell rate algorithm, as `governor` has it: one instant per name,
/// at which its bucket will be full again. Written here because that crate's
/// keyed limiter keeps every name until somebody sweeps it, so names that come
/// faster than the sweeps grow it without bound. Here a full table lets go of
/// what is full again, which loses nothing, and after that of what will be
/// soonest, which is the least.
#[derive(Debug)]
pub struct Rates {
    table: Mutex<HashMap<u64, Duration>>,
    hasher: RandomState,
    start: Instant,
    most: usize,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates::remembering(REMEMBERED)
    }
}

impl Rates {
    /// A table of so many names at most.
    pub(crate) fn remembering(most: usize) -> Rates {
        Rates {
            table: Mutex::new(HashMap::new()),
            hasher: RandomState::new(),
            start: Instant::now(),
            most: most.max(4),
        }
    }

    /// Takes one from the bucket of each name, or none from any. A bucket holds
    /// a minute's worth and fills evenly.
    ///
    /// # Errors
    /// The place in the list of the first that is empty, and when it will not
    /// be.
    pub fn take(&self, names: &[(&[&str], u32)]) -> Result<(), (usize, Duration)> {
        self.take_at(self.start.elapsed(), names)
    }

    fn take_at(&self, now: Duration, names: &[(&[&str], u32)]) -> Result<(), (usize, Duration)> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::with_capacity(names.len());
        for (at, (name, per_minute)) in names.iter().enumerate() {
            if *per_minute == u32::MAX {
                continue;
            }
            let minute = Duration::from_secs(60);
            let one = minute / (*per_minute).max(1);
            let key = self.hasher.hash_one(name);
            let full_at = table.get(&key).copied().unwrap_or(now).max(now);
            let then = full_at + one;
            if let Some(short) = then.checked_sub(now + minute).filter(|short| !short.is_zero()) {
                return Err((at, short));
            }
            taken.push((key, then));
        }
        for (key, then) in taken {
            if table.len() >= self.most && !table.contains_key(&key) {
                make_room(&mut table, now, self.most);
            }
            table.insert(key, then);
        }
        Ok(())
    }

    /// Names that are remembered now.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Down to three quarters, so that it is not done for each name.
fn make_room(table: &mut HashMap<u64, Duration>, now: Duration, most: usize) {
    table.retain(|_, full_at| *full_at > now);
    let keep = most / 4 * 3;
    if table.len() > keep {
        let mut soonest: Vec<Duration> = table.values().copied().collect();
        let excess = soonest.len() - keep;
        let (_, border, _) = soonest.select_nth_unstable(excess);
        let border = *border;
        table.retain(|_, full_at| *full_at >= border);
        // Many may be full at the same moment.
        let mut over = table.len().saturating_sub(keep);
        table.retain(|_, full_at| {
            let goes = over > 0 && *full_at == border;
            over -= usize::from(goes);
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn i01_a_bucket_holds_a_minute_and_fills_evenly() {
        let rates = Rates::default();
        let take = |at: u32| rates.take_at(at * S, &[(&["a"], 6)]);
        for _ in 0..6 {
            assert_eq!(take(0), Ok(()));
        }
        assert_eq!(take(0), Err((0, 10 * S)));
        assert_eq!(take(9), Err((0, S)));
        assert_eq!((take(10), take(10).is_err()), (Ok(()), true));
        assert_eq!(rates.take_at(10 * S, &[(&["b"], 6)]), Ok(()), "another name has its own");
        assert_eq!((0..7).filter(|_| take(3600).is_ok()).count(), 6, "no more than a minute is saved up");
    }

    #[test]
    fn i01_what_one_limit_refuses_costs_nothing_of_the_others() {
        let rates = Rates::default();
        let take = |names: &[(&[&str], u32)]| rates.take_at(S, names);
        for _ in 0..10 {
            let _ = take(&[(&["tenant"], 3), (&["tool"], 1)]);
        }
        assert_eq!(take(&[(&["tenant"], 3)]), Ok(()));
        assert_eq!(take(&[(&["tenant"], 3)]), Ok(()));
        assert!(take(&[(&["tenant"], 3)]).is_err(), "one went with the tool's one");
    }

    #[test]
    fn i01_a_million_names_do_not_grow_the_table() {
        let rates = Rates::remembering(1000);
        for n in 0..1_000_000 {
            let name = n.to_string();
            let _ = rates.take(&[(&["address", &name], 60)]);
            if n % 1000 == 0 {
                assert!(rates.remembered() <= 1000);
            }
        }
        let table = rates.table.lock().unwrap();
        assert!(table.len() <= 1000 && table.capacity() < 4000, "{}", table.capacity());
    }

    #[test]
    fn i01_a_full_table_forgets_whoever_took_least() {
        let rates = Rates::remembering(8);
        for _ in 0..60 {
            rates.take_at(S, &[(&["greedy"], 60)]).unwrap();
        }
        for n in 0..100 {
            let name = n.to_string();
            let _ = rates.take_at(S, &[(&["passing", &name], 60)]);
        }
        assert!(rates.take_at(S, &[(&["greedy"], 60)]).is_err(), "it is still known");
    }

    #[test]
    fn i01_names_are_told_apart_by_their_parts() {
        let rates = Rates::default();
        rates.take_at(S, &[(&["tool", "ab", "c"], 1)]).unwrap();
        assert_eq!(rates.take_at(S, &[(&["tool", "a", "bc"], 1)]), Ok(()));
        assert!(rates.take_at(S, &[(&["tool", "ab", "c"], 1)]).is_err());
    }
}
