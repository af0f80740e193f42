//! A tenant of hostile tools beside a good one for a while: the good one's calls are not kept
//! waiting, nobody's memory grows, and the host lives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::stage::multipart;
use crate::support::{Backend, Stage, at_once, guests, is_set, long};

/// Good tenants' callers at the same time.
const GOOD: usize = 2;
/// Hostile callers at the same time.
const HOSTILE: usize = 2;

/// Between two calls of a good caller: they leave room on the processors when they are alone, or
/// what is compared would be how many take turns.
const BETWEEN: Duration = Duration::from_millis(100);

/// Alone and beside, so many times in turn.
const ROUNDS: u32 = 5;

/// One after the other until the end: how long each took.
fn good(stage: &Stage, caller: usize, round: &str, until: impl Fn() -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !until() {
        let key = format!("good-{round}-{caller}-{}", took.len());
        let begun = Instant::now();
        let id = stage.approved("refund", &key, &stage.refund(&key, 100));
        let told = stage.execute(&id);
        took.push(begun.elapsed());
        assert_eq!(told.outcome(), "succeeded", "{}", told.json);
        std::thread::sleep(BETWEEN);
    }
    took
}

fn slowest(mut took: Vec<Duration>, hundredths: usize) -> Duration {
    assert!(took.len() >= 20, "{} calls say nothing about a hundredth", took.len());
    took.sort();
    took[(took.len() - 1) * hundredths / 100]
}

/// Each a way to take more than one is given.
fn hostile() -> Vec<Value> {
    vec![
        json!({ "mode": "spin" }),
        json!({ "mode": "grow" }),
        json!({ "mode": "recurse" }),
        json!({ "mode": "many-handles", "n": 1_000_000 }),
        json!({ "mode": "many-pollables", "n": 1_000_000 }),
        json!({ "mode": "random-bomb", "n": 64 << 20 }),
        json!({ "mode": "header-bomb" }),
        json!({ "mode": "log-flood", "n": 4 << 20 }),
        json!({ "mode": "tiny-writes", "n": 200_000 }),
        json!({ "mode": "big-result", "n": 1 << 20 }),
        json!({ "mode": "canary", "text": "canary-71b0", "n": 64 }),
        json!({ "mode": "trap" }),
    ]
}

/// Memory of the host and of all its children.
fn resident(pid: u32) -> u64 {
    let of = |pid: u32| {
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
    };
    // A child is listed with the thread that started it.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: String = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .collect::<Vec<_>>()
        .join(" ");
    of(pid) + children.split_whitespace().filter_map(|child| child.parse().ok()).map(of).sum::<u64>()
}

#[test]
fn fi7_p7_a_good_tenant_beside_hostile_ones_is_not_kept_waiting_and_nothing_grows() {
    let stage = Stage::set();
    // A tenant of its own: processes and turns are shared among tenants, not among their calls.
    let operator = stage.host.new_token("hostile-operator", &["operator"], "hostile");
    let agent = stage.host.new_token("hostile-agent", &["agent"], "hostile");
    // A hostile tool gets little of the processors: its grant is what the operator lets it have.
    let grant = "[limits]\ncpu = \"200ms\"\nwall = \"5s\"";
    let (media_type, body) = multipart(&[("component", &guests::PROBE), ("grant", grant.as_bytes())]);
    let operator = stage.host.with_token(&operator);
    operator.send(operator.request("POST", "/v1/tools").body(&media_type, body)).expect(201);
    let propose = |key: &str, arguments: &Value| {
        let agent = stage.host.with_token(&agent);
        let body = json!({ "tool": "probe", "arguments": arguments }).to_string();
        let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", key);
        agent.send(request.body("application/json", body))
    };
    let length = Duration::from_secs(long(15, 120) as u64);
    let run = |round: &str, length: Duration, beside: bool| {
        let over = AtomicBool::new(false);
        let begun = Instant::now();
        let mut memory = Vec::new();
        let took = std::thread::scope(|scope| {
            let (stage, over, propose) = (&stage, &over, &propose);
            let callers: Vec<_> = (0..GOOD)
                .map(|i| scope.spawn(move || good(stage, i, round, || over.load(Ordering::Relaxed))))
                .collect();
            let hostile: Vec<_> = (0..if beside { HOSTILE } else { 0 })
                .map(|i| {
                    scope.spawn(move || {
                        let modes = hostile();
                        let mut calls = 0usize;
                        while !over.load(Ordering::Relaxed) {
                            let key = format!("hostile-{round}-{i}-{calls}");
                            let told = propose(&key, &modes[(calls + i * 5) % modes.len()]);
                            assert!([201, 422, 429, 503].contains(&told.status()), "{}", told.json);
                            calls += 1;
                        }
                        calls
                    })
                })
                .collect();
            while begun.elapsed() < length {
                std::thread::sleep(Duration::from_millis(250));
                memory.push(resident(stage.host.pid()));
            }
            over.store(true, Ordering::Relaxed);
            let calls: usize = hostile.into_iter().map(|one| one.join().expect("a caller")).sum();
            assert!(!beside || calls > 0, "nobody was hostile");
            callers.into_iter().flat_map(|one| one.join().expect("a caller")).collect::<Vec<_>>()
        });
        (took, memory)
    };
    run("warm", Duration::from_secs(2), true);
    // In turn, so that what else this machine does in the meantime is in both.
    let (mut alone, mut beside, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        alone.extend(run(&format!("alone-{round}"), length / ROUNDS / 2, false).0);
        let (took, resident) = run(&format!("beside-{round}"), length / ROUNDS, true);
        beside.extend(took);
        memory.extend(resident);
    }
    let counts = (alone.len(), beside.len());
    // Where other tests run at the same time, the slowest hundredth is theirs: then the middle
    // is compared, and the hundredth where this test has the machine to itself.
    let hundredths = if is_set("COUNTERSIGN_TESTS_ALONE") { 99 } else { 50 };
    let (alone, beside) = (slowest(alone, hundredths), slowest(beside, hundredths));
    eprintln!("p{hundredths} of {counts:?} good calls: alone {alone:?}, beside hostile guests {beside:?}");
    // Below a few ticks of the engine's clock there is nothing to compare.
    let most = (alone * 2).max(Duration::from_millis(100));
    assert!(beside <= most, "alone {alone:?}, beside {beside:?}");
    // The second half against the first: what grows, grows on.
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let (first, second) = memory.split_at(memory.len() / 2);
    let grown = mean(second).saturating_sub(mean(first));
    assert!(grown < 48 << 20, "{} MiB more in the second half", grown >> 20);
    assert!(stage.audit() >= counts.0 + counts.1);
}

