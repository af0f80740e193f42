//! The whole surface over a real store and gate, with a component made of
//! nothing: who gets in, and what a tenant can see of another.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::EffectRecord;
use countersign_domain::id::{ComponentDigest, Digest, TenantId};
use countersign_domain::role::{Role, may};
use countersign_domain::run::{Call, Ended, RunReport};
use countersign_domain::tool::{Inspection, Manifest, Preview};
use countersign_gate::dispatch::{Dispatcher, DispatcherConfig, Secrets, SystemResolver};
use countersign_gate::{ComponentError, Components, Effects, Gate, GateConfig, LookupReport, Verdict};
use countersign_store::sqlite::{SqliteOptions, SqliteStore};
use http::{Request, StatusCode, header};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::routes::{Access, ROUTES};
use super::{Allowed, App, router};
use crate::metrics::Metrics;

/// A component that returns `{}` and asks for nothing.
struct Nothing;

#[async_trait]
impl Components for Nothing {
    async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, ComponentError> {
        Ok(Inspection {
            digest: ComponentDigest(Digest::of(&bytes)),
            size: bytes.len() as u64,
            imports: Vec::new(),
            exports: Vec::new(),
            features: Vec::new(),
            reconciles: false,
            manifest: Manifest {
                name: "nothing".into(),
                version: "1.0.0".into(),
                title: "Nothing".into(),
                description: "Does nothing".into(),
                input_schema: json!({ "type": "object" }),
                output_schema: None,
                effects: Vec::new(),
            },
            warnings: Vec::new(),
        })
    }

    fn is_loaded(&self, _: ComponentDigest) -> bool {
        true
    }

    async fn load(&self, _: ComponentDigest, _: Arc<[u8]>) -> Result<(), ComponentError> {
        Ok(())
    }

    async fn preview(&self, _: Call) -> Option<Preview> {
        None
    }

    async fn invoke(&self, _: Call, _: Arc<dyn Effects>) -> RunReport {
        let result = CanonicalJson::from_value(&json!({})).expect("canonical");
        RunReport { ended: Ended::Returned(result), log: Vec::new() }
    }

    async fn reconcile(&self, _: Call, _: &EffectRecord, _: Arc<dyn Effects>) -> LookupReport {
        LookupReport { verdict: Ok(Verdict::Unknown), log: Vec::new() }
    }
}

struct Surface {
    app: Arc<App>,
    router: Router,
    // Kept: dropped, it would say that the host stops.
    _stop: watch::Sender<bool>,
    _home: tempfile::TempDir,
}

impl Surface {
    fn new() -> Surface {
        let home = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(SqliteOptions::new(home.path().join("store.db"))).expect("a store");
        let secrets = Arc::new(Secrets::default());
        let dispatcher = Dispatcher::new(DispatcherConfig::default(), Arc::new(SystemResolver), secrets)
            .expect("a sender");
        let gate = Gate::new(Arc::new(store), Arc::new(Nothing), dispatcher, None, GateConfig::default());
        let (stop, stopping) = watch::channel(false);
        let allowed = Allowed::new("127.0.0.1:7171".parse().expect("an address"), None);
        let app = App::new(gate, allowed, BTreeSet::new(), stopping, Arc::new(Metrics::new(None)));
        Surface { router: router(app.clone(), true), app, _stop: stop, _home: home }
    }

    async fn token(&self, tenant: &str, role: Role) -> String {
        let tenant: TenantId = tenant.parse().expect("a tenant");
        let name = role.as_str().parse().expect("a principal");
        let (token, _) = self.app.tokens.create(&tenant, &name, &[role]).await.expect("a token");
        token.reveal().to_owned()
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:7171");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let response = TowerToHyperService::new(self.router.clone()).call(request).await.expect("an answer");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");
/// An id that names nothing.
const NO_ID: &str = "0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b";

fn filled(path: &str) -> String {
    path.replace("{id}", NO_ID).replace("{name}", "nothing")
}

#[tokio::test]
async fn h02_every_route_asks_for_a_token_whose_role_allows_it_and_for_one_in_the_header_only() {
    let surface = Surface::new();
    for route in ROUTES {
        let path = filled(route.path);
        let (status, body) = surface.send(route.method, &path, None, &[], "").await;
        let Access::Needs(verb) = route.access else {
            assert_eq!(status, StatusCode::OK, "{path}");
            continue;
        };
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{} {path}: {body}", route.method);
        for role in Role::ALL {
            let token = surface.token("default", *role).await;
            let (status, body) = surface.send(route.method, &path, Some(&token), &[], "").await;
            let refused = status == StatusCode::FORBIDDEN;
            assert_eq!(refused, !may(&[*role], verb), "{} {path} as {role}: {status} {body}", route.method);
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{path}");
            let in_url = format!("{path}?token={token}");
            let (status, _) = surface.send(route.method, &in_url, Some(&token), &[], "").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{in_url}");
        }
    }
}

#[tokio::test]
async fn an_action_is_what_the_description_of_the_surface_says_it_is() {
    let surface = Surface::new();
    let (status, described) = surface.send("GET", "/openapi.json", None, &[], "").await;
    assert_eq!((status, &described["openapi"]), (StatusCode::OK, &json!("3.1.0")));
    let operator = surface.token("default", Role::Operator).await;
    let agent = surface.token("default", Role::Agent).await;
    let wasm = [("content-type", "application/wasm")];
    surface.send("POST", "/v1/tools", Some(&operator), &wasm, "bytes").await;
    let proposal = r#"{"tool":"nothing","arguments":{},"run_id":"r","step":"1"}"#;
    let (status, action) = surface.send("POST", "/v1/actions", Some(&agent), &[JSON], proposal).await;
    assert_eq!(status, StatusCode::CREATED, "{action}");
    let schema = &described["components"]["schemas"]["Action"];
    for member in action.as_object().expect("an object").keys() {
        assert!(schema["properties"].get(member).is_some(), "{member} is shown and not described");
    }
    for member in schema["required"].as_array().expect("members").iter().filter_map(Value::as_str) {
        assert!(action.get(member).is_some(), "{member} is described and not shown");
    }
}

#[tokio::test]
async fn f01_no_route_answers_a_foreign_page_or_another_name() {
    let surface = Surface::new();
    let token = surface.token("default", Role::Admin).await;
    let paths = ROUTES.iter().map(|route| (route.method, filled(route.path)));
    for (method, path) in
        paths.chain([("GET", "/v1/nowhere".to_owned()), ("PATCH", "/v1/actions".to_owned())])
    {
        // A second Host header is as wrong as another one.
        for foreign in [("origin", "null"), ("origin", "https://evil.example"), ("host", "evil.example")] {
            let (status, _) = surface.send(method, &path, Some(&token), &[foreign], "").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path} {foreign:?}");
        }
    }
}

