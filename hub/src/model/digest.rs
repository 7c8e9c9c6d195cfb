//! Digests as agents send them, read and checked.
//!
//! Owns the limits on what an agent may say, and the way from messages to rows. A session reads
//! them before the model sees them, so that one that makes no sense ends that session alone.

use meridian_api::ids::GangId;
use meridian_api::kinds::federated_job::validate::MAX_ROLES;
use meridian_api::units::{MilliGpus, Resources, UnixMillis};
use meridian_policies::model::Shape;
use meridian_policies::shapes;
use meridian_proto::convert::{self, Malformed};
use meridian_proto::v1;

use super::fleet::{PoolState, Seen, SeenSeat};
use super::offers::Offer;

/// Most pools of one cluster. Hardware generations times purposes in the largest fleets known stay
/// below a hundred.
const MAX_POOLS: usize = 1024;
/// Most rows of one pool: one per host of the largest clusters (Kubernetes ends at 5,000 nodes),
/// twice over.
const MAX_SHAPES: usize = 10_000;
/// Most gangs in one message: each holds a GPU at least, and no cluster known has more cards.
const MAX_GANGS: usize = 100_000;
/// Findings of one pool that are kept: more than a person reads, and with [`MAX_TEXT`] some 8 KiB
/// in the status of its cluster.
const MAX_FINDINGS: usize = 16;
/// Longest text of an agent that is kept, in characters: it goes into the status of a job.
const MAX_TEXT: usize = 512;

/// What an agent sees, or what of it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    /// It replaces everything.
    pub(crate) full: bool,
    /// Pools by name.
    pub(crate) pools: Vec<(String, PoolState)>,
    /// Pools that are gone.
    pub(crate) removed_pools: Vec<String>,
    /// Gangs.
    pub(crate) seen: Vec<(GangId, Seen)>,
    /// Gangs that are forgotten.
    pub(crate) removed_gangs: Vec<GangId>,
    /// Gangs that others made.
    pub(crate) offers: Vec<Offer>,
    /// Those whose owner is gone.
    pub(crate) removed_offers: Vec<String>,
    /// Gangs of others that lack something; `None` = as before.
    pub(crate) held_back: Option<Vec<String>>,
}

impl Digest {
    /// Reads and checks a message.
    pub(crate) fn read(digest: &v1::Digest) -> Result<Self, Malformed> {
        if digest.pools.len() > MAX_POOLS {
            return Err(too_many(
                "digest.pools",
                digest.pools.len(),
                "at most 1024 pools",
            ));
        }
        let removed = digest.removed_gangs.iter().map(GangId::try_from);
        Ok(Self {
            full: digest.full,
            pools: digest.pools.iter().map(pool).collect::<Result<_, _>>()?,
            removed_pools: digest.removed_pools.clone(),
            seen: observations(&digest.gangs)?,
            removed_gangs: removed.collect::<Result<_, _>>()?,
            offers: digest.offers.iter().filter_map(Offer::read).collect(),
            removed_offers: digest.removed_offers.clone(),
            held_back: digest.held_back.as_ref().map(|held| shown(&held.gangs)),
        })
    }
}

/// Reads and checks observations.
pub(crate) fn observations(
    gangs: &[v1::GangObservation],
) -> Result<Vec<(GangId, Seen)>, Malformed> {
    if gangs.len() > MAX_GANGS {
        return Err(too_many(
            "gangs",
            gangs.len(),
            "at most 100000 gangs in a message",
        ));
    }
    gangs.iter().map(observation).collect()
}

fn too_many(what: &'static str, found: usize, expected: &'static str) -> Malformed {
    Malformed::Wrong {
        what,
        found: found.to_string(),
        expected,
    }
}

fn pool(pool: &v1::Pool) -> Result<(String, PoolState), Malformed> {
    if pool.shapes.len() > MAX_SHAPES {
        return Err(too_many(
            "pool.shapes",
            pool.shapes.len(),
            "at most 10000 rows a pool",
        ));
    }
    let rows = pool.shapes.iter().map(|row| shape(row, pool.levels.len()));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let state = PoolState {
        flavor: pool.flavor.clone(),
        levels: pool.levels.clone(),
        shapes: shapes::canonical(&rows),
        out: MilliGpus(pool.out_milli_gpus),
        findings: shown(&pool.findings),
    };
    Ok((pool.name.clone(), state))
}