#[test]
fn fi7_i01_p7_ten_thousand_proposals_a_minute_of_one_tenant_keep_no_other_waiting() {
    // What a host has that was told nothing.
    let stage = Stage::on_with(Backend::Sqlite, "[quota]\n", "30s");
    let operator = stage.host.new_token("hostile-operator", &["operator"], "hostile");
    let agents: Vec<String> =
        (0..4).map(|n| stage.host.new_token(&format!("hostile-{n}"), &["agent"], "hostile")).collect();
    let (media_type, body) =
        multipart(&[("component", &guests::PROBE), ("grant", b"[approval]\nrequired = 1\n")]);
    let operator = stage.host.with_token(&operator);
    operator.send(operator.request("POST", "/v1/tools").body(&media_type, body)).expect(201);
    // Four agents in step; together ten thousand a minute, for a part of one or all of it, in turn
    // with the good one alone, so that what else this machine does is in both.
    let (each, every) = (long(600, 2_500) / ROUNDS as usize, Duration::from_millis(24));
    let flood = |round: u32, part: usize| {
        let mut refused = 0;
        let agent = stage.host.with_token(&agents[part]);
        let begun = Instant::now();
        for n in 0..each {
            std::thread::sleep((every * n as u32).saturating_sub(begun.elapsed()));
            let body = json!({ "tool": "probe", "arguments": { "mode": "no-effect" } }).to_string();
            let key = format!("flood-{round}-{part}-{n}");
            let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", &key);
            let told = agent.send(request.body("application/json", body));
            assert!([201, 429].contains(&told.status()), "{}", told.json);
            refused += usize::from(told.status() == 429);
        }
        refused
    };
    let warm = Instant::now();
    good(&stage, 0, "warm", || warm.elapsed() > Duration::from_secs(1));
    let (mut alone, mut beside, mut refused) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let length = every * each as u32;
        alone.extend(good(&stage, 0, &format!("alone-{round}"), || begun.elapsed() > length));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let name = format!("beside-{round}");
            let (stage, over) = (&stage, &over);
            let caller = scope.spawn(move || good(stage, 0, &name, || over.load(Ordering::Relaxed)));
            refused += at_once(agents.len(), |part| flood(round, part)).into_iter().sum::<usize>();
            over.store(true, Ordering::Relaxed);
            beside.extend(caller.join().expect("a caller"));
        });
    }
    // Four agents, twenty pending each.
    assert_eq!(refused, 4 * (each * ROUNDS as usize - 20));
    let hundredths = if is_set("COUNTERSIGN_TESTS_ALONE") { 99 } else { 50 };
    let (alone, beside) = (slowest(alone, hundredths), slowest(beside, hundredths));
    eprintln!("p{hundredths} of good calls: alone {alone:?}, beside a flood {beside:?}");
    let most = (alone * 2).max(Duration::from_millis(100));
    assert!(beside <= most, "alone {alone:?}, beside {beside:?}");
}
