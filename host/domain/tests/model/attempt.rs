//! What a worker does: it claims, runs the component over the recorded effects,
//! claims a write, looks at the lease once more, sends, records, ends.

use countersign_domain::action::{Fact, Standing, State, next};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{Digest, Ordinal};

use super::plants::Plant;
use super::replay::{Call, Decision};
use super::scenario::faults;
use super::state::{Effect, IDLE, NO_EFFECT, Pc, Reply, Wire, World};
use super::steps::{Model, Out, Step, lose, over};

/// How an attempt is to end.
pub enum End {
    Succeeded,
    Retryably,
    TryLater,
    Terminally,
    /// `cancelled` where nothing stands.
    ForGood,
    Diverged,
    GivenBack,
    Lost,
}

impl Model {
    pub fn worker(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let me = world.workers[i];
        let n = i as u8;
        match me.pc {
            Pc::Idle => self.claims(world, i, to),
            Pc::Planned => self.claim(Step::ClaimsRepeat(n), *world, i, true, to),
            Pc::Running => self.runs(world, i, to),
            Pc::Looked => self.writes_claim(world, i, to),
            Pc::Claimed => {
                // The lease is the one that its claim granted; whether the attempt
                // still holds the row with this effect out is read there.
                let e = usize::from(me.effect) - 1;
                let windowed = self.scenario.class[e] == RecoveryClass::ProviderIdempotent
                    && !self.on(Plant::WindowJudgedAtPlan)
                    && !self.on(Plant::SetAsideOutsideWindow)
                    && !self.on(Plant::OwnRetryNewWindow);
                let holds = self.fenced(world, &me) && world.in_flight == me.effect;
                let row = holds || self.on(Plant::LookIgnoresRow) || self.on(Plant::WriteClaimLeavesRow);
                let passes = ((!me.lease_over && row) || self.on(Plant::LeaseNotChecked))
                    && (!windowed || self.window_open(world, e));
                let mut after = *world;
                if passes {
                    after.workers[i].checked |= world.is_live(&me);
                    after.workers[i].too_late = world.keys[self.key_of(e)].window_over;
                    after.workers[i].pc = Pc::Checked;
                } else {
                    self.judge_reply(&mut after, i, Reply::Nothing);
                }
                to.take(Step::ChecksLease(n), after);
                if self.on(Plant::EndWhileSending) && self.fault(world, faults::TRAP) {
                    let mut after = *world;
                    after.left.faults -= 1;
                    self.end(Step::Traps(n), after, i, End::Retryably, to);
                }
            }
            Pc::Checked => self.sends(world, i, to),
            Pc::Sent => {
                if me.wire == Wire::Replied {
                    let mut after = *world;
                    after.workers[i].wire = Wire::None;
                    self.judge_reply(&mut after, i, me.reply);
                    to.take(Step::ReadsAnswer(n), after);
                }
                if self.fault(world, faults::LOST)
                    && let Some(mut after) = hung_up(world, i)
                {
                    after.left.faults -= 1;
                    after.workers[i].pc = Pc::Doubt;
                    to.take(Step::GivesUpWaiting(n), after);
                }
            }
            Pc::Answered | Pc::NotSent | Pc::Refusing => self.records(world, i, to),
            Pc::Stopping => self.end(Step::EndsNotSent(n), *world, i, End::Retryably, to),
            Pc::Doubt => self.end(Step::EndsInDoubt(n), *world, i, End::Lost, to),
        }
        if me.pc != Pc::Idle
            && self.fault(world, faults::CRASH)
            && let Some(mut after) = hung_up(world, i)
        {
            after.left.faults -= 1;
            after.workers[i] = IDLE;
            to.take(Step::Crashes(n), after);
        }
    }

