//! Load for fault campaigns, and the judge of what came of it.
//!
//! Callers propose, approve and execute through whichever host answers, and write down what was
//! acknowledged to them. When the faults are over, every action is asked to its end. Then three
//! witnesses are compared: the provider's log, the ledger with its events, and the answers that
//! callers were given.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use countersign_domain::time::Timestamp;
use serde_json::{Value, json};

use super::at_once;
use super::host::Host;
use super::provider::Line;
use super::seed::Seed;
use super::stage::{Stage, body, verified_events};
use super::told::Told;

/// What an action does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One write, under a key that may be repeated.
    Refund,
    /// A read and four such writes.
    Transfer,
    /// One write that nobody may repeat, by the tool `manual`.
    Manual,
}

/// One action of the load.
#[derive(Debug, Clone)]
pub struct Item {
    kind: Kind,
    key: String,
    /// Its id, once a proposal was acknowledged.
    id: Option<String>,
    /// An approval was acknowledged.
    approved: bool,
    /// The result that was acknowledged, byte for byte.
    result: Option<String>,
}

/// How long an action may take to its end once the faults are over, beyond two leases.
const PATIENCE: Duration = Duration::from_secs(45);

/// Callers, and the hosts that they ask.
pub struct Load<'a> {
    /// Provider, and the host that is asked when all is over.
    pub stage: &'a Stage,
    /// Hosts that are asked meanwhile.
    pub hosts: Vec<&'a Host>,
    /// What is asked of them, in turn.
    pub kinds: &'a [Kind],
    /// Callers at the same time.
    pub callers: usize,
    /// Who asks which host what.
    pub seed: Seed,
}

