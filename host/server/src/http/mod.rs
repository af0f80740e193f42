//! The HTTP surface, `/v1`: JSON in and out for agents and people. It translates
//! and bounds; every rule is the gate's.
//!
//! A request passes, in this order: [`listener`] (connections, time limits),
//! [`guard`] (is it meant for this host), [`routes`] (the one table of what
//! exists and who may), the token, and then a handler, which reads its [`call`]
//! strictly through [`query`] and [`fields`]. Answers are made by [`view`],
//! refusals by [`problem`].

mod actions;
mod call;
mod decisions;
mod events;
mod fields;
mod guard;
mod health;
pub mod listener;
mod openapi;
mod problem;
mod query;
mod routes;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;
mod view;
mod wrong_tokens;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::on;
use axum::{Router, middleware};
use countersign_domain::action::Action;
use countersign_domain::secret::SecretName;
use countersign_gate::Gate;
use countersign_gate::grants::Grants;
use countersign_gate::reconciler::Reconciled;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::sync::watch;

pub use guard::Allowed;

use self::call::Call;
use self::events::Streams;
use self::problem::Problem;
use self::routes::{Access, ROUTES, Route};
use self::wrong_tokens::{Peer, WrongTokens};
use crate::metrics::Metrics;
use crate::tokens::{Caller, Token, Tokens};

/// What every handler can use.
pub struct App {
    /// All the rules.
    pub gate: Gate,
    /// Who calls.
    pub tokens: Tokens,
    /// Who does not, and tries.
    wrong_tokens: WrongTokens,
    /// Parsed grants, for what they want shown.
    grants: Grants,
    /// What this host is called.
    allowed: Allowed,
    /// The secrets that grants can name.
    secrets: BTreeSet<SecretName>,
    /// Open event streams, counted.
    streams: Arc<Streams>,
    /// Turns true once, when the host begins to stop.
    stopping: watch::Receiver<bool>,
    /// What this host counted.
    metrics: Arc<Metrics>,
}

impl App {
    /// The surface of a gate.
    pub fn new(
        gate: Gate,
        allowed: Allowed,
        secrets: BTreeSet<SecretName>,
        stopping: watch::Receiver<bool>,
        metrics: Arc<Metrics>,
    ) -> Arc<App> {
        let tokens = Tokens::new(gate.store().clone());
        let (grants, streams) = (Grants::default(), Arc::default());
        let wrong_tokens = WrongTokens::default();
        Arc::new(App { gate, tokens, wrong_tokens, grants, allowed, secrets, streams, stopping, metrics })
    }

    /// An action as it is shown.
    async fn action(&self, status: StatusCode, action: &Action, replayed: bool) -> Response {
        let grant = self.grants.get(&**self.gate.store(), &action.tenant, action.grant).await;
        // Without its grant an action can still be looked at.
        let grant = grant
            .inspect_err(|error| tracing::warn!(action = %action.id, %error, "no grant to show by"))
            .ok();
        json(status, &view::ActionView::of(action, grant.as_deref(), replayed))
    }

    /// An action as it is shown, with what a lookup found.
    async fn reconciled(&self, reconciled: &Reconciled) -> Response {
        let action = &reconciled.action;
        let grant = self.grants.get(&**self.gate.store(), &action.tenant, action.grant).await.ok();
        json(StatusCode::OK, &view::ReconciledView::of(reconciled, grant.as_deref()))
    }

    /// Whether the host is stopping.
    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Returns when the host begins to stop.
    async fn stopped(&self) {
        // An error means that whoever stops the host is gone: stopped as well.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }
}

/// Builds the router from the table. A host that answers no callers says only
/// whether it is well, and what it counted.
pub fn router(app: Arc<App>, answers_callers: bool) -> Router {
    let mut router = Router::new();
    for route in ROUTES.iter().filter(|route| answers_callers || route.is_about_the_host()) {
        let handler = move |State(app): State<Arc<App>>, request: Request| answer(app, route, request);
        router = router.route(route.path, on(route.filter, handler));
    }
    router
        .fallback(|| async { Problem::not_found("such route; the routes are under /v1").into_response() })
        .method_not_allowed_fallback(|| async {
            Problem::new(countersign_domain::code::INVALID_REQUEST, "this route does not take this method")
                .status(StatusCode::METHOD_NOT_ALLOWED)
                .into_response()
        })
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}

async fn answer(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    match dispatch(app, route, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn dispatch(app: Arc<App>, route: &'static Route, request: Request) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let caller = match route.access {
        Access::Open => None,
        Access::Needs(verb) => {
            let caller = authenticate(&app, &parts).await?;
            if !caller.may(verb) {
                let roles: Vec<&str> = caller.roles.iter().map(|role| role.as_str()).collect();
                return Err(Problem::not_permitted(format!(
                    "{} {} needs the right \"{verb}\"; the roles of this token ({}) do not give it",
                    route.method,
                    route.path,
                    roles.join(", ")
                )));
            }
            Some(caller)
        }
    };
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|_| Problem::not_found("such path"))?;
    let param = params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default();
    let call = Call::new(app, caller, param, parts, body);
    (route.handler)(call).await
}

async fn authenticate(app: &App, parts: &http::request::Parts) -> Result<Caller, Problem> {
    // A token in a URL ends up in histories and logs: it is not taken even
    // where a good one stands beside it, so that nobody gets used to it.
    let query = parts.uri.query().unwrap_or_default();
    let in_url = query.split('&').any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        name.eq_ignore_ascii_case("token") || name.eq_ignore_ascii_case("access_token")
    });
    if in_url {
        return Err(Problem::unauthenticated(
            "a token belongs into the Authorization header, never into a URL",
        ));
    }
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Err(Problem::unauthenticated("send a token: Authorization: Bearer cs_…"));
    };
    let unknown = || {
        let peer = parts.extensions.get::<Peer>().copied();
        app.wrong_tokens
            .count(peer, Problem::unauthenticated("this token is not known here, or not any more"))
    };
    if values.next().is_some() {
        return Err(Problem::unauthenticated("send one Authorization header"));
    }
    let text = value.to_str().map_err(|_| unknown())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(unknown)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Problem::unauthenticated("the Authorization scheme is Bearer"));
    }
    let token = Token::parse(token.trim()).ok_or_else(unknown)?;
    app.tokens.caller(&token).await?.ok_or_else(unknown)
}

/// A JSON answer.
fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        // Views hold nothing that has no JSON form; if one ever does, the caller
        // is told that this cannot be shown, not shown a part of it.
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            Problem::new(countersign_domain::code::UNAVAILABLE, "the answer could not be written")
                .into_response()
        }
    }
}

/// Runs to its end what must not stop half way because its caller hung up.
async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Problem> {
    tokio::spawn(work).await.map_err(|error| {
        tracing::error!(%error, "a request died");
        Problem::new(countersign_domain::code::UNAVAILABLE, "the request died; look at what became of it")
    })
}
