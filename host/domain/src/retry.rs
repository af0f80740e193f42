//! What is known after a send, and when to try again.
//!
//! The transport reports one fact: was any byte of the request written, and did
//! a whole answer come back. Everything else follows from that fact, from the
//! terms stored in the effect, and from whether an earlier send may have
//! arrived.

use std::time::Duration;

use crate::effect::{Answer, Terms};
use crate::grant::{On5xx, RecoveryClass};

/// What the transport knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// No byte of the request was written: the name did not resolve, the
    /// connection was refused, TLS was not completed.
    NotSent(String),
    /// A whole answer was read.
    Answered(Answer),
    /// At least one byte may have left, and no whole answer came.
    Lost(String),
}

/// What the ledger is told about a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A definite answer: `succeeded`, and the component is shown it.
    Definite(Answer),
    /// It definitely did not happen, and the component is not told: the same
    /// effect is claimed again after a pause.
    NotSent(String),
    /// Nobody knows. Also where the provider answered something that does not
    /// settle it (a 429 under a key, a 5xx, "in flight").
    Unknown {
        /// For people.
        why: String,
        /// The provider's own wish for when to come back.
        retry_after: Option<Duration>,
    },
}

/// Judges a send. `may_have_arrived`: an earlier send of the same effect may
/// have reached the provider; then this one is a repeat, and an answer about
/// the repeat says nothing about the first unless it is a success or carries
/// the provider's replay header. A 401, 409 or 429 to a repeat settles nothing.
pub fn judge(
    sent: Transport,
    terms: &Terms,
    may_have_arrived: bool,
    retry_after: Option<Duration>,
) -> Verdict {
    let unknown = |why: String| Verdict::Unknown { why, retry_after };
    let answer = match sent {
        Transport::NotSent(why) if may_have_arrived => {
            return unknown(format!("the repeat was not sent: {why}"));
        }
        Transport::NotSent(why) => return Verdict::NotSent(why),
        Transport::Lost(why) => return unknown(why),
        Transport::Answered(answer) => answer,
    };
    let replayed = terms.replay_header.as_deref().is_some_and(|name| answer.header(name).is_some());
    let status = answer.status;
    if answer.is_success() || replayed {
        return Verdict::Definite(answer);
    }
    if may_have_arrived && !crate::planted::on("repeat-answer-settles") {
        let why = if status == terms.in_flight_status {
            format!("the provider answered {status}: it is still working on this key")
        } else {
            format!("the provider answered {status} to a repeat, which says nothing about the first send")
        };
        return unknown(why);
    }
    match (status, terms.class) {
        (429, RecoveryClass::ProviderIdempotent) => unknown("the provider answered 429".into()),
        (500..=599, class) => match terms.on_5xx {
            On5xx::Answer => Verdict::Definite(answer),
            On5xx::Repeat if class == RecoveryClass::ProviderIdempotent => {
                unknown(format!("the provider answered {status}"))
            }
            On5xx::Repeat | On5xx::Unknown => unknown(format!("the provider answered {status}")),
        },
        _ => Verdict::Definite(answer),
    }
}

/// How long a key may be sent again: what the provider promises, less a margin
/// for a send that starts at the last moment and for clocks that differ. The
/// margin is a twentieth, and never less than the longest send.
pub fn key_window(retention: Duration, longest_send: Duration) -> Duration {
    retention.saturating_sub(longest_send.max(retention / 20))
}

/// How many times an action is tried, and how long it rests in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTerms {
    /// Attempts in all. Chosen: five, so that a component which kills its
    /// worker every time is parked after a minute or so, not after a day.
    pub attempts: u32,
    /// The first rest.
    pub base: Duration,
    /// The longest rest.
    pub cap: Duration,
}

impl Default for RetryTerms {
    fn default() -> RetryTerms {
        RetryTerms { attempts: 5, base: Duration::from_millis(500), cap: Duration::from_secs(60) }
    }
}

