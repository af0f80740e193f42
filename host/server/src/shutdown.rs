//! When to stop: at the first SIGINT or SIGTERM in good order, at the second at
//! once. What was in flight then is what a crash would have left, and the next
//! start treats it so.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit code of a host that was told twice.
const TOLD_TWICE: i32 = 130;

/// Turns true at the first signal.
///
/// # Errors
/// If the system takes no handlers.
pub fn watch() -> std::io::Result<watch::Receiver<bool>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        for told in 1.. {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if told > 1 {
                std::process::exit(TOLD_TWICE);
            }
            tracing::info!("stopping: no new work; what is being sent is finished and recorded first");
            sender.send_replace(true);
        }
    });
    Ok(receiver)
}
