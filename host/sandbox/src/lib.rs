//! Runs a component inside limits and turns its imports into effects.
//!
//! This room sends nothing, holds no secret, and sees no database. A component's
//! only way out is [`EffectGate`], which the host implements elsewhere; what it
//! sees of time, chance and answers is the same on every replay.
//!
//! Read in this order:
//!
//! 1. `sandbox`: [`Sandbox`], what can be asked of the room; `local`, who does it.
//! 2. `examine`, `admit`, `linker`: which bytes are taken, and all that they can import.
//! 3. `outbox`, `http`, `poll`: how a request becomes an effect, and when; `email`.
//! 4. `clocks`, `output`, `surroundings`: the rest of a component's world.
//! 5. `engine`, `limits`, `state`, `run`: the limits, and one run.
//! 6. `compile`, `cache`, `manifest`, `reconcile`.
//! 7. `process`: reading, compiling and running in processes that can do nothing else.

#![deny(missing_docs)]

mod admit;
mod bindings;
mod cache;
mod clocks;
mod compile;
mod config;
mod effect_gate;
mod email;
mod engine;
mod error;
mod examine;
mod features;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod http;
mod limits;
mod linker;
mod local;
mod manifest;
mod outbox;
mod output;
mod poll;
mod process;
mod reconcile;
mod run;
mod sandbox;
mod state;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;

pub use config::SandboxConfig;
pub use effect_gate::EffectGate;
pub use error::SandboxError;
pub use process::{CompileLimits, ProcessCommand, compile_component, guest_process};
pub use reconcile::{ReconcileReport, Verdict};
pub use sandbox::{Loaded, Sandbox};
