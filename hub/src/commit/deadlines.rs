//! Deadlines: telling that one will be missed, once, whoever leads.
//!
//! Owns the order: it is written down that a miss was told before it is. What is told, and of which
//! jobs, is said in `crate::deadlines`.

use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Operation, StoreError};

use super::Committer;
use crate::deadlines::Turn;
use crate::fence::{Commit, Fence, put};
use crate::model::Model;
use crate::progress::JobProgress;

impl Committer {
    /// Tells of jobs that are newly expected to be late, and notes those that are not any more.
    pub(crate) async fn tell_deadlines(
        &self,
        model: &mut Model,
        fence: Fence,
        turns: Vec<Turn>,
    ) -> Result<(), StoreError> {
        for Turn { job, told } in turns {
            let Some(known) = model.job(job) else {
                continue;
            };
            let key = keys::progress(job);
            let next = JobProgress {
                miss_told: told.is_some(),
                ..known.progress().clone()
            };
            // Both: a job that goes meanwhile leaves no progress behind.
            let compares = vec![
                Compare::ModRevision(key.clone(), known.progress_revision()),
                Compare::ModRevision(known.key(Part::Spec), known.spec_revision),
            ];
            let ops = vec![put(key, next.to_json())];
            let why = Operation::WriteCapacity;
            match fence.write(self.store.as_ref(), why, compares, ops).await? {
                Commit::Done(revision, events) => {
                    model.absorb_committed(&events, revision);
                    if let Some(entry) = told {
                        self.journal.record(entry);
                    }
                }
                // The model has yet to see who wrote it: the next time does.
                Commit::Conflict(_) => {}
                Commit::Deposed => break,
            }
        }
        Ok(())
    }
}
