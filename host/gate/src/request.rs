//! From what a component asked for to what the grant makes of it: a pure
//! function of request and grant, so that a replay comes to the same result.

use std::time::Duration;

use countersign_domain::effect::{EffectKind, OutboundRequest, RecordedRequest, Refusal, Terms};
use countersign_domain::egress::{Method, Target};
use countersign_domain::fingerprint;
use countersign_domain::grant::{Grant, HttpRoute, On5xx, RecoveryClass};
use countersign_domain::id::EffectFingerprint;
use countersign_domain::retry::key_window;

/// A request, resolved against a grant.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// What it is compared by.
    pub fingerprint: EffectFingerprint,
    /// What is shown and kept.
    pub recorded: RecordedRequest,
    /// Which import.
    pub kind: EffectKind,
    /// Where it may go, or why not.
    pub route: Result<Route, Refusal>,
}

/// Where a request may go, and on which terms.
#[derive(Debug, Clone)]
pub struct Route {
    /// Position of the route in the grant.
    pub index: usize,
    /// Checked and rebuilt.
    pub target: Target,
    /// Checked.
    pub method: Method,
    /// Fixed in the effect's row.
    pub terms: Terms,
}

impl Resolved {
    /// May change something outside. What was refused and is no plain look
    /// counts as a write, too.
    pub fn is_write(&self) -> bool {
        match &self.route {
            Ok(route) => route.terms.class != RecoveryClass::Read,
            Err(_) => !self.recorded.method.parse::<Method>().is_ok_and(Method::is_safe),
        }
    }
}

/// Resolves a request against a grant.
pub fn resolve(grant: &Grant, request: &OutboundRequest) -> Resolved {
    let scheme = request.scheme.as_deref().unwrap_or("https").to_ascii_lowercase();
    let authority = request.authority.as_deref().unwrap_or_default();
    let path = request.path_with_query.as_deref().unwrap_or("/");
    let target = Target::parse(&scheme, authority, path);
    let method = request.method.parse::<Method>();
    let url = match &target {
        Ok(target) => target.to_string(),
        Err(_) => format!("{scheme}://{authority}{path}"),
    };
    let recorded = RecordedRequest {
        method: request.method.clone(),
        url,
        headers: request.headers.clone(),
        body: request.body.clone(),
    };
    let (target, method) = match (target, method) {
        (Ok(target), Ok(method)) => (target, method),
        (Err(refusal), _) | (_, Err(refusal)) => {
            let fingerprint =
                fingerprint::malformed_effect(&request.method, &scheme, authority, path, &request.body);
            let route = Err(Refusal::NotGranted(refusal.to_string()));
            return Resolved { fingerprint, recorded, kind: EffectKind::Http, route };
        }
    };
    let found = grant.route(method, &target);
    let significant = match &found {
        Ok((_, route)) => significant(route, request),
        Err(_) => Vec::new(),
    };
    let fingerprint = fingerprint::http_effect(method.as_str(), &target, &significant, &request.body);
    let route = match found {
        Err(refusal) => Err(Refusal::NotGranted(refusal.to_string())),
        Ok((_, route)) if request.body.len() as u64 > route.request_body => {
            Err(Refusal::BodyTooLarge(route.request_body))
        }
        Ok((index, route)) => Ok(Route { index, target, method, terms: terms(grant, route) }),
    };
    Resolved { fingerprint, recorded, kind: EffectKind::Http, route }
}

/// The headers that the route names, as the component set them, by name.
fn significant(route: &HttpRoute, request: &OutboundRequest) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = request
        .headers
        .iter()
        .filter(|(name, _)| route.significant_headers.iter().any(|wanted| wanted.eq_ignore_ascii_case(name)))
        .cloned()
        .collect();
    headers.sort();
    headers
}

/// The terms of a claim under this route.
pub fn terms(grant: &Grant, route: &HttpRoute) -> Terms {
    let send = grant.limits().send;
    Terms {
        class: route.recovery,
        key_window: key_window(route.key_retention, send),
        in_flight_status: route.in_flight_status,
        replay_header: route.replay_header.as_ref().map(|name| name.to_ascii_lowercase()),
        on_5xx: route.on_5xx,
        send,
        settle: send * 2,
    }
}

/// Terms for what no route matched: nothing will be sent under them.
pub fn refused_terms(grant: &Grant) -> Terms {
    Terms {
        class: RecoveryClass::Manual,
        key_window: Duration::ZERO,
        in_flight_status: 409,
        replay_header: None,
        on_5xx: On5xx::Unknown,
        send: grant.limits().send,
        settle: grant.limits().send * 2,
    }
}
