//! Who stands on which host: from digests to the rows that preemption reads.
//!
//! Owns the numbering of hosts in a snapshot, and what is kept on them. A host is shown only
//! where its looks are certain: what was decided since its digest makes alike hosts uncertain, and
//! nobody is made to leave one of those. Reads only.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{Resources, UnixMillis};
use meridian_policies::lifecycle::State;
use meridian_policies::model::{
    ClusterIx, GangShape, HeldIx, Hold, HoldRoom, HostIx, HostRow, Leaving, Pool, PoolIx,
    RoleShape, Rule, Seat, Shape, Snapshot, Stage, Standing,
};

use super::snapshot::{Ordinals, ledger_rows};
use super::{ClusterState, Model, Seen, StoredHold};
use crate::holds::StoredVictim;
use crate::placement::{PlacedRole, PlacementRecord};

/// A host of a snapshot, as its agent numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostId {
    /// Its cluster.
    pub(crate) cluster: ClusterIx,
    /// Its number there.
    pub(crate) number: u64,
}

/// Hosts of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    /// What each looks like.
    pub(crate) rows: Vec<HostRow>,
    /// Which it is, in the same order.
    pub(crate) ids: Vec<HostId>,
    by_id: BTreeMap<HostId, HostIx>,
}

impl Hosts {
    /// The host of that number, if its looks are certain.
    pub(crate) fn get(&self, cluster: ClusterIx, number: u64) -> Option<HostIx> {
        self.by_id.get(&HostId { cluster, number }).copied()
    }
}

/// What is known of one host: its domains, its size, and what all gangs and others hold there.
type Known<'a> = (&'a [String], Resources, Resources);

impl Model {
    /// Hosts on which gangs stand.
    pub(super) fn hosts(&self, clusters: &BTreeMap<String, ClusterIx>, pools: &[Pool]) -> Hosts {
        let mut hosts = Hosts::default();
        let named = pools.iter().zip((0..).map(PoolIx));
        let named = named.map(|(pool, ix)| ((pool.cluster, pool.name.as_str()), (pool, ix)));
        let named: BTreeMap<(ClusterIx, &str), (&Pool, PoolIx)> = named.collect();
        for (name, cluster) in clusters {
            let Some(state) = self.fleet.clusters.get(name) else {
                continue;
            };
            for (pool, known) in known_hosts(self, name, state) {
                let Some((shown, ix)) = named.get(&(*cluster, pool)).copied() else {
                    continue;
                };
                let Some(told) = state.pools.get(pool) else {
                    continue;
                };
                let rows = rows(&shown.shapes, &told.shapes);
                for (number, (domains, allocatable, used)) in known {
                    let free = allocatable.checked_sub(used);
                    let row = free.and_then(|free| rows.get(&(domains, allocatable, free)));
                    let Some(shape) = row.copied() else { continue };
                    let id = HostId {
                        cluster: *cluster,
                        number,
                    };
                    let at = HostIx(u32::try_from(hosts.rows.len()).unwrap_or(u32::MAX));
                    hosts.rows.push(HostRow { pool: ix, shape });
                    hosts.ids.push(id);
                    hosts.by_id.insert(id, at);
                }
            }
        }
        hosts
    }

    /// What preemption needs to know of a placement.
    pub(super) fn standing(
        &self,
        hosts: &Hosts,
        cluster: ClusterIx,
        record: &PlacementRecord,
    ) -> Standing {
        let state = self.fleet.clusters.get(&*record.cluster);
        let seen = state.and_then(|state| state.last_seen(record.gang, record.epoch));
        let seen = seen.filter(|seen| seen.epoch == record.epoch);
        let stage = match record.state {
            State::Starting => Stage::Starting,
            State::Running => Stage::Running,
            State::Draining(_) => Stage::Draining,
        };
        Standing {
            job: format!("{}/{}", record.namespace, record.job),
            stage,
            started: record.started,
            saved: seen.and_then(|seen| seen.checkpoint),
            shape: GangShape {
                roles: record.roles.iter().map(role).collect(),
            },
            full: record.full_pods(),
            seats: seen.map_or_else(Vec::new, |seen| seats(hosts, cluster, record, seen)),
            evictions: self.evictions_of(record.gang),
        }
    }

    /// Room that is kept, in ordinals.
    pub(super) fn hold_rows(
        &self,
        ordinals: &Ordinals,
        snapshot: &Snapshot,
        hosts: &Hosts,
    ) -> Vec<Hold> {
        let held = snapshot.held.iter().map(|row| (row.gang, row.epoch));
        let held: BTreeMap<(GangId, Epoch), HeldIx> = held.zip((0..).map(HeldIx)).collect();
        let row = |stored: &StoredHold| {
            let record = &stored.record;
            let cluster = *ordinals.clusters.get(&record.cluster)?;
            let same = |pool: &Pool| pool.cluster == cluster && pool.name == record.pool;
            let pool = snapshot.pools.iter().position(same);
            let pool = pool.and_then(|at| u32::try_from(at).ok()).map(PoolIx);
            let known = |number: &u64| hosts.get(cluster, *number);
            let room = record.room.iter().map(|room| HoldRoom {
                domains: room.domains.clone(),
                allocatable: room.allocatable,
                need: room.need,
                hosts: room.hosts,
                known: room.known.iter().filter_map(known).collect(),
            });
            let leaving = record.victims.iter().filter_map(|victim| {
                let ix = *held.get(&(victim.gang, victim.epoch))?;
                Some(Leaving {
                    held: ix,
                    resources: still_to_go(victim, &snapshot.held[ix.index()].resources)?,
                })
            });
            Some(Hold {
                gang: record.gang,
                tenant: *ordinals.tenants.get(&record.tenant)?,
                cluster,
                flavor: *ordinals.flavors.get(&record.flavor)?,
                pool,
                pods: record.pods.clone(),
                resources: record.resources,
                room: room.collect(),
                rows: ledger_rows(ordinals, &record.ledger),
                victims: leaving.collect(),
                since: record.decided,
                until: record.until,
                block: record.block.clone(),
                is_reclaim: is_reclaim(&record.victims),
            })
        };
        self.holds().filter_map(row).collect()
    }