    fn runs(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let n = i as u8;
        let (decision, replayed) = self.decides(world, i);
        match decision {
            Decision::Ends(call) => {
                let how = match call {
                    Call::Return => End::Succeeded,
                    Call::Refuse => End::Terminally,
                    Call::TryLater | Call::Write(_) => End::TryLater,
                };
                self.end(Step::Ends(n), *world, i, how, to);
            }
            Decision::Unplanned => self.end(Step::Ends(n), *world, i, End::Terminally, to),
            Decision::Equal(e) => {
                let mut after = *world;
                if self.fenced(world, &world.workers[i]) {
                    after.effects[e] =
                        Effect { status: Some(EffectStatus::Failed), refusal: true, ..NO_EFFECT };
                } else {
                    after.workers[i] = IDLE;
                }
                to.take(Step::AsksForWrite(n), after);
            }
            Decision::Fresh { effect, .. } if world.marked => {
                // The ledger lost commits: perhaps this was sent before.
                let mut after = *world;
                if self.fenced(world, &world.workers[i]) {
                    after.effects[effect] =
                        Effect { status: Some(EffectStatus::Unknown), arrived: true, ..NO_EFFECT };
                } else {
                    after.workers[i] = IDLE;
                }
                to.take(Step::AsksForWrite(n), after);
            }
            Decision::Fresh { .. } | Decision::Repeat(_) => {
                let seen = self.seen(world, i);
                if self.on(Plant::WriteClaimLeavesRow) || self.on(Plant::TimeOfTransactionStart) {
                    if self.may_claim_write(world, i, &decision, seen) {
                        let mut after = *world;
                        after.workers[i].pc = Pc::Looked;
                        to.take(Step::LooksAtWriteClaim(n), after);
                    } else {
                        self.refused(Step::AsksForWrite(n), world, i, to);
                    }
                } else if self.may_claim_write(world, i, &decision, seen) {
                    self.write_claimed(Step::AsksForWrite(n), world, i, &decision, to);
                } else {
                    self.refused(Step::AsksForWrite(n), world, i, to);
                }
            }
        }
        if self.fault(world, faults::TRAP) {
            let mut after = *world;
            after.left.faults -= 1;
            self.end(Step::Traps(n), after, i, End::Retryably, to);
        }
        if replayed && self.fault(world, faults::DIVERGE) {
            let mut after = *world;
            after.left.faults -= 1;
            self.end(Step::Diverges(n), after, i, End::Diverged, to);
        }
        if !world.standing().open {
            self.end(Step::GivesBack(n), *world, i, End::GivenBack, to);
        }
    }

    /// As the gate's `conclude`, then `END_ATTEMPT`.
    pub fn end(&self, step: Step, mut after: World, i: usize, how: End, to: &mut Out<'_, '_>) {
        let me = after.workers[i];
        let sending = matches!(me.pc, Pc::Claimed | Pc::Checked | Pc::Sent);
        let ends_early = self.on(Plant::EndWhileSending) && sending;
        let mut standing = if after.attempt == me.attempt {
            self.standing(&after)
        } else {
            // It knows what it knew.
            Standing::default()
        };
        standing.writes_stand |= after.marked && !self.on(Plant::RewoundEndsAsCancelled);
        if ends_early {
            standing.open = false;
        }
        let diverged = matches!(how, End::Diverged);
        if diverged && self.on(Plant::DivergedJustStops) {
            standing.open = false;
        }
        let (why, code) = (String::new, String::new());
        let terminally = Fact::FailedTerminally { standing, code: code.clone() };
        let fact = match how {
            End::Succeeded => Fact::Succeeded { standing, result: Digest::of(b""), effects: Digest::of(b"") },
            End::Retryably | End::TryLater => Fact::FailedRetryably { standing, why: why() },
            End::Terminally => terminally,
            End::ForGood | End::Diverged if standing.writes_stand => terminally,
            End::ForGood | End::Diverged => Fact::StoppedBeforeWrites { standing, code },
            End::GivenBack => Fact::Released { standing },
            End::Lost => Fact::OutcomeLost { ordinal: Ordinal(u32::from(me.effect)), why: why() },
        };
        let lost = Fact::OutcomeLost { ordinal: Ordinal(u32::from(me.effect)), why: why() };
        let (state, fact) = match next(State::Executing, &fact) {
            Ok(state) => (state, fact),
            Err(_) => (next(State::Executing, &lost).expect("it can always be lost"), lost),
        };
        let outcome_lost = matches!(fact, Fact::OutcomeLost { .. });
        let number_only = self.on(Plant::EndIgnoresState);
        let open = self.standing(&after).open;
        let as_it_stands =
            open == outcome_lost || ends_early || (diverged && self.on(Plant::DivergedJustStops));
        let holds =
            if number_only { after.number == me.number } else { self.fenced(&after, &me) && as_it_stands };
        if !ends_early {
            after.workers[i] = IDLE;
        }
        if !holds {
            return to.take(step, after);
        }
        over(&mut after);
        after.told |= me.reports;
        if ends_early {
            after.in_flight = 0;
        } else {
            lose(&mut after);
        }
        after.state = state;
        after.result = if matches!(fact, Fact::Succeeded { .. }) { 1 } else { 0 };
        after.attempts += u8::from(matches!(fact, Fact::Released { .. }));
        if matches!(how, End::TryLater) && !self.on(Plant::TryLaterReplaysAnswer) {
            for e in self.set_aside(&after, i) {
                after.effects[e].aside = true;
            }
        }
        to.take(step, after);
    }
}

/// The worker's connection is gone; what is under way on it may still arrive.
/// `None`: there are as many such requests as are looked at.
fn hung_up(world: &World, i: usize) -> Option<World> {
    let mut after = *world;
    let me = &mut after.workers[i];
    if me.wire == Wire::Pending {
        let orphan = me.orphan();
        *after.orphans.iter_mut().find(|place| place.effect == 0)? = orphan;
    }
    let me = &mut after.workers[i];
    me.wire = Wire::None;
    me.reply = Reply::Nothing;
    Some(after)
}
