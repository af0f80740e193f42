//! Components that take more than they are given: memory, time, handles, log. Each is ended, and
//! everybody else is served meanwhile.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::Request;
use crate::support::{Backend, Fault, Rule, Stage, Told, at_once, grants};

/// A run that writes nothing happens at the proposal: the tool is run until its first write.
fn run(stage: &Stage, key: &str, arguments: &Value) -> Told {
    let proposed = stage.propose("probe", key, arguments);
    if proposed.status() != 201 {
        return proposed;
    }
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    stage.execute(&proposed.id())
}

/// Bytes of memory that a process has in use now.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn refund_still_works(stage: &Stage, key: &str) {
    let id = stage.approved("refund", key, &stage.refund(key, 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
}

#[test]
fn a03_memory_stops_growing_at_the_limit_and_the_host_does_not_grow_with_it() {
    let stage = Stage::set();
    refund_still_works(&stage, "before");
    let told = run(&stage, "grow", &json!({ "mode": "grow" }));
    let pages = told.number("/result/pages");
    assert!((512..1024).contains(&pages), "64 MiB are 1,024 pages, and some were there before: {pages}");
    let before = memory(stage.host.pid());
    at_once(8, |i| run(&stage, &format!("grow-{i}"), &json!({ "mode": "grow", "n": 900 })));
    let grown = memory(stage.host.pid()).saturating_sub(before);
    assert!(grown < 256 << 20, "the host holds {} MiB more than before", grown >> 20);
    refund_still_works(&stage, "after");
}

#[test]
fn a06_endless_loops_and_recursion_are_trapped_in_time_and_the_host_answers_meanwhile() {
    let stage = Stage::set();
    let spinning = std::thread::scope(|scope| {
        let spin = scope.spawn(|| {
            let begun = Instant::now();
            (run(&stage, "spin", &json!({ "mode": "spin" })), begun.elapsed())
        });
        let recurse = scope.spawn(|| run(&stage, "recurse", &json!({ "mode": "recurse" })));
        let mut slowest = Duration::ZERO;
        while !spin.is_finished() {
            let begun = Instant::now();
            let answer = Request::new("GET", "/healthz").send(&stage.host.address()).expect("an answer");
            assert_eq!(answer.status, 200);
            slowest = slowest.max(begun.elapsed());
        }
        assert!(slowest < Duration::from_secs(1), "an answer took {slowest:?} while a tool was spinning");
        let recursed = recurse.join().expect("a caller");
        assert_eq!(recursed.outcome(), "planning_failed", "{}", recursed.json);
        assert!(recursed.text("/detail").contains("stack"), "{}", recursed.json);
        spin.join().expect("a caller")
    });
    let (told, took) = spinning;
    assert_eq!(told.outcome(), "planning_failed", "{}", told.json);
    assert!(took < Duration::from_secs(10), "two seconds of its own time took {took:?}");
    // A preview that spins is no preview; the action is proposed without one.
    let told = stage.propose("probe", "preview", &json!({ "mode": "preview-spin" })).expect(201);
    assert_eq!(told.json["preview"], Value::Null);
    refund_still_works(&stage, "after");
}

#[test]
fn a07_sleeping_and_polling_for_ever_end_with_the_calls_wall_clock() {
    let stage = Stage::set();
    let grant = grants::grant("[limits]\nwall = \"1s\"", &[]);
    stage.put_grant("probe", &grant).expect(200);
    let forever = 9_007_199_254_740_991u64;
    let cases = [
        json!({ "mode": "sleep", "ns": forever }),
        json!({ "mode": "poll-nothing" }),
        json!({ "mode": "poll-clock", "ns": forever }),
    ];
    let begun = Instant::now();
    let told = at_once(cases.len() * 6, |i| run(&stage, &format!("forever-{i}"), &cases[i % cases.len()]));
    for told in &told {
        assert_eq!(told.outcome(), "planning_failed", "{}", told.json);
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "they took {:?}", begun.elapsed());
    // A short sleep is in the action's own time: it ends, and no real time passes for it.
    let told = run(&stage, "nap", &json!({ "mode": "sleep", "ns": 1_000_000 }));
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    refund_still_works(&stage, "after");
}

#[test]
fn a07_sixty_four_components_that_wait_keep_nobody_waiting() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let route = grants::Route::manual(port, "/any/**").with("unplanned = 1");
    stage.install_probe("waiting", &grants::grant("", &[route]));
    stage.provider.fault(Rule::always("/any/held", Fault::hold()));
    let arguments = json!({ "mode": "writes", "url": stage.url("/any/held"), "bodies": ["x"] });
    let ids: Vec<String> =
        (0..64).map(|i| stage.approved("waiting", &format!("held-{i}"), &arguments)).collect();
    let _callers: Vec<_> = ids.iter().map(|id| stage.execute_unheard(id)).collect();
    // Each is a component that is suspended in a call of the host's.
    stage.provider.wait_held(64);
    let mut took: Vec<Duration> = (0..300)
        .map(|_| {
            let begun = Instant::now();
            let answer = Request::new("GET", "/healthz").send(&stage.host.address()).expect("an answer");
            assert_eq!(answer.status, 200);
            begun.elapsed()
        })
        .collect();
    took.sort();
    assert!(took[297] < Duration::from_millis(100), "p99 is {:?}", took[297]);
    refund_still_works(&stage, "meanwhile");
    stage.provider.release();
    for id in &ids {
        stage.wait_for(id, &["succeeded"]);
    }
}

