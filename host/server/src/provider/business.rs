//! What the provider does when it acts: which path means what, and what it has done so far.
//!
//! Knows no socket, no clock, no fault: a request in, an outcome out.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::message::{Answer, Received};
use super::{bank, stripe};

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `POST /v1/refunds`
    Refund,
    /// `GET /v1/refunds/{id}`
    RefundById(String),
    /// One of the bank's four writes.
    Bank(bank::Write),
    /// `GET /quote`
    Quote,
    /// `GET /lookup?key=`
    Lookup,
    /// `GET` or `POST /echo`
    Echo,
    /// Anything below `/any/`: every request acts, whatever its key
    Any,
    /// Anything below `/keyed/`: the same under an idempotency key
    Keyed,
    /// The path exists, the method is not one of these.
    WrongMethod(&'static str),
    /// No such path.
    Unknown,
}

impl Route {
    /// What a method and a path mean.
    pub fn of(method: &str, path: &str) -> Self {
        let only = |wanted: &'static str, route: Self| match method == wanted {
            true => route,
            false => Self::WrongMethod(wanted),
        };
        if let Some(write) = bank::Write::at(path) {
            return only("POST", Self::Bank(write));
        }
        if let Some(id) = path.strip_prefix("/v1/refunds/") {
            return only("GET", Self::RefundById(id.to_owned()));
        }
        match path {
            "/v1/refunds" => only("POST", Self::Refund),
            "/quote" => only("GET", Self::Quote),
            "/lookup" => only("GET", Self::Lookup),
            "/echo" if method == "GET" || method == "POST" => Self::Echo,
            "/echo" => Self::WrongMethod("GET, POST"),
            _ if path.starts_with("/any/") => Self::Any,
            _ if path.starts_with("/keyed/") => Self::Keyed,
            _ => Self::Unknown,
        }
    }
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the caller is told, unless a fault intervenes.
    pub answer: Answer,
    /// The business effect, if there was one.
    pub effect: Option<Effect>,
    /// Whether the answer is kept under the request's key.
    pub keep: bool,
}

/// One thing done.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The provider's own id for it.
    pub id: String,
    /// What it is.
    pub kind: &'static str,
}

impl Outcome {
    /// Something was done.
    pub fn acted(answer: Answer, id: String, kind: &'static str) -> Self {
        Self { answer, effect: Some(Effect { id, kind }), keep: true }
    }

    /// Nothing was done: a read, or bad input.
    pub fn refused(answer: Answer) -> Self {
        Self { answer, effect: None, keep: false }
    }
}

/// Numbers for new effects, and what can be read back.
#[derive(Default)]
pub struct Ids {
    issued: u64,
    /// By id.
    pub refunds: HashMap<String, Value>,
    acts_by_path: BTreeMap<String, u64>,
    /// Per key, every answer of an effect under it, the first one first.
    by_key: HashMap<String, Vec<(String, Answer)>>,
}

impl Ids {
    /// Starts counting after what an earlier run's log shows.
    pub fn after(issued: u64) -> Self {
        Self { issued, ..Self::default() }
    }

    /// A new id: the prefix and a number that no other effect has.
    pub fn next(&mut self, prefix: &str) -> String {
        self.issued += 1;
        format!("{prefix}_{:08}", self.issued)
    }

    /// Remembers what was done under a key, for lookup. Not subject to any retention: this is
    /// the provider's book, not its cache.
    pub fn remember(&mut self, key: &str, path: &str, answer: &Answer) {
        self.by_key.entry(key.to_owned()).or_default().push((path.to_owned(), answer.clone()));
    }

    /// Does what the route says.
    pub fn perform(&mut self, route: &Route, request: &Received) -> Outcome {
        match route {
            Route::Refund => stripe::refund(request, self),
            Route::RefundById(id) => stripe::retrieve(id, self),
            Route::Bank(write) => bank::write(*write, request, self),
            Route::Quote => bank::quote(request),
            Route::Lookup => self.lookup(request),
            Route::Echo => echo(request),
            Route::Any | Route::Keyed => self.any(request),
            Route::WrongMethod(allowed) => {
                let message = format!("{} is not allowed here", request.method);
                Outcome::refused(bank::error(405, "method_not_allowed", &message).with("Allow", allowed))
            }
            Route::Unknown => {
                let message = format!("nothing at {}", request.path);
                Outcome::refused(bank::error(404, "not_found", &message))
            }
        }
    }

    /// The stored answer itself, as it was first given; two headers say where it is from.
    fn lookup(&self, request: &Received) -> Outcome {
        let query = request.query.as_deref().unwrap_or_default();
        let asked = stripe::fields(query.as_bytes()).unwrap_or_default();
        let Some((_, key)) = asked.iter().find(|(name, _)| name == "key") else {
            let message = "`key` is missing from the query";
            return Outcome::refused(bank::error(400, "missing_parameter", message));
        };
        Outcome::refused(
            match self.by_key.get(key).and_then(|all| all.first().map(|first| (all.len(), first))) {
                Some((count, (path, answer))) => {
                    answer.clone().with("Lookup-Path", path).with("Lookup-Count", &count.to_string())
                }
                None => bank::error(404, "not_found", "nothing was done under this key"),
            },
        )
    }

    fn any(&mut self, request: &Received) -> Outcome {
        let count = self.acts_by_path.entry(request.path.clone()).or_default();
        *count += 1;
        let answer = Answer::json(200, &json!({ "n": *count }));
        let id = self.next("any");
        Outcome::acted(answer, id, "any")
    }
}

/// Everything received, values of secrets included: what a test of redaction looks for.
fn echo(request: &Received) -> Outcome {
    let mut headers = Map::new();
    let mut list = Vec::new();
    for (name, value) in &request.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        list.push(json!([name.as_str(), value]));
        headers.insert(name.to_string(), value.into());
    }
    let body = match std::str::from_utf8(&request.body) {
        Ok(text) => json!({ "body": text }),
        Err(_) => json!({ "body": null, "body_hex": hex::encode(&request.body) }),
    };
    let mut answer = json!({
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": headers,
        "header_list": list,
    });
    if let (Some(into), Value::Object(body)) = (answer.as_object_mut(), body) {
        into.extend(body);
    }
    Outcome::refused(Answer::json(200, &answer))
}
