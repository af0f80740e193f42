//! What the model remembers: one action's row and effects, two workers with
//! their memory, the provider, and words that are under way. Every field is one
//! byte, so that a state is copied, compared and hashed in one go.
//!
//! Times are flags: a lease that is over, a window that closed. That keeps
//! every order of them that can happen and no clock.

use countersign_domain::action::{Standing, State};
use countersign_domain::effect::EffectStatus;

/// Workers that may hold the action, one after the other or, where a rule is
/// wrong, at once.
pub const WORKERS: usize = 2;
/// Effects of the action.
pub const EFFECTS: usize = 2;
/// Requests under way whose worker no longer listens.
pub const ORPHANS: usize = 2;

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct World {
    // ---- the action's row
    pub state: State,
    /// Id of the live attempt; 0 is none. Ids are renamed after every step, so
    /// that only which are equal counts: as with random ids, none comes twice.
    pub attempt: u8,
    /// Counted only where a planted rule looks at it.
    pub number: u8,
    pub lease: bool,
    /// Place of the effect that is out, from 1; 0 is none.
    pub in_flight: u8,
    pub cancel: bool,
    pub attempts: u8,
    pub repeats: u8,
    pub lookups: u8,
    /// What a crash of the database takes back: the state before an action
    /// claim that was not flushed.
    pub undo: Undo,
    /// The ledger was rewound under this action.
    pub marked: bool,
    /// What was acknowledged as the result; 0 is nothing.
    pub result: u8,
    pub effects: [Effect; EFFECTS],
    // ---- around it
    pub approvers: [Approver; 2],
    pub approval_over: bool,
    pub deadline_over: bool,
    pub changed: bool,
    pub keys: [Key; EFFECTS],
    pub workers: [Worker; WORKERS],
    pub orphans: [Orphan; ORPHANS],
    pub word: Word,
    /// An attempt that began after it was last learned that a write happened came
    /// to an end of its own.
    pub told: bool,
    /// What may still go wrong, or be asked.
    pub left: Left,
}

/// What an unflushed action claim is undone to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Undo {
    Nothing,
    Approved,
    FailedRetryable,
    OutcomeUnknown,
}

/// An effect's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Effect {
    /// `None`: not there.
    pub status: Option<EffectStatus>,
    pub attempt: u8,
    pub send: u8,
    pub arrived: bool,
    pub answer: Reply,
    pub refusal: bool,
    pub aside: bool,
    /// `settle` has passed since it became unknown.
    pub settled: bool,
}

/// What a provider answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    Nothing,
    /// 200: it acted, now or under the same key before.
    Done,
    /// 402: it did not act and says so.
    Refused,
    /// 409: an equal key is being worked on, it says.
    Busy,
    /// 500: it acted or it did not.
    Error,
}

/// A key and what the provider did under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The host's window for it is over.
    pub window_over: bool,
    /// The provider recognises it.
    pub known: bool,
    /// The provider no longer does.
    pub forgotten: bool,
    /// It acted at all.
    pub happened: bool,
    /// Business effects that count; see [`Orphan::excused`] for which do not.
    pub acts: u8,
}

/// Somebody who may approve. Two steps only where the planted rule counts
/// approvals without locking the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Approver {
    Undecided,
    /// Counted so many approvals and has not written yet.
    Counted(bool),
    Approved,
}

/// Where a worker is. A worker that takes no step is frozen; that it wakes is
/// its next step. Nothing more is needed for either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pc {
    Idle,
    /// Planned a repeat and has not claimed it (planted).
    Planned,
    /// Its component runs.
    Running,
    /// Looked at a write claim's conditions and has not written it (planted).
    Looked,
    /// The write claim is committed and flushed.
    Claimed,
    /// The lease was looked at once more.
    Checked,
    /// The first byte is out.
    Sent,
    /// A definite answer is read, not recorded.
    Answered,
    /// Nothing was sent; not recorded.
    NotSent,
    /// The host refused at the last moment (an address); not recorded.
    Refusing,
    /// That nothing was sent is recorded; the attempt is to end.
    Stopping,
    /// Nobody knows; the attempt is to end.
    Doubt,
}

/// The connection of a worker's send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wire {
    None,
    Pending,
    Replied,
}

