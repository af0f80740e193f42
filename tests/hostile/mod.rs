//! Components and callers that want more than they are given.
