//! Each protection that can be switched off has a test here that notices. Built
//! only with the feature, which no build for use and no workspace build turns
//! on: `cargo test -p countersign-gate --features planted-bugs --test main
//! planted`.
//!
//! Every named test runs in a process of its own, twice: it passes as the code
//! is, and fails with the bug.

use std::process::Command;
use std::thread;

use countersign_domain::planted::{ALL, VARIABLE};

/// Which test notices which bug.
const CAUGHT_BY: &[(&str, &str)] = &[
    ("claim", "racing::p3_sixty_four_executes_at_once_make_one_request_and_get_the_same_bytes"),
    ("fingerprint", "proposing::p4_a_first_write_that_is_not_the_plan_is_not_sent_and_ends_action_changed"),
    ("fingerprint", "deciding::p4_an_approval_of_something_else_than_was_seen_is_refused"),
    (
        "record",
        "proposing::p3_the_same_proposal_again_finds_the_same_action_and_its_result_and_sends_nothing",
    ),
    ("send-before-claim", "windows::p1_a_claim_is_committed_before_the_first_byte_leaves"),
    ("record-ignores-state", "windows::p8_break_1_the_end_of_an_attempt_whose_lease_ran_out_is_not_written"),
    (
        "end-while-sending",
        "sending::p2_break_2_a_trap_while_the_send_runs_awaits_it_records_its_answer_and_the_action_ends_right",
    ),
    (
        "repeat-answer-settles",
        "sending::p2_break_10_a_repeat_answered_in_flight_or_refused_stays_unknown_until_a_success_settles_it",
    ),
    (
        "refusal-not-replayed",
        "replay::p2_break_11_a_refusal_that_was_shown_then_a_fallback_sent_then_a_crash_shows_the_refusal_again",
    ),
    ("write-claim-leaves-row", "windows::p1_a_claim_is_committed_before_the_first_byte_leaves"),
    (
        "key-compared-by-fingerprint",
        "proposing::p5_break_21_an_upgrade_in_between_gives_the_caller_its_own_action_and_result",
    ),
    (
        "later-writes-run-free",
        "proposing::p4_break_23_a_second_write_that_nobody_saw_is_not_sent_and_the_end_names_what_stands",
    ),
    (
        "write-claim-trusts-action-claim",
        "claims::p1_break_27_what_changes_between_action_claim_and_write_claim_sends_nothing",
    ),
    ("late-409-settles", "racing::p2_break_33_a_late_in_flight_to_a_repeat_settles_nothing"),
    (
        "lost-worker-spends-grant",
        "windows::break_34_a_worker_that_dies_again_over_what_was_done_takes_no_attempt_from_its_report",
    ),
    (
        "look-ignores-row",
        "windows::p1_the_last_look_before_the_first_byte_asks_whether_the_attempt_still_holds_the_row",
    ),
    (
        "not-done-without-evidence",
        "reconciling::p2_a_word_that_no_answer_of_the_provider_carries_settles_nothing",
    ),
    ("lookup-may-write", "reconciling::p6_a_lookup_gets_out_nothing_but_reads"),
    (
        "rewound-sends-as-new",
        "rewinding::p2_break_35_what_a_restored_backup_forgot_is_asked_about_and_not_sent_as_new",
    ),
    ("rewound-sends-anew", "rewinding::p2_break_35_what_may_have_been_replaced_is_not_sent_again"),
    (
        "rewound-ends-as-cancelled",
        "rewinding::p2_break_35_a_cancel_after_a_restore_does_not_say_that_nothing_happened",
    ),
    (
        "success-grants-nothing",
        "windows::break_16_34_the_last_attempt_records_its_success_and_traps_and_is_given_another_to_report_it",
    ),
];

/// What the gate never asks of the store in a way that would show it: an attempt
/// sends an effect at most once, and what is to be doubted is doubted before
/// anything is claimed. The store's own suite notices.
const CAUGHT_IN_THE_STORE: &[&str] = &["record-ignores-send", "claim-ignores-rewind"];

/// What only a mail server shows; the end-to-end tests have one.
const CAUGHT_END_TO_END: &[&str] = &["lost-mail-is-not-sent", "mail-lines-unchecked"];

/// Whether the test passes in a process of its own.
fn passes(test: &str, bug: Option<&str>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--test-threads=1"]).env_remove(VARIABLE);
    if let Some(bug) = bug {
        command.env(VARIABLE, bug);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "there is no test {test}: {said}");
    output.status.success()
}

#[test]
fn planted_bugs_are_each_caught() {
    for bug in ALL {
        let caught = CAUGHT_BY.iter().any(|(named, _)| named == bug)
            || CAUGHT_IN_THE_STORE.contains(bug)
            || CAUGHT_END_TO_END.contains(bug);
        assert!(caught, "nothing notices {bug}");
    }
    thread::scope(|scope| {
        for (bug, test) in CAUGHT_BY {
            scope.spawn(move || {
                assert!(passes(test, None), "{test} fails without any bug");
                assert!(!passes(test, Some(bug)), "{test} does not notice {bug}");
            });
        }
    });
}