    /// When a gang made room for others lately.
    fn evictions_of(&self, gang: GangId) -> Vec<UnixMillis> {
        let job = self.job(gang.job);
        let evictions = job.and_then(|job| job.progress().evictions.get(&gang.index));
        evictions.map_or_else(Vec::new, |list| list.iter().map(|it| it.at).collect())
    }
}

/// True when there are victims, and all of them hold what the gang's tenant lent.
fn is_reclaim(victims: &[StoredVictim]) -> bool {
    let mut rules = victims.iter().map(|it| it.rule);
    !victims.is_empty() && rules.all(|rule| rule == Rule::Reclaim)
}

/// What a victim has yet to give up; one that got smaller already has done its part.
fn still_to_go(victim: &StoredVictim, held: &Resources) -> Option<Resources> {
    if victim.shrinks.is_none() {
        return Some(*held);
    }
    // It holds what it held, or what is left to it.
    held.checked_sub(victim.resources)
        .filter(|rest| *rest != Resources::default())
        .map(|_| victim.resources)
}

/// A role as it stands: it has `max` pods and goes on with `min`.
fn role(role: &PlacedRole) -> RoleShape {
    RoleShape {
        name: role.name.clone(),
        per_pod: role.per_pod,
        min: if role.step == 0 { role.pods } else { role.min },
        max: role.pods,
        step: role.step.max(1),
        required: role.required.clone(),
        preferred: role.preferred.clone(),
        slice: role.slice.clone(),
    }
}

fn seats(hosts: &Hosts, cluster: ClusterIx, record: &PlacementRecord, seen: &Seen) -> Vec<Seat> {
    let seat = |it: &super::SeenSeat| {
        let pods = record.roles.iter().map(|role| {
            let own = it.pods.iter().find(|(name, _)| *name == role.name);
            own.map_or(0, |(_, pods)| *pods)
        });
        Some(Seat {
            host: hosts.get(cluster, it.host)?,
            held: it.held,
            pods: pods.collect(),
        })
    };
    let mut seats: Vec<Seat> = seen.seats.iter().filter_map(seat).collect();
    seats.sort_by_key(|seat| seat.host);
    seats
}

/// Hosts of each pool of a cluster by number.
fn known_hosts<'a>(
    model: &'a Model,
    name: &str,
    state: &'a ClusterState,
) -> BTreeMap<&'a str, BTreeMap<u64, Known<'a>>> {
    let mut pools: BTreeMap<&str, BTreeMap<u64, Known<'_>>> = BTreeMap::new();
    for (gang, seen) in &state.seen {
        let row = model.placement(*gang).map(|row| row.record.as_ref());
        let own = row.filter(|row| *row.cluster == *name);
        for seat in &seen.seats {
            // Of a gang that is no placement only the hosts that others stand on matter, and
            // those are of a pool that is known from them.
            let pool = own.map_or("", |row| &*row.pool);
            let hosts = pools.entry(pool).or_default();
            let host =
                hosts
                    .entry(seat.host)
                    .or_insert((&seat.domains, seat.allocatable, seat.foreign));
            host.2 = host.2.checked_add(seat.held).unwrap_or(host.2);
        }
    }
    let strangers = pools.remove("").unwrap_or_default();
    for hosts in pools.values_mut() {
        for (number, host) in hosts.iter_mut() {
            if let Some((_, _, used)) = strangers.get(number) {
                // Their sum has what is foreign in it, too, so the host is passed over.
                host.2 = host.2.checked_add(*used).unwrap_or(host.2);
            }
        }
    }
    pools
}

/// Rows of a pool that look as its agent told, with as many hosts: of these it is certain which
/// they are.
fn rows<'a>(
    shown: &'a [Shape],
    told: &[Shape],
) -> BTreeMap<(&'a [String], Resources, Resources), u32> {
    let told: BTreeMap<(&[String], Resources, Resources), u32> = told
        .iter()
        .map(|row| {
            let key = (row.domains.as_slice(), row.allocatable, row.free);
            (key, row.hosts)
        })
        .collect();
    let certain = shown.iter().zip(0_u32..).filter(|(row, _)| {
        let key = (row.domains.as_slice(), row.allocatable, row.free);
        told.get(&key) == Some(&row.hosts)
    });
    certain
        .map(|(row, ix)| {
            let key = (row.domains.as_slice(), row.allocatable, row.free);
            (key, ix)
        })
        .collect()
}
