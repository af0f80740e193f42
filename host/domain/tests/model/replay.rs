//! The component, and what the domain makes of its calls: replay by
//! `EffectLog`, and what comes of a send by `judge`. Nothing here is decided by
//! the model.

use std::sync::LazyLock;
use std::time::Duration;

use countersign_domain::effect::{Answer, EffectKind, EffectRecord, RecordedRequest, Refusal, Terms};
use countersign_domain::effect_log::{EffectLog, Next, Retry};
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{AttemptId, Digest, EffectFingerprint, Ordinal, SendNumber};
use countersign_domain::retry::{Transport, Verdict, judge};
use countersign_domain::time::Timestamp;

use super::plants::Plant;
use super::scenario::{OnFailure, Program, Scenario};
use super::state::{EFFECTS, Reply, World};
use super::steps::Model;

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
const WINDOW: Duration = Duration::from_secs(100);
const IN_FLIGHT_STATUS: u16 = 409;

/// The two requests that the component may make.
static ASKED: LazyLock<[EffectFingerprint; 2]> =
    LazyLock::new(|| [EffectFingerprint(Digest::of(b"one")), EffectFingerprint(Digest::of(b"other"))]);

fn status(reply: Reply) -> u16 {
    match reply {
        Reply::Nothing => 0,
        Reply::Done => 200,
        Reply::Refused => 402,
        Reply::Busy => IN_FLIGHT_STATUS,
        Reply::Error => 500,
    }
}

/// Where a verdict leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Definite,
    NotSent,
    Unknown,
}

/// `judge`, asked once about everything that can come back: by effect, by
/// whether an earlier send may have arrived, by reply (0: nothing was sent).
pub struct Judged(pub [[[Judgement; 5]; 2]; EFFECTS]);

impl Judged {
    pub fn of(scenario: &Scenario) -> Judged {
        let mut table = [[[Judgement::Unknown; 5]; 2]; EFFECTS];
        for (e, of_effect) in table.iter_mut().enumerate() {
            for (arrived, of_arrived) in of_effect.iter_mut().enumerate() {
                for reply in [Reply::Nothing, Reply::Done, Reply::Refused, Reply::Busy, Reply::Error] {
                    let transport = match reply {
                        Reply::Nothing => Transport::NotSent(String::new()),
                        _ => Transport::Answered(answer(reply)),
                    };
                    of_arrived[reply as usize] =
                        match judge(transport, &terms(scenario, e), arrived == 1, None) {
                            Verdict::Definite(_) => Judgement::Definite,
                            Verdict::NotSent(_) => Judgement::NotSent,
                            Verdict::Unknown { .. } => Judgement::Unknown,
                        };
                }
            }
        }
        Judged(table)
    }
}

fn answer(reply: Reply) -> Answer {
    Answer { status: status(reply), headers: Vec::new(), body: Vec::new() }
}

fn terms(scenario: &Scenario, effect: usize) -> Terms {
    Terms {
        class: scenario.class[effect],
        key_window: WINDOW,
        in_flight_status: IN_FLIGHT_STATUS,
        replay_header: None,
        on_5xx: scenario.on_5xx[effect],
        send: Duration::from_secs(30),
        settle: Duration::from_secs(60),
    }
}

/// What the component does next.
pub enum Call {
    Write(usize),
    Return,
    Refuse,
    TryLater,
}

/// What the gate makes of it.
pub enum Decision {
    /// A new write at this place; with `inherited`, under an earlier key.
    Fresh {
        effect: usize,
        inherited: bool,
    },
    Repeat(usize),
    /// Refused for good, and shown: an equal one may have happened.
    Equal(usize),
    Unplanned,
    Ends(Call),
}

impl Model {
    /// Runs the component over what is recorded, to the next thing it does.
    /// Also: whether there is anything recorded that it could diverge from.
    pub fn decides(&self, world: &World, i: usize) -> (Decision, bool) {
        let records: Vec<_> = (0..EFFECTS).filter_map(|e| self.record_of(world, i, e)).collect();
        let replayed = !records.is_empty();
        let mut log = EffectLog::new(records);
        let mut shown = Vec::with_capacity(EFFECTS);
        loop {
            let asked = match self.calls(&shown) {
                Call::Write(asked) => ASKED[asked],
                call => return (Decision::Ends(call), replayed),
            };
            let decision = match log.next(asked, NOW) {
                Next::Replay(record) => {
                    shown.push(record.answer.as_ref().is_some_and(Answer::is_success));
                    continue;
                }
                Next::Repeat(record) => Decision::Repeat(record.ordinal.0 as usize - 1),
                Next::Fresh(ordinal) => self.fresh(&log, asked, ordinal.0 as usize - 1),
                Next::Diverged { .. } => unreachable!("the component is the same each time"),
            };
            return (decision, replayed);
        }
    }

