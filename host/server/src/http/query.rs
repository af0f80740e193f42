//! Query strings, read strictly: a parameter that is not known, or comes twice,
//! is refused by name, because a misspelt `wait` would otherwise be a request
//! that does not wait.

use std::time::Duration;

use countersign_domain::grant::parse_duration;
use percent_encoding::percent_decode_str;

use super::problem::Problem;

/// The longest wait that a request may ask for. Proxies in between usually give
/// up after a minute.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A query string being read.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Query {
    /// Reads a raw query string.
    ///
    /// # Errors
    /// `invalid_request` if it is not UTF-8 or names a parameter twice.
    pub fn read(raw: Option<&str>) -> Result<Query, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in raw.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(invalid(format!("the query parameter {name:?} is given twice")));
            }
            pairs.push((name, value));
        }
        Ok(Query { pairs, known: Vec::new() })
    }

    /// Takes a parameter, if it is there.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let at = self.pairs.iter().position(|(known, _)| known == name)?;
        Some(self.pairs.remove(at).1)
    }

    /// A parameter of some form, if it is there.
    ///
    /// # Errors
    /// Names the parameter and its form.
    pub fn parsed<T: std::str::FromStr<Err: ToString>>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| invalid(format!("{name}: {}", error.to_string())))
    }

    /// `true`, `false`, or not there.
    ///
    /// # Errors
    /// Names the parameter.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, Problem> {
        match self.text(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(_) => Err(invalid(format!("{name} is true or false"))),
        }
    }

    /// How long to wait, at most [`LONGEST_WAIT`].
    ///
    /// # Errors
    /// Names the form.
    pub fn wait(&mut self, otherwise: Duration) -> Result<Duration, Problem> {
        let Some(text) = self.text("wait") else { return Ok(otherwise) };
        let wait = parse_duration(&text).map_err(|error| invalid(format!("wait: {error}")))?;
        if wait > LONGEST_WAIT {
            return Err(invalid("wait is at most 60s; ask again to wait longer"));
        }
        Ok(wait)
    }

    /// How many to list.
    ///
    /// # Errors
    /// Names the range.
    pub fn limit(&mut self, otherwise: u32, most: u32) -> Result<u32, Problem> {
        match self.parsed::<u32>("limit")? {
            None => Ok(otherwise),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => Err(invalid(format!("limit is 1 to {most}"))),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Names the first parameter that nobody took, and those that are known.
    pub fn finish(self) -> Result<(), Problem> {
        let Some((name, _)) = self.pairs.first() else { return Ok(()) };
        let known = if self.known.is_empty() {
            "none is known here".into()
        } else {
            format!("known: {}", self.known.join(", "))
        };
        Err(invalid(format!("unknown query parameter {name:?}; {known}")))
    }
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(countersign_domain::code::INVALID_REQUEST, detail)
}

fn decode(text: &str) -> Result<String, Problem> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    match decoded {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        _ => Err(invalid("the query string is not text in UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_doubled_and_overlong_parameters_are_refused() {
        let mut query = Query::read(Some("wait=5s&limt=3")).expect("a query");
        assert_eq!(query.wait(Duration::ZERO).expect("a wait"), Duration::from_secs(5));
        assert!(format!("{:?}", query.finish().expect_err("refused")).contains("limt"));
        assert!(Query::read(Some("wait=1s&wait=2s")).is_err());
        assert!(Query::read(Some("wait=61s")).expect("a query").wait(Duration::ZERO).is_err());
        assert!(Query::read(Some("wait=5")).expect("a query").wait(Duration::ZERO).is_err());
        assert!(Query::read(Some("a=%ff")).is_err());
    }

    #[test]
    fn values_are_decoded_once() {
        let mut query = Query::read(Some("run_id=a%20b+c%252F")).expect("a query");
        assert_eq!(query.text("run_id").as_deref(), Some("a b c%2F"));
    }
}
