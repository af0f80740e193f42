//! Recovery: the reaper, who finds out what came of an unknown write and says
//! so, and a database that crashes or is restored.

use countersign_domain::action::{Fact, State, next};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::Ordinal;

use super::plants::Plant;
use super::properties::{Promise, broken};
use super::scenario::faults;
use super::state::*;
use super::steps::{Model, Out, Step, done, lose, over};

impl Model {
    pub fn reaper(&self, world: &World, to: &mut Out<'_, '_>) {
        let standing = self.standing(world);
        let expires = !self.on(Plant::NobodyExpires) && world.approval_over && !standing.writes_stand;
        let changes = world.changed && !standing.writes_stand;
        match world.state {
            State::AwaitingApproval | State::Approved => {
                if expires {
                    to.fact(Step::ReapsExpired, *world, &Fact::Expired { standing });
                }
                if changes {
                    to.fact(Step::ReapsChanged, *world, &Fact::Changed { standing, what: String::new() });
                }
            }
            State::Executing if !world.lease => {
                let mut after = *world;
                over(&mut after);
                let fact = if standing.open {
                    lose(&mut after);
                    Fact::OutcomeLost { ordinal: Ordinal(u32::from(world.in_flight)), why: String::new() }
                } else {
                    let done = after.effects.iter().any(|effect| effect.is(EffectStatus::Succeeded));
                    // Nobody's death costs the attempt that reports what was done.
                    if done && !self.on(Plant::LostWorkerSpendsGrant) {
                        after.attempts = after.attempts.max(1);
                    }
                    Fact::WorkerLost { standing }
                };
                to.fact(Step::ReapsLostWorker, after, &fact);
            }
            State::FailedRetryable => {
                if world.cancel && !self.on(Plant::NobodyCancels) {
                    return to.fact(Step::ReapsCancelled, *world, &self.cancelled(world));
                }
                if expires {
                    return to.fact(Step::ReapsExpired, *world, &Fact::Expired { standing });
                }
                if changes {
                    let fact = Fact::Changed { standing, what: String::new() };
                    return to.fact(Step::ReapsChanged, *world, &fact);
                }
                if world.attempts == 0 && !self.on(Plant::NobodyExhausts) {
                    let done = world.effects.iter().any(|effect| effect.is(EffectStatus::Succeeded));
                    let how = "finished work ends as failed, and no attempt was granted to report it";
                    let verdict = if done && !world.told { broken(Promise::P9, how) } else { None };
                    to.fact_broken(Step::ReapsExhausted, *world, &Fact::RetriesExhausted, verdict);
                }
            }
            State::OutcomeUnknown => {
                if self.on(Plant::SafeToRepeatAlone) && self.may_repeat(world) {
                    let mut after = *world;
                    after.repeats -= 1;
                    after.attempts = after.attempts.max(1);
                    after.state = State::FailedRetryable;
                    to.take(Step::ReapsToRepeat, after);
                }
                let asked = (0..EFFECTS).any(|e| {
                    world.effects[e].is(EffectStatus::Unknown)
                        && self.scenario.class[e] == RecoveryClass::Verifiable
                });
                if self.on(Plant::LookupsSpentEnd) && world.lookups == 0 && asked {
                    to.fact(Step::ReapsUnknown, *world, &Fact::GivenUp { by: String::new() });
                }
            }
            _ => {}
        }
    }

    pub fn words(&self, world: &World, to: &mut Out<'_, '_>) {
        if world.word.effect != 0 {
            self.says(world, to);
        }
        if world.state != State::OutcomeUnknown {
            return;
        }
        to.fact(Step::GivesUp, *world, &Fact::GivenUp { by: String::new() });
        for e in 0..EFFECTS {
            let effect = &world.effects[e];
            if world.word.effect != 0 || !effect.is(EffectStatus::Unknown) {
                continue;
            }
            let happened = world.keys[self.key_of(e)].happened;
            let at_once = self.on(Plant::SettleFromClaim);
            let mut found = *world;
            found.word = Word {
                effect: e as u8 + 1,
                by_person: false,
                happened,
                overtaken: false,
                send: effect.send,
                attempt: effect.attempt,
            };
            if self.may_look_up(world)
                && self.scenario.class[e] == RecoveryClass::Verifiable
                && (effect.settled || at_once)
            {
                found.lookups -= 1;
                to.take(Step::LooksUp(e as u8), found);
                if self.fault(world, faults::NO_ANSWER) {
                    let mut after = *world;
                    after.left.faults -= 1;
                    after.lookups -= 1;
                    to.take(Step::LooksUpInVain(e as u8), after);
                }
                found.lookups += 1;
            }
            // Who looks earlier is told to look again: see `says`.
            let may = effect.settled || happened || at_once || self.on(Plant::PersonSaysAtOnce);
            if world.left.words > 0 && may {
                found.word.by_person = true;
                found.left.words -= 1;
                to.take(Step::PersonLooks(e as u8), found);
            }
        }
    }

