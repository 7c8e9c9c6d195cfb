//! Microsoft's Philly: 82,247 training jobs of 15 virtual clusters in 110 days of 2017.
//!
//! Owns the reading of the table and what it leaves open, for the simulator and the playground
//! alike: a job's gang, its class, who owns what. Never knows a fleet but in size.

use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};

use super::{Prepared, rules, unpack};
use crate::fleet::{Fleet, FleetPool};
use crate::table::{self, Columns, TableError};
use crate::trace::{HostsUp, Job};

const JOBS: &[u8] = include_bytes!("../../data/philly.csv.gz");
const HOSTS: &str = include_str!("../../data/philly-hosts.csv");

/// 2017-09-04T00:00:00Z, a Monday: the first instant of the table.
pub const BEGIN: UnixMillis = UnixMillis(1_504_483_200_000);
/// One day.
pub const DAY: Millis = Millis::seconds(86_400);
/// Days from the first to the last submission.
pub const DAYS: u64 = 110;
/// The root of the tenant tree.
pub const ROOT: &str = "philly";
/// GPUs of the largest pod: a whole host of that time and of most fleets since.
const GPUS_PER_HOST: u64 = 8;
/// `batch-short` ends a run after 2 h. A job is of it when it leaves room for the slowest start
/// of its pods (8 s) many times over.
const SHORT_AT_MOST: Millis = Millis::seconds(2 * 3600 - 300);
/// Every virtual cluster owns at least one host.
const LEAST_NOMINAL: u64 = GPUS_PER_HOST;
/// `batch-long` has jobs that save their work; how often is not in the table. Every half an hour
/// costs a large model about one percent, which is what its users pay.
const CHECKPOINT: Millis = Millis::seconds(1800);
/// Hosts that the fleet had most of the time: steps of the table are taken as parts of it.
const USUAL_HOSTS: u64 = 420;

/// One job of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhillyJob {
    /// Its row among those asked for, from 0.
    pub row: u32,
    /// When it was submitted, from the first instant asked for.
    pub submit: Millis,
    /// How long it ran; its time in the queue is not in the table.
    pub duration: Millis,
    /// GPUs that it had.
    pub gpus: u64,
    /// Its virtual cluster.
    pub vc: String,
}

/// Jobs submitted in `count` days from day `first` on (from 0), by submission; jobs of one second
/// in the order of the table.
pub fn days(first: u64, count: u64) -> Result<Vec<PhillyJob>, TableError> {
    const FILE: &str = "philly.csv.gz";
    const COLUMNS: Columns = Columns {
        required: &["submit_s", "duration_s", "gpus", "vc"],
        optional: &[],
    };
    let begin = Millis(first.saturating_mul(DAY.0));
    let end = begin.saturating_add(Millis(count.saturating_mul(DAY.0)));
    let mut jobs = Vec::new();
    table::read(FILE, &unpack(FILE, JOBS)?, COLUMNS, |row| {
        let submit = Millis::seconds(row.need("submit_s")?);
        if submit >= begin && submit < end {
            jobs.push(PhillyJob {
                row: u32::try_from(jobs.len()).unwrap_or(u32::MAX),
                submit: submit.saturating_sub(begin),
                duration: Millis::seconds(row.need("duration_s")?),
                gpus: row.need("gpus")?,
                vc: row.need("vc")?,
            });
        }
        Ok(())
    })?;
    Ok(jobs)
}

/// Class of a job: by its run time, as a user would choose who knows it.
#[must_use]
pub fn class(job: &PhillyJob) -> &'static str {
    if job.duration <= SHORT_AT_MOST {
        "batch-short"
    } else {
        "batch-long"
    }
}

/// Tenant and namespace of a virtual cluster; its hash may begin with a digit.
#[must_use]
pub fn tenant(vc: &str) -> String {
    format!("vc-{vc}")
}

/// Pods of a job and GPUs of each: one pod up to a whole host, else the fewest equal pods of a
/// power of two, which is how hosts are divided: 12 = 3 x 4, 24 = 3 x 8.
#[must_use]
pub fn shape(gpus: u64) -> (u64, u64) {
    if gpus <= GPUS_PER_HOST {
        return (1, gpus);
    }
    let sizes = [8, 4, 2, 1].into_iter();
    let size = sizes.clone().find(|size| gpus.is_multiple_of(*size));
    let size = size.unwrap_or(1);
    (gpus / size, size)
}

