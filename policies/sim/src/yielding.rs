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
    /// Something is held otherwise than was last shown.
    has_changed: bool,
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
            self.has_changed = true;
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
        self.has_changed = true;
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
        self.has_changed = true;
        self.holds.push(Hold {
            victims: Vec::new(),
            ..hold
        });
    }

    /// Ends the hold of a gang; says who has not left for it, and stays.
    pub(crate) fn end(&mut self, gang: GangId) -> Vec<u32> {
        self.has_changed = true;
        self.holds.retain(|hold| hold.gang != gang);
        let spared = self.leaving.iter().filter(|(_, leave)| leave.by == gang);
        let spared: Vec<u32> = spared.map(|(gang, _)| *gang).collect();
        for gang in &spared {
            self.forget(*gang);
        }
        spared
    }

    /// Work that each of so many tenants has lost lately.
    pub(crate) fn lost(&mut self, tenants: usize, now: UnixMillis) -> Vec<u64> {
        while let Some((at, ..)) = self.lost.front()
            && now.since(*at) >= REMEMBERED
        {
            self.lost.pop_front();
        }
        let mut sums = vec![0_u64; tenants];
        for (_, tenant, lost) in &self.lost {
            let sum = &mut sums[tenant.index()];
            *sum = sum.saturating_add(*lost);
        }
        sums
    }

    /// What is held and who leaves, if that is otherwise than was last shown; `find` says where a
    /// gang stands.
    pub(crate) fn show(&mut self, find: impl Fn(u32) -> Option<HeldIx>) -> Option<Vec<Hold>> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        let mut victims: BTreeMap<GangId, Vec<Leaving>> = BTreeMap::new();
        for (gang, leave) in &self.leaving {
            let leaving = find(*gang).map(|held| Leaving {
                held,
                resources: leave.resources,
            });
            victims.entry(leave.by).or_default().extend(leaving);
        }
        let mut holds = self.holds.clone();
        for hold in &mut holds {
            hold.victims = victims.remove(&hold.gang).unwrap_or_default();
        }
        Some(holds)
    }
}
