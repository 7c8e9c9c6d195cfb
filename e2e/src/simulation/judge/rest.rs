//! The end of a run: after the calm, everything has come to rest.
//!
//! Owns L1, L2 and S9 at rest. Reads the clusters from outside
//! their API. Never waits.

use std::collections::BTreeMap;

use meridian_agent::backend::{GangSeen, PodPhase};
use meridian_api::ids::GangId;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::check::truth::{self, GangAtRest};
use meridian_policies::lifecycle::State;
use meridian_policies::model::GangShape;

use super::broken;
use super::clusters::Clusters;
use super::store::{Row, StoreTruth};
use crate::simulation::world::World;

/// A row that is starting for longer is stuck: a gang that finds no nodes gives up after 12 s here,
/// is undone in 5 s, and an agent that has been away attaches within 10 s.
const LONGEST_START: Millis = Millis::seconds(25);
/// A row that drains for longer is stuck: a stop takes 5 s of grace at most here, a dead machine is
/// noticed within 8 s, and an agent that has been away attaches within 10 s.
const LONGEST_DRAIN: Millis = Millis::seconds(25);
/// A gang of which nothing has started or ended for this long is at rest: starts and ends of one
/// gang lie within 3 s, a dead machine is noticed within 8 s.
const AT_REST: Millis = Millis::seconds(15);

/// What must be so at the end.
pub(super) fn check(
    world: &World,
    store: &StoreTruth,
    clusters: &Clusters,
    explained: &BTreeMap<String, (String, Vec<String>)>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if store.leader().is_none() {
        found.push(broken("L3", "nobody leads at the end".to_owned()));
    }
    if store.acknowledged() == 0 || clusters.starts() == 0 {
        found.push(broken("alive", "nothing was done".to_owned()));
    }
    found.extend(placed_or_explained(store, explained));
    found.extend(rows_move(store, world.now()));
    let mut shapes: BTreeMap<GangId, (GangShape, Vec<u32>)> = BTreeMap::new();
    for row in store.rows() {
        let record = &row.record;
        if clusters.quiet_for(record.gang, world.now()) > AT_REST {
            let running = vec![0; record.roles.len()];
            shapes.insert(record.gang, (record.shape(), running));
        }
    }
    for slot in &world.clusters {
        for gang in slot.cluster.snapshot(world.now()).gangs {
            let row = store.row(gang.key.gang);
            let ours = row.filter(|row| *row.cluster == *slot.name && row.epoch == gang.key.epoch);
            if ours.is_none() && gang.pods.iter().any(|pod| !pod.phase.ended()) {
                let message = format!("{} runs in {} without a row", gang.key, slot.name);
                found.push(broken("L2", message));
            }
            if let Some((shape, running)) = shapes.get_mut(&gang.key.gang) {
                count_running(&gang, shape, running);
            }
        }
    }
    let at_rest = shapes.iter().map(|(gang, (shape, running))| GangAtRest {
        gang: *gang,
        shape,
        running: running.clone(),
    });
    found.extend(truth::gangs_at_rest(&at_rest.collect::<Vec<_>>()));
    found
}

fn count_running(gang: &GangSeen, shape: &GangShape, running: &mut [u32]) {
    for pod in &gang.pods {
        let role = shape.roles.iter().position(|role| role.name == pod.role);
        if let Some(role) = role.filter(|_| pod.phase == PodPhase::Running) {
            running[role] += 1;
        }
    }
}

/// L2: no row is stuck on its way.
fn rows_move(store: &StoreTruth, now: UnixMillis) -> Vec<Violation> {
    let stuck = |row: &Row| {
        let age = now.since(row.written);
        let longest = match row.record.state {
            State::Starting => LONGEST_START,
            State::Draining(_) => LONGEST_DRAIN,
            State::Running => return None,
        };
        let (gang, state) = (row.record.gang, row.record.state);
        let message = format!("the row of {gang} is {state:?} since {age}");
        (age > longest).then(|| broken("L2", message))
    };
    store.rows().filter_map(stuck).collect()
}

/// L1: each acknowledged job that is neither over nor going was explained, with reasons when it
/// waits.
fn placed_or_explained(
    store: &StoreTruth,
    explained: &BTreeMap<String, (String, Vec<String>)>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for uid in store.jobs().filter(|uid| store.was_told(uid)) {
        match explained.get(uid) {
            _ if store.is_going(uid) => {}
            None => {
                let message = format!("no hub says anything of job {uid}");
                found.push(broken("L1", message));
            }
            Some((phase, reasons)) if phase == "Pending" && reasons.is_empty() => {
                let message = format!("job {uid} waits and nobody says why");
                found.push(broken("L1", message));
            }
            Some(_) => {}
        }
    }
    found
}
