//! Deadlines: whether work will be done by its `finishBy`, and how late it is expected to be.
//!
//! Owns the forecast for one gang, from when it may start and how long it may run. Pure. Who goes
//! first for it is the queue's (see `order`).

use meridian_api::units::{Millis, UnixMillis};

use crate::model::Estimate;

/// How a gang stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It waits, and may start then, where that can be said.
    Waits(Option<Estimate>),
    /// It has a place, and has ended by then at the latest; `None` = it may run for ever.
    Placed(Option<UnixMillis>),
}

/// When a gang is expected to be done, beside when it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forecast {
    /// When it is expected to be done, if it takes as long as it may.
    pub done: UnixMillis,
    /// When it should be.
    pub finish_by: UnixMillis,
    /// Nothing makes it any sooner: it starts now, or runs.
    pub is_certain: bool,
}

impl Forecast {
    /// How late it will be, if it will be.
    #[must_use]
    pub fn late(&self) -> Option<Millis> {
        (self.done > self.finish_by).then(|| self.done.since(self.finish_by))
    }
}

/// The forecast for a gang at `now`. What does not say how long it may run is taken to be done at
/// once: late is then only what is late already.
#[must_use]
pub fn forecast(
    finish_by: UnixMillis,
    runtime: Option<Millis>,
    stands: Stands,
    now: UnixMillis,
) -> Forecast {
    let of = |done, is_certain| Forecast {
        done,
        finish_by,
        is_certain,
    };
    match stands {
        Stands::Placed(ends) => of(ends.unwrap_or(now).max(now), true),
        Stands::Waits(start) => {
            let runtime = runtime.unwrap_or_default();
            let at_once = now.after(runtime);
            let start = start.map(|start| start.earliest.max(now));
            let done = start.map_or(at_once, |start| start.after(runtime));
            of(done, at_once > finish_by || done == at_once)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000_000);

    fn minutes(minutes: u64) -> UnixMillis {
        NOW.after(Millis::seconds(minutes * 60))
    }

    fn late(stands: Stands, runtime: u64, finish_by: u64) -> Option<(u64, bool)> {
        let runtime = Some(Millis::seconds(runtime * 60));
        let forecast = forecast(minutes(finish_by), runtime, stands, NOW);
        let late = forecast.late()?;
        Some((late.0 / 60_000, forecast.is_certain))
    }

    #[test]
    fn a_wait_is_late_by_its_start_and_certainly_when_it_could_not_even_start_now() {
        let start = |earliest| {
            Stands::Waits(Some(Estimate {
                earliest: minutes(earliest),
                latest: None,
            }))
        };
        assert_eq!(late(start(10), 60, 90), None);
        assert_eq!(late(start(45), 60, 90), Some((15, false)));
        assert_eq!(late(start(45), 60, 50), Some((55, true)));
        assert_eq!(late(Stands::Waits(None), 60, 60), None);
        assert_eq!(late(Stands::Waits(None), 61, 60), Some((1, true)));
    }

    #[test]
    fn what_runs_is_late_by_its_end() {
        let ends = |at| Stands::Placed(Some(minutes(at)));
        assert_eq!(late(ends(50), 60, 60), None);
        assert_eq!(late(ends(80), 60, 60), Some((20, true)));
        assert_eq!(late(Stands::Placed(None), 0, 60), None);
        let passed = forecast(UnixMillis(NOW.0 - 1), None, Stands::Placed(None), NOW);
        assert_eq!(passed.late(), Some(Millis(1)));
    }
}
