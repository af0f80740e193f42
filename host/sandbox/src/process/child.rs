//! One guest process as the host sees it: what runs in it, what is due from it,
//! and its end.
//!
//! An effect that it asks for is made by a task of the host's own, which ends
//! only when the gate has answered: not when the process dies, and not when
//! nobody waits for the call any more. A process that says what is not due (an
//! effect while another is open, a call that nobody made, a message longer than
//! any limit allows) is killed; so is one that does not end a call in time.

use std::collections::{HashMap, HashSet};
use std::os::unix::net::UnixStream as Socket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use countersign_domain::effect::{Effect, Passage};
use countersign_domain::id::{ComponentDigest, TenantId};
use countersign_domain::run::RunLimits;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::handover::Handover;
use super::link::{Inbox, Link, frame};
use super::spawn::{ProcessCommand, Running};
use super::wire::{Ask, FromGuest, Said, Start, ToGuest};
use crate::effect_gate::EffectGate;
use crate::limits;

/// How much longer than its wall limit a call may take to come back: its process
/// may be busy with others. Chosen.
const MARGIN: Duration = Duration::from_secs(10);
/// Bytes of a message beyond the parts that a grant limits: what one host call
/// takes over from a component (a mail), at six bytes for a control character,
/// and the marks of JSON around it.
const MESSAGE: u64 = 6 * limits::HOST_CALL_BYTES as u64 + (1 << 20);
/// Effects that one call may ask for, let through or not. Far more than any grant
/// allows, so that only a process that has lost its mind gets there.
const EFFECTS: u32 = 100_000;

/// Why a call did not come back.
pub(super) struct Lost {
    pub(super) why: String,
    /// It asked for an effect. One that did not may be run again elsewhere.
    pub(super) asked: bool,
}

impl Lost {
    /// Before it was begun.
    fn before(why: String) -> Lost {
        Lost { why, asked: false }
    }
}

/// A guest process. Dropped, it is killed.
pub(super) struct Child {
    pub(super) owner: Option<TenantId>,
    shared: Arc<Shared>,
    given: Mutex<HashSet<ComponentDigest>>,
    busy: AtomicUsize,
}

struct Shared {
    link: Link,
    process: Running,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    calls: HashMap<u64, Slot>,
    /// Components that it could not take over, and why.
    unusable: HashMap<ComponentDigest, String>,
    lost: Option<String>,
}

/// A call that has not come back.
struct Slot {
    limits: RunLimits,
    /// `None`: nobody waits any more.
    done: Option<oneshot::Sender<Said>>,
    /// `None`: no effect is due.
    gate: Option<Arc<dyn EffectGate>>,
    effects: u32,
    flight: Flight,
}

/// The task that makes a call's effect, if there is one.
#[derive(Clone, Default)]
struct Flight(Arc<Making>);

#[derive(Default)]
struct Making {
    task: Mutex<Option<JoinHandle<()>>>,
    /// Whether the process may not ask for another yet.
    open: AtomicBool,
    /// Whether it ever asked.
    asked: AtomicBool,
}

impl Flight {
    /// Waits until the gate is done with what it was given.
    async fn finish(&self) {
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // That it panicked was told to the process.
            let _ = task.await;
        }
    }
}

impl Child {
    /// Starts one, tended on that runtime. Returns at once; what is asked of it
    /// waits in its socket.
    pub(super) fn start(
        runtime: &Handle,
        command: &ProcessCommand,
        start: &Start,
        owner: Option<TenantId>,
    ) -> std::io::Result<Child> {
        let (ours, theirs) = Socket::pair()?;
        {
            use std::io::Write as _;
            (&ours).write_all(&frame(start)?)?;
        }
        ours.set_nonblocking(true)?;
        let _on = runtime.enter();
        let shared = Arc::new(Shared {
            link: Link::new(UnixStream::from_std(ours)?),
            process: Running::default(),
            state: Mutex::default(),
        });
        let (over, end) = oneshot::channel();
        let (process, command) = (shared.process.clone(), command.clone());
        std::thread::Builder::new().name("guest-process".to_owned()).stack_size(128 << 10).spawn(
            move || {
                process.run(|| command.start(theirs.into(), &[]));
                let _ = over.send(());
            },
        )?;
        tokio::spawn({
            let shared = shared.clone();
            async move {
                // Told also if the runtime ends before the process.
                let shared = Tended(shared);
                let shared = &shared.0;
                let why = tokio::select! {
                    why = shared.listen() => why,
                    error = shared.link.flush() => format!("it does not listen: {error}"),
                };
                shared.process.kill();
                let _ = tokio::time::timeout(MARGIN, end).await;
                let end = shared.process.end().unwrap_or_else(|| "still going".to_owned());
                shared.lose(format!("{why} ({end})"));
            }
        });
        Ok(Child { owner, shared, given: Mutex::default(), busy: AtomicUsize::new(0) })
    }

