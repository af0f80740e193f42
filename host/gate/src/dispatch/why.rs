//! Why a send came to nothing, in fixed words. None of them has room for
//! anything a server, a resolver or a TLS library said: such text may hold what
//! was sent, secrets included.

/// Not a byte of the request was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotSent {
    #[error("the host's name was not resolved")]
    NotResolved,
    #[error("the resolver did not answer in time")]
    ResolverTimeout,
    #[error("the connection was refused")]
    Refused,
    #[error("no connection came about")]
    Unreachable,
    #[error("no connection came about in time")]
    ConnectTimeout,
    #[error("the server's certificate was not accepted")]
    Certificate,
    #[error("the TLS handshake failed")]
    Handshake,
    #[error("the TLS handshake did not end in time")]
    HandshakeTimeout,
    #[error("the connection broke before the first byte")]
    Broken,
    #[error("the time for the send was over before the first byte")]
    NoTimeLeft,
    #[error("the lease or the key's window was over before the first byte")]
    Withdrawn,
}

/// At least one byte of the request was written, and there is no whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    #[error("no answer came in time")]
    NoAnswer,
    #[error("the answer came too slowly")]
    TooSlow,
    #[error("the answer was not whole when the time for the send was over")]
    TooLong,
    #[error("the connection ended before the answer was whole")]
    Cut,
    #[error("the answer is not HTTP/1.1")]
    Malformed,
    #[error("the answer's header is over the limit")]
    HeaderTooLarge,
    #[error("the answer is over the limit")]
    BodyTooLarge,
    #[error("too many interim answers came")]
    Flooded,
    #[error("the server switched protocols")]
    Switched,
    #[error("the answer was not searched for secrets: the host is shutting down")]
    Unsearched,
}
