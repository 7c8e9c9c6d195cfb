//! The hosts of the fleet, one by one, and the shapes that a decision sees of them.
//!
//! Owns which host a placement stands on, kept in step with the rows, so that hosts
//! which look alike stay apart here: when a gang ends, its own hosts get free. Never chooses
//! between hosts that look different: the placement did.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::units::Resources;
use meridian_policies::model::{
    GangShape, HoldRoom, HostIx, HostRow, PoolIx, Seat as SeatRow, Shape, Take,
};

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
    role: u32,
    pods: u32,
}

#[derive(Clone, Debug)]
struct Host {
    /// Row of the pool's bases: where it is and how large.
    base: u32,
    free: Resources,
    up: bool,
    /// Gangs with pods on it.
    gangs: Vec<u32>,
    /// The gang that it is kept for: others do not see it.
    kept_for: Option<u32>,
}

/// Where hosts are and how large: what of a host never changes.
type Base = (Vec<String>, Resources);

/// Hosts of one pool.
#[derive(Clone, Debug, Default)]
struct PoolRoom {
    bases: Vec<Base>,
    hosts: Vec<Host>,
    /// Hosts that are up, as a decision sees them.
    rows: Vec<Shape>,
    /// Hosts that are up, by what a decision sees of them.
    alike: BTreeMap<(u32, Resources), BTreeSet<u32>>,
    up: u32,
    /// Position of its first host among all hosts of the fleet.
    first: u32,
    /// Hosts that are kept.
    kept: u32,
}

/// Hosts of all pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pools: Vec<PoolRoom>,
}

impl Room {
    pub(crate) fn new(fleet: &[FleetPool]) -> Self {
        let mut first = 0;
        let pools = fleet.iter().map(|pool| {
            let mut room = PoolRoom::new(pool);
            room.first = first;
            first += u32::try_from(room.hosts.len()).unwrap_or(u32::MAX);
            room
        });
        Self {
            pools: pools.collect(),
        }
    }

    /// What each host of the fleet looks like; a host that is down looks like none.
    pub(crate) fn hosts(&self) -> Vec<HostRow> {
        let pools = (0..self.pools.len()).zip((0..).map(PoolIx));
        let rows = pools.flat_map(|(at, pool)| {
            let hosts = self.hosts_of(at).into_iter();
            hosts.map(move |(_, shape)| HostRow { pool, shape })
        });
        rows.collect()
    }

    /// The row that each host of a pool looks like, by position; that of a host that is down is the
    /// largest number.
    pub(crate) fn hosts_of(&self, pool: usize) -> Vec<(HostIx, u32)> {
        let pool = &self.pools[pool];
        let all = (pool.first..).map(HostIx).take(pool.hosts.len());
        let mut rows: Vec<(HostIx, u32)> = all.map(|ix| (ix, u32::MAX)).collect();
        // Rows of the pool are in the same order: by what never changes, then by what is free.
        for (alike, shape) in pool.alike.values().zip(0..) {
            for host in alike {
                rows[*host as usize].1 = shape;
            }
        }
        rows
    }

    /// Hosts of a pool that are up, alike ones as one row.
    pub(crate) fn rows(&self, pool: usize) -> &[Shape] {
        &self.pools[pool].rows
    }

    /// Where a gang stands, for whoever looks for room to make.
    pub(crate) fn seats(&self, shape: &GangShape, seats: &[Seat]) -> Vec<SeatRow> {
        let mut rows: BTreeMap<HostIx, SeatRow> = BTreeMap::new();
        for seat in seats {
            let host = HostIx(self.pools[seat.pool].first + seat.host);
            let row = rows.entry(host).or_insert_with(|| SeatRow {
                host,
                held: Resources::default(),
                pods: vec![0; shape.roles.len()],
            });
            row.held = row.held.checked_add(seat.used).unwrap_or(row.held);
            if let Some(pods) = row.pods.get_mut(seat.role as usize) {
                *pods += seat.pods;
            }
        }
        rows.into_values().collect()
    }

    /// Keeps hosts of a pool for `gang`; says which ones: those that `parts` name, and of alike
    /// ones the tightest that suit.
    pub(crate) fn keep(&mut self, pool: PoolIx, parts: &[HoldRoom], gang: u32) -> Vec<HoldRoom> {
        let room = &mut self.pools[pool.index()];
        let mut parts = parts.to_vec();
        // Those that are named first: no other part may get them.
        for part in &parts {
            for ix in &part.known {
                room.keep_host(ix.0 - room.first, gang);
            }
        }
        for part in &mut parts {
            let known = u32::try_from(part.known.len()).unwrap_or(u32::MAX);
            for _ in known..part.hosts {
                let Some(host) = room.tightest(part) else {
                    break;
                };
                part.known.push(HostIx(room.first + host));
                room.keep_host(host, gang);
            }
            part.known.sort_unstable();
        }
        parts
    }

    /// Nothing is kept for `gang` any more.
    pub(crate) fn give_up(&mut self, gang: u32) {
        for room in &mut self.pools {
            for host in &mut room.hosts {
                if host.kept_for == Some(gang) {
                    host.kept_for = None;
                    room.kept -= 1;
                }
            }
        }
    }

