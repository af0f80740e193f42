//! The windows in which things go wrong, one test each, named after the window and what must
//! come of it. The host is a real process and so is the provider, whose log is the verdict.

mod approvals;
// Points at which a host can be stopped are in debug builds only.
#[cfg(debug_assertions)]
mod crashes;
mod events;
mod executes;
mod expiry;
mod kills;
mod reentry;
#[cfg(debug_assertions)]
mod refusals;
mod repeats;
mod shutdown;
mod unknown;
mod writes;
