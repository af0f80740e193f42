//! Modes that look around: variables, folders, clocks, randomness, and what other
//! instances may have left behind.

use crate::arguments::Arguments;
use crate::bindings::countersign::tool::context;
use crate::bindings::wasi::cli::environment::{get_arguments, get_environment};
use crate::bindings::wasi::cli::stdin::get_stdin;
use crate::bindings::wasi::clocks::{monotonic_clock, wall_clock};
use crate::bindings::wasi::filesystem::preopens::get_directories;
use crate::bindings::wasi::random::random::{get_random_bytes, get_random_u64};
use crate::{Outcome, trap};
use serde_json::{Value, json};
use std::hint::black_box;

/// Runs the mode, if it is one of these.
pub fn run(mode: &str, a: &Arguments) -> Option<Outcome> {
    Some(match mode {
        "env" => Ok(env()),
        "clocks" => Ok(clocks(a)),
        "open-file" => open_file(a),
        "canary" => canary(a),
        "scan" => scan(a),
        _ => return None,
    })
}

/// A version 4 UUID from the host's randomness.
pub fn uuid() -> String {
    let bytes = get_random_bytes(16);
    let mut n = bytes.iter().fold(0u128, |n, byte| n << 8 | u128::from(*byte));
    n = n & !(0xF << 76) | 4 << 76;
    n = n & !(0x3 << 62) | 2 << 62;
    let hex = format!("{n:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// One reading of both clocks.
pub fn now() -> Value {
    let wall = wall_clock::now();
    json!({
        "seconds": wall.seconds, "nanoseconds": wall.nanoseconds,
        "monotonic": monotonic_clock::now().to_string(),
    })
}

fn env() -> Value {
    let folders: Vec<String> = get_directories().into_iter().map(|(_, path)| path).collect();
    let stdin = get_stdin().blocking_read(64).map_err(|e| format!("{e:?}"));
    json!({
        "variables": get_environment(), "arguments": get_arguments(), "folders": folders,
        "stdin": stdin.map(|bytes| bytes.len()).unwrap_or(0),
    })
}

fn clocks(a: &Arguments) -> Value {
    let readings: Vec<Value> = (0..a.count_or("n", 3))
        .map(|_| json!({ "clock": now(), "random": get_random_u64().to_string() }))
        .collect();
    let action = context::action();
    json!({
        "readings": readings, "uuid": uuid(),
        "action": {
            "id": action.action_id, "run_id": action.run_id, "step": action.step,
            "tenant": action.tenant, "actor": action.actor,
        },
    })
}

fn open_file(a: &Arguments) -> Outcome {
    let path = a.need("text")?;
    let read = std::fs::read(path).map(|bytes| bytes.len()).map_err(|e| e.to_string());
    let write = std::fs::write(path, "probe").map_err(|e| e.to_string());
    Ok(json!({ "read": read, "write": write }))
}

/// Leaves a mark all over its memory, then dies.
fn canary(a: &Arguments) -> Outcome {
    let mark = a.need("text")?.repeat(64 * 1024 / a.need("text")?.len().max(1));
    let mut kept = Vec::new();
    for _ in 0..a.count_or("n", 256) {
        kept.push(mark.clone());
    }
    black_box(&kept);
    trap()
}

/// Looks for the mark in memory that this instance has not written: pages that it
/// gains, from their first byte to their last.
fn scan(a: &Arguments) -> Outcome {
    let mark = a.need("text")?.as_bytes();
    let fresh = fresh_pages(a.count_or("n", 256));
    let hits = fresh.windows(mark.len().max(1)).filter(|window| *window == mark).count();
    let dirty = fresh.iter().filter(|byte| **byte != 0).count();
    Ok(json!({ "bytes": fresh.len(), "hits": hits, "not_zero": dirty }))
}

#[cfg(target_arch = "wasm32")]
fn fresh_pages(n: usize) -> &'static [u8] {
    use core::arch::wasm32::memory_grow;
    let before = memory_grow::<0>(n);
    if before == usize::MAX {
        return &[];
    }
    // SAFETY: memory_grow has just added these pages, initialised by the host, and
    // nothing else knows of them.
    unsafe { std::slice::from_raw_parts((before * 65_536) as *const u8, n * 65_536) }
}

#[cfg(not(target_arch = "wasm32"))]
fn fresh_pages(_: usize) -> &'static [u8] {
    &[]
}
