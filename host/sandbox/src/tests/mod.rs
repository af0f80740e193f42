//! The room as a whole, with the real example components and a gate that counts.

mod cache;
mod determinism;
mod effects;
mod exchange;
mod inspection;
mod limits;
mod reconciling;
mod rig;
mod traps;
