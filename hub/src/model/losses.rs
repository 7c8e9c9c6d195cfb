//! Work that was lost to others lately, by job.
//!
//! Owns the index from time to the jobs whose gangs made room, kept with each change of a job's
//! progress, so that a round looks at those alone. Reads only; the progress of a job is the truth.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::Uid;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::model::Tenant;

use super::Model;
use super::snapshot::Ordinals;
use crate::progress::JobProgress;

/// Work lost longer ago is not held against anybody.
const LOST_WITHIN: Millis = Millis::seconds(3600);

/// Jobs of which some gang made room, by the newest time.
#[derive(Debug, Default)]
pub(super) struct Losses {
    by_time: BTreeSet<(UnixMillis, Uid)>,
    newest: BTreeMap<Uid, UnixMillis>,
}

impl Losses {
    /// The job's progress is this.
    pub(super) fn note(&mut self, job: Uid, progress: &JobProgress) {
        self.forget(job);
        let hits = progress.evictions.values().flatten();
        if let Some(newest) = hits.map(|hit| hit.at).max() {
            self.newest.insert(job, newest);
            self.by_time.insert((newest, job));
        }
    }

    /// The job is gone.
    pub(super) fn forget(&mut self, job: Uid) {
        if let Some(before) = self.newest.remove(&job) {
            self.by_time.remove(&(before, job));
        }
    }

    /// Jobs that lost something at that time or later.
    fn since(&self, at: UnixMillis) -> impl Iterator<Item = Uid> {
        let first = (at, Uid(0));
        self.by_time.range(first..).map(|(_, job)| *job)
    }
}

impl Model {
    /// What tenants lost to others in the last hour.
    pub(super) fn lost_work(&self, ordinals: &Ordinals, tenants: &mut [Tenant], now: UnixMillis) {
        let hour_ago = UnixMillis(now.0.saturating_sub_unsigned(LOST_WITHIN.0));
        for job in self.losses.since(hour_ago) {
            let Some(job) = self.jobs.get(job) else {
                continue;
            };
            let hits = job.progress().evictions.values().flatten();
            let recent = hits.filter(|hit| now.since(hit.at) < LOST_WITHIN);
            let lost = recent.fold(0_u64, |sum, hit| sum.saturating_add(hit.lost));
            let tenant = ordinals.tenants.get(job.tenant());
            if let Some(tenant) = tenant.and_then(|ix| tenants.get_mut(ix.index())) {
                tenant.lost = tenant.lost.saturating_add(lost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture_tests::{Fixture, JOB, NOW, gang};
    use crate::model::Situation;
    use crate::progress::Eviction;

    fn lost_at(fixture: &Fixture, now: UnixMillis) -> u64 {
        let situation = Situation {
            now,
            ..Fixture::situation()
        };
        let tenants = fixture.model.snapshot(situation).snapshot.tenants;
        tenants.iter().map(|tenant| tenant.lost).sum()
    }

    #[test]
    fn what_a_tenant_lost_counts_for_an_hour_whatever_else_changes() {
        let mut fixture = Fixture::new(4);
        fixture.job(&json!({}), &json!({}));
        let mut progress = JobProgress::default();
        let hit = |at, lost| Eviction {
            at,
            by: gang(0).job,
            lost,
        };
        let later = NOW.after(Millis::seconds(1_800));
        progress.made_room(0, hit(NOW, 40));
        fixture.put(&format!("progress/{JOB}"), &progress.to_json());
        assert_eq!(lost_at(&fixture, NOW), 40);
        progress.made_room(1, hit(later, 2));
        fixture.put(&format!("progress/{JOB}"), &progress.to_json());
        assert_eq!(lost_at(&fixture, later), 42);
        // The job is written anew, and keeps its progress.
        fixture.job(&json!({"priority": 3}), &json!({}));
        assert_eq!(lost_at(&fixture, NOW.after(LOST_WITHIN)), 2);
        assert_eq!(lost_at(&fixture, later.after(LOST_WITHIN)), 0);
        assert_eq!(fixture.model.losses.by_time.len(), 1);
        progress.evictions.clear();
        fixture.put(&format!("progress/{JOB}"), &progress.to_json());
        assert_eq!(lost_at(&fixture, later), 0);
        assert!(fixture.model.losses.by_time.is_empty());
    }
}