impl Load<'_> {
    /// Keeps all callers busy for as long as `fault` takes.
    pub fn during(&self, fault: impl FnOnce()) -> Vec<Item> {
        let over = AtomicBool::new(false);
        let begun = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let callers = scope.spawn(|| {
                at_once(self.callers, |caller| {
                    let mut order = self.seed.part(caller as u64);
                    let mut items = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let n = begun.fetch_add(1, Ordering::Relaxed);
                        let mut item = Item {
                            kind: self.kinds[n % self.kinds.len()],
                            key: format!("item-{n}"),
                            id: None,
                            approved: false,
                            result: None,
                        };
                        self.drive(&mut item, &mut order, &over);
                        items.push(item);
                    }
                    items
                })
            });
            fault();
            over.store(true, Ordering::Relaxed);
            callers.join().expect("the callers").concat()
        })
    }

    /// Proposes, approves and executes once, each again until it is answered or all is over.
    fn drive(&self, item: &mut Item, order: &mut Seed, over: &AtomicBool) {
        let (tool, arguments) = self.asked(item);
        while item.id.is_none() {
            match propose(self.any(order), tool, &item.key, &arguments) {
                Ok(told) if matches!(told.status(), 200 | 201) => item.id = Some(told.id()),
                _ if over.load(Ordering::Relaxed) => return,
                _ => pause(),
            }
        }
        let id = item.id.clone().unwrap_or_default();
        while !item.approved {
            match approve(self.any(order), &id) {
                Ok(told) if told.status() == 200 || told.text("/code") == "invalid_state" => {
                    item.approved = true;
                }
                _ if over.load(Ordering::Relaxed) => return,
                _ => pause(),
            }
        }
        let agent = self.any(order).agent();
        let told = agent.try_send(agent.request("POST", &format!("/v1/actions/{id}/execute?wait=3s")));
        if let Ok(told) = told
            && told.outcome() == "succeeded"
        {
            item.result = Some(told.raw("result"));
        }
    }

    fn any(&self, order: &mut Seed) -> &Host {
        self.hosts[order.below(self.hosts.len())]
    }

    fn asked(&self, item: &Item) -> (&'static str, Value) {
        match item.kind {
            Kind::Refund => ("refund", self.stage.refund(&item.key.replace('-', ""), 100)),
            Kind::Transfer => ("transfer", self.stage.transfer(1_000)),
            Kind::Manual => {
                let url = self.stage.url(&format!("/any/{}", item.key));
                ("manual", json!({ "mode": "writes", "url": url, "bodies": [item.key] }))
            }
        }
    }

    /// Asks every action to its end, and judges. `doubt_may_stay`: for kinds whose outcome only a
    /// person can settle.
    pub fn judge(
        &self,
        items: &[Item],
        kills: &[u64],
        doubt_may_stay: impl Fn(Kind) -> bool + Sync,
    ) -> Table {
        let next = AtomicUsize::new(0);
        let items: Vec<Mutex<Item>> = items.iter().cloned().map(Mutex::new).collect();
        let given_up = AtomicUsize::new(0);
        let stuck: Vec<String> = at_once(8, |_| {
            let mut stuck = Vec::new();
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                // A few show it as well as all of them.
                if given_up.load(Ordering::Relaxed) > 3 {
                    break;
                }
                let mut item = item.lock().expect("an item");
                if let Err(why) = self.to_its_end(&mut item, &doubt_may_stay) {
                    stuck.push(why);
                    given_up.fetch_add(1, Ordering::Relaxed);
                }
            }
            stuck
        })
        .concat();
        let mut table = Table { broken: stuck, kills: kills.len(), ..Table::default() };
        let seen = Seen::of(self.stage.provider.log());
        for item in &items {
            self.judge_one(&item.lock().expect("an item"), &seen, kills, &mut table);
        }
        table.broken.extend(seen.of_nobody(&items));
        table
    }

    /// Proposes and approves what was not acknowledged, and executes until it is over.
    fn to_its_end(&self, item: &mut Item, doubt_may_stay: &impl Fn(Kind) -> bool) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        let host = &self.stage.host;
        let (tool, arguments) = self.asked(item);
        let mut last = String::new();
        while Instant::now() < until {
            let asked = (|| {
                let told = propose(host, tool, &item.key, &arguments)?;
                if !matches!(told.status(), 200 | 201) {
                    return Ok(Ok(told));
                }
                let id = told.id();
                // What was acknowledged is still there.
                if item.id.get_or_insert_with(|| id.clone()) != &id || (item.approved && told.status() == 201)
                {
                    return Ok(Err(format!("{}: what was acknowledged is gone: {}", item.key, told.json)));
                }
                if told.outcome() == "awaiting_approval" {
                    if item.approved {
                        return Ok(Err(format!("{}: an acknowledged approval is gone", item.key)));
                    }
                    approve(host, &id)?;
                }
                let agent = host.agent();
                agent.try_send(agent.request("POST", &format!("/v1/actions/{id}/execute?wait=10s"))).map(Ok)
            })();
            let told: Told = match asked {
                Ok(Ok(told)) => told,
                Ok(Err(lost)) => return Err(lost),
                Err::<_, std::io::Error>(error) => {
                    last = error.to_string();
                    pause();
                    continue;
                }
            };
            let over = ["succeeded", "failed_terminal", "cancelled", "expired"];
            if over.contains(&told.outcome().as_str()) {
                return Ok(());
            }
            if told.outcome() == "execution_in_doubt" && doubt_may_stay(item.kind) {
                return Ok(());
            }
            last = told.answer.text();
            pause();
        }
        Err(format!("{}: stuck: {last}", item.key))
    }

    fn judge_one(&self, item: &Item, seen: &Seen, kills: &[u64], table: &mut Table) {
        let Some(id) = &item.id else { return };
        table.actions += 1;
        let action = self.stage.action(id);
        let outcome = action.outcome();
        *table.ended.entry(action.ending()).or_default() += 1;
        let mut wrong = |what: String| table.broken.push(format!("{} ({id}): {what}", item.key));
        if let Some(result) = &item.result
            && (outcome != "succeeded" || action.raw("result") != *result)
        {
            table.lost += 1;
            wrong(format!("an acknowledged result was lost: {result}, now {}", action.json));
        }
        if item.kind != Kind::Manual && outcome == "failed_terminal" {
            let code = action.text("/error/code");
            // A budget that kills have spent is an end; anything else is not.
            if code != "retries_exhausted" {
                wrong(format!("it failed: {}", action.json));
            }
        }
        let expires = moment(&action.json["approval"]["expires_at"]);
        let mut sends = BTreeMap::new();
        for effect in self.stage.ledger(id) {
            let Some(key) = effect["provider_key"].as_str() else { continue };
            let made = seen.effects.get(key).copied().unwrap_or_default();
            let first = moment(&effect["first_sent_at"]);
            if sends.is_empty() && first.zip(expires).is_some_and(|(first, expires)| first >= expires) {
                wrong(format!("{key} was first sent when its approval was over"));
            }
            sends.insert(key.to_owned(), effect["send"].as_u64().unwrap_or_default());
            // Any definite answer stands as one; a refusal by the provider is no effect.
            let done = effect["answer"]["status"].as_u64().is_some_and(|status| status < 300);
            if effect["status"] == "succeeded" && done && made != 1 {
                wrong(format!("the ledger says that {key} was made, the provider {made} times"));
            }
            if effect["status"] == "in_flight" && outcome != "executing" {
                wrong(format!("{key} is in flight and nobody runs it"));
            }
        }
        for (key, requests) in seen
            .requests
            .range(format!("tool-action:{id}")..)
            .take_while(|(key, _)| key.contains(id.as_str()))
        {
            let claimed = sends.get(key).copied().unwrap_or_default();
            table.sends += requests.len();
            if requests.len() as u64 > claimed {
                wrong(format!("{key} was sent {} times under {claimed} claims", requests.len()));
            }
            if item.kind == Kind::Manual && requests.len() > 1 {
                wrong(format!("{key} may not be repeated and was sent {} times", requests.len()));
            }
            if requests.iter().collect::<BTreeSet<_>>().len() > 1 {
                wrong(format!("{key} was sent with different bodies"));
            }
            let made = seen.effects.get(key).copied().unwrap_or_default();
            table.effects += made;
            if made > 1 {
                table.duplicates += made - 1;
                wrong(format!("{key} was made {made} times"));
            }
        }
        table.unknown += usize::from(outcome == "outcome_unknown");
        for event in verified_events(&self.stage.host, id) {
            let name = body(&event).fact.name();
            let at = u64::try_from(event.at.as_micros()).unwrap_or_default();
            table.doubts += usize::from(name == "outcome_lost");
            if matches!(name, "outcome_lost" | "worker_lost")
                && let Some(kill) = kills.iter().rev().find(|kill| **kill <= at)
            {
                table.recovered.push(Duration::from_micros(at - kill));
            }
        }
    }
}

