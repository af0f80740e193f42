//! The room as a whole, with the real example components and a gate that counts.

mod alone;
mod binary;
mod bombs;
mod cache;
pub(crate) mod corpus;
mod determinism;
mod effects;
mod exchange;
mod inspection;
mod languages;
mod leftovers;
mod limits;
mod made;
mod reconciling;
pub(crate) mod rig;
mod traps;
