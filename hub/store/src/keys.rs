//! The key layout, whole: nothing else builds a key.
//!
//! Owns the names under which everything lives. User objects are
//! `objects/<plural>/<namespace>/<name>/{spec,status}`; cluster-scoped ones have the namespace
//! `-`, which no namespace can be called. Never interprets a value.

use bytes::Bytes;
use meridian_api::ids::{GangId, Uid};

use crate::KeyRange;

/// Stands for "no namespace" in a key.
pub const NO_NAMESPACE: &str = "-";

/// Which half of an object a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Metadata and spec: what a person wrote.
    Spec,
    /// Status: what the hub decided and saw. Absent before the first decision.
    Status,
}

/// Where an object lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Lower-case plural of the kind: `federatedjobs`.
    pub plural: String,
    /// Namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Key of one half of the object.
    #[must_use]
    pub fn part(&self, part: Part) -> Bytes {
        let namespace = self.namespace.as_deref().unwrap_or(NO_NAMESPACE);
        let part = match part {
            Part::Spec => "spec",
            Part::Status => "status",
        };
        format!("objects/{}/{namespace}/{}/{part}", self.plural, self.name).into()
    }

    /// Reads a key back; `None` for a key of another shape.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<(Self, Part)> {
        let mut parts = std::str::from_utf8(key).ok()?.split('/');
        if parts.next()? != "objects" {
            return None;
        }
        let (plural, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
        let part = match parts.next()? {
            "spec" => Part::Spec,
            "status" => Part::Status,
            _ => return None,
        };
        if parts.next().is_some() {
            return None;
        }
        let namespace = (namespace != NO_NAMESPACE).then(|| namespace.to_owned());
        Some((
            Self {
                plural: plural.to_owned(),
                namespace,
                name: name.to_owned(),
            },
            part,
        ))
    }
}

/// All objects of a kind, in one namespace or in all.
#[must_use]
pub fn objects(plural: &str, namespace: Option<&str>) -> KeyRange {
    KeyRange::prefix(match namespace {
        Some(namespace) => format!("objects/{plural}/{namespace}/"),
        None => format!("objects/{plural}/"),
    })
}

/// Every user object.
#[must_use]
pub fn all_objects() -> KeyRange {
    KeyRange::prefix("objects/")
}

/// The election key of the hub's leader.
#[must_use]
pub fn leader() -> Bytes {
    Bytes::from_static(b"hub/leader")
}

/// The leader's fenced beat.
#[must_use]
pub fn beat() -> Bytes {
    Bytes::from_static(b"hub/beat")
}

/// Bumped by every write of a cluster-scoped kind, so that no two replicas can each accept half
/// of a contradiction.
#[must_use]
pub fn policy_head() -> Bytes {
    Bytes::from_static(b"hub/policy-head")
}

/// Bumped by every decision.
#[must_use]
pub fn ledger_head() -> Bytes {
    Bytes::from_static(b"hub/ledger-head")
}

/// The store's generation, raised by a restore.
#[must_use]
pub fn store_generation() -> Bytes {
    Bytes::from_static(b"hub/store-generation")
}

/// The authority that issues agents' certificates, with its key.
#[must_use]
pub fn agent_authority() -> Bytes {
    Bytes::from_static(b"hub/agent-authority")
}

/// The packed record of one gang's placement.
#[must_use]
pub fn placement(gang: GangId) -> Bytes {
    format!("placements/{}/{}", gang.job, gang.index).into()
}

/// Every placement.
#[must_use]
pub fn placements() -> KeyRange {
    KeyRange::prefix("placements/")
}

/// Room and quota that are kept for one gang while others leave.
#[must_use]
pub fn hold(gang: GangId) -> Bytes {
    format!("holds/{}/{}", gang.job, gang.index).into()
}

/// How far a job is.
#[must_use]
pub fn progress(job: Uid) -> Bytes {
    format!("progress/{job}").into()
}

/// What a tenant has held, lately most.
#[must_use]
pub fn history(tenant: &str) -> Bytes {
    format!("history/{tenant}").into()
}

/// Everything: what a model is loaded from and kept warm by.
#[must_use]
pub fn everything() -> KeyRange {
    KeyRange {
        start: Bytes::from_static(b"a"),
        end: Bytes::from_static(b"{"),
    }
}

/// The agent bound to a cluster: hash of its credential and its incarnation.
#[must_use]
pub fn agent(cluster: &str) -> Bytes {
    format!("agents/{cluster}").into()
}

/// Every bound agent.
#[must_use]
pub fn agents() -> KeyRange {
    KeyRange::prefix("agents/")
}

/// Who may speak for a cluster: its open invitation, the keys of its agent.
#[must_use]
pub fn identity(cluster: &str) -> Bytes {
    format!("identities/{cluster}").into()
}

/// Who may speak for any cluster.
#[must_use]
pub fn identities() -> KeyRange {
    KeyRange::prefix("identities/")
}

/// The cluster that a key of [`identities`] is about; `None` for a key of another shape.
#[must_use]
pub fn identity_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix("identities/")
}

/// A cluster's pools as shapes, as last written.
#[must_use]
pub fn capacity(cluster: &str) -> Bytes {
    format!("capacity/{cluster}").into()
}

/// Every cluster's capacity.
#[must_use]
pub fn capacities() -> KeyRange {
    KeyRange::prefix("capacity/")
}

/// A submission's idempotency key, by the SHA-256 of the user's key in hexadecimal.
#[must_use]
pub fn idempotency(namespace: &str, hash: &str) -> Bytes {
    format!("idempotency/{namespace}/{hash}").into()
}

/// Every idempotency record.
#[must_use]
pub fn idempotencies() -> KeyRange {
    KeyRange::prefix("idempotency/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_key_reads_back() {
        for namespace in [None, Some("nlp".to_owned())] {
            let key = ObjectKey {
                plural: "federatedjobs".into(),
                namespace,
                name: "a.b".into(),
            };
            for part in [Part::Spec, Part::Status] {
                assert_eq!(ObjectKey::parse(&key.part(part)), Some((key.clone(), part)));
            }
        }
    }

    #[test]
    fn other_keys_are_no_objects() {
        for key in [
            "hub/leader",
            "objects/a/b/c",
            "objects/a/b/c/other",
            "objects/a/b/c/spec/d",
        ] {
            assert_eq!(ObjectKey::parse(key.as_bytes()), None, "{key}");
        }
    }
}
