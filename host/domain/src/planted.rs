//! Planted bugs: named protections that a test build can switch off, to show
//! that the tests notice. Without the feature this is `false`, a constant, and
//! the compiler removes the question.

/// Whether the named protection is switched off.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn on(_bug: &str) -> bool {
    false
}

/// The environment variable that names the one protection to switch off.
#[cfg(feature = "planted-bugs")]
pub const VARIABLE: &str = "COUNTERSIGN_PLANTED_BUG";

/// Whether the named protection is switched off.
#[cfg(feature = "planted-bugs")]
#[expect(clippy::disallowed_methods, reason = "only in builds that are made to be broken")]
pub fn on(bug: &str) -> bool {
    debug_assert!(ALL.contains(&bug), "no such planted bug: {bug}");
    std::env::var(VARIABLE).is_ok_and(|named| named == bug)
}

/// Every planted bug, each with the tempting rule it stands for.
pub const ALL: &[&str] = &[
    // The action claim does not look at the state.
    "claim",
    // What was approved is not compared with what will run.
    "fingerprint",
    // An answer is shown to the component without having been recorded.
    "record",
    // A send starts before its claim is committed.
    "send-before-claim",
    // A record is matched by attempt, not by state.
    "record-ignores-state",
    // An attempt may end while its send runs.
    "end-while-sending",
    // An answer to a repeat is taken for an answer to the first send.
    "repeat-answer-settles",
    // A refusal that was shown is judged anew on replay.
    "refusal-not-replayed",
    // A write claim inserts the effect without touching the action's row.
    "write-claim-leaves-row",
    // The same key is compared by full fingerprint.
    "key-compared-by-fingerprint",
    // Only the first write is held to the plan.
    "later-writes-run-free",
    // Only the action claim looks at policy and approval expiry.
    "write-claim-trusts-action-claim",
    // A record is matched by attempt, not by send.
    "record-ignores-send",
    // A late "in flight" to a repeat counts as an answer.
    "late-409-settles",
    // A recorded success does not grant the attempt that reports it.
    "success-grants-nothing",
    // A worker that is lost after a success spends the attempt that was to
    // report it.
    "lost-worker-spends-grant",
    // A mail that was handed over counts as not sent until the server says yes.
    "lost-mail-is-not-sent",
    // A line of a mail's header may have line breaks in it.
    "mail-lines-unchecked",
    // The last look before the first byte asks only for the lease it was given.
    "look-ignores-row",
    // A lookup may say "it did not happen" without an answer of the provider.
    "not-done-without-evidence",
    // A lookup may write.
    "lookup-may-write",
    // After a rewind a write without a row is sent as if it were new.
    "rewound-sends-as-new",
    // After a rewind what is found not to have happened is sent again, even
    // where another write may have been made in its place.
    "rewound-sends-anew",
    // After a rewind an end may say that nothing stands outside.
    "rewound-ends-as-cancelled",
    // Claims do not ask whether the action was doubted after a rewind.
    "claim-ignores-rewind",
];
