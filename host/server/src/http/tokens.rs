//! Tokens, for admins. A token's text is in the answer that makes it and never
//! anywhere again.

use axum::body::Body;
use axum::response::Response;
use countersign_domain::id::{Principal, TenantId};
use countersign_domain::role::Role;
use http::StatusCode;
use serde_json::{Value, json};

use super::call::Call;
use super::problem::Problem;
use super::view;
use crate::tokens::{HOME_TENANT, RESERVED_NAMES};

/// `POST /v1/tokens` `{name, roles, tenant?}`
pub async fn create(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let mut body = call.object().await?;
    let name: Principal = body.needed("name")?;
    if RESERVED_NAMES.contains(&name.as_str()) {
        return Err(body
            .wrong("name", format!("{name} is what this host calls a part of itself; choose another name")));
    }
    let tenant: Option<TenantId> = body.parsed("tenant")?;
    let roles = body.list("roles")?.unwrap_or_default();
    if roles.is_empty() {
        return Err(body.wrong("roles", "\"roles\" names at least one of agent, approver, operator, admin"));
    }
    let mut wanted: Vec<Role> = Vec::new();
    for (at, role) in roles.iter().enumerate() {
        let role = role.as_str().unwrap_or_default().parse::<Role>();
        let role = role.map_err(|error| Problem::invalid(&format!("/roles/{at}"), error.to_string()))?;
        if !wanted.contains(&role) {
            wanted.push(role);
        }
    }
    body.finish()?;
    let caller = call.caller()?;
    let tenant = tenant.unwrap_or_else(|| caller.tenant.clone());
    if tenant != caller.tenant && caller.tenant.as_str() != HOME_TENANT {
        return Err(Problem::not_permitted("tokens of another tenant are made by the host's own admins"));
    }
    let (token, row) = call.app.tokens.create(&tenant, &name, &wanted).await?;
    let mut made = view::principal(&row);
    if let Value::Object(members) = &mut made {
        members.insert("token".into(), json!(token.reveal()));
    }
    Ok(super::json(StatusCode::CREATED, &made))
}

/// `GET /v1/tokens`
pub async fn list(call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let rows = call.app.gate.store().principals(&call.caller()?.tenant).await?;
    let tokens: Vec<Value> = rows.iter().map(view::principal).collect();
    Ok(super::json(StatusCode::OK, &json!({ "tokens": tokens })))
}

/// `DELETE /v1/tokens/{id}`, by the token's public part.
pub async fn revoke(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    call.no_body().await?;
    let tenant = &call.caller()?.tenant;
    let store = call.app.gate.store();
    let known = store.principal(&call.param).await?.filter(|row| row.tenant == *tenant);
    if known.is_none() {
        return Err(Problem::not_found(&format!("token {}", call.param)));
    }
    call.app.tokens.revoke(tenant, &call.param).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
