//! The database loses replies, is killed, stands still, and ends connections, while hosts work:
//! nothing is sent under a claim that is not confirmed, nothing twice, and work goes on when it is
//! back (FI-3).

use std::time::{Duration, Instant};

use crate::skip;
use crate::support::campaign::{Kind, Load, now};
use crate::support::fleet::Fleet;
use crate::support::grants::{Route, grant};
use crate::support::postgres::Cluster;
use crate::support::proxy::{self, Loses, Loss, Proxy};
use crate::support::seed::Seed;
use crate::support::stage::REFUNDS;
use crate::support::{Host, Stage, at_once, long, postgres};

const LEASE: &str = "lease = \"500ms\"";
const SEND: &str = "500ms";
/// The longest lease: a write's covers its send and a margin of five seconds.
const LONGEST: Duration = Duration::from_millis(5_500);

/// The tool `manual`, whose writes nobody may repeat.
pub fn install_manual(stage: &Stage) {
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("manual", &grant(&format!("[limits]\nsend = \"{SEND}\""), &[route]));
}

#[test]
fn e05_p1_connections_lost_during_the_commit_of_a_claim_or_record_send_nothing_that_is_not_claimed_and_nothing_twice()
 {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let database = cluster.database();
    let stage = Stage::over(Some(cluster.url(&database)), LEASE, SEND);
    install_manual(&stage);
    let proxy = Proxy::to(cluster.socket());
    let lossy = Host::asleep_over(Some(proxy.url(&database)), LEASE);
    lossy.borrow_tokens(&stage.host);
    lossy.wake();
    let mut unsent = 0;
    for (marker, name) in [
        (proxy::ACTION_CLAIM, "action claim"),
        (proxy::WRITE_CLAIM, "write claim"),
        (proxy::RECORD, "record"),
        (proxy::STEP, "any step"),
    ] {
        for loses in [Loses::Statement, Loses::Reply] {
            let before = proxy.lost();
            at_once(5, |caller| {
                for round in 0..long(1, 25) {
                    let key = format!("{name} {loses:?} {caller} {round}").replace(' ', "-").to_lowercase();
                    let manual = caller % 2 == 1;
                    let path = if manual { format!("/any/{key}") } else { REFUNDS.to_owned() };
                    let id = if manual {
                        let url = stage.url(&path);
                        let arguments = serde_json::json!({ "mode": "writes", "url": url, "bodies": [key] });
                        stage.approved("manual", &key, &arguments)
                    } else {
                        stage.approved("refund", &key, &stage.refund(&key.replace('-', ""), 100))
                    };
                    proxy.lose(Loss { marker, loses, after: 0, times: 1 });
                    // Told that it failed, that it runs, or that nobody knows: never that it is done.
                    let agent = lossy.agent();
                    let request = agent.request("POST", &format!("/v1/actions/{id}/execute?wait=0s"));
                    let told = agent.send(request);
                    assert!([200, 202, 409, 503].contains(&told.status()), "{key}: {}", told.json);
                    let ended = stage.wait_for(&id, &["succeeded", "outcome_unknown", "approved"]);
                    let ended = match ended.outcome().as_str() {
                        "succeeded" => ended,
                        "outcome_unknown" if manual => ended,
                        _ => stage.execute(&id),
                    };
                    let (sends, effects) = stage.counts(&path, &id);
                    assert!(effects <= 1, "{key}: {effects} effects");
                    let claims = stage.ledger(&id)[0]["send"].as_u64().unwrap_or(0) as usize;
                    assert!(sends <= claims, "{key}: {sends} sends under {claims} claims");
                    if manual {
                        assert!(sends <= 1, "{key}: {sends} sends of what may not be repeated");
                    } else {
                        assert_eq!(ended.outcome(), "succeeded", "{key}: {}", ended.json);
                        assert_eq!(effects, 1, "{key}");
                    }
                    stage.facts(&id);
                }
            });
            proxy.lose_nothing();
            let lost = proxy.lost() - before;
            assert!(lost > 0, "{name} {loses:?}: nothing was lost; the statement has other words now");
            if (marker, loses) == (proxy::WRITE_CLAIM, Loses::Reply) {
                unsent += lost;
            }
        }
    }
    // A claim whose reply was lost is in the ledger, and under it nothing was sent.
    let claims = cluster.sql(&database, "select sum(send) from effects where write");
    let claims: usize = claims.parse().expect("a count");
    let sends = stage.provider.requests("*").len();
    assert!(sends + unsent <= claims, "{sends} sends, {claims} claims, {unsent} of them not confirmed");
    eprintln!("{} losses, {claims} claims, {sends} sends", proxy.lost());
}

