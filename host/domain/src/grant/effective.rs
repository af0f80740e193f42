//! What is hashed of a grant.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Approval, EmailGrant, HttpRoute, JsonPointer, Limits, Planning};

/// All that a grant says, in the form that is hashed. A field added here changes
/// every digest: raise the tag with it.
pub(super) fn effective(
    approval: &Approval,
    show: &[JsonPointer],
    planning: Planning,
    limits: &Limits,
    http: &[HttpRoute],
    email: Option<&EmailGrant>,
) -> Value {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let texts = |items: &mut dyn Iterator<Item = String>| items.map(Value::from).collect::<Vec<_>>();
    json!({
        "tag": "countersign/grant/1",
        "approval": {
            "required": approval.required,
            "expires_after_ms": ms(approval.expires_after),
            "execution_deadline_ms": ms(approval.execution_deadline),
        },
        "show": texts(&mut show.iter().map(|pointer| pointer.to_string())),
        "planning": planning,
        "limits": {
            "memory": limits.memory,
            "cpu_ms": ms(limits.cpu),
            "wall_ms": ms(limits.wall),
            "send_ms": ms(limits.send),
            "effects": limits.effects,
            "arguments": limits.arguments,
            "result": limits.result,
            "log": limits.log,
        },
        "http": http.iter().map(|route| with_authority(route, json!({
            "host": route.host.to_string(),
            "port": route.port,
            "scheme": route.scheme,
            "methods": route.methods,
            "path": route.path.as_str(),
            "recovery": route.recovery,
            "idempotency_header": route.idempotency_header,
            "key_format": route.key_format,
            "key_retention_ms": ms(route.key_retention),
            "in_flight_status": route.in_flight_status,
            "replay_header": route.replay_header,
            "on_5xx": route.on_5xx,
            "unplanned": route.unplanned,
            "reference": route.reference.as_ref().map(JsonPointer::as_str),
            "significant_headers": route.significant_headers,
            "request_body": route.request_body,
            "response_body": route.response_body,
            "allow_private": route.allow_private,
            "headers": route.headers,
        }))).collect::<Vec<_>>(),
        "email": email.map(|email| json!({
            "from": email.from.to_string(),
            "reply_to": email.reply_to.as_ref().map(|address| address.to_string()),
            "recipients": texts(&mut email.recipients.iter().map(|pattern| pattern.to_string())),
            "size": email.size,
            "unplanned": email.unplanned,
            "recovery": email.recovery,
        })),
    })
}

/// There only where a route has one: grants that were digested before there were
/// any mean the same as ever.
fn with_authority(route: &HttpRoute, mut json: Value) -> Value {
    if let (Some(ca), Some(members)) = (&route.ca, json.as_object_mut()) {
        members.insert("ca".to_owned(), Value::from(ca.as_str()));
    }
    json
}
