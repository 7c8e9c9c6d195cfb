//! Sightings: what agents say of gangs and nobody stores, their checkpoints and their words.
//!
//! Owns what reads add to the status of a job about it. Kept in memory and expanded on read, as
//! reasons are: a job that saves every minute costs no write. Empty on a follower.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::federated_job::status::CheckpointStatus;
use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;
use serde_json::{Value, json};

use crate::model::Model;

/// The newest that was said of each gang, for readers on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sightings(Arc<RwLock<BTreeMap<GangId, Sighting>>>);

/// What was said of one gang.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sighting {
    /// Its newest checkpoint.
    saved: Option<UnixMillis>,
    /// For a person.
    message: String,
}

impl Sightings {
    /// Takes what a cluster says of gangs. It counts for those that are placed there.
    pub(crate) fn take(&self, model: &Model, cluster: &str, gangs: &[GangId]) {
        for gang in gangs {
            let Some(row) = model.placement(*gang) else {
                self.note(*gang, Sighting::default());
                continue;
            };
            let record = &row.record;
            let known = model.fleet.clusters.get(cluster);
            if *record.cluster == *cluster
                && let Some(seen) = known.and_then(|known| known.last_seen(*gang, record.epoch))
            {
                let message = model.words_of(record).to_owned();
                let saved = seen.checkpoint;
                self.note(*gang, Sighting { saved, message });
            }
        }
    }

    /// Takes what is known of a gang.
    fn note(&self, gang: GangId, sighting: Sighting) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if sighting == Sighting::default() {
            known.remove(&gang);
        } else {
            known.insert(gang, sighting);
        }
    }

    /// This hub leads no more.
    pub(crate) fn clear(&self) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.clear();
    }

    /// What is said of a job's checkpoints: the oldest of its gangs' newest, since that is what an
    /// end of all of them goes back to.
    #[must_use]
    pub(crate) fn saved(&self, job: Uid) -> Option<CheckpointStatus> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let oldest = known.range(gangs(job)).filter_map(|(_, seen)| seen.saved);
        Some(CheckpointStatus {
            last_time: Time(oldest.min()?),
        })
    }

    /// Adds to the status of a job what is said of its gangs.
    pub(crate) fn decorate(&self, job: Uid, status: &mut serde_json::Map<String, Value>) {
        if let Some(saved) = self.saved(job) {
            status.insert("checkpoint".to_owned(), json!(saved));
        }
        let Some(shown) = status.get_mut("gangs").and_then(Value::as_array_mut) else {
            return;
        };
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for gang in shown {
            let index = gang["index"]
                .as_u64()
                .and_then(|index| u32::try_from(index).ok());
            let seen = index.and_then(|index| known.get(&GangId { job, index }));
            if let Some(seen) = seen.filter(|seen| !seen.message.is_empty()) {
                gang["message"] = json!(seen.message);
            }
        }
    }
}

fn gangs(job: Uid) -> std::ops::RangeInclusive<GangId> {
    let gang = |index| GangId { job, index };
    gang(0)..=gang(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(at: i64) -> Sighting {
        Sighting {
            saved: Some(UnixMillis(at)),
            message: String::new(),
        }
    }

    #[test]
    fn what_a_cluster_says_of_a_gang_is_shown_with_it() {
        let sightings = Sightings::default();
        let gang = GangId {
            job: Uid(1),
            index: 3,
        };
        let message = "1 of 2 pods run: worker-1 pulls its image".to_owned();
        let saved = None;
        sightings.note(gang, Sighting { saved, message });
        let mut status = json!({"gangs": [{"index": 2}, {"index": 3}]});
        sightings.decorate(Uid(1), status.as_object_mut().expect("an object"));
        assert!(status["gangs"][0]["message"].is_null() && status["checkpoint"].is_null());
        assert_eq!(
            status["gangs"][1]["message"],
            "1 of 2 pods run: worker-1 pulls its image"
        );
    }

    #[test]
    fn a_job_is_as_safe_as_the_gang_that_saved_longest_ago() {
        let saves = Sightings::default();
        let gang = |job: u128, index| GangId {
            job: Uid(job),
            index,
        };
        assert_eq!(saves.saved(Uid(1)), None);
        saves.note(gang(1, 0), saved(2_000));
        saves.note(gang(1, 1), saved(1_000));
        saves.note(gang(2, 0), saved(3_000));
        let at = |job: u128| saves.saved(Uid(job)).map(|saved| saved.last_time.0);
        assert_eq!(
            (at(1), at(2)),
            (Some(UnixMillis(1_000)), Some(UnixMillis(3_000)))
        );
        saves.note(gang(1, 1), Sighting::default());
        assert_eq!(at(1), Some(UnixMillis(2_000)));
        saves.clear();
        assert_eq!(at(2), None);
    }
}
