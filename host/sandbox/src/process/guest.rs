//! A guest process from the inside: takes over components, runs calls of them,
//! and asks the host for every effect. It trusts the host and nobody else.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::effect::{Effect, Passage};
use countersign_domain::id::ComponentDigest;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::confine::{self, Open};
use super::handover;
use super::link::{Inbox, Link};
use super::wire::{Ask, End, FromGuest, Said, Start, ToGuest, Word};
use crate::config::SandboxConfig;
use crate::effect_gate::EffectGate;
use crate::engine;
use crate::local::Local;

/// Memory that such a process may take beside what the pool has reserved for
/// runs, bytes: code, messages, what the host keeps for a run. Chosen; raise it
/// if components with many megabytes of code are many.
const MEMORY_BESIDE: u64 = 4 << 30;

/// Runs components for the host that started this process, until that host is
/// gone. The socket to it is standard input. Call it first thing in a process:
/// it closes files that it does not know.
///
/// # Errors
/// It could not be shut in, or the host is not there; in words.
pub fn guest_process() -> Result<(), String> {
    run().map_err(|Open(why)| why)
}

fn run() -> Result<(), Open> {
    confine::begin()?;
    let mut socket = Socket::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let start: Start = first(&mut socket)?;
    let config = SandboxConfig {
        max_runs: start.max_runs,
        max_memory: start.max_memory,
        epoch_tick: Duration::from_micros(start.epoch_tick_micros),
        ..SandboxConfig::default()
    };
    let local = Local::new(engine::guest(&config, Arc::new(handover::Mapped))?, &config)?;
    // One thread: a run, its effects and the socket are on it, and nothing is
    // handed from one thread to another. More of them are more processes.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Told to stop together with the host, it waits for the host to finish.
        let _ignored = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        socket.set_nonblocking(true)?;
        let link = Link::new(UnixStream::from_std(socket)?);
        confine::running(MEMORY_BESIDE)?;
        let guest = Arc::new(Guest { local, link, calls: Mutex::default() });
        tokio::select! {
            end = guest.listen() => end,
            error = guest.link.flush() => Err(error.into()),
        }
    })
}

/// The first message, which is waited for.
fn first(socket: &mut Socket) -> Result<Start, Open> {
    let mut head = [0; 4];
    socket.read_exact(&mut head)?;
    let mut message = vec![0; u32::from_le_bytes(head).min(1 << 16) as usize];
    socket.read_exact(&mut message)?;
    Ok(serde_json::from_slice(&message)?)
}

struct Guest {
    local: Local,
    link: Link,
    calls: Mutex<HashMap<u64, Underway>>,
}

/// A call that is not over.
struct Underway {
    task: Option<AbortHandle>,
    /// Where the answer to its open effect goes.
    passage: Option<oneshot::Sender<Passage>>,
}

impl Guest {
    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Underway>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What cannot be said is waited for in vain: the host is told by the end of
    /// this process.
    fn say(&self, message: &FromGuest) {
        if self.link.send(message, None).is_err() {
            std::process::exit(1);
        }
    }

    async fn listen(self: &Arc<Self>) -> Result<(), Open> {
        let mut inbox = Inbox::new(true);
        while self.link.fill(&mut inbox).await? {
            while let Some(message) = inbox.next(|| u64::MAX)? {
                match message {
                    ToGuest::Load(component) => self.load(component, &mut inbox),
                    ToGuest::Ask { id, ask } => self.begin(id, *ask),
                    ToGuest::Passage { id, passage } => {
                        if let Some(waiting) = self.calls().get_mut(&id).and_then(|call| call.passage.take())
                        {
                            let _ = waiting.send(passage);
                        }
                    }
                    ToGuest::NoPassage { id } => {
                        // Dropped, it tells whoever waits.
                        self.calls().get_mut(&id).map(|call| call.passage.take());
                    }
                    ToGuest::Cancel { id } => self.cancel(id),
                }
            }
        }
        Ok(())
    }

    fn load(&self, component: ComponentDigest, inbox: &mut Inbox) {
        let taken = match inbox.file() {
            Some(file) => handover::component(self.local.engine(), &file)
                .and_then(|code| self.local.adopt(component, &code).map_err(|e| e.to_string())),
            None => Err("its code did not come along".to_owned()),
        };
        if let Err(why) = taken {
            self.say(&FromGuest::NotLoaded { component, why });
        }
    }

