//! One attempt: a component runs, and every effect it asks for passes here.
//!
//! For each call there is one decision (`EffectLog::next`): replay what is
//! recorded, repeat what did not settle, make what is new, or stop. A write is
//! made in this order and no other: held to the plan; claimed and flushed; sent
//! by a task of the host's own; recorded and flushed; shown.
//!
//! The component never learns that something is in doubt. It is stopped, and
//! [`crate::conclude`] says what that means for the action.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::effect::{Answer, Effect, EffectRecord, EffectStatus, Passage, Refusal};
use countersign_domain::effect_log::{EffectLog, Next, Retry};
use countersign_domain::grant::{Grant, RecoveryClass};
use countersign_domain::id::{AttemptId, Ordinal};
use countersign_domain::key::provider_key;
use countersign_domain::lease::{SendFence, may_start_send};
use countersign_domain::mail::MESSAGE_ID;
use countersign_domain::plan::Plan;
use countersign_domain::retry::{Transport, Verdict, judge};
use countersign_domain::time::Timestamp;
use countersign_store::steps::{
    ClaimWrite, ClaimedAction, Liveness, Move, RecordSend, Recorded, RepeatWrite, SendResult, Settled, Step,
    WriteClaimed,
};
use tokio::sync::Mutex;

use crate::components::Effects;
use crate::conclude::Stop;
use crate::dispatch::{Dispatched, Parcel};
use crate::request::{self, Outlet, Resolved};
use crate::signals::Point;
use crate::{Inner, plan};

/// One attempt at an action.
pub(crate) struct Attempt {
    pub(crate) gate: Arc<Inner>,
    pub(crate) action: Action,
    pub(crate) id: AttemptId,
    pub(crate) grant: Arc<Grant>,
    pub(crate) plan: Plan,
    pub(crate) progress: Mutex<Progress>,
    /// Set by the heartbeat when the attempt is no longer alive or was asked to
    /// stop: no new effect starts.
    pub(crate) halted: AtomicBool,
}

/// How far the attempt has come. Its lock is held across a send: effects of one
/// action go one after another, and an attempt ends only when it is free.
pub(crate) struct Progress {
    pub(crate) log: EffectLog,
    pub(crate) stop: Option<Stop>,
    /// The send that is claimed and not recorded: while this is set, the attempt
    /// cannot end as if nothing were open, whatever became of the code that was
    /// sending.
    pub(crate) sending: Option<SendFence>,
    /// Different writes come past so far, by the grant's route; `None`: mail.
    writes: Vec<(String, Option<usize>)>,
}

impl Attempt {
    pub(crate) fn new(
        gate: Arc<Inner>,
        claimed: ClaimedAction,
        id: AttemptId,
        grant: Arc<Grant>,
        plan: Plan,
    ) -> Attempt {
        Attempt {
            gate,
            action: claimed.action,
            id,
            grant,
            plan,
            progress: Mutex::new(Progress {
                log: EffectLog::new(claimed.effects),
                stop: None,
                sending: None,
                writes: Vec::new(),
            }),
            halted: AtomicBool::new(false),
        }
    }

    async fn pass(&self, effect: Effect) -> Passage {
        let mut progress = self.progress.lock().await;
        if progress.stop.is_some() {
            return Passage::Stopped;
        }
        match self.step(&mut progress, &effect).await {
            Ok(passage) => passage,
            Err(stop) => {
                progress.stop = Some(stop);
                Passage::Stopped
            }
        }
    }

    async fn step(&self, progress: &mut Progress, effect: &Effect) -> Result<Passage, Stop> {
        let resolved = request::resolve(&self.grant, effect);
        let now = match progress.log.compares_time() {
            true => self.gate.store.now().await.map_err(Stop::store)?,
            false => self.action.updated,
        };
        match progress.log.next(resolved.fingerprint, now) {
            Next::Replay(record) => {
                self.count(progress, &record, &resolved);
                Ok(shown(*record))
            }
            Next::Diverged { ordinal, recorded } => {
                Err(Stop::Diverged { ordinal, recorded, asked: resolved.fingerprint })
            }
            Next::Repeat(record) => self.repeat(progress, effect, &resolved, *record).await,
            Next::Fresh(ordinal) if ordinal.0 > self.grant.limits().effects => {
                Err(Stop::TooManyEffects(self.grant.limits().effects))
            }
            Next::Fresh(ordinal) => match self.gate.dispatcher.open(&resolved.outlet) {
                Err(refusal) => self.settle(progress, &resolved, ordinal, Settled::Refused(refusal)).await,
                Ok(outlet) if !resolved.is_write() => {
                    self.read(progress, effect, &resolved, outlet, ordinal).await
                }
                Ok(outlet) => self.write(progress, effect, &resolved, outlet, ordinal).await,
            },
        }
    }

