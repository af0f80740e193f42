//! A host that is told to stop: in good order the first time, at once the second.

use crate::on_both_stores;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Rule, Stage};

on_both_stores! {
    told_to_stop_it_finishes_and_records_the_send_in_flight_answers_its_caller_and_exits_0,
    told_twice_it_ends_at_once_and_the_next_start_settles_what_was_in_flight,
    an_idle_host_stops_at_once_although_somebody_listens_to_its_events,
}

fn told_to_stop_it_finishes_and_records_the_send_in_flight_answers_its_caller_and_exits_0(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "stop", &stage.refund("stop", 100));
    let waits = stage.approved("refund", "waits", &stage.refund("waits", 100));
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| stage.execute(&id));
        stage.provider.wait_held(1);
        let address = stage.host.address();
        stage.host.signal("TERM");
        stage.host.wait_said("stopping");
        // Who comes now is turned away, one way or another, and nothing is begun for them.
        if let Ok(told) = crate::support::http::Request::new("GET", "/readyz").send(&address) {
            assert_eq!(told.status, 503, "{}", told.text());
        }
        stage.provider.release();
        let told = caller.join().expect("a caller");
        assert_eq!(told.outcome(), "succeeded", "{}", told.json);
        let status = stage.host.wait_ended();
        assert_eq!(status.code(), Some(0), "it said:\n{}", stage.host.said());
    });
    assert!(!stage.host.file("host.json").exists(), "its address is gone with it");
    stage.host.wake();
    assert_eq!(stage.action(&id).outcome(), "succeeded");
    assert_eq!(stage.action(&waits).outcome(), "approved");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved", "claimed", "succeeded"]);
}

fn told_twice_it_ends_at_once_and_the_next_start_settles_what_was_in_flight(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "twice", &stage.refund("twice", 100));
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    stage.host.signal("TERM");
    stage.host.wait_said("stopping");
    stage.host.signal("INT");
    assert_eq!(stage.host.wait_ended().code(), Some(130));
    stage.provider.release();
    stage.host.wake();
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.counts(REFUNDS, &id), (2, 1));
}

fn an_idle_host_stops_at_once_although_somebody_listens_to_its_events(on: Backend) {
    let stage = Stage::on(on);
    let agent = stage.host.agent();
    let mut stream = crate::support::sse::Stream::open(&agent, &stage.host.address(), "/v1/events", None)
        .unwrap_or_else(|told| panic!("no stream: {}", told.status()));
    let reader = std::thread::spawn(move || while stream.next().is_some() {});
    let begun = std::time::Instant::now();
    assert_eq!(stage.host.stop().code(), Some(0));
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "it took {:?}", begun.elapsed());
    reader.join().expect("the stream ended");
}
