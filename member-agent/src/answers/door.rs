//! How many may stand at the answers' door, and for how long.
//!
//! Owns the caps on open connections, in all and of one address, and the end of a connection that
//! stays: whoever holds many, or sends nothing, keeps nobody else out. Never reads a byte.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use meridian_runtime::network::{Accept, Connection, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is let in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections in all.
    pub(super) open: usize,
    /// Connections of one address.
    pub(super) of_one: usize,
    /// A connection ends after this, whatever it is doing.
    pub(super) stay: Millis,
}

/// Open connections by address.
#[derive(Debug, Default)]
struct Crowd {
    open: usize,
    by_address: BTreeMap<String, usize>,
}

type Shared = Arc<Mutex<Crowd>>;

/// A place at the door, given back when it is dropped.
struct Seat {
    crowd: Shared,
    address: String,
}

impl Seat {
    /// `None` when there is no room for one more of this address.
    fn take(crowd: &Shared, address: &str, limits: Limits) -> Option<Self> {
        let mut inside = lock(crowd);
        let of_one = inside.by_address.get(address).copied().unwrap_or(0);
        if inside.open >= limits.open || of_one >= limits.of_one {
            return None;
        }
        inside.open += 1;
        inside.by_address.insert(address.to_owned(), of_one + 1);
        Some(Self {
            crowd: Arc::clone(crowd),
            address: address.to_owned(),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inside = lock(&self.crowd);
        inside.open = inside.open.saturating_sub(1);
        let left = inside.by_address.get(&self.address).copied().unwrap_or(0);
        if left > 1 {
            inside.by_address.insert(self.address.clone(), left - 1);
        } else {
            inside.by_address.remove(&self.address);
        }
    }
}

fn lock(crowd: &Shared) -> std::sync::MutexGuard<'_, Crowd> {
    crowd.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a peer without its port: a port is the caller's to choose.
pub(super) fn host(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host)
}

/// A listener behind these limits.
pub(super) fn guarded(listener: Listener, clock: Clock, limits: Limits) -> Listener {
    let address = listener.address().to_owned();
    let door = Door {
        listener,
        clock,
        limits,
        crowd: Shared::default(),
    };
    Listener::new(door, address)
}

struct Door {
    listener: Listener,
    clock: Clock,
    limits: Limits,
    crowd: Shared,
}

#[async_trait]
impl Accept for Door {
    async fn accept(&mut self) -> io::Result<Connection> {
        loop {
            let connection = self.listener.accept().await?;
            let peer = connection.peer().address.clone();
            let Some(seat) = Seat::take(&self.crowd, host(&peer), self.limits) else {
                tracing::debug!(peer, "too many connections, one is closed");
                continue;
            };
            let (clock, stay) = (self.clock.clone(), self.limits.stay);
            let brief = Brief {
                connection,
                over: Box::pin(async move { clock.sleep(stay).await }),
                _seat: seat,
            };
            return Ok(Connection::new(brief, peer));
        }
    }
}

/// A connection that ends by itself.
struct Brief {
    connection: Connection,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    _seat: Seat,
}

impl Brief {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.over.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Brief {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Brief {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_address_and_given_back() {
        let limits = Limits {
            open: 3,
            of_one: 2,
            stay: Millis::seconds(1),
        };
        let crowd = Shared::default();
        let take = |address| Seat::take(&crowd, address, limits);
        let (first, second) = (take("10.0.0.1"), take("10.0.0.1"));
        assert!(first.is_some() && second.is_some());
        assert!(take("10.0.0.1").is_none(), "of one address");
        let other = take("10.0.0.2");
        assert!(other.is_some());
        assert!(take("10.0.0.3").is_none(), "in all");
        drop(first);
        assert!(take("10.0.0.3").is_some());
        drop((second, other));
        assert!(lock(&crowd).by_address.is_empty(), "nothing is remembered");
    }

    #[test]
    fn a_port_tells_no_callers_apart() {
        assert_eq!(host("10.0.0.1:4000"), host("10.0.0.1:4001"));
        assert_eq!(host("[fd00::1]:4000"), "[fd00::1]");
        assert_eq!(host("pipe"), "pipe");
    }
}
