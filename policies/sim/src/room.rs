//! The hosts of the fleet, one by one, and the shapes that a decision sees of them.
//!
//! Owns which host a placement stands on, kept in step with the snapshot's rows, so that hosts
//! which look alike stay apart here: when a gang ends, its own hosts get free. Never chooses
//! between hosts that look different: the placement did.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, Pool, Shape, Take};

use crate::fleet::FleetPool;

/// A placement takes what is not there: a defect of the decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a placement takes {wanted} hosts of a shape of which {there} are there")]
pub struct NotThere {
    /// Hosts that it takes.
    pub wanted: u32,
    /// Hosts of that shape.
    pub there: u32,
}

/// One host that a gang holds a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) pool: usize,
    host: u32,
    used: Resources,
}

#[derive(Clone, Debug)]
struct Host {
    /// Row of the pool's bases: where it is and how large.
    base: u32,
    free: Resources,
    up: bool,
    /// Gangs with pods on it.
    gangs: Vec<u32>,
}

/// Where hosts are and how large: what of a host never changes.
type Base = (Vec<String>, Resources);

/// Hosts of one pool.
#[derive(Clone, Debug, Default)]
struct PoolRoom {
    bases: Vec<Base>,
    hosts: Vec<Host>,
    /// Hosts that are up, by what a decision sees of them.
    alike: BTreeMap<(u32, Resources), BTreeSet<u32>>,
    up: u32,
}

/// Hosts of all pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pools: Vec<PoolRoom>,
}

impl Room {
    pub(crate) fn new(fleet: &[FleetPool]) -> Self {
        Self {
            pools: fleet.iter().map(PoolRoom::new).collect(),
        }
    }

    /// Hosts of a pool that are up.
    pub(crate) fn up(&self, pool: usize) -> u32 {
        self.pools[pool].up
    }

    /// Puts `gang` on hosts that look as `takes` say, those of the lowest position first, and
    /// changes `rows`, the pool's shapes, accordingly.
    pub(crate) fn place(
        &mut self,
        pool: usize,
        rows: &mut Vec<Shape>,
        gang: u32,
        shape: &GangShape,
        takes: &[Take],
    ) -> Result<Vec<Seat>, NotThere> {
        let room = &mut self.pools[pool];
        let mut seats = Vec::new();
        for take in takes {
            let none = NotThere {
                wanted: take.hosts,
                there: 0,
            };
            let role = shape.roles.get(take.role as usize).ok_or(none.clone())?;
            let used = role.per_pod.checked_mul(take.pods_per_host.into());
            let used = used.ok_or(none.clone())?;
            let left = take.free.checked_sub(used).ok_or(none.clone())?;
            let base = room.base(take).ok_or(none)?;
            let chosen: Vec<u32> = room
                .alike
                .get(&(base, take.free))
                .map(|alike| alike.iter().copied().take(take.hosts as usize).collect())
                .unwrap_or_default();
            if chosen.len() < take.hosts as usize {
                return Err(NotThere {
                    wanted: take.hosts,
                    there: u32::try_from(chosen.len()).unwrap_or(u32::MAX),
                });
            }
            for host in chosen {
                room.look(rows, host, left);
                let gangs = &mut room.hosts[host as usize].gangs;
                if !gangs.contains(&gang) {
                    gangs.push(gang);
                }
                seats.push(Seat { pool, host, used });
            }
        }
        Ok(seats)
    }

    /// Frees what a gang held.
    pub(crate) fn free(&mut self, pools: &mut [Pool], gang: u32, seats: &[Seat]) {
        for seat in seats {
            let room = &mut self.pools[seat.pool];
            let host = &mut room.hosts[seat.host as usize];
            host.gangs.retain(|other| *other != gang);
            let free = host
                .free
                .checked_add(seat.used)
                .expect("a host gets back what it gave");
            room.look(&mut pools[seat.pool].shapes, seat.host, free);
        }
    }

