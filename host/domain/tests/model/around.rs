//! What happens around an attempt: people approve, decline and cancel, and times
//! pass, within what is assumed of them.

use countersign_domain::action::{Fact, State};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{Digest, Fingerprint};

use super::plants::Plant;
use super::properties::{Promise, approvals, broken};
use super::scenario::faults;
use super::state::{Approver, EFFECTS, Pc, Wire, World};
use super::steps::{Model, Out, Step};

impl Model {
    pub fn people(&self, world: &World, to: &mut Out<'_, '_>) {
        let s = &self.scenario;
        if world.state == State::AwaitingApproval {
            for i in 0..usize::from(s.approvals) {
                let open = !world.approval_over && !world.changed;
                let mut after = *world;
                match world.approvers[i] {
                    Approver::Undecided if self.on(Plant::ApprovalsUnlocked) => {
                        after.approvers[i] = Approver::Counted(approvals(world) > 0);
                        to.take(Step::CountsApprovals(i as u8), after);
                    }
                    Approver::Undecided if open => self.approve(after, i, approvals(world) + 1, to),
                    Approver::Counted(other) => self.approve(after, i, u8::from(other) + 1, to),
                    _ => {}
                }
            }
            to.fact(Step::Declines, *world, &Fact::Declined { reason: String::new() });
        }
        if world.left.cancels > 0 && !world.state.is_terminal() {
            let mut after = *world;
            after.left.cancels -= 1;
            if matches!(world.state, State::Executing | State::OutcomeUnknown) {
                after.cancel = true;
                to.take(Step::Cancels, after);
            } else {
                to.fact(Step::Cancels, after, &self.cancelled(world));
            }
        }
        // The same call again, after an upgrade perhaps: it is given the result.
        if world.result != 0 && self.on(Plant::KeyComparedByFingerprint) && world.changed {
            let how = "a caller that comes again is not given its own result";
            to.take_broken(Step::CallerComesAgain, *world, broken(Promise::P3, how));
        }
    }

    pub fn approve(&self, mut after: World, i: usize, counted: u8, to: &mut Out<'_, '_>) {
        after.approvers[i] = Approver::Approved;
        if counted < self.scenario.approvals {
            return to.take(Step::Approves(i as u8), after);
        }
        let fact = Fact::Approved { fingerprint: Fingerprint(Digest::from_bytes([0; 32])) };
        to.fact(Step::Approves(i as u8), after, &fact);
    }

    pub fn cancelled(&self, world: &World) -> Fact {
        let mut standing = self.standing(world);
        // Of writes whose rows a rewind lost, nobody knows that none stands.
        standing.writes_stand |= world.marked && !self.on(Plant::RewoundEndsAsCancelled);
        if self.on(Plant::CancelIgnoresStanding) || self.on(Plant::EndWhileSending) {
            standing.writes_stand = false;
        }
        Fact::Cancelled { standing, reason: String::new() }
    }

    pub fn times(&self, world: &World, to: &mut Out<'_, '_>) {
        let s = &self.scenario;
        let mut flag = |step, enabled: bool, set: fn(&mut World)| {
            if enabled {
                let mut after = *world;
                set(&mut after);
                to.take(step, after);
            }
        };
        let ended = world.state.is_terminal();
        flag(Step::ApprovalEnds, !ended && s.approval_ends && !world.approval_over, |w| {
            w.approval_over = true
        });
        flag(Step::DeadlinePasses, !ended && s.deadline_passes && !world.deadline_over, |w| {
            w.deadline_over = true
        });
        let upgraded = !ended || self.on(Plant::KeyComparedByFingerprint);
        flag(Step::PolicyChanges, upgraded && s.policy_changes && !world.changed, |w| w.changed = true);
        if world.lease && (!world.is_held() || self.fault(world, faults::FREEZE)) {
            let mut after = *world;
            after.lease = false;
            after.left.faults -= u8::from(world.is_held());
            for worker in &mut after.workers {
                worker.lease_over |= worker.pc != Pc::Idle && worker.attempt == world.attempt;
            }
            to.take(Step::LeaseEnds, after);
        }
        for k in 0..EFFECTS {
            let sent = (0..EFFECTS).any(|e| {
                self.key_of(e) == k
                    && world.effects[e].stands()
                    && s.class[e] == RecoveryClass::ProviderIdempotent
            });
            let key = &world.keys[k];
            let mut after = *world;
            if s.windows_close && sent && !key.window_over {
                after.keys[k].window_over = true;
                to.take(Step::WindowCloses(k as u8), after);
            } else if key.window_over && key.known && !self.on_its_way(world, k) {
                after.keys[k].known = false;
                after.keys[k].forgotten = true;
                to.take(Step::KeyIsForgotten(k as u8), after);
            }
        }
        for e in 0..EFFECTS {
            let effect = &world.effects[e];
            if effect.is(EffectStatus::Unknown) && !effect.settled && !self.unsettled(world, e) {
                let mut after = *world;
                after.effects[e].settled = true;
                to.take(Step::SettlePasses(e as u8), after);
            }
        }
    }

    /// A request that left inside the window is dealt with before the provider
    /// forgets the key: the window's margin is longer than the longest send.
    pub fn on_its_way(&self, world: &World, key: usize) -> bool {
        let of_key = |place: u8| place != 0 && self.key_of(usize::from(place) - 1) == key;
        world.workers.iter().any(|w| w.wire == Wire::Pending && !w.past_key && of_key(w.effect))
            || world.orphans.iter().any(|o| !o.past_key && of_key(o.effect))
    }

    /// `settle` is longer than a lease's rest and the longest send together: it
    /// does not pass while something that left in time may still arrive, or
    /// while a worker that is not frozen may still send.
    pub fn unsettled(&self, world: &World, e: usize) -> bool {
        let place = e as u8 + 1;
        world.orphans.iter().any(|o| o.effect == place && !o.stalled)
            || world.workers.iter().any(|w| {
                w.effect == place
                    && match w.pc {
                        Pc::Claimed | Pc::Checked => !w.lease_over,
                        _ => w.wire == Wire::Pending && !w.stalled,
                    }
            })
    }
}