impl RetryTerms {
    /// The rest after failed attempt number `attempt` (from 1): exponential
    /// with full jitter (Brooker, "Exponential backoff and jitter"), but never
    /// less than half, so that a burst cannot come back at once; and never less
    /// than what the provider asked for. `jitter` is in `0.0..1.0`; randomness
    /// is an argument like time.
    pub fn rest(&self, attempt: u32, jitter: f64, retry_after: Option<Duration>) -> Duration {
        let doubled =
            self.base.saturating_mul(1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
        let full = doubled.min(self.cap);
        let rest = full.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        // A provider that asks for a day does not park the action for a day.
        let asked = retry_after.unwrap_or(Duration::ZERO).min(Duration::from_secs(3600));
        rest.max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(class: RecoveryClass, on_5xx: On5xx) -> Terms {
        Terms {
            class,
            key_window: Duration::from_secs(3600),
            in_flight_status: 409,
            replay_header: Some("idempotent-replayed".into()),
            on_5xx,
            send: Duration::from_secs(30),
            settle: Duration::from_secs(60),
        }
    }

    fn answered(status: u16) -> Transport {
        Transport::Answered(Answer { status, headers: vec![], body: b"x".to_vec() })
    }

    fn kind(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Definite(_) => "definite",
            Verdict::NotSent(_) => "not sent",
            Verdict::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn p2_a_first_send_is_judged_as_the_table_says() {
        use On5xx::*;
        use RecoveryClass::*;
        let first = |sent, class, on_5xx| kind(judge(sent, &terms(class, on_5xx), false, None));
        for class in [Read, ProviderIdempotent, Verifiable, Manual] {
            let usual = if class == ProviderIdempotent { Repeat } else { Unknown };
            assert_eq!(first(answered(200), class, usual), "definite");
            assert_eq!(first(answered(302), class, usual), "definite");
            assert_eq!(first(answered(402), class, usual), "definite");
            assert_eq!(first(answered(409), class, usual), "definite");
            assert_eq!(first(answered(500), class, usual), "unknown");
            assert_eq!(first(answered(503), class, usual), "unknown");
            assert_eq!(first(answered(503), class, Answer), "definite");
            assert_eq!(first(Transport::Lost("reset".into()), class, usual), "unknown");
            assert_eq!(first(Transport::NotSent("refused".into()), class, usual), "not sent");
        }
        assert_eq!(first(answered(429), ProviderIdempotent, Repeat), "unknown");
        assert_eq!(first(answered(429), Manual, Unknown), "definite");
        assert_eq!(first(answered(429), Verifiable, Unknown), "definite");
    }

    #[test]
    fn break_10_only_a_success_or_the_replay_header_settles_a_repeat() {
        let terms = terms(RecoveryClass::ProviderIdempotent, On5xx::Repeat);
        let repeat = |sent| kind(judge(sent, &terms, true, None));
        for status in [400, 401, 403, 404, 409, 422, 425, 429, 500, 503] {
            assert_eq!(repeat(answered(status)), "unknown", "{status}");
        }
        assert_eq!(repeat(Transport::NotSent("refused".into())), "unknown");
        assert_eq!(repeat(answered(200)), "definite");
        let replayed = Answer {
            status: 402,
            headers: vec![("idempotent-replayed".into(), "true".into())],
            body: vec![],
        };
        assert_eq!(repeat(Transport::Answered(replayed)), "definite");
    }

    #[test]
    fn a_key_is_not_sent_again_so_late_that_the_provider_may_have_forgotten_it() {
        let (hour, send) = (Duration::from_secs(3600), Duration::from_secs(30));
        assert_eq!(key_window(24 * hour, send), 24 * hour - 24 * hour / 20);
        assert_eq!(key_window(Duration::from_secs(60), send), Duration::from_secs(30));
        assert_eq!(key_window(Duration::from_secs(20), send), Duration::ZERO, "shorter than a send: never");
    }

    #[test]
    fn a_rest_doubles_to_its_cap_and_honours_the_provider() {
        let terms = RetryTerms::default();
        assert_eq!(terms.rest(1, 1.0, None), Duration::from_millis(500));
        assert_eq!(terms.rest(1, 0.0, None), Duration::from_millis(250));
        assert_eq!(terms.rest(3, 1.0, None), Duration::from_secs(2));
        assert_eq!(terms.rest(400, 1.0, None), terms.cap);
        assert_eq!(terms.rest(1, 1.0, Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(terms.rest(1, 1.0, Some(Duration::from_secs(999_999))), Duration::from_secs(3600));
    }
}
