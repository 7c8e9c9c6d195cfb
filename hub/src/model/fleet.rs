//! The fleet: what each cluster's agent last said, and how well it is heard.
//!
//! Owns pools as shapes, the gangs that the agents list, and contact. What an agent says is never
//! edited here: decisions subtract what it does not show yet. Absence never means delete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_api::ids::{Epoch, GangId, Incarnation};
use meridian_api::units::{BootMillis, MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::model::{Contact, Shape};
use meridian_policies::shapes;
use meridian_proto::v1;
use meridian_store::KeyValue;
use meridian_store::keys::ObjectKey;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::offers::Offers;
use crate::fence::Fence;

/// When silence becomes suspicion, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContactTerms {
    /// Silence after which a cluster gets no new work.
    pub(crate) suspect: Millis,
    /// Silence after which it counts as unreachable.
    pub(crate) unreachable: Millis,
    /// Silence after which it counts as lost.
    pub(crate) lost: Millis,
}

/// Clusters by name.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// Their state.
    pub(crate) clusters: BTreeMap<String, ClusterState>,
}

/// What is known of one cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// Life of the agent that attached last.
    pub(crate) incarnation: Incarnation,
    /// Boot clock of this hub when its term began and it had not attached yet.
    pub(crate) silent_since: BootMillis,
    /// Term in which it attached.
    pub(crate) attached_under: Option<Fence>,
    /// Version of that agent.
    pub(crate) version: String,
    /// Boot clock of this hub when it last heard the agent; `None` = never in this term.
    pub(crate) heard: Option<Heard>,
    /// Pools as reported.
    pub(crate) pools: BTreeMap<String, PoolState>,
    /// Gangs as reported.
    pub(crate) seen: BTreeMap<GangId, Seen>,
    /// Ends of gangs that the agent has let go since: the proof, until what follows is stored.
    pub(crate) proved: BTreeMap<GangId, Seen>,
    /// Its digests say which gangs others made there.
    pub(crate) tells_offers: bool,
    /// Gangs that others made there.
    pub(crate) offers: Offers,
    /// Those that lack something, each with what it lacks.
    pub(crate) held_back: Vec<String>,
    /// Epochs of orders that it will not carry out.
    pub(crate) refused: BTreeMap<GangId, Epoch>,
    /// What was last written of it to the store.
    pub(crate) written: Written,
    /// Status as last written.
    pub(crate) status: Option<Arc<meridian_api::kinds::member_cluster::MemberClusterStatus>>,
}

/// When an agent was last heard: its session writes, the model reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<AtomicU64>);

impl Heard {
    /// Heard at `now`.
    pub(crate) fn at(&self, now: BootMillis) {
        self.0.fetch_max(now.0, Ordering::Relaxed);
    }

    /// When that was.
    #[must_use]
    pub(crate) fn last(&self) -> BootMillis {
        BootMillis(self.0.load(Ordering::Relaxed))
    }
}

/// What the store last got to hear of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Contact in its status.
    pub(crate) contact: Option<Contact>,
    /// Incarnation in its status.
    pub(crate) incarnation: Incarnation,
    /// Why its agent was refused, in its status.
    pub(crate) refused: Option<&'static str>,
    /// Capacity.
    pub(crate) capacity: Option<BTreeMap<String, PoolState>>,
    /// Gangs of others that lack something, in its status.
    pub(crate) held_back: Vec<String>,
    /// Boot clock of the write.
    pub(crate) at: BootMillis,
}

/// One pool as reported. Also the stored form of capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolState {
    /// Its hardware.
    pub(crate) flavor: String,
    /// Levels from the widest inward, without the host.
    pub(crate) levels: Vec<String>,
    /// Hosts, canonical.
    pub(crate) shapes: Vec<Shape>,
    /// GPUs of nodes that are out.
    pub(crate) out: MilliGpus,
    /// What a person should know of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<String>,
}

/// A gang as an agent last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Under which epoch.
    pub(crate) epoch: Epoch,
    /// How far.
    pub(crate) step: v1::GangStep,
    /// Its devices are already out of the shapes.
    pub(crate) holds: bool,
    /// For a failure: the agent's reason.
    pub(crate) reason: String,
    /// For a failure: the exit code.
    pub(crate) exit_code: i32,
    /// For a person.
    pub(crate) message: String,
    /// Agent's wall clock at its start.
    pub(crate) started: Option<UnixMillis>,
    /// Agent's wall clock at its end.
    pub(crate) ended: Option<UnixMillis>,
    /// Agent's wall clock at its newest checkpoint.
    pub(crate) checkpoint: Option<UnixMillis>,
    /// Pods by role, when fewer than ordered.
    pub(crate) sizes: Vec<(String, u32)>,
    /// What it holds, host by host.
    pub(crate) seats: Vec<SeenSeat>,
}

