//! Shapes that no toolchain makes and no file of the corpus holds: too large to write down, or
//! with something to look at afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use countersign_domain::run::{Ended, RunLimits};
use wasmtime::component::Val;

use super::corpus::{Bench, Ready, row, text};
use super::rig::LIMITS;
use crate::SandboxConfig;
use crate::state::Setting;

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

/// Calls `take` of an import with a variant in a variant, so many of them: each is `deeper` until
/// the innermost, which is a number. That is what zeros say, so memory as it comes holds it.
fn nested(depth: usize, run: &str) -> String {
    let mut types = String::from(r#"(type $v1 (variant (case "end" u8) (case "none")))"#);
    types.push_str(r#"(export "t1" (type $t1 (eq $v1)))"#);
    for n in 2..=depth {
        let inner = n - 1;
        types.push_str(&format!(
            r#"(type $v{n} (variant (case "deeper" $t{inner}) (case "none"))) (export "t{n}" (type $t{n} (eq $v{n})))"#
        ));
    }
    format!(
        r#"(component
            (import "deep:deep/deep@1.0.0" (instance $deep
                {types} (export "take" (func (param "it" $t{depth})))))
            (core module $room (memory (export "memory") 1))
            (core instance $room (instantiate $room))
            (core func $take (canon lower (func $deep "take") (memory (core memory $room "memory"))))
            (core module $m (import "" "take" (func $take (param i32))) {run})
            (core instance $i (instantiate $m (with "" (instance (export "take" (func $take))))))
            (func (export "run") (canon lift (core func $i "run"))))"#
    )
}

fn depth(value: &Val) -> usize {
    match value {
        Val::Variant(_, Some(inner)) => 1 + depth(inner),
        _ => 0,
    }
}

/// As many as the validator takes: types may nest 100 deep, the number within counted. A value has
/// the shape of its type, and a type can only be made of types that stand before it, so there is no
/// deeper value to pass: a list is longer, not deeper.
const DEEPEST: usize = 99;

#[tokio::test(flavor = "multi_thread")]
async fn a05_a_value_nested_ten_thousand_deep_is_refused_and_the_deepest_that_there_is_arrives() {
    let once = r#"(func (export "run") (call $take (i32.const 0)))"#;
    for deep in [10_000, DEEPEST + 1] {
        let bytes = wat::parse_str(nested(deep, once)).unwrap();
        let refused = crate::admit::admit(&bytes, 64 << 20).unwrap_err().to_string();
        assert!(refused.contains("nesting is too deep"), "{refused}");
        let refused = Ready::with(&nested(deep, once), |_| {}).err().unwrap();
        assert!(format!("{refused:?}").contains("nesting is too deep"), "{refused:?}");
    }

    let (deepest, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ready = |run| {
        let (deepest, calls) = (deepest.clone(), calls.clone());
        Ready::with(&nested(DEEPEST, run), |linker| {
            let take = move |_: wasmtime::StoreContextMut<'_, _>, _, given: &[Val], _: &mut [Val]| {
                deepest.fetch_max(depth(&given[0]), Ordering::SeqCst);
                calls.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            linker.instance("deep:deep/deep@1.0.0").unwrap().func_new("take", take).unwrap();
        })
        .unwrap_or_else(|e| panic!("{e:?}"))
    };
    ready(once).run(LIMITS).await.unwrap();
    assert_eq!((deepest.load(Ordering::SeqCst), calls.load(Ordering::SeqCst)), (DEEPEST, 1));
    // And from every depth of the component's own stack.
    let down = r#"(func $down (export "run") (call $take (i32.const 0)) (call $down))"#;
    let (why, limit) = trapped(ready(down).run(LIMITS).await);
    assert_eq!(limit, Some("stack"), "{why}");
    assert!(calls.load(Ordering::SeqCst) > 1_000, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_an_endless_loop_anywhere_ends_within_two_ticks_of_its_time_and_leaves_its_room() {
    let tick = SandboxConfig::default().epoch_tick;
    let limits = RunLimits { cpu: tick * 20, ..LIMITS };
    // Room for one: whoever comes next finds it only if the last one's store is gone.
    let bench = Bench::start(1);
    let next =
        bench.ready("(component (core module $m (memory 1024)) (core instance (instantiate $m)))").unwrap();
    let shapes = row("a06-");
    for shape in ["destructor", "export", "fill", "post-return", "realloc", "start"] {
        assert!(shapes.contains(&format!("a06-{shape}")), "{shape}");
    }
    for name in shapes {
        let (endless, setting) = (bench.ready(&text(&name)).unwrap(), Setting::bare(limits));
        let started = Instant::now();
        let (_, limit) = trapped(endless.run_as(&setting).await);
        assert_eq!(limit, Some("cpu"), "{name}");
        assert!(started.elapsed() >= limits.cpu, "{name}: {:?}", started.elapsed());
        // The engine's own count, not the clock's: twenty ticks are its time.
        let looks = setting.cpu.looks();
        assert!((1..=22).contains(&looks), "{name}: {looks} ticks");
        next.run(LIMITS).await.unwrap_or_else(|ended| panic!("after {name}: {ended:?}"));
    }
}
