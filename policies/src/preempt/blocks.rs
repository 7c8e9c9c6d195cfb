//! Reservations that are about to begin: who stands in a block's way and may be stopped goes ahead
//! of its start.
//!
//! Owns who goes, and when he is told. Hosts are cleared one after the other, the cheapest first,
//! until those in the way stand on few enough; who cannot be stopped stays, and the reservation's
//! status says so. What stands unused meanwhile is nobody's loss: it stays lent until then. Never
//! places, and holds no room: the block itself keeps others out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{Millis, UnixMillis};

use super::rules::{HITS_PER_HOUR, is_young, recent};
use super::{HOLD_MARGIN, cost};
use crate::books::borrowed_of;
use crate::decide::Round;
use crate::model::{
    ClassRule, Held, HeldIx, HostIx, Rule, Snapshot, Stage, Vacating, Victim, Yield,
};
use crate::reserved::Claim;

/// How long before a block's hosts must be empty those in its way are told: the longest notice of
/// any class, and what an agent takes to kill and report.
#[must_use]
pub fn told_ahead<'a>(rules: impl Iterator<Item = &'a ClassRule>) -> Millis {
    let longest = rules.map(|rule| rule.notice).max();
    longest.unwrap_or(Millis::ZERO).saturating_add(HOLD_MARGIN)
}

/// Who goes for which blocks, by time of the block and pool.
pub(crate) fn vacate(round: &Round<'_>) -> Vec<Vacating> {
    let snapshot = round.snapshot;
    if snapshot.reserved.is_empty() || snapshot.hosts.is_empty() {
        return Vec::new();
    }
    let ahead = told_ahead(snapshot.classes.iter().map(|class| &class.rule));
    let mut goes: BTreeSet<HeldIx> = BTreeSet::new();
    let mut all = Vec::new();
    for claim in round.blocks.claims(snapshot) {
        let empty_by = UnixMillis(claim.at.0.saturating_sub_unsigned(claim.lead.0));
        if snapshot.now.after(ahead) < empty_by {
            continue;
        }
        let mut clearing = Clearing::new(round, &claim, &goes);
        clearing.clear();
        clearing.spare();
        let victims = clearing.victims();
        goes.extend(victims.iter().map(|victim| victim.held));
        let Some(last) = victims.iter().map(|victim| victim.deadline).max() else {
            continue;
        };
        all.push(Vacating {
            reserved: claim.row,
            until: last.after(HOLD_MARGIN),
            victims,
        });
    }
    all
}

/// The hosts of one pool that those in the way stand on.
struct Clearing<'a> {
    snapshot: &'a Snapshot,
    /// Most hosts that may be theirs.
    spare: u64,
    /// Who is in the way and has not been told to go.
    there: Vec<HeldIx>,
    /// Those of them that may be stopped.
    movable: BTreeSet<HeldIx>,
    goes: BTreeSet<HeldIx>,
    by_host: BTreeMap<HostIx, Vec<HeldIx>>,
}

impl<'a> Clearing<'a> {
    fn new(round: &Round<'a>, claim: &Claim, gone: &BTreeSet<HeldIx>) -> Self {
        let snapshot = round.snapshot;
        let leaves = |ix: &HeldIx| {
            let stage = snapshot.held[ix.index()].standing.stage;
            stage == Stage::Draining || round.preemptions.is_taken(*ix) || gone.contains(ix)
        };
        let there = claim.in_the_way.iter().copied();
        let there: Vec<HeldIx> = there.filter(|ix| !leaves(ix)).collect();
        let mut by_host: BTreeMap<HostIx, Vec<HeldIx>> = BTreeMap::new();
        for ix in &there {
            for seat in &snapshot.held[ix.index()].standing.seats {
                by_host.entry(seat.host).or_default().push(*ix);
            }
        }
        let may = |ix: &&HeldIx| may_be_stopped(snapshot, &snapshot.held[ix.index()]);
        Self {
            snapshot,
            spare: claim.spare,
            movable: there.iter().filter(may).copied().collect(),
            there,
            goes: BTreeSet::new(),
            by_host,
        }
    }

