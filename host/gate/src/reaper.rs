//! Nothing waits for somebody who may never come. The reaper looks for actions
//! whose worker is gone, whose approval ran out, whose budget is spent, whose
//! cancel nobody heard; and for those that are due to run.
//!
//! [`plan`] decides, and is pure; the rest of the file does what it says.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use countersign_domain::action::{Action, ActionError, Fact, State, WaitsFor, next};
use countersign_domain::code;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{ActionId, Ordinal};
use countersign_domain::retry::RetryTerms;
use countersign_domain::time::Timestamp;
use countersign_store::steps::{ClaimKind, Due, Move, Putoff, Step, Transition, When};

use crate::conclude::what_stands;
use crate::reconciler::{self, Look};
use crate::{Gate, GateError, Inner};

/// How many actions one look takes. Chosen: a look is one short read; more than
/// this is taken by the next look.
const BATCH: u32 = 100;

/// How many the first look takes, of a host that just opened its store. Chosen:
/// far more than a host runs at once; what is beyond waits for its lease.
const FIRST_BATCH: u32 = 10_000;

/// After so many attempts a worker that is lost is no longer given another to
/// report what it did. Chosen: with rests that double to a minute, a quarter of
/// an hour of workers that die over the same action.
const MOST_ATTEMPTS_TO_REPORT: u32 = 16;

/// What is to be done about an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Todo {
    /// State a fact.
    State {
        /// The fact.
        fact: Fact,
        /// Holds only if this is so.
        when: When,
        /// For the row.
        error: Option<ActionError>,
        /// When the next attempt is due, from now.
        next_attempt_after: Option<Duration>,
    },
    /// Claim and run.
    Run(ClaimKind),
    /// Ask the tool what became of these effects.
    LookUp(Vec<Ordinal>),
    /// It is too early to ask.
    Rest(Duration),
    /// It waits for a person, and nobody was told.
    Announce,
    /// It was due for a repeat, and no repeat is allowed any more: a person has
    /// to say. Taken off the list, or enough of them would stand before
    /// everything that can be moved.
    LeaveToPerson,
}