    async fn read(
        &self,
        progress: &mut Progress,
        effect: &Effect,
        resolved: &Resolved,
        outlet: &Outlet,
        ordinal: Ordinal,
    ) -> Result<Passage, Stop> {
        if self.halted.load(Ordering::Acquire) {
            return Err(Stop::Halted);
        }
        let outgoing = self.parcel(outlet, effect, None, None);
        let outcome = plan::read(&self.gate, outgoing, resolved)
            .await
            .map_err(|why| Stop::NotSent { why, retry_after: None })?;
        self.settle(progress, resolved, ordinal, outcome).await
    }

    /// Records what needed no claim, and shows it.
    async fn settle(
        &self,
        progress: &mut Progress,
        resolved: &Resolved,
        ordinal: Ordinal,
        outcome: Settled,
    ) -> Result<Passage, Stop> {
        let effect = plan::settled(&self.grant, resolved, ordinal, outcome);
        let made = self
            .gate
            .store
            .record_settled(&self.action.tenant, self.action.id, self.id, vec![effect])
            .await
            .map_err(Stop::store)?;
        match made {
            Step::Made(records) => {
                let record = records.into_iter().next().ok_or(Stop::Halted)?;
                progress.log.settle(record.clone());
                Ok(shown(record))
            }
            Step::Lost(action) => Err(Stop::ClaimRefused(action)),
        }
    }

    async fn write(
        &self,
        progress: &mut Progress,
        effect: &Effect,
        resolved: &Resolved,
        outlet: &Outlet,
        ordinal: Ordinal,
    ) -> Result<Passage, Stop> {
        let retry = progress.log.own_retry(resolved.fingerprint, outlet.terms().class);
        let (key, first_sent) = match retry {
            Retry::Refused(earlier) => {
                let refusal =
                    Refusal::MayHaveHappened(format!("effect {earlier} is equal and has no success"));
                return self.settle(progress, resolved, ordinal, Settled::Refused(refusal)).await;
            }
            Retry::SameKey { provider_key, first_sent } => (provider_key, Some(first_sent)),
            Retry::New => {
                self.hold_to_plan(progress, resolved, outlet)?;
                let n = progress.log.writes_so_far() + 1;
                (provider_key(self.action.id, n, outlet.key_format(&self.grant)), None)
            }
        };
        if self.halted.load(Ordering::Acquire) {
            return Err(Stop::Halted);
        }
        self.gate.reached(Point::BeforeWriteClaim, Some(ordinal)).await;
        let claim = ClaimWrite {
            tenant: self.action.tenant.clone(),
            action: self.action.id,
            attempt: self.id,
            ordinal,
            kind: resolved.kind,
            terms: outlet.terms().clone(),
            fingerprint: resolved.fingerprint,
            request: resolved.recorded.clone(),
            provider_key: key.clone(),
            first_sent,
            lease: self.gate.config.lease,
        };
        if countersign_domain::planted::on("send-before-claim") {
            let parcel = self.parcel(outlet, effect, Some(key), None);
            let _ = self.gate.dispatcher.post(parcel, || async { true }).await;
        }
        if self.action.rewound && !countersign_domain::planted::on("rewound-sends-as-new") {
            return self.doubt(progress, effect, resolved, claim).await;
        }
        let step = self.gate.store.claim_write(claim).await.map_err(Stop::store)?;
        self.send(progress, effect, resolved, outlet, step).await
    }

    /// A write without a row, of an action whose ledger lost commits: perhaps it
    /// was sent before. It is written down as such first; then a provider that
    /// knows its key is asked again, and of any other somebody has to find out.
    async fn doubt(
        &self,
        progress: &mut Progress,
        effect: &Effect,
        resolved: &Resolved,
        claim: ClaimWrite,
    ) -> Result<Passage, Stop> {
        let record = match self.gate.store.doubt_write(claim).await.map_err(Stop::store)? {
            Step::Made(record) => record,
            Step::Lost(action) => return Err(Stop::ClaimRefused(action)),
        };
        progress.log.enter(record.clone());
        if record.terms.class != RecoveryClass::ProviderIdempotent {
            return Err(Stop::PerhapsSent(record.ordinal));
        }
        self.repeat(progress, effect, resolved, record).await
    }