    pub fn fresh(&self, log: &EffectLog, asked: EffectFingerprint, effect: usize) -> Decision {
        match log.own_retry(asked, self.scenario.class[effect]) {
            Retry::Refused(_) => Decision::Equal(effect),
            Retry::SameKey { .. } => {
                Decision::Fresh { effect, inherited: !self.on(Plant::OwnRetryNewWindow) }
            }
            Retry::New => {
                let beyond = log.writes_so_far() > u32::from(self.scenario.unplanned);
                if beyond && !self.on(Plant::LaterWritesRunFree) {
                    return Decision::Unplanned;
                }
                Decision::Fresh { effect, inherited: false }
            }
        }
    }

    pub fn calls(&self, shown: &[bool]) -> Call {
        let failure = || match self.scenario.on_failure {
            OnFailure::Refuse => Call::Refuse,
            OnFailure::TryLater => Call::TryLater,
        };
        match (self.scenario.program, shown) {
            (_, []) => Call::Write(0),
            (Program::One | Program::OwnRetry | Program::Fallback, [true]) => Call::Return,
            (Program::Two, [true]) => Call::Write(1),
            (Program::OwnRetry, [false]) => Call::Write(0),
            (Program::Fallback, [false]) => Call::Write(1),
            (_, [_, true]) => Call::Return,
            (_, _) => failure(),
        }
    }

    /// Where the planted rule is on, an attempt still knows what it was told
    /// itself.
    pub fn replays_refusal(&self, world: &World, i: usize, e: usize) -> bool {
        !self.on(Plant::RefusalNotReplayed) || usize::from(world.workers[i].effect) > e
    }

    /// An effect as the domain's row.
    pub fn record_of(&self, world: &World, i: usize, e: usize) -> Option<EffectRecord> {
        let effect = &world.effects[e];
        let status = effect.status?;
        let second = e == 1 && matches!(self.scenario.program, Program::Two | Program::Fallback);
        let k = self.key_of(e);
        let closed = world.keys[k].window_over && !self.on(Plant::SetAsideOutsideWindow);
        let first_sent = if closed { NOW.minus(WINDOW) } else { NOW };
        let sent = !effect.refusal || effect.send > 0;
        let refused = effect.refusal && self.replays_refusal(world, i, e);
        let mut terms = terms(&self.scenario, e);
        terms.class = self.class(world, e);
        if self.on(Plant::SetAsideOfAnyClass) {
            terms.class = RecoveryClass::ProviderIdempotent;
        }
        Some(EffectRecord {
            ordinal: Ordinal(e as u32 + 1),
            kind: EffectKind::Http,
            write: true,
            terms,
            fingerprint: ASKED[usize::from(second)],
            request: RecordedRequest {
                method: String::new(),
                url: String::new(),
                headers: Vec::new(),
                body: Vec::new(),
            },
            provider_key: sent.then(|| if k == 0 { "1".to_owned() } else { "2".to_owned() }),
            status,
            attempt: AttemptId(uuid::Uuid::nil()),
            send: SendNumber(u32::from(effect.send)),
            first_sent: sent.then_some(first_sent),
            last_sent: sent.then_some(first_sent),
            may_have_arrived: effect.arrived,
            unknown_since: None,
            answer: (effect.answer != Reply::Nothing).then(|| answer(effect.answer)),
            refusal: refused.then(|| Refusal::AddressProhibited(String::new())),
            set_aside: effect.aside,
            evidence: None,
            recorded_at: Some(NOW),
        })
    }

    pub fn set_aside(&self, world: &World, i: usize) -> Vec<usize> {
        let records = (0..EFFECTS).filter_map(|e| self.record_of(world, i, e)).collect();
        EffectLog::new(records).to_set_aside().iter().map(|ordinal| ordinal.0 as usize - 1).collect()
    }
}
