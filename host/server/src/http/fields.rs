//! The members of a JSON object in a request, taken one by one. Whatever is left
//! at the end was not asked for, and is refused by name: a misspelt member that
//! was silently dropped would be another request than the caller meant.

use std::str::FromStr;

use countersign_domain::canonical::{CanonicalJson, Limits};
use serde_json::{Map, Value};

use super::problem::Problem;

/// An object being read.
#[derive(Debug, Default)]
pub struct Fields {
    members: Map<String, Value>,
    known: Vec<&'static str>,
    /// JSON Pointer of the object itself.
    at: String,
}

impl Fields {
    /// Reads untrusted text: strictly, from its bytes, before anything is made
    /// of it.
    ///
    /// # Errors
    /// `invalid_json` with place and reason; `invalid_request` if it is no object.
    pub fn read(raw: &[u8], limit: usize) -> Result<Fields, Problem> {
        let canonical = CanonicalJson::parse(raw, Limits::bytes(limit))?;
        match canonical.value() {
            Value::Object(members) => Ok(Fields { members, ..Fields::default() }),
            _ => Err(Problem::invalid("", "the body must be a JSON object")),
        }
    }

    fn pointer(&self, name: &str) -> String {
        format!("{}/{name}", self.at)
    }

    /// Takes a member, if it is there. `null` is taken for not there.
    pub fn value(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.members.remove(name).filter(|value| !value.is_null())
    }

    fn missing(&self, name: &str) -> Problem {
        Problem::invalid(&self.pointer(name), format!("\"{name}\" is missing"))
    }

    /// A text, if it is there.
    ///
    /// # Errors
    /// Names the place if it is something else.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Problem::invalid(&self.pointer(name), format!("\"{name}\" must be a string"))),
        }
    }

    /// A text that has to be there.
    ///
    /// # Errors
    /// Names the place.
    pub fn needed_text(&mut self, name: &'static str) -> Result<String, Problem> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    /// A text of some form, if it is there.
    ///
    /// # Errors
    /// Names the place and the form.
    pub fn parsed<T: FromStr<Err: ToString>>(&mut self, name: &'static str) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.parse::<T>();
        parsed.map(Some).map_err(|error| Problem::invalid(&self.pointer(name), error.to_string()))
    }

    /// A text of some form that has to be there.
    ///
    /// # Errors
    /// Names the place and the form.
    pub fn needed<T: FromStr<Err: ToString>>(&mut self, name: &'static str) -> Result<T, Problem> {
        self.parsed(name)?.ok_or_else(|| self.missing(name))
    }

    /// A whole number from 0, if it is there.
    ///
    /// # Errors
    /// Names the place.
    pub fn number(&mut self, name: &'static str) -> Result<Option<u32>, Problem> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let wrong =
            || Problem::invalid(&self.pointer(name), format!("\"{name}\" must be a whole number from 0"));
        number.map(Some).ok_or_else(wrong)
    }

    /// A whole number that has to be there.
    ///
    /// # Errors
    /// Names the place.
    pub fn needed_number(&mut self, name: &'static str) -> Result<u32, Problem> {
        self.number(name)?.ok_or_else(|| self.missing(name))
    }

    /// Any JSON, canonical, if it is there.
    ///
    /// # Errors
    /// Cannot happen to a value that was read by [`Fields::read`]; if it does,
    /// it is refused.
    pub fn json(&mut self, name: &'static str) -> Result<Option<CanonicalJson>, Problem> {
        self.value(name).map(|value| CanonicalJson::from_value(&value).map_err(Problem::from)).transpose()
    }

    /// Any JSON that has to be there.
    ///
    /// # Errors
    /// Names the place.
    pub fn needed_json(&mut self, name: &'static str) -> Result<CanonicalJson, Problem> {
        self.json(name)?.ok_or_else(|| self.missing(name))
    }

    /// An object inside, if it is there.
    ///
    /// # Errors
    /// Names the place.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Fields>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(members)) => {
                Ok(Some(Fields { members, known: Vec::new(), at: self.pointer(name) }))
            }
            Some(_) => Err(Problem::invalid(&self.pointer(name), format!("\"{name}\" must be an object"))),
        }
    }

    /// A list, if it is there.
    ///
    /// # Errors
    /// Names the place.
    pub fn list(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(Problem::invalid(&self.pointer(name), format!("\"{name}\" must be an array"))),
        }
    }

    /// Says what is wrong with a member.
    pub fn wrong(&self, name: &str, why: impl Into<String>) -> Problem {
        Problem::invalid(&self.pointer(name), why)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Names the first member that nobody took, and those that are known.
    pub fn finish(self) -> Result<(), Problem> {
        let Some(name) = self.members.keys().next() else { return Ok(()) };
        let known = if self.known.is_empty() {
            "nothing is taken here".to_owned()
        } else {
            format!("known here: {}", self.known.join(", "))
        };
        let escaped = name.replace('~', "~0").replace('/', "~1");
        Err(Problem::invalid(&format!("{}/{escaped}", self.at), format!("unknown member {name:?}; {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(problem: &Problem) -> String {
        format!("{problem:?}")
    }

    #[test]
    fn a_member_that_nobody_asked_for_is_refused_by_name() {
        let mut fields = Fields::read(br#"{"note":"ok","arguments":{}}"#, 1024).expect("an object");
        assert_eq!(fields.text("note").expect("a text").as_deref(), Some("ok"));
        let refused = said(&fields.finish().expect_err("refused"));
        assert!(refused.contains("/arguments") && refused.contains("known here: note"), "{refused}");
    }

    #[test]
    fn duplicate_keys_nul_and_lone_surrogates_never_become_a_value() {
        for bad in [
            r#"{"to":"a","to":"evil"}"#,
            r#"{"to":"\u0000"}"#,
            r#"{"to":"\ud800"}"#,
            r#"{"to":1,"\u0074o":2}"#,
        ] {
            let refused = said(&Fields::read(bad.as_bytes(), 1024).expect_err(bad));
            assert!(refused.contains("invalid_json") && refused.contains("/to"), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_wrong_type_is_named_by_its_pointer() {
        let mut fields = Fields::read(br#"{"tool":7,"answer":{"status":"x"}}"#, 1024).expect("an object");
        assert!(said(&fields.needed_text("tool").expect_err("refused")).contains("/tool"));
        let mut inner = fields.object("answer").expect("an object").expect("there");
        assert!(said(&inner.number("status").expect_err("refused")).contains("/answer/status"));
        assert!(said(&fields.needed_text("run_id").expect_err("refused")).contains("missing"));
    }
}
