//! Looking for the first write: the component runs until it asks for one. Reads
//! on the way are let out (if the grant says so) and kept, and replayed later.
//! Nothing that may change anything is sent from here: this file has no way to
//! claim a write.

use std::sync::Arc;

use async_trait::async_trait;
use countersign_domain::effect::{Effect, Passage};
use countersign_domain::grant::{Grant, HttpRoute, Planning, RecoveryClass};
use countersign_domain::id::Ordinal;
use countersign_domain::plan::{MayFollow, Plan, PlannedWrite};
use countersign_domain::retry::Transport;
use countersign_domain::run::{Call, Ended, ToolFailure};
use countersign_domain::time::Timestamp;
use countersign_store::steps::{NewSettled, Settled};
use tokio::sync::Mutex;

use crate::components::Effects;
use crate::dispatch::{Dispatched, Parcel};
use crate::request::{self, Outlet, Resolved};
use crate::{GateError, Inner};

/// What planning found.
pub struct Planned {
    /// What is approved.
    pub plan: Plan,
    /// Reads and refusals on the way.
    pub effects: Vec<NewSettled>,
}

/// How often a read is tried within one run before the run is given up.
/// Chosen: a connection that was refused twice is not there.
pub(crate) const READ_TRIES: u32 = 2;

struct Planner {
    gate: Arc<Inner>,
    grant: Arc<Grant>,
    tenant: countersign_domain::id::TenantId,
    tool: countersign_domain::id::ToolName,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    write: Option<PlannedWrite>,
    stopped_early: bool,
    unreachable: Option<String>,
    effects: Vec<NewSettled>,
}

impl Inner {
    /// Runs a component until its first write.
    ///
    /// # Errors
    /// [`GateError::InvalidArguments`] or [`GateError::PlanningFailed`] if it
    /// ends by itself with a failure before that.
    pub(crate) async fn plan(
        self: &Arc<Inner>,
        tool: &countersign_domain::id::ToolName,
        grant: &Arc<Grant>,
        call: Call,
    ) -> Result<Planned, GateError> {
        let planner = Arc::new(Planner {
            gate: self.clone(),
            grant: grant.clone(),
            tenant: call.context.tenant.clone(),
            tool: tool.clone(),
            found: Mutex::default(),
        });
        let report = self.components.invoke(call, planner.clone()).await;
        let mut found = planner.found.lock().await;
        if let Some(why) = found.unreachable.take() {
            return Err(GateError::PlanningFailed { why, retryable: true });
        }
        let failed = |why: String, retryable: bool| Err(GateError::PlanningFailed { why, retryable });
        match report.ended {
            Ended::Returned(_) | Ended::Stopped => {}
            // What it asked for is captured; how it ended afterwards is nothing
            // that would be different if nobody had looked.
            _ if found.write.is_some() => {}
            Ended::Failed(ToolFailure::InvalidArguments(why)) => {
                return Err(GateError::InvalidArguments { pointer: String::new(), why });
            }
            Ended::Failed(ToolFailure::Refused(why)) => return failed(format!("it refused: {why}"), false),
            Ended::Failed(ToolFailure::Broken(why)) => return failed(why, false),
            Ended::Failed(ToolFailure::TryLater { reason, .. }) => return failed(reason, true),
            Ended::Trapped { why, .. } => return failed(why, false),
            Ended::Unavailable(why) => return Err(GateError::unavailable(why)),
        }
        let write = found.write.take();
        let may_follow = may_follow(grant);
        let plan = Plan { first_write: write, may_follow, stopped_early: found.stopped_early };
        Ok(Planned { plan, effects: std::mem::take(&mut found.effects) })
    }
}

fn may_follow(grant: &Grant) -> Vec<MayFollow> {
    let routes = grant
        .http()
        .iter()
        .filter(|route| route.unplanned > 0 && route.recovery != RecoveryClass::Read)
        .map(|route| MayFollow { up_to: route.unplanned, to: describe(route) });
    let mails = grant.email().filter(|email| email.unplanned > 0).map(|email| {
        let recipients: Vec<String> = email.recipients.iter().map(ToString::to_string).collect();
        MayFollow { up_to: email.unplanned, to: format!("mail to {}", recipients.join(" or ")) }
    });
    routes.chain(mails).collect()
}

