//! Each tenant alone: the same jobs and policy on a private cluster of its own quota.
//!
//! Owns the private clusters and the comparison of waits (zero sharing anomaly: nobody should
//! wait longer in the shared fleet than alone). Never judges how much is too much.

use meridian_api::units::{MilliGpus, Millis};
use serde::Serialize;

use crate::engine::{self, EngineError, Options};
use crate::fleet::Fleet;
use crate::meters::Area;
use crate::summary::waits;
use crate::trace::Job;
use crate::world::{Gangs, World};
use meridian_policies::model::{Measure, TenantIx};

/// One tenant in the shared fleet against itself in a private cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sharing {
    /// Which.
    pub tenant: String,
    /// GPUs of its private cluster: whole hosts within its nominal quota.
    pub private_gpus: u64,
    /// Jobs that ran in both.
    pub compared: u64,
    /// Jobs that only the shared fleet could run.
    pub only_shared: u64,
    /// Jobs that waited longer than alone.
    pub waited_longer: u64,
    /// The most that one waited longer.
    pub worst_extra_ms: u64,
    /// Name of that job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_job: Option<String>,
    /// Mean wait in the shared fleet, of the jobs that ran in both.
    pub shared_mean_ms: u64,
    /// Mean wait alone, of the same.
    pub private_mean_ms: u64,
}

/// Runs each tenant with jobs and a nominal quota alone, and compares.
pub(crate) fn compare(
    world: &World,
    jobs: &[Job],
    gangs: &Gangs,
    shared: &[Option<Millis>],
    options: Options,
) -> Result<Vec<Sharing>, EngineError> {
    let mut found = Vec::new();
    for tenant in (0..).map(TenantIx).take(world.empty.tenants.len()) {
        let own = |ix: &usize| gangs.kind(u32::try_from(*ix).unwrap_or(u32::MAX)).tenant == tenant;
        let mine: Vec<usize> = (0..jobs.len()).filter(own).collect();
        let fleet = private_fleet(world, tenant);
        let gpus = fleet.gpus().whole();
        if mine.is_empty() || gpus == 0 {
            continue;
        }
        let alone = gangs.only(&mine);
        let outcome = engine::run(&world.private(fleet), &alone, &[], options, &mut |_| {})?;
        let alone = waits(&outcome.runs);
        let name = world.tenant_name(tenant).to_owned();
        found.push(judge(name, gpus, jobs, &mine, shared, &alone));
    }
    Ok(found)
}

fn judge(
    tenant: String,
    private_gpus: u64,
    jobs: &[Job],
    mine: &[usize],
    shared: &[Option<Millis>],
    alone: &[Option<Millis>],
) -> Sharing {
    let mut row = Sharing {
        tenant,
        private_gpus,
        compared: 0,
        only_shared: 0,
        waited_longer: 0,
        worst_extra_ms: 0,
        worst_job: None,
        shared_mean_ms: 0,
        private_mean_ms: 0,
    };
    let (mut shared_sum, mut private_sum): (Area, Area) = (0, 0);
    for (ix, alone) in mine.iter().zip(alone) {
        let (Some(shared), Some(alone)) = (shared[*ix], *alone) else {
            row.only_shared += u64::from(shared[*ix].is_some());
            continue;
        };
        row.compared += 1;
        shared_sum += Area::from(shared.0);
        private_sum += Area::from(alone.0);
        let extra = shared.saturating_sub(alone).0;
        row.waited_longer += u64::from(extra > 0);
        if extra > row.worst_extra_ms {
            row.worst_extra_ms = extra;
            row.worst_job = Some(jobs[*ix].name.clone());
        }
    }
    let mean = |sum: Area| {
        let mean = sum.checked_div(row.compared.into()).unwrap_or_default();
        u64::try_from(mean).unwrap_or(u64::MAX)
    };
    (row.shared_mean_ms, row.private_mean_ms) = (mean(shared_sum), mean(private_sum));
    row
}

/// Whole hosts of the fleet within the tenant's nominal quota: of each flavor as its row says, of
/// all flavors in proportion to what the fleet has where one row counts them together.
fn private_fleet(world: &World, tenant: TenantIx) -> Fleet {
    let mut fleet = world.fleet.clone();
    let mut counts: Vec<u32> = vec![0; fleet.pools.len()];
    for quota in &world.empty.tenants[tenant.index()].quotas {
        let counted = |pool: usize| {
            let place = world.empty.place(&world.empty.pools[pool]);
            matches!(quota.measure, Measure::Gpus { .. }) && quota.measure.counts(place)
        };
        let pools: Vec<usize> = (0..fleet.pools.len()).filter(|ix| counted(*ix)).collect();
        for (pool, hosts) in deal(&fleet, &pools, MilliGpus(quota.nominal)) {
            counts[pool] = counts[pool].max(hosts);
        }
    }
    for (pool, mut left) in fleet.pools.iter_mut().zip(counts) {
        for row in &mut pool.hosts {
            row.count = row.count.min(left);
            left -= row.count;
        }
        pool.hosts.retain(|row| row.count > 0);
    }
    fleet
}

/// Hosts per pool: in proportion first, rounded down, then one more where the remainder is the
/// largest, as long as that stays within `nominal`.
fn deal(fleet: &Fleet, pools: &[usize], nominal: MilliGpus) -> Vec<(usize, u32)> {
    let all: u64 = pools.iter().map(|ix| fleet.pools[*ix].gpus().0).sum();
    let mut dealt = Vec::with_capacity(pools.len());
    let mut left = nominal.0;
    for ix in pools {
        let pool = &fleet.pools[*ix];
        let scaled = u128::from(pool.count()) * u128::from(nominal.0.min(all));
        let hosts = u32::try_from(scaled.checked_div(all.into()).unwrap_or_default());
        let hosts = hosts.unwrap_or(u32::MAX);
        let rest = scaled.checked_rem(all.into()).unwrap_or_default();
        left = left.saturating_sub(mean_gpus(fleet, *ix) * u64::from(hosts));
        dealt.push((*ix, hosts, rest));
    }
    let mut order: Vec<usize> = (0..dealt.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(dealt[*at].2), *at));
    for at in order {
        let (ix, hosts, rest) = &mut dealt[at];
        let each = mean_gpus(fleet, *ix);
        if *rest > 0 && each > 0 && each <= left && *hosts < fleet.pools[*ix].count() {
            *hosts += 1;
            left -= each;
        }
    }
    dealt
        .into_iter()
        .map(|(ix, hosts, _)| (ix, hosts))
        .collect()
}

fn mean_gpus(fleet: &Fleet, pool: usize) -> u64 {
    let pool = &fleet.pools[pool];
    pool.gpus()
        .0
        .checked_div(pool.count().into())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::FleetPool;

    #[test]
    fn quota_becomes_whole_hosts() {
        let fleet = Fleet {
            pools: vec![
                FleetPool::uniform("a", "p", "h100", 6, 8),
                FleetPool::uniform("b", "q", "h100", 2, 8),
            ],
        };
        let deal = |cards| deal(&fleet, &[0, 1], MilliGpus::cards(cards));
        assert_eq!(deal(64), [(0, 6), (1, 2)]);
        assert_eq!(deal(32), [(0, 3), (1, 1)]);
        // 2 of 8 hosts: 1.5 and 0.5, and the first of two equal remainders gets the second host.
        assert_eq!(deal(16), [(0, 2), (1, 0)]);
        assert_eq!(deal(7), [(0, 0), (1, 0)]);
        assert_eq!(deal(1000), [(0, 6), (1, 2)]);
    }
}
