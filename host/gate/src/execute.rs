//! Executing an action: claim it, run it, write down how it ended; or wait for
//! whoever does. Nobody runs it because they got tired of waiting.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::fingerprint::{self, Approvable};
use countersign_domain::grant::Grant;
use countersign_domain::id::{ActionId, AttemptId, TenantId};
use countersign_domain::plan::Plan;
use countersign_domain::run::{Call, Ended, RunContext, RunReport};
use countersign_store::steps::{ClaimAction, ClaimKind, ClaimedAction, EndAttempt, Step};
use futures::FutureExt as _;
use tokio::time::Instant;

use crate::attempt::{Attempt, Way};
use crate::conclude::{Conclusion, Remains, Stop, conclude};
use crate::heartbeat::Heartbeat;
use crate::places::{Place, QueueFull, Whose};
use crate::propose::run_limits;
use crate::signals::Point;
use crate::{Gate, GateError, Inner};

/// How an execution stands when the caller is answered.
#[derive(Debug, Clone)]
pub enum Execution {
    /// It ended, one way or another.
    Ended {
        /// The row.
        action: Box<Action>,
        /// The caller is told what an earlier run, or another caller's, did.
        replayed: bool,
    },
    /// Somebody runs it, or will.
    Running(Box<Action>),
}

impl Gate {
    /// Runs an approved action, or joins whoever runs it, and waits so long.
    /// A caller that goes away changes nothing: the run is a task of its own.
    ///
    /// # Errors
    /// [`GateError::InvalidState`] if it is not approved,
    /// [`GateError::ApprovalExpired`], [`GateError::ActionChanged`], and
    /// [`GateError::InDoubt`] if the outcome is unknown and stays so for now.
    pub async fn execute(
        &self,
        tenant: &TenantId,
        id: ActionId,
        wait: Duration,
    ) -> Result<Execution, GateError> {
        let deadline = Instant::now() + wait;
        let waiter = self.inner.waiters.wait_for(id);
        let mut may_claim = true;
        loop {
            // Before the row is read: what changes after the reading must wake.
            let changed = waiter.changed();
            let action = if may_claim {
                match self.inner.claim(tenant, id, ClaimKind::Run, Some(deadline)).await? {
                    Step::Made(run) => {
                        let running = tokio::spawn(self.inner.clone().run(run));
                        match tokio::time::timeout_at(deadline, running).await {
                            // The run ended and this caller was its runner.
                            Ok(Ok(Some(action))) if action.state.is_terminal() => {
                                return Ok(Execution::Ended { action, replayed: false });
                            }
                            _ => self.inner.row(tenant, id).await?,
                        }
                    }
                    Step::Lost(action) => *action,
                }
            } else {
                self.inner.row(tenant, id).await?
            };
            // Approved while this caller looked: nobody else may come to run it.
            may_claim = action.state == State::Approved;
            let out_of_time = Instant::now() >= deadline;
            match self.stands(action).await? {
                Stands::Ended(action) => return Ok(Execution::Ended { action, replayed: true }),
                Stands::Running(action) if out_of_time => return Ok(Execution::Running(action)),
                Stands::InDoubt { action, settles_itself, why } if out_of_time || !settles_itself => {
                    return Err(GateError::InDoubt { action, why });
                }
                Stands::Running(_) | Stands::InDoubt { .. } => {}
            }
            if !may_claim {
                let _ = tokio::time::timeout_at(deadline, changed).await;
            }
        }
    }

