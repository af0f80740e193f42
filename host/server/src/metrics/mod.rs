//! What this host counted, as Prometheus reads it.
//!
//! Two sources, and a scrape costs one read of the ledger at most: counters of
//! what passed through this host's hands ([`observed`]), and a census of the
//! actions that wait, which is one statement over an index and the same on every
//! host of a database. The census is kept for [`KEPT`], so that scraping often
//! costs nothing.
//!
//! No label comes from outside: names of tools and tenants are as many as people
//! make them.

mod observed;
mod process;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::AttemptId;
use countersign_store::StoreError;
use countersign_store::health::Census;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::Mutex as AsyncMutex;

pub use observed::Observed;
pub use prometheus_text::CONTENT_TYPE;

/// How long a census is good for. Chosen: shorter than any usual interval
/// between scrapes, long enough that many scrapers cost one read.
const KEPT: Duration = Duration::from_secs(5);

/// How long a scrape waits for it. What was counted here is told without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bounds of a step's duration, seconds: from a commit in memory to one that
/// waited for a slow disk or for a lock.
const BOUNDS: [f64; 11] = [0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];

/// Claimed sends whose record has not come yet, at most; far more than one host
/// runs. Beyond it (records that never came because the store failed) they are
/// forgotten, and counted without a class.
const SENDS_AT_MOST: usize = 4096;

