//! Shapes that no toolchain makes, in WebAssembly text, run with the real engine,
//! limits and linker.

use std::time::{Duration, Instant};

use countersign_domain::run::{Ended, RunLimits};
use wasmtime::component::Component;

use super::rig::LIMITS;
use crate::error::SandboxError;
use crate::state::Setting;
use crate::{SandboxConfig, engine, linker, run};

/// Admits, compiles, instantiates, and calls the export `run` if there is one.
async fn execute(wat: &str, limits: RunLimits) -> Result<(), Ended> {
    let bytes = wat::parse_str(wat).unwrap_or_else(|e| panic!("{e}"));
    crate::admit::admit(&bytes, 64 << 20).unwrap();
    let config = SandboxConfig { max_runs: 4, ..SandboxConfig::default() };
    let engine = engine::engine(&config).unwrap();
    let _ticker = engine::Ticker::start(&engine, config.epoch_tick).unwrap();
    let component = Component::from_binary(&engine, &bytes).unwrap();
    let pre = linker::linker(&engine).unwrap().instantiate_pre(&component).unwrap();
    run::run(&engine, &Setting::bare(limits), async |store| {
        let instance = pre.instantiate_async(&mut *store).await?;
        if let Ok(run) = instance.get_typed_func::<(), ()>(&mut *store, "run") {
            run.call_async(store, ()).await?;
        }
        Ok(())
    })
    .await
}

fn trapped(ended: Result<(), Ended>) -> (String, Option<&'static str>) {
    match ended {
        Err(Ended::Trapped { why, limit }) => (why, limit),
        other => panic!("it did not trap: {other:?}"),
    }
}

/// A component whose `run` is the core function given.
fn runs(module: &str) -> String {
    format!(
        r#"(component
            (core module $m {module})
            (core instance $i (instantiate $m))
            (func (export "run") (canon lift (core func $i "run"))))"#
    )
}

