//! One request on its way to a handler: who calls, with what. Everything about
//! it is read through here, and everything that is read is bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use countersign_domain::code;
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::App;
use super::fields::Fields;
use super::problem::Problem;
use super::query::Query;
use crate::tokens::Caller;

/// Bytes of a JSON body.
pub const JSON_BYTES: usize = 1 << 20;
/// Time in which a JSON body has to be there. Headers have their own, shorter
/// one; see `listener`.
const JSON_TIME: Duration = Duration::from_secs(15);

/// A request, authorised.
pub struct Call {
    /// The surface's state.
    pub app: Arc<App>,
    /// Whose token it is; none on open routes.
    pub caller: Option<Caller>,
    /// The one variable part of the path; empty if the route has none.
    pub param: String,
    /// The raw query string.
    pub query: Option<String>,
    /// As received.
    pub headers: HeaderMap,
    /// Not read yet. In a lock only because a body cannot be shared between
    /// threads and a call is; nobody ever waits for it.
    body: Mutex<Body>,
}

impl Call {
    /// A request whose caller is known.
    pub fn new(app: Arc<App>, caller: Option<Caller>, param: String, parts: Parts, body: Body) -> Call {
        let query = parts.uri.query().map(str::to_owned);
        Call { app, caller, param, query, headers: parts.headers, body: Mutex::new(body) }
    }

    /// The body, taken away.
    pub fn take_body(&mut self) -> Body {
        std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// On an open route there is none; asking there is refused, not guessed.
    pub fn caller(&self) -> Result<&Caller, Problem> {
        self.caller.as_ref().ok_or_else(|| Problem::unauthenticated("this needs a token"))
    }

    /// The query string.
    ///
    /// # Errors
    /// As [`Query::read`].
    pub fn query(&self) -> Result<Query, Problem> {
        Query::read(self.query.as_deref())
    }

    /// Refuses every query parameter.
    ///
    /// # Errors
    /// Names the first one.
    pub fn no_query(&self) -> Result<(), Problem> {
        self.query()?.finish()
    }

    /// The path's variable part in its form; what has not the form names
    /// nothing.
    ///
    /// # Errors
    /// `not_found`, in the words used for what never existed.
    pub fn named<T: std::str::FromStr>(&self, what: &str) -> Result<T, Problem> {
        self.param.parse().map_err(|_| Problem::not_found(&format!("{what} {}", self.param)))
    }

    /// A header that may come once.
    ///
    /// # Errors
    /// If it comes twice or is not visible ASCII.
    pub fn header(&self, name: &HeaderName) -> Result<Option<String>, Problem> {
        let mut values = self.headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let wrong = |why: &str| Problem::new(code::INVALID_REQUEST, format!("the header {name} {why}"));
        if values.next().is_some() {
            return Err(wrong("is given twice"));
        }
        let text = value.to_str().map_err(|_| wrong("must be visible ASCII"))?;
        Ok(Some(text.to_owned()))
    }

    /// The media type of the body, without parameters, lower-case.
    pub fn media_type(&self) -> Option<String> {
        let value = self.headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
    }

    /// The body's bytes.
    ///
    /// # Errors
    /// `too_large` over the limit; 408 if it does not come in time.
    pub async fn bytes(&mut self, limit: usize, time: Duration) -> Result<Bytes, Problem> {
        let body = self.take_body();
        let too_large =
            || Problem::new(code::TOO_LARGE, format!("the body is over the limit of {limit} bytes"));
        let announced = self.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if announced.and_then(|text| text.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        // Compressed, a small body could be any size, and hide what is in it.
        let plain = self.headers.get(header::CONTENT_ENCODING).is_none_or(|value| value == "identity");
        if !plain {
            let problem = Problem::new(code::INVALID_REQUEST, "send the body without Content-Encoding");
            return Err(problem.status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        match tokio::time::timeout(time, Limited::new(body, limit).collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Problem::new(code::INVALID_REQUEST, "the body did not arrive whole")),
            Err(_) => {
                let problem = Problem::new(code::INVALID_REQUEST, "the body did not arrive in time");
                Err(problem.status(StatusCode::REQUEST_TIMEOUT))
            }
        }
    }

    /// The body as a JSON object.
    ///
    /// # Errors
    /// 415 for another media type, `too_large`, `invalid_json`, and
    /// `invalid_request` if it is no object.
    pub async fn object(&mut self) -> Result<Fields, Problem> {
        if self.media_type().as_deref() != Some("application/json") {
            return Err(unsupported("application/json"));
        }
        let raw = self.bytes(JSON_BYTES, JSON_TIME).await?;
        Fields::read(&raw, JSON_BYTES)
    }

    /// The body as a JSON object, or an empty one if there is no body.
    ///
    /// # Errors
    /// As [`Call::object`].
    pub async fn object_or_nothing(&mut self) -> Result<Fields, Problem> {
        let media_type = self.media_type();
        let raw = self.bytes(JSON_BYTES, JSON_TIME).await?;
        if raw.is_empty() {
            return Ok(Fields::default());
        }
        if media_type.as_deref() != Some("application/json") {
            return Err(unsupported("application/json"));
        }
        Fields::read(&raw, JSON_BYTES)
    }

    /// Refuses a body with anything in it.
    ///
    /// # Errors
    /// Names the first member.
    pub async fn no_body(&mut self) -> Result<(), Problem> {
        self.object_or_nothing().await?.finish()
    }
}

/// The body is of a type that is not read here.
pub fn unsupported(wanted: &str) -> Problem {
    Problem::new(code::INVALID_REQUEST, format!("the Content-Type must be {wanted}"))
        .status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}
