//! Claims: of the action, of a write, and of a write again. The conditions are
//! those of the store's statements.

use countersign_domain::action::State;
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;

use super::attempt::End;
use super::plants::Plant;
use super::replay::Decision;
use super::state::{Effect, IDLE, NO_EFFECT, Pc, Undo, Worker, World};
use super::steps::{Model, Out, Step, claimed};

#[derive(Clone, Copy)]
pub struct Seen {
    live: bool,
    approved: bool,
    deadline: bool,
}

impl Model {
    pub fn claims(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let n = i as u8;
        match world.state {
            State::Approved => {
                let expired = world.approval_over && !self.on(Plant::ApprovalExpiryNotInClaim);
                if world.attempts > 0 && !world.cancel && !expired && !world.changed {
                    self.claim(Step::Claims(n), *world, i, false, to);
                }
            }
            State::FailedRetryable if world.attempts > 0 && !world.cancel => {
                self.claim(Step::Claims(n), *world, i, false, to);
            }
            State::OutcomeUnknown if self.may_repeat(world) => {
                if self.on(Plant::WindowJudgedAtPlan) {
                    let mut after = *world;
                    after.workers[i].pc = Pc::Planned;
                    to.take(Step::PlansRepeat(n), after);
                } else if !self.on(Plant::SafeToRepeatAlone) {
                    self.claim(Step::ClaimsRepeat(n), *world, i, true, to);
                }
            }
            _ => {}
        }
    }

    pub fn claim(&self, step: Step, mut after: World, i: usize, repeat: bool, to: &mut Out<'_, '_>) {
        // Planned and overtaken (planted).
        if repeat && (after.state != State::OutcomeUnknown || after.repeats == 0 || after.cancel) {
            after.workers[i] = IDLE;
            return to.take(step, after);
        }
        after.undo = match after.state {
            State::Approved => Undo::Approved,
            State::FailedRetryable => Undo::FailedRetryable,
            _ => Undo::OutcomeUnknown,
        };
        if repeat {
            after.repeats -= 1;
        } else {
            after.attempts -= 1;
        }
        if self.on(Plant::FenceIsNumber) || self.on(Plant::EndIgnoresState) {
            after.number += 1;
        }
        after.attempt = after.fresh_id();
        after.lease = true;
        let reports = after.effects.iter().any(|effect| effect.is(EffectStatus::Succeeded));
        let (attempt, number) = (after.attempt, after.number);
        after.workers[i] = Worker { pc: Pc::Running, attempt, number, reports, ..IDLE };
        to.fact(step, after, &claimed(repeat));
    }

    /// Whether the store takes a worker for the one that holds the action.
    pub fn fenced(&self, world: &World, me: &Worker) -> bool {
        world.state == State::Executing
            && if self.on(Plant::NoFence) {
                true
            } else if self.on(Plant::FenceIsNumber) {
                world.number == me.number
            } else {
                world.attempt == me.attempt
            }
    }

    pub fn seen(&self, world: &World, i: usize) -> Seen {
        Seen {
            live: world.lease && self.fenced(world, &world.workers[i]),
            approved: !world.approval_over && !world.changed,
            deadline: !world.deadline_over,
        }
    }

