//! What is explored: which component, which provider, which budgets. A scenario
//! is small, so that it can be explored whole; several of them cover what one
//! large one would.

use countersign_domain::grant::{On5xx, RecoveryClass};

/// What the component does with the answers it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// One write.
    One,
    /// A write, then another one.
    Two,
    /// A write, and an equal one if the first had no success.
    OwnRetry,
    /// A write, and a different one for the same purpose if the first had no
    /// success.
    Fallback,
}

/// What the component does where its answers are no success and it knows
/// nothing else to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    Refuse,
    TryLater,
}

/// What may go wrong, as bits.
pub mod faults {
    pub const CRASH: u16 = 1;
    pub const FREEZE: u16 = 1 << 1;
    pub const LOST: u16 = 1 << 2;
    pub const NOT_SENT: u16 = 1 << 3;
    pub const REFUSED: u16 = 1 << 4;
    pub const BUSY: u16 = 1 << 5;
    pub const ERROR: u16 = 1 << 6;
    pub const TRAP: u16 = 1 << 7;
    pub const DIVERGE: u16 = 1 << 8;
    pub const DATABASE: u16 = 1 << 9;
    pub const ADDRESS: u16 = 1 << 10;
    pub const NO_ANSWER: u16 = 1 << 11;
    pub const ALL: u16 = (1 << 12) - 1;
}

/// One exploration.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub program: Program,
    pub on_failure: OnFailure,
    /// Class of each effect. A provider of class `provider-idempotent`
    /// recognises keys until it forgets them; the others know no keys.
    pub class: [RecoveryClass; 2],
    pub on_5xx: [On5xx; 2],
    /// Writes beyond the first that approvers were told of.
    pub unplanned: u8,
    pub approvals: u8,
    pub attempts: u8,
    pub repeats: u8,
    pub lookups: u8,
    /// How much may go wrong, and what.
    pub faults: u8,
    pub kinds: u16,
    pub cancels: u8,
    /// What persons may look into.
    pub words: u8,
    pub rewinds: u8,
    /// A rewind goes back to before the proposal.
    pub forgets_proposal: bool,
    /// Which times pass.
    pub approval_ends: bool,
    pub deadline_passes: bool,
    pub policy_changes: bool,
    pub windows_close: bool,
    /// What has to be reachable, or the exploration shows nothing.
    pub reaches: &'static [Goal],
}

/// A good end that has to be reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Succeeded,
    /// … and some effect was sent twice for it.
    SucceededByRepeat,
    Cancelled,
    Expired,
    FailedTerminal,
    /// A person is waited for.
    Waits,
}

use RecoveryClass::{Manual, ProviderIdempotent, Verifiable};

/// What only takes time.
const QUIET: Scenario = Scenario {
    name: "",
    program: Program::One,
    on_failure: OnFailure::Refuse,
    class: [ProviderIdempotent, ProviderIdempotent],
    on_5xx: [On5xx::Repeat, On5xx::Repeat],
    unplanned: 1,
    approvals: 1,
    attempts: 2,
    repeats: 1,
    lookups: 0,
    faults: 2,
    kinds: faults::ALL & !faults::ADDRESS & !faults::DATABASE,
    cancels: 0,
    words: 0,
    rewinds: 0,
    forgets_proposal: false,
    approval_ends: false,
    deadline_passes: false,
    policy_changes: false,
    windows_close: false,
    reaches: &[Goal::Succeeded, Goal::FailedTerminal],
};
const WITHOUT_KEYS: Scenario =
    Scenario { class: [Manual, Manual], on_5xx: [On5xx::Unknown, On5xx::Unknown], words: 1, ..QUIET };