/// The first of these texts, cut to what a person reads.
fn shown(texts: &[String]) -> Vec<String> {
    let texts = texts.iter().take(MAX_FINDINGS);
    let texts = texts.map(|text| text.chars().take(MAX_TEXT).collect());
    texts.collect()
}

fn shape(row: &v1::Shape, levels: usize) -> Result<Shape, Malformed> {
    if row.domains.len() != levels {
        let found = row.domains.len();
        return Err(too_many(
            "shape.domains",
            found,
            "one name per level of its pool",
        ));
    }
    let allocatable: Resources = row
        .allocatable
        .ok_or(Malformed::Missing("shape.allocatable"))?
        .into();
    let free: Resources = row.free.ok_or(Malformed::Missing("shape.free"))?.into();
    if !allocatable.covers(free) {
        return Err(Malformed::Wrong {
            what: "shape.free",
            found: format!("{free:?}"),
            expected: "at most what the host has",
        });
    }
    Ok(Shape {
        domains: row.domains.clone(),
        allocatable,
        free,
        hosts: row.hosts,
    })
}

fn observation(seen: &v1::GangObservation) -> Result<(GangId, Seen), Malformed> {
    let gang = convert::gang(seen.gang.as_ref())?;
    let instant = |millis: i64| (millis != 0).then_some(UnixMillis(millis));
    let state = Seen {
        epoch: convert::epoch(seen.epoch)?,
        step: seen.step(),
        holds: !seen.holds.is_empty(),
        reason: seen.reason.chars().take(MAX_TEXT).collect(),
        exit_code: seen.exit_code,
        message: seen.message.chars().take(MAX_TEXT).collect(),
        started: instant(seen.started_ms),
        ended: instant(seen.ended_ms),
        checkpoint: instant(seen.checkpoint_ms),
        sizes: sizes(seen)?,
        seats: seats(seen)?,
    };
    Ok((gang, state))
}

/// Host by host; a seat that makes no sense is left out, so that nobody counts on its room.
fn seats(seen: &v1::GangObservation) -> Result<Vec<SeenSeat>, Malformed> {
    let each = seen.holds.iter().flat_map(|hold| &hold.each);
    if each.clone().count() > MAX_SHAPES {
        let found = each.count();
        return Err(too_many("holds.each", found, "at most 10000 hosts a gang"));
    }
    let seat = |it: &v1::HostHold| {
        let roles = it.roles.iter().take(MAX_ROLES);
        Some(SeenSeat {
            host: it.host,
            domains: it.domains.clone(),
            held: it.held?.into(),
            allocatable: it.allocatable?.into(),
            foreign: it.foreign.map(Resources::from).unwrap_or_default(),
            pods: roles.map(|size| (size.role.clone(), size.pods)).collect(),
        })
    };
    Ok(each.filter_map(seat).collect())
}

fn sizes(seen: &v1::GangObservation) -> Result<Vec<(String, u32)>, Malformed> {
    if seen.sizes.len() > MAX_ROLES {
        let found = seen.sizes.len();
        return Err(too_many("gang.sizes", found, "one size per role"));
    }
    let size = |size: &v1::RoleSize| (size.role.clone(), size.pods);
    Ok(seen.sizes.iter().map(size).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_cannot_have_more_free_than_it_has() {
        let one = |gpus| {
            Some(v1::Resources {
                milli_gpus: gpus,
                ..Default::default()
            })
        };
        let row = v1::Shape {
            domains: vec![],
            allocatable: one(1),
            free: one(2),
            hosts: 1,
        };
        let lying = v1::Pool {
            name: "a".into(),
            shapes: vec![row],
            ..Default::default()
        };
        let digest = v1::Digest {
            full: true,
            pools: vec![lying],
            ..Default::default()
        };
        let error = Digest::read(&digest).expect_err("refused");
        assert!(error.to_string().contains("shape.free"));
    }
}
