//! Identities of agents: who may speak for which cluster, and how an agent comes by the right.
//!
//! Owns the authority, invitations, joining, renewing and revoking, and the TLS of the agents'
//! listener. A right is three things at once: a certificate of this hub's authority that names the
//! cluster, a key that the cluster's record lists, and time left. Never decides what runs where.
//!
//! Why each is needed: the certificate is checked in the handshake without the store; the record
//! makes a revocation count at once and a copied key show; the end of a certificate bounds what a
//! stolen backup of an agent is worth once its next key has been used.

mod authority;
#[cfg(test)]
mod forged_tests;
mod listener;
mod names;
mod record;
mod registry;
mod request;
mod service;
#[cfg(test)]
mod service_tests;

use std::sync::Arc;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::Revision;
use meridian_api::join::JoinToken;
use meridian_api::quantity::Span;
use meridian_api::units::{BootMillis, Millis, UnixMillis};
use meridian_runtime::network::Peer;
use meridian_runtime::{Clock, Random};
use meridian_store::{Compare, Op, SharedStore};
use tokio::sync::watch;

pub use authority::AuthorityError;
pub(crate) use listener::secure;
pub(crate) use service::{Admission, Joins};

use self::authority::Authority;
use self::names::{Caller, KeyHash};
use self::registry::{Known, Registry};
use self::request::RequestedKey;
use crate::config::HubConfig;

/// How long a token is good when nobody says: a person pastes a line.
const DEFAULT_TTL: Millis = Millis::seconds(15 * 60);
/// Most that may be asked for: a token is a password.
const MAX_TTL: Millis = Millis::seconds(3600);

/// Everything about identities in one hub. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Identities {
    authority: Arc<Authority>,
    registry: Registry,
    clock: Clock,
    random: Random,
}

/// A certificate that was issued.
pub(crate) struct Issued {
    /// The only cluster that it names.
    pub(crate) cluster: String,
    /// PEM: the certificate, then its authority's.
    pub(crate) chain: String,
    /// How long it is good.
    pub(crate) valid: Millis,
}

impl Identities {
    /// Opens the authority, making it at the first start.
    pub(crate) async fn open(
        config: &HubConfig,
        store: &SharedStore,
        clock: &Clock,
        random: &Random,
    ) -> Result<Self, AuthorityError> {
        let authority = Authority::open(
            config.agent_ca.as_ref(),
            config.agent_certificates.clone(),
            store,
            clock.clone(),
            random.clone(),
        );
        let authority = Arc::new(authority.await?);
        tracing::info!(ca_hash = %authority.pin(), "agents prove who they are");
        Ok(Self {
            authority,
            registry: Registry::new(SharedStore::clone(store), clock.clone()),
            clock: clock.clone(),
            random: random.clone(),
        })
    }

    /// Its records; to be watched by one task.
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// How agents know its authority.
    pub(crate) fn ca_hash(&self) -> String {
        self.authority.pin().to_string()
    }

    /// Authorities that agents are to believe (PEM).
    pub(crate) fn authorities(&self) -> &str {
        self.authority.pem()
    }

    /// Makes the token that lets one agent join as `cluster`.
    pub(crate) async fn invite(
        &self,
        cluster: &str,
        ttl: Option<Millis>,
        dry_run: bool,
    ) -> Result<(JoinToken, Millis), ApiError> {
        let ttl = ttl.unwrap_or(DEFAULT_TTL);
        if ttl == Millis::ZERO || ttl > MAX_TTL {
            let (ttl, most) = (Span(ttl), Span(MAX_TTL));
            let message = format!("a join token cannot be good for {ttl}, at most for {most}");
            return Err(ApiError::new(ErrorCode::InvalidObject, message)
                .help("leave --ttl out, or shorten it"));
        }
        let mut secret = [0; 32];
        self.random.fill(&mut secret);
        let token = JoinToken::new(cluster, secret);
        let expires = self.clock.wall().after(ttl);
        let invited = self.registry.change(cluster, dry_run, |record| {
            record.invite(cluster, token.secret_sha256(), expires)
        });
        invited.await?;
        if !dry_run {
            tracing::info!(cluster, ttl = %Span(ttl), "an agent may join");
        }
        Ok((token, ttl))
    }

    /// Ends every right of the cluster's agent; true when it had one.
    pub(crate) async fn revoke(&self, cluster: &str, dry_run: bool) -> Result<bool, ApiError> {
        let now = self.clock.wall();
        let revoked = self.registry.change(cluster, dry_run, |record| {
            record.revoke(now);
            Ok(())
        });
        let changed = revoked.await?;
        if changed && !dry_run {
            tracing::warn!(cluster, "its agent is revoked");
        }
        Ok(changed)
    }

    /// Lets an agent in on a token.
    pub(crate) async fn join(&self, token: &str, csr: &[u8]) -> Result<Issued, ApiError> {
        let token = token.parse::<JoinToken>().map_err(|error| {
            ApiError::new(
                ErrorCode::JoinTokenUnknown,
                format!("what was sent {error}"),
            )
            .help("meridian cluster join NAME makes one")
        })?;
        let key = RequestedKey::read(csr)?;
        let (cluster, secret, now) = (token.cluster(), token.secret_sha256(), self.clock.wall());
        let joined = self.registry.change(cluster, false, |record| {
            record.join(cluster, &secret, key.hash(), now)
        });
        joined.await.map_err(|error| match error.code {
            // Whether a cluster is declared is nothing to tell a stranger.
            ErrorCode::NotFound => record::unknown_token(cluster),
            _ => error,
        })?;
        tracing::info!(cluster, key = key.hash().short(), "an agent joined");
        self.issue(cluster, &key)
    }

