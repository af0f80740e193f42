//! Asking a tool what became of a send: the recorded effect in, a verdict out.

use countersign_domain::effect::{Answer, EffectRecord, Headers};

use crate::bindings::reconciling::exports::countersign::tool::reconciler as wit;

/// What a tool says about an effect whose outcome is unknown. It is evidence,
/// not a decision: whether the provider was really asked is in the effects that
/// the call made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It happened, and this would have been the answer.
    Done(Answer),
    /// It did not happen.
    NotDone,
    /// Nobody knows yet.
    Unknown,
}

/// How a reconciliation ended, and what the tool printed meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcileReport {
    /// The verdict, or how the call ended without one.
    pub verdict: Result<Verdict, countersign_domain::run::Ended>,
    /// Bounded, as in a run's report.
    pub log: Vec<String>,
}

/// The effect as the tool gets it.
pub(crate) fn recorded(effect: &EffectRecord) -> wit::RecordedEffect {
    wit::RecordedEffect {
        ordinal: effect.ordinal.0,
        provider_key: effect.provider_key.clone().unwrap_or_default(),
        method: effect.request.method.clone(),
        url: effect.request.url.clone(),
        headers: effect
            .request
            .headers
            .iter()
            .map(|(name, value)| wit::Header { name: name.clone(), value: bytes(value) })
            .collect(),
        body: effect.request.body.clone(),
    }
}

/// The tool's verdict. A made-up answer must be one that could have come over
/// HTTP, or it is no answer.
pub(crate) fn verdict(said: wit::Verdict) -> Verdict {
    match said {
        wit::Verdict::Done(response) => match answer(response) {
            Some(answer) => Verdict::Done(answer),
            None => Verdict::Unknown,
        },
        wit::Verdict::NotDone => Verdict::NotDone,
        wit::Verdict::Unknown => Verdict::Unknown,
    }
}

fn answer(said: wit::RecordedResponse) -> Option<Answer> {
    plausible(Answer {
        status: said.status,
        headers: said
            .headers
            .into_iter()
            .map(|header| (header.name, header.value.into_iter().map(char::from).collect()))
            .collect(),
        body: said.body,
    })
}

/// An answer that could have come over HTTP, header names in lower case.
pub(crate) fn plausible(said: Answer) -> Option<Answer> {
    if !(200..600).contains(&said.status) {
        return None;
    }
    let mut headers = Headers::new();
    for (name, value) in said.headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).ok()?;
        if !value.chars().all(|c| u32::from(c) < 256) {
            return None;
        }
        http::HeaderValue::from_bytes(&bytes(&value)).ok()?;
        headers.push((name.as_str().to_owned(), value));
    }
    Some(Answer { status: said.status, headers, body: said.body })
}

fn bytes(value: &str) -> Vec<u8> {
    value.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
