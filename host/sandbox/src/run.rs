//! One call of a component from its store to its end: the driver, and the words
//! for how it ended.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use countersign_domain::canonical::{CanonicalJson, JsonError, Limits, Refusal};
use countersign_domain::run::{Ended, RunLimits, ToolFailure};
use wasmtime::component::ResourceTableError;
use wasmtime::{Engine, PoolConcurrencyLimitError, Store, Trap};
use wasmtime_wasi_http::FieldMapError;

use crate::bindings::tool::exports::countersign::tool::tool as wit;
use crate::error::Halt;
use crate::state::{Setting, State};

/// The longest text of a tool's failure that is kept, bytes.
const FAILURE_BYTES: usize = 4 << 10;
/// The longest text about a trap, bytes.
const WHY_BYTES: usize = 300;

/// Runs `work` in a store of its own and submits what it leaves finished behind.
/// Returns when it has ended and the gate has nothing of it in hand any more.
pub(crate) async fn run<T>(
    engine: &Engine,
    setting: &Setting,
    work: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
) -> Result<T, Ended> {
    let ended = drive(engine, setting, work).await;
    if !countersign_domain::planted::on("end-while-sending") {
        setting.in_flight.finish().await;
    }
    ended
}

async fn drive<T>(
    engine: &Engine,
    setting: &Setting,
    work: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
) -> Result<T, Ended> {
    let mut store = setting.store(engine);
    let outcome = {
        let call = async {
            let value = work(&mut store).await?;
            // It returned: a request that it finished is meant, answered or not.
            store.data_mut().settle().await?;
            Ok(value)
        };
        let mut call = pin!(call);
        let driven = poll_fn(|cx| {
            setting.cpu.enter();
            // A host call that panics is a fault of ours that a component found. It
            // ends that run; the store is not used again.
            let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)));
            let polled = polled.unwrap_or_else(|_| Poll::Ready(Err(Halt::HostPanic.into())));
            setting.cpu.leave();
            if polled.is_pending() {
                setting.outbox.gather(cx);
            }
            polled
        });
        // Neither epochs nor an account of running time end a wait for the gate.
        // Unconstrained: the runtime's budget makes things look not ready that
        // are, and in here that would change what the component sees. The epoch
        // yields instead.
        let driven = tokio::task::unconstrained(driven);
        match setting.limited() {
            true => tokio::time::timeout(setting.limits.wall, driven).await,
            false => Ok(driven.await),
        }
    };
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(&error, store.data().limiter.refused())),
        Err(_) => Err(Ended::Trapped {
            why: format!("the call took longer than {:?}", setting.limits.wall),
            limit: Some("wall"),
        }),
    }
}

/// The host's words for how a store ended.
fn explain(error: &wasmtime::Error, refused: Option<&'static str>) -> Ended {
    let trapped = |why: String, limit| Ended::Trapped { why, limit };
    if let Some(halt) = error.downcast_ref::<Halt>() {
        return match halt {
            Halt::Stopped => Ended::Stopped,
            Halt::GateFailed => Ended::Unavailable(halt.to_string()),
            Halt::Limit { limit, why } => trapped(why.clone(), Some(limit)),
            Halt::NotGranted(_) => trapped(halt.to_string(), Some("capability")),
            Halt::Deadlock | Halt::Exited(_) | Halt::NoAction | Halt::HostPanic => {
                trapped(halt.to_string(), None)
            }
        };
    }
    if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        return Ended::Unavailable(format!("as many runs as the host takes are going on ({full})"));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        let limit = if *trap == Trap::StackOverflow { Some("stack") } else { refused };
        return trapped(trap.to_string(), limit);
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
        return trapped("it holds too many of the host's resources at once".to_owned(), Some("resources"));
    }
    if let Some(FieldMapError::TotalSizeTooBig | FieldMapError::TooManyFields) = error.downcast_ref() {
        return trapped("one of its header lists is too large".to_owned(), Some("fields"));
    }
    // The engine has no types for these; a test holds each of the two texts.
    let mut why = error.root_cause().to_string();
    let limit = match () {
        () if why.contains("allocated for hostcalls") => Some("host_call_bytes"),
        () if why.contains("store handle limit") => Some("handles"),
        () => refused,
    };
    why.truncate(why.floor_char_boundary(WHY_BYTES));
    trapped(why.replace(char::is_control, " "), limit)
}

/// A tool's result as the rest of the host knows results.
pub(crate) fn result(said: Result<String, wit::Failure>, limits: &RunLimits) -> Ended {
    let text = match said {
        Ok(text) => text,
        Err(failure) => return Ended::Failed(self::failure(failure)),
    };
    let most = usize::try_from(limits.result).unwrap_or(usize::MAX);
    match CanonicalJson::parse(&text, Limits::bytes(most)) {
        Ok(json) => Ended::Returned(json),
        Err(JsonError { reason: Refusal::TooLarge { bytes, limit }, .. }) => Ended::Trapped {
            why: format!("its result has {bytes} bytes; {limit} is the most"),
            limit: Some("result"),
        },
        Err(error) => {
            Ended::Failed(ToolFailure::Broken(format!("its result is not JSON as it must be: {error}")))
        }
    }
}

/// A tool's failure, its text bounded.
pub(crate) fn failure(said: wit::Failure) -> ToolFailure {
    bounded(match said {
        wit::Failure::InvalidArguments(text) => ToolFailure::InvalidArguments(text),
        wit::Failure::Refused(text) => ToolFailure::Refused(text),
        wit::Failure::TryLater(after) => {
            ToolFailure::TryLater { reason: "the tool asks to be called again later".to_owned(), after }
        }
        wit::Failure::Broken(text) => ToolFailure::Broken(text),
    })
}

/// A failure, its text bounded.
pub(crate) fn bounded(mut failure: ToolFailure) -> ToolFailure {
    let (ToolFailure::InvalidArguments(text)
    | ToolFailure::Refused(text)
    | ToolFailure::Broken(text)
    | ToolFailure::TryLater { reason: text, .. }) = &mut failure;
    text.truncate(text.floor_char_boundary(FAILURE_BYTES));
    failure
}
