//! What one tenant's instance leaves where another's will be: a thousand rounds in one engine, and a
//! thousand through guest processes.

use std::sync::Arc;

use countersign_domain::id::ComponentDigest;
use countersign_domain::run::{Call, Ended, RunLimits};
use serde_json::json;

use super::corpus::Ready;
use super::made;
use super::rig::{Gate, LIMITS, call_of, digest, in_processes, long, returned, told_to_use_processes};

const ROUNDS: u32 = 1_000;
/// 64 MiB, the most that a component has here.
const ALL: u32 = 1_024;
/// What the other rounds take where there is no time for the most in each: 4 MiB.
const SOME: u32 = 64;

/// How much a round takes. All of it in every fourth, which is what fits into a minute; with
/// `COUNTERSIGN_LONG=1` in each.
fn pages(round: u32) -> u32 {
    if long() || round.is_multiple_of(4) { ALL } else { SOME }
}

/// Elements of the tables; the most is 20,000.
const SLOTS: u32 = 19_000;

/// Of a core module: `fill` fills so many pages and the table, and traps.
fn fills(pages: u32) -> String {
    format!(
        r#"
    (memory (export "memory") {pages})
    (table 19000 funcref)
    (elem declare func $f)
    (func $f)
    (func $fill
        (memory.fill (i32.const 0) (i32.const 0xa5) (i32.const {}))
        (table.fill (i32.const 0) (ref.func $f) (i32.const 19000))
        unreachable)"#,
        pages << 16
    )
}

/// `scan` grows into as much and gives how much of it is not as new; `at` calls what is in one place
/// of the table.
fn scans(pages: u32) -> String {
    format!(
        r#"
    (memory (export "memory") 1)
    (table 1 19000 funcref)
    (func $slots
        (if (i32.ne (table.grow (ref.null func) (i32.const 18999)) (i32.const 1)) (then unreachable)))
    (func $at (export "at") (param i32) (call $slots) (call_indirect (local.get 0)))
    (func $scan (result i32)
        (local $at i32) (local $hits i32)
        (if (i32.ne (memory.grow (i32.const {})) (i32.const 1)) (then unreachable))
        (call $slots)
        ;; From the second page: what is in the first, this component may have written.
        (local.set $at (i32.const 0x10000))
        (loop $bytes
            (if (i64.ne (i64.load (local.get $at)) (i64.const 0))
                (then (local.set $hits (i32.add (local.get $hits) (i32.const 1)))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $bytes (i32.lt_u (local.get $at) (i32.const {}))))
        (local.set $at (i32.const 0))
        (loop $slots
            (if (i32.eqz (ref.is_null (table.get (local.get $at))))
                (then (local.set $hits (i32.add (local.get $hits) (i32.const 1)))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $slots (i32.lt_u (local.get $at) (i32.const 19000))))
        (local.get $hits))"#,
        pages - 1,
        pages << 16
    )
}

fn trapped(ended: Result<(), Ended>) -> String {
    match ended {
        Err(Ended::Trapped { why, .. }) => why,
        other => panic!("it did not trap: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a15_nothing_that_an_instance_left_is_in_the_next_one_of_the_same_engine() {
    if told_to_use_processes() {
        return;
    }
    let component = |module: &str, run: &str, more: &str| {
        let text = format!(
            r#"(component (core module $m {module} (func (export "run") {run}))
                (core instance $i (instantiate $m))
                (func (export "run") (canon lift (core func $i "run"))) {more})"#
        );
        Ready::new(&text).unwrap()
    };
    let of = |pages| component(&fills(pages), "(call $fill)", "");
    let fills = [of(SOME), of(ALL)];
    let at = r#"(func (export "at") (param "place" u32) (canon lift (core func $i "at")))"#;
    let of = |pages| component(&scans(pages), "(if (call $scan) (then unreachable))", at);
    let scans = [of(SOME), of(ALL)];
    for round in 0..ROUNDS {
        let all = usize::from(pages(round) == ALL);
        let (fills, scans) = (&fills[all], &scans[all]);
        assert!(trapped(fills.run(LIMITS).await).contains("unreachable"), "round {round}");
        scans.run(LIMITS).await.unwrap_or_else(|ended| panic!("round {round}: {ended:?}"));
        // Every place of the table is looked at in every round, and each is called in one.
        for place in (round..SLOTS).step_by(ROUNDS as usize) {
            let why = trapped(scans.run_at(LIMITS, place).await);
            assert!(why.contains("uninitialized element"), "round {round}, place {place}: {why}");
        }
    }
}

/// A tool whose `invoke` does `run`, and gives the byte that is left as a JSON text.
fn tool(module: &str, run: &str) -> Arc<[u8]> {
    made::tool(
        "",
        "",
        &format!(
            r#"(core module $m {module}
                (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
                (func (export "other") (param i32 i32) (result i32) unreachable)
                (func (export "describe") (result i32) unreachable)
                (func (export "invoke") (param i32 i32) (result i32)
                    {} (i32.store8 (i32.const 32) {run}) (i32.const 16)))
            (core instance $i (instantiate $m))"#,
            made::ONE_BYTE
        ),
    )
}

fn call(tenant: &str, component: ComponentDigest) -> Call {
    let mut call = call_of(component, json!({}));
    call.context.tenant = tenant.parse().unwrap();
    call.limits = RunLimits { cpu: std::time::Duration::from_secs(60), ..LIMITS };
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn a15_nothing_that_one_tenants_instance_left_is_in_anothers_through_guest_processes() {
    if told_to_use_processes() {
        return;
    }
    let sandbox = in_processes();
    let mut tools = Vec::new();
    for pages in [SOME, ALL] {
        let fills = tool(&fills(pages), "(block (result i32) (call $fill) (i32.const 0))");
        // `0` if nothing is found, `1` if anything is.
        let scans = tool(&scans(pages), "(select (i32.const 0x31) (i32.const 0x30) (call $scan))");
        tools.push((digest(&fills), digest(&scans)));
        for bytes in [fills, scans] {
            sandbox.load(digest(&bytes), bytes).await.unwrap();
        }
    }
    for round in 0..ROUNDS {
        let (fill, scan) = tools[usize::from(pages(round) == ALL)];
        let report = sandbox.invoke(call("a", fill), Gate::yes()).await;
        let Ended::Trapped { why, .. } = &report.ended else { panic!("round {round}: {report:?}") };
        assert!(why.contains("unreachable"), "round {round}: {why}");
        // Another tenant, in a process of its own; and the same one, where the canary was.
        let tenant = if round % 2 == 0 { "b" } else { "a" };
        let hits = returned(&sandbox.invoke(call(tenant, scan), Gate::yes()).await);
        assert_eq!(hits, json!(0), "round {round}, tenant {tenant}");
    }
}
