//! Finding out what became of a send, without a person: the tool asks its
//! provider, in a run that can only read, and its word counts as far as the
//! provider's recorded answers carry it.
//!
//! [`plan`](fn@plan) decides, and is pure; the rest of the file does what it says. No
//! transaction is open while somebody looks: several may, each word names the
//! send that it speaks of, and the first one settles it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use countersign_domain::action::{Action, Fact, State, next};
use countersign_domain::code;
use countersign_domain::effect::{Answer, Effect, EffectRecord, EffectStatus, Evidence, Passage, Refusal};
use countersign_domain::grant::{Grant, RecoveryClass};
use countersign_domain::id::{ActionId, Ordinal, Principal, TenantId};
use countersign_domain::lease::SendFence;
use countersign_domain::run::Ended;
use countersign_domain::time::Timestamp;
use countersign_store::steps::{Due, Move, Putoff, Resolve, Settled, Step};
use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::components::{Effects, LookupReport, Verdict};
use crate::dispatch::Parcel;
use crate::places::{QueueFull, Whose};
use crate::reaper::Busy;
use crate::{Gate, GateError, Inner, execute, plan, request};

/// Who says what a lookup found.
const BY: &str = "reconcile";

/// The longest body of an answer that is kept as evidence, bytes. Chosen: a page
/// of a list; what is longer was read by the tool all the same.
const EVIDENCE_BYTES: usize = 16 << 10;

/// How often a word is said again that came while the row changed for something
/// else, such as a cancel. Chosen: more changes than one lookup meets.
const WORDS: u32 = 4;

/// What is to be done about effects in doubt that a lookup may settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// Ask about these.
    Ask(Vec<Ordinal>),
    /// A send may still arrive: ask after that long.
    Wait(Duration),
}

/// Decides about the unknown effects of an action. `None`: no lookup settles any
/// of them. A cancel that was asked changes nothing: to look is not to send.
pub fn plan(now: Timestamp, action: &Action, unknown: &[EffectRecord]) -> Option<Look> {
    if action.error.as_ref().is_some_and(|error| error.code == code::REPLAY_DIVERGED) {
        // What a component says that asks for something else now is nothing.
        return None;
    }
    let verifiable = || unknown.iter().filter(|record| record.terms.class == RecoveryClass::Verifiable);
    let ready: Vec<Ordinal> =
        verifiable().filter(|record| now >= settles_at(record)).map(|record| record.ordinal).collect();
    if !ready.is_empty() {
        return Some(Look::Ask(ready));
    }
    verifiable().map(settles_at).min().map(|at| Look::Wait(at.since(now)))
}

/// From when on "it did not happen" may be believed.
fn settles_at(record: &EffectRecord) -> Timestamp {
    record.unknown_since.map_or(Timestamp::from_micros(0), |since| since.plus(record.terms.settle))
}

/// What a lookup came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It happened; that is recorded.
    Done,
    /// It did not happen; that is recorded, and it may be made.
    NotDone,
    /// It did not happen yet, and may still: look again from then on.
    TooEarly(Timestamp),
    /// Nothing was found out.
    Nothing(String),
    /// Somebody else settled it first.
    Overtaken,
}

/// What came of asking at an operator's request.
#[derive(Debug, Clone)]
pub struct Reconciled {
    /// The row after it.
    pub action: Action,
    /// For each effect that was asked about.
    pub found: Vec<(Ordinal, Found)>,
}

