//! The client itself: where the hub is, and what it is reached with.
//!
//! Owns options and their checks. What is asked is in `objects`, `watch` and `federation`.

use std::sync::Arc;

use meridian_runtime::clock::Millis;
use meridian_runtime::network::{self, Network, Tcp};
use meridian_runtime::{Clock, Random};

use crate::errors::ClientError;
use crate::transport::Transport;

/// Where a hub listens for users when nothing else is said.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7080";

/// How long one answer may take: three times the 10 s in which a dead leader is replaced, so that
/// a request that meets a change of leaders is answered all the same.
pub const DEFAULT_TIMEOUT: Millis = Millis::seconds(30);

/// What a client is made of.
#[derive(Clone)]
pub struct ClientOptions {
    /// `http://HOST:PORT` of the hub's users' listener.
    pub server: String,
    /// How long one answer may take. A watch is a stream and may take for ever.
    pub timeout: Millis,
    /// What connections are opened with.
    pub network: Arc<dyn Network>,
    /// Time for limits and pauses.
    pub clock: Clock,
    /// Randomness for the pauses between attempts.
    pub random: Random,
}

impl ClientOptions {
    /// Over the machine's TCP, clock and randomness.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            timeout: DEFAULT_TIMEOUT,
            network: Arc::new(Tcp),
            clock: Clock::real(),
            random: Random::from_machine(),
        }
    }
}

/// A client of one hub. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Transport,
    pub(crate) channel: tonic::transport::Channel,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) timeout: Millis,
}

impl Client {
    /// A client; it connects when it is first used. Call within a tokio runtime.
    ///
    /// [`ClientError::BadServer`] when `options.server` is not `http://HOST:PORT`.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let address = host_and_port(&options.server)?;
        let channel = network::channel(Arc::clone(&options.network), &address);
        let transport = Transport::new(
            options.network,
            address,
            options.clock.clone(),
            options.timeout,
        );
        Ok(Self {
            transport,
            channel,
            clock: options.clock,
            random: options.random,
            timeout: options.timeout,
        })
    }

    /// `host:port` of the hub.
    #[must_use]
    pub fn address(&self) -> &str {
        self.transport.address()
    }
}

/// `host:port` of `http://host:port`; the scheme may be left out, the port is then needed.
fn host_and_port(server: &str) -> Result<String, ClientError> {
    let bad = |expected| ClientError::BadServer {
        server: server.to_owned(),
        expected,
    };
    let uri: http::Uri = server
        .trim_end_matches('/')
        .parse()
        .map_err(|_| bad("http://HOST:PORT"))?;
    match uri.scheme_str() {
        None | Some("http") => {}
        Some("https") => return Err(bad("http://HOST:PORT: the hub serves no TLS to users")),
        Some(_) => return Err(bad("http://HOST:PORT")),
    }
    let path_is_empty = matches!(uri.path(), "" | "/");
    let authority = uri.authority().ok_or_else(|| bad("http://HOST:PORT"))?;
    if !path_is_empty || uri.query().is_some() || authority.as_str().contains('@') {
        return Err(bad("http://HOST:PORT and nothing else"));
    }
    let host = authority.host();
    match (authority.port_u16(), uri.scheme_str()) {
        (Some(port), _) => Ok(format!("{host}:{port}")),
        (None, Some(_)) if authority.as_str() == host => Ok(format!("{host}:80")),
        (None, _) => Err(bad("http://HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        let good = [
            ("http://127.0.0.1:7080", "127.0.0.1:7080"),
            ("http://hub.example/", "hub.example:80"),
            ("localhost:7080", "localhost:7080"),
            ("http://[::1]:7080", "[::1]:7080"),
        ];
        for (server, address) in good {
            assert_eq!(host_and_port(server).expect(server), address);
        }
        let wrong = [
            "",
            "hub",
            "ftp://hub:1",
            "https://hub:7080",
            "http://hub:7080/path",
            "http://me@hub:7080",
            "http://hub:7080?x=1",
            "http://hub:70800",
        ];
        for server in wrong {
            assert!(host_and_port(server).is_err(), "{server}");
        }
    }
}
