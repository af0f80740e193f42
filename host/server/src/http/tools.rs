//! Tools and their grants.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart, Request};
use axum::response::Response;
use bytes::Bytes;
use countersign_domain::code;
use countersign_domain::grant::{Grant, MAX_GRANT_BYTES};
use countersign_domain::id::{TenantId, ToolName};
use countersign_domain::tool::InstalledTool;
use countersign_gate::install::{Candidate, Consent, Prospect, what_it_gets};
use http::StatusCode;
use serde_json::{Value, json};

use super::call::{Call, unsupported};
use super::problem::Problem;
use super::{detached, view};

/// Bytes of a component.
const COMPONENT_BYTES: usize = 64 << 20;
/// Bytes of a whole upload: component, grant, and what multipart puts between.
const UPLOAD_BYTES: usize = COMPONENT_BYTES + MAX_GRANT_BYTES + (64 << 10);
/// Time in which an upload has to be there: 64 MiB at half a MiB a second.
const UPLOAD_TIME: Duration = Duration::from_secs(128);
/// Time in which a grant has to be there.
const GRANT_TIME: Duration = Duration::from_secs(15);

/// What an installation brings.
struct Upload {
    component: Bytes,
    grant: Option<String>,
}

/// `POST /v1/tools`; with `?dry_run=true` it only says what was found and what
/// would change. What would get more than is in force needs `?confirm=` with the
/// digest that a refusal, or a dry run, gave.
pub async fn install(mut call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let name: Option<ToolName> = query.parsed("name")?;
    let dry_run = query.flag("dry_run")?;
    let consent = query.parsed::<String>("confirm")?.map_or(Consent::None, Consent::To);
    query.finish()?;
    let upload = upload(&mut call).await?;
    let component: Arc<[u8]> = Arc::from(&upload.component[..]);
    drop(upload.component);
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let candidate = Candidate { name, bytes: component, grant: upload.grant };
    let tenant = caller.tenant.clone();
    if dry_run {
        let prospect = detached(async move { gate.prospect(&caller.tenant, &candidate).await }).await??;
        return Ok(super::json(StatusCode::OK, &prospect_view(&prospect)));
    }
    let tool =
        detached(async move { gate.install(&caller.tenant, &caller.principal, candidate, &consent).await })
            .await??;
    shown(&call, &tenant, &tool.name, StatusCode::CREATED).await
}

/// What installing would do.
fn prospect_view(prospect: &Prospect) -> Value {
    let Prospect { name, inspection, grant, before, difference, confirm, voids } = prospect;
    let voids: Vec<String> = voids.iter().map(ToString::to_string).collect();
    json!({
        "installed": false,
        "name": name,
        "inspection": inspection,
        "gets": gets(&inspection.imports),
        "grant": { "digest": grant.digest(), "routes": routes(grant), "effective": grant.effective().value() },
        "in_force": before.as_ref().map(|tool| json!({ "version": tool.version, "digest": tool.component })),
        "changes": difference.changes,
        "voids": voids,
        "needs_confirmation": prospect.needs_yes(),
        "confirm": confirm,
    })
}

/// Of each import, what stands behind it.
fn gets(imports: &[String]) -> Vec<Value> {
    imports.iter().map(|import| json!({ "import": import, "gets": what_it_gets(import) })).collect()
}

/// What a grant lets out, a line for each route.
fn routes(grant: &Grant) -> Vec<String> {
    let routes = grant.http().iter().map(|route| {
        let secrets: Vec<&str> = route.secrets().map(|name| name.as_str()).collect();
        match secrets.is_empty() {
            true => format!("{route} ({})", route.recovery),
            false => format!("{route} ({}), with the secrets {}", route.recovery, secrets.join(", ")),
        }
    });
    let mail = grant.email().map(|email| format!("mail from {}", email.from));
    routes.chain(mail).collect()
}

async fn upload(call: &mut Call) -> Result<Upload, Problem> {
    match call.media_type().as_deref() {
        Some("application/wasm") => {
            let component = call.bytes(COMPONENT_BYTES, UPLOAD_TIME).await?;
            Ok(Upload { component, grant: None })
        }
        Some("multipart/form-data") => {
            let parts = tokio::time::timeout(UPLOAD_TIME, parts(call)).await;
            parts.map_err(|_| late("the upload did not arrive in time"))?
        }
        _ => Err(unsupported(
            "application/wasm, or multipart/form-data with the parts \"component\" and \"grant\"",
        )),
    }
}

