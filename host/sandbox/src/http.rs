//! `wasi:http/outgoing-handler`, ours: a request becomes an entry of the outbox
//! with its untrusted parts as the component gave them. No URI is built here and
//! none is taken apart: that two parsers could disagree about one is the gate's
//! concern, and it has only one.
//!
//! Header lists, bodies and responses are wasmtime-wasi-http's. That crate is
//! built without its sender, so the hook that would send must be written, and the
//! one written here refuses. It is not reached: its only caller is the crate's
//! own `handle`, which is not linked.
//!
//! Not checked here: whether anything about the request is allowed, except the
//! header names that a component cannot set.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use countersign_domain::effect::{Answer, OutboundRequest, Refusal};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Method, Scheme};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpCtxView,
    WasiHttpHooks, WasiHttpView,
};

use crate::outbox::Ticket;
use crate::state::State;

/// The most that a component may write to a body before it waits.
const BODY_CHUNK: usize = 16 << 10;
/// How many writes are kept until then. Fixed, so that what the component sees
/// does not depend on how fast anybody reads.
const BODY_CHUNKS: usize = 64;

/// What a response future becomes.
pub(crate) type Answered = Result<(Response<WasiBody>, AbortOnDropJoinHandle<()>), Error>;

/// What wasmtime-wasi-http asks its embedder.
pub(crate) struct Hooks {
    forbidden: ForbiddenHeaderFilter,
}

impl Hooks {
    /// `names`: lower-case header names that the component cannot set, beside the
    /// hop-by-hop ones. `content-length` is not among them whatever they say: some languages'
    /// `fetch` sets it by itself. It has to be true (`outbox`), and it goes no further than here.
    pub(crate) fn new(names: Arc<BTreeSet<String>>) -> Hooks {
        let forbidden = move |name: &HeaderName| {
            *name != http::header::CONTENT_LENGTH
                && (DEFAULT_FORBIDDEN_HEADERS.contains(name) || names.contains(name.as_str()))
        };
        Hooks { forbidden: Arc::new(forbidden) }
    }
}

impl WasiHttpHooks for Hooks {
    // The closure and not `is_forbidden_header`: that one calls this one, and
    // trailers are checked by this one alone.
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        self.forbidden.clone()
    }

    fn send_request(
        &mut self,
        _: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<
        dyn Future<
                Output = Result<
                    (Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>),
                    Error,
                >,
            > + Send,
    > {
        Box::new(async { Err(Error::HttpRequestDenied) })
    }

    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        BODY_CHUNKS
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_CHUNK
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

/// `handle`. The outer error ends the component, the inner one is for it.
pub(crate) fn handle(
    state: &mut State,
    request: Resource<HostOutgoingRequest>,
    options: Option<Resource<RequestOptions>>,
) -> wasmtime::Result<Result<Resource<HostFutureIncomingResponse>, ErrorCode>> {
    let request = state.table.delete(request)?;
    let options = match options {
        Some(options) => Some(state.table.delete(options)?),
        None => None,
    };
    if state.outbox.is_full() {
        return Ok(Err(ErrorCode::ConnectionLimitReached));
    }
    let stated = match stated_length(&request.headers) {
        Ok(stated) => stated,
        Err(()) => return Ok(Err(ErrorCode::HttpProtocolError)),
    };
    if request.body.is_none() && stated.is_some_and(|stated| stated != 0) {
        return Ok(Err(ErrorCode::HttpRequestBodySize(Some(0))));
    }
    let outbound = OutboundRequest {
        method: method(request.method),
        scheme: request.scheme.map(scheme),
        authority: request.authority,
        path_with_query: request.path_with_query,
        headers: request
            .headers
            .iter()
            // The host counts for itself.
            .filter(|(name, _)| **name != http::header::CONTENT_LENGTH)
            .map(|(name, value)| (name.as_str().to_owned(), latin1(value.as_bytes())))
            .collect(),
        body: Vec::new(),
        first_byte_timeout: options.and_then(|options| options.first_byte_timeout),
    };
    // The answer is put in its place by `deliver`; until then the future is one
    // that does not end by itself.
    let never = spawn(std::future::pending());
    let task = never.id();
    let future = state.table.push(HostFutureIncomingResponse::Pending(never))?;
    state.outbox.add(Ticket { rep: future.rep(), task }, outbound, stated, request.body);
    Ok(Ok(future))
}

/// Puts an answer where the component will look, if it still does.
pub(crate) fn deliver(table: &mut ResourceTable, ticket: &Ticket, answer: Answered) {
    let place = Resource::<HostFutureIncomingResponse>::new_borrow(ticket.rep);
    if let Ok(future) = table.get_mut(&place)
        && let HostFutureIncomingResponse::Pending(task) = future
        && task.id() == ticket.task
    {
        *future = HostFutureIncomingResponse::Ready(answer);
    }
}

/// A recorded answer as a response.
pub(crate) fn response(answer: Answer) -> Answered {
    let body = Full::new(Bytes::from(answer.body)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| Error::HttpProtocolError)?;
    for (name, value) in &answer.headers {
        let value: Vec<u8> = value.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect();
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Error::HttpProtocolError)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Error::HttpProtocolError)?;
        response.headers_mut().try_append(name, value).map_err(|_| Error::HttpProtocolError)?;
    }
    // The crate wants a task that reads from the connection. There is none.
    Ok((response, spawn(async {})))
}