impl Gate {
    /// Asks the provider now, through the tool, what became of an action's
    /// effects in doubt. Costs none of the action's repeats, and is possible
    /// when they are spent.
    ///
    /// # Errors
    /// [`GateError::InvalidState`] if nothing is in doubt that can be looked up,
    /// [`GateError::Unavailable`] if this host cannot run the tool now.
    pub async fn reconcile(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
    ) -> Result<Reconciled, GateError> {
        let inner = &self.inner;
        let action = inner.row(tenant, id).await?;
        let invalid =
            |hint: &str| Err(GateError::InvalidState { action: id, state: action.state, hint: hint.into() });
        if action.state != State::OutcomeUnknown {
            return invalid("only an action whose outcome is unknown can be looked up");
        }
        let unknown = inner.unknown(&action).await?;
        let can_ask = unknown.iter().any(|record| record.terms.class == RecoveryClass::Verifiable);
        if !can_ask {
            return invalid(
                "none of what is in doubt is of the recovery class `verifiable`: look at the provider yourself, then \
                 resolve it",
            );
        }
        if !inner.can_be_asked(&action).await? {
            return invalid(
                "this version of the tool cannot say what became of a send (it exports no reconciler): look at the \
                 provider yourself, then resolve it",
            );
        }
        let place = match inner.places.acquire(tenant, Whose::of(&action), inner.config.quotas.places(tenant))
        {
            Ok(acquire) if !inner.is_draining() => acquire.await,
            Ok(_) => return Err(GateError::unavailable("this host is shutting down; try again")),
            Err(QueueFull) => {
                return Err(GateError::unavailable(
                    "this host runs as many actions as it may at once; try again",
                ));
            }
        };
        let ask: Vec<Ordinal> = unknown
            .iter()
            .filter(|record| record.terms.class == RecoveryClass::Verifiable)
            .map(|record| record.ordinal)
            .collect();
        let (action, found) = inner.look_up(action, unknown, &ask, Some(by)).await?;
        drop(place);
        Ok(Reconciled { action, found })
    }
}

impl Inner {
    /// Looks in a task of its own; whoever else decides on the same row finds it
    /// put off, and leaves it alone until this look may have failed.
    pub(crate) fn look_up_later(self: Arc<Inner>, due: Due, ask: Vec<Ordinal>) {
        let Some(busy) = Busy::with(&self.at_work, due.action.id) else { return };
        tokio::spawn(async move {
            let id = due.action.id;
            if let Err(error) = self.look_up_due(due, &ask).await {
                tracing::error!(action = %id, %error, "what became of a send could not be looked up");
            }
            drop(busy);
        });
    }

    async fn look_up_due(self: &Arc<Inner>, due: Due, ask: &[Ordinal]) -> Result<(), GateError> {
        let Due { action, unknown, .. } = due;
        let (tenant, id) = (action.tenant.clone(), action.id);
        // Behind a drain nobody begins to look.
        let mut draining = self.draining.subscribe();
        let limits = self.config.quotas.places(&tenant);
        let Ok(acquire) = self.places.acquire(&tenant, Whose::of(&action), limits) else {
            return Ok(());
        };
        let place = tokio::select! {
            biased;
            _ = draining.wait_for(|draining| *draining) => return Ok(()),
            place = acquire => place,
        };
        let putoff = if self.can_be_asked(&action).await? {
            let looks = self.config.repeats.saturating_sub(action.repeats_left) + 1;
            Putoff::Costly(self.config.retry.rest(looks, crate::jitter(), None))
        } else {
            Putoff::ToPerson
        };
        let put_off = self.store.postpone(&tenant, id, action.version_counter, putoff).await?;
        let (Step::Made(action), Putoff::Costly(_)) = (put_off, putoff) else { return Ok(()) };
        let (_, found) = self.look_up(action, unknown, ask, None).await?;
        drop(place);
        for (ordinal, found) in found {
            tracing::info!(action = %id, %ordinal, ?found, "what became of a send was looked up");
        }
        self.nudge.notify_one();
        Ok(())
    }

    async fn unknown(&self, action: &Action) -> Result<Vec<EffectRecord>, GateError> {
        let mut effects = self.store.effects(&action.tenant, action.id, false).await?;
        effects.retain(|record| record.status == EffectStatus::Unknown);
        Ok(effects)
    }

    async fn can_be_asked(&self, action: &Action) -> Result<bool, GateError> {
        let tool = self.store.tool(&action.tenant, &action.tool, Some(&action.version)).await?;
        Ok(tool.is_some_and(|tool| tool.inspection.reconciles))
    }

