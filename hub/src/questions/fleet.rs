//! Questions about the fleet: GPUs of every pool, and everything about one cluster.
//!
//! Owns these answers, in the words of the wire. Changes nothing.

use std::collections::BTreeMap;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::units::{MilliGpus, Resources};
use meridian_policies::fit::{HOST, largest_gang};
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Contact, Shape};
use meridian_policies::shapes;
use meridian_proto::v1;

use crate::model::{ClusterState, Model, PoolState, Situation};
use crate::placement::PlacementRecord;

/// Most gangs of one cluster in one answer; at some 200 bytes each far below a message's limit.
const MAX_GANGS: u32 = 5_000;

/// GPUs of the pods that most gangs are made of.
const USUAL_PODS: [u64; 4] = [1, 2, 4, 8];

/// Gangs of one pool, by how far they are.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    starting: u32,
    running: u32,
    stopping: u32,
}

impl Counts {
    fn count(&mut self, state: State) {
        let counter = match state {
            State::Starting => &mut self.starting,
            State::Running => &mut self.running,
            State::Draining(_) => &mut self.stopping,
        };
        *counter = counter.saturating_add(1);
    }
}

/// The word for a placement's state.
pub(super) const fn word(state: State) -> &'static str {
    match state {
        State::Starting => "Starting",
        State::Running => "Running",
        State::Draining(_) => "Stopping",
    }
}

/// GPUs of each pool, by cluster and name.
pub(super) fn capacity(
    model: &Model,
    situation: Situation,
    request: &v1::CapacityRequest,
) -> v1::CapacityResponse {
    let mut counts: BTreeMap<(&str, &str), Counts> = BTreeMap::new();
    for row in model.placements() {
        let record = row.record.as_ref();
        let pool = (&*record.cluster, &*record.pool);
        counts.entry(pool).or_default().count(record.state);
    }
    let mut pools = Vec::new();
    for (name, cluster) in &model.catalog.clusters {
        let Some(state) = model.fleet.clusters.get(name) else {
            continue;
        };
        let wanted =
            |known: &PoolState| request.flavor.is_empty() || known.flavor == request.flavor;
        for (pool, known) in state.pools.iter().filter(|(_, known)| wanted(known)) {
            let counts = counts.get(&(name.as_str(), pool.as_str()));
            pools.push(v1::PoolCapacity {
                region: cluster.value.spec.region.clone(),
                cluster: name.clone(),
                pool: pool.clone(),
                largest_gangs: if request.gangs {
                    largest_gangs(known)
                } else {
                    Vec::new()
                },
                ..pool_capacity(state, known, counts.copied().unwrap_or_default(), situation)
            });
        }
    }
    v1::CapacityResponse { pools }
}

fn pool_capacity(
    state: &ClusterState,
    pool: &PoolState,
    counts: Counts,
    situation: Situation,
) -> v1::PoolCapacity {
    let total = shapes::allocatable(&pool.shapes)
        .gpus
        .saturating_add(pool.out);
    v1::PoolCapacity {
        flavor: pool.flavor.clone(),
        total_milli_gpus: total.0,
        free_milli_gpus: shapes::free(&pool.shapes).gpus.0,
        out_milli_gpus: pool.out.0,
        largest_host_milli_gpus: largest_host(&pool.shapes).0,
        largest_block_milli_gpus: largest_block(&pool.shapes).0,
        // While beats arrive, what was last reported is what is so.
        age_ms: state.silence(situation.boot).0,
        contact: contact(state, situation).to_owned(),
        gangs_starting: counts.starting,
        gangs_running: counts.running,
        gangs_stopping: counts.stopping,
        levels: pool.levels.clone(),
        findings: pool.findings.clone(),
        ..v1::PoolCapacity::default()
    }
}

/// The largest gangs of pods of usual sizes, up to a whole host, in one host, one domain of each
/// level, and the whole pool.
fn largest_gangs(pool: &PoolState) -> Vec<v1::LargestGang> {
    let host = pool.shapes.iter().map(|row| row.allocatable.gpus).max();
    let host = host.unwrap_or_default();
    let usual = USUAL_PODS.map(MilliGpus::cards).into_iter();
    let mut sizes: Vec<MilliGpus> = usual.filter(|size| *size < host).collect();
    sizes.extend(Some(host).filter(|host| *host > MilliGpus::ZERO));
    let levels = pool.levels.iter().rev().map(String::as_str);
    let levels: Vec<&str> = [HOST].into_iter().chain(levels).collect();
    let mut gangs = Vec::new();
    for gpus in sizes {
        let per_pod = Resources {
            gpus,
            ..Resources::default()
        };
        let most = |level| largest_gang(&pool.levels, &pool.shapes, per_pod, level);
        let within = levels.iter().map(|level| (*level, most(Some(*level))));
        let all = within.chain([("pool", most(None))]);
        gangs.extend(all.map(|(level, pods)| v1::LargestGang {
            milli_gpus_per_pod: gpus.0,
            within: level.to_owned(),
            pods,
        }));
    }
    gangs
}

