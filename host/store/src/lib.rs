//! Durability. Every method is one atomic step: one conditional statement, or
//! one transaction whose first statement takes the action's row.
//!
//! This room decides no transition: a step says from where, by which fact, to
//! where, and the store compares and sets. It knows neither HTTP nor wasm. All
//! times are its own clock's, the database's; no caller hands one in.
//!
//! Read [`steps`] for what the steps are, [`Ledger`] for what each one means
//! when the power fails, `sqlite/sql.rs` for the statements, and `conformance`
//! for what is promised of any store.

#![deny(missing_docs)]

mod error;
pub mod health;
mod ledger;
pub mod postgres;
mod registry;
mod rows;
pub mod sqlite;
pub mod steps;
mod written;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use error::StoreError;
pub use ledger::{Changed, Ledger};
pub use registry::{NewPrincipal, NewTool, Pending, PrincipalRow, Registry};

/// Everything a host keeps.
pub trait Store: Ledger + Registry {}
impl<T: Ledger + Registry> Store for T {}