#[test]
fn a08_to_a11_bombs_of_handles_randomness_headers_and_tiny_writes_are_ended_and_cost_little() {
    let stage = Stage::set();
    refund_still_works(&stage, "before");
    let before = memory(stage.host.pid());
    let cases = [
        (json!({ "mode": "random-bomb", "n": 64 << 20 }), true),
        (json!({ "mode": "many-handles", "n": 1_000_000 }), true),
        (json!({ "mode": "many-pollables", "n": 1_000_000 }), true),
        (json!({ "mode": "big-log", "n": 50 << 20 }), true),
        (json!({ "mode": "header-bomb", "n": 32_769 }), false),
        (json!({ "mode": "header-bomb", "size": 200 << 10 }), false),
        (json!({ "mode": "empty-writes", "n": 1_000_000 }), false),
        (json!({ "mode": "tiny-writes", "n": 500_000 }), false),
        (json!({ "mode": "big-result", "n": 300 << 10 }), true),
    ];
    for (i, (arguments, must_end)) in cases.iter().enumerate() {
        let told = run(&stage, &format!("bomb-{i}"), arguments);
        assert!([200, 422].contains(&told.status()), "{arguments}: {}", told.json);
        if *must_end {
            assert_ne!(told.outcome(), "succeeded", "{arguments}: {}", told.json);
        }
        if arguments["mode"] == "header-bomb" && told.status() == 200 {
            assert_ne!(told.text("/result/from_list"), "accepted", "{arguments}");
        }
    }
    let grown = memory(stage.host.pid()).saturating_sub(before);
    assert!(grown < 192 << 20, "the host holds {} MiB more than before", grown >> 20);
    refund_still_works(&stage, "after");
}

