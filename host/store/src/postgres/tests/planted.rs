//! Each protection of this room, switched off alone: the test that holds it
//! has to fail then, and only then.

use std::process::Command;

use countersign_domain::planted::VARIABLE;

use super::cluster;

const CAUGHT_BY: &[(&str, &str)] = &[
    ("claim", "claims::two_eight_sixty_four_and_two_hundred_claimers_at_once_have_one_winner"),
    ("fingerprint", "approve::p4_an_approval_of_something_else_than_stands_there_is_refused"),
    ("record-ignores-state", "records::break_01_an_attempt_that_is_over_ends_nothing"),
    ("write-claim-leaves-row", "writes::break_14_a_write_claim_voids_what_the_reaper_decided_before_it"),
    ("write-claim-trusts-action-claim", "writes::break_27_no_first_write_after_the_policy_changed"),
    ("record-ignores-send", "records::break_31_a_record_of_an_earlier_send_is_not_taken_for_a_later_one"),
    (
        "claim-ignores-rewind",
        "rewound::break_35_a_rewound_ledger_doubts_every_open_action_before_anything_is_claimed",
    ),
    ("success-grants-nothing", "records::break_34_a_recorded_success_grants_the_attempt_that_reports_it"),
];

#[test]
fn planted_bugs_are_each_caught() {
    // Without a server nothing would be noticed; that was said, or has failed.
    if cluster::shared().is_none() {
        return;
    }
    for (bug, test) in CAUGHT_BY {
        let name = format!("postgres::tests::{test}");
        let run = |planted: &str| {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &name, "--nocapture", "--test-threads=1"])
                .env(VARIABLE, planted)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("running 1 test"), "there is no test {name}: {said}");
            (output.status.success(), said)
        };
        let (passes, said) = run("");
        assert!(passes, "{test} fails with nothing planted: {said}");
        let (passes, _) = run(bug);
        assert!(!passes, "{test} did not notice the planted bug {bug}");
        println!("{bug}: caught by {test}");
    }
}
