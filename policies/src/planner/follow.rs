//! Following: a planner comes to where another snapshot is.
//!
//! Owns the comparison of two snapshots row by row: what is the same stays, and of what is not the
//! changes are made as if they had been told one by one. What no change tells (clusters, pools that
//! come or go, prices, the tree of tenants) is an edit. Never decides.

use meridian_api::ids::{Epoch, GangId};

use super::Planner;
use super::change::{Change, Refused};
use crate::model::{
    Choice, ChoiceIx, Class, ClassIx, Held, HeldIx, Pool, PoolIx, Snapshot, Tenant, TenantIx,
    Waiting,
};
use crate::shapes;

impl Planner {
    /// The fleet is as in `next` from here on, whatever happened in between. Tables of gangs and
    /// placements keep the order of the planner's own.
    pub fn follow(&mut self, mut next: Snapshot) {
        self.is_current = false;
        self.unplaced = None;
        self.number_choices(&mut next);
        if !is_alike(&self.tables.snapshot, &next) || self.step(&next).is_err() {
            self.edit(|own| *own = next);
        }
    }

    /// Numbers wishes in `next` as they are numbered here; new ones come last.
    fn number_choices(&mut self, next: &mut Snapshot) {
        let own = &mut self.tables.snapshot.choices;
        if *own == next.choices {
            return;
        }
        let number = |choice: &Choice| {
            let known = own.iter().position(|it| it == choice);
            let at = known.unwrap_or_else(|| {
                own.push(choice.clone());
                own.len() - 1
            });
            ChoiceIx(u32::try_from(at).unwrap_or(u32::MAX))
        };
        let numbers: Vec<ChoiceIx> = next.choices.iter().map(number).collect();
        let renumber = |gang: &mut Waiting| {
            if let Some(own) = numbers.get(gang.choice.index()) {
                gang.choice = *own;
            }
        };
        next.waiting.iter_mut().for_each(renumber);
        next.movable
            .iter_mut()
            .for_each(|row| renumber(&mut row.gang));
        next.overflowed
            .iter_mut()
            .for_each(|row| renumber(&mut row.gang));
        next.choices.clone_from(own);
        if let Some(state) = &mut self.state {
            state.grow_choices(&self.tables.snapshot);
        }
    }

    /// Makes the changes that lead to `next`.
    fn step(&mut self, next: &Snapshot) -> Result<(), Refused> {
        self.follow_placements(next)?;
        self.follow_queue(next)?;
        self.follow_pools(next)?;
        for (at, row) in next.tenants.iter().enumerate() {
            if self.tables.snapshot.tenants[at] != *row {
                let ix = TenantIx(u32::try_from(at).unwrap_or(u32::MAX));
                self.apply(Change::Tenant(ix, Box::new(row.clone())))?;
            }
        }
        for (row, ix) in next.classes.iter().zip((0..).map(ClassIx)) {
            self.apply(Change::Rule(ix, row.rule))?;
        }
        let held = |ix: HeldIx| {
            let row = &next.held[ix.index()];
            let own = self.tables.holds(row.gang, row.epoch);
            own.ok_or(Refused::NotHeld(row.gang, row.epoch))
        };
        let mut movable = next.movable.clone();
        for row in &mut movable {
            row.held = held(row.held)?;
        }
        let mut overflowed = next.overflowed.clone();
        for row in &mut overflowed {
            row.held = held(row.held)?;
        }
        let mut holds = next.holds.clone();
        for leaving in holds.iter_mut().flat_map(|hold| &mut hold.victims) {
            leaving.held = held(leaving.held)?;
        }
        self.apply(Change::Holds(holds))?;
        let own = &mut self.tables.snapshot;
        (own.movable, own.overflowed) = (movable, overflowed);
        (own.now, own.seed) = (next.now, next.seed);
        (own.revision, own.policy_head) = (next.revision, next.policy_head);
        Ok(())
    }