/// What each virtual cluster owns of `fleet` GPUs: at least a host, and the rest in proportion to
/// the GPU time that its jobs ask for in all, rounded down.
#[must_use]
pub fn nominal(jobs: &[PhillyJob], fleet: u64) -> BTreeMap<String, u64> {
    let asked = asked(jobs);
    let all: u128 = asked.values().sum();
    let rest = fleet.saturating_sub(LEAST_NOMINAL * asked.len() as u64);
    let share = |time: u128| {
        let share = u128::from(rest) * time / all.max(1);
        LEAST_NOMINAL + u64::try_from(share).unwrap_or(0)
    };
    asked
        .into_iter()
        .map(|(vc, time)| (vc.to_owned(), share(time)))
        .collect()
}

/// GPU time that the jobs of each virtual cluster ask for, in GPUs times milliseconds.
fn asked(jobs: &[PhillyJob]) -> BTreeMap<&str, u128> {
    let mut asked: BTreeMap<&str, u128> = BTreeMap::new();
    for job in jobs {
        let time = u128::from(job.gpus) * u128::from(job.duration.0);
        *asked.entry(&job.vc).or_default() += time;
    }
    asked
}

/// Those days on one pool of 8-GPU hosts, as many as let their jobs ask for `load` percent of it
/// on average. Hosts go and come as the other table of Philly tells, in proportion.
pub fn prepare(first: u64, count: u64, load: u64) -> Result<Prepared, TableError> {
    let table = days(first, count)?;
    let times = table
        .iter()
        .map(|job| u128::from(job.gpus * job.duration.0));
    let span = u128::from(count.max(1)) * u128::from(DAY.0);
    let gpus = times.sum::<u128>() * 100 / (span * u128::from(load.max(1)));
    let hosts = u32::try_from(gpus.div_ceil(GPUS_PER_HOST.into())).unwrap_or(u32::MAX);
    // The largest job of the table must fit, however few days are asked for.
    let largest = table.iter().map(|job| job.gpus).max().unwrap_or_default();
    let hosts = hosts.max(u32::try_from(largest.div_ceil(GPUS_PER_HOST)).unwrap_or(u32::MAX));
    let pool = FleetPool::uniform("philly", "gpu", "gpu", hosts, GPUS_PER_HOST);
    let owned = nominal(&table, pool.gpus().whole());
    let owned = owned.iter().map(|(vc, cards)| (tenant(vc), *cards));
    let begin = BEGIN.after(Millis(first.saturating_mul(DAY.0)));
    Ok(Prepared {
        name: "philly.csv.gz",
        rules: rules(ROOT, pool.gpus().whole(), &owned.collect()),
        fleet: Fleet { pools: vec![pool] },
        jobs: table.iter().map(|row| job(row, begin)).collect(),
        hosts: steps(hosts, begin)?,
    })
}

/// The same with each of the `count` virtual clusters that ask for most in a region of its own, all
/// of one size: its jobs may run in any, its own first, and it owns what stands there. Left out are
/// the jobs of the others, and those that are wider than a whole region.
pub fn homes(first: u64, days: u64, count: usize, load: u64) -> Result<Prepared, TableError> {
    let table = self::days(first, days)?;
    let asked = asked(&table);
    let mut largest: Vec<&str> = asked.keys().copied().collect();
    largest.sort_by_key(|vc| (std::cmp::Reverse(asked[vc]), *vc));
    largest.truncate(count);
    let rows = table.iter();
    let mut rows: Vec<&PhillyJob> = rows.filter(|row| largest.contains(&&*row.vc)).collect();
    let span = u128::from(days.max(1)) * u128::from(DAY.0);
    let hosts = loop {
        let times = rows.iter().map(|row| u128::from(row.gpus * row.duration.0));
        let gpus = times.sum::<u128>() * 100 / (span * u128::from(load.max(1)));
        let hosts = gpus.div_ceil(u128::from(GPUS_PER_HOST) * largest.len().max(1) as u128);
        let hosts = u32::try_from(hosts).unwrap_or(u32::MAX).max(1);
        let before = rows.len();
        rows.retain(|row| row.gpus <= u64::from(hosts) * GPUS_PER_HOST);
        if rows.len() == before {
            break hosts;
        }
    };
    let mut regions: Vec<String> = largest.iter().map(|vc| tenant(vc)).collect();
    regions.sort();
    let pool = |region: &String| FleetPool::uniform(region, "gpu", "gpu", hosts, GPUS_PER_HOST);
    let pools: Vec<FleetPool> = regions.iter().map(pool).collect();
    let each = u64::from(hosts) * GPUS_PER_HOST;
    let owned = regions.iter().map(|region| (region.clone(), each));
    let fleet = each * regions.len() as u64;
    let begin = BEGIN.after(Millis(first.saturating_mul(DAY.0)));
    let at_home_first = |row: &PhillyJob| {
        let home = tenant(&row.vc);
        let others = regions.iter().filter(|region| **region != home).cloned();
        Job {
            regions: std::iter::once(home.clone()).chain(others).collect(),
            ..job(row, begin)
        }
    };
    Ok(Prepared {
        name: "philly.csv.gz",
        rules: rules(ROOT, fleet, &owned.collect()),
        fleet: Fleet { pools },
        jobs: rows.into_iter().map(at_home_first).collect(),
        hosts: Vec::new(),
    })
}

