//! The nouns and rules of Countersign.
//!
//! This room does no I/O, awaits nothing, reads no clock and draws no random
//! number; it knows no table, no status code, no component. What it needs to
//! know is an argument, so every rule here can be read, and tested, on its own.
//!
//! Read in this order:
//!
//! 1. [`action`]: ten states, the facts, and the one function between them.
//! 2. [`fingerprint`] and [`key`]: what is approved, and how things are named.
//! 3. [`effect`] and [`effect_log`]: one outbound call, and replay.
//! 4. [`retry`] and [`lease`]: what is known after a send; who may send at all.
//! 5. [`grant`] and [`egress`]: what a tool may do, and where it may reach.
//! 6. [`canonical`] and [`event`]: the texts that are hashed.

#![deny(missing_docs)]

pub mod action;
pub mod approval;
pub mod canonical;
pub mod code;
pub mod effect;
pub mod effect_log;
pub mod egress;
pub mod event;
pub mod fingerprint;
pub mod grant;
pub mod id;
pub mod key;
pub mod lease;
pub mod mail;
pub mod plan;
pub mod planted;
pub mod retry;
pub mod role;
pub mod run;
pub mod secret;
pub mod time;
pub mod tool;
