//! Modes that take more than they are given: time, memory, handles, log.

use crate::Outcome;
use crate::arguments::Arguments;
use crate::bindings::countersign::tool::context::{self, Level};
use crate::bindings::wasi::cli::{stderr::get_stderr, stdout::get_stdout};
use crate::bindings::wasi::clocks::monotonic_clock::{now, subscribe_duration};
use crate::bindings::wasi::http::types::Fields;
use crate::bindings::wasi::io::poll::poll;
use crate::bindings::wasi::random::random::get_random_bytes;
use serde_json::json;
use std::hint::black_box;

/// Runs the mode, if it is one of these.
pub fn run(mode: &str, a: &Arguments) -> Option<Outcome> {
    Some(match mode {
        "spin" => spin(),
        "work" => Ok(json!({ "sum": work(a.count_or("n", 1_000_000)) })),
        "recurse" => Ok(json!({ "hash": recurse(a.number("n").unwrap_or(u64::MAX)) })),
        "grow" => Ok(json!({ "pages": grow(a.count_or("n", 65_536)) })),
        "sleep" => sleep(a),
        "poll-clock" => poll_clock(a),
        "poll-nothing" => Ok(json!({ "ready": poll(&[]) })),
        "many-handles" => forget(a, Fields::new),
        "many-pollables" => forget(a, || subscribe_duration(u64::MAX)),
        "log-flood" => log_flood(a),
        "big-log" => big_log(a),
        "log" => log(a),
        "empty-writes" => small_writes(a, b""),
        "tiny-writes" => small_writes(a, b"x"),
        "random-bomb" => random_bomb(a),
        _ => return None,
    })
}

/// Loops for ever, in a way that no optimiser takes away.
pub fn spin() -> ! {
    let mut n = 0u64;
    loop {
        n = black_box(n.wrapping_add(1));
    }
}

fn work(n: usize) -> u64 {
    (0..n as u64).fold(0, |sum, i| black_box(sum ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

/// Deep on the host's stack for the guest, not on the one in its memory: nothing
/// here needs an address. The work after the call keeps it from being a loop.
#[inline(never)]
fn recurse(left: u64) -> u64 {
    if left == 0 { 0 } else { recurse(left - 1).wrapping_mul(3) ^ left }
}

/// Grows page by page until it is refused or `n` are gained. Returns how many.
#[cfg(target_arch = "wasm32")]
fn grow(n: usize) -> usize {
    use core::arch::wasm32::memory_grow;
    for gained in 0..n {
        let before = memory_grow::<0>(1);
        if before == usize::MAX {
            return gained;
        }
        touch(before);
    }
    n
}

#[cfg(not(target_arch = "wasm32"))]
fn grow(_: usize) -> usize {
    0
}

/// Writes to the first byte of a page that was just gained.
#[cfg(target_arch = "wasm32")]
fn touch(page: usize) {
    let address = (page * 65_536) as *mut u8;
    // SAFETY: memory_grow has just added this page and nothing else knows of it.
    unsafe { address.write_volatile(1) };
}

fn sleep(a: &Arguments) -> Outcome {
    let before = now();
    subscribe_duration(a.number("ns")?).block();
    Ok(json!({ "passed_ns": now() - before }))
}

fn poll_clock(a: &Arguments) -> Outcome {
    let end = now().saturating_add(a.number("ns")?);
    let mut readings = 1u64;
    while now() < end {
        readings += 1;
    }
    Ok(json!({ "readings": readings }))
}

fn forget<T>(a: &Arguments, mut make: impl FnMut() -> T) -> Outcome {
    let n = a.count("n")?;
    (0..n).for_each(|_| std::mem::forget(make()));
    Ok(json!({ "made": n }))
}

fn log_flood(a: &Arguments) -> Outcome {
    let n = a.count("n")?;
    let (out, err) = (get_stdout(), get_stderr());
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    let text = String::from_utf8_lossy(&line[..1023]).into_owned();
    let mut refused = 0u64;
    for _ in 0..n.div_ceil(line.len()) {
        refused += u64::from(out.blocking_write_and_flush(&line).is_err());
        refused += u64::from(err.blocking_write_and_flush(&line).is_err());
        context::log(Level::Info, &text);
    }
    Ok(json!({ "bytes": n, "refused": refused }))
}

fn big_log(a: &Arguments) -> Outcome {
    let n = a.count("n")?;
    context::log(Level::Info, &"x".repeat(n));
    Ok(json!({ "bytes": n }))
}

fn log(a: &Arguments) -> Outcome {
    let text = a.words("a line");
    for _ in 0..a.count_or("n", 1) {
        for level in [Level::Debug, Level::Info, Level::Warn, Level::Error] {
            context::log(level, &text);
        }
        println!("{text}");
        eprintln!("{text}");
        for percent in [0, 50, 100] {
            context::progress(percent, &text);
        }
    }
    Ok(json!({ "mode": "log" }))
}

/// Many writes of next to nothing: each may cost the host a queue entry.
fn small_writes(a: &Arguments, bytes: &[u8]) -> Outcome {
    let (out, err) = (get_stdout(), get_stderr());
    let mut refused = 0u64;
    for _ in 0..a.count("n")? {
        refused += u64::from(out.check_write().and_then(|_| out.write(bytes)).is_err());
        refused += u64::from(err.check_write().and_then(|_| err.write(bytes)).is_err());
    }
    Ok(json!({ "refused": refused }))
}

fn random_bomb(a: &Arguments) -> Outcome {
    Ok(json!({ "bytes": get_random_bytes(a.number("n")?).len() }))
}
