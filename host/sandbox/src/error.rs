//! What can go wrong between a component's bytes and a tool that runs. How a
//! *run* ends is not an error of this room: that is
//! [`countersign_domain::run::Ended`], and a trap is a normal way for a tool to
//! end.

use countersign_domain::id::ComponentDigest;

/// Why the sandbox did not start, or did not take a component.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine does not start on this machine: not enough address space, or a
    /// processor that the compiler does not know. Nothing to do with any tool.
    #[error("the WebAssembly engine does not start: {0}")]
    Engine(String),

    /// The folder for compiled forms cannot be used.
    #[error("the folder for compiled components, {path}, cannot be used: {source}")]
    CacheFolder {
        /// The folder, as configured.
        path: std::path::PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },

    /// The component is not taken. Somebody who has only its bytes can act on
    /// the message: it names the part and says what would be right.
    #[error("{what}: {why}")]
    Refused {
        /// The part that is refused, for example an import's full name.
        what: String,
        /// Why, and what to do.
        why: String,
    },

    /// The bytes are not the ones that the caller named. Nothing was compiled.
    #[error("the component's bytes have the SHA-256 {found}, not {expected}")]
    WrongBytes {
        /// What the caller named.
        expected: ComponentDigest,
        /// What the bytes have.
        found: ComponentDigest,
    },

    /// The host has no room to try the component now. Trying later may help.
    #[error("no room to run the component now: {0}")]
    Busy(String),
}

impl SandboxError {
    pub(crate) fn refused(what: impl Into<String>, why: impl Into<String>) -> SandboxError {
        SandboxError::Refused { what: what.into(), why: why.into() }
    }
}

/// Why a store ended by the host's will. Travels through wasmtime as the error
/// of a host call, which a component cannot catch, and is read back in `run`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Halt {
    /// The gate answered `Stopped`.
    #[error("stopped by the gate")]
    Stopped,
    /// The gate's task died. What it did is in its own records, not here.
    #[error("the gate did not answer")]
    GateFailed,
    /// A limit, by the name under which it is reported.
    #[error("{why}")]
    Limit {
        /// Short name.
        limit: &'static str,
        /// For people.
        why: String,
    },
    /// A capability that a tool can declare and never has.
    #[error("capability_not_granted: {0} is not available to a tool")]
    NotGranted(&'static str),
    /// Everything it waits for waits for itself.
    #[error(
        "it waits for something that cannot come: no timer is set and no finished request is without an answer \
         (was a request body left unfinished?)"
    )]
    Deadlock,
    /// A panic in a host call, seen where the run is driven.
    #[error("a call that it made failed in the host; this is a fault of the host")]
    HostPanic,
    /// `wasi:cli/exit`.
    #[error("it left through wasi:cli/exit with status {0}, without a result")]
    Exited(u8),
    /// `context.action` where there is none.
    #[error("there is no action in `describe`: it must answer from constants")]
    NoAction,
}
