//! Shapes that no toolchain makes and no file of the corpus holds: too large to write down, or
//! with something to look at afterwards.

use std::time::{Duration, Instant};

use countersign_domain::run::{Ended, RunLimits};

use super::corpus::Ready;
use super::rig::LIMITS;

fn trapped(ended: Result<(), Ended>) -> (String, Option<&'static str>) {
    match ended {
        Err(Ended::Trapped { why, limit }) => (why, limit),
        other => panic!("it did not trap: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_all_memories_count_together() {
    // Two modules with 20 MiB each, under 32 MiB and under 40.
    let wat = r#"(component
        (core module $m (memory 320))
        (core instance (instantiate $m))
        (core instance (instantiate $m)))"#;
    let ready = Ready::new(wat).unwrap();
    let limits = RunLimits { memory: 32 << 20, ..LIMITS };
    let (why, limit) = trapped(ready.run(limits).await);
    assert_eq!(limit, Some("memory"), "{why}");
    ready.run(RunLimits { memory: 40 << 20, ..LIMITS }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a05_a_value_nested_ten_thousand_deep_is_refused_before_anybody_walks_it() {
    let mut types = String::from("(type $t0 (option u8))");
    for n in 1..10_000 {
        types.push_str(&format!("(type $t{n} (option $t{}))", n - 1));
    }
    let wat = format!(
        r#"(component {types}
            (import "countersign:tool/context@0.1.0" (instance (export "log" (func (param "it" (option u8))))))
            (core module $m (func (export "run") (param i32)))
            (core instance $i (instantiate $m))
            (type $f (func (param "it" $t9999))))"#
    );
    let refused = Ready::new(&wat).err().unwrap().to_string();
    assert!(refused.contains("type"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_an_endless_loop_ends_soon_after_its_time() {
    let spin = Ready::new(&super::corpus::text("a06-export")).unwrap();
    let started = Instant::now();
    let limits = RunLimits { cpu: Duration::from_millis(100), ..LIMITS };
    let (_, limit) = trapped(spin.run(limits).await);
    assert_eq!(limit, Some("cpu"));
    assert!(started.elapsed() >= Duration::from_millis(100));
    // Two ticks are 20 ms; the rest is a machine that others use too.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// Fills 64 MiB and the tables of the slot it runs in, and traps.
const FILLS: &str = r#"(component
    (core module $m
        (memory 1024)
        (table 19000 funcref)
        (elem declare func $f)
        (func $f)
        (func (export "run")
            (memory.fill (i32.const 0) (i32.const 0xa5) (i32.const 0x4000000))
            (table.fill (i32.const 0) (ref.func $f) (i32.const 19000))
            unreachable))
    (core instance $i (instantiate $m))
    (func (export "run") (canon lift (core func $i "run"))))"#;

/// Grows into all of it and traps with another trap if any of it is not as new.
const SCANS: &str = r#"(component
    (core module $m
        (memory 1)
        (table 1 19000 funcref)
        (func (export "run")
            (local $at i32)
            (if (i32.ne (memory.grow (i32.const 1023)) (i32.const 1)) (then unreachable))
            (if (i32.ne (table.grow (ref.null func) (i32.const 18999)) (i32.const 1)) (then unreachable))
            (loop $bytes
                (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $bytes (i32.lt_u (local.get $at) (i32.const 0x4000000))))
            (local.set $at (i32.const 0))
            (loop $slots
                (if (i32.eqz (ref.is_null (table.get (local.get $at)))) (then unreachable))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if $slots (i32.lt_u (local.get $at) (i32.const 19000))))))
    (core instance $i (instantiate $m))
    (func (export "run") (canon lift (core func $i "run"))))"#;

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
async fn a15_nothing_that_an_instance_left_is_in_the_next_one() {
    let (fills, scans) = (Ready::new(FILLS).unwrap(), Ready::new(SCANS).unwrap());
    let long = std::env::var_os("COUNTERSIGN_LONG").is_some_and(|long| long == "1");
    let limits = RunLimits { cpu: Duration::from_secs(60), ..LIMITS };
    for round in 0..if long { 1_000 } else { 100 } {
        trapped(fills.run(limits).await);
        scans.run(limits).await.unwrap_or_else(|ended| panic!("round {round}: {ended:?}"));
    }
}
