//! Problems: how a refusal looks on the wire (RFC 9457), and which status each
//! code has. What a caller can act on is sent; causes are logged and stay here.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use countersign_domain::canonical::JsonError;
use countersign_domain::code;
use countersign_domain::id::InvalidId;
use countersign_gate::GateError;
use countersign_store::StoreError;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

/// Seconds after which a caller may ask again, where nothing better is known.
/// Chosen: long enough for a restart, short enough for an agent to wait.
const RETRY_AFTER: u32 = 1;

/// Why a request was not answered as asked.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retryable: bool,
    retry_after: Option<u32>,
    extra: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem by its code; the status is the code's own.
    pub fn new(code: &'static str, detail: impl Into<String>) -> Problem {
        let status = status_of(code);
        let waits = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Problem {
            status,
            code,
            detail: detail.into(),
            retryable: waits,
            retry_after: waits.then_some(RETRY_AFTER),
            extra: Map::new(),
            headers: Vec::new(),
        }
    }

    /// A part of the request that has not the form it must have: where, and what
    /// it must be.
    pub fn invalid(pointer: &str, detail: impl Into<String>) -> Problem {
        Problem::new(code::INVALID_REQUEST, detail).with("pointer", pointer)
    }

    /// The same code under another status: routes and methods that do not exist,
    /// media types that are not read.
    pub fn status(mut self, status: StatusCode) -> Problem {
        self.status = status;
        self
    }

    /// Over a quota: its name, whose it is, how much that one may have, and when
    /// it is worth another try.
    pub fn over(quota: &str, whose: &str, limit: u32, again: Duration, detail: String) -> Problem {
        let mut problem = Problem::new(code::QUOTA_EXCEEDED, detail);
        problem.retry_after = Some(u32::try_from(again.as_secs()).unwrap_or(u32::MAX).max(1));
        problem.with("quota", quota).with("whose", whose).with("limit", limit)
    }

    /// The same, and sending it once more as it is helps nobody.
    pub fn in_vain(mut self) -> Problem {
        self.retryable = false;
        self
    }

    /// With one more member.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// With one more header.
    pub fn header(mut self, name: HeaderName, value: &'static str) -> Problem {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// No token, or one that is worth nothing.
    pub fn unauthenticated(detail: &str) -> Problem {
        Problem::new(code::UNAUTHENTICATED, detail).header(header::WWW_AUTHENTICATE, "Bearer")
    }

    /// The token does not allow it.
    pub fn not_permitted(detail: impl Into<String>) -> Problem {
        Problem::new(code::NOT_PERMITTED, detail)
    }

    /// There is none; the words are the same whether it never was or is another
    /// tenant's.
    pub fn not_found(what: &str) -> Problem {
        Problem::new(code::NOT_FOUND, format!("there is no {what}"))
    }
}

/// The status of each code that a request can be refused with.
fn status_of(code: &str) -> StatusCode {
    match code {
        code::INVALID_JSON | code::INVALID_REQUEST => StatusCode::BAD_REQUEST,
        code::UNAUTHENTICATED => StatusCode::UNAUTHORIZED,
        code::NOT_PERMITTED => StatusCode::FORBIDDEN,
        code::NOT_FOUND => StatusCode::NOT_FOUND,
        code::FINGERPRINT_PRECONDITION => StatusCode::PRECONDITION_FAILED,
        code::TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
        code::INVALID_ARGUMENTS | code::COMPONENT_REFUSED | code::INVALID_GRANT | code::PLANNING_FAILED => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        code::QUOTA_EXCEEDED => StatusCode::TOO_MANY_REQUESTS,
        code::UNAVAILABLE => StatusCode::SERVICE_UNAVAILABLE,
        // Everything else says that the action is not where the caller thought.
        _ => StatusCode::CONFLICT,
    }
}

