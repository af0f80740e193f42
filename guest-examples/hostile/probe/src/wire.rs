//! `wasi:http` taken apart: each step of a request on its own, so that a mode can
//! stop between any two of them.

use crate::bindings::wasi::http::outgoing_handler::handle;
use crate::bindings::wasi::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, Method, OutgoingBody, OutgoingRequest, Scheme,
};
use crate::bindings::wasi::io::streams::StreamError;
use serde_json::{Value, json};

/// An answer, or the error code as text.
pub type Reply = Result<Answer, String>;

/// Status, headers and body.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// A request that was handed to the host and whose body is still open.
pub struct Open {
    pub body: OutgoingBody,
    pub future: FutureIncomingResponse,
}

/// Header list from names and values; names that are refused are left out.
pub fn fields<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Fields {
    let fields = Fields::new();
    for (name, value) in pairs {
        let _ = fields.append(name, value);
    }
    fields
}

/// Hands a request to the host.
pub fn open(method: &str, url: &str, headers: Fields) -> Result<Open, String> {
    let (scheme, rest) = url.split_once("://").ok_or("no scheme in the URL")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let request = OutgoingRequest::new(headers);
    request.set_method(&self::method(method)).map_err(|()| "method refused")?;
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => Scheme::Other(other.to_owned()),
    };
    request.set_scheme(Some(&scheme)).map_err(|()| "scheme refused")?;
    let authority = (!authority.is_empty()).then_some(authority);
    request.set_authority(authority).map_err(|()| "authority refused")?;
    let path = if path.is_empty() { "/" } else { path };
    request.set_path_with_query(Some(path)).map_err(|()| "path refused")?;
    let body = request.body().map_err(|()| "no body")?;
    let future = handle(request, None).map_err(code)?;
    Ok(Open { body, future })
}

/// Writes bytes into an open body.
pub fn write(body: &OutgoingBody, bytes: &[u8]) -> Result<(), StreamError> {
    let Ok(stream) = body.write() else { return Err(StreamError::Closed) };
    bytes.chunks(4096).try_for_each(|chunk| stream.blocking_write_and_flush(chunk))
}

/// Writes the whole body and finishes it; the future is left to the caller. An
/// error is left for the future to tell.
pub fn complete(open: Open, bytes: &[u8]) -> FutureIncomingResponse {
    if write(&open.body, bytes).is_ok() {
        let _ = OutgoingBody::finish(open.body, None);
    }
    open.future
}

/// Waits for the whole answer.
pub fn wait(future: &FutureIncomingResponse) -> Reply {
    future.subscribe().block();
    let response = match future.get() {
        Some(Ok(Ok(response))) => response,
        Some(Ok(Err(error))) => return Err(code(error)),
        other => return Err(format!("{other:?}")),
    };
    let status = response.status();
    let headers = response.headers().entries();
    let incoming = response.consume().map_err(|()| "no body in the answer")?;
    let stream = incoming.stream().map_err(|()| "no stream in the answer")?;
    let mut body = Vec::new();
    loop {
        match stream.blocking_read(64 * 1024) {
            Ok(chunk) => body.extend_from_slice(&chunk),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(e)) => return Err(e.to_debug_string()),
        }
    }
    drop(stream);
    drop(IncomingBody::finish(incoming));
    Ok(Answer { status, headers, body })
}

/// One whole call.
pub fn call(method: &str, url: &str, headers: Fields, body: &[u8]) -> Reply {
    let open = open(method, url, headers)?;
    wait(&complete(open, body))
}

/// A reply as JSON: `{status, headers, body}` or `{error}`.
pub fn show(reply: &Reply) -> Value {
    match reply {
        Ok(answer) => {
            let headers: Vec<[String; 2]> = answer
                .headers
                .iter()
                .map(|(name, value)| [name.clone(), String::from_utf8_lossy(value).into_owned()])
                .collect();
            let body = String::from_utf8_lossy(&answer.body);
            json!({ "status": answer.status, "headers": headers, "body": body })
        }
        Err(error) => json!({ "error": error }),
    }
}

/// The status, or 0 if there was no answer.
pub fn status(reply: &Reply) -> u16 {
    reply.as_ref().map_or(0, |answer| answer.status)
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

fn code(error: ErrorCode) -> String {
    match error {
        ErrorCode::InternalError(Some(text)) => format!("InternalError: {text}"),
        // `ErrorCode::HttpRequestDenied` as `HttpRequestDenied`.
        other => format!("{other:?}").trim_start_matches("ErrorCode::").to_owned(),
    }
}
