//! What came back, made fit for the ledger and the component: whole, within
//! limits, without what belonged to the connection, without secrets.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use countersign_domain::effect::{Answer, Headers};
use countersign_domain::secret::Redactor;
use http::header::{self, HeaderMap, HeaderName};
use http::response::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use super::headers;
use super::why::Lost;

/// Bodies longer than this are searched for secrets on a thread for such work:
/// at tens of MB/s, a megabyte is too long to hold up other sends.
const REDACT_INLINE: usize = 64 * 1024;

/// A whole answer, as the provider sent it.
pub(super) struct Whole {
    pub(super) head: Parts,
    pub(super) body: Vec<u8>,
}

/// Whether the head is one that an answer may have. `to_head`: it answers a
/// `HEAD`, so its length tells of a body that it does not carry.
pub(super) fn check_head(head: &Parts, to_head: bool, limit: u64) -> Result<(), Lost> {
    let status = head.status.as_u16();
    match status {
        200..=599 => {}
        101 => return Err(Lost::Switched),
        _ => return Err(Lost::Malformed),
    }
    // Any other coding would be taken off with its header and stay on the body;
    // only `chunked` the HTTP library has undone.
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(Lost::Malformed);
    }
    // Said beforehand, so nothing of it needs to be read.
    let carries_none = to_head || matches!(status, 204 | 304);
    let told =
        head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if !carries_none && told.is_some_and(|told| told > limit) {
        return Err(Lost::BodyTooLarge);
    }
    Ok(())
}

/// Reads a body to its end. Empty frames and trailers are dropped; nothing is
/// decompressed, so bytes are what they cost.
pub(super) async fn read_body(mut body: Incoming, limit: u64) -> Result<Vec<u8>, BodyError> {
    let expected = usize::try_from(body.size_hint().lower().min(limit)).unwrap_or(0).min(REDACT_INLINE);
    let mut whole = Vec::with_capacity(expected);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() {
            if (whole.len() + data.len()) as u64 > limit {
                return Err(BodyError::TooLarge);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole)
}

/// Why a body did not become whole.
pub(super) enum BodyError {
    TooLarge,
    Broken(hyper::Error),
}

/// The answer as it may be seen, and when the provider wants to be asked again.
pub(super) async fn presentable(
    whole: Whole,
    redactor: Option<Arc<Redactor>>,
) -> Result<(Answer, Option<Duration>), Lost> {
    let Whole { head, body } = whole;
    let retry_after = retry_after(&head.headers);
    let (body, altered) = match &redactor {
        None => (body, false),
        Some(redactor) if body.len() <= REDACT_INLINE => redact_body(redactor, body),
        Some(redactor) => {
            let redactor = redactor.clone();
            let searched = tokio::task::spawn_blocking(move || redact_body(&redactor, body)).await;
            // Only a host that shuts down gets here; unsearched it is not shown.
            searched.map_err(|_| Lost::Unsearched)?
        }
    };
    // A length that was not the body's own, or is not any more, is put right.
    let length = (altered || head.headers.contains_key(header::TRANSFER_ENCODING)).then_some(body.len());
    let headers = present_headers(&head.headers, redactor.as_deref(), length);
    Ok((Answer { status: head.status.as_u16(), headers, body }, retry_after))
}

fn redact_body(redactor: &Redactor, body: Vec<u8>) -> (Vec<u8>, bool) {
    match redactor.redact(&body) {
        Cow::Borrowed(_) => (body, false),
        Cow::Owned(clean) => (clean, true),
    }
}

/// `length`: what `Content-Length` has to say now, if the body is not as it came.
fn present_headers(received: &HeaderMap, redactor: Option<&Redactor>, length: Option<usize>) -> Headers {
    let named = headers::named_by_connection(received);
    let mut out = Headers::with_capacity(received.len());
    for (name, value) in received {
        if headers::is_hop_by_hop(name) || named.contains(name) {
            continue;
        }
        if let (&header::CONTENT_LENGTH, Some(_)) = (name, length) {
            continue;
        }
        let (name, value) = match redactor {
            None => (name.as_str(), latin1(value.as_bytes())),
            // A name that holds a secret has nothing else to say.
            Some(redactor) if redactor.redact_text(name.as_str()) != name.as_str() => continue,
            Some(redactor) => (name.as_str(), latin1(&redactor.redact(value.as_bytes()))),
        };
        out.push((name.to_owned(), value));
    }
    if let Some(length) = length
        && received.contains_key(header::CONTENT_LENGTH)
    {
        out.push((header::CONTENT_LENGTH.as_str().to_owned(), length.to_string()));
    }
    out
}

/// One character per byte, so that a replay gives back the same bytes.
fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// `Retry-After` (RFC 9110 §10.2.3): seconds, or a date, which is read against
/// the same server's `Date`, so that neither clock has to be right. A date
/// without `Date` says nothing; the usual back-off applies.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let value = text(header::RETRY_AFTER)?.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than fit mean "very long" all the same.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    let now = httpdate::parse_http_date(text(header::DATE)?).ok()?;
    Some(at.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(headers: &[(HeaderName, &str)]) -> Option<Duration> {
        let map = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        retry_after(&map)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_by_the_servers_own_clock() {
        let date = (header::DATE, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(after(&[(header::RETRY_AFTER, "120")]), Some(Duration::from_secs(120)));
        assert_eq!(
            after(&[(header::RETRY_AFTER, "99999999999999999999")]),
            Some(Duration::from_secs(u64::MAX))
        );
        for (value, seconds) in
            [("Sun, 06 Nov 1994 08:50:07 GMT", 30), ("Sun, 06 Nov 1994 08:00:00 GMT", 0), ("0", 0)]
        {
            assert_eq!(
                after(&[(header::RETRY_AFTER, value), date.clone()]),
                Some(Duration::from_secs(seconds))
            );
        }
        assert_eq!(after(&[(header::RETRY_AFTER, "Sun, 06 Nov 1994 08:50:07 GMT")]), None, "whose clock?");
        for odd in ["", "-1", "+5", "1.5", "soon", "0x10"] {
            assert_eq!(after(&[(header::RETRY_AFTER, odd), date.clone()]), None, "{odd:?}");
        }
        assert_eq!(after(&[date]), None);
    }
}
