//! Holds in the model: what is kept for whom, and who makes room for it.
//!
//! Owns the way from stored holds to the placements that they name, which are settled and told
//! again whenever a hold comes or goes. Never decides and never writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId, Revision};
use meridian_api::kinds::federated_job::Checkpoint;
use meridian_api::units::UnixMillis;
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Held, HeldIx, Movable, RegionIx, Shared, Snapshot, Waiting};
use meridian_store::KeyValue;

use super::Model;
use super::choices::Choices;
use super::snapshot::Ordinals;
use crate::holds::{HoldRecord, StoredVictim};

/// A hold as stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredHold {
    /// What it says.
    pub(crate) record: Arc<HoldRecord>,
    /// Revision of its newest change.
    pub(crate) revision: Revision,
}

impl Model {
    /// All holds, by gang.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &StoredHold> {
        self.holds.values()
    }

    /// What is held for a gang.
    #[must_use]
    pub(crate) fn hold(&self, gang: GangId) -> Option<&StoredHold> {
        self.holds.get(&gang)
    }

    /// For whom a placement makes room, and how.
    #[must_use]
    pub(crate) fn makes_room(
        &self,
        gang: GangId,
        epoch: Epoch,
    ) -> Option<(&HoldRecord, &StoredVictim)> {
        let hold = self.holds.get(self.makes_room_for.get(&gang)?)?;
        let victim = hold.record.victim(gang, epoch)?;
        Some((&hold.record, victim))
    }

    /// Placements that save their work and may go on elsewhere; nobody is asked to while nobody
    /// waits.
    pub(super) fn movable(
        &self,
        ordinals: &Ordinals,
        choices: &mut Choices,
        snapshot: &Snapshot,
        now: UnixMillis,
    ) -> Vec<Movable> {
        if snapshot.waiting.is_empty() {
            return Vec::new();
        }
        let held = snapshot.held.iter().zip((0..).map(HeldIx));
        let row = |(held, ix): (&Held, HeldIx)| {
            let class = snapshot.classes.get(held.class.index())?;
            let job = self.jobs.get(held.gang.job)?;
            let save = job.spec().checkpoint.as_ref()?;
            let record = &self.placements.get(&held.gang)?.record;
            let runs = record.state == State::Running && record.origin.is_none();
            if !runs || !class.rule.comes_back() || held.standing.seats.is_empty() {
                return None;
            }
            // A job in trouble stays where it is.
            let gang = self.waiting_row(ordinals, choices, job, held.gang, now);
            let gang = Waiting {
                shape: record.shape().into(),
                ..gang.ok()?
            };
            let gang = reading(ordinals, gang, save)?;
            Some(Movable { held: ix, gang })
        };
        held.filter_map(row).collect()
    }

    pub(super) fn put_hold(&mut self, gang: &str, entry: &KeyValue) {
        let Ok(gang) = gang.parse::<GangId>() else {
            return;
        };
        let is_known = |hold: &StoredHold| hold.revision >= entry.mod_revision;
        if self.holds.get(&gang).is_some_and(is_known) {
            return;
        }
        match serde_json::from_slice::<HoldRecord>(&entry.value) {
            Ok(record) => {
                for victim in &record.victims {
                    self.makes_room_for.insert(victim.gang, gang);
                    self.touch_victim(victim.gang);
                }
                let hold = StoredHold {
                    record: Arc::new(record),
                    revision: entry.mod_revision,
                };
                self.untold.insert(hold.record.cluster.clone());
                self.holds.insert(gang, hold);
                self.changed = true;
            }
            Err(error) => tracing::error!(%gang, %error, "a stored hold cannot be read"),
        }
    }

    pub(super) fn delete_hold(&mut self, gang: &str, revision: Revision) {
        let Ok(gang) = gang.parse::<GangId>() else {
            return;
        };
        let is_older = |hold: &StoredHold| hold.revision < revision;
        if !self.holds.get(&gang).is_some_and(is_older) {
            return;
        }
        let Some(hold) = self.holds.remove(&gang) else {
            return;
        };
        for victim in &hold.record.victims {
            if self.makes_room_for.get(&victim.gang) == Some(&gang) {
                self.makes_room_for.remove(&victim.gang);
            }
            self.touch_victim(victim.gang);
        }
        self.untold.insert(hold.record.cluster.clone());
        self.changed = true;
    }

    /// What becomes of a placement may have changed, and what its agent is to be told.
    fn touch_victim(&mut self, gang: GangId) {
        self.unsettled.insert(gang);
        if let Some(row) = self.placements.get(&gang) {
            self.untold.insert(row.record.cluster.to_string());
        }
    }
}

/// The gang where it can read what it saved: in the regions that hold it or get a copy, if the job
/// names any. `None` when that leaves it none of its own regions.
fn reading(ordinals: &Ordinals, gang: Waiting, save: &Checkpoint) -> Option<Waiting> {
    if save.location.is_empty() {
        return Some(gang);
    }
    let named = save.location.iter().chain(&save.replicate_to);
    let holds: BTreeSet<RegionIx> = named
        .filter_map(|name| ordinals.regions.get(name).copied())
        .collect();
    let regions: Shared<Vec<RegionIx>> = if gang.regions.is_empty() {
        holds.into_iter().collect()
    } else {
        let own = gang.regions.iter().copied();
        own.filter(|ix| holds.contains(ix)).collect()
    };
    (!regions.is_empty()).then_some(Waiting { regions, ..gang })
}
