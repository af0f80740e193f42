//! Hosts that are killed at random under load (FI-1) and hosts that stand still at random while
//! others take over, under a clock that jumps (FI-5). Each with a provider that honours keys, one
//! that ignores them, and one that forgets them.

use std::time::{Duration, Instant};

use crate::on_both_stores;
use crate::skip;
use crate::support::campaign::{Kind, Load, now};
use crate::support::fleet::Fleet;
use crate::support::grants::{self, Route, grant, sending_for};
use crate::support::seed::Seed;
use crate::support::{Backend, Mode, Stage, long, postgres};

on_both_stores! {
    fi_1_hosts_killed_at_random_where_keys_are_honoured_make_every_effect_once_and_lose_no_result,
    fi_1_hosts_killed_at_random_where_keys_are_ignored_send_nothing_twice,
    fi_1_hosts_killed_at_random_where_keys_are_forgotten_repeat_inside_the_window_only,
}

const LEASE: &str = "lease = \"500ms\"";
const SEND: &str = "500ms";
/// The longest lease: a write's covers its send and a margin of five seconds.
const LONGEST: Duration = Duration::from_millis(5_500);
const CALLERS: usize = 6;

/// The tool `manual`, whose writes nobody may repeat.
fn install_manual(stage: &Stage) {
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("manual", &grant(&format!("[limits]\nsend = \"{SEND}\""), &[route]));
}

/// One host over a file, or two over a database.
fn fleet(on: Backend, send: &str) -> Fleet {
    let fleet = match on.new_store() {
        Some(url) => Fleet::over(2, url, LEASE, send),
        None => Fleet { stage: Stage::on_with(on, LEASE, send), others: Vec::new() },
    };
    install_manual(&fleet.stage);
    fleet
}

/// Kills hosts at random for the campaign's time. `dead` is called while one is.
fn kill_at_random(fleet: &Fleet, seed: &Seed, mut dead: impl FnMut(&mut Seed)) -> Vec<u64> {
    let until = Instant::now() + Duration::from_secs(long(8, 300) as u64);
    let mut order = seed.part(99);
    let mut kills = Vec::new();
    while Instant::now() < until {
        std::thread::sleep(Duration::from_micros(200_000 + order.next() % 1_300_000));
        let victim = fleet.host(order.below(fleet.hosts().len()));
        kills.push(now());
        victim.kill();
        dead(&mut order);
        victim.wake();
    }
    kills
}

fn fi_1_hosts_killed_at_random_where_keys_are_honoured_make_every_effect_once_and_lose_no_result(
    on: Backend,
) {
    let seed = Seed::of_this_run("kills, keys honoured");
    let fleet = fleet(on, SEND);
    let kinds = &[Kind::Refund, Kind::Transfer, Kind::Manual];
    let load =
        Load { stage: &fleet.stage, hosts: fleet.hosts(), kinds, callers: CALLERS, seed: seed.clone() };
    let mut kills = Vec::new();
    let items = load.during(|| kills = kill_at_random(&fleet, &seed, |_| {}));
    let table = load.judge(&items, &kills, |kind| kind == Kind::Manual);
    let table = table.hold(&format!("kills, keys honoured, {}", name(on)), &seed, LONGEST);
    // Doubt only where a death fell between first byte and record: at most one for each caller.
    assert!(table.doubts <= kills.len() * CALLERS, "{seed:?}: {} doubts", table.doubts);
    assert!(table.actions > 20 && kills.len() > 3, "a run without load or kills shows nothing: {table}");
    // Recovered within two leases; an embedded store knows at once.
    let slow = table.recovered.iter().filter(|time| **time > 2 * LONGEST).count();
    assert!(slow * 100 <= table.recovered.len(), "{seed:?}: {:?}", table.recovered);
}

fn fi_1_hosts_killed_at_random_where_keys_are_ignored_send_nothing_twice(on: Backend) {
    let seed = Seed::of_this_run("kills, keys ignored");
    let fleet = fleet(on, SEND);
    fleet.stage.provider.set_mode(Mode::Ignores);
    let kinds = &[Kind::Manual];
    let load =
        Load { stage: &fleet.stage, hosts: fleet.hosts(), kinds, callers: CALLERS, seed: seed.clone() };
    let mut kills = Vec::new();
    let items = load.during(|| kills = kill_at_random(&fleet, &seed, |_| {}));
    let table = load.judge(&items, &kills, |_| true);
    let table = table.hold(&format!("kills, keys ignored, {}", name(on)), &seed, LONGEST);
    assert!(table.unknown <= kills.len() * CALLERS, "{seed:?}: {} unknown", table.unknown);
    assert!(table.actions > 20 && kills.len() > 3, "a run without load or kills shows nothing: {table}");
}