#[tokio::test]
async fn h03_another_tenants_action_looks_like_one_that_never_was() {
    let surface = Surface::new();
    let operator = surface.token("default", Role::Operator).await;
    let agent = surface.token("default", Role::Agent).await;
    let wasm = [("content-type", "application/wasm")];
    let (status, body) = surface.send("POST", "/v1/tools", Some(&operator), &wasm, "bytes").await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    let proposal = r#"{"tool":"nothing","arguments":{},"run_id":"r","step":"1"}"#;
    let (status, action) = surface.send("POST", "/v1/actions", Some(&agent), &[JSON], proposal).await;
    assert_eq!(status, StatusCode::CREATED, "{action}");
    let id = action["id"].as_str().expect("an id");
    for route in ROUTES.iter().filter(|route| route.path.starts_with("/v1/actions/{id}")) {
        let Access::Needs(verb) = route.access else { continue };
        let role = Role::ALL.iter().find(|role| may(&[**role], verb)).expect("a role");
        let other = surface.token("other", *role).await;
        let body = match route.path.rsplit('/').next() {
            Some("decline" | "cancel") => r#"{"reason":"no"}"#,
            Some("resolve") => r#"{"ordinal":1,"outcome":"give_up","evidence":"none"}"#,
            _ => "",
        };
        let headers: &[_] = if body.is_empty() { &[] } else { &[JSON] };
        let theirs = route.path.replace("{id}", id);
        let (status, seen) = surface.send(route.method, &theirs, Some(&other), headers, body).await;
        let (never, unseen) =
            surface.send(route.method, &filled(route.path), Some(&other), headers, body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{} {theirs}: {seen}", route.method);
        assert_eq!(never, StatusCode::NOT_FOUND, "{unseen}");
        assert_eq!(seen.to_string().replace(id, NO_ID), unseen.to_string());
    }
    let other = surface.token("other", Role::Agent).await;
    for (path, list) in [("/v1/actions", "actions"), ("/v1/events", "events"), ("/v1/tools", "tools")] {
        let (_, seen) = surface.send("GET", path, Some(&other), &[], "").await;
        assert_eq!(seen[list], json!([]), "{path}");
    }
}

#[tokio::test]
async fn a_wait_ends_with_a_decision_that_was_made_before_it_began_to_look() {
    let surface = Surface::new();
    let operator = surface.token("default", Role::Operator).await;
    let (agent, approver) =
        (surface.token("default", Role::Agent).await, surface.token("default", Role::Approver).await);
    let wasm = [("content-type", "application/wasm")];
    surface.send("POST", "/v1/tools", Some(&operator), &wasm, "bytes").await;
    let proposal = r#"{"tool":"nothing","arguments":{},"run_id":"r","step":"1"}"#;
    let (_, action) = surface.send("POST", "/v1/actions", Some(&agent), &[JSON], proposal).await;
    let id = action["id"].as_str().expect("an id");
    let tenant: TenantId = "default".parse().expect("a tenant");
    let store = surface.app.gate.store().clone();
    let stale = store.action(&tenant, id.parse().expect("an id")).await.expect("a row").expect("an action");
    let approve = format!("/v1/actions/{id}/approve");
    let (status, body) = surface.send("POST", &approve, Some(&approver), &[], "").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let long = std::time::Duration::from_secs(60);
    let began = std::time::Instant::now();
    let seen = super::actions::rest(&surface.app, &tenant, stale, long).await.expect("a row");
    assert_eq!(seen.state.as_str(), "approved");
    assert!(began.elapsed() < long / 2, "slept through it");
}
