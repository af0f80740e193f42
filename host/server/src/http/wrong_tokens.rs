//! Wrong tokens, counted by the address that they come from.
//!
//! Whoever tries tokens, or has one that is worth nothing any more and does not
//! look at the answers, is told to slow down and until when: `429` with
//! `Retry-After`, instead of `401`. Which of the two it is depends on the address
//! alone and never on the token: one that never was, one with a wrong secret and
//! one that was revoked are answered alike, byte for byte.
//!
//! A right token is taken all the same, however many wrong ones its address has
//! sent. Addresses are shared (by a proxy in front, by all of an office), so a
//! lock would let anybody behind one shut out everybody else there; and no lock is
//! needed to keep tokens from being guessed, which are 256 random bits. What is
//! bounded here is noise, and that somebody notices it.
//!
//! Not bounded: the look into the store that each token costs, wrong or right.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countersign_gate::rates::Rates;

use super::problem::Problem;

/// Wrong tokens a minute from one address. Chosen: more than people mistype and
/// than clients try again that give up in the end.
const PER_MINUTE: u32 = 60;

/// Lines a minute that say so in the host's log, whoever they are about.
const LINES: u32 = 6;

/// Where a request comes from, by its connection. Behind a proxy: the proxy.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// The counts of a host.
#[derive(Debug, Default)]
pub struct WrongTokens {
    rates: Rates,
    /// Not said in the log yet.
    unsaid: AtomicU64,
}

impl WrongTokens {
    /// Counts one. `refused`: the answer as long as it is within the rate.
    pub fn count(&self, peer: Option<Peer>, refused: Problem) -> Problem {
        let place = peer.map_or_else(|| "nowhere".to_owned(), |Peer(ip)| place(ip));
        let Err((_, again)) = self.rates.take(&[(&["wrong tokens", &place], PER_MINUTE)]) else {
            return refused;
        };
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        if self.rates.take(&[(&["lines"], LINES)]).is_ok() {
            let count = self.unsaid.swap(0, Ordering::Relaxed);
            tracing::warn!(address = place, count, "wrong tokens come faster than {PER_MINUTE} a minute");
        }
        too_many(again)
    }
}

/// An address as it is counted. Of IPv6 whoever has one has a whole /64, and
/// could use another for each token.
fn place(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

fn too_many(again: Duration) -> Problem {
    let detail = format!(
        "more than {PER_MINUTE} wrong tokens a minute came from this address; stop sending this one. A right token is \
         taken at any time"
    );
    Problem::over("wrong_tokens.address", "this address", PER_MINUTE, again, detail).in_vain()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(wrong: &WrongTokens, ip: &str) -> u16 {
        let peer = Some(Peer(ip.parse().expect("an address")));
        let problem = wrong.count(peer, Problem::unauthenticated("no"));
        axum::response::IntoResponse::into_response(problem).status().as_u16()
    }

    #[test]
    fn h01_each_address_has_a_minutes_worth_and_then_is_told_to_slow_down() {
        let wrong = WrongTokens::default();
        for _ in 0..PER_MINUTE {
            assert_eq!(status(&wrong, "192.0.2.1"), 401);
        }
        assert_eq!(status(&wrong, "192.0.2.1"), 429);
        assert_eq!(status(&wrong, "::ffff:192.0.2.1"), 429, "the same, as IPv6 sees it");
        assert_eq!(status(&wrong, "192.0.2.2"), 401, "its neighbour has its own");
    }

    #[test]
    fn h01_a_whole_network_of_ipv6_addresses_is_one_caller() {
        let wrong = WrongTokens::default();
        let statuses: Vec<u16> =
            (0..=PER_MINUTE).map(|n| status(&wrong, &format!("2001:db8:1:2::{n:x}"))).collect();
        assert_eq!(statuses.last(), Some(&429));
        assert_eq!(status(&wrong, "2001:db8:1:3::1"), 401);
    }
}
