//! Saves: the newest checkpoint of each gang that agents tell of.
//!
//! Owns what reads add to the status of a job about it. Kept in memory and expanded on read, as
//! reasons are: a job that saves every minute costs no write. Empty on a follower.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::federated_job::status::CheckpointStatus;
use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;

use crate::model::Model;

/// The newest checkpoint of each gang, for readers on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saves(Arc<RwLock<BTreeMap<GangId, UnixMillis>>>);

impl Saves {
    /// Takes what a cluster says of gangs. It counts for those that are placed there.
    pub(crate) fn take(&self, model: &Model, cluster: &str, gangs: &[GangId]) {
        for gang in gangs {
            let Some(row) = model.placement(*gang) else {
                self.note(*gang, None);
                continue;
            };
            let record = &row.record;
            let known = model.fleet.clusters.get(cluster);
            if record.cluster == cluster
                && let Some(seen) = known.and_then(|known| known.last_seen(*gang, record.epoch))
            {
                self.note(*gang, seen.checkpoint);
            }
        }
    }

    /// Takes what is known of a gang; `None` = nothing.
    fn note(&self, gang: GangId, saved: Option<UnixMillis>) {
        let mut saves = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match saved {
            Some(at) => saves.insert(gang, at),
            None => saves.remove(&gang),
        };
    }

    /// This hub leads no more.
    pub(crate) fn clear(&self) {
        let mut saves = self.0.write().unwrap_or_else(PoisonError::into_inner);
        saves.clear();
    }

    /// What is said of a job: the oldest of its gangs' newest, since that is what an end of all of
    /// them goes back to.
    #[must_use]
    pub(crate) fn of_job(&self, job: Uid) -> Option<CheckpointStatus> {
        let all = GangId { job, index: 0 }..=GangId {
            job,
            index: u32::MAX,
        };
        let saves = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let oldest = saves.range(all).map(|(_, at)| *at).min()?;
        Some(CheckpointStatus {
            last_time: Time(oldest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_as_safe_as_the_gang_that_saved_longest_ago() {
        let saves = Saves::default();
        let gang = |job: u128, index| GangId {
            job: Uid(job),
            index,
        };
        assert_eq!(saves.of_job(Uid(1)), None);
        saves.note(gang(1, 0), Some(UnixMillis(2_000)));
        saves.note(gang(1, 1), Some(UnixMillis(1_000)));
        saves.note(gang(2, 0), Some(UnixMillis(3_000)));
        let at = |job: u128| saves.of_job(Uid(job)).map(|saved| saved.last_time.0);
        assert_eq!(
            (at(1), at(2)),
            (Some(UnixMillis(1_000)), Some(UnixMillis(3_000)))
        );
        saves.note(gang(1, 1), None);
        assert_eq!(at(1), Some(UnixMillis(2_000)));
        saves.clear();
        assert_eq!(at(2), None);
    }
}
