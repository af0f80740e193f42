//! Faults that need more than one host, or a server: hosts that stand still and go on, a database
//! that loses replies, is killed, stands still or fails over, hosts that are killed all the time.
//! The campaigns choose at random by a seed (`COUNTERSIGN_SEED` repeats a run), are short here and
//! long with `COUNTERSIGN_LONG=1`, and print a table of what they counted.
//!
//! | file | what goes wrong |
//! |---|---|
//! | `database` | the database loses replies, dies, stands still |
//! | `failover` | a standby with everything takes over |
//! | `fleet` | nothing: four hosts, one ledger, everybody at once |
//! | `kills` | hosts are killed, or stand still, at random |
//! | `pauses` | a host stands still at each point while another takes over |
//! | `rewound` | a standby without the last claims takes over, a backup is restored |
//! | `upstream` | the provider's side breaks |

mod database;
mod failover;
mod fleet;
mod kills;
// Points at which a host can be stopped are in debug builds only.
#[cfg(debug_assertions)]
mod pauses;
mod rewound;
mod upstream;