/// A route in words, for approvers.
fn describe(route: &HttpRoute) -> String {
    let methods: Vec<&str> = route.methods.iter().map(|method| method.as_str()).collect();
    format!(
        "{} {}://{}:{}{}",
        methods.join("|"),
        route.scheme.as_str(),
        route.host,
        route.port,
        route.path.as_str()
    )
}

#[async_trait]
impl Effects for Planner {
    async fn submit(&self, effect: Effect) -> Passage {
        // Held across the send: effects of one run go one after another.
        let mut found = self.found.lock().await;
        if found.write.is_some() || found.stopped_early || found.unreachable.is_some() {
            return Passage::Stopped;
        }
        let resolved = request::resolve(&self.grant, &effect);
        if found.effects.len() >= self.grant.limits().effects as usize {
            found.unreachable =
                Some(format!("it asked for more than {} effects", self.grant.limits().effects));
            return Passage::Stopped;
        }
        let outcome = match self.gate.dispatcher.open(&resolved.outlet) {
            Ok(_) if resolved.is_write() => {
                found.write = Some(PlannedWrite {
                    fingerprint: resolved.fingerprint,
                    request: resolved.recorded.clone(),
                });
                return Passage::Stopped;
            }
            Ok(_) if self.grant.planning() == Planning::Nothing => {
                found.stopped_early = true;
                return Passage::Stopped;
            }
            Err(refusal) => Settled::Refused(refusal),
            Ok(outlet) => match self.read(outlet, &resolved, &effect).await {
                Ok(outcome) => outcome,
                Err(why) => {
                    found.unreachable = Some(why);
                    return Passage::Stopped;
                }
            },
        };
        let Ok(at) = self.gate.store.now().await else {
            found.unreachable = Some("the store's clock cannot be read".into());
            return Passage::Stopped;
        };
        let ordinal = Ordinal(u32::try_from(found.effects.len()).unwrap_or(u32::MAX).saturating_add(1));
        let passage = match &outcome {
            Settled::Answered(answer) => Passage::Answered { answer: answer.clone(), at },
            Settled::Refused(refusal) => Passage::Refused { refusal: refusal.clone(), at },
        };
        found.effects.push(settled(&self.grant, &resolved, ordinal, outcome));
        passage
    }
}

impl Planner {
    async fn read(&self, outlet: &Outlet, resolved: &Resolved, effect: &Effect) -> Result<Settled, String> {
        // A read is dated by nobody.
        let at = Timestamp::from_micros(0);
        let (tenant, tool) = (self.tenant.clone(), self.tool.clone());
        read(&self.gate, Parcel::new(&self.grant, outlet, effect, None, at, tenant, tool), resolved).await
    }
}

/// Makes a read, twice if need be: it changes nothing, so it may be repeated
/// freely. Whatever is answered is the answer.
pub(crate) async fn read(gate: &Inner, parcel: Parcel, resolved: &Resolved) -> Result<Settled, String> {
    let mut why = String::new();
    for _ in 0..READ_TRIES {
        match gate.dispatcher.post(parcel.clone(), || async { true }).await {
            Dispatched::Refused(refusal) => return Ok(Settled::Refused(refusal)),
            Dispatched::Sent { transport: Transport::Answered(answer), .. } => {
                return Ok(Settled::Answered(answer));
            }
            Dispatched::Sent { transport: Transport::NotSent(text) | Transport::Lost(text), .. } => {
                why = text
            }
        }
    }
    Err(format!("{} {}: {why}", resolved.recorded.method, resolved.recorded.url))
}

pub(crate) fn settled(grant: &Grant, resolved: &Resolved, ordinal: Ordinal, outcome: Settled) -> NewSettled {
    NewSettled {
        ordinal,
        kind: resolved.kind,
        write: resolved.is_write(),
        terms: resolved
            .outlet
            .as_ref()
            .map_or_else(|_| request::refused_terms(grant), |outlet| outlet.terms().clone()),
        fingerprint: resolved.fingerprint,
        request: resolved.recorded.clone(),
        outcome,
    }
}
