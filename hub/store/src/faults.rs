//! Faults of a memory store's handle: what a network or a sick server does to one hub.
//!
//! Owns the switches that a simulation turns. They take effect in the order in which they are
//! turned, so one seed gives one run. Never decides when a fault comes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meridian_api::units::Millis;
use meridian_runtime::Clock;
use tokio::sync::Notify;

use crate::StoreError;

/// How long a stalled call waits, as the etcd client's calls do.
const CALL_LIMIT: Millis = Millis::seconds(5);

/// The faults of one handle; clones turn the same switches.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    switches: Mutex<Switches>,
    turned: Notify,
}

#[derive(Debug, Default)]
struct Switches {
    stalled: bool,
    refusing: bool,
    full: bool,
    answers_to_lose: u32,
}

impl Faults {
    /// Calls and streams wait until [`heal`](Self::heal). A call that waits for 5 s answers
    /// `Unavailable`, and its write is not done — unless its answer is to be lost too: then it
    /// is done at the end of the wait.
    pub fn stall(&self) {
        self.switches().stalled = true;
    }

    /// Calls answer `Unavailable` and do nothing; open streams end so.
    pub fn refuse(&self) {
        self.switches().refusing = true;
        self.0.turned.notify_waiters();
    }

    /// The next `count` writes are done and answer `Unavailable`.
    pub fn lose_answers(&self, count: u32) {
        self.switches().answers_to_lose = count;
    }

    /// Writes answer `Full` and do nothing; reads go on.
    pub fn fill(&self) {
        self.switches().full = true;
    }

    /// All is well again.
    pub fn heal(&self) {
        *self.switches() = Switches::default();
        self.0.turned.notify_waiters();
    }

    fn switches(&self) -> MutexGuard<'_, Switches> {
        self.0
            .switches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as the handle is stalled; an error when it refuses.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        loop {
            let turned = self.0.turned.notified();
            {
                let switches = self.switches();
                if switches.refusing {
                    return Err(StoreError::Unavailable("connection refused".to_owned()));
                }
                if !switches.stalled {
                    return Ok(());
                }
            }
            turned.await;
        }
    }

    /// Done at the next turn of a switch that concerns those who wait.
    pub(crate) async fn turned(&self) {
        self.0.turned.notified().await;
    }

    /// Lets a read through, within its time.
    pub(crate) async fn pass_read(&self, clock: &Clock) -> Result<(), StoreError> {
        match clock.timeout(CALL_LIMIT, self.pass()).await {
            Ok(passed) => passed,
            Err(late) => Err(StoreError::Unavailable(late.to_string())),
        }
    }

    /// Lets a write through, within its time. What is answered in the end goes through
    /// [`Passed::answer`].
    pub(crate) async fn pass_write(&self, clock: &Clock) -> Result<Passed, StoreError> {
        let passed = clock.timeout(CALL_LIMIT, self.pass()).await;
        let mut switches = self.switches();
        let loses = switches.answers_to_lose > 0;
        switches.answers_to_lose = switches.answers_to_lose.saturating_sub(1);
        match passed {
            Ok(Err(refused)) => return Err(refused),
            Err(late) if !loses => return Err(StoreError::Unavailable(late.to_string())),
            Ok(Ok(())) | Err(_) => {}
        }
        if switches.full {
            return Err(StoreError::Full("filled by a fault".to_owned()));
        }
        Ok(if loses {
            Passed::Unheard
        } else {
            Passed::Heard
        })
    }
}

/// A write that got through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Its answer gets through too.
    Heard,
    /// Its answer is lost.
    Unheard,
}

impl Passed {
    /// What the caller hears of `answer`.
    pub(crate) fn answer<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match self {
            Self::Heard => answer,
            Self::Unheard => Err(StoreError::Unavailable("the answer was lost".to_owned())),
        }
    }
}