    fn follow_placements(&mut self, next: &Snapshot) -> Result<(), Refused> {
        let mut seen = vec![false; self.tables.snapshot.held.len()];
        let (mut ended, mut came): (Vec<(GangId, Epoch)>, Vec<&Held>) = (Vec::new(), Vec::new());
        for row in &next.held {
            let Some(ix) = self.tables.holds(row.gang, row.epoch) else {
                came.push(row);
                continue;
            };
            // A table that names one twice is taken as it is.
            if std::mem::replace(&mut seen[ix.index()], true) {
                return Err(Refused::There(row.gang));
            }
            let own = &mut self.tables.snapshot.held[ix.index()];
            if own.standing != row.standing {
                own.standing.clone_from(&row.standing);
            }
            if !stands_alike(own, row) {
                ended.push((row.gang, row.epoch));
                came.push(row);
            } else if own.rows != row.rows {
                self.tables.regrade(ix, row.rows.clone());
            }
        }
        let all = self.tables.snapshot.held.iter().zip(seen);
        let gone = all.filter(|(_, seen)| !seen);
        ended.extend(gone.map(|(row, _)| (row.gang, row.epoch)));
        for (gang, epoch) in ended {
            self.apply(Change::Ended(gang, epoch))?;
        }
        for row in came {
            self.apply(Change::Appeared(Box::new(row.clone())))?;
        }
        Ok(())
    }

    fn follow_queue(&mut self, next: &Snapshot) -> Result<(), Refused> {
        let mut seen = vec![false; self.tables.snapshot.waiting.len()];
        let (mut left, mut came): (Vec<GangId>, Vec<&Waiting>) = (Vec::new(), Vec::new());
        for row in &next.waiting {
            let Some(ix) = self.tables.waits(row.gang) else {
                came.push(row);
                continue;
            };
            if std::mem::replace(&mut seen[ix.index()], true) {
                return Err(Refused::There(row.gang));
            }
            if self.tables.snapshot.waiting[ix.index()] != *row {
                left.push(row.gang);
                came.push(row);
            }
        }
        let all = self.tables.snapshot.waiting.iter().zip(seen);
        let gone = all.filter(|(_, seen)| !seen);
        left.extend(gone.map(|(row, _)| row.gang));
        for gang in left {
            self.apply(Change::Left(gang))?;
        }
        for row in came {
            self.apply(Change::Submitted(Box::new(row.clone())))?;
        }
        Ok(())
    }

    fn follow_pools(&mut self, next: &Snapshot) -> Result<(), Refused> {
        self.tables.show_hosts(next.hosts.clone(), &next.pools);
        for (at, pool) in next.pools.iter().enumerate() {
            let rows = shapes::canonical_of(&pool.shapes);
            if self.tables.snapshot.pools[at].shapes != *rows {
                let ix = PoolIx(u32::try_from(at).unwrap_or(u32::MAX));
                self.apply(Change::Pool(ix, rows.into_owned(), Vec::new()))?;
            }
        }
        Ok(())
    }
}

/// True when the two differ in nothing but what changes tell.
fn is_alike(own: &Snapshot, next: &Snapshot) -> bool {
    let same_pool = |(a, b): (&Pool, &Pool)| {
        (a.cluster, a.flavor) == (b.cluster, b.flavor)
            && (&a.name, &a.classes, &a.levels, &a.facts)
                == (&b.name, &b.classes, &b.levels, &b.facts)
    };
    let same_class = |(a, b): (&Class, &Class)| {
        (&a.name, a.priority, a.ignores_slots) == (&b.name, b.priority, b.ignores_slots)
    };
    let same_tenant = |(a, b): (&Tenant, &Tenant)| (&a.name, a.parent) == (&b.name, b.parent);
    own.store_generation == next.store_generation
        && own.flavors == next.flavors
        && own.regions == next.regions
        && own.region_facts == next.region_facts
        && own.clusters == next.clusters
        && own.selectors == next.selectors
        && own.reserved == next.reserved
        && own.choices == next.choices
        && own.pools.len() == next.pools.len()
        && own.pools.iter().zip(&next.pools).all(same_pool)
        && own.classes.len() == next.classes.len()
        && own.classes.iter().zip(&next.classes).all(same_class)
        && own.tenants.len() == next.tenants.len()
        && own.tenants.iter().zip(&next.tenants).all(same_tenant)
}

/// True when a placement is in the same place, as large, as long, and whose it was.
fn stands_alike(own: &Held, next: &Held) -> bool {
    let place = |it: &Held| (it.tenant, it.class, it.cluster, it.flavor, it.pool);
    let size = |it: &Held| (it.resources, it.pods, it.ends, it.since);
    place(own) == place(next) && size(own) == size(next)
}
