//! Replay: a component is a function of its arguments and of recorded answers.
//! This is the list of those answers, and the one decision about each call that
//! the component makes: replay it, repeat it, make it, or stop.
//!
//! No I/O and no clock: the gate acts on the decision.

use crate::effect::{EffectRecord, EffectStatus};
use crate::grant::RecoveryClass;
use crate::id::{Digest, EffectFingerprint, Ordinal};
use crate::time::Timestamp;

/// The recorded effects of an action, and how far a run has come in them.
#[derive(Debug, Clone)]
pub struct EffectLog {
    records: Vec<EffectRecord>,
    position: usize,
}

/// What to do about a call that the component makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It was made before and settled: show what was recorded.
    Replay(Box<EffectRecord>),
    /// It was made before and not settled: claim the same effect again.
    Repeat(Box<EffectRecord>),
    /// It was not made before.
    Fresh(Ordinal),
    /// The component asks for something else than it did before.
    Diverged {
        /// Where.
        ordinal: Ordinal,
        /// What was asked before.
        recorded: EffectFingerprint,
    },
}

/// What an earlier equal write of the same action means for a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    /// No earlier equal write, or it has its success: this is a new write.
    New,
    /// The component retries by itself: the earlier key and the start of its
    /// window are kept.
    SameKey {
        /// The key that the earlier write got.
        provider_key: String,
        /// When that key was first sent.
        first_sent: Timestamp,
    },
    /// The earlier one may have happened and the provider would not recognise
    /// the repeat.
    Refused(Ordinal),
}

impl EffectLog {
    /// From the rows of an action, in any order.
    pub fn new(mut records: Vec<EffectRecord>) -> EffectLog {
        records.sort_by_key(|record| record.ordinal);
        EffectLog { records, position: 0 }
    }

    /// All rows, in order.
    pub fn records(&self) -> &[EffectRecord] {
        &self.records
    }

    /// Decides about the component's next call, and moves on.
    ///
    /// Rows that were set aside keep their ordinal: a read or refusal is asked
    /// anew in its place, a write is repeated in its place as long as its key's
    /// window is open (`now` judges only which of two safe things to do; the
    /// claim judges again).
    pub fn next(&mut self, asked: EffectFingerprint, now: Timestamp) -> Next {
        let Some(record) = self.records.get(self.position) else {
            let ordinal = self.records.last().map_or(Ordinal(1), |last| last.ordinal.next());
            return Next::Fresh(ordinal);
        };
        // What was set aside without having happened is asked anew, and may be
        // asked differently: nothing outside depends on it.
        if record.set_aside && !record.stands() {
            return Next::Fresh(record.ordinal);
        }
        if record.fingerprint != asked {
            return Next::Diverged { ordinal: record.ordinal, recorded: record.fingerprint };
        }
        let record = Box::new(record.clone());
        match record.status {
            EffectStatus::Succeeded
                if record.set_aside && record.window_ends().is_some_and(|end| now < end) =>
            {
                Next::Repeat(record)
            }
            EffectStatus::Succeeded => {
                self.position += 1;
                Next::Replay(record)
            }
            EffectStatus::Failed
                if record.refusal.is_some() && !crate::planted::on("refusal-not-replayed") =>
            {
                self.position += 1;
                Next::Replay(record)
            }
            EffectStatus::Failed | EffectStatus::InFlight | EffectStatus::Unknown => Next::Repeat(record),
        }
    }

    /// Whether [`EffectLog::next`] will compare the time with anything. Asking a
    /// database for it is a round trip.
    pub fn compares_time(&self) -> bool {
        self.records.get(self.position).is_some_and(|record| record.set_aside)
    }

    /// Takes in a row that was just recorded for the current call, in place of
    /// what stood there, and moves past it.
    pub fn settle(&mut self, record: EffectRecord) {
        match self.records.get_mut(self.position) {
            Some(place) => *place = record,
            None => self.records.push(record),
        }
        self.position += 1;
    }

    /// Takes in a row that was just written for the current call and is not
    /// settled: it stands in its place, and the run has not come past it.
    pub fn enter(&mut self, record: EffectRecord) {
        match self.records.get_mut(self.position) {
            Some(place) => *place = record,
            None => self.records.push(record),
        }
    }

    /// How many different writes the run has come past, not counting a
    /// component's own retries: what `unplanned` and provider keys count.
    pub fn writes_so_far(&self) -> u32 {
        let mut keys: Vec<&str> = Vec::new();
        for record in self.records[..self.position].iter().filter(|record| record.write) {
            match record.provider_key.as_deref() {
                Some(key) if keys.contains(&key) => {}
                Some(key) => keys.push(key),
                // A refused write never got a key and counts for nothing.
                None => {}
            }
        }
        u32::try_from(keys.len()).unwrap_or(u32::MAX)
    }

