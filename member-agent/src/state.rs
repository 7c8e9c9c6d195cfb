//! What the agent must not forget: one record on disk, written before acting on it.
//!
//! Owns the credential, the highest fence, incarnation and generation, and per gang the highest
//! epoch with what was accepted. Changes are gathered and written once. Never holds what the
//! cluster or the hub can tell again: pods, templates, nodes.
//!
//! **Why forgetting a gang is safe.** An order to run epoch `e` of a forgotten gang could only
//! harm if it came after the hub was shown that `e` has ended. Orders of one session arrive in
//! order, so it would come with another session, and an intent of another session is refused
//! unless its fence is at least the highest seen, its incarnation is the one just issued, and its
//! generation is at least the highest processed. The intent that let the gang go had the generation
//! of the commit that ended `e`, and epochs only grow, so no intent of that generation or a later
//! one runs `e`. The record of that generation is in the same write as the forgetting. As a second
//! line, and for orders that were refused and so never had a record, the newest
//! [`MAX_OVER`] ended epochs are remembered.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId, Generation, Incarnation, StoreGeneration, Term};
use meridian_proto::convert::Fence;
use meridian_runtime::{Disk, Random};
use serde::{Deserialize, Serialize};

use crate::backend::GangKey;
use crate::gangs::Record;

/// Name of the record on disk.
const RECORD: &str = "agent.json";
/// Version of its form.
const FORM: u32 = 1;
/// Ended epochs remembered after they were forgotten: more than a hub has in flight to one
/// cluster, and some 20 KiB on disk.
const MAX_OVER: usize = 256;