    /// Waits until an action is decided or ended, or the time is up.
    ///
    /// # Errors
    /// [`GateError::NotFound`] if there is none.
    pub async fn wait(&self, tenant: &TenantId, id: ActionId, wait: Duration) -> Result<Action, GateError> {
        let deadline = Instant::now() + wait;
        let waiter = self.inner.waiters.wait_for(id);
        let mut first = None;
        loop {
            let changed = waiter.changed();
            let action = self.inner.row(tenant, id).await?;
            let decided = action.state != *first.get_or_insert(action.state) || action.state.is_terminal();
            if decided || Instant::now() >= deadline {
                return Ok(action);
            }
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    /// Where an action that could not be claimed stands, for its caller.
    async fn stands(&self, action: Action) -> Result<Stands, GateError> {
        let invalid = |action: &Action, hint: &str| {
            Err(GateError::InvalidState { action: action.id, state: action.state, hint: hint.into() })
        };
        match action.state {
            state if state.is_terminal() => Ok(Stands::Ended(Box::new(action))),
            State::Executing | State::FailedRetryable => Ok(Stands::Running(Box::new(action))),
            State::OutcomeUnknown => {
                let why =
                    action.error.as_ref().map_or("its worker is gone".into(), |error| error.message.clone());
                // Row and effects are two looks: what moved on between them is
                // being settled.
                let settles_itself = self.inner.repeats_itself(&action).await?
                    || self.inner.row(&action.tenant, action.id).await?.version_counter
                        != action.version_counter;
                Ok(Stands::InDoubt { action: Box::new(action), settles_itself, why })
            }
            State::Proposed | State::AwaitingApproval => {
                let now = self.inner.store.now().await?;
                if now >= action.approval_expires {
                    return Ok(Stands::Ended(Box::new(self.inner.expire(action).await?)));
                }
                invalid(&action, "it is not approved yet; wait for the decision")
            }
            // Approved and still not to be claimed: something changed since.
            State::Approved => {
                if self.inner.doubt_rewound().await? > 0 {
                    // It may be one of them; the next look shows it.
                    return Ok(Stands::Running(Box::new(action)));
                }
                let action = self.inner.void_if_changed(action).await?;
                if action.state.is_terminal() {
                    return Ok(Stands::Ended(Box::new(action)));
                }
                if self.inner.is_draining() {
                    return Err(GateError::unavailable("this host is shutting down; try again"));
                }
                if self.inner.is_paused(&action).await? {
                    return invalid(&action, "its tool is paused by an operator");
                }
                self.inner.may_run_one_more(&action)?;
                Ok(Stands::Running(Box::new(action)))
            }
            _ => invalid(&action, "it cannot be executed"),
        }
    }
}

enum Stands {
    Ended(Box<Action>),
    Running(Box<Action>),
    InDoubt { action: Box<Action>, settles_itself: bool, why: String },
}

/// A claimed action, and the place it runs in.
pub(crate) struct Run {
    claimed: ClaimedAction,
    attempt: AttemptId,
    place: Place,
    live: Live,
}

/// Says for as long as it is there that this host runs the attempt.
struct Live {
    gate: Arc<Inner>,
    attempt: AttemptId,
}

impl Live {
    fn new(gate: &Arc<Inner>, attempt: AttemptId) -> Live {
        gate.live.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt);
        Live { gate: gate.clone(), attempt }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.gate.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.attempt);
    }
}

impl Inner {
    pub(crate) async fn row(&self, tenant: &TenantId, id: ActionId) -> Result<Action, GateError> {
        self.store.action(tenant, id).await?.ok_or_else(|| GateError::no_action(id))
    }

