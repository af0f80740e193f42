//! Is the process alive, and can it do its work? Open to anybody, and saying no
//! more than that.

use axum::response::Response;
use countersign_domain::code;
use http::StatusCode;
use serde_json::json;

use super::call::Call;
use super::problem::Problem;

/// `GET /healthz`: it answers, so it lives.
pub async fn live(_: Call) -> Result<Response, Problem> {
    Ok(super::json(StatusCode::OK, &json!({ "status": "ok" })))
}

/// `GET /readyz`: the store answers and the host is not stopping.
pub async fn ready(call: Call) -> Result<Response, Problem> {
    if call.app.is_stopping() {
        return Err(Problem::new(code::UNAVAILABLE, "this host is shutting down"));
    }
    match call.app.gate.store().now().await {
        Ok(_) => Ok(super::json(StatusCode::OK, &json!({ "status": "ready" }))),
        Err(error) => {
            tracing::error!(%error, "the store does not answer");
            Err(Problem::new(code::UNAVAILABLE, "the store does not answer"))
        }
    }
}
