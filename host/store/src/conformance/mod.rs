//! What is promised of any store, whatever database is under it: a suite with
//! the backend as its argument. A new behaviour starts here.
//!
//! Each case is a function of a [`Backend`] that was just opened and is empty,
//! and is declared as a test of its own by [`conformance_tests!`]. Nothing in
//! here may assume a particular database, or sleep: time moves when
//! [`Backend::advance`] says so.
//!
//! A case that covers one of the known ways in which such a protocol breaks is
//! named after it, `break_NN_…`; one that holds a promise of the product,
//! `pN_…`.
#![expect(missing_docs, reason = "each case is named after the window and the promise")]

pub mod approve;
pub mod claims;
pub mod events;
pub mod lives;
pub mod propose;
pub mod races;
pub mod records;
pub mod recovery;
pub mod registry;
pub mod rewound;
pub mod scene;
pub mod settle;
pub mod writes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::Store;

/// An empty store whose clock can be moved.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Moves the store's clock on.
    async fn advance(&self, by: Duration);

    /// The store learns that its database lost commits.
    async fn lose_commits(&self);
}

/// Declares one test per case, in a module per file. The argument opens a fresh
/// [`Backend`]: an expression that gives a future of it.
#[macro_export]
macro_rules! conformance_tests {
    ($open:expr) => {
        $crate::conformance_tests! { @each $open;
            propose::{
                p5_the_same_key_finds_the_same_action_and_changes_nothing,
                break_21_after_an_upgrade_the_same_key_still_finds_its_own_action,
                two_hundred_proposals_of_one_key_make_one_action,
                the_key_of_one_tenant_names_nothing_in_another,
                a_proposal_writes_its_events_and_planned_effects_in_one_commit,
                a_proposal_that_policy_denies_ends_at_once,
                every_field_of_an_action_is_read_back_as_it_was_written,
                a_proposal_that_replaces_an_ended_action_is_named_there,
                lists_are_newest_first_and_go_on_where_they_stopped,
            },
            approve::{
                the_last_approval_needed_makes_one_transition_and_one_event,
                two_eight_and_two_hundred_approvals_at_once_make_one_transition,
                break_20_approvals_given_at_once_are_all_counted,
                an_approver_who_presses_again_counts_once_and_is_told_it_was_made,
                one_approver_pressing_two_hundred_times_at_once_counts_once,
                p4_an_approval_of_something_else_than_stands_there_is_refused,
                an_approval_lands_until_the_last_microsecond_and_not_after,
                an_approval_after_the_policy_changed_is_refused,
                an_approval_after_the_end_is_refused,
            },
            claims::{
                two_eight_sixty_four_and_two_hundred_claimers_at_once_have_one_winner,
                p1_only_an_approved_action_is_claimed,
                a_claim_before_the_approval_expires_wins_and_one_at_that_microsecond_loses,
                a_claim_after_the_policy_changed_loses,
                a_paused_tool_is_not_claimed_until_it_goes_on,
                a_failed_attempt_is_claimed_again_once_it_is_due_and_costs_an_attempt,
                an_action_without_attempts_left_is_not_claimed,
                break_22_the_fence_is_the_attempt_and_not_its_number,
                a_heartbeat_extends_a_live_lease_and_revives_no_dead_one,
                a_heartbeat_of_an_attempt_that_shall_stop_says_so,
                break_03_a_safe_repeat_is_stated_and_claimed_in_one_commit,
                break_03_a_cancel_before_the_repeat_claim_stops_it_and_hides_nothing,
                break_04_a_repeat_claim_judges_the_window_itself,
                break_12_only_effects_claimed_as_repeatable_are_repeated,
                repeats_cost_repeats_and_wait_until_they_are_due,
            },
            writes::{
                a_write_claim_marks_the_row_and_covers_the_longest_send,
                p1_no_write_is_claimed_under_a_lease_that_is_over,
                nothing_is_claimed_while_a_write_is_in_flight,
                no_write_is_claimed_once_a_cancel_was_asked,
                no_write_is_claimed_from_the_deadline_on,
                break_27_no_first_write_after_the_approval_expired,
                break_27_no_first_write_after_the_policy_changed,
                after_a_write_stands_approval_and_policy_are_those_it_was_made_under,
                break_13_a_read_does_not_stand_for_a_write,
                break_14_a_write_claim_voids_what_the_reaper_decided_before_it,
                break_14_write_claim_races_the_reaper_one_wins,
                break_19_a_write_that_was_not_sent_is_claimed_again,
                break_28_a_repeat_of_what_was_not_sent_has_the_conditions_of_a_write_claim,
                an_unknown_write_is_asked_again_after_the_deadline_but_not_after_its_window,
                break_04_a_repeat_is_judged_again_when_it_is_claimed,
                break_30_a_components_own_retry_keeps_the_start_of_the_window,
                a_window_that_never_began_begins_with_the_next_send,
                a_write_that_was_refused_is_never_claimed_again,
                a_write_that_was_set_aside_is_asked_again_inside_its_window_only,
                a_read_that_was_set_aside_is_replaced_and_kept_as_history,
            },
            records::{
                break_01_an_attempt_that_is_over_ends_nothing,
                break_02_an_attempt_does_not_end_while_its_send_runs,
                break_06_an_attempt_does_not_end_over_an_unknown_effect,
                break_10_a_repeat_that_was_not_sent_undoes_nothing,
                break_31_a_record_of_an_earlier_send_is_not_taken_for_a_later_one,
                break_34_a_recorded_success_grants_the_attempt_that_reports_it,
                p3_a_result_is_returned_byte_for_byte,
                p8_nothing_follows_a_terminal_state,
                a_lost_outcome_becomes_unknown_with_its_since,
                a_late_answer_settles_what_became_unknown,
                a_late_answer_without_a_word_for_it_is_dropped,
                a_late_answer_of_a_send_that_was_repeated_since_is_stale,
                a_late_answer_leaves_the_action_unknown_while_another_effect_is,
                a_refusal_at_the_last_moment_is_recorded_and_final,
                a_provider_reference_is_kept,
                try_later_sets_aside_and_says_when,
                an_attempt_given_back_costs_nothing,
                logs_are_kept_by_attempt,
                a_record_for_an_unknown_action_is_stale_and_an_end_is_not_found,
            },
            settle::{
                break_08_a_word_about_an_earlier_send_is_stale,
                break_09_not_done_is_not_believed_before_settle,
                break_32_settle_runs_from_the_commit_that_made_it_unknown,
                break_16_what_is_found_done_grants_an_attempt,
                what_is_found_not_done_may_be_claimed_again,
                while_another_effect_is_unknown_the_action_stays_so,
                a_word_decided_on_an_older_row_is_refused,
                giving_up_ends_the_action_and_keeps_the_unknown_in_sight,
                break_18_a_cancel_asked_of_nobody_is_due,
                a_lookup_that_found_nothing_out_is_put_off_and_costs_a_repeat,
                of_several_who_would_look_one_puts_it_off_and_looks,
                waiting_for_a_send_to_settle_and_leaving_it_to_a_person_cost_nothing,
                after_one_of_several_is_settled_the_rest_is_looked_at_again,
                a_doubt_that_waits_for_a_person_is_due_until_somebody_was_told,
                a_late_answer_a_person_and_two_lookups_at_once_have_one_winner,
            },
            recovery::{
                a_lease_that_ran_out_is_due_at_that_microsecond,
                after_opening_every_lease_is_over,
                break_18_expired_approvals_are_due,
                break_18_spent_budgets_are_due,
                break_05_an_expired_retry_is_due_only_while_no_write_stands,
                retries_and_repeats_are_due_when_their_time_comes,
                approved_actions_that_run_by_themselves_are_due_unless_paused,
                what_is_due_comes_oldest_first_and_with_its_unknown_effects,
                a_worker_is_lost_only_once_its_lease_ran_out,
                an_approval_expires_only_once_it_ran_out,
                a_transition_decided_on_an_older_row_loses,
                break_05_what_stands_outside_is_not_called_cancelled_or_expired,
                break_17_an_unknown_is_hidden_behind_no_other_state,
                a_lost_worker_is_given_the_attempt_that_is_granted_with_it,
                the_last_look_sees_whether_the_attempt_still_holds_the_row,
            },
            rewound::{
                break_35_a_rewound_ledger_doubts_every_open_action_before_anything_is_claimed,
                several_hosts_doubt_each_action_once_and_a_half_done_doubting_is_gone_on_with,
                what_was_not_sent_when_last_heard_of_is_doubted_too,
                a_write_without_a_row_is_entered_as_unknown_and_was_first_sent_at_the_approval,
                a_rewound_action_ends_neither_cancelled_nor_expired,
                a_rewound_action_with_nothing_in_doubt_is_claimed_to_find_out,
                a_second_rewind_doubts_again,
            },
            events::{
                p8_the_events_of_a_whole_life_verify,
                a_tenants_events_resume_without_loss_or_doubling,
                the_events_of_one_action_resume_after_a_number,
                one_tenant_sees_no_other_tenants_events,
                a_change_is_told_after_its_commit,
                a_step_that_loses_tells_nobody_and_writes_no_event,
            },
            registry::{
                installing_makes_a_version_current_and_installing_it_again_changes_nothing,
                a_version_with_other_bytes_is_a_conflict,
                a_new_version_and_a_new_grant_move_the_policy_epoch,
                a_new_name_moves_no_policy_epoch,
                an_older_version_can_be_put_back_in_force,
                an_old_grant_stays_readable,
                pausing_moves_no_policy_epoch,
                tokens_are_found_by_their_public_part_and_revoked_once,
                a_token_id_is_unique_across_tenants,
                p7_what_awaits_a_decision_is_counted_by_tenant_tool_and_actor,
                what_is_not_there_is_said_to_be_missing,
            },
            races::{
                approve_decline_cancel_and_expire_at_once_have_one_winner,
                two_hundred_claimers_of_a_thousand_actions_have_a_thousand_winners,
                workers_reaper_and_people_at_random_leave_every_chain_whole,
            },
            lives::{
                a_write_whose_answer_was_lost_is_repeated_under_its_key_and_succeeds,
                five_effects_and_a_dead_worker_leave_four_to_replay,
                two_people_approve_one_claims_and_the_result_is_there_for_all,
            },
        }
    };
    (@each $open:expr; $($file:ident :: { $($case:ident),* $(,)? }),* $(,)?) => {
        $(
            mod $file {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let backend = $open.await;
                        $crate::conformance::$file::$case(&backend).await;
                    }
                )*
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    /// A case that nobody declared would be a promise that nobody keeps.
    #[test]
    fn every_case_is_declared_as_a_test() {
        let declared = include_str!("mod.rs");
        let files = [
            include_str!("approve.rs"),
            include_str!("claims.rs"),
            include_str!("events.rs"),
            include_str!("lives.rs"),
            include_str!("propose.rs"),
            include_str!("races.rs"),
            include_str!("records.rs"),
            include_str!("recovery.rs"),
            include_str!("registry.rs"),
            include_str!("rewound.rs"),
            include_str!("settle.rs"),
            include_str!("writes.rs"),
        ];
        let mut cases = 0;
        for line in files.iter().flat_map(|text| text.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split('(').next().unwrap();
            cases += 1;
            assert!(declared.contains(&format!("                {name},\n")), "{name} is no test");
        }
        assert!(cases > 90, "{cases}");
    }
}
