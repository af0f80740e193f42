//! Leases and fences: until when an attempt may start effects, and how a late
//! word from an attempt that is over is told from the word of the live one.

use std::time::Duration;

use crate::id::{AttemptId, AttemptNumber, Ordinal, SendNumber};
use crate::time::Timestamp;

/// How long attempts live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// What a claim and each heartbeat grant, in full.
    pub length: Duration,
    /// What a write claim adds to the longest send, so that the record still
    /// falls inside the lease.
    pub margin: Duration,
}

impl Default for LeaseTerms {
    /// 60 s and 5 s. Chosen: twice the default longest send, so that a lease
    /// taken for a whole attempt usually covers its sends without extension;
    /// shorter recovers sooner from a dead worker and costs more heartbeats.
    fn default() -> LeaseTerms {
        LeaseTerms { length: Duration::from_secs(60), margin: Duration::from_secs(5) }
    }
}

/// The fencing token of an attempt. The id decides; the number is for people
/// and for ordering. A number alone could come twice: a claim that was never
/// flushed is lost in a crash, and the next claim counts from the same row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// Random, never reused.
    pub id: AttemptId,
    /// From 1.
    pub number: AttemptNumber,
}

/// The fencing token of one send: a record must name the send it speaks of,
/// or a late answer to the first send would be taken for the second's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFence {
    /// The attempt that claimed it.
    pub attempt: AttemptId,
    /// Which effect.
    pub ordinal: Ordinal,
    /// Which of its sends.
    pub send: SendNumber,
}

/// Whether a send may start now. Asked once more right before the first byte,
/// after everything that may have taken long (the flush, the queue for a
/// connection): less lease than the longest send, and it does not start.
pub fn may_start_send(now: Timestamp, lease_expires: Timestamp, longest_send: Duration) -> bool {
    now.plus(longest_send) <= lease_expires
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p1_no_send_starts_with_less_lease_than_the_longest_send() {
        let now = Timestamp::from_micros(1_000_000);
        let send = Duration::from_secs(30);
        let exactly = now.plus(send);
        assert!(may_start_send(now, exactly, send));
        assert!(!may_start_send(now, exactly.minus(Duration::from_micros(1)), send));
    }
}
