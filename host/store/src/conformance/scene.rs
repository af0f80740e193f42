//! A stage for the cases: one tenant with one tool, and the moves that every
//! case needs, in few words.
//!
//! Long because it is one vocabulary: each move is short, and a case reads as
//! sentences made of them.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::action::{Action, ActionError, Fact, Standing, State};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{
    Answer, EffectKind, EffectRecord, EffectStatus, Evidence, RecordedRequest, Terms,
};
use countersign_domain::event::{Event, verify};
use countersign_domain::grant::{On5xx, RecoveryClass};
use countersign_domain::id::{
    ActionId, AttemptId, ComponentDigest, Digest, EffectFingerprint, Fingerprint, GrantDigest, Intent,
    Ordinal, Principal, SendNumber, TenantId,
};
use countersign_domain::key::{ActionKey, action_id};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use countersign_domain::tool::{Inspection, InstalledTool, Manifest};

use super::Backend;
use crate::steps::{
    Approve, ClaimAction, ClaimKind, ClaimWrite, ClaimedAction, EndAttempt, Move, NewAction, NewSettled,
    Proposed, RecordSend, Recorded, RepeatWrite, Resolve, SendResult, Settled, Step, Transition, When,
    WriteClaimed,
};
use crate::{NewTool, Store, StoreError};

pub const MICROSECOND: Duration = Duration::from_micros(1);
pub const APPROVAL: Duration = Duration::from_secs(900);
pub const DEADLINE: Duration = Duration::from_secs(86_400);
pub const SEND: Duration = Duration::from_secs(30);
pub const SETTLE: Duration = Duration::from_secs(60);
pub const WINDOW: Duration = Duration::from_secs(3600);
pub const LEASE: LeaseTerms = LeaseTerms { length: Duration::from_secs(60), margin: Duration::from_secs(5) };

/// The stage.
pub struct Scene<'a> {
    pub backend: &'a dyn Backend,
    pub store: Arc<dyn Store>,
    pub tenant: TenantId,
    pub tool: InstalledTool,
}

/// A claim's attempt and its row.
pub struct Attempt {
    pub action: ActionId,
    pub id: AttemptId,
}

pub fn made<T: std::fmt::Debug>(step: Result<Step<T>, StoreError>) -> T {
    match step {
        Ok(Step::Made(made)) => made,
        other => panic!("the step was not made: {other:?}"),
    }
}

pub fn lost<T: std::fmt::Debug>(step: Result<Step<T>, StoreError>) -> Action {
    match step {
        Ok(Step::Lost(row)) => *row,
        other => panic!("the step was not lost: {other:?}"),
    }
}

pub fn text(json: &str) -> CanonicalJson {
    CanonicalJson::parse(json, Default::default()).unwrap()
}

pub fn principal(name: &str) -> Principal {
    name.parse().unwrap()
}

pub fn fresh_attempt() -> AttemptId {
    AttemptId(uuid::Uuid::new_v4())
}

pub fn error(code: &str) -> Option<ActionError> {
    Some(ActionError { code: code.into(), message: format!("because of {code}") })
}

pub fn terms(class: RecoveryClass) -> Terms {
    Terms {
        class,
        key_window: WINDOW,
        in_flight_status: 409,
        replay_header: Some("idempotent-replayed".into()),
        on_5xx: On5xx::Unknown,
        send: SEND,
        settle: SETTLE,
    }
}

pub fn request(what: &str) -> RecordedRequest {
    RecordedRequest {
        method: "POST".into(),
        url: format!("https://pay.example/{what}"),
        headers: vec![("content-type".into(), "application/json".into())],
        body: br#"{"amount":"10.00"}"#.to_vec(),
    }
}

pub fn answer(status: u16) -> Answer {
    Answer { status, headers: vec![("x".into(), "\u{e9}".into())], body: vec![0, 159, 255] }
}

pub fn answered(status: u16) -> SendResult {
    SendResult::Answered { answer: answer(status), reference: None }
}

pub fn evidence(by: &str, outcome: &str) -> Evidence {
    Evidence {
        by: by.into(),
        at: Timestamp::from_micros(0),
        outcome: outcome.into(),
        evidence: serde_json::json!({"note": "looked it up"}),
    }
}

