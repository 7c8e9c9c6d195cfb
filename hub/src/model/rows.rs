//! The table of jobs, and which of their gangs wait, in as few bytes as they need.
//!
//! Owns how a million of each is kept: a job has a row, its number stands for it in every index,
//! and what it is found by is kept once, in the job itself. An index therefore only says which jobs
//! may be meant: who looks something up compares. Users choose names, so what those are found by
//! is hashed with keys that nobody can know; nothing is ever told in the order of hashes. Never
//! says what a job is like.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

use meridian_api::ids::{GangId, Uid};

use super::Job;
use super::index::Index;

/// Number of a row. It is that of one job as long as that is in, then perhaps of another.
pub(super) type RowIx = u32;

/// All jobs.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Boxed: a table that grows by half keeps a third of its places free.
    jobs: Vec<Option<Box<Job>>>,
    free: Vec<RowIx>,
    /// Another in each life: names that share a hash in one do not in the next.
    keys: RandomState,
    by_uid: Index,
    by_name: Index,
}

impl Rows {
    /// Where the job of that identity is.
    pub(super) fn row(&self, uid: Uid) -> Option<RowIx> {
        let mut rows = self.by_uid.rows(self.hash(uid));
        rows.find(|row| self.at(*row).is_some_and(|job| job.uid == uid))
    }

    /// The job of that row.
    pub(super) fn at(&self, row: RowIx) -> Option<&Job> {
        self.jobs.get(row as usize)?.as_deref()
    }

    /// The job of that identity.
    pub(super) fn get(&self, uid: Uid) -> Option<&Job> {
        self.at(self.row(uid)?)
    }

    /// The job of that row, to be changed.
    pub(super) fn at_mut(&mut self, row: RowIx) -> Option<&mut Job> {
        self.jobs.get_mut(row as usize)?.as_deref_mut()
    }

    /// Jobs of that name: a stored one, and those that had it and are still on their way out.
    pub(super) fn named(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Job> {
        let jobs = self.by_name.rows(self.hash((namespace, name)));
        let jobs = jobs.filter_map(|row| self.at(row));
        jobs.filter(move |job| (job.namespace(), job.name()) == (namespace, name))
    }

    /// All jobs, by row.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter_map(Option::as_deref)
    }

    /// Puts a job in that is not there; returns its row.
    pub(super) fn insert(&mut self, job: Job) -> RowIx {
        let (uid, name) = self.hashes(&job);
        let job = Some(Box::new(job));
        let row = if let Some(row) = self.free.pop() {
            self.jobs[row as usize] = job;
            row
        } else {
            self.jobs.push(job);
            let row = RowIx::try_from(self.jobs.len() - 1);
            row.expect("four thousand million jobs fit no memory")
        };
        self.by_uid.insert(uid, row);
        self.by_name.insert(name, row);
        row
    }

    /// Puts a job in the place of the one of its identity, which is in that row.
    pub(super) fn replace(&mut self, row: RowIx, job: Job) {
        let name = self.hashes(&job).1;
        let before = self.jobs[row as usize].replace(Box::new(job));
        if let Some(before) = before.map(|before| self.hashes(&before).1) {
            self.by_name.remove(before, row);
        }
        self.by_name.insert(name, row);
    }

    /// Takes the job of that identity out.
    pub(super) fn remove(&mut self, uid: Uid) -> Option<Box<Job>> {
        let row = self.row(uid)?;
        let job = self.jobs.get_mut(row as usize)?.take()?;
        let (uid, name) = self.hashes(&job);
        self.by_uid.remove(uid, row);
        self.by_name.remove(name, row);
        self.free.push(row);
        Some(job)
    }

    /// Takes no more memory than it needs.
    pub(super) fn fit(&mut self) {
        self.jobs.shrink_to_fit();
        self.by_uid.fit();
        self.by_name.fit();
    }

