//! The gate's rules, held against a provider over real sockets, the real store
//! with a clock that tests move, and components that are scripts.
//!
//! `rig` is the stage; the other files are one window each, named after what
//! happens in it and what must come of it. P and a number: a promise of the
//! product. `break` and a number: a rule that looks right and is not.

mod chaos;
mod claims;
mod deciding;
mod installing;
#[cfg(feature = "planted-bugs")]
mod planted;
mod proposing;
mod quotas;
mod racing;
mod reconciling;
mod releasing;
mod replay;
mod resolving;
mod rewinding;
mod rig;
mod sending;
mod tables;
mod windows;