/// Decides about one action. `None`: it waits for a person, a provider's rest
/// or its worker, and that is visible in its row.
pub fn plan(
    now: Timestamp,
    due: &Due,
    all_leases_over: bool,
    retry: RetryTerms,
    jitter: f64,
) -> Option<Todo> {
    let action = &due.action;
    let standing = action.standing();
    let state = |fact, when, error| Some(Todo::State { fact, when, error, next_attempt_after: None });
    let rested = action.next_attempt.is_none_or(|at| now >= at);
    let changed = due.policy_epoch != action.policy_epoch;
    match action.state {
        State::AwaitingApproval | State::Approved if now >= action.approval_expires => {
            state(Fact::Expired { standing }, When::ApprovalExpired, Some(expired(action)))
        }
        State::Approved if action.run_by_itself && changed => {
            let what = "what was approved may have changed: a grant, a tool version, a policy or a role did"
                .to_owned();
            let error = Some(error(code::ACTION_CHANGED, &what));
            state(Fact::Changed { standing, what }, When::Always, error)
        }
        State::Approved if action.run_by_itself => Some(Todo::Run(ClaimKind::Run)),
        State::Executing if all_leases_over || action.lease_expires.is_none_or(|at| now >= at) => {
            let when = if all_leases_over { When::Always } else { When::LeaseExpired };
            let rest = Some(if all_leases_over {
                Duration::ZERO
            } else {
                retry.rest(action.attempt.0, jitter, None)
            });
            let (fact, error) = match (action.in_flight, standing.open) {
                (None, false) => (
                    Fact::WorkerLost { standing },
                    error(code::WORKER_LOST, "its worker is gone; nothing is in doubt"),
                ),
                (in_flight, _) => {
                    let unknown = due.unknown.first().map(|record| record.ordinal);
                    let ordinal = in_flight.or(unknown).unwrap_or(countersign_domain::id::Ordinal(0));
                    let why = format!("its worker is gone, and effect {ordinal} may have been sent");
                    let error = error(code::EXECUTION_IN_DOUBT, &why);
                    (Fact::OutcomeLost { ordinal, why }, error)
                }
            };
            Some(Todo::State { fact, when, error: Some(error), next_attempt_after: rest })
        }
        State::FailedRetryable => {
            if let Some(reason) = &action.cancel_requested {
                let message = format!("it was cancelled: {reason}");
                let fact = Fact::Cancelled { standing, reason: reason.clone() };
                return state(fact, When::Always, Some(error(code::CANCELLED, &message)));
            }
            if !standing.writes_stand && now >= action.approval_expires {
                return state(Fact::Expired { standing }, When::ApprovalExpired, Some(expired(action)));
            }
            if !standing.writes_stand && changed {
                let what =
                    "a grant, a tool version, a policy or a role changed before anything was sent".to_owned();
                let error = Some(error(code::ACTION_CHANGED, &what));
                return state(Fact::Changed { standing, what }, When::Always, error);
            }
            if action.attempts_left == 0 {
                let last = action.error.as_ref().map_or("", |error| error.message.as_str());
                let message = format!("it failed {} times; the last time: {last}", action.attempt);
                return state(
                    Fact::RetriesExhausted,
                    When::Always,
                    Some(error(code::RETRIES_EXHAUSTED, &message)),
                );
            }
            rested.then_some(Todo::Run(ClaimKind::Run))
        }
        State::OutcomeUnknown if !rested => None,
        State::OutcomeUnknown if action.waits_for() == Some(WaitsFor::Person) => {
            action.is_to_be_announced().then_some(Todo::Announce)
        }
        State::OutcomeUnknown if may_repeat(now, action, due) => Some(Todo::Run(ClaimKind::Repeat)),
        State::OutcomeUnknown => Some(match reconciler::plan(now, action, &due.unknown) {
            Some(Look::Ask(ordinals)) => Todo::LookUp(ordinals),
            Some(Look::Wait(settling)) => Todo::Rest(settling),
            None => Todo::LeaveToPerson,
        }),
        _ => None,
    }
}

/// Whether everything that is unknown may be sent again under its own key. The
/// claim judges the window once more.
pub fn may_repeat(now: Timestamp, action: &Action, due: &Due) -> bool {
    action.repeats_left > 0
        && action.cancel_requested.is_none()
        // A component that asks for something else now is no way to ask again.
        && action.error.as_ref().is_none_or(|error| error.code != code::REPLAY_DIVERGED)
        // Of a ledger that lost commits, a run finds the write that is in doubt,
        // and sends nothing that is not asked about first.
        && (!due.unknown.is_empty() || action.rewound)
        && action.approved_fingerprint == Some(action.fingerprint)
        && due.unknown.iter().all(|record| {
            record.terms.class == RecoveryClass::ProviderIdempotent
                && record.window_ends().is_some_and(|end| now < end)
        })
}

fn error(code: &str, message: &str) -> ActionError {
    ActionError { code: code.into(), message: message.into() }
}

fn expired(action: &Action) -> ActionError {
    error(code::APPROVAL_EXPIRED, &format!("its approval ran out at {}", action.approval_expires))
}

impl Gate {
    /// One look: does everything that is due. With `all_leases_over` (one host
    /// holds the store and just opened it) no lease is waited for.
    ///
    /// # Errors
    /// Only if the store cannot be read.
    pub async fn tend(&self, all_leases_over: bool) -> Result<usize, GateError> {
        self.inner.tend(all_leases_over).await
    }

    /// Looks again and again until the gate drains: at once when something may
    /// be due, and on a timer, because a wake-up may be lost.
    pub async fn keep_tending(&self, all_leases_over: bool) {
        let inner = &self.inner;
        let mut draining = inner.draining.subscribe();
        let mut first = all_leases_over;
        loop {
            match inner.tend(first).await {
                Ok(_) => first = false,
                Err(error) => tracing::error!(%error, "the reaper could not look"),
            }
            tokio::select! {
                () = inner.nudge.notified() => {}
                () = tokio::time::sleep(inner.config.reap_every) => {}
                _ = draining.wait_for(|draining| *draining) => return,
            }
        }
    }
}

