//! Connections as a seam: TCP, in-memory pipes, or a simulation's own network.
//!
//! Owns connecting, listening, and the glue that lets tonic and axum use either. Never knows what
//! is said over a connection.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint, Uri, server::Connected};

/// Bytes that an in-memory pipe holds per direction: a few HTTP/2 frames, so that back-pressure
/// is felt as on a socket.
const PIPE_BYTES: usize = 256 * 1024;
/// Connections waiting to be accepted; as the usual `somaxconn` of small servers.
const BACKLOG: usize = 128;
/// A peer that vanished without a word is noticed within the sum of the two.
const KEEPALIVE: Keepalive = Keepalive {
    interval: Duration::from_secs(5),
    timeout: Duration::from_secs(5),
};
/// A TCP handshake to a dead host ends after this; a live one answers in a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Anything that carries bytes both ways.
pub trait Io: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Io for T {}

/// One open connection.
pub struct Connection {
    io: Pin<Box<dyn Io>>,
    peer: Peer,
}

impl Connection {
    /// Wraps an open connection to or from `peer`.
    pub fn new(io: impl Io + 'static, peer: impl Into<String>) -> Self {
        Self {
            io: Box::pin(io),
            peer: Peer {
                address: peer.into(),
                certificate: None,
            },
        }
    }

    /// The same, when the other end has proved that it holds the key of `certificate` (DER).
    #[must_use]
    pub fn proved(mut self, certificate: Option<Arc<[u8]>>) -> Self {
        self.peer.certificate = certificate;
        self
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Who is at the other end; tonic hands it to each request as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it is, for people.
    pub address: String,
    /// Its certificate (DER), whose key it has proved to hold; `None` without one.
    pub certificate: Option<Arc<[u8]>>,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}

/// Accepts connections at one address.
#[async_trait]
pub trait Accept: Send {
    /// The next connection.
    async fn accept(&mut self) -> io::Result<Connection>;
}

/// An open listener.
pub struct Listener {
    accept: Box<dyn Accept>,
    address: String,
}

impl Listener {
    /// Wraps something that accepts at `address`.
    pub fn new(accept: impl Accept + 'static, address: impl Into<String>) -> Self {
        Self {
            accept: Box::new(accept),
            address: address.into(),
        }
    }

    /// Where it listens, with the port that was given to it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The next connection.
    pub async fn accept(&mut self) -> io::Result<Connection> {
        self.accept.accept().await
    }

    /// Connections as a stream, for `tonic`'s `serve_with_incoming`.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        futures::stream::unfold(self, |mut listener| async move {
            Some((listener.accept.accept().await, listener))
        })
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = String;

    async fn accept(&mut self) -> (Connection, String) {
        loop {
            match self.accept.accept().await {
                Ok(connection) => {
                    let peer = connection.peer.address.clone();
                    return (connection, peer);
                }
                // One connection's trouble (reset before accept, no file handles left for a
                // moment) is not the listener's end.
                Err(error) => {
                    tracing::warn!(%error, address = %self.address, "could not accept");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<String> {
        Ok(self.address.clone())
    }
}

/// HTTP/2 pings on an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time between two.
    pub interval: Duration,
    /// Time to the answer, else the connection is broken.
    pub timeout: Duration,
}

/// Where connections come from.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Pings that its connections need; `None` where a peer cannot vanish without a word.
    fn keepalive(&self) -> Option<Keepalive> {
        Some(KEEPALIVE)
    }

    /// Opens a connection to `address` (`host:port`).
    async fn connect(&self, address: &str) -> io::Result<Connection>;

    /// Listens at `address`; port 0 asks for a free one.
    async fn listen(&self, address: &str) -> io::Result<Listener>;
}

/// A gRPC channel to `address` over `network`. Connects lazily and again after a loss.
#[must_use]
pub fn channel(network: Arc<dyn Network>, address: &str) -> Channel {
    let (address, keepalive) = (address.to_owned(), network.keepalive());
    // The URI only fills HTTP/2's `:authority`; the connector below decides where to go.
    let connector = tower::service_fn(move |_: Uri| {
        let (network, address) = (Arc::clone(&network), address.clone());
        async move { network.connect(&address).await.map(TokioIo::new) }
    });
    let endpoint =
        Endpoint::from_static("http://meridian.invalid").connect_timeout(CONNECT_TIMEOUT);
    let endpoint = match keepalive {
        None => endpoint,
        Some(Keepalive { interval, timeout }) => endpoint
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true),
    };
    endpoint.connect_with_connector_lazy(connector)
}

