//! The steps, and the model that offers them. What they are is in `around`
//! (people, times), `attempt`, `replay`, `claims` and `send` (a worker),
//! `provider`, and `recovery` (reaper, words, database).
//!
//! Every change of the action's state goes through the domain's transition
//! function; a plant may lie to it about what stands, or leave a condition out,
//! as a wrong statement in a store would.

use countersign_domain::action::{Fact, Standing, State, next};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::AttemptNumber;

use super::plants::Plant;
use super::properties::{Broken, Promise, broken, check};
use super::replay::Judged;
use super::scenario::{Program, Scenario, faults};
use super::state::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Starts,
    // approvers and callers
    Approves(u8),
    CountsApprovals(u8),
    Declines,
    Cancels,
    CallerComesAgain,
    // times
    ApprovalEnds,
    DeadlinePasses,
    PolicyChanges,
    LeaseEnds,
    WindowCloses(u8),
    KeyIsForgotten(u8),
    SettlePasses(u8),
    // a worker, by its number
    PlansRepeat(u8),
    Claims(u8),
    ClaimsRepeat(u8),
    AsksForWrite(u8),
    LooksAtWriteClaim(u8),
    WritesWriteClaim(u8),
    Ends(u8),
    Traps(u8),
    Diverges(u8),
    GivesBack(u8),
    ChecksLease(u8),
    Sends(u8),
    CannotConnect(u8),
    AddressIsRefused(u8),
    ReadsAnswer(u8),
    GivesUpWaiting(u8),
    Records(u8),
    EndsInDoubt(u8),
    EndsNotSent(u8),
    Crashes(u8),
    // the provider, about a worker's request or one that nobody waits for
    Acts(u8),
    Refuses(u8),
    SaysBusy(u8),
    Errs { worker: u8, acted: bool },
    Loses(u8),
    OrphanArrives(u8),
    OrphanIsLost(u8),
    // the reaper
    ReapsLostWorker,
    ReapsExpired,
    ReapsChanged,
    ReapsCancelled,
    ReapsExhausted,
    ReapsToRepeat,
    ReapsUnknown,
    // who finds out
    LooksUp(u8),
    LooksUpInVain(u8),
    PersonLooks(u8),
    Says,
    GivesUp,
    // the database
    DatabaseCrashes,
    Rewinds,
    ForgetsProposal,
}

impl Step {
    /// What nobody may count on: an action has to come to its end without it.
    pub fn is_chance(self, before: &World) -> bool {
        matches!(
            self,
            Step::LeaseEnds if before.is_held()
        ) || matches!(
            self,
            Step::Cancels
                | Step::Declines
                | Step::PolicyChanges
                | Step::Traps(_)
                | Step::Diverges(_)
                | Step::GivesBack(_)
                | Step::CannotConnect(_)
                | Step::AddressIsRefused(_)
                | Step::GivesUpWaiting(_)
                | Step::Crashes(_)
                | Step::Refuses(_)
                | Step::SaysBusy(_)
                | Step::Errs { .. }
                | Step::Loses(_)
                | Step::LooksUpInVain(_)
                | Step::DatabaseCrashes
                | Step::Rewinds
                | Step::ForgetsProposal
        )
    }

    /// What a person has to do.
    pub fn is_personal(self) -> bool {
        matches!(self, Step::Approves(_) | Step::CountsApprovals(_) | Step::PersonLooks(_) | Step::GivesUp)
    }
}

/// A step that can be taken, where it leads, and what it breaks.
pub struct Taken {
    pub step: Step,
    pub world: World,
    pub broken: Option<Broken>,
}

/// A scenario, perhaps with one rule replaced by a tempting one.
pub struct Model {
    pub scenario: Scenario,
    pub plant: Option<Plant>,
    /// See [`World::tidy`]. Never under a plant, whose rules are not as they
    /// should be.
    pub reduced: bool,
    pub judged: Judged,
}

impl Model {
    pub fn new(scenario: Scenario, plant: Option<Plant>) -> Model {
        Model { scenario, plant, reduced: plant.is_none(), judged: Judged::of(&scenario) }
    }