#[test]
fn break_15_a_claim_that_waits_for_a_lock_across_the_approvals_end_is_refused_and_nothing_is_sent() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let database = cluster.database();
    let stage = Stage::over(Some(cluster.url(&database)), LEASE, SEND);
    let route = Route::idempotent(stage.provider.port(), "/keyed/**");
    stage.install_probe("short", &grant("[approval]\nexpires_after = \"2s\"", &[route]));
    let url = stage.url("/keyed/locked");
    let arguments = serde_json::json!({ "mode": "writes", "url": url, "bodies": ["once"] });
    let id = stage.approved("short", "locked", &arguments);
    // It sleeps only if there is a row, and then holds it.
    let lock = format!(
        "select pg_sleep(3) from (select 1 from actions where encode(id, 'hex') = '{}' for update) as held",
        id.replace('-', "")
    );
    let told = std::thread::scope(|scope| {
        scope.spawn(|| cluster.sql(&database, &lock));
        let sleeps = format!(
            "select count(*) from pg_stat_activity where datname = '{database}' and wait_event = 'PgSleep'"
        );
        while cluster.sql("postgres", &sleeps) != "1" {}
        stage.execute(&id)
    });
    assert_eq!((told.status(), told.ending().as_str()), (200, "expired approval_expired"), "{}", told.json);
    assert_eq!(stage.provider.requests("/keyed/locked").len(), 0);
    assert!(!stage.facts(&id).contains(&"claimed".to_owned()));
}

/// A server of its own, two hosts, and the faults.
fn campaign(name: &str, fault: impl Fn(&Cluster, &str, &mut Seed) -> Vec<u64>) {
    let Some(cluster) = Cluster::new(&[]) else { return };
    campaign_on(cluster, name, fault);
}

fn campaign_on(cluster: Cluster, name: &str, fault: impl Fn(&Cluster, &str, &mut Seed) -> Vec<u64>) {
    let database = cluster.database();
    let mut seed = Seed::of_this_run(name);
    let fleet = Fleet::over(2, cluster.url(&database), LEASE, SEND);
    install_manual(&fleet.stage);
    let load = Load {
        stage: &fleet.stage,
        hosts: fleet.hosts(),
        kinds: &[Kind::Refund, Kind::Manual, Kind::Transfer],
        callers: 6,
        seed: seed.part(1),
    };
    let mut faults = Vec::new();
    let items = load.during(|| faults = fault(&cluster, &database, &mut seed));
    // Service goes on within half a minute.
    let begun = Instant::now();
    let agent = fleet.stage.host.agent();
    let ready = || agent.try_send(agent.request("GET", "/readyz")).is_ok_and(|told| told.status() == 200);
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: it does not go on");
        std::thread::sleep(Duration::from_millis(50));
    }
    let table = load.judge(&items, &faults, |kind| kind == Kind::Manual);
    let table = table.hold(name, &seed, LONGEST);
    assert!(table.actions > 5, "{name}: a run without load shows nothing: {table}");
    fleet.hosts().iter().for_each(|host| host.kill());
}

#[test]
fn fi_3_a_server_that_is_killed_and_started_again_under_load_loses_nothing_acknowledged_and_sends_nothing_twice()
 {
    campaign("server killed", |cluster, _, seed| {
        let mut faults = Vec::new();
        for _ in 0..long(3, 60) {
            std::thread::sleep(Duration::from_millis(700 + seed.below(1_500) as u64));
            faults.push(now());
            cluster.kill();
            std::thread::sleep(Duration::from_millis(seed.below(500) as u64));
            cluster.start();
        }
        std::thread::sleep(Duration::from_secs(1));
        faults
    });
}

#[test]
fn fi_3_connections_that_the_server_ends_all_the_time_lose_nothing_acknowledged_and_send_nothing_twice() {
    campaign("connections ended", |cluster, database, seed| {
        let mut faults = Vec::new();
        for _ in 0..long(20, 1_000) {
            std::thread::sleep(Duration::from_millis(50 + seed.below(400) as u64));
            faults.push(now());
            cluster.end_connections(database);
        }
        faults
    });
}

#[test]
fn fi_3_a_server_that_stands_still_under_load_and_goes_on_loses_nothing_and_sends_nothing_twice() {
    campaign("server stands still", |cluster, _, seed| {
        let mut faults = Vec::new();
        for _ in 0..long(2, 4) {
            std::thread::sleep(Duration::from_millis(500 + seed.below(1_000) as u64));
            faults.push(now());
            cluster.pause(Duration::from_secs(long(3, 30) as u64));
        }
        std::thread::sleep(Duration::from_secs(1));
        faults
    });
}

#[test]
fn fi_3_a_server_whose_disk_is_full_acknowledges_nothing_that_it_cannot_keep_and_goes_on_when_there_is_room()
{
    let Some(cluster) = Cluster::on_small_disk("200m") else { return };
    campaign_on(cluster, "disk full", |cluster, _, seed| {
        let mut faults = Vec::new();
        for _ in 0..long(2, 50) {
            std::thread::sleep(Duration::from_millis(1_000 + seed.below(1_000) as u64));
            faults.push(now());
            cluster.fill_disk(Duration::from_secs(2));
        }
        std::thread::sleep(Duration::from_secs(1));
        faults
    });
}