/// One line for people, per code.
fn title_of(code: &str) -> &'static str {
    match code {
        code::INVALID_JSON => "The body is not JSON that every reader understands alike",
        code::INVALID_REQUEST => "A part of the request has not the form it must have",
        code::UNAUTHENTICATED => "A valid token is needed",
        code::NOT_PERMITTED => "This is not permitted",
        code::NOT_FOUND => "Not found",
        code::INVALID_STATE => "The action is in another state",
        code::IDEMPOTENCY_KEY_MISMATCH => "The key names another intent",
        code::ACTION_CHANGED => "What would run is not what was proposed",
        code::APPROVAL_EXPIRED => "The approval ran out",
        code::EXECUTION_IN_DOUBT => "It is not known whether it happened",
        code::FINGERPRINT_PRECONDITION => "The action is not the one that was shown",
        code::TOO_LARGE => "Too large",
        code::INVALID_ARGUMENTS => "The arguments do not fit the tool",
        code::COMPONENT_REFUSED => "The component is refused",
        code::INVALID_GRANT => "The grant is refused",
        code::NEEDS_CONFIRMATION => "It would get more than it has now",
        code::PLANNING_FAILED => "The tool ended before anything could be proposed",
        code::QUOTA_EXCEEDED => "Over a quota",
        code::UNAVAILABLE => "Not possible now",
        _ => "Not possible",
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut members = self.extra;
        members.insert("type".into(), json!(format!("urn:countersign:problem:{}", self.code)));
        members.insert("title".into(), json!(title_of(self.code)));
        members.insert("status".into(), json!(self.status.as_u16()));
        members.insert("code".into(), json!(self.code));
        members.insert("detail".into(), json!(self.detail));
        members.insert("retryable".into(), json!(self.retryable));
        let mut response = Response::new(Body::from(Value::Object(members).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

impl From<GateError> for Problem {
    fn from(error: GateError) -> Problem {
        let mut problem = Problem::new(error.code(), error.to_string());
        problem.retryable = error.retryable();
        if problem.retryable {
            problem.status = StatusCode::SERVICE_UNAVAILABLE;
            problem.retry_after = Some(RETRY_AFTER);
        }
        match &error {
            GateError::InvalidArguments { pointer, .. } => problem.with("pointer", pointer.as_str()),
            GateError::KeyMismatch { action, existing, requested } => problem
                .with("action", action.to_string())
                .with("existing_intent", existing.to_string())
                .with("requested_intent", requested.to_string()),
            GateError::InvalidState { action, state, .. } => {
                problem.with("action", action.to_string()).with("state", state.as_str())
            }
            GateError::FingerprintPrecondition { action, current } => {
                problem.with("action", action.to_string()).with("fingerprint", current.to_string())
            }
            GateError::ApprovalExpired { action, expired } => {
                problem.with("action", action.to_string()).with("expired_at", expired.to_string())
            }
            GateError::ActionChanged { action, .. } => problem.with("action", action.to_string()),
            GateError::InDoubt { action, .. } => {
                problem.with("action", action.id.to_string()).with("state", action.state.as_str())
            }
            GateError::NeedsYes(prospect) => problem
                .with("confirm", prospect.confirm.as_str())
                .with("changes", json!(prospect.difference.changes))
                .with("voids", json!(prospect.voids.iter().map(ToString::to_string).collect::<Vec<_>>())),
            // Waiting is what helps, so it may be sent again as it is.
            GateError::QuotaExceeded { quota, whose, limit, retry_after, .. } => {
                Problem::over(quota, whose, *limit, *retry_after, problem.detail)
            }
            GateError::Unavailable { source, .. } => {
                let cause = source.as_ref().map(|source| source.to_string()).unwrap_or_default();
                tracing::error!(%error, cause, "a request could not be served");
                problem
            }
            _ => problem,
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        GateError::from(error).into()
    }
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Problem {
        Problem::new(code::INVALID_JSON, error.to_string())
            .with("pointer", error.pointer.as_str())
            .with("offset", error.offset)
    }
}

impl From<InvalidId> for Problem {
    fn from(error: InvalidId) -> Problem {
        Problem::new(code::INVALID_REQUEST, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::action::State;
    use countersign_domain::id::{ActionId, TenantId};
    use countersign_domain::key::{ActionKey, action_id};

    fn id() -> ActionId {
        let tenant: TenantId = "default".parse().expect("a tenant");
        action_id(&tenant, &ActionKey::Key("k".into()))
    }

    async fn read(problem: Problem) -> (StatusCode, Value) {
        let response = problem.into_response();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn a_problem_names_code_state_and_action_and_agrees_with_its_status() {
        let error = GateError::InvalidState { action: id(), state: State::Executing, hint: "wait".into() };
        let (status, body) = read(error.into()).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert_eq!(body["status"], 409);
        assert_eq!(body["code"], "invalid_state");
        assert_eq!(body["state"], "executing");
        assert_eq!(body["action"], id().to_string());
        assert_eq!(body["retryable"], false);
    }

    #[tokio::test]
    async fn the_cause_of_an_unavailable_store_is_not_sent() {
        let cause = std::io::Error::other("/secret/path is gone");
        let error =
            GateError::Unavailable { what: "the store cannot be used".into(), source: Some(cause.into()) };
        let (status, body) = read(error.into()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["retryable"], true);
        assert!(!body.to_string().contains("secret"), "{body}");
    }
}
