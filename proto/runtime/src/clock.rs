//! The one clock: real, scaled or simulated, handed in everywhere.
//!
//! Owns wall time, boot time and sleeping. A component that asks another clock cannot run in
//! simulation, so `Instant::now`, `SystemTime::now` and `tokio::time` are banned elsewhere.

#![expect(clippy::disallowed_methods, reason = "the one clock")]

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub use meridian_api::units::{BootMillis, Millis, UnixMillis};

/// Time ran out before the future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {0}")]
pub struct TimedOut(pub Millis);

/// A handle to the process's time. Cheap to clone; all clones agree.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// The machine's clocks. Boot time counts suspend.
    Real,
    /// `wall` at `origin`, then `scale` seconds for each second of the tokio runtime. On a paused
    /// runtime that is simulated time: it moves only when every task waits.
    Scaled {
        wall: UnixMillis,
        origin: tokio::time::Instant,
        scale: NonZeroU32,
    },
}

impl Clock {
    /// The machine's own clocks.
    #[must_use]
    pub fn real() -> Self {
        Self(Arc::new(Source::Real))
    }

    /// Starts at `wall` and runs `scale` times as fast as the runtime's time. Call within one.
    #[must_use]
    pub fn scaled(wall: UnixMillis, scale: NonZeroU32) -> Self {
        Self(Arc::new(Source::Scaled {
            wall,
            origin: tokio::time::Instant::now(),
            scale,
        }))
    }

    /// Starts at `wall` and follows the runtime's time, which a simulation pauses or steps. Call
    /// within that runtime.
    #[must_use]
    pub fn simulated(wall: UnixMillis) -> Self {
        Self::scaled(wall, NonZeroU32::MIN)
    }

    /// The wall clock.
    #[must_use]
    pub fn wall(&self) -> UnixMillis {
        match &*self.0 {
            Source::Real => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                UnixMillis(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
            }
            Source::Scaled { wall, .. } => wall.after(Millis(self.elapsed())),
        }
    }

    /// The boot clock: monotonic, counts suspend.
    #[must_use]
    pub fn boot(&self) -> BootMillis {
        match &*self.0 {
            Source::Real => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let millis = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
                BootMillis(u64::try_from(millis).unwrap_or(0))
            }
            Source::Scaled { .. } => BootMillis(self.elapsed()),
        }
    }

    /// Milliseconds of this clock since its origin.
    fn elapsed(&self) -> u64 {
        match &*self.0 {
            Source::Real => 0,
            Source::Scaled { origin, scale, .. } => {
                let micros = origin
                    .elapsed()
                    .as_micros()
                    .saturating_mul(u128::from(scale.get()));
                u64::try_from(micros / 1000).unwrap_or(u64::MAX)
            }
        }
    }

    /// A span of this clock as a span of the runtime's time, rounded up so that a sleeper never
    /// wakes early.
    fn runtime_span(&self, span: Millis) -> Duration {
        match &*self.0 {
            Source::Real => Duration::from_millis(span.0),
            Source::Scaled { scale, .. } => {
                let micros = span.0.saturating_mul(1000).div_ceil(u64::from(scale.get()));
                Duration::from_micros(micros)
            }
        }
    }

    /// Waits for `span`.
    pub async fn sleep(&self, span: Millis) {
        tokio::time::sleep(self.runtime_span(span)).await;
    }

    /// Waits until the boot clock shows `at`; returns at once when it is past.
    pub async fn sleep_until(&self, at: BootMillis) {
        loop {
            let left = at.since(self.boot());
            if left == Millis::ZERO {
                return;
            }
            self.sleep(left).await;
        }
    }

    /// The future's output, or [`TimedOut`] when it takes longer than `limit`.
    pub async fn timeout<F: Future>(&self, limit: Millis, work: F) -> Result<F::Output, TimedOut> {
        tokio::time::timeout(self.runtime_span(limit), work)
            .await
            .map_err(|_| TimedOut(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_time_moves_only_by_sleeping() {
        let clock = Clock::simulated(UnixMillis(1_000));
        assert_eq!(clock.wall(), UnixMillis(1_000));
        clock.sleep(Millis::seconds(3600)).await;
        assert_eq!(clock.wall(), UnixMillis(3_601_000));
        assert_eq!(clock.boot(), BootMillis(3_600_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_scaled_clock_runs_faster_than_the_runtime() {
        let clock = Clock::scaled(UnixMillis(0), NonZeroU32::new(60).expect("not zero"));
        let runtime = tokio::time::Instant::now();
        clock.sleep(Millis::seconds(60)).await;
        assert!(clock.wall() >= UnixMillis(60_000));
        assert!(runtime.elapsed() <= Duration::from_millis(1_002));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_says_its_limit() {
        let clock = Clock::simulated(UnixMillis(0));
        let late = clock.timeout(Millis(5), std::future::pending::<()>()).await;
        assert_eq!(late, Err(TimedOut(Millis(5))));
        assert_eq!(clock.timeout(Millis(5), async { 7 }).await, Ok(7));
    }

    #[test]
    fn the_real_boot_clock_never_goes_back() {
        let clock = Clock::real();
        let first = clock.boot();
        assert!(clock.boot() >= first);
        assert!(clock.wall() > UnixMillis(1_700_000_000_000));
    }
}