/// What a gang holds on one host, and what else is known of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenSeat {
    /// The host, as its agent numbers it.
    pub(crate) host: u64,
    /// Its domains.
    pub(crate) domains: Vec<String>,
    /// Held there.
    pub(crate) held: Resources,
    /// Size of the host.
    pub(crate) allocatable: Resources,
    /// Held there by pods of no gang.
    pub(crate) foreign: Resources,
    /// Pods by role.
    pub(crate) pods: Vec<(String, u32)>,
}

impl Seen {
    /// True when nothing of it runs any more.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        match self.step {
            v1::GangStep::Succeeded | v1::GangStep::Failed | v1::GangStep::Stopped => true,
            v1::GangStep::Unspecified
            | v1::GangStep::Accepted
            | v1::GangStep::Bound
            | v1::GangStep::Running
            | v1::GangStep::Stopping => false,
        }
    }
}

impl Fleet {
    /// Capacity as another leader last wrote it: what is known until the agent attaches.
    pub(crate) fn put_capacity(&mut self, name: &str, value: &[u8]) {
        let cluster = self.clusters.entry(name.to_owned()).or_default();
        if cluster.heard.is_some() {
            return;
        }
        match serde_json::from_slice::<BTreeMap<String, PoolState>>(value) {
            Ok(pools) => cluster.pools = pools,
            Err(error) => tracing::error!(cluster = name, %error, "capacity cannot be read"),
        }
    }

    /// A cluster's status as stored.
    pub(crate) fn put_status(&mut self, object: &ObjectKey, entry: &KeyValue) {
        if object.plural != "memberclusters" {
            return;
        }
        let cluster = self.clusters.entry(object.name.clone()).or_default();
        cluster.status = serde_json::from_slice(&entry.value).ok().map(Arc::new);
    }

    /// Forgets who was heard in another term than that of `fence`: those agents attach again.
    pub(crate) fn start_term(&mut self, fence: Fence, now: BootMillis) {
        for cluster in self.clusters.values_mut() {
            if cluster.attached_under == Some(fence) {
                continue;
            }
            cluster.heard = None;
            cluster.silent_since = now;
            cluster.seen.clear();
            cluster.proved.clear();
            cluster.offers.clear();
            cluster.written = Written::default();
        }
    }
}

impl ClusterState {
    /// How well it is heard. An agent that has not attached in this term is suspect at best: it
    /// may be about to, and until then nobody knows what it runs.
    pub(crate) fn contact(&self, now: BootMillis, terms: ContactTerms) -> Contact {
        let silence = now.since(self.last_heard());
        let contact = match silence {
            _ if silence < terms.suspect => Contact::Ready,
            _ if silence < terms.unreachable => Contact::Suspect,
            _ if silence < terms.lost => Contact::Unreachable,
            _ => Contact::Lost,
        };
        if self.heard.is_some() {
            contact
        } else {
            contact.max(Contact::Suspect)
        }
    }

    /// When its contact may next get worse, if nothing is heard until then.
    pub(crate) fn contact_changes(
        &self,
        now: BootMillis,
        terms: ContactTerms,
    ) -> Option<BootMillis> {
        let last = self.last_heard();
        let steps = [terms.suspect, terms.unreachable, terms.lost];
        steps
            .into_iter()
            .map(|step| last.after(step))
            .find(|at| *at > now)
    }

    /// Time since its agent was heard.
    pub(crate) fn silence(&self, now: BootMillis) -> Millis {
        now.since(self.last_heard())
    }

    fn last_heard(&self) -> BootMillis {
        self.heard.as_ref().map_or(self.silent_since, Heard::last)
    }

    /// Takes in a digest; returns the gangs that it says something about.
    pub(crate) fn absorb(&mut self, digest: Digest) -> Vec<GangId> {
        let mut touched: Vec<GangId> = digest.removed_gangs.clone();
        if digest.full {
            touched.extend(self.seen.keys());
            self.pools.clear();
            for (gang, seen) in std::mem::take(&mut self.seen) {
                self.keep_proof(gang, seen);
            }
        }
        for name in &digest.removed_pools {
            self.pools.remove(name);
        }
        for gang in digest.removed_gangs {
            if let Some(seen) = self.seen.remove(&gang) {
                self.keep_proof(gang, seen);
            }
        }
        touched.extend(digest.seen.iter().map(|(gang, _)| *gang));
        self.offers
            .absorb(digest.full, digest.offers, digest.removed_offers);
        match digest.held_back {
            Some(held_back) => self.held_back = held_back,
            None if digest.full => self.held_back.clear(),
            None => {}
        }
        self.pools.extend(digest.pools);
        self.seen.extend(digest.seen);
        touched
    }