    /// Asks about each, and says what was found. The row after it.
    async fn look_up(
        self: &Arc<Inner>,
        mut action: Action,
        unknown: Vec<EffectRecord>,
        ask: &[Ordinal],
        by: Option<&Principal>,
    ) -> Result<(Action, Vec<(Ordinal, Found)>), GateError> {
        let grant = self.grants.get(&*self.store, &action.tenant, action.grant).await?;
        self.ensure_loaded(&action.tenant, action.component).await?;
        let mut all = Vec::new();
        for record in unknown.into_iter().filter(|record| ask.contains(&record.ordinal)) {
            if action.state != State::OutcomeUnknown {
                break;
            }
            let looker = Arc::new(Looker {
                gate: self.clone(),
                grant: grant.clone(),
                action: action.clone(),
                asked: Mutex::default(),
            });
            let call = execute::call(&action, &grant);
            let asking = self.components.reconcile(call, &record, looker.clone());
            let report = AssertUnwindSafe(asking).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(action = %action.id, "the code that runs components panicked");
                let why = "the host failed while it ran the tool".to_owned();
                LookupReport { verdict: Err(Ended::Trapped { why, limit: None }), log: Vec::new() }
            });
            let asked = std::mem::take(&mut *looker.asked.lock().await);
            let found = match weigh(report, &asked) {
                Weighed::Nothing(why) => Found::Nothing(why),
                Weighed::Done(answer) => self.say(&mut action, &record, Some(answer), &asked, by).await?,
                Weighed::NotDone => {
                    let from = settles_at(&record);
                    if self.store.now().await? < from {
                        Found::TooEarly(from)
                    } else {
                        self.say(&mut action, &record, None, &asked, by).await?
                    }
                }
            };
            all.push((record.ordinal, found));
        }
        Ok((action, all))
    }

    /// States what was found about one send. A row that changed for something
    /// else meanwhile is no reason to forget it; a send that did, is.
    async fn say(
        &self,
        action: &mut Action,
        record: &EffectRecord,
        answer: Option<Answer>,
        asked: &[Asked],
        by: Option<&Principal>,
    ) -> Result<Found, GateError> {
        let ordinal = record.ordinal;
        let happened = answer.is_some();
        let asked: Vec<&Value> = asked.iter().map(|asked| &asked.kept).collect();
        let mut evidence = json!({ "asked": asked });
        if let Some(by) = by {
            evidence["at_the_request_of"] = json!(by.as_str());
        }
        for _ in 0..WORDS {
            let others_unknown = action.unknown_effects > 1;
            let by = BY.to_owned();
            let fact = match happened {
                true => Fact::FoundDone { ordinal, by, others_unknown },
                false => Fact::FoundNotDone { ordinal, by, others_unknown },
            };
            let Ok(to) = next(action.state, &fact) else { return Ok(Found::Overtaken) };
            let resolve = Resolve {
                tenant: action.tenant.clone(),
                action: action.id,
                fence: SendFence { attempt: record.attempt, ordinal, send: record.send },
                expected: action.version_counter,
                moved: Move { fact, to, by: BY.into() },
                not_before: (!happened).then_some(record.terms.settle),
                answer: answer.clone(),
                evidence: Evidence {
                    by: BY.into(),
                    at: Timestamp::from_micros(0),
                    outcome: if happened { "happened" } else { "did_not_happen" }.into(),
                    evidence: evidence.clone(),
                },
                error: None,
            };
            match self.store.resolve(resolve).await? {
                Step::Made(row) => {
                    *action = row;
                    return Ok(if happened { Found::Done } else { Found::NotDone });
                }
                Step::Lost(row) if row.version_counter != action.version_counter => *action = *row,
                Step::Lost(row) => {
                    *action = *row;
                    return Ok(Found::Overtaken);
                }
            }
        }
        Ok(Found::Overtaken)
    }
}

/// A read that a lookup made.
struct Asked {
    /// The provider said something by it about what it has.
    tells: bool,
    /// As it is kept with the effect.
    kept: Value,
}

enum Weighed {
    Done(Answer),
    NotDone,
    Nothing(String),
}

