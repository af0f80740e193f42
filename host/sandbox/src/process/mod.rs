//! Processes of the sandbox's own: one that reads or compiles a component and ends, and
//! ones that run components. Both are this program started again, told what to do
//! over one socket, and shut in before they touch a byte that somebody else wrote.
//!
//! A process of either kind is *not trusted afterwards*. What it says is bounded
//! and checked as if the component had said it; one that speaks out of turn is
//! killed. It holds nothing worth having: no database, no secret, no environment,
//! no file, no network, and no call of the system with which to get one.
//!
//! Read in this order: `confine` (what such a process can still do), `wire` (what
//! is said), `link` (how), `guest` (the process's side), `child` and `pool` (the
//! host's side), `handover` (compiled code from one to the other), `compiling`.

mod child;
mod compiling;
mod confine;
mod guest;
mod handover;
mod link;
mod pool;
mod spawn;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod watched;
mod wire;

pub use compiling::{CompileLimits, compile_component};
pub(crate) use compiling::{compile, examine};
pub use guest::guest_process;
pub(crate) use pool::Pool;
pub use spawn::ProcessCommand;
