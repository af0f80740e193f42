//! The sender against raw sockets. Tests are named by the threat they hold off.

mod addresses;
mod bytes;
// The end-to-end tests' server of names; it needs nothing of theirs.
#[path = "../../../../../tests/support/dns.rs"]
mod dns;
mod fate;
mod limits;
mod names;
mod redaction;
mod reuse;
mod rig;
mod tls;
