//! Each protection, switched off in the real host, has to make one of these tests fail. A test that
//! does not notice the bug it is there for does not count.
//!
//! Only in builds with the feature; the tests are this binary's own, each in a process of its own.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use countersign_domain::planted;

use crate::support::at_once;

/// Bugs that need a finer clock than another process has; the rooms' own tests notice them.
const CAUGHT_IN_THE_ROOMS: &[&str] = &[
    "record-ignores-state",
    "record-ignores-send",
    "success-grants-nothing",
    "lost-worker-spends-grant",
    "look-ignores-row",
    "not-done-without-evidence",
    "lookup-may-write",
    "rewound-sends-anew",
    "rewound-ends-as-cancelled",
    "claim-ignores-rewind",
];

/// The bug, and the test that notices it.
const CAUGHT: &[(&str, &str)] = &[
    (
        "claim",
        "windows::executes::p3_many_executes_at_once_send_once_and_all_get_the_same_result_bytes::sqlite",
    ),
    (
        "fingerprint",
        "windows::approvals::p4_an_approval_of_another_fingerprint_than_the_stored_one_is_refused::sqlite",
    ),
    (
        "record",
        "windows::crashes::p2_killed_at_every_point_of_a_tool_with_one_effect_makes_that_effect_once::sqlite",
    ),
    (
        "send-before-claim",
        "windows::crashes::p2_killed_at_every_point_of_a_tool_with_one_effect_makes_that_effect_once::sqlite",
    ),
    (
        "repeat-answer-settles",
        "windows::repeats::break_10_a_repeat_that_is_answered_in_flight_401_403_425_429_500_or_nothing_settles_nothing::sqlite",
    ),
    (
        "refusal-not-replayed",
        "windows::refusals::break_11_a_refusal_that_was_shown_and_a_fallback_that_was_sent_stay_so_after_a_crash_and_a_wider_grant::sqlite",
    ),
    (
        "key-compared-by-fingerprint",
        "windows::reentry::break_21_after_an_upgrade_of_the_tool_a_caller_still_gets_its_own_stored_result::sqlite",
    ),
    (
        "later-writes-run-free",
        "windows::writes::break_23_a_second_write_that_nobody_saw_is_refused_and_named_and_the_first_one_stands::sqlite",
    ),
    (
        "write-claim-trusts-action-claim",
        "windows::expiry::break_27_an_approval_that_expires_between_the_claim_and_the_first_write_stops_it::sqlite",
    ),
    (
        "end-while-sending",
        "windows::writes::break_2_a_component_that_runs_out_of_time_while_its_write_runs_does_not_end_the_attempt_over_it::sqlite",
    ),
    (
        "late-409-settles",
        "windows::repeats::a_provider_that_works_long_and_says_in_flight_to_the_repeat_acts_once::sqlite",
    ),
    (
        "write-claim-leaves-row",
        "windows::crashes::p2_killed_at_every_point_of_a_tool_with_one_effect_makes_that_effect_once::sqlite",
    ),
    (
        "lost-mail-is-not-sent",
        "windows::mail::k02_a_server_that_hangs_up_after_the_last_dot_has_as_many_mails_as_there_are_unknowns::sqlite",
    ),
    (
        "mail-lines-unchecked",
        "windows::mail::k01_whatever_would_make_one_mail_two_is_refused_before_anybody_is_asked",
    ),
    // What many hosts and failing servers do, and the campaigns.
    (
        "claim",
        "faults::fleet::p3_executes_of_one_action_spread_over_four_hosts_make_one_effect_and_all_get_the_same_bytes",
    ),
    (
        "write-claim-trusts-action-claim",
        "faults::pauses::a_host_that_sleeps_beyond_the_approvals_end_sends_nothing_when_it_wakes",
    ),
    (
        "send-before-claim",
        "faults::kills::fi_1_hosts_killed_at_random_where_keys_are_honoured_make_every_effect_once_and_lose_no_result::sqlite",
    ),
    (
        "send-before-claim",
        "faults::database::e05_p1_connections_lost_during_the_commit_of_a_claim_or_record_send_nothing_that_is_not_claimed_and_nothing_twice",
    ),
    (
        "write-claim-leaves-row",
        "faults::kills::fi_5_hosts_that_stand_still_at_random_and_a_clock_that_jumps_make_no_second_effect",
    ),
    (
        "rewound-sends-as-new",
        "faults::rewound::p2_a_restored_backup_leaves_everything_open_in_doubt_and_sends_nothing_as_if_it_were_new::sqlite",
    ),
    (
        "repeat-answer-settles",
        "faults::upstream::fi_6_a_connection_that_breaks_at_each_byte_of_an_exchange_leaves_one_effect_or_one_honest_doubt",
    ),
];

#[test]
fn planted_bugs_are_each_caught_end_to_end() {
    let binary = std::env::current_exe().expect("this binary");
    for bug in planted::ALL {
        let named = CAUGHT.iter().any(|(caught, _)| caught == bug) || CAUGHT_IN_THE_ROOMS.contains(bug);
        assert!(named, "nothing is said about the bug {bug}");
    }
    let next = Mutex::new(CAUGHT.iter());
    let missed = at_once(2, |_| {
        let mut missed = Vec::new();
        loop {
            let Some((bug, test)) = next.lock().expect("the list").next() else { return missed };
            let ran = Command::new(&binary)
                .args(["--exact", test])
                .env(planted::VARIABLE, bug)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .output()
                .expect("the test's process");
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert!(said.contains("running 1 test"), "there is no test {test}");
            if ran.status.success() {
                missed.push(*bug);
            }
        }
    });
    let missed: Vec<&str> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "these bugs went unnoticed: {missed:?}");
}
