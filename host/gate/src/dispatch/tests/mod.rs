//! The sender against raw sockets. Tests are named by the threat they hold off.

mod addresses;
mod bytes;
mod fate;
mod limits;
mod redaction;
mod reuse;
mod rig;
mod tls;