    /// What a job is found by.
    fn hashes(&self, job: &Job) -> (u32, u32) {
        let name = (job.namespace(), job.name());
        (self.hash(job.uid), self.hash(name))
    }

    fn hash(&self, key: impl Hash) -> u32 {
        let bits = self.keys.hash_one(key) >> 32;
        u32::try_from(bits).unwrap_or_default()
    }
}

/// Gangs that wait, by the rows of their jobs.
#[derive(Debug, Default)]
pub(super) struct Gangs(BTreeSet<(RowIx, u32)>);

impl Gangs {
    /// Puts a gang of that row in, or takes it out.
    pub(super) fn set(&mut self, row: RowIx, index: u32, waits: bool) {
        if waits {
            self.0.insert((row, index));
        } else {
            self.0.remove(&(row, index));
        }
    }

    /// Takes all gangs of that row out.
    pub(super) fn forget(&mut self, row: RowIx) {
        let gangs: Vec<u32> = self.of(row).collect();
        for index in gangs {
            self.0.remove(&(row, index));
        }
    }

    fn of(&self, row: RowIx) -> impl Iterator<Item = u32> {
        self.0
            .range((row, 0)..=(row, u32::MAX))
            .map(|(_, index)| *index)
    }

    /// Takes no more memory than it needs.
    pub(super) fn fit(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }
}

/// Gangs that wait, for readers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'a> {
    pub(super) jobs: &'a Rows,
    pub(super) gangs: &'a Gangs,
}

impl<'a> Waiting<'a> {
    /// True when this gang waits.
    #[must_use]
    pub(crate) fn contains(self, gang: GangId) -> bool {
        let row = self.jobs.row(gang.job);
        row.is_some_and(|row| self.gangs.0.contains(&(row, gang.index)))
    }

    /// True when nothing waits.
    #[must_use]
    pub(crate) fn is_empty(self) -> bool {
        self.gangs.0.is_empty()
    }

    /// How many wait.
    #[must_use]
    pub(crate) fn len(self) -> usize {
        self.gangs.0.len()
    }

