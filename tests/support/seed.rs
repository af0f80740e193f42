//! Random choices that can be made again: the seed is printed, and `COUNTERSIGN_SEED` sets it.

/// SplitMix64 (Steele, Lea, Flood): small, and good enough to choose by.
#[derive(Debug, Clone)]
pub struct Seed(u64);

impl Seed {
    /// The seed that was asked for, or a new one; printed either way.
    pub fn of_this_run(what: &str) -> Seed {
        let asked = std::env::var_os("COUNTERSIGN_SEED").and_then(|text| text.to_str()?.parse().ok());
        let seed = asked.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).expect("randomness");
            u64::from_le_bytes(bytes)
        });
        eprintln!("{what}: COUNTERSIGN_SEED={seed}");
        Seed(seed)
    }

    /// A stream of its own for part `n`: what one client chooses does not depend on how fast the
    /// others are.
    pub fn part(&self, n: u64) -> Seed {
        let mut part = Seed(self.0 ^ n.wrapping_mul(0xD605_BBB5_8C8A_BC4D));
        part.next();
        part
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