impl<'a> Scene<'a> {
    pub async fn new(backend: &'a dyn Backend) -> Scene<'a> {
        Scene::of(backend, "default").await
    }

    pub async fn of(backend: &'a dyn Backend, tenant: &str) -> Scene<'a> {
        let store = backend.store();
        let tenant: TenantId = tenant.parse().unwrap();
        let tool = store.install_tool(new_tool(&tenant, "refund", "1.0.0", "bytes", "grant")).await.unwrap();
        Scene { backend, store, tenant, tool }
    }

    pub async fn now(&self) -> Timestamp {
        self.store.now().await.unwrap()
    }

    pub async fn advance(&self, by: Duration) {
        self.backend.advance(by).await;
    }

    /// To an instant, or that much before it.
    pub async fn advance_to(&self, at: Timestamp, less: Duration) {
        self.advance(at.minus(less).since(self.now().await)).await;
    }

    /// A proposal that needs so many people; none: allowed as it is.
    pub async fn proposal(&self, key: &str, approvals: u32) -> NewAction {
        let key = ActionKey::Key(key.into());
        let id = action_id(&self.tenant, &key);
        let fingerprint = Fingerprint(Digest::of(format!("fingerprint of {id}").as_bytes()));
        let (fact, to) = match approvals {
            0 => (Fact::PolicyAllowed, State::Approved),
            required => (Fact::ApprovalRequired { required }, State::AwaitingApproval),
        };
        NewAction {
            tenant: self.tenant.clone(),
            id,
            key,
            tool: self.tool.name.clone(),
            requested_version: None,
            version: self.tool.version.clone(),
            component: self.tool.component,
            grant: self.tool.grant,
            arguments: text(r#"{"amount":"10.00"}"#),
            intent: Intent(Digest::of(format!("intent of {id}").as_bytes())),
            fingerprint,
            actor: principal("ann"),
            proposer: principal("agent"),
            plan: text(r#"{"first_write":null}"#),
            preview: None,
            approvals_required: approvals,
            approval_expires_after: APPROVAL,
            execution_deadline_after: DEADLINE,
            policy_epoch: self
                .store
                .tool(&self.tenant, &self.tool.name, None)
                .await
                .unwrap()
                .unwrap()
                .policy_epoch,
            run_by_itself: false,
            supersedes: None,
            compensates: None,
            created: self.now().await,
            seed: [7; 32],
            attempts: 3,
            repeats: 3,
            planned_effects: vec![],
            moves: vec![
                Move { fact: Fact::Proposed { fingerprint }, to: State::Proposed, by: "agent".into() },
                Move { fact, to, by: "policy".into() },
            ],
        }
    }

    pub async fn propose(&self, new: NewAction) -> Action {
        match self.store.propose(new).await.unwrap() {
            Proposed::New(action) => *action,
            Proposed::Again(action) => panic!("it was there already: {action:?}"),
        }
    }

    pub async fn awaiting(&self, key: &str, approvals: u32) -> Action {
        self.propose(self.proposal(key, approvals).await).await
    }

    pub async fn approved(&self, key: &str) -> Action {
        self.propose(self.proposal(key, 0).await).await
    }

    pub fn approval(&self, action: &Action, by: &str) -> Approve {
        Approve {
            tenant: self.tenant.clone(),
            action: action.id,
            by: principal(by),
            note: Some(format!("{by} says yes")),
            fingerprint: action.fingerprint,
            if_last: Move {
                fact: Fact::Approved { fingerprint: action.fingerprint },
                to: State::Approved,
                by: by.into(),
            },
        }
    }

    pub fn claim_of(&self, action: ActionId, kind: ClaimKind) -> ClaimAction {
        ClaimAction {
            tenant: self.tenant.clone(),
            action,
            attempt: fresh_attempt(),
            owner: "worker-1".into(),
            lease: LEASE,
            kind,
        }
    }

    pub async fn claim(&self, action: ActionId, kind: ClaimKind) -> Result<Step<ClaimedAction>, StoreError> {
        self.store.claim_action(self.claim_of(action, kind)).await
    }

    pub async fn run(&self, action: ActionId) -> Attempt {
        let claimed = made(self.claim(action, ClaimKind::Run).await);
        Attempt { action, id: claimed.action.attempt_id.unwrap() }
    }

    pub async fn repeat(&self, action: ActionId) -> Attempt {
        let claimed = made(self.claim(action, ClaimKind::Repeat).await);
        Attempt { action, id: claimed.action.attempt_id.unwrap() }
    }

    /// Proposed, allowed, claimed.
    pub async fn running(&self, key: &str) -> Attempt {
        let action = self.approved(key).await;
        self.run(action.id).await
    }

    pub fn write_of(&self, attempt: &Attempt, ordinal: u32, class: RecoveryClass) -> ClaimWrite {
        ClaimWrite {
            tenant: self.tenant.clone(),
            action: attempt.action,
            attempt: attempt.id,
            ordinal: Ordinal(ordinal),
            kind: EffectKind::Http,
            terms: terms(class),
            fingerprint: EffectFingerprint(Digest::of(format!("effect {ordinal}").as_bytes())),
            request: request(&ordinal.to_string()),
            provider_key: format!("tool-action:{}:{ordinal}", attempt.action),
            first_sent: None,
            lease: LEASE,
        }
    }

    pub async fn claim_write(
        &self,
        attempt: &Attempt,
        ordinal: u32,
    ) -> Result<Step<WriteClaimed>, StoreError> {
        self.store.claim_write(self.write_of(attempt, ordinal, RecoveryClass::ProviderIdempotent)).await
    }

    pub async fn write(&self, attempt: &Attempt, ordinal: u32) -> WriteClaimed {
        made(self.claim_write(attempt, ordinal).await)
    }

    pub async fn write_as(&self, attempt: &Attempt, ordinal: u32, class: RecoveryClass) -> WriteClaimed {
        made(self.store.claim_write(self.write_of(attempt, ordinal, class)).await)
    }

    pub async fn repeat_write(
        &self,
        attempt: &Attempt,
        ordinal: u32,
    ) -> Result<Step<WriteClaimed>, StoreError> {
        let repeat = RepeatWrite {
            tenant: self.tenant.clone(),
            action: attempt.action,
            attempt: attempt.id,
            ordinal: Ordinal(ordinal),
            lease: LEASE,
        };
        self.store.repeat_write(repeat).await
    }

    pub async fn record(&self, action: ActionId, fence: SendFence, result: SendResult) -> Recorded {
        self.store.record_send(self.record_of(action, fence, result)).await.unwrap()
    }

    pub fn record_of(&self, action: ActionId, fence: SendFence, result: SendResult) -> RecordSend {
        RecordSend {
            tenant: self.tenant.clone(),
            action,
            fence,
            result,
            if_late: Some(Move::found_done_late(fence.ordinal)),
        }
    }

    pub async fn in_time(&self, action: ActionId, fence: SendFence, result: SendResult) -> EffectRecord {
        match self.record(action, fence, result).await {
            Recorded::InTime(effect) => *effect,
            other => panic!("it was not recorded in time: {other:?}"),
        }
    }

    /// A write that was claimed, sent and answered.
    pub async fn written(&self, attempt: &Attempt, ordinal: u32) -> EffectRecord {
        let claimed = self.write(attempt, ordinal).await;
        self.in_time(attempt.action, claimed.fence, answered(201)).await
    }

    pub fn settled_of(&self, ordinal: u32, outcome: Settled) -> NewSettled {
        NewSettled {
            ordinal: Ordinal(ordinal),
            kind: EffectKind::Http,
            write: matches!(outcome, Settled::Refused(_)),
            terms: terms(if matches!(outcome, Settled::Refused(_)) {
                RecoveryClass::Manual
            } else {
                RecoveryClass::Read
            }),
            fingerprint: EffectFingerprint(Digest::of(format!("read {ordinal}").as_bytes())),
            request: request("read"),
            outcome,
        }
    }

    pub async fn settled(&self, attempt: &Attempt, ordinal: u32, outcome: Settled) -> EffectRecord {
        let effects = vec![self.settled_of(ordinal, outcome)];
        made(self.store.record_settled(&self.tenant, attempt.action, attempt.id, effects).await).remove(0)
    }

    pub async fn standing(&self, action: ActionId) -> Standing {
        self.row(action).await.standing()
    }

    pub fn end_of(&self, attempt: &Attempt, fact: Fact, to: State) -> EndAttempt {
        EndAttempt {
            tenant: self.tenant.clone(),
            action: attempt.action,
            attempt: attempt.id,
            moved: Move { fact, to, by: "worker".into() },
            result: None,
            error: error("tool_broken"),
            next_attempt_after: None,
            set_aside: vec![],
            lost: None,
            log: vec![],
        }
    }

    pub async fn success_of(&self, attempt: &Attempt, result: &str) -> EndAttempt {
        let result = text(result);
        let fact = Fact::Succeeded {
            standing: self.standing(attempt.action).await,
            result: Digest::of(result.as_str().as_bytes()),
            effects: Digest::of(b"effects"),
        };
        EndAttempt { result: Some(result), error: None, ..self.end_of(attempt, fact, State::Succeeded) }
    }

    pub async fn succeed(&self, attempt: &Attempt) -> Action {
        made(self.store.end_attempt(self.success_of(attempt, r#"{"ok":true}"#).await).await)
    }

    pub async fn fail_retryably(&self, attempt: &Attempt) -> Result<Step<Action>, StoreError> {
        let fact = Fact::FailedRetryably { standing: Standing::default(), why: "trap".into() };
        self.store.end_attempt(self.end_of(attempt, fact, State::FailedRetryable)).await
    }

    pub async fn fail_terminally(&self, attempt: &Attempt) -> Result<Step<Action>, StoreError> {
        let fact = Fact::FailedTerminally { standing: Standing::default(), code: "tool_broken".into() };
        self.store.end_attempt(self.end_of(attempt, fact, State::FailedTerminal)).await
    }

    pub fn outcome_lost_of(
        &self,
        attempt: &Attempt,
        lost: Option<SendFence>,
        after: Option<Duration>,
    ) -> EndAttempt {
        let ordinal = lost.map_or(Ordinal(1), |fence| fence.ordinal);
        let fact = Fact::OutcomeLost { ordinal, why: "timeout".into() };
        EndAttempt { lost, next_attempt_after: after, ..self.end_of(attempt, fact, State::OutcomeUnknown) }
    }

    /// The send's answer never came; it may be repeated at once.
    pub async fn lose(&self, attempt: &Attempt, fence: SendFence) -> Action {
        made(self.store.end_attempt(self.outcome_lost_of(attempt, Some(fence), Some(Duration::ZERO))).await)
    }

    /// An action whose first write, of this class, is unknown.
    pub async fn unknown(&self, key: &str, class: RecoveryClass) -> (Action, SendFence) {
        let attempt = self.running(key).await;
        let claimed = self.write_as(&attempt, 1, class).await;
        (self.lose(&attempt, claimed.fence).await, claimed.fence)
    }

    pub fn transition_of(&self, row: &Action, fact: Fact) -> Transition {
        let to = countersign_domain::action::next(row.state, &fact).unwrap();
        Transition {
            tenant: self.tenant.clone(),
            action: row.id,
            expected: row.version_counter,
            moved: Move { fact, to, by: "somebody".into() },
            when: When::Always,
            error: None,
            next_attempt_after: None,
            in_flight_becomes_unknown: false,
            superseded_by: None,
            grants: 0,
        }
    }

    pub fn cancelled_of(&self, row: &Action) -> Transition {
        self.transition_of(row, Fact::Cancelled { standing: row.standing(), reason: "no more".into() })
    }

    /// What the reaper does about a lease that ran out with nothing open.
    pub fn worker_lost_of(&self, row: &Action) -> Transition {
        let fact = Fact::WorkerLost { standing: row.standing() };
        Transition { when: When::LeaseExpired, error: error("worker_lost"), ..self.transition_of(row, fact) }
    }

    pub fn resolve_of(&self, row: &Action, fence: SendFence, fact: Fact) -> Resolve {
        let to = countersign_domain::action::next(row.state, &fact).unwrap();
        let outcome = if matches!(fact, Fact::FoundDone { .. }) { "happened" } else { "did_not_happen" };
        Resolve {
            tenant: self.tenant.clone(),
            action: row.id,
            fence,
            expected: row.version_counter,
            answer: matches!(fact, Fact::FoundDone { .. }).then(|| answer(200)),
            moved: Move { fact, to, by: "olga".into() },
            evidence: evidence("olga", outcome),
            not_before: None,
            error: None,
        }
    }

    pub fn found_done_of(&self, row: &Action, fence: SendFence) -> Resolve {
        let others_unknown = row.unknown_effects > 1;
        self.resolve_of(
            row,
            fence,
            Fact::FoundDone { ordinal: fence.ordinal, by: "olga".into(), others_unknown },
        )
    }

    pub fn found_not_done_of(&self, row: &Action, fence: SendFence) -> Resolve {
        let others_unknown = row.unknown_effects > 1;
        let fact = Fact::FoundNotDone { ordinal: fence.ordinal, by: "olga".into(), others_unknown };
        Resolve { not_before: Some(SETTLE), ..self.resolve_of(row, fence, fact) }
    }

    pub async fn row(&self, action: ActionId) -> Action {
        self.store.action(&self.tenant, action).await.unwrap().unwrap()
    }

    pub async fn state(&self, action: ActionId) -> State {
        self.row(action).await.state
    }

    pub async fn effect(&self, action: ActionId, ordinal: u32) -> EffectRecord {
        let effects = self.store.effects(&self.tenant, action, false).await.unwrap();
        effects.into_iter().find(|effect| effect.ordinal == Ordinal(ordinal)).unwrap()
    }

    pub async fn events(&self, action: ActionId) -> Vec<Event> {
        self.store.events_of(&self.tenant, action, 0, 10_000).await.unwrap()
    }

    /// Events of the tenant after a cursor, once so many are to be seen.
    pub async fn tenant_events(&self, after: i64, many: usize) -> Vec<Event> {
        seen(&*self.store, &self.tenant, after, many).await
    }

    pub async fn facts(&self, action: ActionId) -> Vec<String> {
        let events = self.events(action).await;
        let fact =
            |event: &Event| serde_json::from_str::<serde_json::Value>(&event.body).unwrap()["fact"].clone();
        events.iter().map(|event| fact(event).as_str().unwrap().to_owned()).collect()
    }

    /// The policy changes for everybody.
    pub async fn change_policy(&self) {
        let digest = Digest::of(uuid::Uuid::new_v4().as_bytes());
        self.store
            .put_grant(
                &self.tenant,
                &self.tool.name,
                GrantDigest(digest),
                "changed = true",
                &principal("olga"),
            )
            .await
            .unwrap();
    }

    /// What must be true of an action at any time: its chain is whole and leads
    /// to its row, and the row's counts are those of its effects.
    pub async fn whole(&self, action: ActionId) -> Action {
        let row = self.row(action).await;
        let events = self.events(action).await;
        verify(&self.tenant, action, &events, row.state).unwrap();
        assert_eq!(row.event_seq as usize, events.len(), "every transition has its event, and only those");
        let effects = self.store.effects(&self.tenant, action, false).await.unwrap();
        let count = |is: &dyn Fn(&EffectRecord) -> bool| {
            u32::try_from(effects.iter().filter(|e| is(e)).count()).unwrap()
        };
        let out: Vec<_> =
            effects.iter().filter(|e| e.status == EffectStatus::InFlight).map(|e| e.ordinal).collect();
        assert_eq!(out, row.in_flight.into_iter().collect::<Vec<_>>());
        assert_eq!(row.unknown_effects, count(&|e| e.status == EffectStatus::Unknown));
        assert_eq!(row.standing_writes, count(&EffectRecord::stands));
        assert_eq!(
            row.effects,
            count(&|e| e.status == EffectStatus::Succeeded || e.refusal.is_some()),
            "recorded effects are those with an answer or a refusal"
        );
        row
    }
}

pub fn fence(attempt: AttemptId, ordinal: u32, send: u32) -> SendFence {
    SendFence { attempt, ordinal: Ordinal(ordinal), send: SendNumber(send) }
}

pub fn new_tool(tenant: &TenantId, name: &str, version: &str, bytes: &str, grant: &str) -> NewTool {
    NewTool {
        tenant: tenant.clone(),
        name: name.parse().unwrap(),
        version: version.into(),
        bytes: bytes.as_bytes().to_vec(),
        inspection: Inspection {
            digest: ComponentDigest(Digest::of(bytes.as_bytes())),
            size: bytes.len() as u64,
            imports: vec!["wasi:http/outgoing-handler@0.2.6".into()],
            exports: vec![],
            features: vec![],
            reconciles: false,
            manifest: Manifest {
                name: name.into(),
                version: version.into(),
                title: "Refund".into(),
                description: "Refunds a charge".into(),
                input_schema: serde_json::json!({"type": "object"}),
                output_schema: None,
                effects: vec![],
            },
            warnings: vec![],
        },
        grant: GrantDigest(Digest::of(grant.as_bytes())),
        grant_source: grant.into(),
        by: principal("olga"),
    }
}

/// Events of a tenant after a cursor, once so many are to be seen. A committed one may be held
/// back for a moment, where a reader cannot tell whose transaction ended while it looked.
pub async fn seen(store: &dyn Store, tenant: &TenantId, after: i64, many: usize) -> Vec<Event> {
    for _ in 0..2_000 {
        let events = store.events(tenant, after, 1_000).await.unwrap();
        if events.len() >= many {
            return events;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("fewer than {many} events in ten seconds");
}
