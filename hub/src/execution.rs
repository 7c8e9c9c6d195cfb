//! Where work that takes its time runs: on a thread of its own, or, in simulation, in line.
//!
//! Owns that choice and nothing of the work.

use tokio::task::{JoinError, spawn_blocking};

/// Where the decision itself runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// On a thread for blocking work, so that a long decision delays no session.
    Thread,
    /// On the loop's own task: in simulation, where nothing may race.
    Inline,
}

impl Execution {
    /// What `work` comes to; an error when it panicked on its thread, or the runtime is ending.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        match self {
            Self::Inline => Ok(work()),
            Self::Thread => spawn_blocking(work).await,
        }
    }
}