    /// Gives the agent that calls a certificate for its next key.
    pub(crate) async fn renew(&self, peer: Option<&Peer>, csr: &[u8]) -> Result<Issued, ApiError> {
        let caller = self.caller(peer)?;
        caller.in_time(self.clock.wall(), self.authority.terms().renewable_for)?;
        let key = RequestedKey::read(csr)?;
        let cluster = caller.cluster.as_str();
        let renewed = self.registry.change(cluster, false, |record| {
            record.renew(cluster, &caller.key, key.hash())
        });
        renewed.await?;
        tracing::info!(
            cluster,
            key = key.hash().short(),
            "a certificate was renewed"
        );
        self.issue(cluster, &key)
    }

    /// Who calls, if a certificate of ours says so.
    pub(crate) fn caller(&self, peer: Option<&Peer>) -> Result<Caller, ApiError> {
        Caller::of(peer, &self.authority.terms().trust_domain)
    }

    /// Whether whoever calls may open a session as `cluster`.
    pub(crate) async fn admit(
        &self,
        peer: Option<&Peer>,
        cluster: &str,
    ) -> Result<Admitted, ApiError> {
        let caller = self.caller(peer)?;
        if caller.cluster != cluster {
            let named = &caller.cluster;
            let message = format!(
                "an agent with the certificate of cluster {named:?} says it is {cluster:?}"
            );
            return Err(
                ApiError::new(ErrorCode::ClusterClaimed, message).help(format!(
                    "start it as {named}, or let an agent join: meridian cluster join {cluster}"
                )),
            );
        }
        caller.in_time(self.clock.wall(), Millis::ZERO)?;
        let known = self.registry.read(cluster).await?;
        let mut record = known.record.clone();
        let joined = record.admit(cluster, &caller.key)?;
        let (compare, op) = registry::write(cluster, &known, &record);
        Ok(Admitted {
            compare,
            // The first use of a new key is written with the attach.
            op: (record != known.record).then_some(op),
            joined,
            key: caller.key,
            ends: self
                .clock
                .boot()
                .after(caller.until.since(self.clock.wall())),
            records: self.registry.follow(cluster),
        })
    }

    /// The cluster that whoever calls may speak for, outside its session.
    pub(crate) async fn speaker(&self, peer: Option<&Peer>) -> Result<String, ApiError> {
        let caller = self.caller(peer)?;
        caller.in_time(self.clock.wall(), Millis::ZERO)?;
        let mut known = self.registry.read(&caller.cluster).await?;
        known.record.admit(&caller.cluster, &caller.key)?;
        Ok(caller.cluster)
    }

    fn issue(&self, cluster: &str, key: &RequestedKey) -> Result<Issued, ApiError> {
        let certificate = self.authority.issue_agent(cluster, key).map_err(|error| {
            tracing::error!(cluster, %error, "a certificate cannot be issued");
            ApiError::new(ErrorCode::Internal, "the certificate cannot be issued")
        })?;
        Ok(Issued {
            cluster: cluster.to_owned(),
            chain: certificate + self.authority.pem(),
            valid: self.authority.terms().validity,
        })
    }
}

/// The right to one session: what the attach must compare, and what ends the session.
pub(crate) struct Admitted {
    /// Holds as long as the record is as it was read.
    pub(crate) compare: Compare,
    /// What changes in the record with the attach.
    pub(crate) op: Option<Op>,
    /// When the agent joined.
    pub(crate) joined: UnixMillis,
    key: KeyHash,
    ends: BootMillis,
    records: watch::Receiver<Known>,
}

/// Why a session's right ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lapse {
    /// A person took it away, or another agent has joined.
    Revoked,
    /// Its certificate has ended.
    Expired,
}

/// The right under which a session goes on.
pub(crate) struct Right {
    key: KeyHash,
    attached: Revision,
    ends: BootMillis,
    records: watch::Receiver<Known>,
}

impl Admitted {
    /// The right, once the attach is stored at `revision`.
    pub(crate) fn attached(self, revision: Revision) -> Right {
        Right {
            key: self.key,
            attached: revision,
            ends: self.ends,
            records: self.records,
        }
    }
}

impl Right {
    /// Returns when it has ended. May be dropped and called again.
    pub(crate) async fn lapsed(&self, clock: &Clock) -> Lapse {
        let mut records = self.records.clone();
        let revoked = async {
            // What the watch saw before the attach has been compared by the attach.
            let ended =
                |known: &Known| known.revision > self.attached && !known.record.allows(&self.key);
            let gone = records.wait_for(ended).await.is_err();
            if gone {
                // The cluster is no more; its session is ended for that.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = revoked => Lapse::Revoked,
            () = clock.sleep_until(self.ends) => Lapse::Expired,
        }
    }
}
