//! How things look on the wire. Only translation: what stands in a row is named
//! and shown; nothing is judged, and canonical texts (arguments, result,
//! preview) go out as the very text that was hashed.

use std::collections::BTreeSet;
use std::str;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use countersign_domain::action::{Action, ActionError, WaitsFor};
use countersign_domain::approval::Approval;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, EffectRecord, EffectStatus, Evidence, RecordedRequest};
use countersign_domain::event::{Event, EventBody};
use countersign_domain::grant::Grant;
use countersign_domain::mail::RecordedMail;
use countersign_domain::plan::{MayFollow, Plan};
use countersign_domain::secret::SecretName;
use countersign_domain::time::Timestamp;
use countersign_domain::tool::InstalledTool;
use countersign_gate::reconciler::{Found, Reconciled};
use countersign_store::PrincipalRow;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Canonical text, sent as it stands.
fn raw(text: Option<&CanonicalJson>) -> Option<Box<RawValue>> {
    // What does not parse is a damaged row: shown as nothing rather than as
    // something that was never approved.
    text.and_then(|text| RawValue::from_string(text.as_str().to_owned()).ok())
}

/// Anything by its text form.
fn shown<T: ToString, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&value.to_string())
}

/// An action.
#[derive(Serialize)]
pub struct ActionView<'a> {
    #[serde(serialize_with = "shown")]
    id: countersign_domain::id::ActionId,
    tenant: &'a str,
    status: &'static str,
    tool: ToolRef<'a>,
    run_id: Option<&'a str>,
    step: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    actor: &'a str,
    proposer: &'a str,
    /// What the operator wants a person to see first.
    show: Vec<Value>,
    arguments: Option<Box<RawValue>>,
    fingerprint: countersign_domain::id::Fingerprint,
    grant: countersign_domain::id::GrantDigest,
    plan: Option<PlanView>,
    /// The tool's own words.
    preview: Option<Box<RawValue>>,
    approval: ApprovalView<'a>,
    run: Option<&'static str>,
    attempt: u32,
    next_attempt_at: Option<Timestamp>,
    /// `approver`, `provider` or `person`: whom it waits for, if not for its
    /// caller or a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<WaitsFor>,
    /// The ledger lost commits while it was open.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    rewound: bool,
    cancel_requested: Option<&'a str>,
    effects: EffectCounts,
    provider_reference: Option<&'a str>,
    result: Option<Box<RawValue>>,
    error: Option<&'a ActionError>,
    replayed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    supersedes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compensates: Option<String>,
    links: Value,
    execution_deadline: Timestamp,
    created_at: Timestamp,
    updated_at: Timestamp,
}

#[derive(Serialize)]
struct ToolRef<'a> {
    name: &'a str,
    version: &'a str,
    digest: countersign_domain::id::ComponentDigest,
}

#[derive(Serialize)]
struct ApprovalView<'a> {
    required: u32,
    given: &'a [Approval],
    expires_at: Timestamp,
}

#[derive(Serialize)]
struct EffectCounts {
    /// Settled, one way or the other.
    done: u32,
    in_flight: u32,
    unknown: u32,
}

#[derive(Serialize)]
struct PlanView {
    first_write: Option<PlannedWriteView>,
    may_follow: Vec<MayFollow>,
    stopped_early: bool,
}

#[derive(Serialize)]
struct PlannedWriteView {
    fingerprint: countersign_domain::id::EffectFingerprint,
    #[serde(flatten)]
    request: RequestView,
}

#[derive(Serialize)]
struct RequestView {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    /// Of a mail: what it says. Its attachments' contents stand in the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    mail: Option<Value>,
    #[serde(flatten)]
    body: BodyView,
}

/// Bytes, as text where they are text.
#[derive(Serialize)]
struct BodyView {
    body: String,
    body_encoding: &'static str,
    body_bytes: usize,
}

impl BodyView {
    fn of(bytes: &[u8]) -> BodyView {
        match str::from_utf8(bytes) {
            Ok(text) => BodyView { body: text.to_owned(), body_encoding: "utf-8", body_bytes: bytes.len() },
            Err(_) => {
                BodyView { body: STANDARD.encode(bytes), body_encoding: "base64", body_bytes: bytes.len() }
            }
        }
    }
}