    pub fn on(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// An action that was just proposed and needs approval.
    pub fn first(&self) -> World {
        let s = &self.scenario;
        let proposed = countersign_domain::action::FIRST;
        let state = next(proposed, &Fact::ApprovalRequired { required: u32::from(s.approvals) })
            .expect("a proposal may need approval");
        World {
            state,
            attempt: 0,
            number: 0,
            lease: false,
            in_flight: 0,
            cancel: false,
            attempts: s.attempts,
            repeats: s.repeats,
            lookups: s.lookups,
            undo: Undo::Nothing,
            marked: false,
            result: 0,
            effects: [NO_EFFECT; EFFECTS],
            approvers: [Approver::Undecided; 2],
            approval_over: false,
            deadline_over: false,
            changed: false,
            keys: [NO_KEY; EFFECTS],
            workers: [IDLE; WORKERS],
            orphans: [NO_ORPHAN; ORPHANS],
            word: NO_WORD,
            told: true,
            left: Left { faults: s.faults, cancels: s.cancels, words: s.words, rewinds: s.rewinds },
        }
    }

    /// Everything that can happen next.
    pub fn steps(&self, world: &World, out: &mut Vec<Taken>) {
        let first = out.len();
        let mut to = Out { model: self, from: world, out };
        self.people(world, &mut to);
        self.times(world, &mut to);
        for i in 0..WORKERS {
            self.worker(world, i, &mut to);
            self.provider(world, i, &mut to);
        }
        self.orphans(world, &mut to);
        self.reaper(world, &mut to);
        self.words(world, &mut to);
        self.database(world, &mut to);
        debug_assert!(out[first..].iter().all(|taken| taken.step != Step::Starts));
    }

    /// The key of an effect: a component's own retry has that of the first.
    pub fn key_of(&self, effect: usize) -> usize {
        if self.scenario.program == Program::OwnRetry { 0 } else { effect }
    }

    /// Classes as they stand in the effects' rows.
    pub fn class(&self, world: &World, effect: usize) -> RecoveryClass {
        if self.on(Plant::ClassReadAnew) && world.changed {
            return RecoveryClass::ProviderIdempotent;
        }
        if self.on(Plant::RepeatsManual) {
            return RecoveryClass::ProviderIdempotent;
        }
        self.scenario.class[effect]
    }

    /// Whether an effect's key may still be sent, as the host judges.
    pub fn window_open(&self, world: &World, effect: usize) -> bool {
        !world.keys[self.key_of(effect)].window_over || self.on(Plant::RetryPastWindow)
    }

    /// As `gate::reaper::may_repeat`.
    pub fn may_repeat(&self, world: &World) -> bool {
        let repeatable = |e: usize| {
            self.class(world, e) == RecoveryClass::ProviderIdempotent && self.window_open(world, e)
        };
        world.state == State::OutcomeUnknown
            && world.repeats > 0
            && !world.cancel
            && (world.unknown() > 0 || world.marked)
            && (0..EFFECTS).all(|e| !world.effects[e].is(EffectStatus::Unknown) || repeatable(e))
    }

    /// Whether the tool's own lookup may still be asked.
    pub fn may_look_up(&self, world: &World) -> bool {
        let asked = |e: usize| {
            world.effects[e].is(EffectStatus::Unknown) && self.scenario.class[e] == RecoveryClass::Verifiable
        };
        world.state == State::OutcomeUnknown && world.lookups > 0 && (0..EFFECTS).any(asked)
    }

    /// Standing as the rules see it.
    pub fn standing(&self, world: &World) -> Standing {
        let mut standing = world.standing();
        if self.on(Plant::OpenIgnoresUnknown) {
            standing.open = world.in_flight != 0;
        }
        if self.on(Plant::WriteClaimLeavesRow) {
            standing = Standing { open: world.in_flight != 0, writes_stand: false };
        }
        standing
    }

    pub fn fault(&self, world: &World, kind: u16) -> bool {
        world.left.faults > 0 && self.scenario.kinds & kind != 0
    }
}

/// The attempt is over.
pub fn over(world: &mut World) {
    world.attempt = 0;
    world.lease = false;
}

/// What is in flight becomes unknown, and `settle` runs from here.
pub fn lose(world: &mut World) {
    if let Some(e) = usize::from(world.in_flight).checked_sub(1) {
        world.effects[e].status = Some(EffectStatus::Unknown);
        world.effects[e].settled = false;
        world.in_flight = 0;
    }
}

pub fn done(effect: &mut Effect, answer: Reply) {
    effect.status = Some(EffectStatus::Succeeded);
    effect.answer = answer;
    effect.settled = false;
}
/// The number of an attempt says nothing to the transition function.
pub fn claimed(repeat: bool) -> Fact {
    let attempt = AttemptNumber(1);
    if repeat { Fact::SafeToRepeat { attempt } } else { Fact::Claimed { attempt } }
}

/// Where steps are put.
pub struct Out<'m, 'o> {
    pub model: &'m Model,
    pub from: &'m World,
    pub out: &'o mut Vec<Taken>,
}

impl Out<'_, '_> {
    pub fn take(&mut self, step: Step, after: World) {
        self.take_broken(step, after, None);
    }

    pub fn take_broken(&mut self, step: Step, mut world: World, verdict: Option<Broken>) {
        // Any commit but an action claim is flushed, and flushes what was before.
        let unflushed = matches!(step, Step::Claims(_) | Step::ClaimsRepeat(_) | Step::SettlePasses(_))
            || (self.model.on(Plant::WriteClaimNotFlushed) && matches!(step, Step::AsksForWrite(_)));
        if !unflushed && commits(self.from, &world) {
            world.undo = Undo::Nothing;
        }
        let can_crash = self.model.fault(&world, faults::DATABASE);
        if !can_crash && !self.model.on(Plant::WriteClaimNotFlushed) {
            world.undo = Undo::Nothing;
        }
        let broken = verdict.or_else(|| check(self.model, self.from, step, &world));
        world.tidy(self.model.reduced);
        self.out.push(Taken { step, world, broken });
    }

    /// A step that states a fact about the action, from the state it is in.
    pub fn fact(&mut self, step: Step, after: World, fact: &Fact) {
        self.fact_broken(step, after, fact, None);
    }

    pub fn fact_broken(&mut self, step: Step, mut after: World, fact: &Fact, verdict: Option<Broken>) {
        match next(after.state, fact) {
            Ok(state) => {
                after.state = state;
                self.take_broken(step, after, verdict);
            }
            Err(_) => {
                let how = "a rule states a fact that the transition function refuses";
                self.take_broken(step, after, verdict.or(broken(Promise::P8, how)));
            }
        }
    }
}

/// Whether something of the ledger was written.
fn commits(before: &World, after: &World) -> bool {
    let row = |w: &World| (w.state, w.attempt, w.in_flight, w.cancel, w.attempts, w.repeats, w.lookups);
    before.undo != Undo::Nothing && (row(before) != row(after) || before.effects != after.effects)
}
