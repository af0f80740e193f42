//! The two decisions that are pure: what the reaper does about a row, and how an
//! attempt ends. As tables; the windows beside this file hold what comes of them.

mod ends;
mod reaper;

use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, EffectKind, EffectRecord, EffectStatus, RecordedRequest, Terms};
use countersign_domain::grant::{On5xx, RecoveryClass};
use countersign_domain::id::{
    ActionId, AttemptId, AttemptNumber, ComponentDigest, Digest, EffectFingerprint, Fingerprint, GrantDigest,
    Intent, Ordinal, SendNumber,
};
use countersign_domain::key::ActionKey;
use countersign_domain::time::Timestamp;
use serde_json::json;

use crate::rig::{TICK, principal, tenant, tool};

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const OURS: AttemptId = AttemptId(uuid(7));

const fn uuid(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n)
}

/// A row of a minute ago whose approval is open and whose budgets are whole.
fn row(state: State) -> Action {
    let digest = Digest::of(b"x");
    let executing = state == State::Executing;
    Action {
        tenant: tenant(),
        id: ActionId(uuid(1)),
        key: ActionKey::Key("k".into()),
        tool: tool("refund"),
        requested_version: None,
        version: "1.0.0".into(),
        component: ComponentDigest(digest),
        grant: GrantDigest(digest),
        arguments: json_text(json!({})),
        intent: Intent(digest),
        fingerprint: Fingerprint(digest),
        actor: principal("agent"),
        proposer: principal("agent"),
        plan: json_text(json!({})),
        preview: None,
        approvals_required: 1,
        approval_expires: NOW.plus(HOUR),
        execution_deadline: NOW.plus(24 * HOUR),
        policy_epoch: 3,
        run_by_itself: false,
        supersedes: None,
        compensates: None,
        created: NOW.minus(Duration::from_secs(60)),
        seed: [0; 32],
        state,
        approved_fingerprint: Some(Fingerprint(digest)),
        approved_at: Some(NOW.minus(Duration::from_secs(30))),
        approvals: vec![],
        attempt: AttemptNumber(1),
        attempt_id: executing.then_some(OURS),
        lease_expires: executing.then(|| NOW.plus(TICK)),
        in_flight: None,
        cancel_requested: None,
        attempts_left: 4,
        repeats_left: 10,
        next_attempt: matches!(state, State::FailedRetryable | State::OutcomeUnknown).then_some(NOW),
        first_write: None,
        unknown_effects: u32::from(state == State::OutcomeUnknown),
        standing_writes: u32::from(state == State::OutcomeUnknown),
        effects: 0,
        superseded_by: None,
        provider_reference: None,
        result: None,
        error: None,
        updated: NOW.minus(Duration::from_secs(60)),
        version_counter: 5,
        event_seq: 3,
        rewound: false,
        announced: None,
    }
}

fn json_text(value: serde_json::Value) -> CanonicalJson {
    CanonicalJson::of(&value).unwrap()
}

fn effect(ordinal: u32, class: RecoveryClass, status: EffectStatus) -> EffectRecord {
    EffectRecord {
        ordinal: Ordinal(ordinal),
        kind: EffectKind::Http,
        write: class != RecoveryClass::Read,
        terms: Terms {
            class,
            key_window: HOUR,
            in_flight_status: 409,
            replay_header: None,
            on_5xx: On5xx::Unknown,
            send: Duration::from_secs(30),
            settle: Duration::from_secs(60),
        },
        fingerprint: EffectFingerprint(Digest::of(b"e")),
        request: RecordedRequest {
            method: "POST".into(),
            url: "https://a.example/".into(),
            headers: vec![],
            body: vec![],
        },
        provider_key: Some("key".into()),
        status,
        attempt: OURS,
        send: SendNumber(1),
        first_sent: Some(NOW.minus(Duration::from_secs(60))),
        last_sent: Some(NOW.minus(Duration::from_secs(60))),
        may_have_arrived: status == EffectStatus::Unknown,
        unknown_since: (status == EffectStatus::Unknown).then_some(NOW),
        answer: (status == EffectStatus::Succeeded).then(|| Answer {
            status: 200,
            headers: vec![],
            body: vec![],
        }),
        refusal: None,
        set_aside: false,
        evidence: None,
        recorded_at: Some(NOW),
    }
}
