//! Alibaba's openb: 1,213 GPU hosts of 15 shapes, and the pods with GPUs that ran on them.
//!
//! Owns making jobs of pods: one gang of one pod each, with the CPU and memory that it asked for.
//! A pod that asked for a part of a card gets a whole one, because parts of cards are not
//! scheduled: the table is denser here than it was.

use std::collections::BTreeMap;

use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};

use super::{Prepared, rules, unpack};
use crate::fleet::Fleet;
use crate::table::{self, Columns, TableError};
use crate::trace::Job;

const PODS: &[u8] = include_bytes!("../../data/openb-pods.csv.gz");
const FILE: &str = "openb-pods.csv.gz";
const HOSTS: &str = include_str!("../../data/openb-hosts.csv");
const COLUMNS: Columns = Columns {
    required: &[
        "created_s",
        "ran_s",
        "gpus",
        "cpu_milli",
        "memory_mib",
        "qos",
    ],
    optional: &["models"],
};

/// All hosts and pods. Tenants are the table's service levels, each with an equal part of the
/// fleet; `LS`, the latency-sensitive, is `inference-online` and the others `batch-long`.
pub fn prepare() -> Result<Prepared, TableError> {
    let fleet = Fleet::read("openb-hosts.csv", HOSTS.as_bytes())?;
    let mut jobs: Vec<Job> = Vec::new();
    table::read(FILE, &unpack(FILE, PODS)?, COLUMNS, |row| {
        let qos: String = row.need("qos")?;
        let class = if qos == "LS" {
            "inference-online"
        } else {
            "batch-long"
        };
        let flavors = row.list("models").map(|model| (model.to_lowercase(), 1000));
        jobs.push(Job {
            line: row.line,
            name: format!("openb-{:05}", jobs.len()),
            submit: UnixMillis::ZERO.after(Millis::seconds(row.need("created_s")?)),
            tenant: qos.to_lowercase(),
            class: class.to_owned(),
            pods: 1,
            per_pod: Resources {
                gpus: MilliGpus::cards(row.need("gpus")?),
                cpu: MilliCpus(row.need("cpu_milli")?),
                memory: Mebibytes(row.need("memory_mib")?),
            },
            duration: Millis::seconds(row.need("ran_s")?),
            flavors: flavors.collect(),
            ..Job::default()
        });
        Ok(())
    })?;
    let mut nominal: BTreeMap<String, u64> = BTreeMap::new();
    for job in &jobs {
        nominal.insert(job.tenant.clone(), 0);
    }
    let part = fleet.gpus().whole() / (nominal.len() as u64).max(1);
    for cards in nominal.values_mut() {
        *cards = part;
    }
    Ok(Prepared {
        name: FILE,
        rules: rules("openb", fleet.gpus().whole(), &nominal),
        fleet,
        jobs,
        hosts: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_as_their_readme_says() {
        let whole = prepare().expect("the tables are whole");
        assert_eq!(whole.fleet.gpus(), MilliGpus::cards(6_212));
        let hosts: u32 = whole
            .fleet
            .pools
            .iter()
            .map(crate::fleet::FleetPool::count)
            .sum();
        assert_eq!((hosts, whole.jobs.len()), (1_213, 6_203));
        assert!(whole.jobs.is_sorted_by_key(|job| job.submit));
    }
}
