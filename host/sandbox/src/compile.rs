//! Bytes to machine code. The one place that calls the compiler, so that it can
//! move into a process of its own: what it gives is bytes either way.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::SandboxError;

/// Compiles admitted bytes. Takes from 0.1 to tens of seconds of processor time
/// on all cores; the caller makes sure that it happens once at a time and not on
/// a runtime's thread.
///
/// There is no limit on time or memory here (`admit` bounds the worst shapes
/// before): the compiler cannot be stopped inside a process.
pub(crate) fn compile(engine: &Engine, bytes: &[u8]) -> Result<Component, SandboxError> {
    // Not `Component::new`: where a build has wasmtime's `wat` feature that one
    // takes text as well.
    Component::from_binary(engine, bytes)
        .map_err(|e| SandboxError::refused("the component", format!("it does not compile: {e:#}")))
}
