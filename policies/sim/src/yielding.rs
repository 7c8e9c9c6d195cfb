//! Room that is made for others: what is held for whom, who leaves for it, and when.
//!
//! Owns the holds of a simulation and what they remember: who made whom go, and the work that
//! tenants lost lately. Never decides who makes room: the plan did.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meridian_api::ids::GangId;
use meridian_api::units::{Millis, Resources, UnixMillis};
use meridian_policies::model::{EvictedBy, HeldIx, Hold, Leaving, Preemption, Snapshot, TenantIx};
use meridian_policies::preempt::given_up;

use crate::world::Gangs;

/// How long it counts that a gang was made to go, and what a tenant lost: as the rules say.
const REMEMBERED: Millis = Millis::seconds(3600);

/// One gang on its way out.
#[derive(Clone, Copy, Debug)]
struct Leave {
    by: GangId,
    at: UnixMillis,
    resources: Resources,
}

/// Holds, departures and their traces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Yielding {
    /// In the order of the decisions; victims are in `leaving`.
    holds: Vec<Hold>,
    leaving: BTreeMap<u32, Leave>,
    due: BTreeSet<(UnixMillis, u32)>,
    evicted: BTreeMap<u32, Vec<EvictedBy>>,
    lost: VecDeque<(UnixMillis, TenantIx, u64)>,
}

impl Yielding {
    /// When the next gang leaves.
    pub(crate) fn next(&self) -> Option<UnixMillis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// A gang whose time to leave has come, by `at`.
    pub(crate) fn take_due(&mut self, at: UnixMillis) -> Option<u32> {
        let (_, gang) = self.due.first().copied().filter(|(due, _)| *due <= at)?;
        let leave = self.leaving.get(&gang).copied()?;
        self.forget(gang);
        let evicted = self.evicted.entry(gang).or_default();
        evicted.retain(|it| leave.at.since(it.at) < REMEMBERED);
        evicted.push(EvictedBy {
            job: leave.by.job,
            at: leave.at,
        });
        Some(gang)
    }

    /// A gang stands nowhere any more: nobody waits for it to leave.
    pub(crate) fn forget(&mut self, gang: u32) {
        if let Some(leave) = self.leaving.remove(&gang) {
            self.due.remove(&(leave.at, gang));
        }
    }

    /// Who made a gang go, as far as it counts.
    pub(crate) fn evicted(&self, gang: u32) -> &[EvictedBy] {
        self.evicted.get(&gang).map_or(&[], Vec::as_slice)
    }

    /// True when room is held for the gang.
    pub(crate) fn is_held_for(&self, gang: GangId) -> bool {
        self.holds.iter().any(|hold| hold.gang == gang)
    }

    /// Puts down who leaves for the gang of a decision.
    pub(crate) fn leave(&mut self, snapshot: &Snapshot, made: &Preemption) {
        let by = snapshot.waiting[made.waiting.index()].gang;
        for victim in &made.victims {
            let held = &snapshot.held[victim.held.index()];
            let gang = Gangs::ordinal(held.gang);
            let leave = Leave {
                by,
                at: victim.deadline,
                resources: given_up(held, &victim.does),
            };
            self.leaving.insert(gang, leave);
            self.due.insert((leave.at, gang));
            self.lost
                .push_back((snapshot.now, held.tenant, victim.lost));
        }
    }

    /// Puts a hold down.
    pub(crate) fn hold(&mut self, hold: Hold) {
        self.holds.push(Hold {
            victims: Vec::new(),
            ..hold
        });
    }

    /// Ends the hold of a gang; says who has not left for it, and stays.
    pub(crate) fn end(&mut self, gang: GangId) -> Vec<u32> {
        self.holds.retain(|hold| hold.gang != gang);
        let spared = self.leaving.iter().filter(|(_, leave)| leave.by == gang);
        let spared: Vec<u32> = spared.map(|(gang, _)| *gang).collect();
        for gang in &spared {
            self.forget(*gang);
        }
        spared
    }

    /// Lets the next decision see what is held, who leaves, and what was lost.
    pub(crate) fn show(&mut self, snapshot: &mut Snapshot) {
        while let Some((at, ..)) = self.lost.front()
            && snapshot.now.since(*at) >= REMEMBERED
        {
            self.lost.pop_front();
        }
        for tenant in &mut snapshot.tenants {
            tenant.lost = 0;
        }
        for (_, tenant, lost) in &self.lost {
            let sum = &mut snapshot.tenants[tenant.index()].lost;
            *sum = sum.saturating_add(*lost);
        }
        snapshot.holds.clone_from(&self.holds);
        let mut victims: BTreeMap<GangId, Vec<Leaving>> = BTreeMap::new();
        // By ordinal, as gangs are numbered: by row.
        for (gang, leave) in &self.leaving {
            let id = Gangs::id(*gang);
            let Ok(row) = snapshot.held.binary_search_by_key(&id, |held| held.gang) else {
                continue;
            };
            victims.entry(leave.by).or_default().push(Leaving {
                held: HeldIx(u32::try_from(row).unwrap_or(u32::MAX)),
                resources: leave.resources,
            });
        }
        for hold in &mut snapshot.holds {
            hold.victims = victims.remove(&hold.gang).unwrap_or_default();
        }
    }
}
