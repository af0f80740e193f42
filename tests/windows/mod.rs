//! The windows in which things go wrong, one test each, named after the window and what must
//! come of it. The host is a real process and so is the provider, whose log is the verdict. Each is
//! run over an embedded store and over a PostgreSQL database (`…::sqlite`, `…::postgres`); what
//! needs several hosts, or a server that fails, is in [`faults`](super::faults).
//!
//! | window | test |
//! |---|---|
//! | approvals pressed at once: two, eight, two hundred | `approvals::p8_two_eight_and_two_hundred_…`, `faults::fleet::two_hundred_approvals_…` |
//! | approve, decline, cancel, supersede, execute at once | `approvals::approve_and_decline_…`, `approvals::approve_decline_cancel_…` |
//! | the same job to many workers | `executes::p3_many_executes_…`, `faults::fleet::work_that_runs_by_itself_…` |
//! | a caller comes again after its own crash, from a checkpoint, re-issued | `reentry::a_re_issued_call_…` |
//! | the tool was upgraded in between | `reentry::break_21_…` |
//! | arguments, component, grant changed after approval | `reentry::p4_…` |
//! | a refusal shown, a fallback sent, a crash | `refusals::break_11_…` |
//! | a word about another send than the last | `unknown::break_9_…` |
//! | "did not happen" while the send may still run | `unknown::break_9_…` |
//! | a second write that nobody saw | `writes::break_23_…` |
//! | approval after expiry, execution after it, claim before and write after | `expiry::…` |
//! | a claim waits for a lock across the approval's end | `faults::database::break_15_…` |
//! | a host stands still across the approval's end | `faults::pauses::a_host_that_sleeps_beyond_…` |
//! | same key, other arguments | `reentry::p5_…` |
//! | a host dies at each point, one effect or five | `crashes::p2_killed_at_every_point_…` |
//! | … at a provider without keys | `crashes::p2_killed_at_every_point_at_a_provider_without_keys_…` |
//! | answer lost though the provider acted | `unknown::a_lost_reply_…`, `unknown::p2_a_lost_reply_…` |
//! | answer lost at a provider without keys that can be asked | `reconciled::…` |
//! | a repeat answered "in flight", 401, 429, 500 or nothing | `repeats::break_10_…` |
//! | lease runs out while a slow sender still runs | `kills::a_host_that_stands_still_…` |
//! | a host stands still for two leases at each point and goes on | `faults::pauses::e08_…` |
//! | connection lost during the commit of a claim | `faults::database::e05_p1_…` |
//! | the key's window passes between plan and repeat | `unknown::break_4_…`, `unknown::e11_…` |
//! | a component retries the same write after a 500 | `repeats::break_30_…`, `repeats::break_29_…` |
//! | the deadline passes while a person resolves "it happened" | `unknown::a_deadline_that_passes_…` |
//! | the acknowledgement is lost after the result was stored | `executes::a_caller_that_hangs_up_…` |
//! | wake-ups lost | `faults::fleet::a_host_whose_wake_ups_are_all_lost_…` |
//! | an older backup restored, a standby without the last claims promoted | `faults::rewound::…` |
//! | the server dies, fails over, stands still | `faults::database::fi_3_…`, `faults::failover::fi_4_…` |

mod approvals;
// Points at which a host can be stopped are in debug builds only.
#[cfg(debug_assertions)]
mod crashes;
mod events;
mod executes;
mod expiry;
mod kills;
mod mail;
mod reconciled;
mod reentry;
#[cfg(debug_assertions)]
mod refusals;
mod repeats;
mod shutdown;
mod unknown;
mod writes;
