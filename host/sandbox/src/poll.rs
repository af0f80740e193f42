//! `wasi:io/poll`, ours: the one place where a component waits, and so the one
//! place where anything happens to it. First every finished request is answered;
//! then what is ready is ready; if nothing is, time moves on to the earliest
//! timer; if there is none, it waits for itself and is ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use wasmtime::component::Resource;
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::io::poll;

use crate::error::Halt;
use crate::state::State;

impl State {
    /// Runs one of the crate's own waits, which end when something in the table
    /// is ready. Everything in there is ready or not by now: nothing that could
    /// wake us goes on outside.
    async fn wait<T>(
        &mut self,
        wait: impl AsyncFnOnce(&mut State) -> wasmtime::Result<T>,
    ) -> wasmtime::Result<T> {
        self.settle().await?;
        let clock = self.clock.clone();
        let mut wait = pin!(wait(self));
        poll_fn(|cx| {
            clock.ask();
            if let Poll::Ready(done) = wait.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if !clock.jump() {
                return Poll::Ready(Err(Halt::Deadlock.into()));
            }
            match wait.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(done),
                Poll::Pending => Poll::Ready(Err(Halt::Deadlock.into())),
            }
        })
        .await
    }
}

impl poll::Host for State {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        self.wait(async |state| poll::Host::poll(&mut state.table, pollables).await).await
    }
}

impl poll::HostPollable for State {
    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.wait(async |state| poll::HostPollable::block(&mut state.table, pollable).await).await
    }

    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        self.settle().await?;
        // Asking takes time, as reading a clock does, so that a component that
        // asks until a timer rings gets there.
        self.clock.read();
        poll::HostPollable::ready(&mut self.table, pollable).await
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::drop(&mut self.table, pollable)
    }
}
