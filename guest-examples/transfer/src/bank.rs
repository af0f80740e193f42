//! How this tool talks to the bank: JSON in, JSON with an `id` out, errors as
//! `{error, message}`, and a lookup by key. It decides nothing about the order of calls.

use crate::bindings::exports::countersign::tool::reconciler::{Header, RecordedResponse, Verdict};
use crate::bindings::exports::countersign::tool::tool::Failure;
use guest_http::{Answer, Problem, form, get, percent_encode, post};
use serde_json::Value;

/// Where the bank answers.
pub const HOST: &str = "api.bank.example";

pub struct Bank {
    base: String,
}

impl Bank {
    /// At `base`, or at the real one.
    pub fn at(base: Option<&str>) -> Bank {
        let base = match base {
            Some(base) => base.trim_end_matches('/').to_owned(),
            None => format!("https://{HOST}"),
        };
        Bank { base }
    }

    /// A read: the id of a quote for this transfer.
    pub fn quote(&self, from: &str, to: &str, amount: u64, currency: &str) -> Result<String, Failure> {
        let amount = amount.to_string();
        let query = form([("from", from), ("to", to), ("amount", &amount), ("currency", currency)]);
        let answer = get(&format!("{}/quote?{query}", self.base)).map_err(no_answer)?;
        text("/quote", &answer, "quote")
    }

    /// A write that makes something: posts `body`, gives the id of what was made.
    pub fn create(&self, path: &str, body: &Value) -> Result<String, Failure> {
        text(path, &self.post(path, body)?, "id")
    }

    /// A write that makes nothing which has an id.
    pub fn tell(&self, path: &str, body: &Value) -> Result<(), Failure> {
        success(path, &self.post(path, body)?).map(|_| ())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let url = format!("{}{path}", self.base);
        post(&url, "application/json", &[], body.to_string().as_bytes()).map_err(no_answer)
    }

    /// What became of the write with this key. The bank gives the answer that it
    /// gave then, or a 404 in its own words. A 404 in anybody else's (a proxy, a
    /// wrong path) says nothing.
    pub fn lookup(&self, key: &str) -> Verdict {
        let url = format!("{}/lookup?key={}", self.base, percent_encode(key));
        match get(&url) {
            Ok(answer) if text("/lookup", &answer, "id").is_ok() => Verdict::Done(stored(answer)),
            Ok(answer) if answer.status == 404 && is_not_found(&answer.body) => Verdict::NotDone,
            _ => Verdict::Unknown,
        }
    }
}

/// The answer then. Its headers are about the lookup; only the type is kept.
fn stored(answer: Answer) -> RecordedResponse {
    let headers = answer.headers.into_iter().filter(|(name, _)| name == "content-type");
    RecordedResponse {
        status: answer.status,
        headers: headers.map(|(name, value)| Header { name, value }).collect(),
        body: answer.body,
    }
}

fn is_not_found(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|body| body["error"] == "not_found")
}

/// A member of a successful answer that is a text, else why there is none.
fn text(path: &str, answer: &Answer, member: &str) -> Result<String, Failure> {
    match success(path, answer)?[member].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Failure::Broken(format!("the bank's answer to {path} has no `{member}`"))),
    }
}

/// The body of a successful answer, else why it is none.
fn success(path: &str, answer: &Answer) -> Result<Value, Failure> {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match answer.status {
        200..=299 => Ok(body),
        408 | 425 | 429 | 500..=599 => Err(Failure::TryLater(answer.retry_after())),
        status @ 400..=499 => {
            let said = body["message"].as_str().unwrap_or("no reason given");
            Err(Failure::Refused(format!("the bank answered {path} with {status}: {said}")))
        }
        status => Err(Failure::Broken(format!("the bank answered {path} with {status}"))),
    }
}

fn no_answer(problem: Problem) -> Failure {
    match problem {
        Problem::Network(_) => Failure::TryLater(None),
        Problem::Url(_) => Failure::InvalidArguments(format!("`api_base`: {problem}")),
        Problem::Denied(_) | Problem::Header(_) => Failure::Refused(problem.to_string()),
    }
}
