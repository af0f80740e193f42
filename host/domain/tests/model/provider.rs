//! The provider. It acts, or finds its key and does not act again; it may
//! refuse, fail with or without having acted, or never see the request. Where
//! nobody waits for the answer it does the same and says it to nobody.

use countersign_domain::grant::RecoveryClass;

use super::scenario::faults;
use super::state::*;
use super::steps::{Model, Out, Step};

impl Model {
    pub fn provider(&self, world: &World, i: usize, to: &mut Out<'_, '_>) {
        let me = &world.workers[i];
        if me.wire != Wire::Pending {
            return;
        }
        let n = i as u8;
        let answer = |mut after: World, reply: Reply| {
            after.workers[i].wire = Wire::Replied;
            after.workers[i].reply = reply;
            after
        };
        let e = usize::from(me.effect) - 1;
        let acted = self.acts(world, me.orphan());
        to.take(Step::Acts(n), answer(acted, Reply::Done));
        let wrong = |kind: u16| {
            self.fault(world, kind).then(|| {
                let mut after = *world;
                after.left.faults -= 1;
                after
            })
        };
        let known = world.keys[self.key_of(e)].known;
        if let Some(after) = wrong(faults::REFUSED) {
            to.take(Step::Refuses(n), answer(after, Reply::Refused));
        }
        if let Some(after) = wrong(faults::BUSY).filter(|_| known) {
            to.take(Step::SaysBusy(n), answer(after, Reply::Busy));
        }
        if let Some(after) = wrong(faults::ERROR) {
            to.take(Step::Errs { worker: n, acted: false }, answer(after, Reply::Error));
            let acted = self.acts(&after, me.orphan());
            to.take(Step::Errs { worker: n, acted: true }, answer(acted, Reply::Error));
        }
        if let Some(mut after) = wrong(faults::LOST) {
            after.workers[i].wire = Wire::None;
            after.workers[i].pc = Pc::Doubt;
            to.take(Step::Loses(n), after);
        }
    }

    pub fn orphans(&self, world: &World, to: &mut Out<'_, '_>) {
        for (j, orphan) in world.orphans.iter().enumerate() {
            if orphan.effect == 0 {
                continue;
            }
            let mut after = *world;
            after.orphans[j] = NO_ORPHAN;
            to.take(Step::OrphanArrives(j as u8), self.acts(&after, *orphan));
            to.take(Step::OrphanIsLost(j as u8), after);
        }
    }

    /// The request reached the business side, unless its key is recognised.
    fn acts(&self, world: &World, request: Orphan) -> World {
        let mut after = *world;
        let e = usize::from(request.effect) - 1;
        let mut key = after.keys[self.key_of(e)];
        if !key.known {
            key.happened = true;
            if !request.excused() {
                key.acts = (key.acts + 1).min(2);
                let says_not = world.word.effect == request.effect && !world.word.happened;
                after.word.overtaken |= says_not && request.froze();
            }
        }
        key.known |= self.scenario.class[e] == RecoveryClass::ProviderIdempotent;
        after.keys[self.key_of(e)] = key;
        after
    }
}