    /// An agent that was told to stop a gang lets it go when it has shown the end once. A store
    /// that takes no write at that moment must not lose the proof.
    fn keep_proof(&mut self, gang: GangId, seen: Seen) {
        if seen.is_over() {
            self.proved.insert(gang, seen);
        }
    }

    /// The newest that was seen of a gang, or the proof that its `epoch` has ended.
    pub(crate) fn last_seen(&self, gang: GangId, epoch: Epoch) -> Option<&Seen> {
        let seen = self.seen.get(&gang);
        let proof = self.proved.get(&gang).filter(|seen| seen.epoch == epoch);
        seen.filter(|seen| seen.epoch == epoch).or(proof).or(seen)
    }

    /// Takes in steps that an agent reports as they happen.
    pub(crate) fn observe(&mut self, seen: Vec<(GangId, Seen)>) -> Vec<GangId> {
        let touched = seen.iter().map(|(gang, _)| *gang).collect();
        for (gang, mut new) in seen {
            // A report says how far a gang is; only a digest says what the shapes include.
            if let Some(known) = self.seen.get(&gang) {
                if known.epoch > new.epoch {
                    continue;
                }
                new.holds = known.holds && known.epoch == new.epoch;
                new.seats = if new.holds {
                    known.seats.clone()
                } else {
                    Vec::new()
                };
            } else {
                new.holds = false;
                new.seats = Vec::new();
            }
            self.seen.insert(gang, new);
        }
        touched
    }

    /// GPUs of its pools: in all, free, and out.
    #[must_use]
    pub(crate) fn gpus(&self) -> (MilliGpus, MilliGpus, MilliGpus) {
        let zero = (MilliGpus::ZERO, MilliGpus::ZERO, MilliGpus::ZERO);
        self.pools.values().fold(zero, |(total, free, out), pool| {
            let (all, left) = (
                shapes::allocatable(&pool.shapes),
                shapes::free(&pool.shapes),
            );
            (
                total.saturating_add(all.gpus).saturating_add(pool.out),
                free.saturating_add(left.gpus),
                out.saturating_add(pool.out),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::ids::Uid;

    use super::*;

    const TERMS: ContactTerms = ContactTerms {
        suspect: Millis(8_000),
        unreachable: Millis(20_000),
        lost: Millis(120_000),
    };

    fn cluster_heard_at(at: u64) -> ClusterState {
        let heard = Heard::default();
        heard.at(BootMillis(at));
        ClusterState {
            heard: Some(heard),
            ..ClusterState::default()
        }
    }

    #[test]
    fn silence_makes_contact_worse_step_by_step() {
        let cluster = cluster_heard_at(1_000);
        let at = |millis| cluster.contact(BootMillis(millis), TERMS);
        assert_eq!(at(8_999), Contact::Ready);
        assert_eq!(at(9_000), Contact::Suspect);
        assert_eq!(at(21_000), Contact::Unreachable);
        assert_eq!(at(121_000), Contact::Lost);
        let next = cluster.contact_changes(BootMillis(9_000), TERMS);
        assert_eq!(next, Some(BootMillis(21_000)));
    }

    #[test]
    fn an_agent_that_has_not_attached_in_this_term_is_never_ready() {
        let cluster = ClusterState {
            silent_since: BootMillis(1_000),
            ..ClusterState::default()
        };
        let at = |millis| cluster.contact(BootMillis(millis), TERMS);
        assert_eq!(at(1_001), Contact::Suspect);
        assert_eq!(at(21_000), Contact::Unreachable);
        assert_eq!(at(121_000), Contact::Lost);
    }

    #[test]
    fn a_delta_removes_only_what_it_names() {
        let gang = |index| v1::GangObservation {
            gang: Some(GangId { job: Uid(1), index }.into()),
            epoch: 1,
            step: v1::GangStep::Running.into(),
            ..v1::GangObservation::default()
        };
        let mut cluster = cluster_heard_at(0);
        let full = v1::Digest {
            full: true,
            gangs: vec![gang(0), gang(1)],
            ..Default::default()
        };
        cluster.absorb(Digest::read(&full).expect("well formed"));
        let removed = vec![
            GangId {
                job: Uid(1),
                index: 0,
            }
            .into(),
        ];
        let delta = v1::Digest {
            removed_gangs: removed,
            ..Default::default()
        };
        cluster.absorb(Digest::read(&delta).expect("well formed"));
        assert_eq!(
            cluster
                .seen
                .keys()
                .map(|gang| gang.index)
                .collect::<Vec<_>>(),
            [1]
        );
    }
}
