//! Taints that end what runs: which gangs must leave their cluster, and when.
//!
//! Owns the deadlines that follow from `NoExecute` taints and what jobs bear. New work is kept away
//! by the decision, not here. Reads only, and notes what is due to be settled.

use meridian_api::ids::GangId;
use meridian_api::kinds::federated_job::Toleration;
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::lifecycle::State;

use super::Model;
use crate::placement::PlacementRecord;

impl Model {
    /// When a gang must leave its cluster for its taints; `None` = it may stay.
    #[must_use]
    pub(crate) fn must_leave(&self, record: &PlacementRecord) -> Option<UnixMillis> {
        let cluster = self.catalog.clusters.get(&*record.cluster)?;
        let job = self.jobs.get(record.gang.job)?;
        let taints = cluster.value.spec.taints.iter();
        let ends = taints.filter_map(|taint| ends(taint, &job.spec().placement.tolerations));
        ends.min()
    }

    /// Gangs that have a deadline and have not been told to stop.
    fn leaving(&self) -> impl Iterator<Item = (GangId, UnixMillis)> {
        let tainted = self.catalog.clusters.iter().filter(|(_, cluster)| {
            let mut taints = cluster.value.spec.taints.iter();
            taints.any(|taint| taint.effect == TaintEffect::NoExecute)
        });
        let names: std::collections::BTreeSet<&str> =
            tainted.map(|(name, _)| name.as_str()).collect();
        let rows = if names.is_empty() {
            None
        } else {
            Some(self.placements.iter())
        };
        let rows = rows.into_iter().flatten();
        rows.filter_map(move |(gang, row)| {
            let goes_on = match row.record.state {
                State::Starting | State::Running => true,
                State::Draining(_) => false,
            };
            let due = (goes_on && names.contains(&*row.record.cluster))
                .then(|| self.must_leave(&row.record))?;
            Some((*gang, due?))
        })
    }

    /// When the next gang must leave.
    pub(crate) fn next_leave(&self, now: UnixMillis) -> Option<UnixMillis> {
        self.leaving()
            .map(|(_, at)| at)
            .filter(|at| *at > now)
            .min()
    }

    /// Notes the gangs whose time is over, to be settled.
    pub(crate) fn unsettle_leaving(&mut self, now: UnixMillis) {
        let due = self.leaving().filter(|(_, at)| *at <= now);
        let due: Vec<GangId> = due.map(|(gang, _)| gang).collect();
        self.unsettled.extend(due);
    }
}

/// When work with these tolerations must go because of the taint; `None` when it need not. Of
/// several that are about it the longest counts.
fn ends(taint: &Taint, tolerations: &[Toleration]) -> Option<UnixMillis> {
    if taint.effect != TaintEffect::NoExecute {
        return None;
    }
    let mut longest = 0;
    for toleration in tolerations.iter().filter(|it| it.covers(taint)) {
        longest = longest.max(toleration.toleration_seconds?);
    }
    let since = taint.time_added.map_or(UnixMillis::ZERO, |added| added.0);
    Some(since.after(Millis(longest.saturating_mul(1000))))
}
