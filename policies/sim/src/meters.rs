//! Meters: amounts over time, summed up while a simulation runs.
//!
//! Owns the areas under what is used, held, owed, unusable and blocked. Every rate is constant
//! between two instants, so the sums are exact integers. Never looks at a job.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Resources, UnixMillis};
use meridian_policies::model::{Measure, Quota, Shape, Snapshot, TenantIx};

/// Thousandths of a GPU (or of a worth of it) times milliseconds.
pub(crate) type Area = u128;

/// Pod shapes that fragmentation is measured for: the most usual of a trace. More would only
/// add ones that hardly any job has.
const TYPICAL: usize = 8;
/// Parts in which the usualness of shapes is counted.
const PARTS: u64 = 1_000_000;

/// Pod shapes of a trace with how usual each is, in millionths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypicalPods(Vec<(Resources, u64)>);

impl TypicalPods {
    /// The most usual of `pods`, each with how often it is there.
    pub(crate) fn new(pods: impl IntoIterator<Item = (Resources, u64)>) -> Self {
        let mut counts: BTreeMap<Resources, u64> = BTreeMap::new();
        for (pod, count) in pods {
            *counts.entry(pod).or_default() += count;
        }
        let mut sorted: Vec<(Resources, u64)> = counts.into_iter().collect();
        sorted.sort_by_key(|(pod, count)| (std::cmp::Reverse(*count), *pod));
        sorted.truncate(TYPICAL);
        let all: u64 = sorted.iter().map(|(_, count)| count).sum();
        for (_, count) in &mut sorted {
            *count = count.saturating_mul(PARTS) / all.max(1);
        }
        Self(sorted)
    }

    /// Free thousandths of GPUs of a pool that a typical pod cannot use: the free GPUs of hosts
    /// that hold none of it, over all typical pods by how usual they are (the measure of Weng et
    /// al., ATC 2023, for whole hosts).
    pub(crate) fn unusable(&self, rows: &[Shape]) -> u64 {
        let mut sum: u128 = 0;
        for row in rows.iter().filter(|row| row.free.gpus > MilliGpus::ZERO) {
            let refused = self.0.iter().filter(|(pod, _)| !row.free.covers(*pod));
            let parts: u64 = refused.map(|(_, parts)| parts).sum();
            sum += u128::from(row.free.gpus.0) * u128::from(row.hosts) * u128::from(parts);
        }
        u64::try_from(sum / u128::from(PARTS)).unwrap_or(u64::MAX)
    }
}

/// One tenant's rates and areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantMeter {
    /// What it is entitled to in proportion to; at least 1.
    pub(crate) weight: u64,
    /// Held at the moment.
    pub(crate) held: u64,
    /// Asked for by what waits.
    pub(crate) waiting: u64,
    /// The part of it that no fleet and quota of this size could give: nobody owes it.
    hopeless: u64,
    /// Fair share of what is there, at most what it asks for.
    pub(crate) entitled: u64,
    /// Area of what it held.
    pub(crate) held_area: Area,
    /// Area of what it was short of its fair share.
    pub(crate) short_area: Area,
    /// Area of what it held beyond its fair share.
    pub(crate) over_area: Area,
}

/// Gangs and GPUs that wait for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) gangs: u64,
    pub(crate) gpus: u64,
    /// Gangs times milliseconds.
    pub(crate) time: Area,
    pub(crate) area: Area,
}

/// All meters of one simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    at: UnixMillis,
    pub(crate) tenants: Vec<TenantMeter>,
    /// By reason; `None` for those of which nobody waited. Each refusal of each round is counted.
    blocked: [Option<Blocked>; Reason::ALL.len()],
    pools: Vec<PoolMeter>,
    pub(crate) capacity: Rate,
    pub(crate) used: Rate,
    pub(crate) capacity_worth: Rate,
    pub(crate) used_worth: Rate,
    pub(crate) free: Rate,
    pub(crate) unusable: Rate,
    /// The same while something waits.
    pub(crate) pressed_capacity: Area,
    pub(crate) pressed_used: Area,
    pub(crate) waiting: u64,
    pub(crate) most_waiting: u64,
    stale_shares: bool,
}

/// An amount and its area.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    rate: u64,
    pub(crate) area: Area,
}

impl Rate {
    fn advance(&mut self, span: u64) {
        self.area += Area::from(self.rate) * Area::from(span);
    }
}

