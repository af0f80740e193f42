//! The provider's own controls, under `/_`: faults, waiting, the clock, the log.
//!
//! None of these requests is logged, counted or subject to a fault. There is no protection: this
//! is a provider for tests on one machine and listens where it is told to.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::connection::{BodyEnd, read_body};
use super::log::locked;
use super::message::Answer;
use super::serve::{Progress, Provider};
use super::wire::{Change, Mode, Rule, path_matches};
use super::{FORGETS_RETENTION_MS, bank, stripe};

/// How long `waiting` waits when not told.
const WAIT_MS: u64 = 30_000;

/// Answers a control request.
pub async fn handle(provider: &Provider, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    let Some(query) = stripe::fields(query.as_bytes()) else {
        return bank::error(400, "invalid_query", "the query is not valid UTF-8");
    };
    let query: BTreeMap<String, String> = query.into_iter().collect();
    match (head.method.as_str(), head.uri.path()) {
        ("GET", "/_control") => Answer::json(200, &state(provider)),
        ("POST", "/_control") => with_json(body, |value| change(provider, value)).await,
        ("POST", "/_control/clock") => with_json(body, |value| clock(provider, value)).await,
        ("POST", "/_control/release") => release(provider),
        ("GET", "/_control/waiting") => {
            wait(provider, &query).await.unwrap_or_else(|message| bank::error(400, "invalid_query", &message))
        }
        ("GET", "/_log") => Answer::json(200, &json!(provider.log.lines())),
        ("GET", "/_count") => Answer::json(200, &json!({ "count": count(provider, &query) })),
        (method, path) => {
            let message = format!("no control {method} {path}");
            bank::error(404, "not_found", &message)
        }
    }
}

async fn with_json(body: Incoming, act: impl FnOnce(Value) -> Result<Value, String>) -> Answer {
    let (bytes, BodyEnd::Whole) = read_body(body).await else {
        return bank::error(413, "too_large", "the body is too large or was cut short");
    };
    let result = serde_json::from_slice(&bytes)
        .map_err(|error| format!("the body is not JSON: {error}"))
        .and_then(act);
    match result {
        Ok(value) => Answer::json(200, &value),
        Err(message) => bank::error(400, "invalid_control", &message),
    }
}

fn state(provider: &Provider) -> Value {
    let rules = locked(&provider.faults).show();
    let clock_ms = provider.clock_ms();
    let settings = locked(&provider.settings);
    json!({
        "rules": rules,
        "mode": settings.mode,
        "bank_mode": settings.bank_mode.unwrap_or(settings.mode),
        "key_retention_ms": settings.key_retention_ms,
        "clock_advanced_ms": settings.clock_advanced_ms,
        "clock_ms": clock_ms,
        "keys": provider.keys.len(),
        "held": provider.progress.borrow().held,
    })
}

/// A rule, a list of rules, or a change. All of it is understood before any of it is done.
fn change(provider: &Provider, value: Value) -> Result<Value, String> {
    let rules = |rules| Change { rules, ..Change::default() };
    let change: Change = match &value {
        Value::Array(_) => rules(serde_json::from_value(value).map_err(|e| e.to_string())?),
        Value::Object(map) if map.contains_key("fault") => {
            let rule: Rule = serde_json::from_value(value).map_err(|e| e.to_string())?;
            rules(vec![rule])
        }
        _ => serde_json::from_value(value).map_err(|e| e.to_string())?,
    };
    let added: Vec<u64> = {
        let mut faults = locked(&provider.faults);
        if change.clear {
            faults.clear();
        }
        change.rules.into_iter().map(|rule| faults.add(rule)).collect()
    };
    {
        let mut settings = locked(&provider.settings);
        if let Some(mode) = change.mode {
            settings.mode = mode;
        }
        settings.bank_mode = change.bank_mode.or(settings.bank_mode);
        let asked = [change.mode, change.bank_mode];
        let forgets = asked.contains(&Some(Mode::Forgets)).then_some(FORGETS_RETENTION_MS);
        if let Some(retention) = change.key_retention_ms.or(forgets) {
            settings.key_retention_ms = retention;
        }
    }
    let mut answer = state(provider);
    if let Some(map) = answer.as_object_mut() {
        map.insert("added".into(), json!(added));
    }
    Ok(answer)
}

fn clock(provider: &Provider, value: Value) -> Result<Value, String> {
    let map: Map<String, Value> = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let by = match (map.get("advance_ms").and_then(Value::as_u64), map.len()) {
        (Some(by), 1) => by,
        _ => return Err("wanted: {\"advance_ms\": milliseconds from 0}".into()),
    };
    {
        let mut settings = locked(&provider.settings);
        settings.clock_advanced_ms = settings.clock_advanced_ms.saturating_add(by);
    }
    Ok(json!({ "clock_ms": provider.clock_ms() }))
}

fn release(provider: &Provider) -> Answer {
    let held = provider.progress.borrow().held;
    provider.releases.send_modify(|epoch| *epoch += 1);
    Answer::json(200, &json!({ "released": held }))
}

/// Answers when enough requests have come far enough, or 408 with how many have.
async fn wait(provider: &Provider, query: &BTreeMap<String, String>) -> Result<Answer, String> {
    let number = |name: &str, usual: u64| match query.get(name) {
        None => Ok(usual),
        Some(text) => text.parse::<u64>().map_err(|_| format!("`{name}` must be a number from 0")),
    };
    let count = number("count", 1)?;
    let time = Duration::from_millis(number("timeout_ms", WAIT_MS)?);
    let pattern = query.get("path").map_or("*", String::as_str);
    let what = query.get("what").map_or("reached", String::as_str);
    if !["reached", "acted", "requests", "held"].contains(&what) {
        return Err("`what` must be one of reached, acted, requests, held".into());
    }
    let so_far = |progress: &Progress| {
        let by_path = match what {
            "held" => return progress.held,
            "acted" => &progress.acted,
            "requests" => &progress.requests,
            _ => &progress.reached,
        };
        by_path.iter().filter(|(path, _)| path_matches(pattern, path)).map(|(_, count)| *count).sum()
    };
    let mut progress = provider.progress.subscribe();
    let waited = tokio::time::timeout(time, progress.wait_for(|now| so_far(now) >= count)).await;
    let enough = matches!(waited, Ok(Ok(_)));
    let seen: u64 = so_far(&provider.progress.borrow());
    let status = if enough { 200 } else { 408 };
    Ok(Answer::json(status, &json!({ "count": seen })))
}

fn count(provider: &Provider, query: &BTreeMap<String, String>) -> usize {
    let is = |name: &str, value: Option<&str>| match query.get(name) {
        None => true,
        Some(wanted) => Some(wanted.as_str()) == value,
    };
    provider.log.count(|line| {
        is("event", Some(&line.event))
            && is("key", line.key.as_deref())
            && is("kind", line.kind.as_deref())
            && is("outcome", line.outcome.as_deref())
            && query.get("path").is_none_or(|pattern| path_matches(pattern, &line.path))
    })
}
