//! The outbox from the host's side: what no example component does.

use std::sync::Arc;

use countersign_domain::run::Ended;
use wasmtime::Store;
use wasmtime::component::Resource;
use wasmtime_wasi_http::FieldMap;
use wasmtime_wasi_http::p2::bindings::http::types::{Method, Scheme};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};

use super::rig::{Gate, LIMITS, STARTED, answered, at, mode, probe};
use crate::clocks::MONOTONIC_START;
use crate::state::{Setting, State};
use crate::{EffectGate, SandboxConfig, engine, http, run};

fn store(gate: Arc<dyn EffectGate>) -> Store<State> {
    let config = SandboxConfig { max_runs: 1, ..SandboxConfig::default() };
    let call = probe(mode("unused"));
    Setting::of(&call, LIMITS, Some(gate)).store(&engine::engine(&config).unwrap())
}

fn request(authority: Option<&str>) -> HostOutgoingRequest {
    HostOutgoingRequest {
        method: Method::Other("BREW".to_owned()),
        scheme: Some(Scheme::Other("coffee".to_owned())),
        authority: authority.map(str::to_owned),
        path_with_query: None,
        headers: FieldMap::new_mutable(1_000),
        body: None,
    }
}

fn handle(state: &mut State, request: HostOutgoingRequest) -> Resource<HostFutureIncomingResponse> {
    let request = state.table.push(request).unwrap();
    http::handle(state, request, None).unwrap().unwrap()
}

fn is_ready(state: &State, future: &Resource<HostFutureIncomingResponse>) -> bool {
    matches!(state.table.get(future).unwrap(), HostFutureIncomingResponse::Ready(Ok(_)))
}

#[tokio::test]
async fn b04_the_gate_gets_the_parts_as_the_component_gave_them() {
    let gate = Gate::yes();
    let mut store = store(gate.clone());
    handle(store.data_mut(), request(Some("allowed.example:443@evil.example")));
    handle(store.data_mut(), request(None));
    store.data_mut().settle().await.unwrap();
    let first = gate.request(0);
    assert_eq!(first.method, "BREW");
    assert_eq!(first.scheme.as_deref(), Some("coffee"));
    assert_eq!(first.authority.as_deref(), Some("allowed.example:443@evil.example"));
    assert_eq!(first.path_with_query, None);
    assert_eq!(gate.request(1).authority, None);
}

#[tokio::test]
async fn an_answer_moves_the_clock_to_its_record_and_never_back() {
    // Recorded one second after the start, then three, then two.
    let gate = Gate::new(|n, _| answered([0, 2, 1][n], 200, "ok"));
    let mut store = store(gate);
    let state = store.data_mut();
    let since_start = |state: &State| state.clock.read() - MONOTONIC_START;
    assert_eq!(since_start(state), 0);
    let mut seen = Vec::new();
    for _ in 0..3 {
        handle(state, request(None));
        state.settle().await.unwrap();
        seen.push(since_start(state) / 1_000_000_000);
    }
    assert_eq!(seen, [1, 3, 3]);
    assert_eq!(at(0).since(STARTED).as_secs(), 1);
}

#[tokio::test]
async fn nothing_is_asked_before_the_component_waits() {
    let gate = Gate::yes();
    let mut store = store(gate.clone());
    let future = handle(store.data_mut(), request(None));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gate.count(), 0);
    assert!(!is_ready(store.data(), &future));
    store.data_mut().settle().await.unwrap();
    assert_eq!(gate.count(), 1);
    assert!(is_ready(store.data(), &future));
    store.data_mut().settle().await.unwrap();
    assert_eq!(gate.count(), 1, "answered once is answered");
}

#[tokio::test]
async fn the_answer_to_a_dropped_future_does_not_reach_the_next_one() {
    let gate = Gate::new(|n, _| {
        // The first is answered; at the second the test looks, so it stops there.
        if n == 0 { answered(n, 200, "first") } else { countersign_domain::effect::Passage::Stopped }
    });
    let mut store = store(gate);
    let state = store.data_mut();
    let first = handle(state, request(Some("one.example")));
    let place = first.rep();
    state.table.delete(first).unwrap();
    let second = request(Some("two.example"));
    // The table gives free places out again, the newest first: the request takes
    // one and gives it back, and the future gets it.
    let second = handle(state, second);
    assert_eq!(second.rep(), place, "the test needs both in one place");
    assert!(state.settle().await.is_err());
    assert!(!is_ready(state, &second), "it got the answer to the other request");
}

#[tokio::test]
async fn a_store_that_is_gone_submits_nothing() {
    let gate = Gate::yes();
    let mut store = store(gate.clone());
    handle(store.data_mut(), request(None));
    drop(store);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gate.count(), 0);
}

#[tokio::test]
async fn a_panic_in_a_host_call_ends_that_run_and_no_other() {
    let config = SandboxConfig { max_runs: 1, ..SandboxConfig::default() };
    let engine = engine::engine(&config).unwrap();
    for _ in 0..3 {
        let setting = Setting::bare(LIMITS);
        let ended =
            run::run(&engine, &setting, async |_| -> wasmtime::Result<()> { panic!("on purpose") }).await;
        match ended {
            Err(Ended::Trapped { why, limit: None }) => assert!(why.contains("fault of the host"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