/// A gRPC server on `network`, with the limits that every listener of ours has.
#[must_use]
pub fn grpc_server(network: &dyn Network) -> tonic::transport::Server {
    let keepalive = network.keepalive();
    tonic::transport::Server::builder()
        .http2_keepalive_interval(keepalive.map(|keepalive| keepalive.interval))
        .http2_keepalive_timeout(keepalive.map(|keepalive| keepalive.timeout))
        .max_concurrent_streams(1024)
}

/// The machine's TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

#[async_trait]
impl Network for Tcp {
    async fn connect(&self, address: &str) -> io::Result<Connection> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection::new(stream, address))
    }

    async fn listen(&self, address: &str) -> io::Result<Listener> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        Ok(Listener::new(TcpAccept(listener), address))
    }
}

struct TcpAccept(tokio::net::TcpListener);

#[async_trait]
impl Accept for TcpAccept {
    async fn accept(&mut self) -> io::Result<Connection> {
        let (stream, peer) = self.0.accept().await?;
        stream.set_nodelay(true)?;
        Ok(Connection::new(stream, peer.to_string()))
    }
}

/// Pipes within the process: no sockets, no delay, no loss. For a simulation that wants no
/// network faults; one such week costs seconds.
#[derive(Clone, Default)]
pub struct Pipes(Arc<Mutex<BTreeMap<String, mpsc::Sender<Connection>>>>);

#[async_trait]
impl Network for Pipes {
    /// A pipe's other end cannot vanish, and pings would be most of what a quiet week does.
    fn keepalive(&self) -> Option<Keepalive> {
        None
    }

    async fn connect(&self, address: &str) -> io::Result<Connection> {
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, address.to_owned());
        let listener = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(address)
            .cloned();
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let accepted = listener
            .ok_or_else(refused)?
            .send(Connection::new(far, "pipe"))
            .await;
        accepted.map_err(|_| refused())?;
        Ok(Connection::new(near, address))
    }

    async fn listen(&self, address: &str) -> io::Result<Listener> {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners
            .get(address)
            .is_some_and(|listener| !listener.is_closed())
        {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, address.to_owned()));
        }
        let (sender, receiver) = mpsc::channel(BACKLOG);
        listeners.insert(address.to_owned(), sender);
        Ok(Listener::new(PipeAccept(receiver), address))
    }
}

struct PipeAccept(mpsc::Receiver<Connection>);

#[async_trait]
impl Accept for PipeAccept {
    async fn accept(&mut self) -> io::Result<Connection> {
        match self.0.recv().await {
            Some(connection) => Ok(connection),
            // Every sender is gone with the registry: nobody can ever connect.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn carries_both_ways(network: &dyn Network, address: &str) {
        let mut listener = network.listen(address).await.expect("listens");
        let address = listener.address().to_owned();
        let (near, far) = tokio::join!(network.connect(&address), listener.accept());
        let (mut near, mut far) = (near.expect("connects"), far.expect("accepts"));
        near.write_all(b"ping").await.expect("writes");
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.expect("reads");
        assert_eq!(&heard, b"ping");
    }

    #[tokio::test]
    async fn both_networks_carry_both_ways() {
        carries_both_ways(&Tcp, "127.0.0.1:0").await;
        carries_both_ways(&Pipes::default(), "hub:1").await;
    }

    #[tokio::test]
    async fn an_address_is_held_by_one_listener() {
        let pipes = Pipes::default();
        assert!(pipes.connect("hub:1").await.is_err());
        let held = pipes.listen("hub:1").await.expect("free");
        assert!(pipes.listen("hub:1").await.is_err());
        drop(held);
        assert!(pipes.listen("hub:1").await.is_ok());
    }
}
