//! JSON Pointers, as grants use them to name a field.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A JSON Pointer (RFC 6901): empty for the whole value, else `/`-separated
/// with `~0` for `~` and `~1` for `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JsonPointer(String);

impl JsonPointer {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it points at, if that is there.
    pub fn resolve<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.pointer(&self.0)
    }
}

impl FromStr for JsonPointer {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<JsonPointer, &'static str> {
        if !text.is_empty() && !text.starts_with('/') {
            return Err("a JSON Pointer begins with a slash");
        }
        if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err("in a JSON Pointer, ~ is written ~0 and / within a name ~1");
        }
        if text.chars().any(char::is_control) || text.len() > 256 {
            return Err("a JSON Pointer here has at most 256 bytes and no control characters");
        }
        Ok(JsonPointer(text.to_owned()))
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
