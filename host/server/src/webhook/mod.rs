//! Tells the receivers in `[[webhook]]` that an action waits for a person.
//!
//! Nothing is stored here: what is to be told stands in the ledger, and whoever
//! looks after it asks [`Webhooks::tell`] again and again, after a restart too,
//! until every receiver has acknowledged. In between, what was asked for lies in
//! a bounded queue, and each receiver has a task that sends, one message at a
//! time, with growing pauses after failures. So the asker never waits, a message
//! comes at least once, and one that comes twice has the same `webhook-id`.
//!
//! May not: follow a redirect, use a proxy, put an argument or a secret into a
//! message. A receiver is told what to look at, and looks with a token of its
//! own.

mod announce;
mod sign;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use ureq::Agent;

use crate::config::Webhook;
use crate::metrics::Metrics;

/// Messages that wait at most. Chosen: so many doubts at once are a disaster
/// that people know of; the rest is in the ledger and asked for again.
const QUEUE: usize = 1024;

/// How long one try may take, from the name to the answer. The convention says
/// 15 to 30 seconds.
const TRY: Duration = Duration::from_secs(15);

/// The first pause after a failure, and the longest. Each is twice the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// How things stand with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Every receiver has acknowledged it, or there is none.
    Everybody,
    /// It is being sent, or will be: ask again later.
    NotYet,
}

/// The receivers, and what they are still to be told. Clones share it.
#[derive(Clone)]
pub struct Webhooks {
    inner: Arc<Inner>,
}

struct Inner {
    receivers: Vec<Webhook>,
    queue: Mutex<HashMap<String, Message>>,
    more: Notify,
    /// A message was acknowledged by somebody.
    settled: Notify,
    metrics: Arc<Metrics>,
}

struct Message {
    body: Arc<[u8]>,
    /// One per receiver.
    states: Vec<Delivery>,
}

#[derive(Clone, Copy)]
enum Delivery {
    /// Acknowledged.
    Done,
    /// To be tried at this time; so often it failed.
    Due(Instant, u32),
}

impl Message {
    fn is_done(&self) -> bool {
        self.states.iter().all(|state| matches!(state, Delivery::Done))
    }
}

impl Webhooks {
    /// With these receivers. Nothing is sent before [`Webhooks::start`].
    pub fn new(receivers: Vec<Webhook>, metrics: Arc<Metrics>) -> Webhooks {
        Webhooks {
            inner: Arc::new(Inner {
                receivers,
                queue: Mutex::default(),
                more: Notify::new(),
                settled: Notify::new(),
                metrics,
            }),
        }
    }

    /// Starts one task per receiver; they end when what is returned is dropped.
    pub fn start(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for which in 0..self.inner.receivers.len() {
            tasks.spawn(deliver(self.inner.clone(), which));
        }
        tasks
    }

    /// Tells every receiver, once each unless something fails. `id` names the
    /// message whoever asks, on whatever host; `body` is made only if the
    /// message is new here. Never waits.
    pub fn tell(&self, id: &str, body: impl FnOnce() -> Vec<u8>) -> Told {
        if self.inner.receivers.is_empty() {
            return Told::Everybody;
        }
        let mut queue = self.inner.queue();
        if queue.get(id).is_some_and(Message::is_done) {
            // Asked again after this, it would be sent again: whoever asks has
            // to remember the answer, and does so in the ledger.
            queue.remove(id);
            self.inner.metrics.webhooks_waiting(queue.len());
            return Told::Everybody;
        }
        if queue.contains_key(id) {
            return Told::NotYet;
        }
        if queue.len() >= QUEUE {
            tracing::warn!(id, "too many announcements wait for their receivers; this one is tried later");
            return Told::NotYet;
        }
        let states = vec![Delivery::Due(Instant::now(), 0); self.inner.receivers.len()];
        queue.insert(id.to_owned(), Message { body: body().into(), states });
        self.inner.metrics.webhooks_waiting(queue.len());
        drop(queue);
        self.inner.more.notify_waiters();
        Told::NotYet
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, HashMap<String, Message>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message that this receiver should be sent next, and when.
    fn next(&self, which: usize) -> Option<(Instant, u32, String, Arc<[u8]>)> {
        let queue = self.queue();
        let due = queue.iter().filter_map(|(id, message)| match message.states.get(which)? {
            Delivery::Done => None,
            Delivery::Due(at, failed) => Some((*at, *failed, id, message)),
        });
        let (at, failed, id, message) = due.min_by_key(|(at, ..)| *at)?;
        Some((at, failed, id.clone(), message.body.clone()))
    }

    fn set(&self, id: &str, which: usize, state: Delivery) {
        if let Some(message) = self.queue().get_mut(id)
            && let Some(found) = message.states.get_mut(which)
        {
            *found = state;
        }
    }
}

/// Sends what one receiver is to be told, for ever.
async fn deliver(inner: Arc<Inner>, which: usize) {
    let Some(receiver) = inner.receivers.get(which).cloned() else { return };
    let agent = agent();
    loop {
        // Before the queue is read: what comes after the reading must wake.
        let more = inner.more.notified();
        let Some((at, failed, id, body)) = inner.next(which) else {
            more.await;
            continue;
        };
        if at > Instant::now() {
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = more => {}
            }
            continue;
        }
        let (agent, to, sent) = (agent.clone(), receiver.clone(), id.clone());
        let tried = tokio::task::spawn_blocking(move || post(&agent, &to, &sent, &body)).await;
        let failure = match tried {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some("the sender died".to_owned()),
        };
        inner.metrics.webhook(failure.is_none());
        match failure {
            None => {
                tracing::info!(host = receiver.host(), id, "a webhook was acknowledged");
                inner.set(&id, which, Delivery::Done);
                inner.settled.notify_waiters();
            }
            Some(why) => {
                let pause = pause(failed);
                let again = pause.as_secs();
                tracing::warn!(
                    host = receiver.host(),
                    id,
                    why,
                    again_in_s = again,
                    "a webhook was not acknowledged"
                );
                inner.set(&id, which, Delivery::Due(Instant::now() + pause, failed.saturating_add(1)));
            }
        }
    }
}

