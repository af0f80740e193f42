//! The order in which a request is received, logged, acted on, spoilt and answered.
//!
//! 1. The whole body is read.
//! 2. The first live rule for it fires.
//! 3. Its key is looked up.
//! 4. Request, fault and effect are on the disk.
//! 5. Only now the key counts as acted, waiters are told, and a byte of the answer may leave.
//!
//! A request that has been read is worked on to its end even if its caller goes away: a provider
//! does not notice that either.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::business::{Ids, Outcome, Route};
use super::connection::{Closed, Delivery, respond};
use super::faults::{self, Faults, Fired};
use super::keys::{Found, Keys, Ticket};
use super::log::{Log, locked};
use super::message::{Answer, Received};
use super::stripe;
use super::wire::{Fault, Line, Mode};

/// Everything one provider knows.
pub struct Provider {
    pub(super) log: Log,
    pub(super) keys: Keys,
    pub(super) faults: Mutex<Faults>,
    pub(super) settings: Mutex<Settings>,
    pub(super) progress: watch::Sender<Progress>,
    /// Moves on at each release; a held request waits for it to pass the one it started in.
    pub(super) releases: watch::Sender<u64>,
    ids: Mutex<Ids>,
    started: Instant,
    pub(super) connections: AtomicU64,
    fatal: mpsc::UnboundedSender<String>,
}

/// What `POST /_control` can change besides the rules.
pub struct Settings {
    pub mode: Mode,
    pub bank_mode: Option<Mode>,
    pub key_retention_ms: u64,
    pub clock_advanced_ms: u64,
}

/// How far requests have come, by path, since this run started.
#[derive(Clone, Default)]
pub struct Progress {
    /// Received and in the log.
    pub requests: BTreeMap<String, u64>,
    /// Acted, or kept waiting by a rule before acting; each request once.
    pub reached: BTreeMap<String, u64>,
    /// Effects in the log.
    pub acted: BTreeMap<String, u64>,
    /// Held at this moment, all paths.
    pub held: u64,
}

enum Verdict {
    /// Act, under this key if there is one.
    Fresh(Option<Ticket>),
    /// Answered without acting, and why.
    Settled(Answer, &'static str),
    /// A rule says not to act.
    Withheld,
}

impl Provider {
    /// A provider that has done what its log says. Fatal errors go to the channel: after one,
    /// nothing is answered any more.
    pub fn new(log: Log, settings: Settings, fatal: mpsc::UnboundedSender<String>) -> Self {
        let issued = log.count(|line| line.event == "effect") as u64;
        Self {
            log,
            keys: Keys::default(),
            faults: Mutex::default(),
            settings: Mutex::new(settings),
            progress: watch::Sender::new(Progress::default()),
            releases: watch::Sender::new(0),
            ids: Mutex::new(Ids::after(issued)),
            started: Instant::now(),
            connections: AtomicU64::new(0),
            fatal,
        }
    }

    pub(super) async fn process(&self, received: Received, socket: Arc<TcpStream>) -> Delivery {
        let route = Route::of(&received.method, &received.path);
        let fired = self.take_fault(&received.method, &received.path, false);
        let verdict = match &fired {
            Some(fired) if !fired.act => Verdict::Withheld,
            _ => self.verdict(&route, &received),
        };
        let fault = fired.as_ref().map(|fired| &fired.fault);
        let waits_first =
            matches!(fault, Some(Fault::Delay { before: true, .. } | Fault::Hold { before: true, .. }));
        let mut request = received.line("request");
        request.outcome = Some(
            match &verdict {
                Verdict::Fresh(_) => "fresh",
                Verdict::Settled(_, why) => why,
                Verdict::Withheld => "withheld",
            }
            .into(),
        );
        request.replayed = matches!(verdict, Verdict::Settled(_, "replayed"));
        let mut lines = vec![request];
        lines.extend(fired.as_ref().map(|fired| fault_line(&received, fired)));

        // The wait starts before its line is in the log: who sees the line may release.
        let wait = self.wait_for(fault);
        let (outcome, ticket) = if waits_first {
            let first = self.append(lines).await?;
            self.note(&received.path, true, false);
            self.sit_out(wait).await;
            let (outcome, ticket) = self.settle(verdict, &route, &received);
            if let Some(mut line) = effect_line(&received, &outcome) {
                line.request_seq = Some(first);
                self.append(vec![line]).await?;
            }
            self.remember(&received, &outcome);
            self.note_acted(&received.path, outcome.effect.is_some(), false);
            (outcome, ticket)
        } else {
            let (outcome, ticket) = self.settle(verdict, &route, &received);
            if let Some(request) = lines.first_mut() {
                request.status = Some(outcome.answer.status);
            }
            lines.extend(effect_line(&received, &outcome));
            self.append(lines).await?;
            self.remember(&received, &outcome);
            let acted = outcome.effect.is_some();
            self.note(&received.path, acted || wait.is_some(), acted);
            let ticket = if settled_while_waiting(fault) {
                finish(ticket, &outcome);
                None
            } else {
                ticket
            };
            self.sit_out(wait).await;
            (outcome, ticket)
        };
        finish(ticket, &outcome);
        deliver(fault, outcome.answer, socket).await
    }

