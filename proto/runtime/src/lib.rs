//! The seams of both processes: time, network, disk, tasks, randomness and telemetry.
//!
//! Everything that differs between a real process, the playground and a simulation comes through
//! here, so that hubs, agents, stores and simulated clusters run unchanged in one process on a
//! simulated clock and network. Owns the only calls to the real clock, `tokio::spawn` and
//! sockets. Decides nothing.

pub mod clock;
pub mod disk;
pub mod network;
pub mod random;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod tls;

pub use clock::Clock;
pub use disk::Disk;
pub use network::Network;
pub use random::Random;
pub use tasks::Tasks;