fn quick() -> RunLimits {
    RunLimits { cpu: Duration::from_millis(100), ..LIMITS }
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_endless_loops_end_wherever_they_are() {
    let spin = "(loop $l (br $l))";
    let places = [
        ("export", runs(&format!(r#"(func (export "run") {spin})"#))),
        (
            "start",
            format!(
                "(component (core module $m (func $s {spin}) (start $s)) (core instance (instantiate $m)))"
            ),
        ),
        (
            "memory.fill",
            runs(
                r#"(memory 512) (func (export "run")
                    (loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 33554432)) (br $l)))"#,
            ),
        ),
        (
            "post-return",
            format!(
                r#"(component
                    (core module $m (func (export "run")) (func (export "after") {spin}))
                    (core instance $i (instantiate $m))
                    (func (export "run")
                        (canon lift (core func $i "run") (post-return (core func $i "after")))))"#
            ),
        ),
        (
            "destructor",
            format!(
                r#"(component
                    (core module $d (func (export "drop") (param i32) {spin}))
                    (core instance $d (instantiate $d))
                    (type $r (resource (rep i32) (dtor (core func $d "drop"))))
                    (core func $new (canon resource.new $r))
                    (core func $drop (canon resource.drop $r))
                    (core module $m
                        (import "" "new" (func $new (param i32) (result i32)))
                        (import "" "drop" (func $drop (param i32)))
                        (func (export "run") (call $drop (call $new (i32.const 1)))))
                    (core instance $i (instantiate $m
                        (with "" (instance (export "new" (func $new)) (export "drop" (func $drop))))))
                    (func (export "run") (canon lift (core func $i "run"))))"#
            ),
        ),
    ];
    for (place, wat) in places {
        let started = Instant::now();
        let (why, limit) = trapped(execute(&wat, quick()).await);
        assert_eq!(limit, Some("cpu"), "{place}: {why}");
        assert!(started.elapsed() < Duration::from_secs(30), "{place}: {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a04_a_table_does_not_grow_past_its_limit() {
    // Traps unless growing by 2^31−1, and to one element too many, gives −1.
    let wat = runs(
        r#"(table $t 10 funcref) (func (export "run")
            (if (i32.ne (table.grow $t (ref.null func) (i32.const 0x7fffffff)) (i32.const -1)) (then unreachable))
            (if (i32.ne (table.grow $t (ref.null func) (i32.const 19991)) (i32.const -1)) (then unreachable))
            (if (i32.ne (table.grow $t (ref.null func) (i32.const 19990)) (i32.const 10)) (then unreachable)))"#,
    );
    execute(&wat, LIMITS).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_all_memories_count_together() {
    // Two modules with 20 MiB each, under 32 MiB.
    let wat = r#"(component
        (core module $m (memory 320))
        (core instance (instantiate $m))
        (core instance (instantiate $m)))"#;
    let limits = RunLimits { memory: 32 << 20, ..LIMITS };
    let (why, limit) = trapped(execute(wat, limits).await);
    assert_eq!(limit, Some("memory"), "{why}");
    execute(wat, RunLimits { memory: 40 << 20, ..LIMITS }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_handles_of_its_own_are_counted() {
    let wat = r#"(component
        (type $r (resource (rep i32)))
        (core func $new (canon resource.new $r))
        (core module $m
            (import "" "new" (func $new (param i32) (result i32)))
            (func (export "run") (local $n i32)
                (loop $l
                    (drop (call $new (local.get $n)))
                    (local.set $n (i32.add (local.get $n) (i32.const 1)))
                    (br_if $l (i32.lt_u (local.get $n) (i32.const 5000))))))
        (core instance $i (instantiate $m (with "" (instance (export "new" (func $new))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let (why, limit) = trapped(execute(wat, LIMITS).await);
    assert_eq!(limit, Some("handles"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a17_sockets_link_and_any_use_of_one_ends_the_run() {
    let wat = r#"(component
        (import "wasi:sockets/network@0.2.3" (instance $net (export "network" (type (sub resource)))))
        (alias export $net "network" (type $network))
        (import "wasi:sockets/instance-network@0.2.3" (instance $in
            (alias outer 1 $network (type $n))
            (export "network" (type $n2 (eq $n)))
            (export "instance-network" (func (result (own $n2))))))
        (core func $get (canon lower (func $in "instance-network")))
        (core module $m
            (import "" "get" (func $get (result i32)))
            (func (export "run") (drop (call $get))))
        (core instance $i (instantiate $m (with "" (instance (export "get" (func $get))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let (why, limit) = trapped(execute(wat, LIMITS).await);
    assert_eq!(limit, Some("capability"));
    assert!(why.contains("capability_not_granted") && why.contains("wasi:sockets"), "{why}");
}

#[test]
fn a02_the_engine_refuses_what_the_door_refuses() {
    // The door (`admit`) and the engine are configured apart; neither is alone.
    let engine = engine::engine(&SandboxConfig { max_runs: 1, ..SandboxConfig::default() }).unwrap();
    for (feature, wat) in crate::admit::tests::OUTSIDE {
        let bytes = wat::parse_str(wat).unwrap_or_else(|e| panic!("{feature}: {e}"));
        assert!(Component::from_binary(&engine, &bytes).is_err(), "{feature}");
        match crate::admit::admit(&bytes, 1 << 20) {
            Err(SandboxError::Refused { what, .. }) => assert!(what.contains(feature), "{feature}: {what}"),
            other => panic!("{feature}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_a_sleep_without_end_ends_at_once() {
    // Waits 2^64−1 ns, and traps unless the clock is at its last value then.
    let wat = r#"(component
        (import "wasi:io/poll@0.2.0" (instance $poll
            (export "pollable" (type $p (sub resource)))
            (export "[method]pollable.block" (func (param "self" (borrow $p))))))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
            (alias outer 1 $pollable (type $p))
            (export "pollable" (type $p2 (eq $p)))
            (export "now" (func (result u64)))
            (export "subscribe-duration" (func (param "when" u64) (result (own $p2))))))
        (core func $block (canon lower (func $poll "[method]pollable.block")))
        (core func $now (canon lower (func $clock "now")))
        (core func $subscribe (canon lower (func $clock "subscribe-duration")))
        (core module $m
            (import "" "block" (func $block (param i32)))
            (import "" "now" (func $now (result i64)))
            (import "" "subscribe" (func $subscribe (param i64) (result i32)))
            (func (export "run")
                (call $block (call $subscribe (i64.const -1)))
                (if (i64.ne (call $now) (i64.const -1)) (then unreachable))
                (call $block (call $subscribe (i64.const -1)))))
        (core instance $i (instantiate $m (with "" (instance
            (export "block" (func $block)) (export "now" (func $now)) (export "subscribe" (func $subscribe))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let started = Instant::now();
    execute(wat, LIMITS).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(30));
}
