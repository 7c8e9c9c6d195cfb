//! The agent's identity: a key of its own, and the hub's certificate for it.
//!
//! Owns joining on a token, keeping the certificate fresh, and the connections made under it. The
//! key is drawn here, lies in the state folder for its owner alone and never leaves it. Never tells
//! a token or a key to a log.
//!
//! **Clocks.** The hub's clock says when a certificate ends; the agent is told how long that is
//! and counts by its own boot clock. A wall clock that is an hour ahead or behind therefore
//! changes nothing: the hub's certificate is good for more than an hour on either side of its
//! life, and the agent's is never checked by its own clock. After a restart the wall clock has to
//! stand in for the boot clock; where it is wrong, the worst is one renewal too early, or one
//! refused session and then the renewal. A clock that is further off than that hour refuses the
//! hub's certificate and says so.

mod calls;
mod kept;

use std::convert::Infallible;
use std::sync::Arc;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::join::JoinToken;
use meridian_api::quantity::Span;
use meridian_api::units::{BootMillis, Millis};
use meridian_proto::v1;
use meridian_runtime::tls::{self, CaPin, Identity, TlsDialer, TlsError, Trust};
use meridian_runtime::{Clock, Disk, Network, Random, Tasks};
use rcgen::KeyPair;
use rustls::ClientConfig;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::calls::{Ask, CallError};
use self::kept::{Certified, Kept, Pending};
use crate::state::StateError;

/// Between two tries to reach a hub, drawn from zero to a limit that doubles from the first to the
/// second: a thousand agents whose hub comes back ask over half a minute.
const BACKOFF_FIRST: Millis = Millis(500);
const BACKOFF_MOST: Millis = Millis::seconds(30);
/// After a hub has refused a renewal: only a person can change that.
const REFUSED_PAUSE: Millis = Millis::seconds(60);
/// Least time between two renewals, however short a life a hub gives.
const RENEW_LEAST: Millis = Millis::seconds(1);

/// The agent cannot prove who it is.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is neither a certificate nor a way to get one.
    #[error("{0}")]
    Missing(&'static str),
    /// The token is for another cluster than the agent was told to speak for.
    #[error("the join token is for cluster {token:?}, this agent is to speak for {told:?}")]
    OtherCluster {
        /// Of the token, or of the certificate in the state folder.
        token: String,
        /// As configured.
        told: String,
    },
    /// The hub would not have it.
    #[error("{hub} refuses this agent: {code} {source}{}", help_of(.source))]
    Refused {
        /// Its address.
        hub: String,
        /// The error's code.
        code: ErrorCode,
        /// What it says.
        source: ApiError,
    },
    /// Whoever answers there is not the hub that the token is of.
    #[error(
        "{hub} is not believed: {reason}; compare --ca-hash and --hub with the line that \
         `meridian cluster join` printed"
    )]
    NotBelieved {
        /// Its address.
        hub: String,
        /// As TLS says it.
        reason: String,
    },
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// What is in it, or what the hub sent, cannot be used.
    #[error("the agent's identity cannot be used: {0}")]
    Unusable(String),
}

fn help_of(error: &ApiError) -> String {
    if error.help.is_empty() {
        String::new()
    } else {
        format!("; {}", error.help)
    }
}

impl From<TlsError> for IdentityError {
    fn from(error: TlsError) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// How an agent comes by its identity.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// The cluster that it is to speak for; `None` = the one that it joins as.
    pub cluster: Option<String>,
    /// Addresses of hub replicas (`host:port`).
    pub hubs: Vec<String>,
    /// The token to join on.
    pub token: Option<JoinToken>,
    /// The authority whose hubs are believed before joining.
    pub ca_hash: Option<CaPin>,
}

/// What an identity stands on.
#[derive(Clone)]
pub struct Seams {
    /// The state folder.
    pub disk: Arc<dyn Disk>,
    /// Connections, without TLS.
    pub network: Arc<dyn Network>,
    /// Time.
    pub clock: Clock,
    /// Jitter.
    pub random: Random,
}

/// An agent that can prove who it is.
pub struct Membership {
    seams: Seams,
    hubs: Vec<String>,
    certified: Certified,
    renew_at: BootMillis,
    config: watch::Sender<Arc<ClientConfig>>,
    renewals: watch::Sender<u64>,
    wanted: Arc<Notify>,
}

/// What an uplink and its agent's identity tell each other.
#[derive(Clone, Debug)]
pub struct IdentityLink {
    /// Counts the certificates since the start: another one is there, dial anew.
    pub(crate) renewals: watch::Receiver<u64>,
    /// A hub says that the present one has ended.
    pub(crate) wanted: Arc<Notify>,
}

