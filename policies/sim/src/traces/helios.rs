//! SenseTime's Helios, cluster Earth: what 16 tenants asked for in each hour of May 2020.
//!
//! Owns making jobs of it. The table holds sums and no jobs: here a tenant submits, at the
//! beginning of each hour, as many jobs as it had then, each of one hour, which together ask for
//! its GPUs of that hour. Good for shares and lending between tenants; not for lengths of jobs.

use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};

use super::{Prepared, rules, unpack};
use crate::fleet::{Fleet, FleetPool};
use crate::table::{self, Columns, TableError};
use crate::trace::Job;

const TABLE: &[u8] = include_bytes!("../../data/helios-earth.csv.gz");
const FILE: &str = "helios-earth.csv.gz";
const COLUMNS: Columns = Columns {
    required: &["hour", "vc", "quota_gpus", "asked_gpus", "jobs"],
    optional: &[],
};
/// 2020-05-01T00:00:00Z.
const BEGIN: UnixMillis = UnixMillis(1_588_291_200_000);
const HOUR: Millis = Millis::seconds(3600);
const GPUS_PER_HOST: u64 = 8;

/// The first `hours` hours of the month (744 are all), on 8-GPU hosts for the sum of all quotas.
pub fn prepare(hours: u64) -> Result<Prepared, TableError> {
    let mut quotas: BTreeMap<String, u64> = BTreeMap::new();
    let mut jobs = Vec::new();
    table::read(FILE, &unpack(FILE, TABLE)?, COLUMNS, |row| {
        let tenant = row.need::<String>("vc")?.to_lowercase();
        let quota: u64 = row.need("quota_gpus")?;
        let known = quotas.entry(tenant.clone()).or_default();
        *known = quota.max(*known);
        let (hour, gpus): (u64, u64) = (row.need("hour")?, row.need("asked_gpus")?);
        if hour < hours {
            let count: u64 = row.need("jobs")?;
            let submit = BEGIN.after(Millis(hour.saturating_mul(HOUR.0)));
            for gpus in parts(gpus, count) {
                jobs.push(job(row.line, &tenant, submit, gpus, jobs.len()));
            }
        }
        Ok(())
    })?;
    let hosts = quotas.values().sum::<u64>().div_ceil(GPUS_PER_HOST);
    let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
    let pool = FleetPool::uniform("earth", "gpu", "gpu", hosts, GPUS_PER_HOST);
    Ok(Prepared {
        name: FILE,
        rules: rules("earth", pool.gpus().whole(), &quotas),
        fleet: Fleet { pools: vec![pool] },
        jobs,
        hosts: Vec::new(),
    })
}

/// `gpus` in `count` parts that differ by one at most, none empty.
fn parts(gpus: u64, count: u64) -> impl Iterator<Item = u64> {
    let count = count.clamp(1, gpus.max(1));
    (0..count)
        .map(move |ix| gpus / count + u64::from(ix < gpus % count))
        .filter(|part| *part > 0)
}

fn job(line: u64, tenant: &str, submit: UnixMillis, gpus: u64, index: usize) -> Job {
    let (pods, each) = super::philly::shape(gpus);
    Job {
        line,
        name: format!("earth-{index:06}"),
        submit,
        tenant: tenant.to_owned(),
        class: "batch-short".to_owned(),
        pods: u32::try_from(pods).unwrap_or(u32::MAX),
        per_pod: Resources {
            gpus: MilliGpus::cards(each),
            ..Resources::default()
        },
        duration: HOUR,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_divided_without_rest() {
        let parts = |gpus, count| parts(gpus, count).collect::<Vec<_>>();
        assert_eq!(parts(58, 10), [6, 6, 6, 6, 6, 6, 6, 6, 5, 5]);
        assert_eq!(parts(2, 10), [1, 1]);
        assert_eq!(parts(3, 0), [3]);
        assert!(parts(0, 0).is_empty());
    }

    #[test]
    fn the_table_is_as_its_readme_says() {
        let whole = prepare(744).expect("the table is whole");
        assert_eq!(whole.rules.tenants.len(), 1 + 16);
        assert_eq!(whole.fleet.gpus(), MilliGpus::cards(856));
    }
}
