//! Four hosts over one ledger: whoever asks whichever host, there is one effect and one result;
//! work that runs by itself is shared; and a host that is killed is missed by nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::skip;
use crate::support::fleet::{Fleet, execute_on};
use crate::support::host::tally;
use crate::support::proxy::{self, Loses, Loss, Proxy};
use crate::support::seed::Seed;
use crate::support::stage::{REFUNDS, body, verified_events};
use crate::support::{Fault, Host, Rule, Stage, Told, at_once, long, postgres};

const LEASE: &str = "lease = \"1s\"";

#[test]
fn p3_executes_of_one_action_spread_over_four_hosts_make_one_effect_and_all_get_the_same_bytes() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let fleet = Fleet::of(4, cluster, LEASE, "10s");
    let stage = &fleet.stage;
    for n in [8, 64, 200] {
        let id = stage.approved("refund", &format!("spread-{n}"), &stage.refund(&format!("spread{n}"), 1250));
        let told = at_once(n, |i| execute_on(fleet.host(i), &id).expect("an answer"));
        assert_eq!(tally(told.iter().map(Told::outcome)), tally(vec!["succeeded".to_owned(); n]));
        let results: BTreeSet<String> = told.iter().map(|told| told.raw("result")).collect();
        assert_eq!(results.len(), 1, "{results:?}");
        assert_eq!(told.iter().filter(|told| !told.is_replayed()).count(), 1, "exactly one caller ran it");
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
        assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved", "claimed", "succeeded"]);
    }
}

#[test]
fn two_hundred_approvals_pressed_on_four_hosts_make_one_transition_one_event_one_effect() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let fleet = Fleet::of(4, cluster, LEASE, "10s");
    let stage = &fleet.stage;
    let approvers: Vec<String> =
        (0..8).map(|n| stage.host.new_token(&format!("approver-{n}"), &["approver"], "default")).collect();
    for n in [2, 8, 200] {
        let proposed = stage.propose("refund", &format!("pressed-{n}"), &stage.refund(&n.to_string(), 100));
        let (id, saw) = (proposed.id(), format!("\"{}\"", proposed.text("/fingerprint")));
        let told = at_once(n, |i| {
            let approver = fleet.host(i).with_token(&approvers[i % approvers.len()]);
            let request =
                approver.request("POST", &format!("/v1/actions/{id}/approve")).header("If-Match", &saw);
            approver.send(request).outcome()
        });
        assert!(told.iter().all(|told| told == "approved" || told == "invalid_state"), "{:?}", tally(told));
        assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved"]);
        assert_eq!(execute_on(fleet.host(n), &id).expect("an answer").outcome(), "succeeded");
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    }
}

/// Proposes work that runs by itself once it is approved.
fn propose_automatic(stage: &Stage, name: &str, n: usize) -> Told {
    let arguments = stage.refund(&format!("{name}{n}"), 100);
    let proposal = json!({ "tool": "refund", "arguments": arguments, "run_id": name, "step": n.to_string(),
        "run": "auto" });
    stage.host.agent().post("/v1/actions", &proposal).expect(201)
}

/// Proposes and approves such work.
fn automatic(stage: &Stage, name: &str, n: usize) -> String {
    let proposed = propose_automatic(stage, name, n);
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    proposed.id()
}

#[test]
fn work_that_runs_by_itself_is_shared_by_all_hosts_and_each_action_is_run_once() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let database = cluster.database();
    // Three hosts together have no room for all of it, so each of the four has to take some, however
    // much sooner than the others one of them wakes.
    let toml = format!("{LEASE}\n[quota]\nrunning = 7\npending = {{ actor = 1000, caller = 1000 }}");
    let fleet = Fleet::over(4, cluster.url(&database), &toml, "30s");
    let stage = &fleet.stage;
    stage.provider.fault(Rule::always(REFUNDS, Fault::hold()));
    let proposed: Vec<Told> = (0..24).map(|n| propose_automatic(stage, "auto", n)).collect();
    for told in &proposed {
        stage.approve(&told.id(), &told.text("/fingerprint")).expect(200);
    }
    stage.provider.wait_held(24);
    // Who claimed each, by the events.
    let owners = cluster.sql(
        &database,
        "select body::json ->> 'by', count(*) from events where body like '%\"claimed\"%' group by 1",
    );
    let owners: BTreeMap<&str, usize> = owners
        .lines()
        .filter_map(|line| line.split_once('|'))
        .map(|(owner, count)| (owner, count.parse().expect("a count")))
        .collect();
    assert_eq!(owners.values().sum::<usize>(), 24, "{owners:?}");
    assert!(owners.len() == 4 && owners.values().all(|ran| (3..=7).contains(ran)), "{owners:?}");
    stage.provider.clear_faults();
    stage.provider.release();
    for told in &proposed {
        let id = told.id();
        stage.wait_for(&id, &["succeeded"]);
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
        assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved", "claimed", "succeeded"]);
    }
}

