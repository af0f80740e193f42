//! Speaking HTTP to the host. Blocking: a command line has nothing else to do.
//! Holds the token; follows no redirect with it.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::{Agent, AsSendBody, Body, SendBody};

use super::discover::Found;
use super::exit::{Exit, Problem, Stop};
use super::json::Json;
use super::text::plain;

/// RFC 3986 "unreserved": everything else in a segment or a value is encoded,
/// so that no id can name another path.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Longest answer that is read. Actions are bounded by the host at far less;
/// raise it if a list of them ever is not.
const ANSWER_AT_MOST: u64 = 64 << 20;

/// Beyond what the host was asked to wait: for the call itself.
const MARGIN: Duration = Duration::from_secs(60);

/// Compiling a large component takes the host minutes on a small machine.
const INSTALL: Duration = Duration::from_secs(15 * 60);

/// One wait of the host's; a longer one is made of several.
const ONE_WAIT: Duration = Duration::from_secs(20);

/// A connection to one host.
pub struct Client {
    agent: Agent,
    found: Found,
}

/// What the host answered.
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// As sent.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// A host that does not answer with JSON is not one.
    pub fn json(&self) -> Result<Json, Stop> {
        Json::parse(&self.body).map_err(|why| {
            Problem::here(
                Exit::Other,
                "the host's answer could not be read",
                plain(&why),
                "check that the address is that of a Countersign host",
            )
        })
    }
}

/// A body to send.
pub enum Send<'a> {
    /// None.
    Nothing,
    /// JSON text.
    Json(String),
    /// Anything.
    Bytes {
        /// Media type.
        media: &'a str,
        /// Bytes that will come.
        length: u64,
        /// Where they come from.
        reader: &'a mut dyn Read,
    },
}

impl Client {
    /// To what was found.
    pub fn new(found: Found) -> Client {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("countersign/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(10)));
        if found.local {
            // A proxy named in the environment must not see the local token.
            config = config.proxy(None);
        }
        Client { agent: config.build().new_agent(), found }
    }

    /// A GET.
    pub fn get(&self, what: &str, path: &str) -> Result<Reply, Stop> {
        self.call(what, Method::GET, path, &[], Send::Nothing, MARGIN)
    }

    /// A POST of JSON.
    pub fn post(&self, what: &str, path: &str, body: String) -> Result<Reply, Stop> {
        self.call(what, Method::POST, path, &[], Send::Json(body), MARGIN)
    }

    /// One call; an answer other than 2xx is a problem, and `what` says what
    /// did not work.
    pub fn call(
        &self,
        what: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Send<'_>,
        within: Duration,
    ) -> Result<Reply, Stop> {
        let mut response = self.start(what, method, path, headers, body, within)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(ANSWER_AT_MOST).lossy_utf8(true).read_to_string();
        let body = text.map_err(|error| self.broken(what, &error))?;
        if (200..300).contains(&status) {
            Ok(Reply { status, body })
        } else {
            Err(Problem::answered(what, status, &body))
        }
    }

    /// A POST that installs: the answer takes as long as compiling does. The host
    /// is asked before the body is sent, so that a refusal is heard and not lost
    /// in a broken connection.
    pub fn upload(
        &self,
        what: &str,
        path: &str,
        media: &str,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<Reply, Stop> {
        self.call(
            what,
            Method::POST,
            path,
            &[("expect", "100-continue")],
            Send::Bytes { media, length, reader },
            INSTALL,
        )
    }

    /// A stream of events after `last`, without a time limit but the one between
    /// two reads. `None`: the host says that nothing will ever follow.
    pub fn stream(
        &self,
        what: &str,
        path: &str,
        last: Option<&str>,
        silence: Duration,
    ) -> Result<Option<Body>, Stop> {
        let last = last.map(|id| ("last-event-id", id));
        let headers: Vec<(&str, &str)> = [("accept", "text/event-stream")].into_iter().chain(last).collect();
        let request = self.request(Method::GET, path, &headers).body(());
        let request = request.map_err(|error| self.unusable(what, &error))?;
        let request = self.agent.configure_request(request).timeout_per_read(Some(silence)).build();
        let mut response = self.agent.run(request).map_err(|error| self.broken(what, &error))?;
        let status = response.status().as_u16();
        match status {
            200 => return Ok(Some(response.into_body())),
            204 => return Ok(None),
            _ => {}
        }
        let body = response.body_mut().with_config().limit(ANSWER_AT_MOST).lossy_utf8(true).read_to_string();
        Err(Problem::answered(what, status, &body.unwrap_or_default()))
    }

    /// Asks for an action until `settled` says it is, or time is up; then its
    /// last answer, settled or not.
    pub fn wait(
        &self,
        what: &str,
        id: &str,
        mut reply: Reply,
        until: Instant,
        settled: impl Fn(&Json) -> bool,
    ) -> Result<Reply, Stop> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || settled(&reply.json()?) {
                return Ok(reply);
            }
            let wait = left.min(ONE_WAIT);
            let asked = Instant::now();
            reply = self.get(what, &query(&path(&["v1", "actions", id]), &[("wait", Some(&span(wait)))]))?;
            // A host that does not wait must not be asked in a tight loop.
            if asked.elapsed() < wait.min(Duration::from_millis(200)) && !settled(&reply.json()?) {
                std::thread::sleep(Duration::from_millis(200).min(left));
            }
        }
    }

