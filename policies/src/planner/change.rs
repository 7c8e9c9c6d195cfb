//! Changes: what may happen to a fleet between two rounds, and the tables that it happens to.
//!
//! Owns the snapshot of a planner and where each gang stands in it. Rows that go leave no hole: the
//! last of the table takes their place, wherever it is named. Never decides.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::UnixMillis;

use crate::kinds::Fold;
use crate::model::{
    ClassIx, ClassRule, Held, HeldIx, Hold, HostIx, HostRow, LedgerRow, Movable, Pool, PoolIx,
    Shape, Snapshot, Tenant, TenantIx, Waiting, WaitingIx,
};
use crate::present::Present;
use crate::shapes::{self, RoomChange};

/// What happened to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A gang waits.
    Submitted(Box<Waiting>),
    /// A gang waits no more: it was withdrawn.
    Left(GangId),
    /// A gang holds the place that the last round gave it: its room is taken with it. In a pool
    /// whose hosts are named it has `Left` and `Appeared` instead, and the pool is told apart.
    Started(Box<Held>),
    /// Something holds GPUs that no round of this planner placed. What is free of its pool is told
    /// apart.
    Appeared(Box<Held>),
    /// A placement is gone. What is free of its pool from here on is told apart.
    Ended(GangId, Epoch),
    /// A placement stands on these rows of the ledger from here on.
    Regraded(GangId, Epoch, Vec<LedgerRow>),
    /// Hosts of a pool have other room, come, or go: the hosts of a node that is lost go.
    Room(PoolIx, Vec<RoomChange>),
    /// A pool has these rows, and of its hosts that placements name each the row that it looks
    /// like.
    Pool(PoolIx, Vec<Shape>, Vec<(HostIx, u32)>),
    /// This is held, for whom others leave, in the order in which it was decided. Rows of
    /// placements are those of the snapshot by now.
    Holds(Vec<Hold>),
    /// A placement that appeared saves its work, and may go on elsewhere as this gang.
    Movable(GangId, Epoch, Box<Waiting>),
    /// A class stops for others by another rule.
    Rule(ClassIx, ClassRule),
    /// A tenant has another row: quota, weight, money, limits, history.
    Tenant(TenantIx, Box<Tenant>),
    /// Time passes.
    Clock(UnixMillis),
}

/// Why a change can not have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It waits, or holds something in that epoch.
    #[error("gang {0} is there already")]
    There(GangId),
    /// It does not wait.
    #[error("gang {0} does not wait")]
    NotWaiting(GangId),
    /// It holds nothing in that epoch.
    #[error("gang {0} holds nothing in epoch {1}")]
    NotHeld(GangId, Epoch),
    /// The last round has not given it that place.
    #[error("gang {0} was not given that place")]
    NotDecided(GangId),
    /// The pool has no such hosts, or no such row for a host to look like.
    #[error("pool {} has no such hosts", .0.0)]
    NoSuchHosts(PoolIx),
    /// There is no such class.
    #[error("there is no class {}", .0.0)]
    NoSuchClass(ClassIx),
    /// Placements name the pool's rows: rows and names change together.
    #[error("hosts of pool {} are named by placements", .0.0)]
    Named(PoolIx),
    /// There is no such tenant.
    #[error("there is no tenant {}", .0.0)]
    NoSuchTenant(TenantIx),
}

/// Where rows are, never walked.
type Index<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// The snapshot, and where each gang is in it.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) snapshot: Snapshot,
    /// What it holds, added up.
    pub(super) present: Present,
    waiting: Index<GangId, WaitingIx>,
    held: Index<(GangId, Epoch), HeldIx>,
    /// By pool: placements name its hosts.
    named: Vec<bool>,
}