    /// Hosts of a pool that are up.
    pub(crate) fn up(&self, pool: usize) -> u32 {
        self.pools[pool].up
    }

    /// Puts `gang` on hosts that look as `takes` say, those of the lowest position first.
    pub(crate) fn place(
        &mut self,
        pool: usize,
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
            let chosen = room.choose(base, take, gang);
            if chosen.len() < take.hosts as usize {
                return Err(NotThere {
                    wanted: take.hosts,
                    there: u32::try_from(chosen.len()).unwrap_or(u32::MAX),
                });
            }
            for host in chosen {
                room.look(host, left);
                let gangs = &mut room.hosts[host as usize].gangs;
                if !gangs.contains(&gang) {
                    gangs.push(gang);
                }
                seats.push(Seat {
                    pool,
                    host,
                    used,
                    role: take.role,
                    pods: take.pods_per_host,
                });
            }
        }
        Ok(seats)
    }

    /// Frees what a gang held.
    pub(crate) fn free(&mut self, gang: u32, seats: &[Seat]) {
        for seat in seats {
            let room = &mut self.pools[seat.pool];
            let host = &mut room.hosts[seat.host as usize];
            host.gangs.retain(|other| *other != gang);
            let free = host
                .free
                .checked_add(seat.used)
                .expect("a host gets back what it gave");
            room.look(seat.host, free);
        }
    }

    /// Makes `count` hosts of a pool be up, as far as it has so many: the last ones go first and
    /// come back last. Returns the gangs that stood on hosts that went, in order.
    pub(crate) fn set_up(&mut self, pool: usize, count: u32) -> Vec<u32> {
        let room = &mut self.pools[pool];
        let mut lost = BTreeSet::new();
        for host in (0..).take(room.hosts.len()) {
            let up = host < count;
            if room.hosts[host as usize].up != up {
                room.turn(host, up);
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
                    kept_for: None,
                });
                room.show(host, Change::There);
                room.up += 1;
            }
        }
        room
    }

    /// Hosts that look as `take` says to a gang: those that are kept for it, then those that
    /// are kept for nobody, and of each the lowest positions.
    fn choose(&self, base: u32, take: &Take, gang: u32) -> Vec<u32> {
        let most = take.hosts as usize;
        if self.kept == 0 {
            let alike = self.alike.get(&(base, take.free));
            return alike
                .map(|alike| alike.iter().copied().take(most).collect())
                .unwrap_or_default();
        }
        let mut ranked: Vec<(bool, u32)> = Vec::new();
        for (host, at) in self.hosts.iter().zip(0..) {
            let is_open = host.kept_for.is_none_or(|owner| owner == gang);
            if host.up && is_open && host.base == base && host.free == take.free {
                ranked.push((host.kept_for.is_none(), at));
            }
        }
        ranked.sort_unstable();
        ranked
            .into_iter()
            .take(most)
            .map(|(_, host)| host)
            .collect()
    }

    fn keep_host(&mut self, host: u32, gang: u32) {
        if self.hosts[host as usize].kept_for.replace(gang).is_none() {
            self.kept += 1;
        }
    }

    /// The host that suits a part with the least to spare.
    fn tightest(&self, part: &HoldRoom) -> Option<u32> {
        let suits = |host: &Host| {
            let (domains, allocatable) = &self.bases[host.base as usize];
            host.up
                && host.kept_for.is_none()
                && *domains == part.domains
                && *allocatable == part.allocatable
        };
        let hosts = self.hosts.iter().zip(0..).filter(|(host, _)| suits(host));
        let free = hosts.map(|(host, at)| (host.free, at));
        let covering = free.filter(|(free, _)| free.covers(part.need));
        covering.min().map(|(_, host)| host)
    }

    fn base(&self, take: &Take) -> Option<u32> {
        let wanted = (take.domains.as_slice(), take.allocatable);
        let found = self
            .bases
            .binary_search_by(|(domains, size)| (domains.as_slice(), *size).cmp(&wanted));
        u32::try_from(found.ok()?).ok()
    }

    /// Lets a host look as if `free` were left on it.
    fn look(&mut self, host: u32, free: Resources) {
        let up = self.hosts[host as usize].up;
        if up {
            self.show(host, Change::Gone);
        }
        self.hosts[host as usize].free = free;
        if up {
            self.show(host, Change::There);
        }
    }

    fn turn(&mut self, host: u32, up: bool) {
        self.hosts[host as usize].up = up;
        if up {
            self.show(host, Change::There);
            self.up += 1;
        } else {
            self.show(host, Change::Gone);
            self.up -= 1;
        }
    }

    /// Puts a host into the rows as it looks, or takes it out of them.
    fn show(&mut self, host: u32, change: Change) {
        let Host { base, free, .. } = self.hosts[host as usize];
        let (domains, allocatable) = &self.bases[base as usize];
        let wanted = (domains.as_slice(), *allocatable, free);
        let rows = &mut self.rows;
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