/// Actions that this host is about to claim, looks up or tells somebody of: a
/// look must not begin again what the look before it has begun.
pub(crate) type Claiming = Arc<Mutex<HashSet<ActionId>>>;

/// Says for as long as it is there that this host is at work on an action.
pub(crate) struct Busy {
    claiming: Claiming,
    id: ActionId,
}

impl Busy {
    /// `None`: somebody is already.
    pub(crate) fn with(claiming: &Claiming, id: ActionId) -> Option<Busy> {
        let new = claiming.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        new.then(|| Busy { claiming: claiming.clone(), id })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.claiming.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl Inner {
    async fn tend(self: &Arc<Inner>, all_leases_over: bool) -> Result<usize, GateError> {
        while self.doubt_rewound().await? > 0 {}
        let due = self.store.due(if all_leases_over { FIRST_BATCH } else { BATCH }, all_leases_over).await?;
        let now = self.store.now().await?;
        let mut done = 0;
        for due in due {
            // This host may run actions already when it looks for what another
            // left behind.
            let over = all_leases_over && !due.action.attempt_id.is_some_and(|id| self.is_live(id));
            let Some(todo) = plan(now, &due, over, self.config.retry, crate::jitter()) else { continue };
            match todo {
                Todo::State { fact, when, error, next_attempt_after } => {
                    match self.state(&due.action, fact, when, error, next_attempt_after, "reaper").await {
                        Ok(Step::Made(action)) => {
                            tracing::info!(action = %action.id, state = %action.state, "the reaper moved an action");
                            done += 1;
                        }
                        // Somebody was first.
                        Ok(Step::Lost(_)) => {}
                        Err(error) => tracing::error!(action = %due.action.id, %error, "the reaper failed"),
                    }
                }
                Todo::LeaveToPerson => {
                    let Due { action, .. } = due;
                    self.put_off(&action, Putoff::ToPerson).await;
                    done += 1;
                }
                Todo::Rest(settling) => {
                    self.put_off(&due.action, Putoff::Free(settling)).await;
                    done += 1;
                }
                Todo::LookUp(ordinals) => {
                    done += 1;
                    self.clone().look_up_later(due, ordinals);
                }
                Todo::Announce => self.clone().announce_later(due),
                Todo::Run(kind) => {
                    done += 1;
                    self.clone().run_later(due.action, kind);
                }
            }
        }
        Ok(done)
    }

    /// Doubts some of the actions that were open when commits were lost, before
    /// anything is claimed; how many there were.
    pub(crate) async fn doubt_rewound(&self) -> Result<usize, GateError> {
        let doubted = self.store.doubt_rewound(BATCH).await?;
        if doubted > 0 {
            tracing::warn!(doubted, "actions are in doubt, because the ledger lost commits");
        }
        Ok(doubted)
    }

    async fn put_off(&self, action: &Action, putoff: Putoff) {
        // Lost: it moved on, and that is looked at next.
        if let Err(error) =
            self.store.postpone(&action.tenant, action.id, action.version_counter, putoff).await
        {
            tracing::error!(action = %action.id, %error, "the reaper failed");
        }
    }

    fn run_later(self: Arc<Inner>, action: Action, kind: ClaimKind) {
        let id = action.id;
        let Some(busy) = Busy::with(&self.at_work, id) else { return };
        tokio::spawn(async move {
            let claimed = self.claim(&action.tenant, id, kind, None).await;
            drop(busy);
            match claimed {
                Ok(Step::Made(run)) => {
                    self.run(run).await;
                }
                Ok(Step::Lost(_)) => {}
                Err(error) => tracing::error!(action = %id, %error, "a due action could not be claimed"),
            }
        });
    }

    /// States a fact about an action as read; what the rules do not allow is an
    /// error here, never a write.
    pub(crate) async fn state(
        &self,
        action: &Action,
        fact: Fact,
        when: When,
        error: Option<ActionError>,
        next_attempt_after: Option<Duration>,
        by: &str,
    ) -> Result<Step<Action>, GateError> {
        let to = next(action.state, &fact).map_err(|illegal| GateError::InvalidState {
            action: action.id,
            state: action.state,
            hint: illegal.to_string(),
        })?;
        let in_flight_becomes_unknown = matches!(fact, Fact::OutcomeLost { .. });
        // A worker that died over work that was done did not use the attempt that
        // was to report it; but one that kills its worker each time ends, too.
        let grants = u32::from(
            matches!(fact, Fact::WorkerLost { .. })
                && action.standing_writes > 0
                && action.attempt.0 < MOST_ATTEMPTS_TO_REPORT
                && !countersign_domain::planted::on("lost-worker-spends-grant"),
        );
        let error = match error {
            // An end names the writes that stand.
            Some(error) if to.is_terminal() && action.standing().writes_stand => {
                let effects = self.store.effects(&action.tenant, action.id, false).await?;
                let message = format!("{}{}", error.message, what_stands(&effects, action.rewound));
                Some(ActionError { message, ..error })
            }
            error => error,
        };
        let transition = Transition {
            tenant: action.tenant.clone(),
            action: action.id,
            expected: action.version_counter,
            moved: Move { fact, to, by: by.into() },
            when,
            error,
            next_attempt_after,
            in_flight_becomes_unknown,
            superseded_by: None,
            grants,
        };
        Ok(self.store.transition(transition).await?)
    }

    /// Writes down that an approval ran out; returns the row as it stands.
    pub(crate) async fn expire(&self, action: Action) -> Result<Action, GateError> {
        let fact = Fact::Expired { standing: action.standing() };
        let error = Some(expired(&action));
        match self.state(&action, fact, When::ApprovalExpired, error, None, "reaper").await? {
            Step::Made(action) => Ok(action),
            Step::Lost(action) => Ok(*action),
        }
    }

    /// An approved action that cannot be claimed: expired, or void because what
    /// was approved is not what would run.
    pub(crate) async fn void_if_changed(&self, action: Action) -> Result<Action, GateError> {
        if self.store.now().await? >= action.approval_expires {
            return self.expire(action).await;
        }
        let tool = self.store.tool(&action.tenant, &action.tool, None).await?;
        let same = tool.is_some_and(|tool| tool.policy_epoch == action.policy_epoch);
        if same && action.approved_fingerprint.is_none_or(|approved| approved == action.fingerprint) {
            return Ok(action);
        }
        let what = "a grant, a tool version, a policy or a role changed since it was proposed".to_owned();
        let error = Some(self::error(code::ACTION_CHANGED, &what));
        let fact = Fact::Changed { standing: action.standing(), what };
        match self.state(&action, fact, When::Always, error, None, "policy").await? {
            Step::Made(action) => Ok(action),
            Step::Lost(action) => Ok(*action),
        }
    }

    pub(crate) async fn is_paused(&self, action: &Action) -> Result<bool, GateError> {
        let tool = self.store.tool(&action.tenant, &action.tool, None).await?;
        Ok(tool.is_some_and(|tool| tool.paused))
    }

    /// Whether an unknown outcome will be asked about again without a person.
    pub(crate) async fn repeats_itself(&self, action: &Action) -> Result<bool, GateError> {
        let effects = self.store.effects(&action.tenant, action.id, false).await?;
        let unknown = effects
            .into_iter()
            .filter(|record| record.status == countersign_domain::effect::EffectStatus::Unknown)
            .collect();
        let due = Due { action: action.clone(), unknown, policy_epoch: action.policy_epoch };
        Ok(may_repeat(self.store.now().await?, action, &due))
    }
}