fn pause(failed: u32) -> Duration {
    PAUSES.0.saturating_mul(1 << failed.min(16)).min(PAUSES.1)
}

fn agent() -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // Another place than the operator named is another receiver.
        .max_redirects(0)
        .proxy(None)
        .timeout_global(Some(TRY))
        .user_agent(concat!("countersign/", env!("CARGO_PKG_VERSION")));
    config.build().new_agent()
}

/// One try. Blocking.
fn post(agent: &Agent, to: &Webhook, id: &str, body: &[u8]) -> Result<(), String> {
    let at = now();
    let signature = sign::signature(&to.key, id, at, body).ok_or("it cannot be signed with this key")?;
    let request = agent
        .post(&to.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", at.to_string())
        .header("webhook-signature", signature);
    let answer = request.send(body).map_err(|error| error.to_string())?;
    match answer.status().as_u16() {
        200..300 => Ok(()),
        300..400 => Err(format!("it answered with a redirect ({}), and none is followed", answer.status())),
        _ => Err(format!("it answered with status {}", answer.status())),
    }
}

/// Seconds since 1970, for the receiver to compare with its own clock.
#[expect(clippy::disallowed_methods, reason = "a time for others to read; nothing here is decided by it")]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    /// Answers with these statuses in turn, one per connection; what was asked
    /// comes out of the channel.
    fn receiver(statuses: &'static [u16]) -> (Webhook, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("its address"));
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for status in statuses {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut asked = Vec::new();
                let mut piece = [0; 4096];
                while !asked.ends_with(b"}") {
                    let read = stream.read(&mut piece).expect("a request");
                    asked.extend_from_slice(&piece[..read]);
                }
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).expect("an answer");
                tell.send(String::from_utf8(asked).expect("UTF-8")).expect("somebody listens");
            }
        });
        (Webhook { url: url.parse().expect("a URL"), key: vec![7; 32] }, told)
    }

    fn webhooks(receivers: Vec<Webhook>) -> Webhooks {
        Webhooks::new(receivers, Arc::new(Metrics::new(None)))
    }

    async fn until_told(webhooks: &Webhooks, id: &str) {
        while webhooks.tell(id, || b"{}".to_vec()) == Told::NotYet {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_is_sent_until_each_receiver_acknowledges_it_with_the_same_id_and_a_signature() {
        let (first, heard_first) = receiver(&[500, 302, 204]);
        let (second, heard_second) = receiver(&[200]);
        let key = first.key.clone();
        let webhooks = webhooks(vec![first, second]);
        let _tasks = webhooks.start();
        until_told(&webhooks, "a.1").await;
        let heard: Vec<String> = (0..3).map(|_| heard_first.recv().expect("a request")).collect();
        assert_eq!(heard_second.try_iter().count(), 1, "who has acknowledged is left in peace");
        for asked in heard {
            let (head, body) = asked.split_once("\r\n\r\n").expect("a body");
            let header = |name: &str| {
                let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
                line.unwrap_or_else(|| panic!("{name} in {head}")).to_owned()
            };
            assert_eq!(header("webhook-id"), "a.1");
            let at = header("webhook-timestamp").parse().expect("a time");
            let expected = sign::signature(&key, "a.1", at, body.as_bytes());
            assert_eq!(Some(header("webhook-signature")), expected);
        }
    }

    #[tokio::test]
    async fn without_receivers_everybody_is_told_and_a_full_queue_takes_no_more() {
        assert_eq!(webhooks(Vec::new()).tell("a", || panic!("nobody reads it")), Told::Everybody);
        let url = "http://127.0.0.1:1/".parse().expect("a URL");
        let full = webhooks(vec![Webhook { url, key: vec![1; 32] }]);
        // Not started: nothing leaves the queue.
        for n in 0..QUEUE + 5 {
            assert_eq!(full.tell(&n.to_string(), Vec::new), Told::NotYet);
        }
        assert_eq!(full.inner.queue().len(), QUEUE);
    }

    #[test]
    fn pauses_grow_and_end_growing() {
        let pauses: Vec<u64> = [0, 1, 2, 8, 9, u32::MAX].map(|failed| pause(failed).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
