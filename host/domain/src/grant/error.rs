//! What can be wrong with a grant, told so that its author can put it right.

/// Why a grant is refused: where, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The text is longer than [`super::MAX_GRANT_BYTES`].
    #[error("the grant has {bytes} bytes; at most {} are read", super::MAX_GRANT_BYTES)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not TOML.
    #[error("grant line {line}, column {column}: {message}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// What the TOML reader says.
        message: String,
    },
    /// A key that nothing reads: unknown, misspelled, or in the wrong section.
    #[error("grant line {line}, column {column}: unknown key `{key}` {place}; {remedy}")]
    UnknownKey {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The key.
        key: String,
        /// The section it stands in, for example `in [limits]`.
        place: String,
        /// Where it belongs, or the known keys.
        remedy: String,
    },
    /// A key is missing that has no default.
    #[error("grant line {line}, column {column}: {place} needs `{key}`; {remedy}")]
    MissingKey {
        /// Of the section, counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The key.
        key: &'static str,
        /// The section.
        place: String,
        /// An example.
        remedy: &'static str,
    },
    /// A value that the key cannot have, alone or beside the others.
    #[error("grant line {line}, column {column}: `{key}` {problem}; {remedy}")]
    BadValue {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// Well-formed, and more than this host's operator lets any tool have.
    #[error(
        "`{key}` is {asked}, and this host allows {allowed}; lower it, or have the host's operator raise the ceiling"
    )]
    AboveCeiling {
        /// The key with its section, for example `limits.memory`.
        key: String,
        /// What the grant says.
        asked: String,
        /// What the host allows, for example `at most 512MiB`.
        allowed: String,
    },
}
