//! A host that stands still (SIGSTOP) at each point of an attempt for longer than its leases, while
//! another host of the same ledger takes its work over, and that then goes on where it was.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countersign_gate::Point;
use serde_json::{Value, json};

use crate::skip;
use crate::support::fleet::execute_on;
use crate::support::grants::{Route, grant};
use crate::support::stage::REFUNDS;
use crate::support::{Host, Mode, Stage, at_once, postgres};

const LEASE: &str = "lease = \"500ms\"";
const SEND: &str = "500ms";

/// A host that halts at a point, and goes on when it is told to, once.
struct Sleeper {
    host: Host,
}

impl Sleeper {
    fn beside(stage: &Stage, point: Point, lease: &str) -> Sleeper {
        let host = stage.host.beside(lease);
        let mut command = host.command();
        command.env("COUNTERSIGN_HALT_AT", point.name()).env("COUNTERSIGN_HALT_UNTIL", host.file("go-on"));
        host.wake_with(&mut command);
        Sleeper { host }
    }

    /// Stands still at the point, with everything in it.
    fn sleep(&self) {
        self.host.wait_halted();
        self.host.stand_still();
        // It would go on now, if it could.
        std::fs::write(self.host.file("go-on"), "").expect("a file");
    }

    fn go_on(&self) {
        self.host.go_on();
    }
}

/// What is known of the attempt of a host that does not answer, by where it stands.
fn taken_over(point: Point) -> &'static str {
    match point {
        // It has claimed nothing, or has ended what it claimed.
        Point::BeforeClaim | Point::AfterEnd => "",
        Point::AfterWriteClaim | Point::BeforeFirstByte | Point::AfterAnswer => "outcome_lost",
        _ => "worker_lost",
    }
}

/// One host sleeps at each point while it runs an action of this tool, and wakes; what came of it
/// is for `judge` to say.
fn at_each_point(
    name: &str,
    mode: Mode,
    arguments: impl Fn(&Stage, &str) -> (String, Value) + Sync,
    judge: impl Fn(&Stage, &str, Point) + Sync,
) {
    let Some(cluster) = postgres::shared() else { return };
    let next = AtomicUsize::new(0);
    at_once(5, |_| {
        let stage = Stage::over(Some(cluster.url(&cluster.database())), LEASE, SEND);
        stage.provider.set_mode(mode);
        let route = Route::manual(stage.provider.port(), "/any/**");
        stage.install_probe("manual", &grant(&format!("[limits]\nsend = \"{SEND}\""), &[route]));
        while let Some(point) = Point::ALL.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let (tool, arguments) = arguments(&stage, point.name());
            let id = stage.approved(&tool, &format!("{name}-{}", point.name()), &arguments);
            let sleeper = Sleeper::beside(&stage, point, LEASE);
            std::thread::scope(|scope| {
                let caller = scope.spawn(|| execute_on(&sleeper.host, &id));
                sleeper.sleep();
                let fact = taken_over(point);
                if fact.is_empty() {
                    // Nothing shows that two leases are over.
                    std::thread::sleep(Duration::from_secs(1));
                } else {
                    // The other host's reaper notices, and does what it may; then one lease more.
                    stage.wait_for(&id, &["succeeded", "outcome_unknown"]);
                    std::thread::sleep(Duration::from_millis(500));
                    let facts = stage.facts(&id);
                    assert!(facts.iter().any(|known| known == fact), "{}: {facts:?}", point.name());
                }
                sleeper.go_on();
                // Whatever it is told, it is told something.
                let told = caller.join().expect("a caller").expect("an answer");
                assert!([200, 409].contains(&told.status()), "{}: {}", point.name(), told.json);
            });
            // It ends in good order: whatever it was about to do is done or left.
            assert_eq!(sleeper.host.stop().code(), Some(0), "{}", sleeper.host.said());
            judge(&stage, &id, point);
        }
    });
}

#[test]
fn e08_a_host_that_sleeps_for_two_leases_at_each_point_makes_no_second_effect_where_keys_are_honoured() {
    at_each_point(
        "honoured",
        Mode::Honours,
        |stage, at| ("refund".into(), stage.refund(&at.replace('-', ""), 4200)),
        |stage, id, point| {
            let told = stage.execute(id);
            assert_eq!(told.outcome(), "succeeded", "{}: {}", point.name(), told.json);
            let sent = stage.requests(REFUNDS, id);
            assert_eq!(stage.effects(REFUNDS, id).len(), 1, "{}", point.name());
            assert!(sent.len() <= 2, "{}: {} sends", point.name(), sent.len());
            assert!(
                sent.iter().all(|line| line.key == sent[0].key && line.body_sha256 == sent[0].body_sha256)
            );
            stage.facts(id);
        },
    );
}

#[test]
fn e08_a_host_that_sleeps_for_two_leases_at_each_point_never_leads_to_a_second_send_where_none_may_be_repeated()
 {
    at_each_point(
        "manual",
        Mode::Ignores,
        |stage, at| {
            let url = stage.url(&format!("/any/{at}"));
            ("manual".into(), json!({ "mode": "writes", "url": url, "bodies": ["once"] }))
        },
        |stage, id, point| {
            let path = format!("/any/{}", point.name());
            let ended = stage.wait_for(id, &["succeeded", "outcome_unknown"]);
            let (sends, effects) = stage.counts(&path, id);
            assert!(sends <= 1 && effects <= 1, "{}: {sends} sends: {}", point.name(), ended.json);
            if matches!(point, Point::AfterWriteClaim | Point::BeforeFirstByte) {
                // It looked once more before the first byte, and its lease was over.
                assert_eq!(sends, 0, "{}: sent under a lease that was over", point.name());
            }
            if ended.outcome() == "succeeded" {
                assert_eq!(effects, 1, "{}", point.name());
            }
            // Doubt only where the ledger could not know.
            let doubtful = taken_over(point) == "outcome_lost";
            assert!(doubtful || ended.outcome() == "succeeded", "{}: {}", point.name(), ended.json);
            stage.facts(id);
        },
    );
}

#[test]
fn a_host_that_sleeps_beyond_the_approvals_end_sends_nothing_when_it_wakes() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    // Its lease outlives the approval: only the approval can stop it.
    let lease = "lease = \"60s\"";
    let stage = Stage::over(Some(cluster.url(&cluster.database())), lease, SEND);
    let route = Route::idempotent(stage.provider.port(), "/keyed/**");
    let head = format!("[approval]\nexpires_after = \"2s\"\n[limits]\nsend = \"{SEND}\"");
    stage.install_probe("hasty", &grant(&head, &[route]));
    for point in [Point::BeforeClaim, Point::AfterClaim, Point::BeforeWriteClaim] {
        let path = format!("/keyed/{}", point.name());
        let arguments = json!({ "mode": "writes", "url": stage.url(&path), "bodies": ["once"] });
        // The other host must not run it either: this is about the one that slept.
        let sleeper = Sleeper::beside(&stage, point, lease);
        let id = stage.approved("hasty", point.name(), &arguments);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| execute_on(&sleeper.host, &id));
            sleeper.sleep();
            stage.host.stand_still();
            std::thread::sleep(Duration::from_millis(2_500));
            sleeper.go_on();
            let _ = caller.join().expect("a caller");
            stage.host.go_on();
        });
        let ended = stage.wait_for(&id, &["expired", "succeeded", "failed_terminal", "cancelled"]);
        assert_eq!(ended.outcome(), "expired", "{}: {}", point.name(), ended.json);
        assert_eq!(stage.counts(&path, &id), (0, 0), "{}", point.name());
        stage.facts(&id);
    }
}