    /// How many calls are in it.
    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.shared.state().lost.is_some()
    }

    /// Asks something of a component and waits for what comes back. Returns when
    /// no effect of it is open any more.
    pub(super) async fn ask(
        &self,
        component: ComponentDigest,
        code: &Arc<Handover>,
        ask: Ask,
        limits: RunLimits,
        gate: Option<Arc<dyn EffectGate>>,
    ) -> Result<Said, Lost> {
        let (done, said) = oneshot::channel();
        let flight = Flight::default();
        let id = {
            let mut state = self.shared.state();
            if let Some(why) = &state.lost {
                return Err(Lost::before(why.clone()));
            }
            if let Some(why) = state.unusable.get(&component) {
                return Err(Lost::before(format!("it could not take over the component: {why}")));
            }
            state.next += 1;
            let id = state.next;
            state
                .calls
                .insert(id, Slot { limits, done: Some(done), gate, effects: 0, flight: flight.clone() });
            id
        };
        self.busy.fetch_add(1, Ordering::Relaxed);
        let asked = Asked { child: self, id, over: false };
        let sent = self
            .give(component, code)
            .and_then(|()| self.shared.link.send(&ToGuest::Ask { id, ask: Box::new(ask) }, None));
        if sent.is_err() {
            self.shared.process.kill();
        }
        asked.answer(said, limits.wall, &flight).await
    }

    /// Gives it a component that it does not have. In the order of the socket the
    /// component is there before the call.
    fn give(&self, component: ComponentDigest, code: &Arc<Handover>) -> std::io::Result<()> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(component) {
            self.shared.link.send(&ToGuest::Load(component), Some(code.clone()))?;
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.process.kill();
    }
}

/// Ends the process with whoever hears it.
struct Tended(Arc<Shared>);

impl Drop for Tended {
    fn drop(&mut self) {
        self.0.process.kill();
        self.0.lose("the host is stopping".to_owned());
    }
}

/// A call that was asked for. Dropped before it is over, it is taken back.
struct Asked<'a> {
    child: &'a Child,
    id: u64,
    over: bool,
}

