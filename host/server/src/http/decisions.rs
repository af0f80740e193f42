//! What people decide about an action: approve, decline, cancel, supersede, and
//! what came of an effect that nobody knows about.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use countersign_domain::code;
use countersign_domain::effect::{Answer, Headers};
use countersign_domain::id::{ActionId, Fingerprint, Ordinal, SendNumber};
use countersign_domain::key::ActionKey;
use countersign_domain::role::Verb;
use countersign_gate::decide::MAX_WORDS;
use countersign_gate::resolve::{Resolution, Word};
use http::{HeaderName, StatusCode, header};
use serde_json::Value;

use super::actions::{IDEMPOTENCY_KEY, one};
use super::call::Call;
use super::detached;
use super::fields::Fields;
use super::problem::Problem;

/// `POST /v1/actions/{id}/approve`. The body can hold a note and nothing else:
/// what is approved is what stands in the row, and never what is sent here.
pub async fn approve(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let saw = if_match(&call)?;
    let mut body = call.object_or_nothing().await?;
    let note = body.text("note")?;
    if note.as_ref().is_some_and(|note| note.len() > MAX_WORDS) {
        return Err(body.wrong("note", format!("a note is at most {MAX_WORDS} bytes of text")));
    }
    body.finish()?;
    let id: ActionId = call.named("action")?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let approved = async move { gate.approve(&caller.tenant, id, &caller.principal, saw, note).await };
    let action = detached(approved).await??;
    Ok(call.app.action(StatusCode::OK, &action, false).await)
}

/// The fingerprint of what the approver was shown.
fn if_match(call: &Call) -> Result<Option<Fingerprint>, Problem> {
    let Some(value) = call.header(&header::IF_MATCH)? else { return Ok(None) };
    let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(&value);
    let wrong = || Problem::new(code::INVALID_REQUEST, "If-Match holds one fingerprint in double quotes");
    bare.parse().map(Some).map_err(|_| wrong())
}

/// `POST /v1/actions/{id}/decline`
pub async fn decline(mut call: Call) -> Result<Response, Problem> {
    let reason = reason(&mut call).await?;
    let id: ActionId = call.named("action")?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let declined = async move { gate.decline(&caller.tenant, id, &caller.principal, &reason).await };
    let action = detached(declined).await??;
    Ok(call.app.action(StatusCode::OK, &action, false).await)
}

/// `POST /v1/actions/{id}/cancel`
pub async fn cancel(mut call: Call) -> Result<Response, Problem> {
    let reason = reason(&mut call).await?;
    let id: ActionId = call.named("action")?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let cancelled = async move { gate.cancel(&caller.tenant, id, &caller.principal, &reason).await };
    let action = detached(cancelled).await??;
    Ok(call.app.action(StatusCode::OK, &action, false).await)
}

async fn reason(call: &mut Call) -> Result<String, Problem> {
    call.no_query()?;
    let mut body = call.object().await?;
    let reason = body.needed_text("reason")?;
    if reason.trim().is_empty() || reason.len() > MAX_WORDS {
        return Err(body.wrong("reason", format!("a reason is 1 to {MAX_WORDS} bytes of text")));
    }
    body.finish()?;
    Ok(reason)
}

/// `POST /v1/actions/{id}/supersede`
pub async fn supersede(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let key = call.header(&IDEMPOTENCY_KEY)?;
    let mut body = call.object_or_nothing().await?;
    let arguments = body.json("arguments")?;
    body.finish()?;
    let key = key.map(|key| ActionKey::from_parts(Some(key), None, None)).transpose();
    let key = key.map_err(|error| Problem::new(code::INVALID_REQUEST, error.to_string()))?;
    let old = one(&call).await?;
    let caller = call.caller()?.clone();
    // The new action is in the name of the old one's actor.
    if old.actor != caller.principal && !caller.may(Verb::ActFor) {
        return Err(Problem::not_permitted(format!(
            "this action is in the name of {}; to propose in their name needs the right \"{}\"",
            old.actor,
            Verb::ActFor
        )));
    }
    let gate = call.app.gate.clone();
    let superseded =
        async move { gate.supersede(&caller.tenant, old.id, &caller.principal, arguments, key).await };
    let proposed = detached(superseded).await??;
    let status = if proposed.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok(call.app.action(status, &proposed.action, proposed.replayed).await)
}

/// `POST /v1/actions/{id}/reconcile`: asks the provider now, through the tool's
/// own lookup. The answer is the action, and what was found about each effect.
pub async fn reconcile(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    call.no_body().await?;
    let id: ActionId = call.named("action")?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let asked = async move { gate.reconcile(&caller.tenant, id, &caller.principal).await };
    let reconciled = detached(asked).await??;
    Ok(call.app.reconciled(&reconciled).await)
}

