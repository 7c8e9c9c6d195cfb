//! Holds in the model: what is kept for whom, and who makes room for it.
//!
//! Owns the way from stored holds to the placements that they name, which are settled and told
//! again whenever a hold comes or goes. Never decides and never writes.

use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId, Revision};
use meridian_store::KeyValue;

use super::Model;
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
            self.untold.insert(row.record.cluster.clone());
        }
    }
}