impl RequestView {
    fn of(request: RecordedRequest) -> RequestView {
        RequestView {
            mail: mail(&request),
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: BodyView::of(&request.body),
        }
    }
}

/// What a mail says, and what each attachment is.
fn mail(request: &RecordedRequest) -> Option<Value> {
    let mut mail = serde_json::to_value(RecordedMail::read(request)?).ok()?;
    for file in mail.get_mut("attachments")?.as_array_mut()? {
        file.as_object_mut()?.remove("content");
    }
    Some(mail)
}

impl PlanView {
    fn of(plan: &CanonicalJson) -> Option<PlanView> {
        let plan: Plan = serde_json::from_str(plan.as_str()).ok()?;
        let first_write = plan.first_write.map(|write| PlannedWriteView {
            fingerprint: write.fingerprint,
            request: RequestView::of(write.request),
        });
        Some(PlanView { first_write, may_follow: plan.may_follow, stopped_early: plan.stopped_early })
    }
}

/// The fields that the grant's `show` names, in its order. A field that the
/// arguments do not have is shown as missing.
fn show(grant: Option<&Grant>, arguments: &CanonicalJson) -> Vec<Value> {
    let Some(grant) = grant.filter(|grant| !grant.show().is_empty()) else { return Vec::new() };
    let value = arguments.value();
    let field = |pointer: &countersign_domain::grant::JsonPointer| match pointer.resolve(&value) {
        Some(value) => json!({ "pointer": pointer.as_str(), "value": value }),
        None => json!({ "pointer": pointer.as_str(), "missing": true }),
    };
    grant.show().iter().map(field).collect()
}

impl<'a> ActionView<'a> {
    /// From a row. `replayed`: the caller is told what was there already.
    pub fn of(action: &'a Action, grant: Option<&Grant>, replayed: bool) -> ActionView<'a> {
        let in_flight = u32::from(action.in_flight.is_some());
        let unknown = action.unknown_effects;
        let text = |id: Option<countersign_domain::id::ActionId>| id.map(|id| id.to_string());
        ActionView {
            id: action.id,
            tenant: action.tenant.as_str(),
            status: action.state.as_str(),
            tool: ToolRef { name: action.tool.as_str(), version: &action.version, digest: action.component },
            run_id: action.key.run().map(|(run, _)| run),
            step: action.key.run().map(|(_, step)| step),
            idempotency_key: action.key.key(),
            actor: action.actor.as_str(),
            proposer: action.proposer.as_str(),
            show: show(grant, &action.arguments),
            arguments: raw(Some(&action.arguments)),
            fingerprint: action.fingerprint,
            grant: action.grant,
            plan: PlanView::of(&action.plan),
            preview: raw(action.preview.as_ref()),
            approval: ApprovalView {
                required: action.approvals_required,
                given: &action.approvals,
                expires_at: action.approval_expires,
            },
            run: action.run_by_itself.then_some("auto"),
            attempt: action.attempt.0,
            next_attempt_at: action.next_attempt,
            waits_for: action.waits_for(),
            rewound: action.rewound,
            cancel_requested: action.cancel_requested.as_deref(),
            effects: EffectCounts {
                done: action.effects.saturating_sub(unknown).saturating_sub(in_flight),
                in_flight,
                unknown,
            },
            provider_reference: action.provider_reference.as_deref(),
            result: raw(action.result.as_ref()),
            error: action.error.as_ref(),
            replayed,
            supersedes: text(action.supersedes),
            superseded_by: text(action.superseded_by),
            compensates: text(action.compensates),
            links: links(action),
            execution_deadline: action.execution_deadline,
            created_at: action.created,
            updated_at: action.updated,
        }
    }
}

/// An action after a lookup, and what the lookup found.
#[derive(Serialize)]
pub struct ReconciledView<'a> {
    #[serde(flatten)]
    action: ActionView<'a>,
    lookups: Vec<Value>,
}

