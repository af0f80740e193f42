//! Actions: propose, look, execute.

use std::time::Duration;

use axum::response::Response;
use countersign_domain::action::{Action, State};
use countersign_domain::code;
use countersign_domain::id::{ActionId, Principal, TenantId, ToolName};
use countersign_domain::key::ActionKey;
use countersign_domain::role::Verb;
use countersign_gate::execute::Execution;
use countersign_gate::propose::Proposal;
use countersign_gate::waiters::LOOK_AGAIN;
use countersign_store::steps::ListActions;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call::Call;
use super::problem::Problem;
use super::view::{ActionView, EffectView};
use super::{App, detached};

/// How long `execute` waits when nobody says. Chosen: most tools are done by
/// then, and clients and proxies still wait.
const EXECUTE_WAIT: Duration = Duration::from_secs(30);
/// Seconds after which a caller asks again about what still runs.
const ASK_AGAIN: u32 = 1;
/// Actions per page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (50, 200);

/// The caller's own name for an action.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// `POST /v1/actions`
pub async fn propose(mut call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let wait = query.wait(Duration::ZERO)?;
    query.finish()?;
    let key = call.header(&IDEMPOTENCY_KEY)?;
    let mut body = call.object().await?;
    let tool: ToolName = body.needed("tool")?;
    let version = body.text("version")?;
    let arguments = body.needed_json("arguments")?;
    let (run, step) = (body.text("run_id")?, body.text("step")?);
    let actor: Option<Principal> = body.parsed("actor")?;
    let run_by_itself = match body.text("run")?.as_deref() {
        None => false,
        Some("auto") => true,
        Some(_) => return Err(body.wrong("run", "\"run\" is \"auto\", or left out")),
    };
    let compensates: Option<ActionId> = body.parsed("compensates")?;
    body.finish()?;
    let key = ActionKey::from_parts(key, run, step)
        .map_err(|error| Problem::new(code::INVALID_REQUEST, error.to_string()))?;
    let caller = call.caller()?;
    let actor = actor.unwrap_or_else(|| caller.principal.clone());
    if actor != caller.principal && !caller.may(Verb::ActFor) {
        return Err(Problem::not_permitted(format!(
            "{} may not propose in the name of {actor}: that needs the right \"{}\"",
            caller.principal,
            Verb::ActFor
        )));
    }
    let tenant = caller.tenant.clone();
    let proposal = Proposal {
        tenant: tenant.clone(),
        proposer: caller.principal.clone(),
        actor,
        tool,
        version,
        arguments,
        key,
        run_by_itself,
        compensates,
        supersedes: None,
    };
    let gate = call.app.gate.clone();
    let proposed = detached(async move { gate.propose(proposal).await }).await??;
    let status = if proposed.replayed { StatusCode::OK } else { StatusCode::CREATED };
    let action = rest(&call.app, &tenant, proposed.action, wait).await?;
    let mut response = call.app.action(status, &action, proposed.replayed).await;
    if let Ok(at) = HeaderValue::try_from(format!("/v1/actions/{}", action.id)) {
        response.headers_mut().insert(header::LOCATION, at);
    }
    Ok(response)
}

/// Waits for the next decision or end: until the action has changed its state
/// and does not run, or time is up, or the host stops.
pub(super) async fn rest(
    app: &App,
    tenant: &TenantId,
    first: Action,
    wait: Duration,
) -> Result<Action, Problem> {
    let deadline = Instant::now() + wait;
    let (before, mut action) = (first.state, first);
    loop {
        let runs = action.state.is_running() || (action.run_by_itself && action.state == State::Approved);
        let left = deadline.saturating_duration_since(Instant::now());
        if action.state.is_terminal() || (action.state != before && !runs) || left.is_zero() {
            return Ok(action);
        }
        // In steps: a change between the row at hand and the gate's own first look
        // is no change to the gate, and would be slept through.
        let step = left.min(LOOK_AGAIN);
        action = tokio::select! {
            action = app.gate.wait(tenant, action.id, step) => action?,
            () = app.stopped() => return Ok(action),
        };
    }
}

/// `GET /v1/actions/{id}`
pub async fn show(call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let wait = query.wait(Duration::ZERO)?;
    query.finish()?;
    let action = one(&call).await?;
    let tenant = action.tenant.clone();
    let action = rest(&call.app, &tenant, action, wait).await?;
    Ok(call.app.action(StatusCode::OK, &action, false).await)
}

/// The action that the path names.
pub(super) async fn one(call: &Call) -> Result<Action, Problem> {
    let id: ActionId = call.named("action")?;
    let action = call.app.gate.store().action(&call.caller()?.tenant, id).await?;
    action.ok_or_else(|| Problem::not_found(&format!("action {id}")))
}

/// `GET /v1/actions`
pub async fn list(call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let states = query.text("status").unwrap_or_default();
    let states = states.split(',').filter(|state| !state.is_empty()).map(str::parse);
    let list = ListActions {
        states: states.collect::<Result<Vec<State>, _>>()?,
        tool: query.parsed("tool")?,
        run: query.text("run_id"),
        after: query.parsed("after")?,
        limit: query.limit(PAGE.0, PAGE.1)?,
    };
    query.finish()?;
    let limit = list.limit as usize;
    let actions = call.app.gate.store().actions(&call.caller()?.tenant, list).await?;
    let next = actions.last().filter(|_| actions.len() == limit).map(|action| action.id.to_string());
    let mut views = Vec::with_capacity(actions.len());
    for action in &actions {
        let grant = call.app.grants.get(&**call.app.gate.store(), &action.tenant, action.grant).await.ok();
        views.push(ActionView::of(action, grant.as_deref(), false));
    }
    #[derive(serde::Serialize)]
    struct Page<'a> {
        actions: Vec<ActionView<'a>>,
        next: Option<String>,
    }
    Ok(super::json(StatusCode::OK, &Page { actions: views, next }))
}

/// `POST /v1/actions/{id}/execute`
pub async fn execute(mut call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let wait = query.wait(EXECUTE_WAIT)?;
    query.finish()?;
    call.no_body().await?;
    let id: ActionId = call.named("action")?;
    let (gate, tenant) = (call.app.gate.clone(), call.caller()?.tenant.clone());
    let execution = detached(async move { gate.execute(&tenant, id, wait).await }).await??;
    match execution {
        Execution::Ended { action, replayed } => Ok(call.app.action(StatusCode::OK, &action, replayed).await),
        Execution::Running(action) => {
            let mut response = call.app.action(StatusCode::ACCEPTED, &action, false).await;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ASK_AGAIN));
            Ok(response)
        }
    }
}

/// `GET /v1/actions/{id}/effects`
pub async fn effects(call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let history = query.flag("history")?;
    query.finish()?;
    let action = one(&call).await?;
    let effects = call.app.gate.store().effects(&action.tenant, action.id, history).await?;
    #[derive(serde::Serialize)]
    struct Effects<'a> {
        action: String,
        effects: Vec<EffectView<'a>>,
    }
    let effects =
        Effects { action: action.id.to_string(), effects: effects.iter().map(EffectView::of).collect() };
    Ok(super::json(StatusCode::OK, &effects))
}

/// `GET /v1/actions/{id}/log`
pub async fn log(call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let action = one(&call).await?;
    let lines = call.app.gate.store().log(&action.tenant, action.id).await?;
    let log: Value = json!({ "action": action.id.to_string(), "lines": lines });
    Ok(super::json(StatusCode::OK, &log))
}