/// The state on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The disk said no. Nothing was acted on.
    #[error("the agent's state cannot be kept: {0}")]
    Io(#[from] io::Error),
    /// The record is damaged. A new state folder makes another agent of this one, which the hub
    /// refuses under the old name until the old binding is removed.
    #[error("record {record} of the state folder is damaged: {why}; restore it, or join again")]
    Damaged {
        /// Its name.
        record: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    form: u32,
    credential: [u8; 32],
    store_generation: StoreGeneration,
    term: Term,
    incarnation: Incarnation,
    generation: Generation,
    gangs: Vec<Record>,
    over: VecDeque<GangKey>,
}

/// The durable state, in memory and on disk.
pub(crate) struct AgentState {
    disk: Arc<dyn Disk>,
    saved: Saved,
    gangs: BTreeMap<GangId, Record>,
    changed: bool,
}

impl AgentState {
    /// Reads the state, or begins one: its credential is drawn once, here.
    pub(crate) async fn load(disk: Arc<dyn Disk>, random: &Random) -> Result<Self, StateError> {
        let mut state = match disk.read(RECORD).await? {
            Some(bytes) => Self::restored(disk, &bytes)?,
            None => Self::begun(disk, random),
        };
        state.commit().await?;
        Ok(state)
    }

    fn restored(disk: Arc<dyn Disk>, bytes: &[u8]) -> Result<Self, StateError> {
        let damaged = |why| StateError::Damaged {
            record: RECORD,
            why,
        };
        let mut saved: Saved =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if saved.form != FORM {
            return Err(damaged(format!("form {} is not {FORM}", saved.form)));
        }
        let gangs = std::mem::take(&mut saved.gangs);
        let gangs = gangs
            .into_iter()
            .map(|record| (record.gang, record))
            .collect();
        Ok(Self {
            disk,
            saved,
            gangs,
            changed: false,
        })
    }

    fn begun(disk: Arc<dyn Disk>, random: &Random) -> Self {
        let mut credential = [0; 32];
        random.fill(&mut credential);
        let saved = Saved {
            form: FORM,
            credential,
            store_generation: StoreGeneration(0),
            term: Term(0),
            incarnation: Incarnation(0),
            generation: Generation(0),
            gangs: Vec::new(),
            over: VecDeque::new(),
        };
        Self {
            disk,
            saved,
            gangs: BTreeMap::new(),
            changed: true,
        }
    }

    /// Makes every change since the last commit durable, in one write. Call before acting.
    pub(crate) async fn commit(&mut self) -> Result<(), StateError> {
        if !self.changed {
            return Ok(());
        }
        let saved = Saved {
            gangs: self.gangs.values().cloned().collect(),
            ..self.saved.clone()
        };
        let bytes = serde_json::to_vec(&saved).map_err(io::Error::other)?;
        self.disk.write(RECORD, bytes).await?;
        self.changed = false;
        Ok(())
    }

    /// True when something waits for a commit.
    #[must_use]
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The secret that binds this agent to its cluster's name.
    #[must_use]
    pub(crate) fn credential(&self) -> [u8; 32] {
        self.saved.credential
    }

    /// The highest fence ever seen.
    #[must_use]
    pub(crate) fn fence(&self) -> Fence {
        Fence {
            store_generation: self.saved.store_generation,
            term: self.saved.term,
        }
    }

    /// The highest incarnation ever issued to this agent.
    #[must_use]
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.saved.incarnation
    }

    /// The highest generation ever processed, within the store generation of the fence.
    #[must_use]
    pub(crate) fn generation(&self) -> Generation {
        self.saved.generation
    }

    /// Remembers a session's fence and incarnation. Another history of the store counts its
    /// generations anew.
    pub(crate) fn raise_session(&mut self, fence: Fence, incarnation: Incarnation) {
        if fence.store_generation > self.saved.store_generation {
            self.saved.generation = Generation(0);
        }
        if fence > self.fence() {
            self.saved.store_generation = fence.store_generation;
            self.saved.term = fence.term;
        }
        self.saved.incarnation = self.saved.incarnation.max(incarnation);
        self.changed = true;
    }

    /// Remembers a generation. It goes to disk with the next change of a gang: alone it protects
    /// nothing, since a gang is only forgotten in a write.
    pub(crate) fn raise_generation(&mut self, generation: Generation) {
        self.saved.generation = self.saved.generation.max(generation);
    }

    /// What is kept of a gang.
    #[must_use]
    pub(crate) fn record(&self, gang: GangId) -> Option<&Record> {
        self.gangs.get(&gang)
    }

    /// Everything that is kept, by gang.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.gangs.values()
    }

    /// Keeps `record` in place of what was kept of its gang. The same again is no change.
    pub(crate) fn put(&mut self, record: &Record) {
        if self.gangs.get(&record.gang) != Some(record) {
            self.gangs.insert(record.gang, record.clone());
            self.changed = true;
        }
    }

    /// Lets a gang go; its epoch will not run again.
    pub(crate) fn forget(&mut self, gang: GangId) {
        if let Some(record) = self.gangs.remove(&gang) {
            self.is_over(record.key());
        }
    }

    /// This epoch will not run, now or later.
    pub(crate) fn is_over(&mut self, key: GangKey) {
        self.saved
            .over
            .retain(|over| over.gang != key.gang || over.epoch > key.epoch);
        self.saved.over.push_back(key);
        if self.saved.over.len() > MAX_OVER {
            self.saved.over.pop_front();
        }
        self.changed = true;
    }

    /// The highest ended epoch that is remembered of a gang without a record.
    #[must_use]
    pub(crate) fn over(&self, gang: GangId) -> Option<Epoch> {
        let over = self.saved.over.iter().filter(|over| over.gang == gang);
        over.map(|over| over.epoch).max()
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::ids::Uid;
    use meridian_api::units::{Millis, UnixMillis};
    use meridian_runtime::disk::MemoryDisk;

    use super::*;
    use crate::gangs::Desired;

    fn record(index: u32) -> Record {
        Record {
            gang: GangId { job: Uid(1), index },
            epoch: Epoch(1),
            desired: Desired::Run,
            accepted: UnixMillis(5),
            place_timeout: Millis(7),
            grace: Millis(9),
            pool: "h100".to_owned(),
            verdict: None,
            ended: None,
            leave: None,
        }
    }

    #[tokio::test]
    async fn what_was_committed_comes_back() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
        let random = Random::seeded(1);
        let mut state = AgentState::load(Arc::clone(&disk), &random)
            .await
            .expect("begins");
        let fence = Fence {
            store_generation: StoreGeneration(1),
            term: Term(9),
        };
        state.raise_session(fence, Incarnation(3));
        state.raise_generation(Generation(40));
        state.put(&record(0));
        state.put(&record(1));
        state.forget(record(1).gang);
        state.commit().await.expect("writes");
        state.put(&record(2));
        let again = AgentState::load(disk, &random).await.expect("reads");
        assert_eq!(again.credential(), state.credential());
        assert_eq!(
            (again.fence(), again.incarnation()),
            (fence, Incarnation(3))
        );
        assert_eq!(again.generation(), Generation(40));
        assert_eq!(again.records().collect::<Vec<_>>(), [&record(0)]);
        assert_eq!(again.over(record(1).gang), Some(Epoch(1)));
    }

    #[tokio::test]
    async fn another_history_counts_its_generations_anew() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
        let mut state = AgentState::load(disk, &Random::seeded(1))
            .await
            .expect("begins");
        state.raise_generation(Generation(40));
        let fence = Fence {
            store_generation: StoreGeneration(2),
            term: Term(1),
        };
        state.raise_session(fence, Incarnation(1));
        assert_eq!(state.generation(), Generation(0));
    }

    #[tokio::test]
    async fn memory_of_the_ended_is_bounded_and_keeps_the_newest() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
        let mut state = AgentState::load(disk, &Random::seeded(1))
            .await
            .expect("begins");
        for index in 0..1000 {
            state.is_over(record(index).key());
        }
        assert_eq!(state.saved.over.len(), MAX_OVER);
        assert_eq!(state.over(record(999).gang), Some(Epoch(1)));
        assert_eq!(state.over(record(0).gang), None);
    }

    #[tokio::test]
    async fn a_damaged_record_is_not_silently_replaced() {
        let disk = Arc::new(MemoryDisk::default());
        disk.write(RECORD, b"{".to_vec()).await.expect("writes");
        let loaded = AgentState::load(disk, &Random::seeded(1)).await;
        assert!(matches!(loaded, Err(StateError::Damaged { .. })));
    }
}
