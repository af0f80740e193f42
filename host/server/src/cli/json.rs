//! JSON as it was sent: member order and the text of every number are kept, so
//! that what is shown is what the host hashed. `serde_json::Value` would show
//! a number through a float and sort the members.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper than the host lets arguments be (64) with the envelope around them;
/// beyond it, a text is not read further.
const DEEPEST: usize = 100;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// The digits as sent.
    Number(String),
    /// Unescaped.
    String(String),
    /// In order.
    Array(Vec<Json>),
    /// In order; a name may stand twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one JSON text.
    ///
    /// # Errors
    /// Says what is wrong and, for syntax, at which line and column.
    pub fn parse(text: &str) -> Result<Json, String> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|e| e.to_string())?;
        read(raw, 0)
    }

    /// A member of an object; of a name that stands twice, the last.
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v),
            _ => None,
        }
        .filter(|value| **value != Json::Null)
    }

    /// The text of a member that is a string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Json::as_str)
    }

    /// The elements of a member that is an array; none if it is not.
    pub fn list(&self, name: &str) -> &[Json] {
        match self.get(name) {
            Some(Json::Array(items)) => items,
            _ => &[],
        }
    }

    /// A member that is a whole number.
    pub fn whole(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Json::Number(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// A member that is `true`.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some(&Json::Bool(true))
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// What a JSON Pointer (RFC 6901) names.
    pub fn at(&self, pointer: &str) -> Option<&Json> {
        let mut here = self;
        for step in pointer.split('/').skip(1) {
            let name = step.replace("~1", "/").replace("~0", "~");
            here = match here {
                Json::Object(members) => members.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v)?,
                Json::Array(items) => items.get(name.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(here)
    }
}

/// One line of JSON, numbers as they were sent. Not for terminals: strings are
/// escaped as JSON needs it and no further.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(b) => write!(f, "{b}"),
            Json::Number(digits) => f.write_str(digits),
            Json::String(text) => f.write_str(&string(text)),
            Json::Array(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Json::Object(members) => {
                f.write_str("{")?;
                for (i, (name, value)) in members.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{}:{value}", string(name))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// A text as a JSON string, for bodies that are put together from raw parts.
pub fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn read(raw: &RawValue, depth: usize) -> Result<Json, String> {
    if depth > DEEPEST {
        return Err(format!("it is nested more than {DEEPEST} deep"));
    }
    let text = raw.get();
    let syntax = |e: serde_json::Error| e.to_string();
    Ok(match text.as_bytes().first() {
        Some(b'n') => Json::Null,
        Some(b't') => Json::Bool(true),
        Some(b'f') => Json::Bool(false),
        Some(b'"') => Json::String(serde_json::from_str(text).map_err(syntax)?),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(syntax)?;
            Json::Array(items.into_iter().map(|item| read(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'{') => {
            let Members(members) = serde_json::from_str(text).map_err(syntax)?;
            let members = members.into_iter().map(|(name, value)| Ok((name, read(value, depth + 1)?)));
            Json::Object(members.collect::<Result<_, String>>()?)
        }
        _ => Json::Number(text.to_owned()),
    })
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Collect).map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_order_and_doubles_come_back_as_sent() {
        for text in [
            r#"{"b":1.10,"a":9007199254740993,"a":1e400,"c":[null,true,false,"é\n",-0,{}]}"#,
            "[]",
            "0.1000000000000000055",
        ] {
            assert_eq!(Json::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_pointer_finds_what_the_grant_names() {
        let json = Json::parse(r#"{"a/b":{"~":[10,{"x":"y"}]},"":null}"#).unwrap();
        assert_eq!(json.at("/a~1b/~0/1/x"), Some(&Json::String("y".into())));
        assert_eq!(json.at("/"), Some(&Json::Null));
        assert_eq!(json.at("/a~1b/~0/2"), None);
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        for text in ["", "{", "{}x", "NaN", "\u{feff}{}", "{},\"run\":\"auto\""] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&format!("{}{}", "[".repeat(200), "]".repeat(200))).is_err());
    }
}
