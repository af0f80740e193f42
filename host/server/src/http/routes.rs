//! Every route of this surface, with who may use it. The router is built from
//! this table and from nothing else, so there is no route without a line here.

use std::future::Future;
use std::pin::Pin;

use axum::response::Response;
use axum::routing::MethodFilter;
use countersign_domain::role::Verb;

use super::call::Call;
use super::problem::Problem;
use super::{actions, decisions, events, health, openapi, tokens, tools};

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody, without a token.
    Open,
    /// Whoever's roles allow this.
    Needs(Verb),
}

/// An answer to come.
pub type Answer = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// One route.
pub struct Route {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// The same, as the router wants it.
    pub filter: MethodFilter,
    /// With at most one variable part.
    pub path: &'static str,
    /// Checked before anything of the request but its head is read.
    pub access: Access,
    /// What answers.
    pub handler: fn(Call) -> Answer,
}

impl Route {
    /// Whether it is about the host and not about anybody's actions: every host
    /// has these, whatever its role.
    pub fn is_about_the_host(&self) -> bool {
        matches!(self.access, Access::Open | METRICS)
    }
}

const fn get(path: &'static str, access: Access, handler: fn(Call) -> Answer) -> Route {
    Route { method: "GET", filter: MethodFilter::GET, path, access, handler }
}

const fn post(path: &'static str, verb: Verb, handler: fn(Call) -> Answer) -> Route {
    Route { method: "POST", filter: MethodFilter::POST, path, access: Access::Needs(verb), handler }
}

const fn put(path: &'static str, verb: Verb, handler: fn(Call) -> Answer) -> Route {
    Route { method: "PUT", filter: MethodFilter::PUT, path, access: Access::Needs(verb), handler }
}

const fn delete(path: &'static str, verb: Verb, handler: fn(Call) -> Answer) -> Route {
    Route { method: "DELETE", filter: MethodFilter::DELETE, path, access: Access::Needs(verb), handler }
}

const LOOK: Access = Access::Needs(Verb::Look);
const METRICS: Access = Access::Needs(Verb::Metrics);
const TOKENS: Access = Access::Needs(Verb::Tokens);