/// What a grant says of a provider that forgets keys after a minute.
fn forgetful(grant: &str) -> String {
    let class = "recovery = \"provider-idempotent\"\n";
    grant.replace(class, &format!("{class}key_retention = \"60s\"\n"))
}

fn fi_1_hosts_killed_at_random_where_keys_are_forgotten_repeat_inside_the_window_only(on: Backend) {
    let seed = Seed::of_this_run("kills, keys forgotten");
    // What is left of the key's minute after the longest send is when a repeat may begin. Over a
    // file, recovery is at once and that is three seconds; over a database it takes a lease, and
    // both clocks are moved while hosts are dead.
    let (send, keeps) = if on.is_shared() { (SEND, 60) } else { ("57s", 4) };
    let (fleet, database) = match on {
        Backend::Sqlite => (Fleet { stage: Stage::on_with(on, LEASE, send), others: Vec::new() }, None),
        Backend::Postgres(cluster) => {
            let database = cluster.database();
            (Fleet::over(2, cluster.url(&database), LEASE, send), Some((cluster, database)))
        }
    };
    let stage = &fleet.stage;
    let port = stage.provider.port();
    stage.provider.set_mode(Mode::Forgets);
    stage.provider.set_key_retention(Duration::from_secs(keeps));
    for (tool, grant) in [("refund", grants::refund(port)), ("transfer", grants::transfer(port))] {
        stage.put_grant(tool, &sending_for(&forgetful(&grant), send)).expect(200);
    }
    let kinds = &[Kind::Refund, Kind::Transfer];
    let load = Load { stage, hosts: fleet.hosts(), kinds, callers: CALLERS, seed: seed.clone() };
    let mut moved = 0u64;
    let mut kills = Vec::new();
    let items = load.during(|| {
        kills = kill_at_random(&fleet, &seed, |order| {
            let Some((cluster, database)) = &database else { return };
            if order.below(2) == 0 {
                let by = 20 + order.below(60) as u64;
                moved += by;
                // The ledger's clock last: it must not be behind the provider's.
                stage.provider.advance_clock(Duration::from_secs(by));
                cluster.sql(database, &clock_ahead_by(moved));
            }
        });
    });
    let mut table = load.judge(&items, &[], |_| true);
    // Where clocks are moved, times tell nothing.
    table.kills = kills.len();
    let table = table.hold(&format!("kills, keys forgotten, {}", name(on)), &seed, LONGEST);
    assert!(table.actions > 20 && kills.len() > 3, "a run without load or kills shows nothing: {table}");
}

/// The database's clock, moved ahead.
fn clock_ahead_by(seconds: u64) -> String {
    format!(
        "create or replace function countersign_now() returns bigint language sql volatile as \
         $$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint + {seconds}::bigint * 1000000 $$"
    )
}

fn name(on: Backend) -> &'static str {
    if on.is_shared() { "PostgreSQL" } else { "SQLite" }
}

#[test]
fn fi_5_hosts_that_stand_still_at_random_and_a_clock_that_jumps_make_no_second_effect() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let seed = Seed::of_this_run("pauses and clocks");
    let database = cluster.database();
    let fleet = Fleet::over(3, cluster.url(&database), LEASE, SEND);
    install_manual(&fleet.stage);
    let kinds = &[Kind::Refund, Kind::Transfer, Kind::Manual];
    let load =
        Load { stage: &fleet.stage, hosts: fleet.hosts(), kinds, callers: CALLERS, seed: seed.clone() };
    let (mut pauses, mut moved) = (0, 0);
    let items = load.during(|| {
        let mut order = seed.part(98);
        for round in 0..long(6, 500) {
            std::thread::sleep(Duration::from_millis(200 + order.below(800) as u64));
            // Half a lease to three, of an attempt that sends nothing or of one that does.
            let lease = *order.pick(&[Duration::from_millis(500), LONGEST / 3]);
            let time = lease.mul_f64(0.5 + order.below(250) as f64 / 100.0);
            let sleeper = fleet.host(order.below(3));
            sleeper.stand_still();
            std::thread::sleep(time);
            if round % 3 == 1 {
                // Leases, approvals and windows of an hour ago are over at once.
                moved += 3_600;
                cluster.sql(&database, &clock_ahead_by(moved));
            }
            sleeper.go_on();
            pauses += 1;
        }
    });
    let mut table = load.judge(&items, &[], |kind| kind == Kind::Manual);
    table.kills = pauses;
    let table = table.hold("pauses and clocks", &seed, LONGEST);
    assert!(table.actions > 20, "a run without load shows nothing: {table}");
}
