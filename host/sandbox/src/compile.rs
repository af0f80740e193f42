//! Bytes to machine code and machine code to something that runs. The one place
//! that calls the compiler; whether it does so here or in a process of its own,
//! what it gives is bytes.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::SandboxError;
use crate::local;

/// Compiles admitted bytes, and sees whether the component fits what the host
/// has. Takes from 0.1 to tens of seconds of processor time on all cores; the
/// caller makes sure that it does not happen on a runtime's thread.
///
/// There is no limit on time or memory here (`admit` bounds the worst shapes
/// before): the compiler cannot be stopped inside a process. `process` has the
/// limits, around this.
pub(crate) fn compile(engine: &Engine, bytes: &[u8]) -> Result<Vec<u8>, SandboxError> {
    // Not `Component::new`: where a build has wasmtime's `wat` feature that one
    // takes text as well.
    let component = Component::from_binary(engine, bytes)
        .map_err(|e| SandboxError::refused("the component", format!("it does not compile: {e:#}")))?;
    local::fits(engine, &component)?;
    component
        .serialize()
        .map_err(|e| SandboxError::refused("the component", format!("its code cannot be kept: {e:#}")))
}

/// Turns compiled bytes into a component.
///
/// From memory and not from a file: between check and use a file could change.
#[expect(
    unsafe_code,
    reason = "wasmtime loads machine code by this function only; the bytes are the compiler's"
)]
pub(crate) fn component(engine: &Engine, compiled: &[u8]) -> Result<Component, SandboxError> {
    // SAFETY: the caller has these bytes from `compile` under the same settings, by
    // a call, from a process that it started for that, or from the cache, which
    // has just checked its HMAC over exactly them.
    unsafe { Component::deserialize(engine, compiled) }
        .map_err(|e| SandboxError::refused("the component", format!("its code does not load: {e:#}")))
}
