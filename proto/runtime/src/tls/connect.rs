//! Handshakes on either end.
//!
//! Owns the dialler and the listener that put TLS over another network's connections. A slow or
//! broken handshake delays no other and is told with its reason. Never reads what is said inside.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::AsyncBufReadExt as _;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{HUB_NAME, failure};
use crate::Clock;
use crate::clock::Millis;
use crate::network::{Accept, Connection, Keepalive, Listener, Network};

/// From the first byte to the last of a handshake: two round trips and two signatures.
const HANDSHAKE_WITHIN: Millis = Millis::seconds(5);
/// Handshakes at once; some 100 KiB each at most. A thousand agents that come back together are
/// through in some four batches of a few dozen milliseconds.
const MAX_HANDSHAKES: usize = 256;

/// Dials over another network, then speaks TLS to a hub.
#[derive(Clone)]
pub struct TlsDialer {
    network: Arc<dyn Network>,
    clock: Clock,
    config: watch::Receiver<Arc<ClientConfig>>,
}

impl TlsDialer {
    /// Each connection is made with what `config` holds when it is dialled.
    #[must_use]
    pub fn new(
        network: Arc<dyn Network>,
        clock: Clock,
        config: watch::Receiver<Arc<ClientConfig>>,
    ) -> Self {
        Self {
            network,
            clock,
            config,
        }
    }
}

#[async_trait]
impl Network for TlsDialer {
    fn keepalive(&self) -> Option<Keepalive> {
        self.network.keepalive()
    }

    async fn connect(&self, address: &str) -> io::Result<Connection> {
        let config = Arc::clone(&self.config.borrow());
        let plain = self.network.connect(address).await?;
        let name = ServerName::try_from(HUB_NAME).expect("the name is one of DNS");
        let handshake = async {
            let mut secure = TlsConnector::from(config).connect(name, plain).await?;
            // In TLS 1.3 a client is through before the server has looked at its certificate. An
            // HTTP/2 server speaks first, so its first byte says that it was let in; else this
            // reads why not, which the layers above would lose.
            secure.fill_buf().await?;
            io::Result::Ok(secure)
        };
        let secure = self.clock.timeout(HANDSHAKE_WITHIN, handshake).await;
        let late = |late| io::Error::new(io::ErrorKind::TimedOut, format!("TLS handshake {late}"));
        Ok(Connection::new(secure.map_err(late)??, address))
    }

    /// A dialler has no certificate to listen with.
    async fn listen(&self, address: &str) -> io::Result<Listener> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{address}: this network dials only"),
        ))
    }
}

/// The connections of `listener`, with TLS on each.
#[must_use]
pub fn over_tls(listener: Listener, clock: Clock, config: Arc<ServerConfig>) -> Listener {
    let address = listener.address().to_owned();
    let accept = TlsAccept {
        listener,
        clock,
        acceptor: TlsAcceptor::from(config),
        handshakes: FuturesUnordered::new(),
    };
    Listener::new(accept, address)
}

struct TlsAccept {
    listener: Listener,
    clock: Clock,
    acceptor: TlsAcceptor,
    handshakes: FuturesUnordered<BoxFuture<'static, Option<Connection>>>,
}

#[async_trait]
impl Accept for TlsAccept {
    async fn accept(&mut self) -> io::Result<Connection> {
        loop {
            let has_room = self.handshakes.len() < MAX_HANDSHAKES;
            tokio::select! {
                Some(done) = self.handshakes.next() => {
                    if let Some(connection) = done {
                        return Ok(connection);
                    }
                }
                plain = self.listener.accept(), if has_room => {
                    let handshake = handshake(plain?, self.clock.clone(), self.acceptor.clone());
                    self.handshakes.push(Box::pin(handshake));
                }
            }
        }
    }
}

/// `None` when there is nothing to serve; the log says why.
async fn handshake(plain: Connection, clock: Clock, acceptor: TlsAcceptor) -> Option<Connection> {
    let peer = plain.peer().address.clone();
    match clock
        .timeout(HANDSHAKE_WITHIN, acceptor.accept(plain))
        .await
    {
        Ok(Ok(secure)) => {
            let certificates = secure.get_ref().1.peer_certificates();
            let own = certificates.and_then(<[_]>::first);
            let certificate = own.map(|certificate| Arc::from(certificate.as_ref()));
            Some(Connection::new(secure, peer).proved(certificate))
        }
        Ok(Err(error)) => {
            let reason = failure(&error).unwrap_or_else(|| error.to_string());
            tracing::warn!(%peer, %reason, "TLS handshake refused");
            None
        }
        Err(late) => {
            tracing::warn!(%peer, reason = %late, "TLS handshake refused");
            None
        }
    }
}
