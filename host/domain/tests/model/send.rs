//! A send and its record. The conditions of the record are those of the store's
//! statements.

use countersign_domain::action::{Fact, State};
use countersign_domain::effect::EffectStatus;
use countersign_domain::id::Ordinal;

use super::plants::Plant;
use super::properties::{Promise, broken};
use super::replay::Judgement;
use super::scenario::faults;
use super::state::{IDLE, Pc, Reply, Undo, Wire, Worker, World};
use super::steps::{Model, Out, Step, done};

impl Model {
    pub fn sends(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let n = i as u8;
        let me = world.workers[i];
        let live = world.is_live(&me);
        let mut after = *world;
        let key = &world.keys[self.key_of(usize::from(me.effect) - 1)];
        let worker = &mut after.workers[i];
        worker.pc = Pc::Sent;
        worker.wire = Wire::Pending;
        worker.stalled = !live;
        worker.past_key = key.forgotten && !me.too_late;
        let verdict = if me.unauthorised {
            broken(Promise::P1, "a byte left for a write that nobody may send")
        } else if !me.checked && !live {
            broken(Promise::P1, "a byte left for an attempt that was over when it looked")
        } else if self.on(Plant::WriteClaimNotFlushed) && world.undo != Undo::Nothing {
            broken(Promise::P1, "a byte left before its claim was durable")
        } else {
            None
        };
        to.take_broken(Step::Sends(n), after, verdict);
        if self.fault(world, faults::NOT_SENT) {
            let mut after = *world;
            after.left.faults -= 1;
            self.judge_reply(&mut after, i, Reply::Nothing);
            to.take(Step::CannotConnect(n), after);
        }
        if self.fault(world, faults::ADDRESS) {
            let mut after = *world;
            after.left.faults -= 1;
            if me.arrived {
                self.judge_reply(&mut after, i, Reply::Nothing);
            } else {
                after.workers[i].pc = Pc::Refusing;
            }
            to.take(Step::AddressIsRefused(n), after);
        }
    }

    /// What a reply, or that nothing was sent, means to the worker.
    pub fn judge_reply(&self, world: &mut World, i: usize, reply: Reply) {
        let e = usize::from(world.workers[i].effect) - 1;
        let first = self.on(Plant::RepeatAnswerSettles);
        let arrived = world.workers[i].arrived && !first;
        let live = world.is_live(&world.workers[i]);
        let late = self.on(Plant::LateBusySettles) && !live && reply == Reply::Busy;
        let me = &mut world.workers[i];
        me.reply = reply;
        me.pc = match self.judged.0[e][usize::from(arrived)][reply as usize] {
            Judgement::Definite => Pc::Answered,
            Judgement::NotSent => Pc::NotSent,
            Judgement::Unknown if late => Pc::Answered,
            Judgement::Unknown => Pc::Doubt,
        };
        // Only an answer is remembered.
        if me.pc != Pc::Answered {
            me.reply = Reply::Nothing;
        }
    }

    /// As `RECORD`, and for an answer that comes late `LATE` and `RECORD_LATE`.
    pub fn records(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let step = Step::Records(i as u8);
        let me = world.workers[i];
        let e = usize::from(me.effect) - 1;
        let effect = &world.effects[e];
        let mut after = *world;
        let answered = me.pc == Pc::Answered;
        let same = self.on(Plant::NoFence) || (effect.attempt, effect.send) == (me.attempt, me.send);
        let in_row = world.in_flight == me.effect || self.on(Plant::WriteClaimLeavesRow);
        let undone = !answered && effect.arrived && !self.on(Plant::RepeatAnswerSettles);
        if self.fenced(world, &me) && in_row && effect.is(EffectStatus::InFlight) && same && !undone {
            after.in_flight = 0;
            let pc = match me.pc {
                Pc::Answered => {
                    done(&mut after.effects[e], me.reply);
                    after.told = false;
                    if !self.on(Plant::SuccessGrantsNothing) {
                        after.attempts = after.attempts.max(1);
                    }
                    Pc::Running
                }
                Pc::Refusing => {
                    self.not_done(&mut after, e);
                    after.effects[e].refusal = true;
                    Pc::Running
                }
                _ => {
                    self.not_done(&mut after, e);
                    Pc::Stopping
                }
            };
            let (attempt, number) = (me.attempt, me.number);
            // A success is news; the attempt that learned it is not the one that
            // was granted for it.
            let reports = me.reports && pc != Pc::Running;
            let effect = if self.on(Plant::RefusalNotReplayed) { me.effect } else { 0 };
            after.workers[i] = Worker { pc, effect, attempt, number, reports, ..IDLE };
            return to.take(step, after);
        }
        after.workers[i] = IDLE;
        let of_this_send = (effect.attempt, effect.send) == (me.attempt, me.send);
        let late = world.state == State::OutcomeUnknown && effect.is(EffectStatus::Unknown) && of_this_send;
        if !answered || !late {
            return to.take(step, after);
        }
        done(&mut after.effects[e], me.reply);
        after.told = false;
        after.attempts = after.attempts.max(1);
        let others_unknown = world.unknown() > 1;
        let by = String::new();
        let fact = Fact::FoundDone { ordinal: Ordinal(u32::from(me.effect)), by, others_unknown };
        to.fact(step, after, &fact);
    }
}
