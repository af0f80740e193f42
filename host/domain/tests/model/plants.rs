//! Tempting rules: each looks right and breaks a promise. A plant switches one
//! of them on; the search has to find what it breaks.

use super::properties::Promise;
use Promise::{P1, P2, P3, P8, P9};

macro_rules! plants {
    ($($(#[$doc:meta])* $name:ident = $promise:ident, $length:literal, $scenario:literal;)*) => {
        /// A rule that is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Plant { $($(#[$doc])* $name,)* }

        /// Each with the promise that it breaks, the length of the shortest way
        /// there (0: what breaks is that there is no way to a good end), and the
        /// scenario in which it shows.
        pub const ALL: &[(Plant, Promise, usize, &str)] = &[$((Plant::$name, $promise, $length, $scenario),)*];
    };
}

plants! {
    /// The end of an attempt looks at its number, not at the state.
    EndIgnoresState = P8, 6, "keys, and a cancel";
    /// An attempt may end while its send runs.
    EndWhileSending = P2, 5, "keys, and a cancel";
    /// That a repeat is safe is a commit of its own, before the claim.
    SafeToRepeatAlone = P2, 7, "keys, and a cancel";
    /// The key's window is judged when the repeat is planned.
    WindowJudgedAtPlan = P2, 16, "keys, and windows that close";
    /// A cancel between attempts ends as cancelled, whatever stands.
    CancelIgnoresStanding = P9, 10, "two writes, the second without keys";
    /// "Nothing in flight" does not ask for what is unknown.
    OpenIgnoresUnknown = P2, 7, "keys, and a cancel";
    /// A replay that diverges just stops.
    DivergedJustStops = P2, 7, "keys, and a cancel";
    /// A word is not tied to the send it is about.
    WordNamesNoSend = P2, 17, "keys, and a cancel";
    /// A person may say "did not happen" at once.
    PersonSaysAtOnce = P2, 12, "only a person can say";
    /// What comes of a repeat is judged as if it were the first send.
    RepeatAnswerSettles = P2, 15, "keys, and a cancel";
    /// A refusal that was shown is judged anew on replay.
    RefusalNotReplayed = P2, 17, "a fallback after a refusal";
    /// What may be done about an unknown follows the grant as it is by then.
    ClassReadAnew = P2, 14, "only a person can say";
    /// The reads of the plan count as something that already happened.
    ReadsCountAsWrites = P1, 6, "keys, and an approval that ends";
    /// A write claim looks at the row and does not touch it.
    WriteClaimLeavesRow = P1, 7, "keys, and a cancel";
    /// A write claim compares with the time at which its transaction began.
    TimeOfTransactionStart = P1, 7, "keys, and an approval that ends";
    /// A word that it happened grants no attempt to report it.
    WordGrantsNothing = P9, 13, "only a person can say";
    /// When the lookups are spent the action ends.
    LookupsSpentEnd = P2, 9, "lookups";
    /// Nobody writes down that an approval ran out.
    NobodyExpires = P9, 1, "keys, and an approval that ends";
    /// Nobody writes down that the attempts are spent.
    NobodyExhausts = P9, 5, "keys, and a cancel";
    /// Nobody writes down a cancel whose worker is gone.
    NobodyCancels = P9, 4, "keys, and a cancel";
    /// An effect can be claimed only where there is none.
    RepeatNeverClaimed = P9, 0, "keys, and a cancel";
    /// Approvals are counted without a lock on the action.
    ApprovalsUnlocked = P9, 4, "two approvers";
    /// The same key is compared by everything that was approved.
    KeyComparedByFingerprint = P3, 11, "keys, and a policy that changes";
    /// The fence is the number of the attempt.
    FenceIsNumber = P1, 7, "keys, and a database that crashes";
    /// Only the first write is held to what approvers were told.
    LaterWritesRunFree = P1, 11, "a second write that nobody was told of";
    /// Try-later replays the answer that it was about.
    TryLaterReplaysAnswer = P9, 0, "try later, and nothing but errors";
    /// Only the action claim looks at approval and policy.
    WriteClaimTrustsActionClaim = P1, 6, "keys, and a policy that changes";
    /// A repeat claim looks at neither approval nor policy.
    RepeatClaimTrusts = P1, 12, "keys, and an approval that ends";
    /// Try-later sets aside the unsuccessful answer of any write.
    SetAsideOfAnyClass = P2, 14, "try later, no keys";
    /// What was set aside is sent again outside the key's window, too.
    SetAsideOutsideWindow = P2, 15, "try later, keys";
    /// A component's own retry starts a new window under the old key.
    OwnRetryNewWindow = P2, 14, "the component's own retry, keys";
    /// `settle` runs from the claim.
    SettleFromClaim = P2, 11, "lookups";
    /// A late "being worked on" to a repeat counts as an answer.
    LateBusySettles = P2, 17, "keys, and three faults";
    /// A worker that is lost after a success spends the attempt that was granted
    /// to report it.
    LostWorkerSpendsGrant = P9, 13, "keys, and a cancel";
    /// The last look before the first byte does not ask who holds the row.
    LookIgnoresRow = P1, 6, "a rewind, keys";
    /// A recorded success grants no attempt to report it.
    SuccessGrantsNothing = P9, 12, "keys, and a cancel";
    /// After a rewind only what looks claimed is doubted.
    RewindDoubtsClaimedOnly = P2, 8, "a rewind, no keys";
    /// After a rewind only the next write is doubted.
    RewindDoubtsNextOnly = P2, 14, "a rewind, no keys";
    /// After a rewind what was found not to have happened is sent again, even
    /// where lost rows may hold its refusal and a fallback.
    RewoundSendsAnew = P2, 22, "a rewind under a fallback";
    /// After a rewind an end is called cancelled where no row that is left
    /// stands.
    RewoundEndsAsCancelled = P2, 10, "a rewind under a fallback";
    /// The action's id is drawn, not derived from the caller's key.
    RandomActionId = P2, 13, "a backup from before the proposal";
    /// Nothing compares attempts.
    NoFence = P1, 8, "keys, and a cancel";
    /// The lease is not looked at before the first byte.
    LeaseNotChecked = P1, 6, "keys, and a cancel";
    /// A write that only a person can settle is repeated like any other.
    RepeatsManual = P2, 13, "only a person can say";
    /// Nothing looks at the key's window.
    RetryPastWindow = P2, 15, "keys, and windows that close";
    /// No claim looks at when the approval runs out.
    ApprovalExpiryNotInClaim = P1, 6, "keys, and an approval that ends";
    /// The write claim is not flushed before the first byte.
    WriteClaimNotFlushed = P1, 5, "keys, and a database that crashes";
}