    /// As `CLAIM_WRITE` and `REPEAT_WRITE`, with the times of `seen`.
    pub fn may_claim_write(&self, world: &World, i: usize, decision: &Decision, seen: Seen) -> bool {
        let live = seen.live && self.fenced(world, &world.workers[i]) && !world.cancel;
        let stands = world.standing().writes_stand || self.on(Plant::ReadsCountAsWrites);
        let trusting = self.on(Plant::WriteClaimTrustsActionClaim)
            || (self.on(Plant::RepeatClaimTrusts) && matches!(decision, Decision::Repeat(_)))
            || (self.on(Plant::ApprovalExpiryNotInClaim) && !world.changed);
        if !live || world.in_flight != 0 || !(stands || seen.approved || trusting) {
            return false;
        }
        match *decision {
            Decision::Fresh { effect, inherited } => {
                let row = &world.effects[effect];
                let room = row.status.is_none() || (row.aside && !row.stands());
                room && seen.deadline && (!inherited || self.window_open(world, effect))
            }
            Decision::Repeat(e) if !self.on(Plant::RepeatNeverClaimed) => {
                let row = &world.effects[e];
                let keys = self.class(world, e) == RecoveryClass::ProviderIdempotent;
                let window = self.window_open(world, e) || self.on(Plant::WindowJudgedAtPlan);
                let aside = (keys || self.on(Plant::SetAsideOfAnyClass))
                    && (window || self.on(Plant::SetAsideOutsideWindow));
                let inherits = self.key_of(e) != e && keys;
                let shown = row.refusal && self.replays_refusal(world, i, e);
                // The lost rows may hold a refusal of this one, and a fallback
                // that was sent for it.
                let lost = world.marked && self.scenario.unplanned > 0 && !self.on(Plant::RewoundSendsAnew);
                match row.status {
                    Some(EffectStatus::Failed) if lost => false,
                    Some(EffectStatus::Failed) => !shown && seen.deadline && (!inherits || window),
                    Some(EffectStatus::Unknown) => keys && window,
                    Some(EffectStatus::Succeeded) => row.aside && aside && seen.deadline,
                    Some(EffectStatus::InFlight) | None => false,
                }
            }
            _ => false,
        }
    }

    pub fn write_claimed(
        &self,
        step: Step,
        world: &World,
        i: usize,
        decision: &Decision,
        to: &mut Out<'_, '_>,
    ) {
        let mut after = *world;
        let (e, inherited) = match *decision {
            Decision::Fresh { effect, inherited } => (effect, inherited),
            Decision::Repeat(e) => (e, false),
            _ => return,
        };
        let before = world.effects[e];
        let again = matches!(decision, Decision::Repeat(_));
        let perhaps = before.is(EffectStatus::Unknown) || before.is(EffectStatus::Succeeded);
        let inherits = inherited || self.on(Plant::OwnRetryNewWindow) && self.key_of(e) != e;
        let effect = Effect {
            status: Some(EffectStatus::InFlight),
            attempt: world.workers[i].attempt,
            send: if again { before.send + 1 } else { 1 },
            arrived: if again { before.arrived || perhaps } else { inherits },
            ..NO_EFFECT
        };
        after.effects[e] = effect;
        if !self.on(Plant::WriteClaimLeavesRow) {
            after.in_flight = e as u8 + 1;
        }
        let authorised = world.standing().writes_stand || (!world.approval_over && !world.changed);
        let shown_to_approvers = e <= usize::from(self.scenario.unplanned);
        let me = &mut after.workers[i];
        *me = Worker {
            pc: Pc::Claimed,
            attempt: me.attempt,
            number: me.number,
            effect: e as u8 + 1,
            send: effect.send,
            arrived: effect.arrived,
            unauthorised: !authorised || !shown_to_approvers,
            reports: me.reports,
            ..IDLE
        };
        to.take(step, after);
    }

    /// The second half of a write claim whose conditions were looked at before.
    pub fn writes_claim(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let step = Step::WritesWriteClaim(i as u8);
        let (decision, _) = self.decides(world, i);
        let all = Seen { live: true, approved: true, deadline: true };
        let room = |e: usize| !world.effects[e].is(EffectStatus::InFlight);
        let holds = match decision {
            Decision::Fresh { effect, .. } => room(effect),
            Decision::Repeat(e) => room(e),
            _ => false,
        };
        // Left alone, the row is not looked at again; locked late, it is, and
        // only the times are old.
        if (self.on(Plant::WriteClaimLeavesRow) && holds)
            || (self.on(Plant::TimeOfTransactionStart) && self.may_claim_write(world, i, &decision, all))
        {
            return self.write_claimed(step, world, i, &decision, to);
        }
        self.refused(step, world, i, to);
    }

    /// A refused write claim ends the attempt, by what the row says.
    pub fn refused(&self, step: Step, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let rewound = world.marked && !world.standing().open;
        let how = if world.cancel {
            End::ForGood
        } else if world.deadline_over || rewound {
            End::Terminally
        } else {
            End::Retryably
        };
        self.end(step, *world, i, how, to);
    }
}
