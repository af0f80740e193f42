//! Components that make whoever reads or compiles them work: each is refused in words, in time,
//! and without the host growing or ending. And components that were good before somebody changed
//! some bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::alone::{MIB, alone_in, forget_the_most, most_since};
use super::binary::{component, function, many, module, section};
use super::corpus::{row, text};
use super::rig::{self, Gate, mode, probe, returned};
use crate::process::tests::command;
use crate::{Sandbox, SandboxConfig, SandboxError, admit, process};

/// Types in types: so many instances, each declared in the next.
fn types_inside_types(deep: usize) -> Vec<u8> {
    // A list of one declaration, a type, which is an instance; the innermost is empty.
    let types = [&[1][..], &[0x42, 1, 1].repeat(deep - 1), &[0x42, 0]].concat();
    component(&[section(7, &types)])
}

/// What each is called when it is refused.
fn bombs() -> Vec<(&'static str, Arc<[u8]>)> {
    // A component type of one instance that declares so many types.
    let declared = [&[1, 0x42][..], &many(1_000_000, &[1, 0x7f])].concat();
    let blocks = [[0x02, 0x40].repeat(50_000), vec![0x0b; 50_000]].concat();
    let targets = [&[0x41, 0, 0x0e][..], &many(1_000_000, &[0]), &[0]].concat();
    let all = [
        ("bytes in one function", function(&[0], &vec![0x01; 7_600_000])),
        ("blocks inside blocks", function(&[0], &blocks)),
        ("targets of one br_table", function(&[0], &targets)),
        ("types: it has 1000000", module(&[section(1, &many(1_000_000, &[0x60, 0, 0]))])),
        ("types: it has 1000000", component(&[section(7, &many(1_000_000, &[0x7f]))])),
        ("types: it has 20001", component(&[section(7, &declared)])),
        ("locals in one function: it has 50000", function(&[1, 0xd0, 0x86, 3, 0x7e], &[])),
        ("types inside types", types_inside_types(10_000_000)),
        (
            "functions: it has 1000000",
            module(&[section(1, &[1, 0x60, 0, 0]), section(3, &many(1_000_000, &[0]))]),
        ),
        ("imports: it has 1000000", module(&[section(2, &many(1_000_000, &[0, 0, 0, 0]))])),
        ("exports: it has 1000000", module(&[section(7, &many(1_000_000, &[0, 0, 0]))])),
        ("globals: it has 1000000", module(&[section(6, &many(1_000_000, &[0x7f, 0, 0x41, 0, 0x0b]))])),
        ("data segments: it has 1000000", module(&[section(11, &many(1_000_000, &[1, 0]))])),
        ("element segments: it has 1000000", module(&[section(9, &many(1_000_000, &[1, 0, 0]))])),
        ("aliases: it has 1000000", component(&[section(6, &many(1_000_000, &[0, 0, 0, 0, 0]))])),
    ];
    all.map(|(what, bytes)| (what, bytes.into())).into()
}

#[test]
fn a13_types_nest_sixteen_deep_and_the_thread_that_reads_them_outlives_any_more() {
    // On a stack as small as threads of a runtime have: the parser goes down a level for each.
    let reader = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        admit::admit(&types_inside_types(16), 64 << 20).unwrap();
        for deep in [17, 1_000, 100_000, 20_000_000] {
            let refused = admit::admit(&types_inside_types(deep), 64 << 20).unwrap_err().to_string();
            assert!(refused.contains("types inside types: it has 17; 16 is the most"), "{refused}");
        }
    });
    reader.unwrap().join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_every_bomb_is_refused_for_what_it_is_while_the_host_neither_ends_nor_grows() {
    if !alone_in("bombs", "a13_every_bomb_is_refused_for_what_it_is_while_the_host_neither_ends_nor_grows") {
        return;
    }
    let sandbox =
        Sandbox::new(SandboxConfig { compile_in: Some(command("compile")), ..SandboxConfig::default() })
            .unwrap();
    let good = rig::component("probe");
    sandbox.load(rig::digest(&good), good.clone()).await.unwrap();
    // Once, for what everything takes when it is first used.
    let bombs = bombs();
    for (_, bytes) in &bombs {
        sandbox.inspect(bytes.clone()).await.unwrap_err();
    }
    for (what, bytes) in &bombs {
        let before = forget_the_most();
        match sandbox.inspect(bytes.clone()).await {
            Err(SandboxError::Refused { what: part, why }) => {
                let said = format!("{part}: {why}");
                assert!(said.contains(what) && said.contains("is the most"), "{what}: {said}");
            }
            other => panic!("{what}: {other:?}"),
        }
        let most = most_since(before);
        assert!(most < 4 * MIB, "{what}, {} bytes: {most} bytes more", bytes.len());
        returned(&sandbox.invoke(probe(mode("no-effect")), Gate::yes()).await);
    }
}

/// A small generator: the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n.max(1)
    }
}

/// Some bytes flipped, put in, taken out, or brought from another component.
fn changed(numbers: &mut Numbers, all: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = all[numbers.below(all.len())].clone();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(5) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes[at] = numbers.next() as u8,
            2 => {
                let more = (0..=numbers.below(16)).map(|_| numbers.next() as u8).collect::<Vec<_>>();
                bytes.splice(at..at, more);
            }
            3 => drop(bytes.drain(at..(at + 1 + numbers.below(64)).min(bytes.len()))),
            _ => {
                let other = &all[numbers.below(all.len())];
                let from = numbers.below(other.len());
                let part = &other[from..(from + 1 + numbers.below(256)).min(other.len())];
                bytes.splice(at..at, part.iter().copied());
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
fn a13_good_components_with_changed_bytes_end_at_most_the_process_that_compiles_them() {
    if rig::told_to_use_processes() {
        return;
    }
    let seed =
        std::env::var("COUNTERSIGN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.as_nanos() as u64 | 1
        });
    println!("COUNTERSIGN_SEED={seed}");
    let mut numbers = Numbers(seed);
    let mut all: Vec<Vec<u8>> = row("").iter().map(|name| wat::parse_str(text(name)).unwrap()).collect();
    let tools = ["probe", "refund", "transfer", "send_email"].map(|name| rig::component(name).to_vec());
    // As often as all the small ones together: they have more to break.
    for n in 0..all.len() {
        all.push(tools[n % tools.len()].clone());
    }
    let until = Instant::now() + Duration::from_secs(if rig::long() { 600 } else { 4 });
    let (mut refused, mut objected, mut compiled) = (0, 0, 0);
    // And so many at least, however little of the machine there is.
    while Instant::now() < until || refused < 100 || objected + compiled < 2 {
        let bytes = changed(&mut numbers, &all);
        // In this process. That it comes back at all is what is tested.
        if admit::admit(&bytes, 64 << 20).is_err() {
            refused += 1;
            continue;
        }
        match process::compile(&command("compile"), process::CompileLimits::default(), &bytes, 64 << 20) {
            Ok(_) => compiled += 1,
            Err(SandboxError::Refused { .. }) => objected += 1,
            Err(other) => panic!("after {refused} {objected} {compiled}: {other}"),
        }
    }
    println!("{refused} refused, {objected} not compiled, {compiled} compiled");
}
