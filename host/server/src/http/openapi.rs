//! `GET /openapi.json`: what this surface is, for programs. Made from the table
//! of routes and from what is said here about each; a test holds that nothing is
//! said of a route that does not exist, and that no route goes unsaid.
//!
//! The schemas of what is sent and shown are in `schemas.json` beside this file;
//! a test holds a real action against its schema.

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, header};
use serde_json::{Map, Value, json};

use super::call::Call;
use super::problem::Problem;
use super::routes::{Access, ROUTES, Route};

const SCHEMAS: &str = include_str!("schemas.json");

/// What is sent with a request.
#[derive(Clone, Copy)]
enum Sent {
    Nothing,
    /// JSON of this schema; whether it has to be there.
    Json(&'static str, bool),
    /// A grant.
    Toml,
    /// A component, alone or with a grant.
    Component,
}

/// What is said about a route.
struct Said {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Names in [`parameter`].
    takes: &'static [&'static str],
    sent: Sent,
    /// Status, and the schema of the body if it has one.
    answers: &'static [(u16, Option<&'static str>)],
}

const fn said(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    takes: &'static [&'static str],
    sent: Sent,
    answers: &'static [(u16, Option<&'static str>)],
) -> Said {
    Said { method, path, summary, takes, sent, answers }
}

const ACTION: &[(u16, Option<&str>)] = &[(200, Some("Action"))];
const ANY: &[(u16, Option<&str>)] = &[(200, Some("Any"))];

#[rustfmt::skip]
const ALL: &[Said] = &[
    said("GET", "/healthz", "Whether the process lives", &[], Sent::Nothing, ANY),
    said("GET", "/readyz", "Whether the host can do its work now", &[], Sent::Nothing, ANY),
    said("GET", "/metrics", "What this host counted, for Prometheus", &[], Sent::Nothing, &[(200, None)]),
    said("GET", "/openapi.json", "This description", &[], Sent::Nothing, ANY),
    said("POST", "/v1/tools", "Install a component, with what it may do", &["name", "dry_run", "confirm"], Sent::Component, &[(201, Some("Any")), (200, Some("Any"))]),
    said("GET", "/v1/tools", "The installed tools", &[], Sent::Nothing, ANY),
    said("GET", "/v1/tools/{name}", "A tool with its versions", &[], Sent::Nothing, ANY),
    said("PUT", "/v1/tools/{name}/grant", "Put another grant in force, or say what it would change", &["dry_run", "confirm"], Sent::Toml, ANY),
    said("POST", "/v1/tools/{name}/pause", "Stop new runs of a tool", &[], Sent::Nothing, ANY),
    said("POST", "/v1/tools/{name}/resume", "Let a paused tool run again", &[], Sent::Nothing, ANY),
    said("POST", "/v1/actions", "Propose an action; the same key again finds the same action", &["wait", "Idempotency-Key"], Sent::Json("Proposal", true), &[(201, Some("Action")), (200, Some("Action"))]),
    said("GET", "/v1/actions", "Actions, newest first", &["status", "tool", "run_id", "after", "limit"], Sent::Nothing, &[(200, Some("Actions"))]),
    said("GET", "/v1/actions/{id}", "An action; waits for its next decision or end if asked to", &["wait"], Sent::Nothing, ACTION),
    said("GET", "/v1/actions/{id}/effects", "Every outbound call of an action", &["history"], Sent::Nothing, ANY),
    said("GET", "/v1/actions/{id}/log", "What its attempts printed and logged", &[], Sent::Nothing, ANY),
    said("GET", "/v1/actions/{id}/events", "Its transitions, as a page or as text/event-stream", &["after", "limit", "Last-Event-ID"], Sent::Nothing, ANY),
    said("POST", "/v1/actions/{id}/approve", "Approve it exactly as it stands; If-Match says what was seen", &["If-Match"], Sent::Json("Note", false), ACTION),
    said("POST", "/v1/actions/{id}/decline", "Decline it", &[], Sent::Json("Reason", true), ACTION),
    said("POST", "/v1/actions/{id}/cancel", "Take it back, or ask whoever runs it to stop", &[], Sent::Json("Reason", true), ACTION),
    said("POST", "/v1/actions/{id}/supersede", "Replace it by a new one, which has to be approved anew", &["Idempotency-Key"], Sent::Json("Supersede", false), &[(201, Some("Action")), (200, Some("Action"))]),
    said("POST", "/v1/actions/{id}/execute", "Run it, or join whoever does, and wait", &["wait"], Sent::Nothing, &[(200, Some("Action")), (202, Some("Action"))]),
    said("POST", "/v1/actions/{id}/reconcile", "Ask the provider, through the tool, what came of it", &[], Sent::Nothing, ACTION),
    said("POST", "/v1/actions/{id}/resolve", "Say what came of an effect whose outcome is unknown", &[], Sent::Json("Resolution", true), ACTION),
    said("GET", "/v1/events", "All transitions, as a page or as text/event-stream", &["after", "limit", "Last-Event-ID"], Sent::Nothing, ANY),
    said("POST", "/v1/tokens", "Make a token; it is shown in this answer and nowhere again", &[], Sent::Json("NewToken", true), &[(201, Some("Any"))]),
    said("GET", "/v1/tokens", "The tokens, without their secrets", &[], Sent::Nothing, ANY),
    said("DELETE", "/v1/tokens/{id}", "End a token at once", &[], Sent::Nothing, &[(204, None)]),
];

