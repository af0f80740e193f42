//! The end-to-end tests: the real host in a process of its own, a real provider in another whose
//! log is the verdict, real sockets, real kills. One binary; `support` first.
//!
//! | folder | what it holds |
//! |---|---|
//! | `windows` | the moments in which things go wrong, one test each |
//! | `surfaces` | everything that can be said to the host, said wrongly |
//! | `faults` | several hosts, and databases that fail |
//! | `hostile` | components and callers that want more than they are given |
//! | `properties` | random histories, held against a small model |
//! | `walls` | what the sources themselves must keep to |
//! | `planted` | with the feature: each protection switched off makes a test fail |
//! | `demo` | the demo, as a newcomer runs it |
//!
//! `COUNTERSIGN_LONG=1` raises the numbers, `COUNTERSIGN_SEED` repeats a random run,
//! `COUNTERSIGN_GUESTS` names a folder of freshly built guests, `COUNTERSIGN_TESTS_ALONE=1` says that
//! nothing else runs at the same time, and with `COUNTERSIGN_TESTS_REQUIRE_ALL=1` a test that cannot
//! run here is a failure.
#![expect(clippy::disallowed_methods, reason = "tests are told by their environment how to run")]

mod demo;
mod faults;
mod hostile;
#[cfg(feature = "planted-bugs")]
mod planted;
mod properties;
mod support;
mod surfaces;
mod walls;
mod windows;