    /// Whether a fresh write repeats an earlier one that has no success.
    pub fn own_retry(&self, asked: EffectFingerprint, class: RecoveryClass) -> Retry {
        let earlier = self.records[..self.position]
            .iter()
            .rev()
            .find(|record| record.write && record.fingerprint == asked && record.provider_key.is_some());
        let Some(earlier) = earlier else { return Retry::New };
        let succeeded = earlier.status == EffectStatus::Succeeded
            && earlier.answer.as_ref().is_none_or(crate::effect::Answer::is_success);
        if succeeded {
            return Retry::New;
        }
        match (class, earlier.provider_key.clone(), earlier.first_sent) {
            (RecoveryClass::ProviderIdempotent, Some(provider_key), Some(first_sent)) => {
                Retry::SameKey { provider_key, first_sent }
            }
            _ if earlier.status == EffectStatus::Failed => Retry::New,
            _ => Retry::Refused(earlier.ordinal),
        }
    }

    /// What `try-later` sets aside: the reads and refusals after the last write
    /// that may have happened, and that write itself if its answer was no
    /// success and its provider recognises a repeat. Everything before is final.
    pub fn to_set_aside(&self) -> Vec<Ordinal> {
        let last_write = self.records.iter().rposition(EffectRecord::stands);
        let after = last_write.map_or(0, |at| at + 1);
        let mut ordinals: Vec<Ordinal> = self.records[after..]
            .iter()
            .filter(|record| !record.write || record.refusal.is_some())
            .map(|record| record.ordinal)
            .collect();
        if let Some(write) = last_write.map(|at| &self.records[at]) {
            let unsuccessful = write.answer.as_ref().is_some_and(|answer| !answer.is_success());
            if unsuccessful
                && write.status == EffectStatus::Succeeded
                && write.terms.class == RecoveryClass::ProviderIdempotent
            {
                ordinals.insert(0, write.ordinal);
            }
        }
        ordinals
    }