impl Membership {
    /// The identity in the state folder, or that of a token, for which it asks until a hub answers.
    pub async fn open(options: JoinOptions, seams: Seams) -> Result<Self, IdentityError> {
        let kept = Kept::load(seams.disk.as_ref()).await?;
        let certified = certified(&options, &seams, kept).await?;
        if let Some(told) = options.cluster.filter(|told| *told != certified.cluster) {
            let token = certified.cluster;
            return Err(IdentityError::OtherCluster { token, told });
        }
        let (config, _) = watch::channel(config(&seams.clock, &certified)?);
        let (renewals, _) = watch::channel(0);
        let renew_at = due(&seams, &certified);
        Ok(Self {
            seams,
            hubs: options.hubs,
            certified,
            renew_at,
            config,
            renewals,
            wanted: Arc::default(),
        })
    }

    /// The only cluster that it may speak for.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.certified.cluster
    }

    /// Connections to hubs, under the newest certificate.
    #[must_use]
    pub fn network(&self) -> Arc<dyn Network> {
        let Seams { network, clock, .. } = self.seams.clone();
        Arc::new(TlsDialer::new(network, clock, self.config.subscribe()))
    }

    /// For the uplink of this agent.
    #[must_use]
    pub fn link(&self) -> IdentityLink {
        IdentityLink {
            renewals: self.renewals.subscribe(),
            wanted: Arc::clone(&self.wanted),
        }
    }

    /// Keeps the certificate fresh in a task of `tasks`.
    pub fn keep(self, tasks: &Tasks) {
        let stop = tasks.cancelled();
        tasks.spawn("agent-identity", self.run(stop));
    }

    async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        let mut failures = 0;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.seams.clock.sleep_until(self.renew_at) => {}
                () = self.wanted.notified() => {}
            }
            let renewed = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                renewed = self.renew() => renewed,
            };
            let pause = match renewed {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                Err(error @ (IdentityError::Refused { .. } | IdentityError::Unusable(_))) => {
                    tracing::error!(%error, "the certificate cannot be renewed");
                    REFUSED_PAUSE
                }
                Err(error) => {
                    tracing::warn!(%error, "the certificate is not renewed yet");
                    backoff(&self.seams.random, failures)
                }
            };
            failures = failures.saturating_add(1);
            // Not before, though every refused session asks for it.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.seams.clock.sleep(pause) => {}
            }
            self.renew_at = self.seams.clock.boot();
        }
    }

    /// Another key, another certificate; on disk before it is used.
    async fn renew(&mut self) -> Result<(), IdentityError> {
        let key = KeyPair::generate()?;
        let ask = Ask::renew(&calls::request(&key)?);
        let answer = calls::ask(&self.network(), &self.seams.clock, &self.hubs, &ask).await;
        let answer = answer.map_err(|error| match error {
            CallError::Refused { hub, source } => refused(hub, source),
            CallError::NotBelieved { hub, reason } => IdentityError::NotBelieved { hub, reason },
            CallError::Unanswered(why) => IdentityError::Missing(why),
        })?;
        let token = self.certified.token_sha256.clone();
        let certified = take(&self.seams.clock, &key, answer, token)?;
        if certified.cluster != self.certified.cluster {
            let message = format!("a hub renews it for cluster {:?}", certified.cluster);
            return Err(IdentityError::Unusable(message));
        }
        let config = config(&self.seams.clock, &certified)?;
        Kept::of(certified.clone())
            .save(self.seams.disk.as_ref())
            .await?;
        self.renew_at = due(&self.seams, &certified);
        let valid = Span(certified.valid);
        tracing::info!(cluster = certified.cluster, %valid, "certificate renewed");
        self.certified = certified;
        self.config.send_replace(config);
        self.renewals.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// What is on disk, unless a token says to join anew.
async fn certified(
    options: &JoinOptions,
    seams: &Seams,
    kept: Kept,
) -> Result<Certified, IdentityError> {
    let Some(token) = &options.token else {
        return kept.certified.ok_or(IdentityError::Missing(
            "this agent has not joined: give it a token, --join-token-file FILE and --ca-hash \
             HASH as `meridian cluster join NAME` prints them",
        ));
    };
    let secret = token.secret_sha256();
    let before = kept.certified.clone();
    if let Some(before) = before.filter(|before| before.token_sha256 == secret) {
        return Ok(before);
    }
    match join(options, token, seams, kept.clone()).await {
        Ok(joined) => Ok(joined),
        // A token that stayed in a Secret beside a state folder that was joined by another one.
        Err(error @ IdentityError::Refused { .. }) => match kept.certified {
            Some(before) => {
                tracing::warn!(%error, "the token is not good, the former certificate is used");
                Ok(before)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Asks hubs until one answers. The key is on disk first, and the same for the same token: an
/// answer that was lost can be asked for again.
async fn join(
    options: &JoinOptions,
    token: &JoinToken,
    seams: &Seams,
    mut kept: Kept,
) -> Result<Certified, IdentityError> {
    let pin = options.ca_hash.ok_or(IdentityError::Missing(
        "a token says nothing of the hub: give --ca-hash HASH as `meridian cluster join NAME` \
         prints it",
    ))?;
    let secret = token.secret_sha256();
    let pending = kept.pending.take().filter(|it| it.token_sha256 == secret);
    let key = match pending {
        Some(pending) => KeyPair::from_pem(&pending.key)?,
        None => KeyPair::generate()?,
    };
    kept.pending = Some(Pending {
        key: key.serialize_pem(),
        token_sha256: secret.clone(),
    });
    kept.save(seams.disk.as_ref()).await?;
    let ask = Ask::join(token, &calls::request(&key)?);
    let trusting = tls::client_config(&seams.clock, Trust::Pin(pin), None)?;
    let (_, trusting) = watch::channel(trusting);
    let (network, clock) = (Arc::clone(&seams.network), seams.clock.clone());
    let network: Arc<dyn Network> = Arc::new(TlsDialer::new(network, clock, trusting));
    let mut failures = 0;
    let answer = loop {
        match calls::ask(&network, &seams.clock, &options.hubs, &ask).await {
            Ok(answer) => break answer,
            Err(CallError::Refused { hub, source }) => return Err(refused(hub, source)),
            Err(CallError::NotBelieved { hub, reason }) => {
                return Err(IdentityError::NotBelieved { hub, reason });
            }
            Err(CallError::Unanswered(why)) => {
                tracing::warn!(hubs = options.hubs.join(","), why, "cannot join yet");
                seams.clock.sleep(backoff(&seams.random, failures)).await;
                failures = failures.saturating_add(1);
            }
        }
    };
    let certified = take(&seams.clock, &key, answer, secret)?;
    // Before it is kept: the pieces fit.
    config(&seams.clock, &certified)?;
    Kept::of(certified.clone())
        .save(seams.disk.as_ref())
        .await?;
    tracing::info!(cluster = certified.cluster, valid = %Span(certified.valid), "joined");
    Ok(certified)
}

fn refused(hub: String, source: ApiError) -> IdentityError {
    IdentityError::Refused {
        hub,
        code: source.code,
        source,
    }
}

/// A hub's answer as an identity.
fn take(
    clock: &Clock,
    key: &KeyPair,
    answer: v1::JoinResponse,
    token_sha256: String,
) -> Result<Certified, IdentityError> {
    if answer.valid_ms == 0 || answer.cluster.is_empty() {
        let message = "a hub's answer names no cluster or no life".to_owned();
        return Err(IdentityError::Unusable(message));
    }
    Ok(Certified {
        cluster: answer.cluster,
        key: key.serialize_pem(),
        chain: answer.chain,
        authorities: answer.authorities,
        received: clock.wall(),
        valid: Millis(answer.valid_ms),
        token_sha256,
    })
}

fn config(clock: &Clock, certified: &Certified) -> Result<Arc<ClientConfig>, IdentityError> {
    let identity = Identity::from_pem(&certified.chain, &certified.key)?;
    let authorities = tls::certificates(&certified.authorities)?;
    let trust = Trust::Authorities(authorities);
    Ok(tls::client_config(clock, trust, Some(&identity))?)
}

/// When to renew: after some two thirds of its life, spread over a twelfth of it so that agents
/// which joined together do not come together.
fn due(seams: &Seams, certified: &Certified) -> BootMillis {
    let life = certified.valid.0;
    let jitter = seams.random.below(life / 12);
    let after = (life / 3).saturating_mul(2).saturating_sub(jitter);
    let (now, received) = (seams.clock.wall(), certified.received);
    // Received in the future: the clock was set back, and nobody knows how old it is.
    let left = if now < received {
        0
    } else {
        after.saturating_sub(now.since(received).0)
    };
    seams.clock.boot().after(Millis(left).max(RENEW_LEAST))
}

/// Full jitter.
fn backoff(random: &Random, failures: u32) -> Millis {
    let limit = BACKOFF_FIRST.0.saturating_mul(1 << failures.min(16));
    Millis(random.below(limit.min(BACKOFF_MOST.0)))
}
