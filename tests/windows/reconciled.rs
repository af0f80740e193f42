//! Outcomes that nobody knows, at a bank that honours no keys and can say what it has done: looked
//! up when no send can still arrive, never before, and sent again only where it said no.

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{self, sending_for};
use crate::support::stage::install;
use crate::support::{Backend, Fault, Mode, Rule, Stage, at_once, guests};

on_both_stores! {
    a_lost_reply_of_any_of_four_writes_is_looked_up_and_ends_succeeded_with_each_made_once,
    what_the_bank_says_was_not_made_is_sent_once_more_and_not_before_no_send_can_still_arrive,
    a_lookup_that_is_answered_by_nobody_or_by_a_proxy_settles_nothing_and_sends_nothing,
}

const WRITES: [&str; 4] = ["/reserve", "/transfers", "/ledger", "/notify"];

/// Its sends are short, and so is the time until no one can still arrive: twice as long.
const SEND: &str = "500ms";

/// A bank without keys, and the transfer tool that looks up.
fn bank(on: Backend) -> Stage {
    let stage = Stage::on(on);
    stage.provider.set_bank_mode(Mode::Ignores);
    let grant = sending_for(&grants::bank(stage.provider.port()), SEND);
    install(&stage.host, "?name=bank", &guests::TRANSFER, &grant).expect(201);
    stage
}

fn a_lost_reply_of_any_of_four_writes_is_looked_up_and_ends_succeeded_with_each_made_once(on: Backend) {
    let stage = bank(on);
    // The amount is in every body but the last, so that four can be told apart by the ledger.
    at_once(4, |i| {
        let lost = WRITES[i];
        let id = stage.approved("bank", lost, &stage.transfer(1_000 + i as u64));
        stage.provider.fault(Rule::once(lost, Fault::LoseReply));
        stage.execute(&id);
        let ended = stage.wait_for(&id, &["succeeded", "failed_terminal", "cancelled"]);
        assert_eq!(ended.outcome(), "succeeded", "{lost}: {}", ended.json);
        for path in WRITES {
            assert_eq!(stage.counts(path, &id), (1, 1), "{lost}: {path}");
        }
        stage.facts(&id);
    });
    // Each rule met one of them, whose ever it was.
    let ids = crate::support::stage::all_actions(&stage.host);
    let facts: Vec<String> = ids.iter().flat_map(|id| stage.facts(id)).collect();
    for fact in ["outcome_lost", "found_done"] {
        assert_eq!(facts.iter().filter(|known| *known == fact).count(), 4, "{fact}: {facts:?}");
    }
}

fn what_the_bank_says_was_not_made_is_sent_once_more_and_not_before_no_send_can_still_arrive(on: Backend) {
    let stage = bank(on);
    let id = stage.approved("bank", "not-made", &stage.transfer(2_000));
    stage.provider.fault(Rule::once("/transfers", Fault::ResetAtByte { n: 0 }).acting(false));
    stage.execute(&id);
    let ended = stage.wait_for(&id, &["succeeded", "failed_terminal", "cancelled"]);
    assert_eq!(ended.outcome(), "succeeded", "{}", ended.json);
    assert_eq!(stage.counts("/transfers", &id), (2, 1));
    for path in ["/reserve", "/ledger", "/notify"] {
        assert_eq!(stage.counts(path, &id), (1, 1), "{path}");
    }
    let sent = stage.requests("/transfers", &id);
    assert_eq!((&sent[0].key, &sent[0].body_sha256), (&sent[1].key, &sent[1].body_sha256));
    let asked = stage.provider.requests("/lookup");
    assert_eq!(asked.len(), 1);
    assert!(asked[0].at - sent[0].at >= 1_000, "asked while it could still arrive");
    assert!(sent[1].at >= asked[0].at);
    // What the bank said is kept.
    let facts = stage.facts(&id);
    assert!(facts.contains(&"found_not_done".to_owned()), "{facts:?}");
}

fn a_lookup_that_is_answered_by_nobody_or_by_a_proxy_settles_nothing_and_sends_nothing(on: Backend) {
    let stage = bank(on);
    let id = stage.approved("bank", "no-word", &stage.transfer(3_000));
    stage.provider.fault(Rule::once("/reserve", Fault::LoseReply));
    stage.provider.fault(Rule::once("/lookup", Fault::status(503)));
    // A 404, but not in the bank's own words.
    let proxy = Fault::Status { code: 404, headers: Default::default(), body: Some(json!("no such page")) };
    stage.provider.fault(Rule::once("/lookup", proxy));
    stage.provider.fault(Rule::once("/lookup", Fault::LoseReply));
    stage.execute(&id);
    stage.provider.wait_requests("/lookup", 3);
    assert_eq!(stage.counts("/reserve", &id), (1, 1), "sent again on no word at all");
    let ended = stage.wait_for(&id, &["succeeded", "failed_terminal", "cancelled"]);
    assert_eq!(ended.outcome(), "succeeded", "{}", ended.json);
    for path in WRITES {
        assert_eq!(stage.counts(path, &id), (1, 1), "{path}");
    }
    stage.facts(&id);
}