fn job(row: &PhillyJob, begin: UnixMillis) -> Job {
    let (pods, gpus) = shape(row.gpus);
    let class = class(row);
    Job {
        line: u64::from(row.row) + 1,
        name: format!("philly-{:05}", row.row),
        submit: begin.after(row.submit),
        tenant: tenant(&row.vc),
        class: class.to_owned(),
        pods: u32::try_from(pods).unwrap_or(u32::MAX),
        per_pod: Resources {
            gpus: MilliGpus::cards(gpus),
            ..Resources::default()
        },
        duration: row.duration,
        checkpoint: (class == "batch-long").then_some(CHECKPOINT),
        ..Job::default()
    }
}

/// Steps of the table of hosts as parts of `hosts`; more than usual is as many as usual.
fn steps(hosts: u32, begin: UnixMillis) -> Result<Vec<HostsUp>, TableError> {
    const COLUMNS: Columns = Columns {
        required: &["at_s", "hosts"],
        optional: &[],
    };
    let mut steps = Vec::new();
    table::read("philly-hosts.csv", HOSTS.as_bytes(), COLUMNS, |row| {
        let up: u64 = row.need("hosts")?;
        let up = up.min(USUAL_HOSTS) * u64::from(hosts) / USUAL_HOSTS;
        steps.push(HostsUp {
            at: BEGIN.after(Millis::seconds(row.need("at_s")?)),
            cluster: "philly".to_owned(),
            pool: "gpu".to_owned(),
            up: u32::try_from(up).unwrap_or(u32::MAX),
        });
        Ok(())
    })?;
    steps.retain(|step| step.at >= begin);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_its_readme_says() {
        let jobs = days(0, DAYS).expect("the table is whole");
        assert_eq!(jobs.len(), 82_247);
        assert!(jobs.is_sorted_by_key(|job| job.submit));
        let hours: u64 = jobs.iter().map(|job| job.gpus * job.duration.0).sum();
        assert_eq!(hours / 3_600_000, 978_078);
        assert_eq!(jobs.iter().filter(|job| job.gpus == 1).count(), 76_627);
        assert!(days(0, DAYS - 1).expect("whole").len() < jobs.len());
    }

    #[test]
    fn gangs_are_of_equal_pods_that_fit_a_host() {
        let cases = [1, 2, 4, 8, 12, 16, 24, 32].map(|gpus| (gpus, shape(gpus)));
        let expected = [
            (1, (1, 1)),
            (2, (1, 2)),
            (4, (1, 4)),
            (8, (1, 8)),
            (12, (3, 4)),
            (16, (2, 8)),
            (24, (3, 8)),
            (32, (4, 8)),
        ];
        assert_eq!(cases, expected);
    }

    #[test]
    fn quotas_fit_into_the_fleet() {
        let week = days(49, 7).expect("the table is whole");
        let nominal = nominal(&week, 820);
        assert_eq!(nominal.len(), 11);
        let sum: u64 = nominal.values().sum();
        assert!((820 - 11..=820).contains(&sum), "{sum}");
    }

    #[test]
    fn an_outage_of_the_table_is_one_of_the_fleet() {
        let steps = steps(100, BEGIN).expect("the table is whole");
        let up: Vec<u32> = steps.iter().map(|step| step.up).collect();
        assert_eq!(up, [100, 100, 100, 41, 100]);
        assert_eq!(steps[4].at.since(steps[3].at), Millis::seconds(3600));
    }
}
