//! What can go wrong with a database, by what a caller can do about it. Losing
//! a race is not an error: steps answer that with `Lost`.

/// Why a step was not made, or is not known to have been made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was changed; the same step may be tried again.
    #[error("the store cannot be used now: {what}")]
    Unavailable {
        /// Locked, out of connections, shutting down.
        what: String,
    },
    /// The disk is full or the file cannot be written. Nothing was changed.
    #[error("the store cannot write: {what}")]
    CannotWrite {
        /// What the database said, and what to do.
        what: String,
    },
    /// The commit was sent and its answer is lost: read again before anything
    /// else is done.
    #[error("it is not known whether the commit succeeded: {what}")]
    CommitUnknown {
        /// What the database said.
        what: String,
    },
    /// A named constraint refused the change. That is a bug here, or somebody
    /// writing to the database by hand; nothing was changed.
    #[error("the constraint {name} refused a change")]
    Constraint {
        /// The constraint's name in the migrations.
        name: String,
    },
    /// What was asked for is not there.
    #[error("{what} is not there")]
    NotFound {
        /// What.
        what: String,
    },
    /// Something with this name is there already and differs.
    #[error("{what}")]
    Conflict {
        /// What, and what to do.
        what: String,
    },
    /// A row cannot be read back as what it must be.
    #[error("a row is damaged: {what}")]
    Damaged {
        /// Which, and how.
        what: String,
    },
    /// The store cannot be opened as it is.
    #[error("{what}")]
    CannotOpen {
        /// What, where, and what to do.
        what: String,
    },
}