    /// What was found out is said, now that some time has gone by.
    pub fn says(&self, world: &World, to: &mut Out<'_, '_>) {
        let word = world.word;
        let e = usize::from(word.effect) - 1;
        let effect = world.effects[e];
        let mut after = *world;
        after.word = NO_WORD;
        let of_this_send =
            (effect.attempt, effect.send) == (word.attempt, word.send) || self.on(Plant::WordNamesNoSend);
        let early = self.on(Plant::SettleFromClaim) || (self.on(Plant::PersonSaysAtOnce) && word.by_person);
        let accepted = world.state == State::OutcomeUnknown
            && effect.is(EffectStatus::Unknown)
            && of_this_send
            && (word.happened || effect.settled || early);
        if !accepted {
            return to.take(Step::Says, after);
        }
        if !self.on(Plant::WordGrantsNothing) {
            after.attempts = after.attempts.max(1);
        }
        let (ordinal, others_unknown) = (Ordinal(u32::from(word.effect)), world.unknown() > 1);
        let by = String::new();
        let fact = if word.happened {
            after.told = false;
            done(&mut after.effects[e], Reply::Done);
            Fact::FoundDone { ordinal, by, others_unknown }
        } else {
            self.not_done(&mut after, e);
            after.keys[self.key_of(e)].acts -= u8::from(word.overtaken);
            for worker in &mut after.workers {
                worker.disowned |= worker.effect == word.effect && worker.pc != Pc::Idle;
            }
            for orphan in &mut after.orphans {
                orphan.disowned |= orphan.effect == word.effect;
            }
            Fact::FoundNotDone { ordinal, by, others_unknown }
        };
        to.fact(Step::Says, after, &fact);
    }

    /// An effect that did not happen; its key's window has not begun, unless the
    /// key is an earlier effect's.
    pub fn not_done(&self, world: &mut World, e: usize) {
        let effect = &mut world.effects[e];
        effect.status = Some(EffectStatus::Failed);
        effect.settled = false;
        let k = self.key_of(e);
        effect.arrived = k != e;
        if k == e && !(0..EFFECTS).any(|other| self.key_of(other) == k && world.effects[other].stands()) {
            world.keys[k].window_over = false;
            world.keys[k].forgotten = false;
        }
    }

    pub fn database(&self, world: &World, to: &mut Out<'_, '_>) {
        if world.undo != Undo::Nothing && self.fault(world, faults::DATABASE) {
            let mut after = *world;
            after.left.faults -= 1;
            undo(&mut after);
            to.take(Step::DatabaseCrashes, after);
        }
        if world.left.rewinds > 0 && world.effects[0].status.is_some() {
            let mut after = *world;
            after.left.rewinds -= 1;
            if self.scenario.forgets_proposal {
                self.forget(&mut after);
                to.take(Step::ForgetsProposal, after);
            } else {
                self.rewind(&mut after);
                to.take(Step::Rewinds, after);
            }
        }
    }

    /// Back to a backup that was made before the action was proposed; its caller
    /// proposes it again. The id derives from the caller's key, so the provider
    /// is given the same keys.
    pub fn forget(&self, world: &mut World) {
        let (keys, orphans, left) = (world.keys, world.orphans, world.left);
        let workers = world.workers;
        *world = World { keys, orphans, left, workers, ..self.first() };
        for worker in &mut world.workers {
            worker.checked |= worker.pc == Pc::Checked;
        }
        if self.on(Plant::RandomActionId) {
            for key in &mut world.keys {
                key.known = false;
            }
        }
    }

    /// Back to a backup that was made when the action had just been approved.
    /// What is written first, by the host that opens it, is that it is in doubt.
    pub fn rewind(&self, world: &mut World) {
        // Who looked already sends; who has not finds no row that it holds.
        for worker in &mut world.workers {
            worker.checked |= worker.pc == Pc::Checked;
        }
        let first = self.first();
        world.attempt = 0;
        world.lease = false;
        world.in_flight = 0;
        world.cancel = false;
        world.attempts = first.attempts;
        world.repeats = first.repeats;
        world.lookups = first.lookups;
        world.undo = Undo::Nothing;
        world.result = 0;
        world.told = true;
        world.effects = first.effects;
        world.state = State::Approved;
        if self.on(Plant::RewindDoubtsClaimedOnly) {
            return;
        }
        world.state = next(State::Approved, &Fact::LedgerRewound).expect("it is not terminal");
        // What it did is found out by a run, which enters each write without a row
        // as unknown before anything is sent.
        world.marked = !self.on(Plant::RewindDoubtsNextOnly);
        if !world.marked {
            world.effects[0] = Effect { status: Some(EffectStatus::Unknown), arrived: true, ..NO_EFFECT };
        }
    }
}

/// A claim that was never flushed is gone with the database's memory.
fn undo(world: &mut World) {
    match world.undo {
        Undo::OutcomeUnknown => world.repeats += 1,
        _ => world.attempts += 1,
    }
    world.state = match world.undo {
        Undo::Nothing => world.state,
        Undo::Approved => State::Approved,
        Undo::FailedRetryable => State::FailedRetryable,
        Undo::OutcomeUnknown => State::OutcomeUnknown,
    };
    world.number = world.number.saturating_sub(1);
    world.undo = Undo::Nothing;
    over(world);
}