    /// An effect that was claimed before and did not settle. It was held to the
    /// plan then; whether it may be sent again, the claim judges.
    async fn repeat(
        &self,
        progress: &mut Progress,
        effect: &Effect,
        resolved: &Resolved,
        record: EffectRecord,
    ) -> Result<Passage, Stop> {
        let Ok(outlet) = &resolved.outlet else {
            // The same request resolved to a route when it was claimed, under
            // the same grant: only a damaged row gets here.
            return Err(Stop::Diverged {
                ordinal: record.ordinal,
                recorded: record.fingerprint,
                asked: resolved.fingerprint,
            });
        };
        // What the lost rows may hold: a refusal of this write that the component
        // was shown, and the other write that it made instead.
        if self.action.rewound
            && record.status == EffectStatus::Failed
            && !self.plan.may_follow.is_empty()
            && !countersign_domain::planted::on("rewound-sends-anew")
        {
            return Err(Stop::PerhapsReplaced(record.ordinal));
        }
        if self.halted.load(Ordering::Acquire) {
            return Err(Stop::Halted);
        }
        self.gate.reached(Point::BeforeWriteClaim, Some(record.ordinal)).await;
        let repeat = RepeatWrite {
            tenant: self.action.tenant.clone(),
            action: self.action.id,
            attempt: self.id,
            ordinal: record.ordinal,
            lease: self.gate.config.lease,
        };
        let step = self.gate.store.repeat_write(repeat).await.map_err(Stop::store)?;
        self.send(progress, effect, resolved, outlet, step).await
    }

    /// Sends what is claimed, and records what came of it.
    async fn send(
        &self,
        progress: &mut Progress,
        effect: &Effect,
        resolved: &Resolved,
        outlet: &Outlet,
        step: Step<WriteClaimed>,
    ) -> Result<Passage, Stop> {
        let claimed = match step {
            Step::Made(claimed) => claimed,
            Step::Lost(action) => return Err(Stop::ClaimRefused(action)),
        };
        let fence = claimed.fence;
        if !countersign_domain::planted::on("end-while-sending") {
            progress.sending = Some(fence);
        }
        self.gate.reached(Point::AfterWriteClaim, Some(fence.ordinal)).await;
        let record = &claimed.record;
        let parcel = self.parcel(outlet, effect, record.provider_key.clone(), record.last_sent);
        let dispatched = self.gate.dispatcher.post(parcel, || self.may_start(&claimed)).await;
        self.gate.reached(Point::AfterAnswer, Some(fence.ordinal)).await;
        let (transport, retry_after) = match dispatched {
            Dispatched::Sent { transport, retry_after } => (transport, retry_after),
            // Known before anything was sent; but an earlier send of it may
            // have arrived, and about that a refusal says nothing.
            Dispatched::Refused(refusal) if claimed.may_have_arrived => {
                (Transport::NotSent(refusal.to_string()), None)
            }
            Dispatched::Refused(refusal) => {
                let record = self.record(&claimed, SendResult::Refused(refusal)).await?;
                progress.sending = None;
                self.count(progress, &record, resolved);
                progress.log.settle(record.clone());
                return Ok(shown(record));
            }
        };
        // Planted: "in flight" is kept to be taken for an answer below.
        let in_flight = match &transport {
            Transport::Answered(answer) if countersign_domain::planted::on("late-409-settles") => {
                (answer.status == claimed.record.terms.in_flight_status).then(|| answer.clone())
            }
            _ => None,
        };
        match judge(transport, &claimed.record.terms, claimed.may_have_arrived, retry_after) {
            Verdict::Definite(answer) => {
                if countersign_domain::planted::on("record") {
                    let at = self.gate.store.now().await.map_err(Stop::store)?;
                    return Ok(Passage::Answered { answer, at });
                }
                let reference = self.reference(outlet, &answer);
                let record = self.record(&claimed, SendResult::Answered { answer, reference }).await?;
                progress.sending = None;
                self.gate.reached(Point::AfterRecord, Some(fence.ordinal)).await;
                self.count(progress, &record, resolved);
                progress.log.settle(record.clone());
                Ok(shown(record))
            }
            Verdict::NotSent(why) => {
                self.record(&claimed, SendResult::NotSent).await?;
                progress.sending = None;
                Err(Stop::NotSent { why, retry_after })
            }
            Verdict::Unknown { why, retry_after } => {
                if let Some(answer) = in_flight {
                    self.record(&claimed, SendResult::Answered { answer, reference: None }).await?;
                }
                Err(Stop::Unknown { fence, why, retry_after })
            }
        }
    }

    /// The last look before the first byte: the attempt still holds the row with
    /// this send out, there is enough lease for the longest send, and the key's
    /// window is open.
    async fn may_start(&self, claimed: &WriteClaimed) -> bool {
        self.gate.reached(Point::BeforeFirstByte, Some(claimed.fence.ordinal)).await;
        let Action { tenant, id, .. } = &self.action;
        let Ok(Liveness { now, live }) = self.gate.store.still_live(tenant, *id, claimed.fence).await else {
            return false;
        };
        (live || countersign_domain::planted::on("look-ignores-row"))
            && may_start_send(now, claimed.lease_expires, claimed.record.terms.send)
            && claimed.window_ends.is_none_or(|end| now < end)
    }

