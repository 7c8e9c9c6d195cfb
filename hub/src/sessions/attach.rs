//! Attaching: which agent speaks for a cluster, and in which life.
//!
//! Owns the record that binds an agent to its cluster (`agents/<cluster>`): the hash of its
//! credential and its incarnation, raised in a fenced transaction at each attach. The first agent
//! of a declared cluster binds it; another credential under that name is refused. Whether the agent
//! may call itself so at all, its certificate says; the right to it is compared in the same
//! transaction. Never trusts a name alone.

use meridian_api::canonical::hex;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::{Incarnation, Revision};
use meridian_api::units::UnixMillis;
use meridian_proto::v1;
use meridian_runtime::network::Peer;
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, Operation, SharedStore};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::answers::store_error;
use crate::fence::{Commit, Fence, put};
use crate::identity::{Identities, Right};

/// Session protocols that this hub speaks.
pub(crate) const PROTOCOLS: std::ops::RangeInclusive<u32> = 1..=2;
/// From this one on an agent tells of gangs that others made, and sends logs.
pub(crate) const OFFERS_AND_LOGS: u32 = 2;
/// Bytes of a credential.
const CREDENTIAL_BYTES: usize = 32;
/// Attaches of one cluster that may collide before the agent is asked to come again: only copies
/// of one agent collide at all.
const ATTEMPTS: usize = 3;

/// The agent bound to a cluster, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    /// SHA-256 of its credential, in hexadecimal.
    credential_sha256: String,
    /// Its newest life.
    incarnation: Incarnation,
    /// When that agent joined; another join is of another agent. Absent where agents do not join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    joined: Option<UnixMillis>,
}

/// Picks the protocol to speak.
pub(crate) fn protocol(hello: &v1::Hello) -> Result<u32, ApiError> {
    let newest = hello.protocol_max.min(*PROTOCOLS.end());
    if newest >= hello.protocol_min && PROTOCOLS.contains(&newest) {
        return Ok(newest);
    }
    let message = format!(
        "agent {} of cluster {:?} speaks session protocols {} to {}, this hub {} to {}",
        hello.version,
        hello.cluster,
        hello.protocol_min,
        hello.protocol_max,
        PROTOCOLS.start(),
        PROTOCOLS.end()
    );
    Err(ApiError::new(ErrorCode::AgentVersionMismatch, message)
        .help("run an agent of this hub's version or one minor version older"))
}

/// What an agent that attaches has shown of itself.
pub(crate) struct Presented<'a> {
    /// What it says.
    pub(crate) hello: &'a v1::Hello,
    /// The connection that it says it on.
    pub(crate) peer: Option<&'a Peer>,
}

/// An agent that is attached.
pub(crate) struct Attached {
    /// Its life.
    pub(crate) incarnation: Incarnation,
    /// What its session goes on under; `None` where agents are not identified.
    pub(crate) right: Option<Right>,
}

/// Binds the agent to its cluster and gives it its incarnation.
pub(crate) async fn attach(
    store: &SharedStore,
    identities: Option<&Identities>,
    fence: Fence,
    presented: Presented<'_>,
) -> Result<Attached, ApiError> {
    let hello = presented.hello;
    let cluster = hello.cluster.as_str();
    let credential = credential(hello)?;
    for _ in 0..ATTEMPTS {
        let admitted = match identities {
            Some(identities) => Some(identities.admit(presented.peer, cluster).await?),
            None => None,
        };
        let spec = declared(store, cluster).await?;
        let key = keys::agent(cluster);
        let known = store
            .get(Operation::AttachAgent, key.clone())
            .await
            .map_err(store_error)?;
        let revision = known
            .as_ref()
            .map_or(Revision(0), |known| known.mod_revision);
        let bound = known.and_then(|known| serde_json::from_slice::<Binding>(&known.value).ok());
        let joined = admitted.as_ref().map(|admitted| admitted.joined);
        let next = bind(&bound.unwrap_or_default(), joined, &credential, hello)?;
        let value = serde_json::to_vec(&next).expect("a text and a number");
        let mut compares = vec![Compare::ModRevision(key.clone(), revision), spec];
        let mut ops = vec![put(key, value)];
        if let Some(admitted) = &admitted {
            compares.push(admitted.compare.clone());
            ops.extend(admitted.op.clone());
        }
        let write = fence.write(store.as_ref(), Operation::AttachAgent, compares, ops);
        match write.await.map_err(store_error)? {
            Commit::Done(revision, _) => {
                return Ok(Attached {
                    incarnation: next.incarnation,
                    right: admitted.map(|admitted| admitted.attached(revision)),
                });
            }
            Commit::Conflict(_) => {}
            Commit::Deposed => {
                return Err(ApiError::new(
                    ErrorCode::NotLeader,
                    "this hub no longer leads",
                ));
            }
        }
    }
    Err(ApiError::new(
        ErrorCode::Conflict,
        format!("cluster {cluster:?} is being attached twice"),
    )
    .help("run one agent per cluster"))
}

/// SHA-256 of the credential, in hexadecimal.
fn credential(hello: &v1::Hello) -> Result<String, ApiError> {
    if hello.credential.len() == CREDENTIAL_BYTES {
        return Ok(hex(&Sha256::digest(&hello.credential).into()));
    }
    let message = format!(
        "credential of {} bytes, expected {CREDENTIAL_BYTES}",
        hello.credential.len()
    );
    Err(ApiError::new(ErrorCode::MalformedDocument, message))
}

/// The binding after this attach: of the same credential, or of a newly joined agent; one life
/// further.
fn bind(
    bound: &Binding,
    joined: Option<UnixMillis>,
    credential: &str,
    hello: &v1::Hello,
) -> Result<Binding, ApiError> {
    let cluster = &hello.cluster;
    let is_free = bound.credential_sha256.is_empty() || bound.joined != joined;
    if !is_free && bound.credential_sha256 != credential {
        let message = format!("cluster {cluster:?} is bound to another agent");
        let anew = match joined {
            Some(_) => format!("meridian cluster revoke {cluster}, then meridian cluster join"),
            None => format!("delete MemberCluster {cluster} when drained and add it again"),
        };
        return Err(ApiError::new(ErrorCode::ClusterClaimed, message).help(format!(
            "start the agent with the state folder of the one that attached first, or, if that is \
             lost for good: {anew}"
        )));
    }
    // An agent that remembers a higher life than the store was restored around: go on above.
    let before = bound.incarnation.0.max(hello.last_incarnation);
    let next = before.checked_add(1).ok_or_else(|| {
        let message = format!("incarnation {before} is the last there is");
        ApiError::new(ErrorCode::MalformedDocument, message)
            .help("the agent's state folder is damaged: start it with an empty one")
    })?;
    Ok(Binding {
        credential_sha256: credential.to_owned(),
        incarnation: Incarnation(next),
        joined,
    })
}

/// The compare that the cluster is still declared as it is.
pub(crate) async fn declared(store: &SharedStore, cluster: &str) -> Result<Compare, ApiError> {
    let key = ObjectKey {
        plural: "memberclusters".to_owned(),
        namespace: None,
        name: cluster.to_owned(),
    };
    let known = store
        .get(Operation::AttachAgent, key.part(Part::Spec))
        .await;
    if let Some(known) = known.map_err(store_error)? {
        return Ok(Compare::ModRevision(known.key, known.mod_revision));
    }
    Err(ApiError::new(
        ErrorCode::NotFound,
        format!("there is no MemberCluster {cluster:?}"),
    )
    .help(format!(
        "add it first: meridian cluster add {cluster} --region REGION"
    )))
}