    /// What the key says. Only now, so that two requests cannot both find it unused.
    fn verdict(&self, route: &Route, received: &Received) -> Verdict {
        let (mode, retention) = {
            let settings = locked(&self.settings);
            let mode = match route {
                Route::Bank(_) => settings.bank_mode.unwrap_or(settings.mode),
                _ => settings.mode,
            };
            (mode, settings.key_retention_ms)
        };
        let keyed = matches!(route, Route::Refund | Route::Bank(_) | Route::Keyed);
        if keyed && received.key_count() > 1 {
            let message = "More than one Idempotency-Key header was sent.";
            let answer = stripe::error(400, "invalid_request_error", None, message, None);
            return Verdict::Settled(answer, "refused");
        }
        let Some(key) = received.key().filter(|_| keyed && mode != Mode::Ignores) else {
            return Verdict::Fresh(None);
        };
        let found = self.keys.begin(&key, received.fingerprint(), self.clock_ms(), retention);
        match found {
            Found::Fresh(ticket) => Verdict::Fresh(Some(ticket)),
            Found::Stored(answer) => Verdict::Settled(answer.with("Idempotent-Replayed", "true"), "replayed"),
            Found::InFlight => Verdict::Settled(stripe::key_in_use(&key), "in-flight"),
            Found::Different => Verdict::Settled(stripe::key_reused(&key), "key-reused"),
        }
    }

    fn settle(&self, verdict: Verdict, route: &Route, received: &Received) -> (Outcome, Option<Ticket>) {
        match verdict {
            Verdict::Withheld => (Outcome::refused(faults::not_done()), None),
            Verdict::Settled(answer, _) => (Outcome::refused(answer), None),
            Verdict::Fresh(ticket) => {
                let outcome = locked(&self.ids).perform(route, received);
                (outcome, ticket)
            }
        }
    }

    /// Lets a lookup find it: not before it is in the log.
    fn remember(&self, received: &Received, outcome: &Outcome) {
        if let (Some(key), true) = (received.key(), outcome.effect.is_some()) {
            locked(&self.ids).remember(&key, &received.path, &outcome.answer);
        }
    }

    /// Milliseconds of the retention clock: since the start, and what it was moved by.
    pub(super) fn clock_ms(&self) -> u64 {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        passed.saturating_add(locked(&self.settings).clock_advanced_ms)
    }

    pub(super) fn take_fault(&self, method: &str, path: &str, before_read: bool) -> Option<Fired> {
        if path.starts_with("/_") {
            return None;
        }
        locked(&self.faults).take(method, path, before_read)
    }

    /// Lines on the disk, the first one's number; or an end to everything.
    pub(super) async fn append(&self, lines: Vec<Line>) -> Result<u64, Closed> {
        let about_first = lines.first().is_some_and(|line| line.event == "request");
        self.log.append(lines, about_first).await.map_err(|error| {
            let _ = self.fatal.send(error);
            Closed
        })
    }

    fn note(&self, path: &str, reached: bool, acted: bool) {
        self.progress.send_modify(|progress| {
            *progress.requests.entry(path.to_owned()).or_default() += 1;
        });
        self.note_acted(path, acted, reached);
    }

    fn note_acted(&self, path: &str, acted: bool, reached: bool) {
        self.progress.send_modify(|progress| {
            if reached {
                *progress.reached.entry(path.to_owned()).or_default() += 1;
            }
            if acted {
                *progress.acted.entry(path.to_owned()).or_default() += 1;
            }
        });
    }

    fn wait_for(&self, fault: Option<&Fault>) -> Option<Wait> {
        match fault? {
            Fault::Delay { ms, .. } => Some(Wait::Time(Duration::from_millis(*ms))),
            Fault::Hold { .. } => {
                let epoch = self.releases.subscribe();
                let start = *epoch.borrow();
                Some(Wait::Release(epoch, start))
            }
            _ => None,
        }
    }

    async fn sit_out(&self, wait: Option<Wait>) {
        match wait {
            None => {}
            Some(Wait::Time(time)) => tokio::time::sleep(time).await,
            Some(Wait::Release(mut epoch, start)) => {
                self.progress.send_modify(|progress| progress.held += 1);
                // The sender lives in `self`, so this ends only by a release.
                let _ = epoch.wait_for(|now| *now > start).await;
                self.progress.send_modify(|progress| progress.held -= 1);
            }
        }
    }
}

enum Wait {
    Time(Duration),
    Release(watch::Receiver<u64>, u64),
}

fn settled_while_waiting(fault: Option<&Fault>) -> bool {
    matches!(fault, Some(Fault::Delay { settled: true, .. } | Fault::Hold { settled: true, .. }))
}

fn finish(ticket: Option<Ticket>, outcome: &Outcome) {
    if let Some(ticket) = ticket.filter(|_| outcome.keep) {
        ticket.finish(outcome.answer.clone());
    }
}

pub(super) fn fault_line(received: &Received, fired: &Fired) -> Line {
    Line {
        event: "fault".into(),
        connection: received.connection,
        method: received.method.clone(),
        path: received.path.clone(),
        key: received.key(),
        fault: Some(fired.fault.name().into()),
        rule: Some(fired.id),
        ..Line::default()
    }
}

fn effect_line(received: &Received, outcome: &Outcome) -> Option<Line> {
    let effect = outcome.effect.as_ref()?;
    let mut line = received.line("effect");
    line.effect_id = Some(effect.id.clone());
    line.kind = Some(effect.kind.into());
    Some(line)
}

async fn deliver(fault: Option<&Fault>, answer: Answer, socket: Arc<TcpStream>) -> Delivery {
    match fault {
        None | Some(Fault::Delay { .. } | Fault::Hold { .. }) => Ok(respond(answer)),
        Some(Fault::Status { code, headers, body }) => {
            let headers: Vec<_> = headers.clone().into_iter().collect();
            let answer = faults::status_answer(*code, &headers, body.as_ref());
            Ok(respond(answer))
        }
        Some(fault) => {
            let sent = faults::send_raw(&socket, fault, &answer).await;
            match fault {
                Fault::Continues { .. } if sent.is_ok() => Ok(respond(answer)),
                _ => Err(Closed),
            }
        }
    }
}