    async fn record(&self, claimed: &WriteClaimed, result: SendResult) -> Result<EffectRecord, Stop> {
        let fence = claimed.fence;
        // If the send became `unknown` while it ran, its own answer settles it:
        // it was judged as an answer above, with the effect's own terms.
        let late = matches!(result, SendResult::Answered { .. });
        let record = RecordSend {
            tenant: self.action.tenant.clone(),
            action: self.action.id,
            fence,
            result,
            if_late: late.then(|| Move::found_done_late(fence.ordinal)),
        };
        match self.gate.store.record_send(record).await {
            Ok(Recorded::InTime(record)) => Ok(*record),
            Ok(Recorded::Late(_) | Recorded::Stale) => Err(Stop::Halted),
            Err(error) => Err(Stop::RecordFailed { fence, why: error.to_string() }),
        }
    }

    /// The first write is the one that was shown; further ones are counted
    /// against what approvers were told may follow.
    fn hold_to_plan(&self, progress: &Progress, resolved: &Resolved, outlet: &Outlet) -> Result<(), Stop> {
        let planned = self.plan.first_write.as_ref();
        if progress.writes.is_empty() && planned.is_some() {
            let planned = planned.map(|write| write.fingerprint);
            let same = planned == Some(resolved.fingerprint);
            if same || countersign_domain::planted::on("fingerprint") {
                return Ok(());
            }
            return Err(Stop::NotThePlan { url: resolved.recorded.url.clone() });
        }
        if countersign_domain::planted::on("later-writes-run-free") {
            return Ok(());
        }
        // Where no write was planned, the first one, too, is one that nobody saw.
        let shown = usize::from(planned.is_some());
        let on_this_route =
            progress.writes.iter().skip(shown).filter(|(_, index)| *index == outlet.index()).count();
        let allowed = outlet.unplanned(&self.grant);
        if (on_this_route as u64) < u64::from(allowed) {
            return Ok(());
        }
        Err(Stop::Unplanned { url: resolved.recorded.url.clone(), allowed })
    }

    /// Counts a write that the run has come past, once per provider key.
    fn count(&self, progress: &mut Progress, record: &EffectRecord, resolved: &Resolved) {
        let (Some(key), Ok(outlet)) = (&record.provider_key, &resolved.outlet) else { return };
        if record.write && !progress.writes.iter().any(|(known, _)| known == key) {
            progress.writes.push((key.clone(), outlet.index()));
        }
    }

    /// What is handed to the sender. `at`: when this send was claimed.
    fn parcel(&self, outlet: &Outlet, effect: &Effect, key: Option<String>, at: Option<Timestamp>) -> Parcel {
        let (tenant, tool) = (self.action.tenant.clone(), self.action.tool.clone());
        Parcel::new(&self.grant, outlet, effect, key, at.unwrap_or(self.action.created), tenant, tool)
    }

    /// The provider's name for what happened, where the grant says it stands; of
    /// a mail, its `Message-ID`.
    fn reference(&self, outlet: &Outlet, answer: &Answer) -> Option<String> {
        let text = match outlet {
            Outlet::Mail(_) => answer.header(MESSAGE_ID)?.to_owned(),
            Outlet::Http(route) => {
                let pointer = self.grant.http().get(route.index)?.reference.as_ref()?;
                let body: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
                let found = pointer.resolve(&body)?;
                found.as_str().map_or_else(|| found.to_string(), str::to_owned)
            }
        };
        (text.len() <= 255 && !text.chars().any(char::is_control)).then_some(text)
    }
}

/// What the component is shown of a row.
fn shown(record: EffectRecord) -> Passage {
    let at = record.recorded_at.unwrap_or(Timestamp::from_micros(0));
    match (record.answer, record.refusal) {
        (Some(answer), _) => Passage::Answered { answer, at },
        (None, Some(refusal)) => Passage::Refused { refusal, at },
        // Every record that is shown has one of the two; a damaged row ends the
        // run rather than letting the component guess.
        (None, None) => Passage::Stopped,
    }
}

/// The component's way to its attempt. Each call runs in a task of the host's,
/// so that a component which traps, or drops what it waits for, aborts nothing.
pub(crate) struct Way(pub(crate) Arc<Attempt>);

#[async_trait]
impl Effects for Way {
    async fn submit(&self, effect: Effect) -> Passage {
        let attempt = self.0.clone();
        let passing = tokio::spawn(async move { attempt.pass(effect).await });
        // A panic there leaves the write in flight; the attempt must not end as
        // if nothing were open, and it will not: see `conclude`.
        passing.await.unwrap_or(Passage::Stopped)
    }
}
