//! Every name, label and annotation that the agent writes into a member cluster.
//!
//! Owns their forms, in this one file: what is written here is read back after a restart, by the
//! user's code and by people. Names are functions of what they name, so the same step done again
//! meets what it made. Never asks the cluster.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, Uid};
use sha2::{Digest as _, Sha256};

use crate::backend::GangKey;

/// Who the agent is to server-side apply, and on the label of what it made.
pub const MANAGER: &str = "meridian-agent";
/// The scheduler name of pods that the agent binds.
pub const SCHEDULER: &str = "meridian";
/// Label of everything that the agent makes.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label: what an object is, one of [`Part`].
pub const PART: &str = "meridian.dev/part";
/// Label: the gang, `<uid>-<index>`.
pub const GANG: &str = "meridian.dev/gang";
/// Label: the epoch, in decimal.
pub const EPOCH: &str = "meridian.dev/epoch";
/// Label: name of the role.
pub const ROLE: &str = "meridian.dev/role";
/// Label: rank in the role.
pub const RANK: &str = "meridian.dev/rank";
/// Label: name of the job, shortened to fit.
pub const JOB: &str = "meridian.dev/job";
/// Label: tenant that pays.
pub const TENANT: &str = "meridian.dev/tenant";
/// Label: workload class.
pub const CLASS: &str = "meridian.dev/class";
/// Label: pool.
pub const POOL: &str = "meridian.dev/pool";
/// Label of a pod that others made and the agent binds: the gang, in the form of [`GANG`], which on
/// such a pod is its owner's to write.
pub const BOUND_FOR: &str = "meridian.dev/bound-for";
/// Annotation of a pod: what it is, as JSON (a `Slip` of `record`).
pub const SLIP: &str = "meridian.dev/member";
/// Annotation of a pod: members of its gang, which a resize changes.
pub const WORLD_SIZE: &str = "meridian.dev/world-size";
/// Annotation of a pod: by when a checkpoint is asked for, RFC 3339.
pub const CHECKPOINT_BY: &str = "meridian.dev/checkpoint-by";
/// Annotation of a pod: when its newest checkpoint was written, RFC 3339. The job's answer, also
/// read from a line `meridian.dev/checkpoint: <time>` of a termination message.
pub const CHECKPOINT: &str = "meridian.dev/checkpoint";
/// Annotation of a pod: the SHA-256 of the token by which it calls the agent, in hexadecimal.
pub const ANSWER_TOKEN: &str = "meridian.dev/answer-token-sha256";
/// Key of the record in an owner object.
pub const RECORD: &str = "gang.json";
/// File in which containers find their peers.
pub const PEERS: &str = "peers.json";
/// Volume that the agent adds to each pod, and where it is mounted.
pub const VOLUME: &str = "meridian-gang";
/// Where containers find it.
pub const MOUNT: &str = "/etc/meridian";
/// Where rank 0 is asked to listen when the template does not say; PyTorch's own default.
pub const MASTER_PORT: u16 = 29_500;

/// Longest name of a label's value, a host and a Service.
const LABEL: usize = 63;
/// Hexadecimal digits that tell apart two names that were shortened to the same.
const HASH: usize = 8;

/// What an object of the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The owner of all others of a gang, and its gate.
    Owner,
    /// A ConfigMap that a job brought along.
    Carried,
    /// The Service that gives pods names.
    Service,
    /// A pod.
    Member,
}

impl Part {
    /// The label's value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Carried => "carried",
            Self::Service => "service",
            Self::Member => "member",
        }
    }
}

/// The label's value of a gang.
#[must_use]
pub fn gang_label(gang: GangId) -> String {
    format!("{}-{}", gang.job, gang.index)
}

/// Name of the owner object of a gang. It does not name the epoch: two epochs of a gang cannot
/// both have an owner, and who creates it first has the gang.
#[must_use]
pub fn owner(gang: GangId) -> String {
    format!("meridian-gang-{}", gang_label(gang))
}