impl<'a> ReconciledView<'a> {
    /// From the gate's words.
    pub fn of(reconciled: &'a Reconciled, grant: Option<&Grant>) -> ReconciledView<'a> {
        let lookups = reconciled.found.iter().map(|(ordinal, found)| {
            let (word, again_at, why) = match found {
                Found::Done => ("happened", None, None),
                Found::NotDone => ("did_not_happen", None, None),
                Found::TooEarly(at) => ("too_early", Some(at), None),
                Found::Nothing(why) => ("nothing", None, Some(why)),
                Found::Overtaken => ("overtaken", None, None),
            };
            json!({ "ordinal": ordinal, "found": word, "again_at": again_at, "why": why })
        });
        ReconciledView {
            action: ActionView::of(&reconciled.action, grant, false),
            lookups: lookups.collect(),
        }
    }
}

/// Where to go on from here, by what the state allows.
fn links(action: &Action) -> Value {
    use countersign_domain::action::State;
    let at = format!("/v1/actions/{}", action.id);
    let mut links = Map::new();
    links.insert("self".into(), json!(at));
    for part in ["effects", "events", "log"] {
        links.insert(part.into(), json!(format!("{at}/{part}")));
    }
    let verbs: &[&str] = match action.state {
        State::Proposed => &[],
        State::AwaitingApproval => &["approve", "decline", "cancel", "supersede"],
        State::Approved => &["execute", "cancel", "supersede"],
        State::Executing | State::FailedRetryable => &["execute", "cancel"],
        State::OutcomeUnknown => &["execute", "cancel", "reconcile", "resolve"],
        State::Expired | State::Cancelled => &["execute", "supersede"],
        State::Succeeded | State::FailedTerminal => &["execute"],
    };
    for verb in verbs {
        links.insert((*verb).into(), json!(format!("{at}/{verb}")));
    }
    Value::Object(links)
}

/// An effect.
#[derive(Serialize)]
pub struct EffectView<'a> {
    ordinal: u32,
    kind: &'static str,
    write: bool,
    status: &'static str,
    recovery: String,
    fingerprint: countersign_domain::id::EffectFingerprint,
    request: RequestView,
    provider_key: Option<&'a str>,
    send: u32,
    first_sent_at: Option<Timestamp>,
    last_sent_at: Option<Timestamp>,
    key_window_ends_at: Option<Timestamp>,
    may_have_arrived: bool,
    unknown_since: Option<Timestamp>,
    /// Before this, nobody's "it did not happen" is taken.
    settles_at: Option<Timestamp>,
    answer: Option<AnswerView>,
    refusal: Option<String>,
    set_aside: bool,
    evidence: Option<&'a Evidence>,
    recorded_at: Option<Timestamp>,
}

#[derive(Serialize)]
struct AnswerView {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(flatten)]
    body: BodyView,
}

impl AnswerView {
    fn of(answer: &Answer) -> AnswerView {
        AnswerView {
            status: answer.status,
            headers: answer.headers.clone(),
            body: BodyView::of(&answer.body),
        }
    }
}

impl<'a> EffectView<'a> {
    /// From a row.
    pub fn of(effect: &'a EffectRecord) -> EffectView<'a> {
        let unknown = effect.status == EffectStatus::Unknown;
        EffectView {
            ordinal: effect.ordinal.0,
            kind: effect.kind.as_str(),
            write: effect.write,
            status: effect.status.as_str(),
            recovery: effect.terms.class.to_string(),
            fingerprint: effect.fingerprint,
            request: RequestView::of(effect.request.clone()),
            provider_key: effect.provider_key.as_deref(),
            send: effect.send.0,
            first_sent_at: effect.first_sent,
            last_sent_at: effect.last_sent,
            key_window_ends_at: effect.window_ends(),
            may_have_arrived: effect.may_have_arrived,
            unknown_since: effect.unknown_since,
            settles_at: effect.unknown_since.filter(|_| unknown).map(|since| since.plus(effect.terms.settle)),
            answer: effect.answer.as_ref().map(AnswerView::of),
            refusal: effect.refusal.as_ref().map(ToString::to_string),
            set_aside: effect.set_aside,
            evidence: effect.evidence.as_ref(),
            recorded_at: effect.recorded_at,
        }
    }
}

/// An event. `body` is the canonical text that `hash` is computed over.
#[derive(Serialize)]
pub struct EventView<'a> {
    cursor: i64,
    #[serde(serialize_with = "shown")]
    action: countersign_domain::id::ActionId,
    seq: u32,
    at: Timestamp,
    event: &'static str,
    to: Option<&'static str>,
    by: Option<String>,
    body: Option<&'a RawValue>,
    hash: countersign_domain::id::Digest,
}