    /// Hosts on which somebody stays: who is not known to stand anywhere has one for each pod.
    fn occupied(&self) -> u64 {
        let stays = |ix: &&HeldIx| !self.goes.contains(ix);
        let mut hosts: BTreeSet<HostIx> = BTreeSet::new();
        let mut unknown = 0_u64;
        for ix in self.there.iter().filter(stays) {
            let held = &self.snapshot.held[ix.index()];
            if held.standing.seats.is_empty() {
                unknown = unknown.saturating_add(held.pods.into());
            }
            hosts.extend(held.standing.seats.iter().map(|seat| seat.host));
        }
        unknown.saturating_add(hosts.len() as u64)
    }

    fn cost(&self, ix: HeldIx) -> u64 {
        cost::of_eviction(self.snapshot, &self.snapshot.held[ix.index()]).1
    }

    /// Clears the cheapest hosts until few enough are left, or nobody more can be stopped.
    fn clear(&mut self) {
        while self.occupied() > self.spare {
            let hosts = self.by_host.iter();
            let offers = hosts.filter_map(|(host, there)| {
                let stay = there.iter().filter(|ix| !self.goes.contains(ix));
                if !stay.clone().all(|ix| self.movable.contains(ix)) {
                    return None;
                }
                stay.clone().next()?;
                let cost = stay.map(|ix| self.cost(*ix));
                Some((cost.fold(0, u64::saturating_add), *host))
            });
            let Some((_, host)) = offers.min() else {
                return;
            };
            let there = self.by_host.get(&host).cloned().unwrap_or_default();
            self.goes.extend(there);
        }
    }

    /// Whoever need not go after all stays, the dearest first.
    fn spare(&mut self) {
        if self.occupied() > self.spare {
            return;
        }
        let mut order: Vec<HeldIx> = self.goes.iter().copied().collect();
        order.sort_by_key(|ix| (Reverse(self.cost(*ix)), *ix));
        for ix in order {
            self.goes.remove(&ix);
            if self.occupied() > self.spare {
                self.goes.insert(ix);
            }
        }
    }

    fn victims(&self) -> Vec<Victim> {
        let victim = |ix: &HeldIx| {
            let held = &self.snapshot.held[ix.index()];
            let (lost, cost) = cost::of_eviction(self.snapshot, held);
            let notice = self.snapshot.classes.get(held.class.index());
            let notice = notice.map_or(Millis::ZERO, |class| class.rule.notice);
            Victim {
                held: *ix,
                rule: Rule::Reserved,
                does: Yield::Evict,
                lost,
                cost,
                deadline: self.snapshot.now.after(notice),
            }
        };
        self.goes.iter().map(victim).collect()
    }
}

/// Whether a class lets its work be stopped at all.
#[must_use]
pub fn lets_go(rule: &ClassRule) -> bool {
    match rule.how {
        Manner::Never | Manner::ShrinkToFloor => false,
        Manner::Reclaim
        | Manner::Requeue
        | Manner::ShrinkThenRequeue
        | Manner::CheckpointThenRequeue => true,
    }
}

/// Whether a reservation may stop the placement now: its class lets it go, no window of its class
/// protects it, and it has not been hit again and again.
fn may_be_stopped(snapshot: &Snapshot, held: &Held) -> bool {
    let Some(class) = snapshot.classes.get(held.class.index()) else {
        return false;
    };
    let is_shielded = class.rule.is_shielded && borrowed_of(&held.rows).0 == 0;
    lets_go(&class.rule)
        && !held.standing.seats.is_empty()
        && !is_shielded
        && !is_young(held, &class.rule, snapshot.now)
        && recent(&held.standing.evictions, snapshot.now) < HITS_PER_HOUR
}
