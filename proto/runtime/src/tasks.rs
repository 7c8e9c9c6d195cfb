//! Supervised tasks: named, cancellable, and never dead unseen.
//!
//! Owns the only `tokio::spawn`. A task that panics, or returns while nobody asked it to stop,
//! brings the whole group down, and the group says which task it was.

use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Why a group of tasks ended before it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task} {cause}")]
pub struct TaskDied {
    /// Name of the task.
    pub task: String,
    /// What happened to it.
    pub cause: String,
}

/// A group of tasks that live and die together.
#[derive(Clone, Debug)]
pub struct Tasks {
    cancel: CancellationToken,
    tracker: TaskTracker,
    died: Arc<Mutex<Option<TaskDied>>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// An empty group.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cancel: CancellationToken::new(),
            tracker: TaskTracker::new(),
            died: Arc::new(Mutex::new(None)),
        }
    }

    /// A group that stops when this one does and brings this one down when it dies.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            cancel: self.cancel.child_token(),
            tracker: self.tracker.clone(),
            died: Arc::clone(&self.died),
        }
    }

    /// Told when the group is to stop. Each task selects on it.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Runs `work` for the life of the group: to return before the group is cancelled is to die.
    pub fn spawn<E: Display>(
        &self,
        name: impl Into<String>,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.start(name.into(), work, Ending::IsDeath);
    }

    /// Runs `work`, which may end when it has done what it is for (one connection, one request).
    /// A panic still brings the group down; an error is its own to report.
    pub fn spawn_finite(
        &self,
        name: impl Into<String>,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let work = work.map(Ok::<(), std::convert::Infallible>);
        self.start(name.into(), work, Ending::IsExpected);
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    fn start<E: Display>(
        &self,
        name: String,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
        ending: Ending,
    ) {
        let group = self.clone();
        let span = tracing::info_span!(parent: None, "task", name = %name);
        let supervised = async move {
            let cause = match std::panic::AssertUnwindSafe(work).catch_unwind().await {
                Err(panic) => format!("panicked: {}", panic_text(&*panic)),
                Ok(Err(error)) => format!("failed: {error}"),
                Ok(Ok(())) if ending == Ending::IsExpected || group.cancel.is_cancelled() => return,
                Ok(Ok(())) => "ended before it was asked to".to_owned(),
            };
            group.die(TaskDied { task: name, cause });
        };
        tokio::spawn(
            self.tracker
                .track_future(tracing::Instrument::instrument(supervised, span)),
        );
    }

    fn die(&self, death: TaskDied) {
        tracing::error!(task = %death.task, cause = %death.cause, "task died, stopping");
        self.died
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(death);
        self.cancel.cancel();
    }

    /// Asks every task to stop.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until every task of the group has ended; [`TaskDied`] when one had died.
    pub async fn finished(&self) -> Result<(), TaskDied> {
        self.tracker.close();
        self.tracker.wait().await;
        match self
            .died
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(death) => Err(death),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    IsDeath,
    IsExpected,
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with something that is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_brings_the_group_down_and_is_named() {
        let tasks = Tasks::new();
        let cancel = tasks.cancelled();
        tasks.spawn("waits", async move {
            cancel.cancelled().await;
            Ok::<(), String>(())
        });
        tasks.spawn_finite("breaks", async { panic!("on purpose") });
        let died = tasks.finished().await.expect_err("one died");
        assert_eq!(died.to_string(), "task breaks panicked: on purpose");
    }

    #[tokio::test]
    async fn an_early_end_is_a_death() {
        let tasks = Tasks::new();
        tasks.spawn("short", async { Ok::<(), String>(()) });
        assert!(tasks.finished().await.is_err());
    }

    #[tokio::test]
    async fn a_cancelled_group_ends_well() {
        let tasks = Tasks::new();
        let cancel = tasks.cancelled();
        tasks.spawn("waits", async move {
            cancel.cancelled().await;
            Ok::<(), String>(())
        });
        tasks.cancel();
        assert_eq!(tasks.finished().await, Ok(()));
    }
}