    fn start(
        &self,
        what: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Send<'_>,
        within: Duration,
    ) -> Result<http::Response<Body>, Stop> {
        let request = self.request(method, path, headers);
        match body {
            Send::Nothing => self.run(what, request.body(()), within),
            Send::Json(text) => {
                self.run(what, request.header(CONTENT_TYPE, "application/json").body(text), within)
            }
            Send::Bytes { media, length, reader } => {
                let request = request.header(CONTENT_TYPE, media).header(CONTENT_LENGTH, length);
                self.run(what, request.body(SendBody::from_reader(reader)), within)
            }
        }
    }

    fn run(
        &self,
        what: &str,
        request: http::Result<Request<impl AsSendBody>>,
        within: Duration,
    ) -> Result<http::Response<Body>, Stop> {
        let request = request.map_err(|error| self.unusable(what, &error))?;
        let request = self.agent.configure_request(request).timeout_global(Some(within)).build();
        self.agent.run(request).map_err(|error| self.broken(what, &error))
    }

    fn request(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.found.url))
            .header(AUTHORIZATION, format!("Bearer {}", self.found.token));
        if !headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header(ACCEPT, "application/json");
        }
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    }

    fn unusable(&self, what: &str, error: &http::Error) -> Stop {
        Problem::here(
            Exit::Usage,
            what,
            format!("the request cannot be written: {}", plain(&error.to_string())),
            "",
        )
    }

    /// What it means that no answer came.
    fn broken(&self, what: &str, error: &ureq::Error) -> Stop {
        let url = plain(&self.found.url);
        let start = if self.found.local {
            "start the host with `countersign serve`; if it was started, look at what it printed"
        } else {
            "check the address, and that the host is running"
        };
        let (why, advice) = match error {
            ureq::Error::Timeout(_) => (
                format!("{url} did not answer in time"),
                "it may still have been done: ask the same again, nothing is done twice",
            ),
            ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => {
                (format!("nothing answers at {url}"), start)
            }
            ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => {
                (format!("nothing answers at {url}"), start)
            }
            ureq::Error::BodyExceedsLimit(limit) => {
                (format!("the answer is longer than {limit} bytes"), "ask for less at once")
            }
            other => (
                format!("the connection to {url} broke: {}", plain(&other.to_string())),
                "ask the same again, nothing is done twice",
            ),
        };
        Problem::here(Exit::Other, what, why, advice)
    }
}

/// A path out of segments, each encoded.
pub fn path(segments: &[&str]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        if segment.bytes().all(|b| b == b'.') {
            // `.` and `..` would be taken for steps.
            path.push_str(&"%2E".repeat(segment.len()));
        } else {
            path.extend(utf8_percent_encode(segment, UNRESERVED));
        }
    }
    path
}

/// A path with the parameters that have a value.
pub fn query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut whole = path.to_owned();
    let mut mark = '?';
    for (name, value) in parameters {
        if let Some(value) = value {
            whole.push(mark);
            whole.push_str(name);
            whole.push('=');
            whole.extend(utf8_percent_encode(value, UNRESERVED));
            mark = '&';
        }
    }
    whole
}

/// A length of time as the host reads it.
pub fn span(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::cli::fake_host::{answer, host};

    #[test]
    fn no_id_names_another_path() {
        assert_eq!(
            path(&["v1", "actions", "../tools?x#y", "approve"]),
            "/v1/actions/..%2Ftools%3Fx%23y/approve"
        );
        assert_eq!(path(&["v1", "..", "a b\u{e9}"]), "/v1/%2E%2E/a%20b%C3%A9");
        assert_eq!(query("/p", &[("a", Some("1&b=2")), ("c", None), ("d", Some(""))]), "/p?a=1%26b%3D2&d=");
        assert_eq!(
            (span(Duration::from_secs(20)), span(Duration::from_millis(1500))),
            ("20s".into(), "1500ms".into())
        );
    }

    #[test]
    fn the_body_goes_out_as_it_is_with_its_length_and_the_token() {
        let (client, served) = host(vec![answer(201, "{}"), answer(200, "{}")]);
        let sent = r#"{"arguments":{"a":1,"a":9007199254740993}}"#;
        assert_eq!(client.post("", "/v1/actions", sent.into()).unwrap().status, 201);
        client.upload("", "/v1/tools", "application/wasm", 4, &mut &b"wasm"[..]).unwrap();
        let asked = served.join().unwrap();
        assert!(asked[0].ends_with(sent), "{}", asked[0]);
        assert!(asked[0].contains("Bearer secret"), "{}", asked[0]);
        assert!(asked[1].ends_with("\r\n\r\nwasm") && !asked[1].contains("chunked"), "{}", asked[1]);
    }

    #[test]
    fn a_redirect_is_not_followed_with_the_token() {
        let redirect = "HTTP/1.1 307 T\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (client, served) = host(vec![redirect.to_owned()]);
        match client.get("no list", "/v1/actions") {
            Err(Stop::Problem(problem)) => assert!(problem.render().contains("307"), "{}", problem.render()),
            _ => panic!("it was followed"),
        }
        assert_eq!(served.join().unwrap().len(), 1);
    }

    #[test]
    fn a_host_that_is_gone_is_said_to_be() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let client = Client::new(Found { url, token: "t".into(), local: true });
        match client.get("no list", "/v1/actions") {
            Err(Stop::Problem(problem)) => {
                assert!(problem.advice.contains("countersign serve"), "{problem:?}")
            }
            _ => panic!("something answered"),
        }
    }
}