impl Asked<'_> {
    async fn answer(
        mut self,
        mut said: oneshot::Receiver<Said>,
        wall: Duration,
        flight: &Flight,
    ) -> Result<Said, Lost> {
        let shared = &self.child.shared;
        let mut answer = tokio::time::timeout(wall.saturating_add(MARGIN), &mut said).await;
        if answer.is_err() {
            // Its own limit should have ended it. What is open is waited for, and
            // nothing more is begun.
            if let Some(slot) = shared.state().calls.get_mut(&self.id) {
                slot.gate = None;
            }
            flight.finish().await;
            answer = tokio::time::timeout(MARGIN, &mut said).await;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(_) => {
                tracing::warn!("a guest process did not end a call in time and is killed");
                shared.process.kill();
                said.await
            }
        };
        if !countersign_domain::planted::on("end-while-sending") {
            flight.finish().await;
        }
        self.over = true;
        answer.map_err(|_| Lost {
            why: shared.state().lost.clone().unwrap_or_else(|| "it is gone".to_owned()),
            asked: flight.0.asked.load(Ordering::Acquire),
        })
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.child.busy.fetch_sub(1, Ordering::Relaxed);
        if self.over {
            return;
        }
        let (shared, id) = (self.child.shared.clone(), self.id);
        {
            let mut state = shared.state();
            let Some(slot) = state.calls.get_mut(&id) else { return };
            // The place stays until the process has heard: what it says about the
            // call until then is not out of turn.
            slot.done = None;
            slot.gate = None;
        }
        let told = shared.link.send(&ToGuest::Cancel { id }, None);
        if told.is_err() {
            return shared.process.kill();
        }
        // Nobody waits for this call; something has to.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(MARGIN).await;
                if shared.state().calls.contains_key(&id) {
                    shared.process.kill();
                }
            });
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of it: whoever waits is told.
    fn lose(&self, why: String) {
        let calls = {
            let mut state = self.state();
            state.lost.get_or_insert_with(|| why.clone());
            std::mem::take(&mut state.calls)
        };
        if !calls.is_empty() {
            tracing::warn!(calls = calls.len(), "a guest process is gone: {why}");
        }
    }

    /// Hears what it says until it is gone or says what is not due; which.
    async fn listen(self: &Arc<Self>) -> String {
        let mut inbox = Inbox::new(false);
        loop {
            match self.link.fill(&mut inbox).await {
                Ok(true) => {}
                Ok(false) => return "it ended".to_owned(),
                Err(error) => return format!("it is not heard: {error}"),
            }
            loop {
                match inbox.next(|| self.longest()) {
                    Ok(Some(message)) => {
                        if let Err(why) = self.hear(message) {
                            return format!("it said what was not due: {why}");
                        }
                    }
                    Ok(None) => break,
                    Err(why) => return format!("it said what was not due: {why}"),
                }
            }
        }
    }

    /// The longest message that may come, bytes: by the limits of what runs.
    fn longest(&self) -> u64 {
        let calls = &self.state().calls;
        let most = calls.values().map(|slot| {
            // A body is text of four thirds its length; control characters in a
            // result or a log take up to six times theirs.
            let limits = &slot.limits;
            let body = limits.request_body.saturating_mul(4) / 3;
            limits.result.saturating_add(limits.log.saturating_mul(3)).saturating_mul(6).saturating_add(body)
        });
        most.max().unwrap_or(0).saturating_add(MESSAGE)
    }

    fn hear(self: &Arc<Self>, message: FromGuest) -> Result<(), &'static str> {
        match message {
            FromGuest::NotLoaded { component, why } => {
                tracing::warn!(%component, "a guest process cannot take over a component: {why}");
                self.state().unusable.insert(component, why);
                Ok(())
            }
            FromGuest::Effect { id, effect } => self.effect(id, effect),
            FromGuest::Ended { id, said } => {
                let slot = self.state().calls.remove(&id).ok_or("the end of a call that is not")?;
                if let Some(done) = slot.done {
                    // Whoever waited may have gone a moment ago.
                    let _ = done.send(said);
                }
                Ok(())
            }
        }
    }

    fn effect(self: &Arc<Self>, id: u64, effect: Effect) -> Result<(), &'static str> {
        let mut state = self.state();
        let slot = state.calls.get_mut(&id).ok_or("an effect of a call that is not")?;
        slot.effects += 1;
        if slot.effects > EFFECTS {
            return Err("more effects than any call makes");
        }
        slot.flight.0.asked.store(true, Ordering::Release);
        let Some(gate) = slot.gate.clone() else {
            // A preview, or a call that nobody waits for any more.
            drop(state);
            self.tell(&ToGuest::Passage { id, passage: Passage::Stopped });
            return Ok(());
        };
        if slot.flight.0.open.swap(true, Ordering::AcqRel) {
            return Err("an effect while another is open");
        }
        let open = OpenEffect { shared: self.clone(), id, flight: slot.flight.clone(), passage: None };
        let task = tokio::spawn(async move { open.close(gate.submit(effect).await) });
        *slot.flight.0.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    fn tell(&self, message: &ToGuest) {
        if self.link.send(message, None).is_err() {
            self.process.kill();
        }
    }
}

/// Tells the process what became of its effect, also if the gate panicked.
struct OpenEffect {
    shared: Arc<Shared>,
    id: u64,
    flight: Flight,
    passage: Option<Passage>,
}

impl OpenEffect {
    fn close(mut self, passage: Passage) {
        self.passage = Some(passage);
    }
}

impl Drop for OpenEffect {
    fn drop(&mut self) {
        // Before the answer: the next one may be asked for at once.
        self.flight.0.open.store(false, Ordering::Release);
        let id = self.id;
        self.shared.tell(&match self.passage.take() {
            Some(passage) => ToGuest::Passage { id, passage },
            None => ToGuest::NoPassage { id },
        });
    }
}
