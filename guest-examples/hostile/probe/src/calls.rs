//! Modes that make whole calls: in order, again, instead, at once.

use crate::arguments::Arguments;
use crate::bindings::exports::countersign::tool::tool::Failure;
use crate::wire::{self, Reply, call, complete, fields, show, status};
use crate::{Outcome, surroundings, trap};
use serde_json::{Value, json};

/// Runs the mode, if it is one of these.
pub fn run(mode: &str, a: &Arguments) -> Option<Outcome> {
    Some(match mode {
        "script" => script(a),
        "reads-only" => reads_only(a),
        "read-then-write" => read_then_write(a),
        "writes" => writes(a, &a.list("bodies")),
        "second-write" => writes(a, &["first", "second"]),
        "same-write-retry" => same_write_retry(a),
        "fallback" => fallback(a),
        "try-later-after-read" => try_later_after_read(a),
        "write-then-try-later" => write_then(a, |reply| match status(reply) {
            200..=299 => Ok(show(reply)),
            _ => Err(Failure::TryLater(a.seconds())),
        }),
        "write-then-trap" => write_then(a, |_| trap()),
        "write-then-refuse" => write_then(a, |_| Err(Failure::Refused(a.words("after a write")))),
        "at-once" => at_once(a),
        "random-body" => random_body(a),
        _ => return None,
    })
}

/// One POST of `body` to `url`.
pub fn once(a: &Arguments) -> Outcome {
    write_then(a, |reply| Ok(show(reply)))
}

fn get(url: &str) -> Reply {
    call("GET", url, fields([]), b"")
}

fn post(url: &str, body: &[u8]) -> Reply {
    call("POST", url, fields([("content-type", b"text/plain".as_slice())]), body)
}

fn write_then(a: &Arguments, end: impl FnOnce(&Reply) -> Outcome) -> Outcome {
    end(&post(a.need("url")?, a.body()))
}

fn script(a: &Arguments) -> Outcome {
    let mut answers = Vec::new();
    for step in a.items("steps") {
        let method = step["method"].as_str().unwrap_or("POST");
        let url = step["url"].as_str().or(a.text("url")).unwrap_or("");
        let mut headers = Vec::new();
        if let Some(object) = step["headers"].as_object() {
            for (name, value) in object {
                headers.push((name.as_str(), value.as_str().unwrap_or("").as_bytes()));
            }
        }
        let body = match &step["body"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            json => json.to_string(),
        };
        answers.push(show(&call(method, url, fields(headers), body.as_bytes())));
    }
    Ok(json!({ "answers": answers }))
}

fn reads_only(a: &Arguments) -> Outcome {
    let url = a.need("url")?;
    let answers: Vec<Value> = (0..a.count_or("n", 1)).map(|_| show(&get(url))).collect();
    Ok(json!({ "answers": answers }))
}

fn read_then_write(a: &Arguments) -> Outcome {
    let url = a.need("url")?;
    let read = get(url);
    let body = read.as_ref().map_or(&[][..], |answer| &answer.body);
    let write = post(a.text("fallback_url").unwrap_or(url), body);
    Ok(json!({ "read": show(&read), "write": show(&write) }))
}

fn writes(a: &Arguments, bodies: &[&str]) -> Outcome {
    let url = a.need("url")?;
    let answers: Vec<Value> = bodies.iter().map(|body| show(&post(url, body.as_bytes()))).collect();
    Ok(json!({ "answers": answers }))
}

fn same_write_retry(a: &Arguments) -> Outcome {
    let url = a.need("url")?;
    let mut seen = Vec::new();
    for _ in 0..=a.count_or("n", 1) {
        let reply = post(url, a.body());
        seen.push(status(&reply));
        if !matches!(status(&reply), 429 | 500..=599) {
            break;
        }
    }
    Ok(json!({ "status": seen.last(), "statuses": seen }))
}

fn fallback(a: &Arguments) -> Outcome {
    let first = post(a.need("url")?, a.body());
    if (200..400).contains(&status(&first)) {
        return Ok(json!({ "first": show(&first), "fell_back": false }));
    }
    let second = post(a.need("fallback_url")?, a.body());
    Ok(json!({ "first": show(&first), "fell_back": true, "second": show(&second) }))
}

fn try_later_after_read(a: &Arguments) -> Outcome {
    let url = a.need("url")?;
    let read = get(url);
    let text =
        read.as_ref().map_or_else(String::clone, |answer| String::from_utf8_lossy(&answer.body).into_owned());
    if text.contains("wait") {
        return Err(Failure::TryLater(a.seconds()));
    }
    let write = post(a.text("fallback_url").unwrap_or(url), text.as_bytes());
    Ok(json!({ "read": show(&read), "write": show(&write) }))
}

fn at_once(a: &Arguments) -> Outcome {
    let url = a.need("url")?;
    let started: Vec<_> = a
        .list("bodies")
        .into_iter()
        .map(|body| Ok(complete(wire::open("POST", url, fields([]))?, body.as_bytes())))
        .collect();
    let answers: Vec<Value> =
        started.into_iter().map(|future| show(&future.and_then(|future| wire::wait(&future)))).collect();
    Ok(json!({ "answers": answers }))
}

fn random_body(a: &Arguments) -> Outcome {
    let sent = json!({ "uuid": surroundings::uuid(), "clock": surroundings::now() });
    let reply = post(a.need("url")?, sent.to_string().as_bytes());
    Ok(json!({ "sent": sent, "answer": show(&reply) }))
}