async fn parts(call: &mut Call) -> Result<Upload, Problem> {
    let mut request = Request::new(call.take_body());
    *request.headers_mut() = call.headers.clone();
    DefaultBodyLimit::max(UPLOAD_BYTES).apply(&mut request);
    let invalid = |error: &MultipartError| {
        let status = error.status();
        let code =
            if status == StatusCode::PAYLOAD_TOO_LARGE { code::TOO_LARGE } else { code::INVALID_REQUEST };
        Problem::new(code, format!("the multipart body: {}", error.body_text()))
    };
    let mut multipart = Multipart::from_request(request, &()).await.map_err(|error| {
        Problem::new(code::INVALID_REQUEST, format!("the multipart body: {}", error.body_text()))
    })?;
    let (mut component, mut grant) = (None, None);
    while let Some(field) = multipart.next_field().await.map_err(|error| invalid(&error))? {
        let name = field.name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(|error| invalid(&error))?;
        let (slot, limit) = match name.as_str() {
            "component" => (&mut component, COMPONENT_BYTES),
            "grant" => (&mut grant, MAX_GRANT_BYTES),
            _ => {
                let why = format!("unknown part {name:?}; known: component, grant");
                return Err(Problem::new(code::INVALID_REQUEST, why));
            }
        };
        if bytes.len() > limit {
            return Err(Problem::new(
                code::TOO_LARGE,
                format!("the part {name} is over the limit of {limit} bytes"),
            ));
        }
        if slot.replace(bytes).is_some() {
            return Err(Problem::new(code::INVALID_REQUEST, format!("the part {name} is given twice")));
        }
    }
    let component =
        component.ok_or_else(|| Problem::new(code::INVALID_REQUEST, "the part \"component\" is missing"))?;
    let grant = grant.map(grant_text).transpose()?;
    Ok(Upload { component, grant })
}

fn late(why: &str) -> Problem {
    Problem::new(code::INVALID_REQUEST, why).status(StatusCode::REQUEST_TIMEOUT)
}

fn grant_text(bytes: Bytes) -> Result<String, Problem> {
    String::from_utf8(bytes.into())
        .map_err(|_| Problem::new(code::INVALID_GRANT, "a grant is TOML, text in UTF-8"))
}

/// `GET /v1/tools`
pub async fn list(call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let versions = call.app.gate.store().tools(&call.caller()?.tenant).await?;
    let tools: Vec<Value> = versions
        .chunk_by(|one, other| one.name == other.name)
        .map(|versions| view::tool(versions, None))
        .collect();
    Ok(super::json(StatusCode::OK, &json!({ "tools": tools })))
}

/// `GET /v1/tools/{name}`
pub async fn show(call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let name: ToolName = call.named("tool")?;
    let tenant = call.caller()?.tenant.clone();
    shown(&call, &tenant, &name, StatusCode::OK).await
}

async fn shown(
    call: &Call,
    tenant: &TenantId,
    name: &ToolName,
    status: StatusCode,
) -> Result<Response, Problem> {
    let versions: Vec<InstalledTool> =
        call.app.gate.store().tools(tenant).await?.into_iter().filter(|tool| tool.name == *name).collect();
    if versions.is_empty() {
        return Err(Problem::not_found(&format!("tool {name}")));
    }
    let mut view = view::tool(&versions, Some((&call.app.secrets, call.app.gate.sends_mail())));
    if let (Some(current), Value::Object(members)) = (versions.iter().find(|tool| tool.current), &mut view) {
        members.insert("gets".into(), json!(gets(&current.inspection.imports)));
        members.insert("size".into(), json!(current.inspection.size));
    }
    Ok(super::json(status, &view))
}

/// `PUT /v1/tools/{name}/grant`; with `?dry_run=true` it only says what would
/// change.
pub async fn put_grant(mut call: Call) -> Result<Response, Problem> {
    let mut query = call.query()?;
    let dry_run = query.flag("dry_run")?;
    query.finish()?;
    let name: ToolName = call.named("tool")?;
    // Not text/plain: that is what a page of somebody else's can make a browser
    // send.
    if call.media_type().as_deref() != Some("application/toml") {
        return Err(unsupported("application/toml"));
    }
    let source = grant_text(call.bytes(MAX_GRANT_BYTES, GRANT_TIME).await?)?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    if dry_run {
        let change = gate.grant_change(&caller.tenant, &name, &source).await?;
        let voids: Vec<String> = change.voids.iter().map(ToString::to_string).collect();
        return Ok(super::json(
            StatusCode::OK,
            &json!({
                "changed": false, "same": change.same, "voids": voids, "changes": change.difference.changes,
                "asks_for_more": change.difference.asks_for_more(),
            }),
        ));
    }
    let (by, tool) = (caller.clone(), name.clone());
    detached(async move { gate.put_grant(&by.tenant, &by.principal, &tool, &source).await }).await??;
    shown(&call, &caller.tenant, &name, StatusCode::OK).await
}

/// `POST /v1/tools/{name}/pause`
pub async fn pause(call: Call) -> Result<Response, Problem> {
    set_paused(call, true).await
}

/// `POST /v1/tools/{name}/resume`
pub async fn resume(call: Call) -> Result<Response, Problem> {
    set_paused(call, false).await
}

async fn set_paused(mut call: Call, paused: bool) -> Result<Response, Problem> {
    call.no_query()?;
    call.no_body().await?;
    let name: ToolName = call.named("tool")?;
    let tenant = call.caller()?.tenant.clone();
    call.app.gate.set_paused(&tenant, &name, paused).await?;
    shown(&call, &tenant, &name, StatusCode::OK).await
}