/// Key of the gate in the owner object of that UID, and in no other one of the same name.
#[must_use]
pub fn gate(owner_uid: &str) -> String {
    format!("peers-{owner_uid}.json")
}

/// The gang and epoch that an object's labels name; `None` for what is not the agent's.
#[must_use]
pub fn key(labels: &BTreeMap<String, String>) -> Option<GangKey> {
    (labels.get(MANAGED_BY)? == MANAGER)
        .then(|| read_key(labels, GANG))
        .flatten()
}

/// The gang and epoch that a pod of others is bound for; `None` for one that the agent made.
#[must_use]
pub fn bound_key(labels: &BTreeMap<String, String>) -> Option<GangKey> {
    match key(labels) {
        Some(_) => None,
        None => read_key(labels, BOUND_FOR),
    }
}

/// The gang and epoch of a member, whoever made its pod.
#[must_use]
pub fn member_key(labels: &BTreeMap<String, String>) -> Option<GangKey> {
    key(labels).or_else(|| bound_key(labels))
}

fn read_key(labels: &BTreeMap<String, String>, of: &str) -> Option<GangKey> {
    let text = labels.get(of)?;
    let (job, index) = text.rsplit_once('-')?;
    let job: Uid = job.parse().ok()?;
    let index = index.parse().ok()?;
    let epoch = Epoch(labels.get(EPOCH)?.parse().ok()?);
    let gang = GangId { job, index };
    (text == &gang_label(gang)).then_some(GangKey { gang, epoch })
}

/// Selects everything of a gang, under whichever epoch.
#[must_use]
pub fn of_gang(gang: GangId) -> String {
    format!("{MANAGED_BY}={MANAGER},{GANG}={}", gang_label(gang))
}

/// Selects everything of a gang under one epoch.
#[must_use]
pub fn of_key(key: GangKey) -> String {
    format!("{},{EPOCH}={}", of_gang(key.gang), key.epoch.0)
}

/// Selects pods of others that are bound for a gang, under whichever epoch.
#[must_use]
pub fn bound_for_gang(gang: GangId) -> String {
    format!("{BOUND_FOR}={}", gang_label(gang))
}

/// Selects pods of others that are bound for a gang under one epoch.
#[must_use]
pub fn bound_for_key(key: GangKey) -> String {
    format!("{},{EPOCH}={}", bound_for_gang(key.gang), key.epoch.0)
}

/// Name of a pod: job, gang, role, rank, epoch and attempt, so that no two pods ever share one.
#[must_use]
pub fn pod(job: &str, key: GangKey, role: &str, rank: u32, attempt: u32) -> String {
    let stem = format!("{job}-{}-{role}", key.gang.index);
    let tail = format!("-{rank}-e{:x}-{attempt}", key.epoch.0);
    fit(&stem, &format!("{}{role}", key.gang), LABEL - tail.len()) + &tail
}

/// Name of the headless Service of a gang.
#[must_use]
pub fn service(job: &str, key: GangKey) -> String {
    let tail = format!("-{}-e{:x}", key.gang.index, key.epoch.0);
    let stem = fit(
        &format!("gang-{job}"),
        &key.gang.to_string(),
        LABEL - tail.len(),
    );
    stem + &tail
}

/// Host name of a pod.
#[must_use]
pub fn host(role: &str, rank: u32) -> String {
    let tail = format!("-{rank}");
    fit(role, role, LABEL - tail.len()) + &tail
}

/// Name of the priority class of a workload class. A priority class cannot change its value, so
/// the value is in its name.
#[must_use]
pub fn priority_class(class: &str, priority: i32) -> String {
    let sign = if priority < 0 { "minus-" } else { "" };
    let tail = format!("-{sign}{}", priority.unsigned_abs());
    fit(&format!("meridian-{class}"), class, LABEL - tail.len()) + &tail
}

/// A label's value that stands for `text`.
#[must_use]
pub fn label_value(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let good = text.len() <= LABEL
        && text.chars().all(fits)
        && edge(text.chars().next())
        && edge(text.chars().last());
    if good {
        text.to_owned()
    } else {
        fit(text, text, LABEL)
    }
}