/// What one pool adds to the rates.
#[derive(Clone, Copy, Debug, Default)]
struct PoolMeter {
    worth: u64,
    capacity: u64,
    free: u64,
    unusable: u64,
}

impl Meters {
    pub(crate) fn new(snapshot: &Snapshot, at: UnixMillis) -> Self {
        let tenants = snapshot.tenants.iter().map(|tenant| {
            let in_all = |row: &&Quota, together: bool| match row.measure {
                Measure::Gpus { flavor, region } => {
                    region.is_none() && flavor.is_none() == together
                }
                Measure::Cpu | Measure::Memory => false,
            };
            let all = tenant.quotas.iter().find(|row| in_all(row, true));
            let by_flavor = tenant.quotas.iter().filter(|row| in_all(row, false));
            let by_flavor = by_flavor.map(|row| row.nominal);
            let weight = all.map_or_else(|| by_flavor.sum(), |row| row.nominal);
            TenantMeter {
                weight: weight.max(1),
                ..TenantMeter::default()
            }
        });
        let pools = snapshot.pools.iter().map(|pool| PoolMeter {
            worth: snapshot.flavors[pool.flavor.index()].worth,
            ..PoolMeter::default()
        });
        Self {
            at,
            tenants: tenants.collect(),
            pools: pools.collect(),
            ..Self::default()
        }
    }

    /// Lets time pass until `to`.
    pub(crate) fn advance(&mut self, to: UnixMillis) {
        let span = to.since(self.at).0;
        self.at = self.at.max(to);
        if span == 0 {
            return;
        }
        if self.waiting > 0 {
            self.pressed_capacity += Area::from(self.capacity.rate) * Area::from(span);
            self.pressed_used += Area::from(self.used.rate) * Area::from(span);
        }
        let rates = [
            &mut self.capacity,
            &mut self.used,
            &mut self.capacity_worth,
            &mut self.used_worth,
            &mut self.free,
            &mut self.unusable,
        ];
        for rate in rates {
            rate.advance(span);
        }
        if std::mem::take(&mut self.stale_shares) {
            share_out(&mut self.tenants, self.capacity.rate);
        }
        for tenant in &mut self.tenants {
            let over = |a: u64, b: u64| Area::from(a.saturating_sub(b)) * Area::from(span);
            tenant.held_area += Area::from(tenant.held) * Area::from(span);
            tenant.short_area += over(tenant.entitled, tenant.held);
            tenant.over_area += over(tenant.held, tenant.entitled);
        }
        for blocked in self.blocked.iter_mut().flatten() {
            blocked.time += Area::from(blocked.gangs) * Area::from(span);
            blocked.area += Area::from(blocked.gpus) * Area::from(span);
        }
    }

    /// Looks at a pool again, after something changed there.
    pub(crate) fn look(&mut self, index: usize, rows: &[Shape], typical: &TypicalPods) {
        let meter = &mut self.pools[index];
        let sum = |of: fn(&Shape) -> u64| {
            let each = rows.iter();
            each.map(|row| of(row) * u64::from(row.hosts)).sum::<u64>()
        };
        meter.capacity = sum(|row| row.allocatable.gpus.0);
        meter.free = sum(|row| row.free.gpus.0);
        meter.unusable = typical.unusable(rows);
    }