    /// Each with its job: those of a job one after another, by index; jobs as they came.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a Job, GangId)> {
        self.gangs.0.iter().filter_map(move |(row, index)| {
            let job = self.jobs.at(*row)?;
            let gang = GangId {
                job: job.uid,
                index: *index,
            };
            Some((job, gang))
        })
    }

    /// True when a gang of this job waits.
    #[must_use]
    pub(crate) fn has_job(self, job: Uid) -> bool {
        let row = self.jobs.row(job);
        row.is_some_and(|row| self.gangs.of(row).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::ids::Revision;
    use meridian_api::kinds::FederatedJob;
    use meridian_api::kinds::federated_job::FederatedJobSpec;

    use super::*;

    fn job(name: &str, uid: u128, revision: u64) -> Job {
        let mut object = FederatedJob::new(name, FederatedJobSpec::default());
        object.metadata.namespace = Some("nlp".to_owned());
        object.metadata.uid = Some(Uid(uid));
        Job::new(object, Revision(revision))
    }

    fn named(rows: &Rows, name: &str) -> Vec<Uid> {
        rows.named("nlp", name).map(|job| job.uid).collect()
    }

    #[test]
    fn a_job_is_found_by_identity_and_name_until_it_is_taken_out() {
        let mut rows = Rows::default();
        rows.insert(job("train", 7, 1));
        rows.insert(job("serve", u128::MAX, 2));
        assert_eq!(named(&rows, "train"), [Uid(7)]);
        assert_eq!(named(&rows, "rain"), []);
        assert!(rows.get(Uid(8)).is_none());
        // The name is taken again while the job that had it still goes.
        rows.insert(job("train", 8, 3));
        assert_eq!(named(&rows, "train"), [Uid(7), Uid(8)]);
        assert!(rows.remove(Uid(7)).is_some() && rows.remove(Uid(7)).is_none());
        assert_eq!(named(&rows, "train"), [Uid(8)]);
        rows.insert(job("eval", 9, 4));
        assert_eq!((rows.row(Uid(9)), rows.jobs.len()), (Some(0), 3));
        rows.fit();
        let found = [8, 9, u128::MAX].map(|uid| rows.get(Uid(uid)).map(Job::name));
        assert_eq!(found, [Some("train"), Some("eval"), Some("serve")]);
    }

    #[test]
    fn a_job_that_is_put_in_again_keeps_its_row() {
        let mut rows = Rows::default();
        let row = rows.insert(job("train", 7, 1));
        rows.replace(row, job("train", 7, 2));
        let revisions: Vec<_> = rows.iter().map(|job| job.spec_revision).collect();
        assert_eq!(revisions, [Revision(2)]);
        assert_eq!(named(&rows, "train"), [Uid(7)]);
        rows.replace(row, job("other", 7, 3));
        assert_eq!(
            (named(&rows, "train"), named(&rows, "other")),
            (vec![], vec![Uid(7)])
        );
    }

    #[test]
    fn jobs_that_share_a_hash_are_told_apart() {
        let mut rows = Rows::default();
        rows.insert(job("train", 7, 1));
        rows.insert(job("serve", 8, 2));
        // As if both had the hashes of the first.
        let (uid, name) = rows.hashes(&job("train", 7, 1));
        rows.by_uid.insert(uid, 1);
        rows.by_name.insert(name, 1);
        assert_eq!(rows.row(Uid(7)), Some(0));
        assert_eq!(named(&rows, "train"), [Uid(7)]);
    }

    #[test]
    fn which_names_share_a_hash_is_another_matter_in_each_life() {
        let (one, other) = (Rows::default(), Rows::default());
        let hashes = |rows: &Rows| {
            let names = (0..64).map(|at| at.to_string());
            names
                .map(|name| rows.hash(("nlp", name.as_str())))
                .collect::<Vec<_>>()
        };
        assert_eq!(hashes(&one), hashes(&one));
        // Alike once in 2^2048 lives.
        assert_ne!(hashes(&one), hashes(&other));
    }

    #[test]
    fn jobs_of_one_name_are_told_by_row_whatever_the_keys() {
        for _ in 0..16 {
            let mut rows = Rows::default();
            for uid in [9, 3, 7] {
                rows.insert(job("train", uid, 1));
            }
            assert_eq!(named(&rows, "train"), [Uid(9), Uid(3), Uid(7)]);
            let all: Vec<Uid> = rows.iter().map(|job| job.uid).collect();
            assert_eq!(all, [Uid(9), Uid(3), Uid(7)]);
        }
    }

    #[test]
    fn gangs_wait_until_they_or_their_job_are_taken_out() {
        let (mut jobs, mut gangs) = (Rows::default(), Gangs::default());
        for (name, uid) in [("a", 7), ("b", 3)] {
            jobs.insert(job(name, uid, 1));
        }
        for (row, index) in [(1, 0), (0, 300), (0, 2)] {
            gangs.set(row, index, true);
        }
        let gang = |job: u128, index| GangId {
            job: Uid(job),
            index,
        };
        let (jobs, gangs) = (&jobs, &mut gangs);
        let all = |gangs: &Gangs| {
            let waiting = Waiting { jobs, gangs };
            waiting.iter().map(|(_, gang)| gang).collect::<Vec<_>>()
        };
        assert_eq!(all(gangs), [gang(7, 2), gang(7, 300), gang(3, 0)]);
        gangs.set(0, 2, false);
        let waiting = Waiting { jobs, gangs };
        assert!(waiting.has_job(Uid(7)) && waiting.contains(gang(7, 300)));
        assert!(!waiting.contains(gang(7, 2)) && !waiting.has_job(Uid(8)));
        assert_eq!((waiting.len(), waiting.is_empty()), (2, false));
        gangs.forget(0);
        assert_eq!(all(gangs), [gang(3, 0)]);
    }
}
