//! HTTP to one hub over a handed-in network: one answer, or a stream of lines.
//!
//! Owns the connection pool, the limits on answers, and telling "never reached" from "lost on the
//! way". Never knows what an answer means.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection as PoolConnection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use meridian_runtime::clock::Millis;
use meridian_runtime::network::{Connection, Network};
use meridian_runtime::{Clock, network};

use crate::errors::ClientError;

/// Largest answer that is read: a page of 500 objects of 128 KiB, far above the usual few KiB.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Longest line of a stream: an object of the store's 1.5 MiB, escaped, with room to spare.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    pub(crate) body: Option<(&'static str, Bytes)>,
}

impl Ask {
    pub(crate) fn get(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            accept: "application/json",
            body: None,
        }
    }
}

/// One whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Clone)]
pub(crate) struct Transport {
    pool: hyper_util::client::legacy::Client<Connector, Full<Bytes>>,
    address: Arc<str>,
    clock: Clock,
    timeout: Millis,
}

impl Transport {
    pub(crate) fn new(
        network: Arc<dyn Network>,
        address: String,
        clock: Clock,
        timeout: Millis,
    ) -> Self {
        let address: Arc<str> = address.into();
        let connector = Connector {
            network,
            address: Arc::clone(&address),
        };
        Self {
            pool: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .build(connector),
            address,
            clock,
            timeout,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The whole answer, within the time limit. A read is asked a second time when its connection
    /// is lost: to read twice does no harm.
    pub(crate) async fn call(&self, ask: &Ask) -> Result<Reply, ClientError> {
        let first = self.call_once(ask).await;
        match first {
            Err(ClientError::Lost { .. }) if ask.method == Method::GET => self.call_once(ask).await,
            first => first,
        }
    }

    async fn call_once(&self, ask: &Ask) -> Result<Reply, ClientError> {
        self.within(ask, async {
            let (parts, body) = self.send(ask).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| {
                    if error.is::<LengthLimitError>() {
                        let limit = MAX_ANSWER_BYTES / (1024 * 1024);
                        ClientError::Protocol(format!("an answer of more than {limit} MiB"))
                    } else {
                        self.lost(&*error)
                    }
                })?;
            Ok(Reply {
                status: parts.status,
                headers: parts.headers,
                body: body.to_bytes(),
            })
        })
        .await
    }

    /// The start of the answer, within the time limit, and its lines as they come.
    pub(crate) async fn stream(&self, ask: &Ask) -> Result<(StatusCode, Lines), ClientError> {
        let response = self.within(ask, self.send(ask)).await?;
        let (parts, body) = response.into_parts();
        let lines = Lines {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            address: Arc::clone(&self.address),
        };
        Ok((parts.status, lines))
    }

    async fn within<T>(
        &self,
        ask: &Ask,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let done = self.clock.timeout(self.timeout, work).await;
        done.unwrap_or_else(|_| {
            Err(ClientError::TimedOut {
                what: format!("{} {}", ask.method, ask.path),
                limit: self.timeout,
            })
        })
    }

    async fn send(&self, ask: &Ask) -> Result<http::Response<Incoming>, ClientError> {
        let malformed = |what: &dyn std::fmt::Display| ClientError::Protocol(what.to_string());
        let uri: Uri = format!("http://{}{}", self.address, ask.path)
            .parse()
            .map_err(|error: http::uri::InvalidUri| malformed(&error))?;
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(uri)
            .header(header::ACCEPT, ask.accept)
            .header(header::USER_AGENT, USER_AGENT);
        let body = match &ask.body {
            Some((content_type, body)) => {
                request = request.header(header::CONTENT_TYPE, *content_type);
                body.clone()
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(body)).map_err(|e| malformed(&e))?;
        self.pool.request(request).await.map_err(|error| {
            if error.is_connect() {
                ClientError::Unreachable {
                    server: self.address.to_string(),
                    cause: innermost(&error),
                }
            } else {
                self.lost(&error)
            }
        })
    }

    fn lost(&self, error: &(dyn std::error::Error + 'static)) -> ClientError {
        ClientError::Lost {
            server: self.address.to_string(),
            cause: innermost(error),
        }
    }
}

/// How the client names itself in audit and logs.
const USER_AGENT: &str = concat!("meridian/", env!("CARGO_PKG_VERSION"));

/// The text of the cause at the root: the layers above only say "connect error".
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Lines of a body that is still being written.
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// Bytes of the buffer that hold no end of line.
    searched: usize,
    address: Arc<str>,
}

impl Lines {
    /// The next line that is not empty, without its end; `None` at the end of the stream. Safe to
    /// drop and call again.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            while let Some(line) = self.buffered_line() {
                if !line.iter().all(u8::is_ascii_whitespace) {
                    return Ok(Some(line));
                }
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                let limit = MAX_LINE_BYTES / (1024 * 1024);
                return Err(ClientError::Protocol(format!(
                    "a line of more than {limit} MiB in a watch"
                )));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => {
                    return Err(ClientError::Lost {
                        server: self.address.to_string(),
                        cause: innermost(&error),
                    });
                }
            }
        }
    }

    fn buffered_line(&mut self) -> Option<Bytes> {
        let found = self.buffer[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = found else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        Some(line.slice(..line.len() - 1))
    }
}

/// Opens every connection of the pool at one address.
#[derive(Clone)]
struct Connector {
    network: Arc<dyn Network>,
    address: Arc<str>,
}

impl tower::Service<Uri> for Connector {
    type Response = Pooled;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Pooled>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (network, address) = (Arc::clone(&self.network), Arc::clone(&self.address));
        async move { network.connect(&address).await }
            .map(|opened| opened.map(|connection| Pooled(TokioIo::new(connection))))
            .boxed()
    }
}

/// A connection as the pool wants it.
struct Pooled(TokioIo<network::Connection>);

impl PoolConnection for Pooled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Pooled {
    fn io(self: Pin<&mut Self>) -> Pin<&mut TokioIo<Connection>> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl Read for Pooled {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.io().poll_read(cx, buffer)
    }
}

impl Write for Pooled {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_shutdown(cx)
    }
}