#[test]
fn a_host_whose_wake_ups_are_all_lost_is_waited_for_by_looking_and_hears_others_by_looking() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let database = cluster.database();
    let stage = Stage::over(Some(cluster.url(&database)), LEASE, "10s");
    let proxy = Proxy::to(cluster.socket());
    // What it has to tell stays on the way, and so does what it would hear by the same connection.
    proxy.lose(Loss { marker: proxy::WAKE_UP, loses: Loses::Patience, after: 0, times: usize::MAX });
    let mute = Host::asleep_over(Some(proxy.url(&database)), LEASE);
    mute.borrow_tokens(&stage.host);
    mute.wake();
    for (round, (runs, waits)) in [(&mute, &stage.host), (&stage.host, &mute)].into_iter().enumerate() {
        let id = stage.approved("refund", &format!("mute-{round}"), &stage.refund("mute", 100));
        stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
        let told = std::thread::scope(|scope| {
            let runner = scope.spawn(|| execute_on(runs, &id).expect("an answer"));
            stage.provider.wait_held(1);
            let waiters: Vec<_> =
                (0..4).map(|_| scope.spawn(|| execute_on(waits, &id).expect("an answer"))).collect();
            stage.provider.release();
            let runner = runner.join().expect("a caller");
            waiters
                .into_iter()
                .map(|waiter| waiter.join().expect("a caller"))
                .chain([runner])
                .collect::<Vec<_>>()
        });
        assert_eq!(tally(told.iter().map(Told::outcome)), tally(vec!["succeeded".to_owned(); 5]));
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    }
    assert!(proxy.lost() > 0, "nothing was lost: the statement is told of in other words now");
}

#[test]
fn one_host_of_four_killed_every_few_seconds_under_load_leaves_every_count_exact() {
    let Some(cluster) = postgres::shared() else { skip!("it needs a PostgreSQL server") };
    let seed = Seed::of_this_run("hosts killed in turn");
    let fleet = Fleet::of(4, cluster, "lease = \"500ms\"", "500ms");
    let stage = &fleet.stage;
    let until = Instant::now() + Duration::from_secs(long(15, 60) as u64);
    let (ids, kills) = std::thread::scope(|scope| {
        let callers = scope.spawn(|| {
            at_once(4, |caller| {
                let mut order = seed.part(caller as u64);
                let mut done = Vec::new();
                for n in 0.. {
                    if Instant::now() > until {
                        break;
                    }
                    // Half of it is run by whoever comes, half by whoever is asked. The first host
                    // lives, so that there is always one to propose to.
                    let name = format!("load{caller}-{n}");
                    let id = if n % 2 == 0 {
                        automatic(stage, &name, 0)
                    } else {
                        stage.approved("refund", &name, &stage.refund(&name.replace('-', "x"), 100))
                    };
                    let told = execute_on(fleet.host(order.below(4)), &id).ok();
                    let result = told.filter(|told| told.outcome() == "succeeded");
                    done.push((id, result.map(|told| told.raw("result"))));
                }
                done
            })
        });
        let mut order = seed.part(99);
        let mut kills = 0;
        while Instant::now() < until {
            let victim = &fleet.others[order.below(3)];
            std::thread::sleep(Duration::from_millis(1_000 + order.below(1_500) as u64));
            victim.kill_and_wake();
            kills += 1;
        }
        (callers.join().expect("the callers").concat(), kills)
    });
    let (mut acknowledged, mut doubts) = (0, 0);
    for (id, result) in &ids {
        let told = stage.execute(id);
        assert_eq!(told.outcome(), "succeeded", "{seed:?}: {}", told.json);
        if let Some(result) = result {
            assert_eq!(*result, told.raw("result"), "{seed:?}: an acknowledged result was lost");
            acknowledged += 1;
        }
        assert_eq!(stage.effects(REFUNDS, id).len(), 1, "{seed:?}: {id}");
        let facts: Vec<_> = verified_events(&stage.host, id).iter().map(body).collect();
        doubts += facts.iter().filter(|fact| fact.fact.name() == "outcome_lost").count();
    }
    assert_eq!(stage.provider.effects(REFUNDS).len(), ids.len(), "{seed:?}: effects of no action");
    eprintln!(
        "{kills} kills, {} actions, {acknowledged} acknowledged, {doubts} doubts, 0 duplicates, 0 lost",
        ids.len()
    );
    assert!(ids.len() > 20 && kills > 3, "a run without load or kills shows nothing");
}