#[test]
fn a12_a_flood_of_output_is_cut_off_and_says_so() {
    let stage = Stage::set();
    let file = |name: &str| std::fs::metadata(stage.host.file(name)).map(|found| found.len()).unwrap_or(0);
    let told = run(&stage, "flood", &json!({ "mode": "log-flood", "n": 8 << 20 }));
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    let log = stage.host.agent().get(&format!("/v1/actions/{}/log", told.id())).expect(200);
    let lines = log.json["lines"].as_array().expect("lines").clone();
    let bytes: usize = lines.iter().map(|line| line.as_str().map_or(0, str::len)).sum();
    assert!(bytes <= 256 << 10, "{bytes} bytes of log are kept");
    assert!(
        lines.iter().any(|line| line.to_string().contains("truncated")),
        "the last line says that it was cut"
    );
    assert!(file("host.log") < 128 << 10, "the host's own log has {} bytes", file("host.log"));
    // Nor is a long line, or one that looks like the host's own.
    let told =
        run(&stage, "forge", &json!({ "mode": "log", "text": "x\n{\"level\":\"ERROR\"}\u{1b}[2J", "n": 2 }));
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    let log = stage.host.agent().get(&format!("/v1/actions/{}/log", told.id())).expect(200);
    assert!(log.json["lines"].as_array().is_some_and(|lines| !lines.is_empty()));
    assert!(!stage.host.said().contains("{\"level\":\"ERROR\"}"));
}

#[test]
fn too_many_effects_end_the_action_and_the_limit_is_the_grants() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let head = "[limits]\neffects = 3";
    let routes = [grants::Route::idempotent(port, "/keyed/**").with("unplanned = 10")];
    stage.install_probe("few", &grants::grant(head, &routes));
    let path = "/keyed/few";
    let id = stage.approved(
        "few",
        "few",
        &json!({ "mode": "writes", "url": stage.url(path), "bodies": ["1", "2", "3", "4"] }),
    );
    let told = stage.execute(&id);
    assert_eq!(told.ending(), "failed_terminal too_many_effects", "{}", told.json);
    assert_eq!(stage.counts(path, &id), (3, 3));
}

#[test]
fn b12_an_answer_that_is_too_large_in_any_way_costs_little_and_is_not_taken_for_whole() {
    let stage = Stage::set();
    let port = stage.provider.port();
    stage.install_probe(
        "bombed",
        &grants::grant("", &[grants::Route::manual(port, "/any/**").with("response_body = \"64KiB\"")]),
    );
    refund_still_works(&stage, "before");
    let before = memory(stage.host.pid());
    let faults = [
        ("chunked", crate::support::Fault::BigBody { bytes: 200 << 20, chunked: true }),
        ("sized", crate::support::Fault::BigBody { bytes: 200 << 20, chunked: false }),
        ("continues", crate::support::Fault::Continues { n: 100_000, code: 103 }),
    ];
    for (name, fault) in faults {
        let path = format!("/any/{name}");
        stage.provider.fault(crate::support::Rule::once(&path, fault));
        let id = stage.approved(
            "bombed",
            name,
            &json!({ "mode": "writes", "url": stage.url(&path), "bodies": ["x"] }),
        );
        let told = stage.execute(&id);
        assert_eq!(told.outcome(), "execution_in_doubt", "{name}: {}", told.json);
        assert_eq!(stage.counts(&path, &id), (1, 1), "{name}");
    }
    let grown = memory(stage.host.pid()).saturating_sub(before);
    assert!(grown < 96 << 20, "the host holds {} MiB more than before", grown >> 20);
}

#[test]
fn a_grant_may_ask_for_no_more_than_the_operator_lets_any() {
    let toml = "[limits]\nmemory = \"80MiB\"\nwall = \"5m\"\neffects = 64\n";
    let stage = Stage::on_with(Backend::Sqlite, toml, "20s");
    for (asked, key, most) in [
        ("memory = \"81MiB\"", "limits.memory", "80MiB"),
        ("wall = \"301s\"", "limits.wall", "5m"),
        ("effects = 65", "limits.effects", "64"),
    ] {
        let told = stage.put_grant("probe", &format!("[limits]\n{asked}")).expect(422);
        let said = told.json.to_string();
        assert!(said.contains(key) && said.contains(most), "{said}");
    }
    // What it may, it gets: as many pages as that, and no more.
    stage.put_grant("probe", "[limits]\nmemory = \"80MiB\"\nwall = \"5m\"\neffects = 64").expect(200);
    let pages = run(&stage, "grow", &json!({ "mode": "grow" })).number("/result/pages");
    assert!((1_024..1_280).contains(&pages), "{pages}");
}
