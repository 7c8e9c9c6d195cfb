//! Two-stage shutdown: the first signal asks, the second aborts.
//!
//! Owns SIGTERM and SIGINT of a process. Never decides what stopping means: the tasks do.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Tasks;

/// Exit code of a process that was told twice: 128 + SIGINT, as shells have it.
const ABORTED: i32 = 130;

/// Returns when the process was asked to stop, or when a task of the group died; the group is
/// cancelled then. A second signal ends the process at once, whatever is not done yet.
///
/// Signals are heard from the call on, not from the first poll. Call within a runtime.
pub fn until_asked(tasks: &Tasks) -> impl Future<Output = ()> + use<> {
    let tasks = tasks.clone();
    let heard = signal(SignalKind::terminate())
        .and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)));
    async move {
        match heard {
            Ok((terminate, interrupt)) => asked(&tasks, terminate, interrupt).await,
            Err(error) => {
                tracing::error!(%error, "signals cannot be heard; stopping");
                tasks.cancel();
            }
        }
    }
}

async fn asked(tasks: &Tasks, mut terminate: Signal, mut interrupt: Signal) {
    let cancelled = tasks.cancelled();
    tokio::select! {
        _ = terminate.recv() => tracing::info!("asked to stop"),
        _ = interrupt.recv() => tracing::info!("interrupted; once more aborts"),
        () = cancelled.cancelled() => {}
    }
    tasks.cancel();
    // Outlives the group on purpose: it is what ends a group that does not end.
    #[expect(
        clippy::disallowed_methods,
        reason = "must not be supervised by what it aborts"
    )]
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::warn!("asked twice, aborting");
        std::process::exit(ABORTED);
    });
}