/// Made once.
static DOCUMENT: LazyLock<Vec<u8>> = LazyLock::new(|| document().to_string().into_bytes());

/// `GET /openapi.json`
pub async fn show(call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let mut response = Response::new(Body::from(DOCUMENT.as_slice()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let Some(said) = ALL.iter().find(|said| (said.method, said.path) == (route.method, route.path))
        else {
            continue;
        };
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        at[route.method.to_ascii_lowercase()] = operation(route, said);
    }
    // A text of ours, which a test reads.
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Countersign",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs tools for AI agents and lets each outbound effect out once, only as it was approved."
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": { "problem": {
                "description": "A refusal: what, why, and whether the same request may do better later",
                "content": { "application/problem+json": { "schema": schema("Problem") } }
            } }
        }
    })
}

fn operation(route: &Route, said: &Said) -> Value {
    let mut parameters: Vec<Value> = said.takes.iter().map(|name| parameter(name)).collect();
    if let Some(name) = route.path.split('{').nth(1).and_then(|rest| rest.split('}').next()) {
        parameters
            .push(json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    }
    let answers = said.answers.iter().map(|(status, body)| {
        let description = match status {
            201 => "It is new",
            202 => "It still runs; ask again after Retry-After",
            204 => "Done",
            _ => "Done, or there already",
        };
        let mut answer = json!({ "description": description });
        if let Some(body) = body {
            answer["content"] = json!({ "application/json": { "schema": schema(body) } });
        }
        (status.to_string(), answer)
    });
    let mut answers: Map<String, Value> = answers.collect();
    answers.insert("default".into(), json!({ "$ref": "#/components/responses/problem" }));
    let mut operation = json!({ "summary": said.summary, "responses": answers });
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    match said.sent {
        Sent::Nothing => {}
        Sent::Json(body, required) => {
            let content = json!({ "application/json": { "schema": schema(body) } });
            operation["requestBody"] = json!({ "required": required, "content": content });
        }
        Sent::Toml => {
            let content = json!({ "application/toml": { "schema": { "type": "string" } } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        Sent::Component => {
            let parts = json!({ "type": "object", "required": ["component"],
                "properties": { "component": {}, "grant": { "type": "string" } } });
            let content = json!({ "application/wasm": {}, "multipart/form-data": { "schema": parts } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
    }
    if let Access::Needs(verb) = route.access {
        operation["security"] = json!([{ "token": [] }]);
        operation["x-right"] = json!(verb.as_str());
    }
    operation
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A parameter of the query, or a header, by its name.
fn parameter(name: &str) -> Value {
    let (place, kind, about) = match name {
        "Idempotency-Key" => {
            ("header", "string", "The caller's own name for the action, in place of run_id and step")
        }
        "If-Match" => ("header", "string", "The fingerprint of what was seen, in double quotes"),
        "Last-Event-ID" => ("header", "integer", "Go on after this event"),
        "wait" => ("query", "string", "Wait so long: 500ms, 30s; at most 60s"),
        "status" => ("query", "string", "Only these states, parted by commas"),
        "limit" => ("query", "integer", "At most so many"),
        "after" => ("query", "string", "Go on after this one"),
        "dry_run" => ("query", "boolean", "Only say what would change"),
        "history" => ("query", "boolean", "Also what was set aside"),
        "confirm" => ("query", "string", "The digest of what a refusal or a dry run said would change"),
        "tool" => ("query", "string", "Only of this tool"),
        "run_id" => ("query", "string", "Only of this run"),
        _ => ("query", "string", "A name in place of the component's own"),
    };
    json!({ "name": name, "in": place, "description": about, "schema": { "type": kind } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_once_and_nothing_else_is() {
        let routes: Vec<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
        let described: Vec<_> = ALL.iter().map(|said| (said.method, said.path)).collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn every_reference_leads_somewhere_and_the_right_is_the_routes_own() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        assert_eq!(document["paths"]["/v1/actions/{id}/approve"]["post"]["x-right"], "decide");
        assert!(document["paths"]["/healthz"]["get"].get("security").is_none());
        assert_eq!(document["paths"]["/v1/actions/{id}"]["get"]["parameters"][1]["name"], "id");
        for name in ["Action", "Problem", "Proposal", "Resolution"] {
            assert!(document["components"]["schemas"][name]["properties"].is_object(), "{name}");
        }
    }
}