/// `POST /v1/actions/{id}/resolve`
pub async fn resolve(mut call: Call) -> Result<Response, Problem> {
    call.no_query()?;
    let mut body = call.object().await?;
    let ordinal = Ordinal(body.needed_number("ordinal")?);
    let send = body.number("send")?.map(SendNumber);
    let outcome = body.needed_text("outcome")?;
    let evidence = body.needed_text("evidence")?;
    let answer = body.object("answer")?;
    let word = match (outcome.as_str(), answer) {
        ("happened", Some(answer)) => Word::Happened(read_answer(answer)?),
        ("happened", None) => Word::Sent,
        ("did_not_happen", None) => Word::DidNotHappen,
        ("give_up", None) => Word::GiveUp,
        ("did_not_happen" | "give_up", Some(_)) => {
            return Err(body.wrong("answer", "an answer goes with \"happened\" only"));
        }
        _ => return Err(body.wrong("outcome", "\"outcome\" is happened, did_not_happen or give_up")),
    };
    body.finish()?;
    let id: ActionId = call.named("action")?;
    let (gate, caller) = (call.app.gate.clone(), call.caller()?.clone());
    let resolution = Resolution { ordinal, send, word, evidence };
    let resolved = async move { gate.resolve(&caller.tenant, id, &caller.principal, resolution).await };
    let action = detached(resolved).await??;
    Ok(call.app.action(StatusCode::OK, &action, false).await)
}

/// An answer in somebody's words: `{status, headers?, body?, body_encoding?}`,
/// the body base64 unless it says `utf-8`, headers as pairs or as an object.
fn read_answer(mut fields: Fields) -> Result<Answer, Problem> {
    let status = fields.needed_number("status")?;
    let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
    let status = status.ok_or_else(|| fields.wrong("status", "an HTTP status is 200 to 599"))?;
    let headers = match fields.value("headers") {
        None => Vec::new(),
        Some(headers) => {
            let wrong = || fields.wrong("headers", "headers are [[\"name\", \"value\"], …], or an object");
            read_headers(headers).ok_or_else(wrong)?
        }
    };
    let encoding = fields.text("body_encoding")?;
    let text = fields.text("body")?.unwrap_or_default();
    let body = match encoding.as_deref() {
        None | Some("base64") => STANDARD
            .decode(&text)
            .map_err(|_| fields.wrong("body", "the body is base64, unless body_encoding is \"utf-8\""))?,
        Some("utf-8") => text.into_bytes(),
        Some(_) => return Err(fields.wrong("body_encoding", "body_encoding is base64 or utf-8")),
    };
    fields.finish()?;
    Ok(Answer { status, headers, body })
}

fn read_headers(headers: Value) -> Option<Headers> {
    let pairs: Vec<(String, String)> = match headers {
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| Some((name, text(value)?))).collect::<Option<_>>()?
        }
        Value::Array(pairs) => pairs
            .into_iter()
            .map(|pair| match pair {
                Value::Array(pair) => {
                    let [name, value]: [Value; 2] = pair.try_into().ok()?;
                    Some((text(name)?, text(value)?))
                }
                _ => None,
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    let fits = |(name, value): (String, String)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        // Each character stands for one byte.
        let value_fits =
            value.chars().all(|c| c == '\t' || (c >= ' ' && c != '\u{7f}' && u32::from(c) < 256));
        value_fits.then(|| (name.as_str().to_owned(), value))
    };
    pairs.into_iter().map(fits).collect()
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Result<Answer, Problem> {
        read_answer(Fields::read(text.as_bytes(), 4096)?)
    }

    #[test]
    fn a_persons_answer_is_read_as_it_will_be_replayed() {
        let expected = Answer {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            body: b"{}".to_vec(),
        };
        for text in [
            r#"{"status":200,"headers":[["Content-Type","application/json"]],"body":"e30="}"#,
            r#"{"status":200,"headers":{"content-type":"application/json"},"body":"{}","body_encoding":"utf-8"}"#,
        ] {
            assert_eq!(answer(text).expect(text), expected);
        }
        for bad in [
            r#"{}"#,
            r#"{"status":99}"#,
            r#"{"status":200,"body":"{}"}"#,
            r#"{"status":200,"headers":[["a b","c"]]}"#,
            r#"{"status":200,"headers":[["a","c\nd"]]}"#,
            r#"{"status":200,"headers":[["a","c","d"]]}"#,
            r#"{"status":200,"trailer":1}"#,
        ] {
            assert!(answer(bad).is_err(), "{bad}");
        }
    }
}