    fn begin(self: &Arc<Self>, id: u64, ask: Ask) {
        self.calls().insert(id, Underway { task: None, passage: None });
        let guest = self.clone();
        let task = tokio::spawn(async move {
            let said = guest.run(id, ask).await;
            guest.end(id, said);
        });
        if let Some(call) = self.calls().get_mut(&id) {
            call.task = Some(task.abort_handle());
        }
    }

    fn cancel(&self, id: u64) {
        if let Some(task) = self.calls().get_mut(&id).and_then(|call| call.task.take()) {
            task.abort();
        }
        self.end(id, Said::Cancelled);
    }

    /// The last that is said of a call, once.
    fn end(&self, id: u64, said: Said) {
        if self.calls().remove(&id).is_some() {
            self.say(&FromGuest::Ended { id, said });
        }
    }

    async fn run(self: &Arc<Self>, id: u64, ask: Ask) -> Said {
        let gate = Arc::new(WayOut { guest: self.clone(), id });
        match ask {
            Ask::Describe(component) => {
                Said::Manifest(self.local.describe(component).await.map_err(Into::into))
            }
            Ask::Preview(call) => Said::Preview(self.local.preview(call.into()).await.map_err(End::from)),
            Ask::Invoke(call) => {
                let report = self.local.invoke(call.into(), gate).await;
                Said::Report { end: report.ended.into(), log: report.log }
            }
            Ask::Reconcile(call, effect) => {
                let report = self.local.reconcile(call.into(), &effect, gate).await;
                Said::Verdict { verdict: report.verdict.map(Word::from).map_err(End::from), log: report.log }
            }
        }
    }
}

/// The host's gate, as a run in this process sees it.
struct WayOut {
    guest: Arc<Guest>,
    id: u64,
}

#[async_trait]
impl EffectGate for WayOut {
    async fn submit(&self, effect: Effect) -> Passage {
        let (answer, passage) = oneshot::channel();
        let message = FromGuest::Effect { id: self.id, effect };
        {
            // A task of its own asks for an effect, and a call that is taken back does
            // not take that task along. Whoever comes here after the end of the call
            // was said has nobody to ask for: what a call says after its end, the
            // host takes for a lie, and ends this process with all that runs in it.
            let mut calls = self.guest.calls();
            let Some(call) = calls.get_mut(&self.id) else { return Passage::Stopped };
            call.passage = Some(answer);
            self.guest.say(&message);
        }
        match passage.await {
            Ok(passage) => passage,
            // The host's gate failed: so does this one. Not a panic that prints.
            Err(_) => std::panic::resume_unwind(Box::new("the gate failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;

    #[tokio::test]
    async fn a16_p7_a_call_that_was_taken_back_says_nothing_after_its_end() {
        let config = SandboxConfig { max_runs: 1, ..SandboxConfig::default() };
        let local = Local::new(engine::engine(&config).unwrap(), &config).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let guest = Arc::new(Guest { local, link: Link::new(ours), calls: Mutex::default() });
        for id in [1, 2] {
            guest.calls().insert(id, Underway { task: None, passage: None });
        }

        guest.cancel(1);
        // The task that was to ask comes too late, and so does the one that ran the call.
        let late = WayOut { guest: guest.clone(), id: 1 };
        let passage = tokio::time::timeout(Duration::from_secs(5), late.submit(request())).await;
        assert!(matches!(passage, Ok(Passage::Stopped)), "{passage:?}");
        drop(late);
        guest.end(1, Said::Report { end: End::Stopped, log: Vec::new() });
        guest.end(2, Said::Report { end: End::Stopped, log: Vec::new() });
        drop(guest);

        let (host, mut inbox, mut heard) = (Link::new(theirs), Inbox::new(false), Vec::new());
        while host.fill(&mut inbox).await.unwrap() {
            while let Some(message) = inbox.next(|| u64::MAX).unwrap() {
                heard.push(message);
            }
        }
        assert!(
            matches!(
                heard[..],
                [
                    FromGuest::Ended { id: 1, said: Said::Cancelled },
                    FromGuest::Ended { id: 2, said: Said::Report { .. } },
                ]
            ),
            "{heard:?}"
        );
    }
}