/// Where a census comes from.
pub type Count =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Census, StoreError>> + Send>> + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct To {
    to: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Claim {
    of: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Sent {
    class: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct For {
    r#for: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepName {
    step: &'static str,
}

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    proposals: Counter,
    transitions: Family<To, Counter>,
    claims: Family<Claim, Counter>,
    sends: Family<Sent, Counter>,
    leases_lost: Counter,
    leases_reaped: Counter,
    steps: Family<StepName, Histogram, fn() -> Histogram>,
    failures: Family<StepName, Counter>,
    webhooks: Family<Outcome, Counter>,
    webhooks_waiting: Gauge<i64, AtomicI64>,
    announced: Counter,
    actions: Family<InState, Gauge<i64, AtomicI64>>,
    waiting: Family<For, Gauge<i64, AtomicI64>>,
    running: Gauge<i64, AtomicI64>,
    store_up: Gauge<i64, AtomicI64>,
    process: process::Figures,
    /// Sends that are claimed and not recorded, by their attempt.
    open: Mutex<HashMap<AttemptId, RecoveryClass>>,
    count: Option<Count>,
    census: AsyncMutex<Option<(Instant, Census)>>,
}

impl Metrics {
    /// Nothing counted yet. Without a way to count, only what passes through
    /// this host is.
    pub fn new(count: Option<Count>) -> Metrics {
        let mut all = Registry::with_prefix("countersign");
        let steps = Family::<_, _, fn() -> Histogram>::new_with_constructor(|| Histogram::new(BOUNDS));
        let metrics = Metrics {
            proposals: Counter::default(),
            transitions: Family::default(),
            claims: Family::default(),
            sends: Family::default(),
            leases_lost: Counter::default(),
            leases_reaped: Counter::default(),
            steps,
            failures: Family::default(),
            webhooks: Family::default(),
            webhooks_waiting: Gauge::default(),
            announced: Counter::default(),
            actions: Family::default(),
            waiting: Family::default(),
            running: Gauge::default(),
            store_up: Gauge::default(),
            process: process::Figures::default(),
            open: Mutex::default(),
            count,
            census: AsyncMutex::default(),
            registry: Registry::default(),
        };
        all.register(
            "proposals",
            "Actions that were proposed to this host and had not been before",
            metrics.proposals.clone(),
        );
        all.register(
            "transitions",
            "Transitions that this host made, by where they led",
            metrics.transitions.clone(),
        );
        all.register(
            "claims",
            "Claims of actions, of writes, and of writes again; refused: somebody else was first, or a condition did \
             not hold",
            metrics.claims.clone(),
        );
        all.register(
            "sends",
            "Writes that this host claimed, by recovery class and by what is known of them",
            metrics.sends.clone(),
        );
        all.register(
            "leases_lost",
            "Attempts of this host that were told that their lease is no longer theirs",
            metrics.leases_lost.clone(),
        );
        all.register(
            "leases_reaped",
            "Attempts, anybody's, whose lease ran out and which this host ended",
            metrics.leases_reaped.clone(),
        );
        all.register_with_unit(
            "store_step",
            "How long steps of the ledger took, flush and waiting for a turn included",
            Unit::Seconds,
            metrics.steps.clone(),
        );
        all.register("store_failures", "Steps of the ledger that failed", metrics.failures.clone());
        all.register("webhook_deliveries", "Attempts to deliver a webhook", metrics.webhooks.clone());
        all.register(
            "webhook_waiting",
            "Announcements of this host that no receiver has acknowledged yet",
            metrics.webhooks_waiting.clone(),
        );
        all.register(
            "announcements",
            "Actions that began to wait for a person, and whose receivers, if any, were told by this host",
            metrics.announced.clone(),
        );
        all.register(
            "actions",
            "Actions in the ledger that are not over, by state; counted up to 10000 each",
            metrics.actions.clone(),
        );
        all.register(
            "waiting_for_person",
            "Actions in the ledger that go on only when a person decides or says what happened",
            metrics.waiting.clone(),
        );
        all.register("attempts_running", "Attempts that this host runs now", metrics.running.clone());
        all.register(
            "store_up",
            "Whether the ledger could be counted for this scrape",
            metrics.store_up.clone(),
        );
        metrics.process.register(&mut all);
        Metrics { registry: all, ..metrics }
    }

    /// The text of a scrape. `running`: attempts that this host runs now.
    pub async fn scrape(&self, running: usize) -> String {
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.count_actions().await;
        self.process.look();
        let mut text = String::new();
        if let Err(error) = prometheus_text::encode(&mut text, &self.registry) {
            // Writing to a string does not fail.
            tracing::error!(%error, "the metrics could not be written");
        }
        text
    }

    async fn count_actions(&self) {
        let Some(count) = &self.count else { return };
        let mut kept = self.census.lock().await;
        if kept.as_ref().is_none_or(|(at, _)| at.elapsed() >= KEPT) {
            match tokio::time::timeout(PATIENCE, count()).await {
                Ok(Ok(census)) => *kept = Some((Instant::now(), census)),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the actions could not be counted");
                    *kept = None;
                }
                Err(_) => *kept = None,
            }
        }
        let Some((_, census)) = &*kept else {
            // A number that is not known is not the last one that was.
            self.store_up.set(0);
            self.actions.clear();
            self.waiting.clear();
            return;
        };
        self.store_up.set(1);
        for (state, number) in &census.open {
            self.actions.get_or_create(&InState { state: state.as_str() }).set(i64::from(*number));
            if *state == countersign_domain::action::State::AwaitingApproval {
                self.waiting.get_or_create(&For { r#for: "approval" }).set(i64::from(*number));
            }
        }
        self.waiting.get_or_create(&For { r#for: "outcome" }).set(i64::from(census.waiting_for_person));
    }

    /// Everybody was told that an action waits for a person.
    pub fn announced(&self) {
        self.announced.inc();
    }

    /// A webhook was tried.
    pub fn webhook(&self, delivered: bool) {
        let outcome = if delivered { "delivered" } else { "failed" };
        self.webhooks.get_or_create(&Outcome { outcome }).inc();
    }

    /// Announcements that wait to be delivered.
    pub fn webhooks_waiting(&self, number: usize) {
        self.webhooks_waiting.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    fn moved(&self, to: countersign_domain::action::State) {
        self.transitions.get_or_create(&To { to: to.as_str() }).inc();
    }

    fn claim(&self, of: &'static str, made: bool) {
        let outcome = if made { "made" } else { "refused" };
        self.claims.get_or_create(&Claim { of, outcome }).inc();
    }

    fn send_claimed(&self, attempt: AttemptId, class: RecoveryClass) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= SENDS_AT_MOST {
            open.clear();
        }
        open.insert(attempt, class);
    }

    fn send_ended(&self, attempt: AttemptId, outcome: Option<&'static str>) {
        let class = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&attempt);
        let (Some(class), Some(outcome)) = (class, outcome) else { return };
        self.sends.get_or_create(&Sent { class: word(class), outcome }).inc();
    }

    fn stepped(&self, step: &'static str, took: Duration, failed: bool) {
        let step = StepName { step };
        self.steps.get_or_create(&step).observe(took.as_secs_f64());
        if failed {
            self.failures.get_or_create(&step).inc();
        }
    }
}

const fn word(class: RecoveryClass) -> &'static str {
    match class {
        RecoveryClass::Read => "read",
        RecoveryClass::ProviderIdempotent => "provider-idempotent",
        RecoveryClass::Verifiable => "verifiable",
        RecoveryClass::Manual => "manual",
    }
}

/// A number of bytes, or of anything else that the system counts.
type Reading = Gauge<i64, AtomicI64>;
/// A number that only grows and is read, not counted, here.
type Grown = Counter<f64, AtomicU64>;

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Metrics").field("open_sends", &open).finish_non_exhaustive()
    }
}

/// How a counter that is read is moved on to what was read.
fn grow(counter: &Grown, to: f64) {
    let behind = to - counter.get();
    if behind > 0.0 {
        counter.inc_by(behind);
    }
}

/// One number, for tests and for nothing else.
#[cfg(test)]
fn number(counter: &Counter<u64, AtomicU64>) -> u64 {
    counter.inner().load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use countersign_domain::action::State;

    use super::*;

    fn line<'a>(text: &'a str, begins: &str) -> Option<&'a str> {
        text.lines().find(|line| line.starts_with(begins))
    }

    #[tokio::test]
    async fn a_scrape_counts_the_ledger_once_and_says_when_it_could_not() {
        let asked = std::sync::Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let metrics = Metrics::new(Some(Box::new(move || {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if nth > 0 {
                    return Err(StoreError::Unavailable { what: "gone".into() });
                }
                Ok(Census { open: vec![(State::AwaitingApproval, 3)], waiting_for_person: 2 })
            })
        })));
        for _ in 0..3 {
            let text = metrics.scrape(1).await;
            assert_eq!(
                line(&text, "countersign_actions{"),
                Some("countersign_actions{state=\"awaiting_approval\"} 3")
            );
            assert!(text.contains("countersign_waiting_for_person{for=\"approval\"} 3"), "{text}");
            assert!(text.contains("countersign_waiting_for_person{for=\"outcome\"} 2"), "{text}");
            assert!(text.contains("countersign_store_up 1"), "{text}");
            assert!(text.contains("countersign_attempts_running 1"), "{text}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        *metrics.census.lock().await = None;
        let text = metrics.scrape(0).await;
        assert!(text.contains("countersign_store_up 0"), "{text}");
        assert_eq!(
            line(&text, "countersign_actions{"),
            None,
            "a number that is not known is not the last one"
        );
    }

    #[test]
    fn a_send_is_counted_once_under_the_class_that_it_was_claimed_with() {
        let metrics = Metrics::new(None);
        let attempt: AttemptId = "7a4c1f0e-9b1d-4b0e-8f1a-0c9d8e7f6a5b".parse().expect("an id");
        metrics.send_claimed(attempt, RecoveryClass::Manual);
        metrics.send_ended(attempt, Some("unknown"));
        metrics.send_ended(attempt, Some("unknown"));
        let counted = metrics.sends.get_or_create(&Sent { class: "manual", outcome: "unknown" }).clone();
        assert_eq!(number(&counted), 1);
        // Ended by somebody else: it says nothing of a send.
        metrics.send_claimed(attempt, RecoveryClass::Manual);
        metrics.send_ended(attempt, None);
        assert_eq!(number(&counted), 1);
    }
}
