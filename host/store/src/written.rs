//! What a step wrote, as nouns, where nothing but the step could have said
//! otherwise: so it is not read back. The same for every database.

use countersign_domain::action::{Action, State};
use countersign_domain::effect::{EffectRecord, EffectStatus};
use countersign_domain::id::{AttemptId, AttemptNumber, Fingerprint, SendNumber};
use countersign_domain::lease::SendFence;
use countersign_domain::time::Timestamp;

use crate::steps::{ClaimWrite, NewAction, NewSettled, Settled, WriteClaimed};

/// What the row of a new action says beside what was proposed.
pub(crate) struct First {
    pub(crate) state: State,
    pub(crate) approved: Option<Fingerprint>,
    pub(crate) effects: u32,
    pub(crate) event_seq: u32,
}

impl First {
    /// `None`: no move leads anywhere.
    pub(crate) fn of(new: &NewAction) -> Option<First> {
        let state = new.moves.last()?.to;
        Some(First {
            state,
            approved: (state == State::Approved).then_some(new.fingerprint),
            effects: u32::try_from(new.planned_effects.len()).unwrap_or(u32::MAX),
            event_seq: u32::try_from(new.moves.len()).unwrap_or(u32::MAX),
        })
    }

    /// The row, written at `now`.
    pub(crate) fn action(
        self,
        new: NewAction,
        now: Timestamp,
        approval_expires: Timestamp,
        execution_deadline: Timestamp,
    ) -> Action {
        Action {
            tenant: new.tenant,
            id: new.id,
            key: new.key,
            tool: new.tool,
            requested_version: new.requested_version,
            version: new.version,
            component: new.component,
            grant: new.grant,
            arguments: new.arguments,
            intent: new.intent,
            fingerprint: new.fingerprint,
            actor: new.actor,
            proposer: new.proposer,
            plan: new.plan,
            preview: new.preview,
            approvals_required: new.approvals_required,
            approval_expires,
            execution_deadline,
            policy_epoch: new.policy_epoch,
            run_by_itself: new.run_by_itself,
            supersedes: new.supersedes,
            compensates: new.compensates,
            created: new.created,
            seed: new.seed,
            state: self.state,
            approved_fingerprint: self.approved,
            approved_at: self.approved.map(|_| now),
            approvals: Vec::new(),
            attempt: AttemptNumber(0),
            attempt_id: None,
            lease_expires: None,
            in_flight: None,
            cancel_requested: None,
            attempts_left: new.attempts,
            repeats_left: new.repeats,
            next_attempt: None,
            first_write: None,
            unknown_effects: 0,
            standing_writes: 0,
            effects: self.effects,
            superseded_by: None,
            provider_reference: None,
            result: None,
            error: None,
            updated: now,
            version_counter: 1,
            event_seq: self.event_seq,
            rewound: false,
            announced: None,
        }
    }
}

/// An effect that came with its end.
pub(crate) fn settled(attempt: AttemptId, effect: NewSettled, now: Timestamp) -> EffectRecord {
    let (status, send, answer, refusal) = match effect.outcome {
        Settled::Answered(answer) => (EffectStatus::Succeeded, 1, Some(answer), None),
        Settled::Refused(refusal) => (EffectStatus::Failed, 0, None, Some(refusal)),
    };
    EffectRecord {
        ordinal: effect.ordinal,
        kind: effect.kind,
        write: effect.write,
        terms: effect.terms,
        fingerprint: effect.fingerprint,
        request: effect.request,
        provider_key: None,
        status,
        attempt,
        send: SendNumber(send),
        first_sent: None,
        last_sent: None,
        may_have_arrived: false,
        unknown_since: None,
        answer,
        refusal,
        set_aside: false,
        evidence: None,
        recorded_at: Some(now),
    }
}

/// A write that was claimed. `inherited`: when the write that it repeats was first
/// sent, if the component repeats one by itself.
pub(crate) fn write(claim: ClaimWrite, inherited: Option<Timestamp>, now: Timestamp) -> EffectRecord {
    EffectRecord {
        ordinal: claim.ordinal,
        kind: claim.kind,
        write: true,
        terms: claim.terms,
        fingerprint: claim.fingerprint,
        request: claim.request,
        provider_key: Some(claim.provider_key),
        status: EffectStatus::InFlight,
        attempt: claim.attempt,
        send: SendNumber(1),
        first_sent: Some(inherited.unwrap_or(now)),
        last_sent: Some(now),
        // A component's own retry repeats a write that may have arrived.
        may_have_arrived: inherited.is_some(),
        unknown_since: None,
        answer: None,
        refusal: None,
        set_aside: false,
        evidence: None,
        recorded_at: None,
    }
}

/// A claimed write, for whoever sends it.
pub(crate) fn claimed(record: EffectRecord, lease_expires: Timestamp) -> WriteClaimed {
    WriteClaimed {
        fence: SendFence { attempt: record.attempt, ordinal: record.ordinal, send: record.send },
        lease_expires,
        window_ends: record.window_ends(),
        may_have_arrived: record.may_have_arrived,
        record,
    }
}
