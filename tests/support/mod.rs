//! What every end-to-end test stands on: the real binary in a process of its own with a data
//! directory of its own, a provider in another process whose log is the verdict, and callers
//! that speak HTTP. Nothing here reaches into either process.
//!
//! Read [`host`] first, then [`stage`].

pub mod aiosmtpd;
pub mod backend;
pub mod campaign;
pub mod cutter;
pub mod dns;
pub mod fleet;
pub mod grants;
pub mod guests;
pub mod host;
pub mod http;
pub mod postgres;
pub mod process;
pub mod provider;
pub mod proxy;
pub mod seed;
pub mod smtp;
pub mod sse;
pub mod stage;
pub mod standby;
pub mod told;
pub mod upstream;

use std::path::PathBuf;
use std::sync::Barrier;

pub use backend::Backend;
pub use host::{BINARY, Host, SECRET};
pub use provider::{Fault, Mode, Provider, Rule};
pub use stage::Stage;
pub use told::Told;

/// The folder of the whole project.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().expect("the project's folder")
}

/// The usual number, or the larger one of the nightly run.
pub fn long(usual: usize, nightly: usize) -> usize {
    if is_set("COUNTERSIGN_LONG") { nightly } else { usual }
}

/// Whether the environment says yes.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Says why a test cannot run here. Where everything has to be there, that is a failure.
pub fn skipped(why: &str) {
    assert!(!is_set("COUNTERSIGN_TESTS_REQUIRE_ALL"), "this test may not be skipped here: {why}");
    eprintln!("SKIPPED: {why}");
}

/// Ends a test that cannot run here, loudly.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::support::skipped(&format!($($why)*));
        return;
    }};
}

/// Calls from `n` threads that start together; what each was given, in no order.
pub fn at_once<T: Send>(n: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let gate = Barrier::new(n);
    let (gate, call) = (&gate, &call);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..n)
            .map(|i| {
                scope.spawn(move || {
                    gate.wait();
                    call(i)
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    })
}