    /// Digest over ordinals, fingerprints and statuses, for the event that ends
    /// the action: rows edited later no longer match it.
    pub fn digest(&self) -> Digest {
        let mut text = String::from("countersign/effects/1\n");
        for record in &self.records {
            text.push_str(&format!("{} {} {}\n", record.ordinal, record.fingerprint, record.status));
        }
        Digest::of(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::effect::{Answer, EffectKind, RecordedRequest, Refusal, Terms};
    use crate::grant::On5xx;
    use crate::id::{AttemptId, SendNumber};

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn asked(what: &str) -> EffectFingerprint {
        EffectFingerprint(Digest::of(what.as_bytes()))
    }

    fn row(ordinal: u32, what: &str, write: bool, status: EffectStatus) -> EffectRecord {
        EffectRecord {
            ordinal: Ordinal(ordinal),
            kind: EffectKind::Http,
            write,
            terms: Terms {
                class: if write { RecoveryClass::ProviderIdempotent } else { RecoveryClass::Read },
                key_window: Duration::from_secs(3600),
                in_flight_status: 409,
                replay_header: None,
                on_5xx: On5xx::Repeat,
                send: Duration::from_secs(30),
                settle: Duration::from_secs(60),
            },
            fingerprint: asked(what),
            request: RecordedRequest {
                method: "POST".into(),
                url: "https://a.example/".into(),
                headers: vec![],
                body: vec![],
            },
            provider_key: write.then(|| format!("key-{what}")),
            status,
            attempt: AttemptId(uuid::Uuid::nil()),
            send: SendNumber(1),
            first_sent: write.then_some(START),
            last_sent: write.then_some(START),
            may_have_arrived: false,
            unknown_since: None,
            answer: (status == EffectStatus::Succeeded).then(|| Answer {
                status: 200,
                headers: vec![],
                body: vec![],
            }),
            refusal: None,
            set_aside: false,
            evidence: None,
            recorded_at: Some(START),
        }
    }

    fn answered(mut record: EffectRecord, status: u16) -> EffectRecord {
        record.answer = Some(Answer { status, headers: vec![], body: vec![] });
        record
    }

    fn refused(mut record: EffectRecord) -> EffectRecord {
        record.refusal = Some(Refusal::NotGranted("no".into()));
        record.provider_key = None;
        record
    }

    #[test]
    fn p2_after_the_fourth_of_five_effects_only_the_fifth_is_fresh() {
        let rows = (1..=4).map(|n| row(n, &n.to_string(), n > 1, EffectStatus::Succeeded)).collect();
        let mut log = EffectLog::new(rows);
        for n in 1..=4 {
            assert!(
                matches!(log.next(asked(&n.to_string()), START), Next::Replay(r) if r.ordinal == Ordinal(n))
            );
        }
        assert_eq!(log.next(asked("5"), START), Next::Fresh(Ordinal(5)));
        assert_eq!(log.writes_so_far(), 3);
    }

    #[test]
    fn p4_a_call_that_differs_from_its_record_diverges_and_stays_there() {
        let mut log = EffectLog::new(vec![row(1, "a", true, EffectStatus::Succeeded)]);
        let diverged = Next::Diverged { ordinal: Ordinal(1), recorded: asked("a") };
        assert_eq!(log.next(asked("b"), START), diverged);
        assert_eq!(log.next(asked("b"), START), diverged);
    }

    #[test]
    fn break_11_a_refusal_that_was_shown_is_shown_again() {
        let mut log = EffectLog::new(vec![
            refused(row(1, "primary", true, EffectStatus::Failed)),
            row(2, "fallback", true, EffectStatus::Succeeded),
        ]);
        assert!(matches!(log.next(asked("primary"), START), Next::Replay(r) if r.refusal.is_some()));
        assert!(matches!(log.next(asked("fallback"), START), Next::Replay(r) if r.answer.is_some()));
        assert_eq!(log.writes_so_far(), 1, "a refused write counts for nothing");
    }

    #[test]
    fn what_was_not_sent_or_is_unknown_is_repeated_in_its_place() {
        for status in [EffectStatus::Failed, EffectStatus::Unknown] {
            let mut log = EffectLog::new(vec![row(1, "a", true, status)]);
            assert!(matches!(log.next(asked("a"), START), Next::Repeat(r) if r.ordinal == Ordinal(1)));
            log.settle(row(1, "a", true, EffectStatus::Succeeded));
            assert_eq!(log.next(asked("b"), START), Next::Fresh(Ordinal(2)));
        }
    }

    #[test]
    fn break_26_try_later_sets_aside_reads_and_refusals_after_the_last_write_that_may_have_happened() {
        let log = EffectLog::new(vec![
            row(1, "r1", false, EffectStatus::Succeeded),
            row(2, "w", true, EffectStatus::Succeeded),
            row(3, "r2", false, EffectStatus::Succeeded),
            refused(row(4, "x", true, EffectStatus::Failed)),
        ]);
        assert_eq!(log.to_set_aside(), vec![Ordinal(3), Ordinal(4)]);
    }

    #[test]
    fn break_29_try_later_sets_aside_an_unsuccessful_write_only_if_its_provider_recognises_a_repeat() {
        let write = answered(row(1, "w", true, EffectStatus::Succeeded), 429);
        assert_eq!(EffectLog::new(vec![write.clone()]).to_set_aside(), vec![Ordinal(1)]);
        for class in [RecoveryClass::Manual, RecoveryClass::Verifiable] {
            let mut other = write.clone();
            other.terms.class = class;
            assert_eq!(EffectLog::new(vec![other]).to_set_aside(), vec![], "{class:?}");
        }
    }

    #[test]
    fn break_29_outside_the_window_a_write_that_was_set_aside_stands_again() {
        let mut write = answered(row(1, "w", true, EffectStatus::Succeeded), 503);
        write.set_aside = true;
        let end = write.window_ends().unwrap();
        let just_inside = end.minus(Duration::from_micros(1));
        assert!(matches!(EffectLog::new(vec![write.clone()]).next(asked("w"), just_inside), Next::Repeat(_)));
        assert!(matches!(EffectLog::new(vec![write]).next(asked("w"), end), Next::Replay(_)));
    }

    #[test]
    fn a_read_that_was_set_aside_is_asked_anew_at_its_ordinal_and_may_differ() {
        let mut read = row(1, "r", false, EffectStatus::Succeeded);
        read.set_aside = true;
        let mut log = EffectLog::new(vec![read]);
        assert_eq!(log.next(asked("another"), START), Next::Fresh(Ordinal(1)));
    }

    #[test]
    fn break_30_a_components_own_retry_keeps_key_and_start_of_the_window() {
        let mut log = EffectLog::new(vec![answered(row(1, "w", true, EffectStatus::Succeeded), 500)]);
        let _ = log.next(asked("w"), START);
        assert_eq!(
            log.own_retry(asked("w"), RecoveryClass::ProviderIdempotent),
            Retry::SameKey { provider_key: "key-w".into(), first_sent: START }
        );
        for class in [RecoveryClass::Manual, RecoveryClass::Verifiable] {
            assert_eq!(log.own_retry(asked("w"), class), Retry::Refused(Ordinal(1)));
        }
        assert_eq!(log.own_retry(asked("other"), RecoveryClass::Manual), Retry::New);
    }

    #[test]
    fn an_equal_write_after_a_success_is_a_new_write() {
        let mut log = EffectLog::new(vec![row(1, "w", true, EffectStatus::Succeeded)]);
        let _ = log.next(asked("w"), START);
        assert_eq!(log.own_retry(asked("w"), RecoveryClass::ProviderIdempotent), Retry::New);
        assert_eq!(log.own_retry(asked("w"), RecoveryClass::Manual), Retry::New);
    }
}
