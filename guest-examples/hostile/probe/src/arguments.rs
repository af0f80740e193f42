//! The probe's arguments: lenient where a mode has a default, an
//! `invalid-arguments` failure that names the member otherwise.

use crate::bindings::exports::countersign::tool::tool::Failure;
use serde_json::Value;

/// The arguments of one call.
pub struct Arguments(Value);

impl Arguments {
    pub fn parse(text: &str) -> Result<Arguments, Failure> {
        serde_json::from_str(text).map(Arguments).map_err(|e| Failure::InvalidArguments(e.to_string()))
    }

    pub fn mode(&self) -> Result<&str, Failure> {
        self.need("mode")
    }

    /// A text that may be absent.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0[name].as_str()
    }

    /// A text that must be there.
    pub fn need(&self, name: &str) -> Result<&str, Failure> {
        self.text(name).ok_or_else(|| missing(name, "a text"))
    }

    /// `text`, or these words.
    pub fn words(&self, default: &str) -> String {
        self.text("text").unwrap_or(default).to_owned()
    }

    /// `body`, or a short one.
    pub fn body(&self) -> &[u8] {
        self.text("body").unwrap_or("probe").as_bytes()
    }

    /// A list of texts; none if it is absent.
    pub fn list(&self, name: &str) -> Vec<&str> {
        self.items(name).iter().filter_map(Value::as_str).collect()
    }

    /// A list of anything; none if it is absent.
    pub fn items(&self, name: &str) -> &[Value] {
        self.0[name].as_array().map_or(&[], Vec::as_slice)
    }

    /// A number that must be there.
    pub fn number(&self, name: &str) -> Result<u64, Failure> {
        self.0[name].as_u64().ok_or_else(|| missing(name, "a whole number"))
    }

    /// A count that must be there.
    pub fn count(&self, name: &str) -> Result<usize, Failure> {
        usize::try_from(self.number(name)?).map_err(|_| missing(name, "at most 2^32-1"))
    }

    /// A count with a default.
    pub fn count_or(&self, name: &str, default: usize) -> usize {
        self.count(name).unwrap_or(default)
    }

    /// `n` as seconds for `try-later`.
    pub fn seconds(&self) -> Option<u32> {
        self.number("n").ok().and_then(|n| u32::try_from(n).ok())
    }
}

fn missing(name: &str, what: &str) -> Failure {
    Failure::InvalidArguments(format!("`{name}` must be {what}"))
}