/// `text` as a DNS label of at most `most` characters. Whatever is changed gets a hash of
/// `identity`, so that two different things do not meet in one name.
fn fit(text: &str, identity: &str, most: usize) -> String {
    let lower = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '-') => c,
        _ => '-',
    };
    let clean: String = text.chars().map(lower).collect();
    let clean = clean.trim_matches('-');
    if clean == text && text.len() <= most && !text.is_empty() {
        return clean.to_owned();
    }
    let digest = Sha256::digest(format!("{identity}\0{text}"));
    let hash = digest.iter().take(HASH / 2);
    let hash = hash.fold(String::new(), |hash, byte| hash + &format!("{byte:02x}"));
    let room = most.saturating_sub(HASH + 1);
    let stem: String = clean.chars().take(room).collect();
    format!("{}-{hash}", stem.trim_end_matches('-'))
        .trim_start_matches('-')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_key(epoch: u64) -> GangKey {
        let gang = GangId {
            job: Uid(u128::MAX),
            index: u32::MAX,
        };
        GangKey {
            gang,
            epoch: Epoch(epoch),
        }
    }

    fn is_dns_label(name: &str) -> bool {
        let fits = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
        !name.is_empty()
            && name.len() <= LABEL
            && name.chars().all(fits)
            && !name.starts_with('-')
            && !name.ends_with('-')
    }

    #[test]
    fn every_name_fits_and_two_things_never_share_one() {
        let long = "a.very-long_Job-name.that-somebody-thought-was-a-good-idea-and-longer-still";
        let mut names = Vec::new();
        for job in ["train", "Träin", long, &format!("{long}2"), "-", "9"] {
            for epoch in [1, 2, u64::MAX] {
                let key = some_key(epoch);
                names.push(service(job, key));
                for role in ["worker", "ps", long] {
                    for rank in [0, u32::MAX] {
                        for attempt in [0, 7] {
                            names.push(pod(job, key, role, rank, attempt));
                        }
                    }
                }
            }
        }
        for (class, value) in [("batch", 3), ("batch", -3), ("batch-3", 0), (long, 5)] {
            names.push(priority_class(class, value));
        }
        names.extend([host("worker", 3), host(long, 3), host(long, 4)]);
        names.push(owner(some_key(1).gang));
        for name in &names {
            assert!(is_dns_label(name), "{name:?}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_short_name_is_kept_as_it_is() {
        let key = GangKey {
            gang: GangId::default(),
            epoch: Epoch(42),
        };
        assert_eq!(pod("train", key, "worker", 3, 0), "train-0-worker-3-e2a-0");
        assert_eq!(service("train", key), "gang-train-0-e2a");
        assert_eq!(priority_class("batch-long", 300), "meridian-batch-long-300");
        assert_eq!(label_value("team.a_b"), "team.a_b");
    }

    #[test]
    fn labels_are_read_back_and_nothing_else_is_ours() {
        let key = some_key(7);
        let labels = |manager: &str, gang: &str, epoch: &str| {
            let pairs = [(MANAGED_BY, manager), (GANG, gang), (EPOCH, epoch)];
            pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        };
        let gang = gang_label(key.gang);
        assert_eq!(super::key(&labels(MANAGER, &gang, "7")), Some(key));
        assert_eq!(super::key(&labels("helm", &gang, "7")), None);
        assert_eq!(super::key(&labels(MANAGER, "train-0", "7")), None);
        assert_eq!(super::key(&labels(MANAGER, &gang, "x")), None);
        let theirs = [(GANG, "train"), (BOUND_FOR, gang.as_str()), (EPOCH, "7")];
        let theirs = theirs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!((super::key(&theirs), bound_key(&theirs)), (None, Some(key)));
        assert_eq!(bound_key(&labels(MANAGER, &gang, "7")), None);
        let padded = format!("{}-007", key.gang.job);
        assert_eq!(super::key(&labels(MANAGER, &padded, "7")), None);
    }
}