    /// Claims an action for one attempt of this host. `by`: until when a place
    /// to run in is waited for; without one, and while this host drains, nothing
    /// is claimed.
    pub(crate) async fn claim(
        self: &Arc<Inner>,
        tenant: &TenantId,
        id: ActionId,
        kind: ClaimKind,
        by: Option<Instant>,
    ) -> Result<Step<Run>, GateError> {
        // A place first: a claim that then waits for one wastes its lease. Not
        // behind a drain, which waits for every place.
        let limits = self.config.quotas.places(tenant);
        let place = match self.places.at_once(tenant, limits) {
            Some(place) => Some(place),
            None => {
                let mut draining = self.draining.subscribe();
                let whose = Whose::of(&self.row(tenant, id).await?);
                match self.places.acquire(tenant, whose, limits) {
                    Err(QueueFull) => None,
                    Ok(acquire) => tokio::select! {
                        biased;
                        _ = draining.wait_for(|draining| *draining) => None,
                        place = acquire => Some(place),
                        () = until(by) => None,
                    },
                }
            }
        };
        let Some(mut place) = place.filter(|_| !self.is_draining()) else {
            return Ok(Step::Lost(Box::new(self.row(tenant, id).await?)));
        };
        self.reached(Point::BeforeClaim, None).await;
        let attempt = AttemptId(uuid::Uuid::new_v4());
        let live = Live::new(self, attempt);
        let claim = ClaimAction {
            tenant: tenant.clone(),
            action: id,
            attempt,
            owner: self.config.owner.clone(),
            lease: self.config.lease,
            kind,
        };
        match self.store.claim_action(claim).await {
            Ok(Step::Made(claimed)) => {
                place.is_for(Whose::of(&claimed.action));
                Ok(Step::Made(Run { claimed, attempt, place, live }))
            }
            Ok(Step::Lost(action)) => Ok(Step::Lost(action)),
            Err(countersign_store::StoreError::NotFound { .. }) => Err(GateError::no_action(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a claimed action to the end of its attempt. `None`: the attempt was
    /// over before that, and somebody else wrote what became of it.
    pub(crate) async fn run(self: Arc<Inner>, run: Run) -> Option<Box<Action>> {
        self.reached(Point::AfterClaim, None).await;
        let Run { claimed, attempt, place, live } = run;
        let tenant = claimed.action.tenant.clone();
        let ended = match self.prepare(claimed, attempt).await {
            Ok(prepared) => self.run_prepared(prepared).await,
            Err(unprepared) => {
                let (claimed, why) = *unprepared;
                self.give_back(claimed, attempt, &why).await
            }
        };
        self.reached(Point::AfterEnd, None).await;
        drop((place, live));
        let action = ended?;
        // What has ended is not due; looking for what is costs a read.
        if !action.state.is_terminal() {
            self.nudge.notify_one();
        }
        debug_assert_eq!(action.tenant, tenant);
        Some(action)
    }

    async fn prepare(
        self: &Arc<Inner>,
        claimed: ClaimedAction,
        id: AttemptId,
    ) -> Result<(Arc<Attempt>, Call), Box<(ClaimedAction, GateError)>> {
        let action = &claimed.action;
        let ready = async {
            check_fingerprint(action)?;
            let grant = self.grants.get(&*self.store, &action.tenant, action.grant).await?;
            self.ensure_loaded(&action.tenant, action.component).await?;
            let plan: Plan = serde_json::from_str(action.plan.as_str()).map_err(|error| {
                GateError::unavailable(format!("the stored plan cannot be read: {error}"))
            })?;
            Ok((grant, plan))
        };
        let (grant, plan) = match ready.await {
            Ok(ready) => ready,
            Err(why) => return Err(Box::new((claimed, why))),
        };
        let call = call(action, &grant);
        Ok((Arc::new(Attempt::new(self.clone(), claimed, id, grant, plan)), call))
    }

    async fn run_prepared(self: &Arc<Inner>, (attempt, call): (Arc<Attempt>, Call)) -> Option<Box<Action>> {
        // Ends with this run however it ends: a heartbeat that outlives its
        // attempt would keep the lease for ever.
        let heartbeat = Heartbeat::of(&attempt);
        let running = self.components.invoke(call, Arc::new(Way(attempt.clone())));
        let report = tokio::select! {
            biased;
            ran = AssertUnwindSafe(running).catch_unwind() => ran.unwrap_or_else(|_| {
                tracing::error!(action = %attempt.action.id, "the code that runs components panicked");
                let why = "the host failed while it ran the tool".to_owned();
                RunReport { ended: Ended::Trapped { why, limit: None }, log: Vec::new() }
            }),
            // The component is let go of in the middle of whatever it does.
            () = self.released(&attempt) => RunReport { ended: Ended::Stopped, log: Vec::new() },
        };
        self.reached(Point::BeforeEnd, None).await;
        // Taken when no send runs any more: an attempt never ends while one does.
        let progress = if countersign_domain::planted::on("end-while-sending") {
            attempt.progress.try_lock().ok()
        } else {
            Some(attempt.progress.lock().await)
        };
        drop(heartbeat);
        let cancel = match attempt.halted.load(Ordering::Acquire) {
            false => None,
            true => self.row(&attempt.action.tenant, attempt.action.id).await.ok()?.cancel_requested,
        };
        let RunReport { ended, log: printed } = report;
        let result_misfit = match &ended {
            Ended::Returned(result) => self.result_misfit(&attempt.action, result).await,
            _ => None,
        };
        let no_log = countersign_domain::effect_log::EffectLog::new(Vec::new());
        let (log, sending, stop) = match progress {
            Some(mut progress) => {
                // What a component that is gone still asks for, nobody does.
                let stop = progress.stop.replace(Stop::Halted);
                (progress.log.clone(), progress.sending, stop)
            }
            None => (no_log, None, None),
        };
        // Compared with the deadline, of an attempt that was refused a claim.
        let now = match &stop {
            Some(Stop::ClaimRefused(row)) => self.store.now().await.unwrap_or(row.updated),
            _ => attempt.action.updated,
        };
        let conclusion = conclude(Remains {
            action: &attempt.action,
            log: &log,
            sending,
            stop,
            ended,
            cancel,
            now,
            retry: self.config.retry,
            jitter: crate::jitter(),
            result_misfit,
        })?;
        self.write_down(&attempt.action, attempt.id, conclusion, printed).await
    }

    /// An attempt that could not even begin.
    async fn give_back(&self, claimed: ClaimedAction, id: AttemptId, why: &GateError) -> Option<Box<Action>> {
        tracing::error!(action = %claimed.action.id, error = %why, "an attempt could not begin");
        let log = countersign_domain::effect_log::EffectLog::new(claimed.effects);
        let conclusion = conclude(Remains {
            action: &claimed.action,
            log: &log,
            sending: None,
            stop: match why {
                GateError::ActionChanged { .. } => Some(Stop::NotApproved(why.to_string())),
                _ => None,
            },
            ended: Ended::Unavailable(why.to_string()),
            cancel: None,
            now: claimed.action.updated,
            retry: self.config.retry,
            jitter: crate::jitter(),
            result_misfit: None,
        })?;
        self.write_down(&claimed.action, id, conclusion, Vec::new()).await
    }

    async fn write_down(
        &self,
        action: &Action,
        attempt: AttemptId,
        conclusion: Conclusion,
        log: Vec<String>,
    ) -> Option<Box<Action>> {
        let end = EndAttempt {
            tenant: action.tenant.clone(),
            action: action.id,
            attempt,
            moved: conclusion.moved(),
            result: conclusion.result,
            error: conclusion.error,
            next_attempt_after: conclusion.next_attempt_after,
            set_aside: conclusion.set_aside,
            lost: conclusion.lost,
            log,
        };
        match self.store.end_attempt(end).await {
            Ok(Step::Made(action)) => Some(Box::new(action)),
            Ok(Step::Lost(row)) => {
                tracing::warn!(action = %row.id, state = %row.state, "an attempt was over before it ended");
                None
            }
            // The lease runs out and the reaper states what can be stated.
            Err(error) => {
                tracing::error!(action = %action.id, %error, "the end of an attempt could not be recorded");
                None
            }
        }
    }

    async fn result_misfit(
        &self,
        action: &Action,
        result: &countersign_domain::canonical::CanonicalJson,
    ) -> Option<String> {
        if let Some(misfit) = self.schemas.misfit(action.component, result) {
            return misfit;
        }
        // Proposed on another host, or before this one started.
        let tool = self.store.tool(&action.tenant, &action.tool, Some(&action.version)).await.ok()??;
        match self.schemas.prepare(&tool) {
            Ok(()) => self.schemas.misfit(tool.component, result)?,
            Err(error) => Some(error.to_string()),
        }
    }
}

/// A call of the action's component: the same for each attempt and lookup.
pub(crate) fn call(action: &Action, grant: &Grant) -> Call {
    Call {
        component: action.component,
        arguments: action.arguments.clone(),
        context: RunContext {
            tenant: action.tenant.clone(),
            action: action.id,
            run: action.key.run().map(|(run, _)| run.to_owned()),
            step: action.key.run().map(|(_, step)| step.to_owned()),
            actor: action.actor.clone(),
            started: action.created,
            seed: action.seed,
        },
        limits: run_limits(grant),
        forbidden_headers: Arc::new(grant.forbidden_headers()),
    }
}

/// What runs is computed anew from the row's own bytes and compared with what was
/// approved: a row that somebody edited in the database runs nothing.
fn check_fingerprint(action: &Action) -> Result<(), GateError> {
    let intent = fingerprint::intent(
        &action.tenant,
        &action.actor,
        &action.tool,
        action.requested_version.as_deref(),
        &action.arguments,
    );
    let found = fingerprint::fingerprint(Approvable {
        action: action.id,
        intent,
        version: &action.version,
        component: action.component,
        grant: action.grant,
        plan: &action.plan,
        preview: action.preview.as_ref(),
    });
    if action.approved_fingerprint == Some(found) || countersign_domain::planted::on("fingerprint") {
        return Ok(());
    }
    Err(GateError::ActionChanged {
        action: action.id,
        what: format!("what stands in the ledger has fingerprint {found}, which nobody approved"),
    })
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
