//! Others: whether the jobs that a wish names stand where it wants them.
//!
//! Owns where the gangs of each selector stand, with what a round places. A job is never one of the
//! others to itself. Never chooses.

use std::collections::BTreeSet;

use meridian_api::ids::Uid;
use meridian_api::kinds::federated_job::JobRelation;
use meridian_api::reasons::Reason;

use super::terms::{JobWish, Selector, label};
use crate::candidates::{allows_cluster, choice, is_open};
use crate::decide::Round;
use crate::model::{Cause, ClusterIx, Snapshot, Waiting, WaitingIx};
use crate::preempt::holds::promised;

/// Where the gangs stand that each selector names.
pub(crate) struct Others {
    by_selector: Vec<BTreeSet<(ClusterIx, Uid)>>,
}

impl Others {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let promised = promised(snapshot);
        let standing = |selector: &Selector| {
            let rows = selector.held.iter();
            let rows = rows.filter_map(|ix| snapshot.held.get(ix.index()));
            let stand = rows.map(|held| (held.cluster, held.gang.job));
            // Where room is held for a gang it is as good as there.
            let wait = selector.waiting.iter().filter(|_| !promised.is_empty());
            let wait = wait.filter_map(|ix| snapshot.waiting.get(ix.index()));
            let wait = wait.filter_map(|row| Some((*promised.get(&row.gang)?, row.gang.job)));
            stand.chain(wait).collect()
        };
        Self {
            by_selector: snapshot.selectors.iter().map(standing).collect(),
        }
    }

    /// A gang got a place, or room that is held for it.
    pub(crate) fn placed(&mut self, snapshot: &Snapshot, ix: WaitingIx, cluster: ClusterIx) {
        let Some(gang) = snapshot.waiting.get(ix.index()) else {
            return;
        };
        for (selector, standing) in snapshot.selectors.iter().zip(&mut self.by_selector) {
            if selector.waiting.binary_search(&ix).is_ok() {
                standing.insert((cluster, gang.gang.job));
            }
        }
    }

    /// True when the others stand as the gang wants it, if it goes to the cluster.
    pub(crate) fn allow(&self, snapshot: &Snapshot, gang: &Waiting, cluster: ClusterIx) -> bool {
        let wishes = choice(snapshot, gang).jobs.iter();
        let mut broken = wishes.filter(|wish| !self.keep(snapshot, gang, cluster, wish));
        broken.next().is_none()
    }

    fn keep(
        &self,
        snapshot: &Snapshot,
        gang: &Waiting,
        cluster: ClusterIx,
        wish: &JobWish,
    ) -> bool {
        let Some(domain) = label(snapshot, cluster, &wish.topology_key) else {
            return false;
        };
        let standing = self.by_selector.get(wish.selector as usize);
        let mut near = standing.into_iter().flatten().filter(|(at, job)| {
            *job != gang.gang.job && label(snapshot, *at, &wish.topology_key) == Some(domain)
        });
        near.next().is_some() == (wish.rule == JobRelation::Together)
    }
}

impl Round<'_> {
    /// What of the wishes on other jobs keeps the gang out of each cluster.
    pub(crate) fn others_causes(&self, ix: WaitingIx) -> Vec<Cause> {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let mut causes = Vec::new();
        if choice(snapshot, gang).jobs.is_empty() {
            return causes;
        }
        for (cluster, at) in snapshot.clusters.iter().zip((0..).map(ClusterIx)) {
            if !is_open(cluster) || !allows_cluster(gang, at, cluster) {
                continue;
            }
            let broken = choice(snapshot, gang).jobs.iter();
            let broken = broken.filter(|wish| !self.others.keep(snapshot, gang, at, wish));
            causes.extend(broken.map(|wish| words(snapshot, at, wish)));
        }
        causes
    }
}

fn words(snapshot: &Snapshot, cluster: ClusterIx, wish: &JobWish) -> Cause {
    let selector = snapshot.selectors.get(wish.selector as usize);
    let labels = selector.into_iter().flat_map(|selector| &selector.labels);
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let (labels, key) = (labels.join(","), wish.topology_key.as_str());
    let name = &snapshot.clusters[cluster.index()].name;
    let (reason, message) = match (label(snapshot, cluster, key), wish.rule) {
        (None, _) => (
            Reason::NoMatchingFlavor,
            format!(
                "needs label {key} for its rule on jobs with {labels}; cluster {name} has none"
            ),
        ),
        (Some(domain), JobRelation::Apart) => (
            Reason::ReservedForOthers,
            format!("must be apart by {key} from jobs with {labels}; {domain} holds some"),
        ),
        (Some(domain), JobRelation::Together) => (
            Reason::WaitingForCapacity,
            format!("must be together by {key} with a job with {labels}; {domain} holds none"),
        ),
    };
    Cause {
        reason,
        cluster: Some(cluster),
        flavor: None,
        amounts: None,
        message: message.into(),
    }
}