    /// Adds up the pools, after some were looked at.
    pub(crate) fn add_up(&mut self) {
        let mut sums = [0_u64; 6];
        for pool in &self.pools {
            let used = pool.capacity - pool.free;
            let parts = [
                pool.capacity,
                used,
                pool.capacity * pool.worth,
                used * pool.worth,
                pool.free,
                pool.unusable,
            ];
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum += part;
            }
        }
        self.stale_shares |= self.capacity.rate != sums[0];
        let rates = [
            &mut self.capacity,
            &mut self.used,
            &mut self.capacity_worth,
            &mut self.used_worth,
            &mut self.free,
            &mut self.unusable,
        ];
        for (rate, sum) in rates.into_iter().zip(sums) {
            rate.rate = sum;
        }
    }

    /// A tenant asks for more (or, as it ends, less) than before.
    pub(crate) fn demand_changed(&mut self) {
        self.stale_shares = true;
    }

    /// What waits, by the reason that the last round gave.
    pub(crate) fn clear_blocked(&mut self) {
        for blocked in self.blocked.iter_mut().flatten() {
            (blocked.gangs, blocked.gpus) = (0, 0);
        }
        for tenant in &mut self.tenants {
            self.stale_shares |= tenant.hopeless > 0;
            tenant.hopeless = 0;
        }
    }

    /// So many gangs of so many GPUs each wait for that.
    pub(crate) fn block(&mut self, reason: Reason, tenant: TenantIx, each: MilliGpus, gangs: u64) {
        let gpus = each.0.saturating_mul(gangs);
        if matches!(reason, Reason::NeverPlaceable | Reason::ExceedsQuota) {
            self.tenants[tenant.index()].hopeless += gpus;
            self.stale_shares = true;
        }
        let blocked = self.blocked[reason as usize].get_or_insert_default();
        blocked.gangs += gangs;
        blocked.gpus += gpus;
    }

    /// What was waited for, in the order of reasons.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = (Reason, Blocked)> {
        let all = Reason::ALL.iter().zip(&self.blocked);
        all.filter_map(|(reason, blocked)| Some((*reason, (*blocked)?)))
    }
}

/// Weighted max-min: everybody gets in proportion to its weight, nobody more than it asks for,
/// and what one does not ask for goes to the others.
fn share_out(tenants: &mut [TenantMeter], capacity: u64) {
    let demand = |tenant: &TenantMeter| tenant.held + tenant.waiting - tenant.hopeless;
    let mut order: Vec<usize> = (0..tenants.len())
        .filter(|ix| demand(&tenants[*ix]) > 0)
        .collect();
    for tenant in tenants.iter_mut() {
        tenant.entitled = 0;
    }
    // Those who ask for the least in proportion to their weight are satisfied first.
    order.sort_by(|a, b| {
        let (a, b) = (&tenants[*a], &tenants[*b]);
        let left = u128::from(demand(a)) * u128::from(b.weight);
        left.cmp(&(u128::from(demand(b)) * u128::from(a.weight)))
    });
    let mut left = capacity;
    let mut weights: u128 = order.iter().map(|ix| u128::from(tenants[*ix].weight)).sum();
    for ix in order {
        let tenant = &mut tenants[ix];
        let share = u128::from(left) * u128::from(tenant.weight) / weights.max(1);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        tenant.entitled = demand(tenant).min(share);
        left -= tenant.entitled;
        weights -= u128::from(tenant.weight);
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::units::{Mebibytes, MilliCpus};

    use super::*;

    fn tenant(weight: u64, held: u64, waiting: u64) -> TenantMeter {
        TenantMeter {
            weight,
            held,
            waiting,
            ..TenantMeter::default()
        }
    }

    #[test]
    fn shares_follow_weights_and_wishes() {
        let entitled = |mut tenants: Vec<TenantMeter>, capacity| {
            share_out(&mut tenants, capacity);
            let all = tenants.iter().map(|tenant| tenant.entitled);
            all.collect::<Vec<_>>()
        };
        // Everybody wants everything: by weight.
        let all = vec![tenant(1, 0, 100), tenant(3, 100, 0)];
        assert_eq!(entitled(all, 100), [25, 75]);
        // One wants little: the rest is shared by the others, by weight.
        let all = vec![tenant(1, 10, 0), tenant(1, 0, 100), tenant(2, 90, 0)];
        assert_eq!(entitled(all, 100), [10, 30, 60]);
        // Who asks for nothing is entitled to nothing.
        assert_eq!(
            entitled(vec![tenant(9, 0, 0), tenant(1, 5, 0)], 100),
            [0, 5]
        );
    }

    #[test]
    fn gpus_that_no_usual_pod_can_use_are_counted() {
        let pod = |gpus| Resources {
            gpus: MilliGpus::cards(gpus),
            ..Resources::default()
        };
        let typical = TypicalPods::new([(pod(1), 3), (pod(4), 1)]);
        let row = |gpus, hosts| Shape {
            domains: Vec::new(),
            allocatable: pod(8),
            free: Resources {
                gpus: MilliGpus::cards(gpus),
                cpu: MilliCpus(0),
                memory: Mebibytes(0),
            },
            hosts,
        };
        // Two hosts with 2 free cards hold three pods of four: 2 x 2 x 1/4 = 1 card is of no use.
        assert_eq!(typical.unusable(&[row(2, 2), row(4, 1), row(0, 5)]), 1000);
    }
}