/// What is explored in the test suite.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "keys, and windows that close",
        windows_close: true,
        words: 1,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Waits],
        ..QUIET
    },
    Scenario {
        name: "keys, and a cancel",
        cancels: 1,
        words: 1,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Cancelled, Goal::FailedTerminal],
        ..QUIET
    },
    Scenario {
        name: "keys, and an approval that ends",
        approval_ends: true,
        deadline_passes: true,
        cancels: 1,
        reaches: &[Goal::Succeeded, Goal::Cancelled, Goal::Expired, Goal::FailedTerminal],
        ..QUIET
    },
    Scenario {
        name: "keys, and a policy that changes",
        policy_changes: true,
        deadline_passes: true,
        reaches: &[Goal::Succeeded, Goal::Cancelled, Goal::FailedTerminal],
        ..QUIET
    },
    Scenario {
        name: "keys, and a database that crashes",
        kinds: faults::DATABASE | faults::CRASH | faults::FREEZE | faults::LOST | faults::NOT_SENT,
        cancels: 1,
        approval_ends: true,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Cancelled, Goal::Expired],
        ..QUIET
    },
    Scenario {
        name: "keys, and three faults",
        faults: 3,
        kinds: faults::CRASH | faults::FREEZE | faults::BUSY | faults::LOST,
        cancels: 1,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Cancelled, Goal::FailedTerminal],
        ..QUIET
    },
    Scenario {
        name: "lookups",
        class: [Verifiable, Verifiable],
        lookups: 2,
        cancels: 1,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Cancelled, Goal::Waits],
        ..WITHOUT_KEYS
    },
    Scenario {
        name: "only a person can say",
        words: 2,
        policy_changes: true,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::Cancelled, Goal::Waits],
        ..WITHOUT_KEYS
    },
    Scenario {
        name: "two writes, the second without keys",
        program: Program::Two,
        class: [ProviderIdempotent, Manual],
        on_5xx: [On5xx::Repeat, On5xx::Unknown],
        cancels: 1,
        words: 1,
        ..QUIET
    },
    Scenario {
        name: "two writes, the first without keys",
        program: Program::Two,
        class: [Manual, ProviderIdempotent],
        on_5xx: [On5xx::Unknown, On5xx::Repeat],
        windows_close: true,
        words: 1,
        ..QUIET
    },
    Scenario {
        name: "a second write that nobody was told of",
        program: Program::Two,
        unplanned: 0,
        approval_ends: true,
        cancels: 1,
        reaches: &[Goal::FailedTerminal, Goal::Cancelled, Goal::Expired],
        ..QUIET
    },
    Scenario {
        name: "the component's own retry, keys",
        program: Program::OwnRetry,
        on_5xx: [On5xx::Answer, On5xx::Answer],
        windows_close: true,
        deadline_passes: true,
        ..QUIET
    },
    Scenario {
        name: "the component's own retry, no keys",
        program: Program::OwnRetry,
        on_5xx: [On5xx::Answer, On5xx::Answer],
        cancels: 1,
        ..WITHOUT_KEYS
    },
    Scenario {
        name: "try later, keys",
        on_failure: OnFailure::TryLater,
        on_5xx: [On5xx::Answer, On5xx::Answer],
        attempts: 3,
        windows_close: true,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat, Goal::FailedTerminal],
        ..QUIET
    },
    Scenario {
        name: "try later, and nothing but errors",
        on_failure: OnFailure::TryLater,
        on_5xx: [On5xx::Answer, On5xx::Answer],
        kinds: faults::ERROR,
        reaches: &[Goal::Succeeded, Goal::SucceededByRepeat],
        ..QUIET
    },
    Scenario {
        name: "try later, no keys",
        on_failure: OnFailure::TryLater,
        class: [Manual, Verifiable],
        on_5xx: [On5xx::Answer, On5xx::Answer],
        cancels: 1,
        ..WITHOUT_KEYS
    },
    Scenario {
        name: "a fallback after a refusal",
        program: Program::Fallback,
        class: [Manual, ProviderIdempotent],
        on_5xx: [On5xx::Unknown, On5xx::Repeat],
        kinds: faults::CRASH | faults::FREEZE | faults::REFUSED | faults::ADDRESS | faults::LOST,
        windows_close: true,
        ..QUIET
    },
    Scenario {
        name: "two approvers",
        approvals: 2,
        faults: 0,
        cancels: 1,
        approval_ends: true,
        policy_changes: true,
        reaches: &[Goal::Succeeded, Goal::Cancelled, Goal::Expired],
        ..QUIET
    },
    Scenario { name: "a rewind, keys", program: Program::Two, rewinds: 1, faults: 1, words: 1, ..QUIET },
    Scenario {
        name: "a backup from before the proposal",
        rewinds: 1,
        forgets_proposal: true,
        faults: 1,
        // A refusal by a provider that acted before, under a key that the new
        // row knows nothing of, would be taken for an answer: nothing can tell.
        kinds: faults::CRASH | faults::FREEZE | faults::LOST | faults::NOT_SENT,
        words: 1,
        reaches: &[Goal::Succeeded],
        ..QUIET
    },
    Scenario {
        name: "a rewind, no keys",
        program: Program::Two,
        class: [Manual, Verifiable],
        rewinds: 1,
        faults: 1,
        words: 2,
        lookups: 1,
        cancels: 1,
        ..WITHOUT_KEYS
    },
    Scenario {
        name: "a rewind under a fallback",
        program: Program::Fallback,
        class: [Manual, ProviderIdempotent],
        on_5xx: [On5xx::Unknown, On5xx::Repeat],
        kinds: faults::ADDRESS | faults::REFUSED,
        rewinds: 1,
        faults: 1,
        words: 1,
        cancels: 1,
        ..QUIET
    },
];

/// A scenario by its name.
pub fn named(name: &str) -> Scenario {
    *ALL.iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario: {name}"))
}

impl Scenario {
    /// With one more fault: what has to hold is asked of more than what a plant
    /// needs to be found.
    pub fn deeper(self) -> Scenario {
        Scenario { faults: self.faults + 1, ..self }
    }

    /// With more of everything: many minutes and some gigabytes.
    pub fn long(self) -> Scenario {
        Scenario {
            attempts: self.attempts + 1,
            repeats: self.repeats + 1,
            cancels: 1,
            words: self.words.max(1),
            approval_ends: true,
            deadline_passes: true,
            policy_changes: true,
            ..self.deeper()
        }
    }
}