/// A moment that the host named.
fn moment(value: &Value) -> Option<Timestamp> {
    serde_json::from_value(value.clone()).ok()
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn propose(host: &Host, tool: &str, key: &str, arguments: &Value) -> std::io::Result<Told> {
    let agent = host.agent();
    let text = json!({ "tool": tool, "arguments": arguments }).to_string();
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", key);
    agent.try_send(request.body("application/json", text))
}

fn approve(host: &Host, id: &str) -> std::io::Result<Told> {
    let approver = host.approver();
    approver.try_send(approver.request("POST", &format!("/v1/actions/{id}/approve")))
}

/// Microseconds since 1970, by this machine's clock, which is the database's, too.
#[expect(clippy::disallowed_methods, reason = "compared with times that the database gave")]
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_micros()).expect("before the year 586000")
}

/// The provider's log, by key.
struct Seen {
    requests: BTreeMap<String, Vec<String>>,
    effects: BTreeMap<String, usize>,
}

impl Seen {
    fn of(log: Vec<Line>) -> Seen {
        let mut seen = Seen { requests: BTreeMap::new(), effects: BTreeMap::new() };
        for line in log {
            let Some(key) = line.key else { continue };
            match line.event.as_str() {
                "request" => seen.requests.entry(key).or_default().push(line.body_sha256),
                "effect" => *seen.effects.entry(key).or_default() += 1,
                _ => {}
            }
        }
        seen
    }

    /// Effects that belong to no action of the load.
    fn of_nobody(&self, items: &[Mutex<Item>]) -> Vec<String> {
        let known: BTreeSet<String> =
            items.iter().filter_map(|item| item.lock().expect("an item").id.clone()).collect();
        let foreign = |key: &&String| !known.contains(key.split(':').nth(1).unwrap_or_default());
        self.effects.keys().filter(foreign).map(|key| format!("{key}: made for no action")).collect()
    }
}

/// What a campaign counted.
#[derive(Debug, Default)]
pub struct Table {
    /// Faults of the campaign's own kind.
    pub kills: usize,
    /// Actions.
    pub actions: usize,
    /// Requests that the provider got.
    pub sends: usize,
    /// What it did.
    pub effects: usize,
    /// What it did too often.
    pub duplicates: usize,
    /// Acknowledged results that changed or went.
    pub lost: usize,
    /// Actions that wait for a person.
    pub unknown: usize,
    /// Times that an outcome was in doubt, settled or not.
    pub doubts: usize,
    /// From a death to the event that says so.
    pub recovered: Vec<Duration>,
    /// How many ended how.
    pub ended: BTreeMap<String, usize>,
    /// What may not be.
    pub broken: Vec<String>,
}

impl Table {
    /// Takes another round's counts in.
    pub fn add(&mut self, other: Table) {
        self.kills += other.kills;
        self.actions += other.actions;
        self.sends += other.sends;
        self.effects += other.effects;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.unknown += other.unknown;
        self.doubts += other.doubts;
        self.recovered.extend(other.recovered);
        other.ended.into_iter().for_each(|(how, many)| *self.ended.entry(how).or_default() += many);
        self.broken.extend(other.broken);
    }

    /// Shows itself under a name, and panics if anything was broken. `lease`: the longest that was
    /// given, in whose multiples recovery is told.
    #[track_caller]
    pub fn hold(mut self, name: &str, seed: &Seed, lease: Duration) -> Table {
        self.recovered.sort();
        let at = |share: f64| {
            let index = (self.recovered.len() as f64 * share) as usize;
            self.recovered.get(index.min(self.recovered.len().saturating_sub(1))).copied()
        };
        let times = |found: Option<Duration>| {
            found.map_or("-".into(), |time| format!("{:.2}", time.as_secs_f64() / lease.as_secs_f64()))
        };
        eprintln!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.kills,
            self.actions,
            self.sends,
            self.effects,
            self.duplicates,
            self.lost,
            self.doubts,
            self.unknown,
            times(at(0.5)),
            times(at(0.99)),
        );
        assert!(self.broken.is_empty(), "{name}, {seed:?}: {self}");
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} actions ended: {:?}", self.actions, self.ended)?;
        self.broken.iter().try_for_each(|what| writeln!(f, "{what}"))
    }
}
