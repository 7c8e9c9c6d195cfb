//! Sets of gangs and the index of job names, in as few bytes as they need.
//!
//! Owns how a million of each is kept: identities as bytes, so that no alignment pads them, and
//! names as hashes, since each job has its own. Orders are those of the identities. Never says
//! which job is meant: who asks compares the names.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use meridian_api::ids::{GangId, Uid};

/// An identity, most significant byte first: bytes sort as identities do.
type Id = [u8; 16];

/// A set of gangs, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs(BTreeSet<(Id, u32)>);

impl Gangs {
    /// Puts one in.
    pub(crate) fn insert(&mut self, gang: GangId) {
        self.0.insert(packed(gang));
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, gang: GangId) {
        self.0.remove(&packed(gang));
    }

    /// True when it is in.
    #[must_use]
    pub(crate) fn contains(&self, gang: GangId) -> bool {
        self.0.contains(&packed(gang))
    }

    /// True when nothing is in.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them, by identity.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GangId> {
        self.0.iter().copied().map(unpacked)
    }

    /// Takes no more memory than it needs.
    pub(super) fn fit(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    /// True when a gang of this job is in.
    #[must_use]
    pub(crate) fn has_job(&self, job: Uid) -> bool {
        let job = job.0.to_be_bytes();
        self.0.range((job, 0)..=(job, u32::MAX)).next().is_some()
    }
}

fn packed(gang: GangId) -> (Id, u32) {
    (gang.job.0.to_be_bytes(), gang.index)
}

fn unpacked((job, index): (Id, u32)) -> GangId {
    GangId {
        job: Uid(u128::from_be_bytes(job)),
        index,
    }
}

/// Jobs by the hash of their namespace and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(BTreeSet<(u64, Id)>);

impl Names {
    /// Notes a job's name.
    pub(super) fn insert(&mut self, namespace: &str, name: &str, job: Uid) {
        self.0.insert((hash(namespace, name), job.0.to_be_bytes()));
    }

    /// Forgets a job's name.
    pub(super) fn remove(&mut self, namespace: &str, name: &str, job: Uid) {
        self.0.remove(&(hash(namespace, name), job.0.to_be_bytes()));
    }

    /// Takes no more memory than it needs.
    pub(super) fn fit(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    /// Jobs that may have that name: it and, hardly ever, others of the same hash.
    pub(super) fn candidates(&self, namespace: &str, name: &str) -> impl Iterator<Item = Uid> {
        let hash = hash(namespace, name);
        let alike = self.0.range((hash, Id::default())..=(hash, [u8::MAX; 16]));
        alike.map(|(_, job)| Uid(u128::from_be_bytes(*job)))
    }
}

fn hash(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_keep_the_order_of_their_identities() {
        let gang = |job: u128, index| GangId {
            job: Uid(job),
            index,
        };
        let mut sorted = vec![
            gang(0, 7),
            gang(1, 0),
            gang(1, 300),
            gang(256, 1),
            gang(u128::MAX, 0),
        ];
        let mut gangs = Gangs::default();
        for gang in sorted.iter().rev() {
            gangs.insert(*gang);
        }
        assert!(gangs.iter().eq(sorted.iter().copied()));
        sorted.sort();
        assert!(gangs.iter().eq(sorted));
        assert!(gangs.has_job(Uid(1)) && !gangs.has_job(Uid(2)));
        gangs.remove(gang(1, 0));
        assert!(gangs.has_job(Uid(1)) && !gangs.contains(gang(1, 0)));
    }

    #[test]
    fn a_name_leads_to_its_job_until_it_is_forgotten() {
        let mut names = Names::default();
        names.insert("nlp", "train", Uid(7));
        names.insert("nl", "ptrain", Uid(8));
        let found = |names: &Names| names.candidates("nlp", "train").collect::<Vec<_>>();
        assert_eq!(found(&names), [Uid(7)]);
        names.insert("nlp", "train", Uid(u128::MAX));
        assert_eq!(found(&names), [Uid(7), Uid(u128::MAX)]);
        names.remove("nlp", "train", Uid(7));
        assert_eq!(found(&names), [Uid(u128::MAX)]);
    }
}