impl<'a> EventView<'a> {
    /// From a row.
    pub fn of(event: &'a Event) -> EventView<'a> {
        let body: Option<EventBody> = serde_json::from_str(&event.body).ok();
        EventView {
            cursor: event.cursor,
            action: event.action,
            seq: event.seq,
            at: event.at,
            event: body.as_ref().map_or("unreadable", |body| body.fact.name()),
            to: body.as_ref().map(|body| body.to.as_str()),
            by: body.map(|body| body.by),
            body: serde_json::from_str(&event.body).ok(),
            hash: event.hash,
        }
    }

    /// Whether nothing can follow it.
    pub fn is_last(event: &Event) -> bool {
        serde_json::from_str::<EventBody>(&event.body).is_ok_and(|body| body.to.is_terminal())
    }
}

/// One version of a tool.
pub fn version(tool: &InstalledTool) -> Value {
    let inspection = &tool.inspection;
    json!({
        "version": tool.version,
        "current": tool.current,
        "digest": tool.component,
        "size": inspection.size,
        "imports": inspection.imports,
        "exports": inspection.exports,
        "features": inspection.features,
        "reconciles": inspection.reconciles,
        "warnings": inspection.warnings,
        "manifest": inspection.manifest,
        "installed_at": tool.installed,
    })
}

/// A tool with its versions, the current one's words first. With `host`,
/// the secrets that the host has and whether it sends mail, also its grant and
/// what of it the host has not.
pub fn tool(versions: &[InstalledTool], host: Option<(&BTreeSet<SecretName>, bool)>) -> Value {
    let Some(current) = versions.iter().find(|tool| tool.current).or(versions.first()) else {
        return Value::Null;
    };
    let manifest = &current.inspection.manifest;
    let mut view = json!({
        "name": current.name,
        "version": current.version,
        "digest": current.component,
        "title": manifest.title,
        "description": manifest.description,
        "paused": current.paused,
        "imports": current.inspection.imports,
        "features": current.inspection.features,
        "warnings": current.inspection.warnings,
        "input_schema": manifest.input_schema,
        "output_schema": manifest.output_schema,
        "declared_effects": manifest.effects,
        "grant_digest": current.grant,
        "installed_at": current.installed,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
    });
    if let (Some((secrets, sends_mail)), Value::Object(members)) = (host, &mut view) {
        let grant = current.grant_source.parse::<Grant>().ok();
        if grant.as_ref().is_some_and(|grant| grant.email().is_some()) && !sends_mail {
            let warning = "its grant allows mail, and this host sends none, so each mail is refused: add a section \
                           [smtp] to the host's configuration";
            if let Some(warnings) = members.get_mut("warnings").and_then(Value::as_array_mut) {
                warnings.push(json!(warning));
            }
        }
        let missing: Vec<&SecretName> = match &grant {
            Some(grant) => grant.secrets().into_iter().filter(|name| !secrets.contains(*name)).collect(),
            None => Vec::new(),
        };
        members.insert("missing_secrets".into(), json!(missing));
        let effective = grant.as_ref().map(|grant| grant.effective().value());
        members.insert("grant".into(), json!({ "source": current.grant_source, "effective": effective }));
    }
    view
}

/// A token's holder; never the token.
pub fn principal(row: &PrincipalRow) -> Value {
    json!({
        "id": row.token_id,
        "tenant": row.tenant,
        "name": row.name,
        "roles": row.roles,
        "created_at": row.created,
        "revoked_at": row.revoked,
    })
}
