//! The promises, as far as they can be seen in one state or one step. That an
//! end or a visible wait can always be reached is asked of the whole graph, in
//! [`super::search`].

use countersign_domain::action::State;
use countersign_domain::effect::EffectStatus;

use super::scenario::{Goal, Program};
use super::state::{Approver, EFFECTS, Reply, World};
use super::steps::{Model, Step};

/// The promises that the model can speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// No send without a durable, live claim of an approved action.
    P1,
    /// At most one of each effect; where that cannot be known, the action says
    /// so, and what it says of its effects is true.
    P2,
    /// A result never changes, and every later caller is given it.
    P3,
    /// Terminal states never change.
    P8,
    /// Every action ends in a state that says what is, or waits visibly.
    P9,
}

/// A promise that does not hold, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    pub promise: Promise,
    pub how: &'static str,
}

pub const fn broken(promise: Promise, how: &'static str) -> Option<Broken> {
    Some(Broken { promise, how })
}

/// What a step, or the state it leads to, breaks.
pub fn check(model: &Model, before: &World, step: Step, after: &World) -> Option<Broken> {
    // A backup that is restored forgets ends and results; no rule of the
    // protocol brings them back. What it must not forget is asked of the states
    // that follow.
    if !matches!(step, Step::Rewinds | Step::ForgetsProposal) {
        if before.state.is_terminal() && after.state != before.state {
            return broken(Promise::P8, "a terminal state changed");
        }
        if before.result != 0 && after.result != before.result {
            return broken(Promise::P3, "a result changed");
        }
    }
    if (after.result != 0) != (after.state == State::Succeeded) {
        return broken(Promise::P3, "there is a result where nothing succeeded, or none where something did");
    }
    let standing = after.standing();
    if after.state.is_terminal() {
        let gave_up = step == Step::GivesUp || before.state.is_terminal();
        if standing.open && !gave_up {
            return broken(Promise::P2, "an end hides a write whose outcome nobody knows");
        }
        if matches!(after.state, State::Cancelled | State::Expired) && standing.writes_stand {
            return broken(Promise::P9, "an end that says that nothing happened, over a write that stands");
        }
    }
    if after.state == State::AwaitingApproval && approvals(after) >= model.scenario.approvals {
        return broken(Promise::P9, "everybody approved, and it still waits for approval");
    }
    let acts = |key: usize| after.keys[key].acts;
    let purposes: &[&[usize]] = match model.scenario.program {
        Program::One | Program::OwnRetry => &[&[0]],
        Program::Two => &[&[0], &[1]],
        // Both effects serve one purpose.
        Program::Fallback => &[&[0, 1]],
    };
    if purposes.iter().any(|keys| keys.iter().map(|key| acts(*key)).sum::<u8>() > 1) {
        return broken(Promise::P2, "the provider acted twice for one write");
    }
    what_the_ledger_says(model, after)
}

/// The ledger's definite words about each key, against what the provider did.
fn what_the_ledger_says(model: &Model, world: &World) -> Option<Broken> {
    for (k, key) in world.keys.iter().enumerate() {
        let of_key = || (0..EFFECTS).filter(|e| model.key_of(*e) == k).map(|e| &world.effects[e]);
        let says_done =
            of_key().any(|effect| effect.is(EffectStatus::Succeeded) && effect.answer == Reply::Done);
        if says_done && !key.happened {
            return broken(Promise::P2, "the ledger says that a write happened, and it did not");
        }
        // An error that the grant calls an answer says neither.
        let says_not = of_key().all(|effect| match effect.status {
            // A rewound ledger says nothing of rows that it lost, unless its end
            // says that nothing stands.
            None => !world.marked || matches!(world.state, State::Cancelled | State::Expired),
            Some(EffectStatus::Failed) => true,
            Some(EffectStatus::Succeeded) => matches!(effect.answer, Reply::Refused | Reply::Busy),
            Some(EffectStatus::InFlight | EffectStatus::Unknown) => false,
        });
        // A row that was proposed anew knows nothing of what came before it.
        let says_not = says_not && !model.scenario.forgets_proposal;
        if says_not && key.acts > 0 && world.state.is_terminal() {
            return broken(Promise::P2, "the ledger says that a write did not happen, and it did");
        }
    }
    None
}

pub fn approvals(world: &World) -> u8 {
    world.approvers.iter().filter(|approver| **approver == Approver::Approved).map(|_| 1u8).sum()
}

/// Whether the action waits for a named person, and says so: nobody else can
/// move it now.
pub fn waits_visibly(model: &Model, world: &World) -> bool {
    match world.state {
        State::AwaitingApproval => approvals(world) < model.scenario.approvals && !world.approval_over,
        State::OutcomeUnknown => !model.may_repeat(world) && !model.may_look_up(world),
        _ => false,
    }
}

pub fn reaches(model: &Model, world: &World, goal: Goal) -> bool {
    match goal {
        Goal::Succeeded => world.state == State::Succeeded,
        Goal::SucceededByRepeat => {
            world.state == State::Succeeded && world.effects.iter().any(|effect| effect.send > 1)
        }
        Goal::Cancelled => world.state == State::Cancelled,
        Goal::Expired => world.state == State::Expired,
        Goal::FailedTerminal => world.state == State::FailedTerminal,
        Goal::Waits => world.state == State::OutcomeUnknown && waits_visibly(model, world),
    }
}
