//! Free ports on loopback, for servers that must be told theirs before they start.
//!
//! Owns the range they come from. A server that can ask the kernel for port 0 and say what it got
//! needs none of this.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the kernel's ephemeral ports (32768 and up on Linux), so that no outgoing connection
/// takes one between our look and the server's bind; above the ports of usual services.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;
/// Ports between the starts of two processes' walks: a test needs a few dozen.
const STRIDE: u32 = 97;

/// Ports given out so far by this process.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// An address that nothing listens on, and that no other test of this process was given.
///
/// # Panics
/// When every port of the range is taken.
#[must_use]
pub fn free_address() -> SocketAddrV4 {
    let start = std::process::id().wrapping_mul(STRIDE);
    for _ in 0..COUNT {
        let step = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("the range ends below 65536");
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice_or_taken() {
        let first = free_address();
        let held = TcpListener::bind(first).expect("it was free");
        let second = free_address();
        assert_ne!(first, second);
        assert!(TcpListener::bind(second).is_ok());
        drop(held);
    }
}
