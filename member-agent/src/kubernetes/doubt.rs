//! Doubt about a listing: what it lacks is asked for by name before anybody believes it gone.
//!
//! Owns which absences matter and how many of them are looked into. An API server, or what stands
//! in front of it, may answer a listing with less than there is: from a cache that is cut off, by a
//! filter, from a store that lost its memory. To believe it would be to give up gangs that run.
//! Never believes a listing more than the object itself.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::Api;
use meridian_api::ids::GangId;

use super::KubernetesBackend;
use super::client::{Trouble, found};
use super::names;
use super::record::Record;

/// Absences of one listing that are looked into, spread over all: a listing that lacks what is
/// there lacks much of it, and one that lacks what is gone is rare.
const MAX_DOUBTS: usize = 64;

/// Something that a listing lacks and that was there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Missing {
    /// The owner object of a gang.
    Owner {
        /// Its namespace.
        namespace: String,
        /// Its gang.
        gang: GangId,
    },
    /// A member's pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A node with pods of ours.
    Node(String),
}

impl KubernetesBackend {
    /// Errs when something is there that a listing lacks.
    pub(super) async fn doubt(&self, missing: BTreeSet<Missing>) -> Result<(), Trouble> {
        let stride = missing.len().div_ceil(MAX_DOUBTS).max(1);
        let some: Vec<Missing> = missing.into_iter().step_by(stride).collect();
        let look = |missing: Missing| {
            let look = async move { Ok(self.is_there(&missing).await?.then_some(missing)) };
            look.boxed()
        };
        let there = self.cluster.each(some, look).await?;
        match there.into_iter().flatten().next() {
            None => Ok(()),
            Some(missing) => Err(Trouble::Away(format!(
                "a listing lacks {missing:?}, which is there: it is not believed"
            ))),
        }
    }

    async fn is_there(&self, missing: &Missing) -> Result<bool, Trouble> {
        let cluster = &self.cluster;
        let there = match missing {
            Missing::Owner { namespace, gang } => {
                let api: Api<ConfigMap> = cluster.within(namespace);
                let name = names::owner(*gang);
                found(cluster.call(api.get_metadata(&name)).await)?.is_some()
            }
            Missing::Pod { namespace, name } => {
                let api: Api<Pod> = cluster.within(namespace);
                found(cluster.call(api.get_metadata(name)).await)?.is_some()
            }
            Missing::Node(name) => {
                let api: Api<Node> = cluster.global();
                found(cluster.call(api.get_metadata(name)).await)?.is_some()
            }
        };
        Ok(there)
    }
}

/// The pods that a gang had by its record, but those of which `is_known` holds.
pub(super) fn pods(
    record: &Record,
    namespace: &str,
    is_known: impl Fn(usize, u32) -> bool,
) -> BTreeSet<Missing> {
    let members = record.members().into_iter();
    let missing = members.filter(|member| !is_known(member.role, member.rank));
    let pod = |role: usize, rank: u32, attempt: u32| {
        let role = &record.roles[role].name;
        names::pod(&record.terms.job, record.key, role, rank, attempt)
    };
    // A resize leaves the others the names of the attempt that made them.
    let missing = missing.flat_map(|member| {
        (0..=record.attempt).map(move |attempt| Missing::Pod {
            namespace: namespace.to_owned(),
            name: pod(member.role, member.rank, attempt),
        })
    });
    missing.collect()
}