/// All of them.
pub static ROUTES: &[Route] = &[
    get("/healthz", Access::Open, |call| Box::pin(health::live(call))),
    get("/readyz", Access::Open, |call| Box::pin(health::ready(call))),
    get("/metrics", METRICS, |call| Box::pin(health::metrics(call))),
    get("/openapi.json", Access::Open, |call| Box::pin(openapi::show(call))),
    post("/v1/tools", Verb::Install, |call| Box::pin(tools::install(call))),
    get("/v1/tools", LOOK, |call| Box::pin(tools::list(call))),
    get("/v1/tools/{name}", LOOK, |call| Box::pin(tools::show(call))),
    put("/v1/tools/{name}/grant", Verb::Install, |call| Box::pin(tools::put_grant(call))),
    post("/v1/tools/{name}/pause", Verb::Install, |call| Box::pin(tools::pause(call))),
    post("/v1/tools/{name}/resume", Verb::Install, |call| Box::pin(tools::resume(call))),
    post("/v1/actions", Verb::Propose, |call| Box::pin(actions::propose(call))),
    get("/v1/actions", LOOK, |call| Box::pin(actions::list(call))),
    get("/v1/actions/{id}", LOOK, |call| Box::pin(actions::show(call))),
    get("/v1/actions/{id}/effects", LOOK, |call| Box::pin(actions::effects(call))),
    get("/v1/actions/{id}/log", LOOK, |call| Box::pin(actions::log(call))),
    get("/v1/actions/{id}/events", LOOK, |call| Box::pin(events::of_action(call))),
    post("/v1/actions/{id}/approve", Verb::Decide, |call| Box::pin(decisions::approve(call))),
    post("/v1/actions/{id}/decline", Verb::Decide, |call| Box::pin(decisions::decline(call))),
    post("/v1/actions/{id}/cancel", Verb::Cancel, |call| Box::pin(decisions::cancel(call))),
    post("/v1/actions/{id}/supersede", Verb::Propose, |call| Box::pin(decisions::supersede(call))),
    post("/v1/actions/{id}/execute", Verb::Propose, |call| Box::pin(actions::execute(call))),
    post("/v1/actions/{id}/reconcile", Verb::Resolve, |call| Box::pin(decisions::reconcile(call))),
    post("/v1/actions/{id}/resolve", Verb::Resolve, |call| Box::pin(decisions::resolve(call))),
    get("/v1/events", LOOK, |call| Box::pin(events::of_tenant(call))),
    post("/v1/tokens", Verb::Tokens, |call| Box::pin(tokens::create(call))),
    get("/v1/tokens", TOKENS, |call| Box::pin(tokens::list(call))),
    delete("/v1/tokens/{id}", Verb::Tokens, |call| Box::pin(tokens::revoke(call))),
];

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::role::{Role, may};

    /// Who may use each route with one role: agent, approver, operator, admin.
    /// Written by hand on purpose: a change of who may what has to be made twice.
    const EXPECTED: &[(&str, &str, &str)] = &[
        ("GET", "/healthz", "open"),
        ("GET", "/readyz", "open"),
        ("GET", "/metrics", "operator"),
        ("GET", "/openapi.json", "open"),
        ("POST", "/v1/tools", "operator"),
        ("GET", "/v1/tools", "agent approver operator admin"),
        ("GET", "/v1/tools/{name}", "agent approver operator admin"),
        ("PUT", "/v1/tools/{name}/grant", "operator"),
        ("POST", "/v1/tools/{name}/pause", "operator"),
        ("POST", "/v1/tools/{name}/resume", "operator"),
        ("POST", "/v1/actions", "agent"),
        ("GET", "/v1/actions", "agent approver operator admin"),
        ("GET", "/v1/actions/{id}", "agent approver operator admin"),
        ("GET", "/v1/actions/{id}/effects", "agent approver operator admin"),
        ("GET", "/v1/actions/{id}/log", "agent approver operator admin"),
        ("GET", "/v1/actions/{id}/events", "agent approver operator admin"),
        ("POST", "/v1/actions/{id}/approve", "approver"),
        ("POST", "/v1/actions/{id}/decline", "approver"),
        ("POST", "/v1/actions/{id}/cancel", "agent operator"),
        ("POST", "/v1/actions/{id}/supersede", "agent"),
        ("POST", "/v1/actions/{id}/execute", "agent"),
        ("POST", "/v1/actions/{id}/reconcile", "operator"),
        ("POST", "/v1/actions/{id}/resolve", "operator"),
        ("GET", "/v1/events", "agent approver operator admin"),
        ("POST", "/v1/tokens", "admin"),
        ("GET", "/v1/tokens", "admin"),
        ("DELETE", "/v1/tokens/{id}", "admin"),
    ];

    #[test]
    fn h02_every_route_lets_in_exactly_the_roles_of_the_checked_in_table() {
        let found: Vec<(&str, &str, String)> = ROUTES
            .iter()
            .map(|route| {
                let who = match route.access {
                    Access::Open => "open".to_owned(),
                    Access::Needs(verb) => {
                        let roles = Role::ALL.iter().filter(|role| may(&[**role], verb));
                        roles.map(|role| role.as_str()).collect::<Vec<_>>().join(" ")
                    }
                };
                (route.method, route.path, who)
            })
            .collect();
        let expected: Vec<(&str, &str, String)> =
            EXPECTED.iter().map(|(method, path, who)| (*method, *path, (*who).to_owned())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_that_is_got_changes_anything() {
        for route in ROUTES.iter().filter(|route| route.method == "GET") {
            let looks = matches!(route.access, Access::Open | LOOK | METRICS | TOKENS);
            assert!(looks, "{}", route.path);
        }
    }
}