impl Tables {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        let waiting = snapshot.waiting.iter().zip((0..).map(WaitingIx));
        let held = snapshot.held.iter().zip((0..).map(HeldIx));
        Self {
            waiting: waiting.map(|(row, ix)| (row.gang, ix)).collect(),
            held: held.map(|(row, ix)| ((row.gang, row.epoch), ix)).collect(),
            present: Present::new(&snapshot),
            named: named(&snapshot),
            snapshot,
        }
    }

    /// Puts the rows of all pools in canonical form; hosts go on looking as they did.
    pub(super) fn tidy(&mut self) {
        let snapshot = &mut self.snapshot;
        for (pool, ix) in snapshot.pools.iter_mut().zip((0..).map(PoolIx)) {
            let tidied = shapes::canonical(&pool.shapes);
            if tidied != pool.shapes {
                let before = std::mem::replace(&mut pool.shapes, tidied);
                let here = snapshot.hosts.iter_mut().filter(|host| host.pool == ix);
                here.for_each(|host| host.shape = moved(host.shape, &before, &pool.shapes));
            }
        }
    }

    /// True when rows of the pool may not change without its hosts.
    pub(super) fn is_named(&self, pool: PoolIx) -> bool {
        self.named.get(pool.index()).copied().unwrap_or(false)
    }

    /// Shows a pool as it is.
    pub(super) fn show(
        &mut self,
        pool: PoolIx,
        rows: &[Shape],
        hosts: Vec<(HostIx, u32)>,
    ) -> Result<(), Refused> {
        let unknown = Refused::NoSuchHosts(pool);
        let source = self.snapshot.pools.get_mut(pool.index());
        let source = source.ok_or(unknown.clone())?;
        let all = &mut self.snapshot.hosts;
        let is_there = |(ix, row): &(HostIx, u32)| {
            all.get(ix.index()).is_some_and(|host| host.pool == pool)
                && (*row == u32::MAX || (*row as usize) < rows.len())
        };
        if !hosts.iter().all(is_there) {
            return Err(unknown);
        }
        source.shapes = shapes::canonical(rows);
        for (ix, row) in hosts {
            let shape = moved(row, rows, &source.shapes);
            all[ix.index()] = HostRow { pool, shape };
        }
        Ok(())
    }

    /// Shows which hosts there are, and which of the rows of `pools` each looks like.
    pub(super) fn show_hosts(&mut self, mut hosts: Vec<HostRow>, pools: &[Pool]) {
        let rows = pools.iter().map(|pool| shapes::canonical_of(&pool.shapes));
        let rows: Vec<_> = rows.collect();
        for host in &mut hosts {
            let at = host.pool.index();
            if let (Some(pool), Some(Cow::Owned(rows))) = (pools.get(at), rows.get(at)) {
                host.shape = moved(host.shape, &pool.shapes, rows);
            }
        }
        self.snapshot.hosts = hosts;
        self.named = named(&self.snapshot);
    }

    /// A placement may go on elsewhere as this gang.
    pub(super) fn push_movable(&mut self, held: HeldIx, gang: Waiting) {
        self.snapshot.movable.push(Movable { held, gang });
    }

    /// Where a gang waits.
    pub(super) fn waits(&self, gang: GangId) -> Option<WaitingIx> {
        self.waiting.get(&gang).copied()
    }

    /// Where a placement is.
    pub(super) fn holds(&self, gang: GangId, epoch: Epoch) -> Option<HeldIx> {
        self.held.get(&(gang, epoch)).copied()
    }

    pub(super) fn push_waiting(&mut self, gang: Waiting) -> WaitingIx {
        let ix = WaitingIx(ordinal(self.snapshot.waiting.len()));
        self.waiting.insert(gang.gang, ix);
        self.snapshot.waiting.push(gang);
        ix
    }

    pub(super) fn remove_waiting(&mut self, ix: WaitingIx) -> Waiting {
        let gone = self.snapshot.waiting.swap_remove(ix.index());
        self.waiting.remove(&gone.gang);
        if let Some(moved) = self.snapshot.waiting.get(ix.index()) {
            self.waiting.insert(moved.gang, ix);
        }
        let last = WaitingIx(ordinal(self.snapshot.waiting.len()));
        for selector in &mut self.snapshot.selectors {
            selector.waiting.retain(|it| *it != ix);
            for it in selector.waiting.iter_mut().filter(|it| **it == last) {
                *it = ix;
            }
            selector.waiting.sort_unstable();
        }
        gone
    }

    pub(super) fn push_held(&mut self, held: Held) {
        let ix = HeldIx(ordinal(self.snapshot.held.len()));
        self.held.insert((held.gang, held.epoch), ix);
        self.present.push(&self.snapshot, &held);
        self.snapshot.held.push(held);
    }

    /// A placement stands on other rows of the ledger.
    pub(super) fn regrade(&mut self, ix: HeldIx, rows: Vec<LedgerRow>) {
        let held = &mut self.snapshot.held[ix.index()];
        held.rows = rows;
        self.present.note_rows(ix, held);
    }

    pub(super) fn remove_held(&mut self, ix: HeldIx) -> Held {
        let snapshot = &mut self.snapshot;
        let gone = snapshot.held.swap_remove(ix.index());
        self.present.swap_remove(snapshot, ix, &gone);
        self.held.remove(&(gone.gang, gone.epoch));
        if let Some(moved) = snapshot.held.get(ix.index()) {
            self.held.insert((moved.gang, moved.epoch), ix);
        }
        let last = HeldIx(ordinal(snapshot.held.len()));
        let stays = |it: &mut HeldIx| {
            let stays = *it != ix;
            if *it == last {
                *it = ix;
            }
            stays
        };
        for selector in &mut snapshot.selectors {
            selector.held.retain_mut(stays);
            selector.held.sort_unstable();
        }
        snapshot.overflowed.retain_mut(|row| stays(&mut row.held));
        snapshot.movable.retain_mut(|row| stays(&mut row.held));
        for hold in &mut snapshot.holds {
            hold.victims.retain_mut(|row| stays(&mut row.held));
        }
        gone
    }
}

fn named(snapshot: &Snapshot) -> Vec<bool> {
    let mut named = vec![false; snapshot.pools.len()];
    for host in &snapshot.hosts {
        if let Some(named) = named.get_mut(host.pool.index()) {
            *named = true;
        }
    }
    named
}

/// Where a row is once the rows are canonical; a host that looks like none goes on doing so.
fn moved(row: u32, before: &[Shape], canonical: &[Shape]) -> u32 {
    let Some(row) = before.get(row as usize) else {
        return u32::MAX;
    };
    let own = (row.domains.as_slice(), row.allocatable, row.free);
    let other = |it: &Shape| (it.domains.as_slice(), it.allocatable, it.free).cmp(&own);
    let at = canonical.binary_search_by(other);
    debug_assert!(
        at.is_ok() || row.hosts == 0,
        "a row that has hosts is there"
    );
    at.map_or(u32::MAX, ordinal)
}

fn ordinal(place: usize) -> u32 {
    u32::try_from(place).expect("tables are numbered in 32 bits")
}
