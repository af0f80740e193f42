//! What a caller was told, with the few questions that tests ask about it.

use serde_json::Value;

use super::http::Answer;

/// An answer of the host, read as JSON.
#[derive(Debug, Clone)]
pub struct Told {
    /// As it came.
    pub answer: Answer,
    /// Its JSON; null where it is none.
    pub json: Value,
}

impl Told {
    /// Reads an answer.
    pub fn of(answer: Answer) -> Told {
        let json = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        Told { answer, json }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.answer.status
    }

    /// A text at a JSON Pointer; another value as JSON; nothing as nothing.
    pub fn text(&self, pointer: &str) -> String {
        match self.json.pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        }
    }

    /// A number at a JSON Pointer.
    pub fn number(&self, pointer: &str) -> u64 {
        let found = self.json.pointer(pointer).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no number at {pointer}: {}", self.json))
    }

    /// The action's id, or the one that a problem names.
    pub fn id(&self) -> String {
        let id = self.text("/id");
        if id.is_empty() { self.text("/action") } else { id }
    }

    /// A problem's code, else the action's state.
    pub fn outcome(&self) -> String {
        let code = self.text("/code");
        if code.is_empty() { self.text("/status") } else { code }
    }

    /// The state and, where there is one, the code of the action's error: `failed_terminal
    /// unplanned_effect`.
    pub fn ending(&self) -> String {
        format!("{} {}", self.outcome(), self.text("/error/code")).trim_end().to_owned()
    }

    /// Whether it says that it was there already.
    pub fn is_replayed(&self) -> bool {
        self.json["replayed"] == Value::Bool(true)
    }

    /// The bytes of a member as they came: `result` is promised byte for byte.
    pub fn raw(&self, member: &str) -> String {
        type Members = std::collections::BTreeMap<String, Box<serde_json::value::RawValue>>;
        let members: Members = serde_json::from_slice(&self.answer.body).unwrap_or_default();
        members.get(member).map(|raw| raw.get().to_owned()).unwrap_or_default()
    }

    /// Panics unless the status is this one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Told {
        assert_eq!(self.status(), status, "{}", self.answer.text());
        self
    }

    /// Panics unless it is a problem with this status and code; its sentence.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> String {
        assert_eq!((self.status(), self.text("/code").as_str()), (status, code), "{}", self.answer.text());
        assert_eq!(self.answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.number("/status"), u64::from(status));
        assert!(self.json["retryable"].is_boolean(), "{}", self.json);
        let detail = self.text("/detail");
        assert!(!detail.is_empty(), "a problem without a sentence: {}", self.json);
        detail
    }
}
