//! The simulated network as the seam that hubs, agents and clients connect through.
//!
//! Owns nothing but the glue to turmoil: delays, partitions and crashes are its business. Call
//! within a host of a simulation.

use std::io;

use async_trait::async_trait;
use meridian_runtime::Network;
use meridian_runtime::network::{Accept, Connection, Listener};
use turmoil::net::{TcpListener, TcpStream};

/// TCP between the hosts of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turmoil;

#[async_trait]
impl Network for Turmoil {
    async fn connect(&self, address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        Ok(Connection::new(stream, address))
    }

    async fn listen(&self, address: &str) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        Ok(Listener::new(Accepting(listener), address))
    }
}

struct Accepting(TcpListener);

#[async_trait]
impl Accept for Accepting {
    async fn accept(&mut self) -> io::Result<Connection> {
        let (stream, peer) = self.0.accept().await?;
        Ok(Connection::new(stream, peer.to_string()))
    }
}