/// What a tool's word is worth: as much as an answer of the provider is there to
/// carry it.
fn weigh(report: LookupReport, asked: &[Asked]) -> Weighed {
    let answered =
        asked.iter().any(|asked| asked.tells) || countersign_domain::planted::on("not-done-without-evidence");
    let without = "the tool says so, and the provider gave it no answer by which it could know";
    match report.verdict {
        Ok(Verdict::Unknown) => Weighed::Nothing("the tool could not find it out".into()),
        Ok(Verdict::Done(answer)) if answered => Weighed::Done(answer),
        Ok(Verdict::NotDone) if answered => Weighed::NotDone,
        Ok(Verdict::Done(_)) => Weighed::Nothing(format!("it happened, {without}")),
        Ok(Verdict::NotDone) => Weighed::Nothing(format!("it did not happen, {without}")),
        Err(Ended::Trapped { why, .. } | Ended::Unavailable(why)) => Weighed::Nothing(why),
        Err(Ended::Failed(failure)) => Weighed::Nothing(format!("the tool failed: {failure:?}")),
        Err(Ended::Stopped) => Weighed::Nothing("the provider could not be asked".into()),
        Err(Ended::Returned(_)) => Weighed::Nothing("the tool gave no verdict".into()),
    }
}

/// Whether an answer says anything about what the provider has: not where it
/// asks who is there, asks for patience, or failed itself.
fn tells(status: u16) -> bool {
    status < 500 && ![401, 403, 407, 408, 425, 429].contains(&status)
}

/// A lookup's way out: reads, by the routes that the grant has for them.
struct Looker {
    gate: Arc<Inner>,
    grant: Arc<Grant>,
    action: Action,
    asked: Mutex<Vec<Asked>>,
}

#[async_trait]
impl Effects for Looker {
    async fn submit(&self, effect: Effect) -> Passage {
        // Held across the send: effects of one run go one after another.
        let mut asked = self.asked.lock().await;
        if asked.len() >= self.grant.limits().effects as usize {
            return Passage::Stopped;
        }
        let resolved = request::resolve(&self.grant, &effect);
        let may_write = countersign_domain::planted::on("lookup-may-write");
        let outcome = match self.gate.dispatcher.open(&resolved.outlet) {
            Err(refusal) => Settled::Refused(refusal),
            Ok(_) if resolved.is_write() && !may_write => {
                Settled::Refused(Refusal::NotGranted("a lookup only reads".into()))
            }
            Ok(outlet) => {
                let (tenant, tool) = (self.action.tenant.clone(), self.action.tool.clone());
                let at = self.action.created;
                let parcel = Parcel::new(&self.grant, outlet, &effect, None, at, tenant, tool);
                match plan::read(&self.gate, parcel, &resolved).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Passage::Stopped,
                }
            }
        };
        let Ok(at) = self.gate.store.now().await else { return Passage::Stopped };
        let recorded = &resolved.recorded;
        let mut kept = json!({ "method": recorded.method, "url": recorded.url, "at": at });
        let (tells, passage) = match outcome {
            Settled::Refused(refusal) => {
                kept["refused"] = json!(refusal.to_string());
                (false, Passage::Refused { refusal, at })
            }
            Settled::Answered(answer) => {
                kept["status"] = json!(answer.status);
                kept["headers"] = json!(answer.headers);
                let whole = answer.body.len();
                let body = &answer.body[..whole.min(EVIDENCE_BYTES)];
                kept["body"] = json!(STANDARD.encode(body));
                kept["body_bytes"] = json!(whole);
                (tells(answer.status), Passage::Answered { answer, at })
            }
        };
        asked.push(Asked { tells, kept });
        passage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_about_what_the_provider_has_carries_a_word() {
        let report = |verdict| LookupReport { verdict: Ok(verdict), log: vec![] };
        let asked = |tells| vec![Asked { tells, kept: Value::Null }];
        assert!(matches!(weigh(report(Verdict::NotDone), &asked(true)), Weighed::NotDone));
        assert!(matches!(weigh(report(Verdict::NotDone), &asked(false)), Weighed::Nothing(_)));
        assert!(matches!(weigh(report(Verdict::NotDone), &[]), Weighed::Nothing(_)));
        let done = Verdict::Done(Answer { status: 200, headers: vec![], body: vec![] });
        assert!(matches!(weigh(report(done.clone()), &asked(true)), Weighed::Done(_)));
        assert!(matches!(weigh(report(done), &[]), Weighed::Nothing(_)));
        assert!(matches!(weigh(report(Verdict::Unknown), &asked(true)), Weighed::Nothing(_)));
        for (status, says) in
            [(200, true), (302, true), (404, true), (410, true), (401, false), (429, false), (500, false)]
        {
            assert_eq!(tells(status), says, "{status}");
        }
    }
}