/// What a component is told about a refusal: the kind, never the text.
pub(crate) fn refusal(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::NotGranted(_) | Refusal::MayHaveHappened(_) => Error::HttpRequestDenied,
        // About mails; no HTTP request gets one.
        Refusal::RecipientNotGranted(_) | Refusal::InvalidMail(_) | Refusal::Rejected(_) => {
            Error::HttpRequestDenied
        }
        Refusal::AddressProhibited(_) => Error::DestinationIpProhibited,
        Refusal::BodyTooLarge(limit) => Error::HttpRequestBodySize(Some(*limit)),
        Refusal::TooMany(_) => Error::ConnectionLimitReached,
    }
}

/// `content-length`, where the component may set it: one run of digits or none.
fn stated_length(headers: &http::HeaderMap) -> Result<Option<u64>, ()> {
    let mut values = headers.get_all(http::header::CONTENT_LENGTH).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let digits = value.to_str().map_err(|_| ())?;
    if values.next().is_some() || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(());
    }
    digits.parse().map(Some).map_err(|_| ())
}

fn method(method: Method) -> String {
    match method {
        Method::Get => "GET".to_owned(),
        Method::Head => "HEAD".to_owned(),
        Method::Post => "POST".to_owned(),
        Method::Put => "PUT".to_owned(),
        Method::Delete => "DELETE".to_owned(),
        Method::Connect => "CONNECT".to_owned(),
        Method::Options => "OPTIONS".to_owned(),
        Method::Trace => "TRACE".to_owned(),
        Method::Patch => "PATCH".to_owned(),
        Method::Other(name) => name,
    }
}

fn scheme(scheme: Scheme) -> String {
    match scheme {
        Scheme::Http => "http".to_owned(),
        Scheme::Https => "https".to_owned(),
        Scheme::Other(name) => name,
    }
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_a_length_is_one_run_of_digits_or_nothing() {
        let with = |values: &[&str]| {
            let mut map = http::HeaderMap::new();
            for value in values {
                map.append(http::header::CONTENT_LENGTH, value.parse().unwrap());
            }
            stated_length(&map)
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&["10"]), Ok(Some(10)));
        for bad in [&["+5"][..], &["5 "], &["5", "5"], &["0x5"], &[""], &["99999999999999999999"]] {
            assert_eq!(with(bad), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn b08_b09_a_forbidden_name_is_forbidden_however_it_is_written() {
        let names = ["authorization", "idempotency-key"].map(str::to_owned);
        let filter = Hooks::new(Arc::new(names.into())).forbidden_header_filter();
        let forbidden = |name: &str| filter(&name.parse::<HeaderName>().unwrap());
        for name in ["Authorization", "IDEMPOTENCY-KEY", "host", "connection", "transfer-encoding"] {
            assert!(forbidden(name), "{name}");
        }
        assert!(!forbidden("content-type"));
    }

    #[tokio::test]
    async fn a_recorded_header_value_comes_back_byte_for_byte() {
        let bytes = [b'a', 0x80, 0xff];
        let answer =
            Answer { status: 207, headers: vec![("x".to_owned(), latin1(&bytes))], body: vec![0, 255] };
        let (response, _) = response(answer).unwrap();
        assert_eq!(response.status(), 207);
        assert_eq!(response.headers()["x"].as_bytes(), bytes);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], [0, 255]);
    }
}
