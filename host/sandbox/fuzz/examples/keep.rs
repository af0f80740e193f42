//! Writes the programs of the first hundred seeds to `corpus`, where an ordinary test of the sandbox
//! finds them.
//!
//! `cargo run --example keep`

use countersign_sandbox_fuzz::{component, module};

fn main() -> std::io::Result<()> {
    for (name, make) in [("modules", module as fn(&[u8]) -> _), ("components", component)] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        std::fs::create_dir_all(&folder)?;
        for seed in 1..=100u64 {
            if let Some(bytes) = make(&bytes(seed)) {
                std::fs::write(folder.join(format!("seed-{seed:03}.wasm")), bytes)?;
            }
        }
    }
    Ok(())
}

/// From a small generator: the same for the same seed.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed);
    let length = 200 + seed * 397 % 12_000;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
