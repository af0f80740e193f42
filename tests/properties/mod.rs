//! Random histories of many clients on one host, held against a small model and against the
//! provider's log.

mod interleavings;
mod model;
