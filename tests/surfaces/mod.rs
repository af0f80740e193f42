//! Everything that can be said to the host, said wrongly: each time a clear answer that says
//! what, where, and what to do, and nothing is done.

mod bodies;
mod cli;
mod doctor;
mod framing;
mod identity;
mod languages;
mod metrics;
mod proposals;
mod reconcile;
mod start;
mod stores;
mod tenancy;
mod tools;
mod walkthrough;
mod webhook;