    /// Makes `count` hosts of a pool be up, as far as it has so many: the last ones go first and
    /// come back last. Returns the gangs that stood on hosts that went, in order.
    pub(crate) fn set_up(&mut self, pool: usize, rows: &mut Vec<Shape>, count: u32) -> Vec<u32> {
        let room = &mut self.pools[pool];
        let mut lost = BTreeSet::new();
        for host in (0..).take(room.hosts.len()) {
            let up = host < count;
            if room.hosts[host as usize].up != up {
                room.turn(rows, host, up);
                lost.extend(room.hosts[host as usize].gangs.iter().copied());
            }
        }
        lost.into_iter().collect()
    }
}

impl PoolRoom {
    fn new(pool: &FleetPool) -> Self {
        let bases: BTreeSet<Base> = pool
            .hosts
            .iter()
            .map(|hosts| (hosts.domains.clone(), hosts.allocatable))
            .collect();
        let bases: Vec<Base> = bases.into_iter().collect();
        let mut room = Self {
            bases,
            ..Self::default()
        };
        for hosts in &pool.hosts {
            let key = (hosts.domains.clone(), hosts.allocatable);
            let base = room.bases.binary_search(&key).unwrap_or_default();
            let base = u32::try_from(base).unwrap_or(u32::MAX);
            for _ in 0..hosts.count {
                let host = u32::try_from(room.hosts.len()).unwrap_or(u32::MAX);
                room.hosts.push(Host {
                    base,
                    free: hosts.allocatable,
                    up: true,
                    gangs: Vec::new(),
                });
                let look = (base, hosts.allocatable);
                room.alike.entry(look).or_default().insert(host);
                room.up += 1;
            }
        }
        room
    }

    fn base(&self, take: &Take) -> Option<u32> {
        let wanted = (take.domains.as_slice(), take.allocatable);
        let found = self
            .bases
            .binary_search_by(|(domains, size)| (domains.as_slice(), *size).cmp(&wanted));
        u32::try_from(found.ok()?).ok()
    }

    /// Lets a host look as if `free` were left on it.
    fn look(&mut self, rows: &mut Vec<Shape>, host: u32, free: Resources) {
        let up = self.hosts[host as usize].up;
        if up {
            self.show(rows, host, Change::Gone);
        }
        self.hosts[host as usize].free = free;
        if up {
            self.show(rows, host, Change::There);
        }
    }

    fn turn(&mut self, rows: &mut Vec<Shape>, host: u32, up: bool) {
        self.hosts[host as usize].up = up;
        if up {
            self.show(rows, host, Change::There);
            self.up += 1;
        } else {
            self.show(rows, host, Change::Gone);
            self.up -= 1;
        }
    }

    /// Puts a host into the rows as it looks, or takes it out of them.
    fn show(&mut self, rows: &mut Vec<Shape>, host: u32, change: Change) {
        let Host { base, free, .. } = self.hosts[host as usize];
        let (domains, allocatable) = &self.bases[base as usize];
        let wanted = (domains.as_slice(), *allocatable, free);
        let found = rows.binary_search_by(|row| {
            (row.domains.as_slice(), row.allocatable, row.free).cmp(&wanted)
        });
        let alike = self.alike.entry((base, free)).or_default();
        match (change, found) {
            (Change::There, Ok(row)) => rows[row].hosts += 1,
            (Change::There, Err(place)) => rows.insert(
                place,
                Shape {
                    domains: domains.clone(),
                    allocatable: *allocatable,
                    free,
                    hosts: 1,
                },
            ),
            (Change::Gone, Ok(row)) if rows[row].hosts == 1 => {
                rows.remove(row);
            }
            (Change::Gone, Ok(row)) => rows[row].hosts -= 1,
            (Change::Gone, Err(_)) => {}
        }
        match change {
            Change::There => {
                alike.insert(host);
            }
            Change::Gone => {
                alike.remove(&host);
                if alike.is_empty() {
                    self.alike.remove(&(base, free));
                }
            }
        }
    }
}

/// What happens to a host in the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    There,
    Gone,
}