/// A worker and what it remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    pub pc: Pc,
    /// Place of the effect it is at, from 1.
    pub effect: u8,
    pub send: u8,
    pub arrived: bool,
    pub reply: Reply,
    pub wire: Wire,
    /// Its lease ran out, by the clock it would look at.
    pub lease_over: bool,
    // ---- for the verdict only
    /// Its claim was not authorised (only under planted rules).
    pub unauthorised: bool,
    /// It looked at its lease while it was the live attempt.
    pub checked: bool,
    /// The first byte left when it no longer was.
    pub stalled: bool,
    /// The key's window was over when it looked (only under planted rules).
    pub too_late: bool,
    /// It looked in time, and the first byte left after the provider had
    /// forgotten the key.
    pub past_key: bool,
    /// A success stood when its attempt began, which is to report it.
    pub reports: bool,
    /// A truthful "did not happen" about this send was accepted.
    pub disowned: bool,
    pub number: u8,
    pub attempt: u8,
}

/// A request under way that nobody listens to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Orphan {
    /// Place of its effect, from 1; 0: there is none.
    pub effect: u8,
    pub checked: bool,
    pub stalled: bool,
    pub past_key: bool,
    pub disowned: bool,
}

/// What somebody found out about a send and has not said yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word {
    /// Place of the effect, from 1; 0: nobody has anything to say.
    pub effect: u8,
    pub by_person: bool,
    pub happened: bool,
    /// It was true when it was found out; then a send acted whose worker had
    /// frozen, and nobody could have known.
    pub overtaken: bool,
    pub send: u8,
    pub attempt: u8,
}

/// Budgets of the exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Left {
    pub faults: u8,
    pub cancels: u8,
    pub words: u8,
    pub rewinds: u8,
}

pub const NO_EFFECT: Effect = Effect {
    status: None,
    attempt: 0,
    send: 0,
    arrived: false,
    answer: Reply::Nothing,
    refusal: false,
    aside: false,
    settled: false,
};
pub const NO_KEY: Key = Key { window_over: false, known: false, forgotten: false, happened: false, acts: 0 };
pub const IDLE: Worker = Worker {
    pc: Pc::Idle,
    effect: 0,
    send: 0,
    arrived: false,
    reply: Reply::Nothing,
    wire: Wire::None,
    lease_over: false,
    unauthorised: false,
    checked: false,
    stalled: false,
    too_late: false,
    past_key: false,
    reports: false,
    disowned: false,
    number: 0,
    attempt: 0,
};
pub const NO_ORPHAN: Orphan =
    Orphan { effect: 0, checked: false, stalled: false, past_key: false, disowned: false };
pub const NO_WORD: Word =
    Word { effect: 0, by_person: false, happened: false, overtaken: false, send: 0, attempt: 0 };

impl Effect {
    pub fn is(&self, status: EffectStatus) -> bool {
        self.status == Some(status)
    }

    /// As `EffectRecord::is_open`.
    pub fn is_open(&self) -> bool {
        self.is(EffectStatus::InFlight) || self.is(EffectStatus::Unknown)
    }

    /// As `EffectRecord::stands`: every effect of the model is a write.
    pub fn stands(&self) -> bool {
        self.status.is_some() && !self.is(EffectStatus::Failed)
    }
}

impl Worker {
    /// Keeps of its memory what its next steps look at.
    fn tidy(&mut self) {
        let Worker { pc, effect, send, reply, attempt, number, reports, .. } = *self;
        match pc {
            Pc::Claimed | Pc::Checked => {}
            Pc::Sent if self.wire == Wire::Pending => self.lease_over = false,
            Pc::Sent => {
                let (arrived, wire) = (self.arrived, self.wire);
                *self = Worker { pc, effect, send, arrived, reply, wire, attempt, number, reports, ..IDLE };
            }
            Pc::Idle => *self = IDLE,
            Pc::Planned | Pc::Running | Pc::Looked | Pc::Stopping | Pc::Doubt => {
                *self = Worker { pc, effect, attempt, number, reports, ..IDLE };
            }
            Pc::Answered | Pc::NotSent | Pc::Refusing => {
                *self = Worker { pc, effect, send, reply, attempt, number, reports, ..IDLE };
            }
        }
    }

    pub fn orphan(&self) -> Orphan {
        Orphan {
            effect: self.effect,
            checked: self.checked,
            stalled: self.stalled,
            past_key: self.past_key,
            disowned: self.disowned,
        }
    }
}

impl Orphan {
    /// It left after its attempt was over, and its worker had looked.
    pub fn froze(&self) -> bool {
        self.checked && self.stalled
    }

