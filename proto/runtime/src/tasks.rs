//! Supervised tasks: named, cancellable, and never dead unseen.
//!
//! Owns the only `tokio::spawn`. A task that panics, or returns while nobody asked it to stop,
//! brings the whole group down, and the group says which task it was.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
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
pub struct Tasks(Arc<Group>);

type Supervised = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug)]
struct Group {
    /// Asks the tasks to stop.
    cancel: CancellationToken,
    /// Drops the tasks where they stand.
    kill: CancellationToken,
    tracker: TaskTracker,
    died: Mutex<Option<TaskDied>>,
    parent: Option<Tasks>,
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
        Self::group(CancellationToken::new(), CancellationToken::new(), None)
    }

    /// A group that stops when this one does, brings this one down when it dies, and can be
    /// stopped and waited for by itself: what is stopped first goes into the child.
    #[must_use]
    pub fn child(&self) -> Self {
        Self::group(
            self.0.cancel.child_token(),
            self.0.kill.child_token(),
            Some(self.clone()),
        )
    }

    fn group(cancel: CancellationToken, kill: CancellationToken, parent: Option<Self>) -> Self {
        let (tracker, died) = (TaskTracker::new(), Mutex::new(None));
        Self(Arc::new(Group {
            cancel,
            kill,
            tracker,
            died,
            parent,
        }))
    }

    /// Told when the group is to stop. Each task selects on it.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.0.cancel.clone()
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
        let kill = group.0.kill.clone();
        let supervised = async move {
            let work = std::panic::AssertUnwindSafe(work).catch_unwind();
            let ended = tokio::select! {
                biased;
                () = kill.cancelled() => return,
                ended = work => ended,
            };
            let cause = match ended {
                Err(panic) => format!("panicked: {}", panic_text(&*panic)),
                Ok(Err(error)) => format!("failed: {error}"),
                Ok(Ok(())) if ending == Ending::IsExpected || group.0.cancel.is_cancelled() => {
                    return;
                }
                Ok(Ok(())) => "ended before it was asked to".to_owned(),
            };
            group.die(&TaskDied { task: name, cause });
        };
        let supervised = tracing::Instrument::instrument(supervised, span);
        tokio::spawn(self.tracked(Box::pin(supervised)));
    }

    /// `work`, counted by this group and by all above it.
    fn tracked(&self, work: Supervised) -> Supervised {
        let own = Box::pin(self.0.tracker.track_future(work));
        match &self.0.parent {
            Some(parent) => parent.tracked(own),
            None => own,
        }
    }

    fn die(&self, death: &TaskDied) {
        if let Some(parent) = &self.0.parent {
            parent.die(death);
        } else {
            tracing::error!(task = %death.task, cause = %death.cause, "task died, stopping");
        }
        let mut died = self.0.died.lock().unwrap_or_else(PoisonError::into_inner);
        died.get_or_insert_with(|| death.clone());
        self.0.cancel.cancel();
    }

    /// Asks every task to stop.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// Drops every task where it stands, as a crash of the process would.
    pub fn kill(&self) {
        // Cancelled first: a task of a group that is cancelled may end.
        self.0.cancel.cancel();
        self.0.kill.cancel();
    }

    /// Waits until every task of the group and of its children has ended; [`TaskDied`] when one
    /// had died.
    pub async fn finished(&self) -> Result<(), TaskDied> {
        self.0.tracker.close();
        self.0.tracker.wait().await;
        match self
            .0
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

    #[tokio::test]
    async fn a_child_ends_before_its_parent_and_dies_with_it() {
        let parent = Tasks::new();
        let waits = |tasks: &Tasks| {
            let cancel = tasks.cancelled();
            async move {
                cancel.cancelled().await;
                Ok::<(), String>(())
            }
        };
        parent.spawn("store", waits(&parent));
        let child = parent.child();
        child.spawn("hub", waits(&child));
        child.cancel();
        assert_eq!(child.finished().await, Ok(()));
        assert!(!parent.cancelled().is_cancelled());
        parent
            .child()
            .spawn_finite("breaks", async { panic!("on purpose") });
        assert!(parent.finished().await.is_err());
    }

    #[tokio::test]
    async fn a_killed_group_drops_its_tasks() {
        let tasks = Tasks::new();
        tasks.spawn("stuck", std::future::pending::<Result<(), String>>());
        tasks.kill();
        assert_eq!(tasks.finished().await, Ok(()));
    }
}
