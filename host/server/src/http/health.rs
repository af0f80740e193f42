//! Is the process alive, can it do its work, and what did it do? The first two
//! are open to anybody, and say no more than that.

use axum::body::Body;
use axum::response::Response;
use countersign_domain::code;
use http::{HeaderValue, StatusCode, header};
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

/// `GET /metrics`: what this host counted, and how many actions of its ledger
/// wait, in the text form of Prometheus.
pub async fn metrics(call: Call) -> Result<Response, Problem> {
    let text = call.app.metrics.scrape(call.app.gate.running()).await;
    let mut response = Response::new(Body::from(text));
    let content = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, content);
    Ok(response)
}
