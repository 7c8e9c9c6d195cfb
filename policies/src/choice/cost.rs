//! Cost: what it takes to finish a gang in one place, in money and time.
//!
//! Owns the parts of the bill, the rates behind them and what each objective makes of them. All in
//! integers; every part stops at the largest amount. Expectations, not invoices: what is charged is
//! not decided here.

use meridian_api::kinds::federated_job::Objective;
use meridian_api::kinds::gpu_pool::PoolCapacity;
use meridian_api::units::{MicroMoney, MilliGpus, Millis};
use serde::{Deserialize, Serialize};

use crate::candidates::Preference;
use crate::model::{PoolFacts, Waiting};
use crate::quota::Reach;

/// Runtime of a gang that says neither how long it runs nor how long it may.
pub const DEFAULT_RUNTIME: Millis = Millis::seconds(3_600);
/// Price of a card-hour for which nobody has set one: one unit of money for each reference card
/// that it is worth.
pub const UNPRICED_HOUR: MicroMoney = MicroMoney(1_000_000);
/// Borrowed quota is expected to be asked back once in this time of running: lenders' load has a
/// daily peak.
pub const RECLAIMED_EVERY: Millis = Millis::seconds(24 * 3_600);
/// A provider is expected to take a spot machine back once in this time of running: some 5 % an
/// hour for a gang of a few machines.
pub const SPOT_TAKEN_EVERY: Millis = Millis::seconds(20 * 3_600);
/// What starting again costs, beside the work since the last checkpoint, whoever took its room:
/// from the order to go until it trains elsewhere. Image, weights and communicators of a large job
/// take one to five minutes, as published logs of large trainings show.
pub const RESTART: Millis = Millis::seconds(120);
/// Percent by which a role runs slower for each preferred level that it does not keep.
pub const SPREAD_PERCENT: u64 = 10;
/// Percent of their price that GPUs count which are left on the hosts it touches: room that whole
/// hosts want is worth less for as long as it runs.
pub const FRAGMENT_PERCENT: u64 = 1;
/// Time to bring a gigabyte from another region: 8 Gbit/s.
pub const PER_GIGABYTE: Millis = Millis(1_000);

/// Milliseconds of an hour.
const HOUR: u128 = 3_600_000;

/// What finishing is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Bill {
    /// GPU-hours at the price, by the speed that the job has there.
    pub gpus: MicroMoney,
    /// Data that comes from other regions.
    pub egress: MicroMoney,
    /// Work that is lost when borrowed or spot capacity is taken back.
    pub loss: MicroMoney,
    /// Room that becomes less useful to others.
    pub fragmentation: MicroMoney,
    /// Hours lost to the wires between domains.
    pub spread: MicroMoney,
    /// From the start to the end.
    pub time: Millis,
}

impl Bill {
    /// All money.
    #[must_use]
    pub fn total(&self) -> MicroMoney {
        let parts = [self.egress, self.loss, self.fragmentation, self.spread];
        let add = |sum: MicroMoney, part: &MicroMoney| sum.saturating_add(*part);
        parts.iter().fold(self.gpus, add)
    }

    /// The number that the objective makes least: money, milliseconds, or their product, which
    /// needs no price of time (as energy times delay in the design of chips).
    #[must_use]
    pub fn measured_by(&self, objective: Objective) -> u64 {
        let money = u64::try_from(self.total().0).unwrap_or(0);
        match objective {
            Objective::Cheapest => money,
            Objective::Soonest => self.time.0,
            Objective::Balanced => {
                let product = u128::from(money) * u128::from(self.time.0) / 1_000_000;
                u64::try_from(product).unwrap_or(u64::MAX)
            }
        }
    }
}

/// How a gang would fit in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fitted {
    /// GPUs that it makes use of at most.
    pub(crate) most: MilliGpus,
    /// GPUs that it gets.
    pub(crate) gpus: MilliGpus,
    /// Roles that do not keep their preferred level.
    pub(crate) preferences_missed: u32,
    /// GPUs left free on the hosts that it touches.
    pub(crate) left_on_hosts: MilliGpus,
    /// On whose quota it would stand.
    pub(crate) reach: Reach,
}

/// How long a gang is expected to run in its largest size at speed 1: as its job says, else half of
/// the longest that it may, since limits are set with room, else an hour.
pub(crate) fn runtime(gang: &Waiting) -> Millis {
    let half = || gang.max_runtime.map(|most| Millis(most.0 / 2));
    let runtime = gang.expected.runtime.or_else(half);
    runtime.unwrap_or(DEFAULT_RUNTIME).max(Millis(1))
}

/// What finishing the gang in a pool is expected to take. `worth` is that of the pool's flavor, in
/// thousandths of the reference card.
pub(crate) fn bill(
    gang: &Waiting,
    pool: &PoolFacts,
    worth: u64,
    likes: &Preference,
    fitted: Fitted,
) -> Bill {
    let borrows = fitted.reach == Reach::Borrowing;
    let price = if borrows {
        pool.borrowed_price
    } else {
        pool.price
    };
    let unpriced = || i128::from(UNPRICED_HOUR.0) * i128::from(worth) / 1000;
    let price = price.map_or_else(unpriced, |price| i128::from(price.0));
    let price = u128::try_from(price).unwrap_or(0);
    let speed = u128::from(likes.speed.max(1));
    let ideal = u128::from(runtime(gang).0).saturating_mul(1000) / speed;
    let slower = u128::from(SPREAD_PERCENT) * u128::from(fitted.preferences_missed);
    // A gang of half the size runs for twice as long: the work is the same.
    let stretched = match (fitted.most.0, fitted.gpus.0) {
        (most, gpus) if gpus == 0 || most <= gpus => ideal,
        (most, gpus) => ideal.saturating_mul(u128::from(most)) / u128::from(gpus),
    };
    let running = stretched.saturating_mul(100 + slower) / 100;
    let money = |gpus: MilliGpus, time: u128| {
        let hours = u128::from(gpus.0).saturating_mul(time);
        hours.saturating_mul(price) / (1000 * HOUR)
    };
    let gpus = money(fitted.most.max(fitted.gpus), ideal);
    let checkpoint = gang
        .expected
        .checkpoint_every
        .map(|every| u128::from(every.0));
    let lost = u128::from(RESTART.0) + checkpoint.unwrap_or(running) / 2;
    let mut taken = 0;
    for (applies, every) in [
        (borrows, RECLAIMED_EVERY),
        (pool.capacity == PoolCapacity::Spot, SPOT_TAKEN_EVERY),
    ] {
        if applies {
            taken += running.saturating_mul(lost) / u128::from(every.0);
        }
    }
    let fragments = money(fitted.left_on_hosts, running).saturating_mul(FRAGMENT_PERCENT.into());
    Bill {
        gpus: amount(gpus),
        egress: likes.egress,
        loss: amount(money(fitted.gpus, taken)),
        fragmentation: amount(fragments / 100),
        spread: amount(gpus.saturating_mul(slower) / 100),
        time: Millis(u64::try_from(running).unwrap_or(u64::MAX)).saturating_add(likes.transfer),
    }
}

fn amount(money: u128) -> MicroMoney {
    MicroMoney(i64::try_from(money).unwrap_or(i64::MAX))
}
