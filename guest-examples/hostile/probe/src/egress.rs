//! Modes that try to reach what they may not, and modes that leave a request half
//! made.

use crate::arguments::Arguments;
use crate::bindings::wasi::http::types::{Fields, HeaderError, OutgoingBody};
use crate::wire::{call, complete, fields, open, show, wait, write};
use crate::{Outcome, limits, trap};
use serde_json::{Map, Value, json};

/// Runs the mode, if it is one of these.
pub fn run(mode: &str, a: &Arguments) -> Option<Outcome> {
    Some(match mode {
        "forbidden-host" => forbidden_host(a),
        "forbidden-headers" => forbidden_headers(a),
        "header-bomb" => Ok(header_bomb(a)),
        "trailers" => trailers(a),
        "truncated-body" | "wrong-length" => wrong_length(a, mode == "truncated-body"),
        "dont-finish" | "hold-body" => unfinished(a, mode == "hold-body"),
        "drop-future" => in_flight(a, || Ok(json!({ "mode": "drop-future" }))),
        "trap-in-flight" => in_flight(a, || trap()),
        "spin-in-flight" => in_flight(a, || limits::spin()),
        _ => return None,
    })
}

fn forbidden_host(a: &Arguments) -> Outcome {
    let method = a.text("method").unwrap_or("POST");
    Ok(show(&call(method, a.need("url")?, fields([]), a.body())))
}

fn forbidden_headers(a: &Arguments) -> Outcome {
    let value = a.text("text").unwrap_or("set-by-the-tool");
    let mut report = Map::new();
    let sent = Fields::new();
    for name in a.list("headers") {
        let value = [value.as_bytes().to_vec()];
        let set = Fields::new().set(name, &value);
        let append = sent.append(name, &value[0]);
        let from_list = Fields::from_list(&[(name.to_owned(), value[0].clone())]).map(|_| ());
        let clone = Fields::new().clone().append(name, &value[0]);
        report.insert(
            name.to_owned(),
            json!({
                "set": word(set), "append": word(append),
                "from_list": word(from_list), "clone": word(clone),
            }),
        );
    }
    let kept: Vec<String> = sent.entries().into_iter().map(|(name, _)| name).collect();
    let reply = call("POST", a.need("url")?, sent, a.body());
    Ok(json!({ "headers": report, "kept": kept, "answer": show(&reply) }))
}

fn word(result: Result<(), HeaderError>) -> String {
    match result {
        Ok(()) => "accepted".to_owned(),
        Err(HeaderError::Forbidden) => "forbidden".to_owned(),
        Err(HeaderError::InvalidSyntax) => "invalid-syntax".to_owned(),
        Err(other) => format!("{other:?}"),
    }
}

fn header_bomb(a: &Arguments) -> Value {
    let list: Vec<(String, Vec<u8>)> = match a.count("size") {
        Ok(size) => vec![("x-bomb".to_owned(), vec![b'x'; size])],
        Err(_) => (0..a.count_or("n", 32_769)).map(|i| (format!("x-bomb-{i}"), b"x".to_vec())).collect(),
    };
    let made = Fields::from_list(&list);
    json!({ "entries": list.len(), "from_list": word(made.map(|_| ())) })
}

fn trailers(a: &Arguments) -> Outcome {
    let trailers = fields(a.list("headers").into_iter().map(|name| (name, &b"trailer"[..])));
    let open = match open("POST", a.need("url")?, fields([])) {
        Ok(open) => open,
        Err(error) => return Ok(json!({ "error": error })),
    };
    let _ = write(&open.body, a.body());
    let finish = OutgoingBody::finish(open.body, Some(trailers));
    let finish = finish.map_err(|code| format!("{code:?}"));
    Ok(json!({ "finish": finish.err(), "answer": show(&wait(&open.future)) }))
}

/// States a length, then sends another: half of it before a trap, or `body`.
fn wrong_length(a: &Arguments, truncate: bool) -> Outcome {
    let length = if truncate { a.count_or("n", 8192) } else { a.count("n")? };
    let stated = length.to_string();
    let headers = Fields::new();
    let accepted = word(headers.append("content-length", stated.as_bytes()));
    let open = match open("POST", a.need("url")?, headers) {
        Ok(open) => open,
        Err(error) => return Ok(json!({ "content_length": accepted, "error": error })),
    };
    if truncate {
        let _ = write(&open.body, &vec![b'x'; length / 2]);
        trap();
    }
    let written = write(&open.body, a.body()).map_err(|e| format!("{e:?}"));
    let finished = OutgoingBody::finish(open.body, None).map_err(|e| format!("{e:?}"));
    Ok(json!({
        "content_length": accepted, "write": written.err(), "finish": finished.err(),
        "answer": show(&wait(&open.future)),
    }))
}

/// Never finishes the body: drops it, or keeps it, and waits for the answer.
fn unfinished(a: &Arguments, hold: bool) -> Outcome {
    let open = match open("POST", a.need("url")?, fields([])) {
        Ok(open) => open,
        Err(error) => return Ok(json!({ "error": error })),
    };
    let _ = write(&open.body, a.body());
    let held = hold.then_some(open.body);
    let reply = wait(&open.future);
    drop(held);
    Ok(show(&reply))
}

/// Sends a whole request and drops its future unread, then ends as told.
fn in_flight(a: &Arguments, end: impl FnOnce() -> Outcome) -> Outcome {
    match open("POST", a.need("url")?, fields([])) {
        Ok(open) => drop(complete(open, a.body())),
        Err(error) => return Ok(json!({ "error": error })),
    }
    end()
}