fn contact(state: &ClusterState, situation: Situation) -> &'static str {
    match state.contact(situation.boot, situation.terms) {
        Contact::Ready => "Ready",
        Contact::Suspect => "Suspect",
        Contact::Unreachable => "Unreachable",
        Contact::Lost => "Lost",
    }
}

/// Everything about one cluster.
pub(super) fn cluster(
    model: &Model,
    situation: Situation,
    request: &v1::ClusterRequest,
) -> Result<v1::ClusterResponse, ApiError> {
    let name = request.name.as_str();
    let declared = model.catalog.clusters.get(name).ok_or_else(|| {
        let message = format!("there is no MemberCluster {name:?}");
        ApiError::new(ErrorCode::NotFound, message).help("list them: meridian cluster list")
    })?;
    let spec = &declared.value.spec;
    let everything = capacity(model, situation, &v1::CapacityRequest::default());
    let here = model.placements().map(|row| row.record.as_ref());
    let here: Vec<_> = here.filter(|record| *record.cluster == *name).collect();
    let limit = match request.limit {
        0 => MAX_GANGS,
        limit => limit.min(MAX_GANGS),
    };
    let state = model.fleet.clusters.get(name);
    Ok(v1::ClusterResponse {
        name: name.to_owned(),
        region: spec.region.clone(),
        contact: state
            .map_or("Lost", |state| contact(state, situation))
            .to_owned(),
        age_ms: state.map_or(0, |state| state.silence(situation.boot).0),
        agent_version: state.map(|state| state.version.clone()).unwrap_or_default(),
        cordoned: spec.cordoned,
        drained: spec.drained,
        pools: everything
            .pools
            .into_iter()
            .filter(|pool| pool.cluster == name)
            .collect(),
        gangs_total: u32::try_from(here.len()).unwrap_or(u32::MAX),
        milli_gpus_total: here
            .iter()
            .fold(MilliGpus::ZERO, |sum, record| {
                sum.saturating_add(record.gpus)
            })
            .0,
        gangs: here
            .into_iter()
            .take(limit as usize)
            .map(standing)
            .collect(),
    })
}

fn standing(record: &PlacementRecord) -> v1::StandingGang {
    v1::StandingGang {
        namespace: record.namespace.to_string(),
        name: record.job.to_string(),
        index: record.gang.index,
        tenant: record.tenant.to_string(),
        workload_class: record.class.to_string(),
        pool: record.pool.to_string(),
        epoch: record.epoch.0,
        state: word(record.state).to_owned(),
        milli_gpus: record.gpus.0,
        since_ms: record.started.unwrap_or(record.decided).0,
    }
}

fn largest_host(shapes: &[Shape]) -> MilliGpus {
    let hosts = shapes.iter().filter(|row| row.hosts > 0);
    hosts.map(|row| row.free.gpus).max().unwrap_or_default()
}

/// Most GPUs free in one widest domain; a pool without levels is one domain.
fn largest_block(shapes: &[Shape]) -> MilliGpus {
    let mut blocks = BTreeMap::<&str, MilliGpus>::new();
    for row in shapes {
        let block = row.domains.first().map_or("", String::as_str);
        let free = row.free.gpus.checked_mul(u64::from(row.hosts));
        let free = free.unwrap_or(MilliGpus(u64::MAX));
        let sum = blocks.entry(block).or_default();
        *sum = sum.saturating_add(free);
    }
    blocks.into_values().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use meridian_policies::lifecycle::DrainReason;
    use serde_json::json;

    use super::*;
    use crate::fixture_tests::{FIRST, Fixture};

    #[test]
    fn a_cluster_is_told_whole() {
        let mut fixture = Fixture::new(4);
        fixture.job(&json!({"copies": 3}), &json!({}));
        fixture.place(0, FIRST, State::Running);
        fixture.place(1, FIRST, State::Starting);
        fixture.place(2, FIRST, State::Draining(DrainReason::Evacuated));
        fixture.cluster(&json!({"drained": true}));
        let request = v1::ClusterRequest {
            name: "euw-a".to_owned(),
            limit: 2,
        };
        let told = cluster(&fixture.model, Fixture::situation(), &request).expect("it is there");
        assert_eq!(
            (told.region.as_str(), told.contact.as_str()),
            ("eu", "Ready")
        );
        assert!(told.drained && !told.cordoned);
        assert_eq!(
            (told.gangs.len(), told.gangs_total),
            (2, 3),
            "listed, and in all"
        );
        assert_eq!(told.milli_gpus_total, 24_000);
        let pool = &told.pools[0];
        let counts = (pool.gangs_running, pool.gangs_starting, pool.gangs_stopping);
        assert_eq!(counts, (1, 1, 1));
        assert_eq!(pool.levels, ["block"]);
        let other = v1::ClusterRequest {
            name: "euw-x".to_owned(),
            limit: 0,
        };
        let missing = cluster(&fixture.model, Fixture::situation(), &other);
        assert_eq!(missing.expect_err("not there").code, ErrorCode::NotFound);
    }
}