    /// Whether an act of this send does not count against P2: what the product
    /// does not promise. Its worker froze between its last look and its first
    /// byte. Then either its attempt was over, and a truthful "did not happen"
    /// was accepted before the provider acted (one that was true when it was
    /// found out: see [`Word::overtaken`]); or it slept until the provider had
    /// forgotten the key.
    pub fn excused(&self) -> bool {
        (self.froze() && self.disowned) || self.past_key
    }
}

impl World {
    /// As the domain's `Action::standing`.
    pub fn standing(&self) -> Standing {
        Standing {
            open: self.effects.iter().any(Effect::is_open),
            writes_stand: self.effects.iter().any(Effect::stands),
        }
    }

    pub fn unknown(&self) -> usize {
        self.effects.iter().filter(|effect| effect.is(EffectStatus::Unknown)).count()
    }

    /// Whether this worker's attempt is the live one, in truth.
    pub fn is_live(&self, worker: &Worker) -> bool {
        self.state == State::Executing && self.attempt == worker.attempt && self.lease
    }

    /// Whether a worker that is still there holds the live attempt.
    pub fn is_held(&self) -> bool {
        self.workers.iter().any(|worker| worker.pc != Pc::Idle && worker.attempt == self.attempt)
    }

    /// Forgets what nothing asks for any more, and renames ids, so that states
    /// that differ in nothing are one. `reduced`: also what is so only because
    /// the rules are as they should be, and which worker is which.
    pub fn tidy(&mut self, reduced: bool) {
        for effect in &mut self.effects {
            if !effect.is_open() {
                effect.attempt = 0;
            }
        }
        self.told |= !self.effects.iter().any(|effect| effect.is(EffectStatus::Succeeded));
        for worker in &mut self.workers {
            worker.tidy();
        }
        if reduced {
            self.reduce();
            self.workers.sort_unstable();
        }
        self.orphans.sort_unstable();
        self.rename();
    }

    fn reduce(&mut self) {
        // Whatever they still want to write, the fence stops it.
        for worker in &mut self.workers {
            let writes =
                matches!(worker.pc, Pc::Running | Pc::NotSent | Pc::Refusing | Pc::Stopping | Pc::Doubt);
            let over = self.state != State::Executing || worker.attempt != self.attempt;
            let settled = usize::from(worker.effect).checked_sub(1).is_none_or(|e| {
                let effect = &self.effects[e];
                (effect.attempt, effect.send) != (worker.attempt, worker.send)
            });
            if over && (writes || (worker.pc == Pc::Answered && settled)) {
                *worker = IDLE;
            }
        }
        // A word about a send that is settled or was followed by another.
        if let Some(e) = usize::from(self.word.effect).checked_sub(1) {
            let effect = &self.effects[e];
            let fence = (self.word.attempt, self.word.send);
            if !effect.is(EffectStatus::Unknown) || (effect.attempt, effect.send) != fence {
                self.word = NO_WORD;
            }
        }
        if self.state.is_terminal() {
            self.approvers = [Approver::Undecided; 2];
            self.undo = Undo::Nothing;
            self.attempts = 0;
            self.repeats = 0;
            self.lookups = 0;
            self.cancel = false;
            self.told = true;
            self.word = NO_WORD;
            self.approval_over = false;
            self.deadline_over = false;
            self.changed = false;
            self.left.cancels = 0;
            self.left.words = 0;
            if self.workers.iter().all(|worker| worker.pc == Pc::Idle) {
                self.left.faults = 0;
            }
        }
    }

    fn rename(&mut self) {
        let mut names = [0u8; 8];
        let mut next = 0u8;
        let mut rename = |id: &mut u8| {
            if *id != 0 {
                let name = &mut names[usize::from(*id)];
                if *name == 0 {
                    next += 1;
                    *name = next;
                }
                *id = *name;
            }
        };
        rename(&mut self.attempt);
        for effect in &mut self.effects {
            rename(&mut effect.attempt);
        }
        for worker in &mut self.workers {
            rename(&mut worker.attempt);
        }
        rename(&mut self.word.attempt);
    }

    /// An id that nothing bears.
    pub fn fresh_id(&self) -> u8 {
        let effects = self.effects.iter().map(|effect| effect.attempt);
        let workers = self.workers.iter().map(|worker| worker.attempt);
        effects.chain(workers).chain([self.attempt, self.word.attempt]).max().unwrap_or(0) + 1
    }
}
