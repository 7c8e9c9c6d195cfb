//! The decision round: a snapshot in, a plan out.
//!
//! Owns the walk through the queue: quota, candidates, fit, score, and what a placement leaves for
//! those after it. Never writes, waits or asks: what is not in the snapshot is not known.

use std::borrow::Cow;
use std::collections::BTreeSet;

use meridian_api::kinds::workload_class::CapacityType;

use crate::books::write_rows;
use crate::candidates::choice;
use crate::causes;
use crate::choice::copies::Copies;
use crate::choice::others::Others;
use crate::choice::overflow;
use crate::choice::standing::Standings;
use crate::fit::Fit;
use crate::hands::both;
use crate::history::use_of;
use crate::kinds::{Kind, Kinds};
use crate::model::{HoldIx, Placed, Plan, PoolIx, Shape, Snapshot, Use, Waiting, WaitingIx};
use crate::order::{Order, Queue};
use crate::place::{Found, Places};
use crate::pools::PoolState;
use crate::preempt::blocks::vacate;
use crate::preempt::{Beneficiaries, Preemptions};
use crate::present::Present;
use crate::quota::{Entries, Ledger, Reach, gpus_per_job};
use crate::reserved::Blocks;
use crate::shares::Shares;
use crate::slots::{Mask, Near, Searched, Slot, aged, blocked, next_change, slots, without};

/// Decides one round.
///
/// Gangs are tried in the order of the queue, first those whose tenant stays within its nominal
/// quota, then those that borrow. A gang gets the best of the places it may have, an elastic one
/// in the largest size that fits there. In the first turn that size is within nominal too: what
/// others have not used yet may still be asked for in the same turn, so growing into it is left
/// to resizing.
///
/// A gang that fits nowhere is passed over, and later ones may use the room (backfill), apart from
/// what slots keep for the oldest that wait too long (see `slots`). First it is looked whether
/// others must make room for it (see `preempt`): from then on that room is its own.
///
/// Room and quota only shrink during a round, so a gang that failed once would fail again, and
/// so would every gang like it: the cost is that of the different gangs, not of all.
#[must_use]
pub fn decide(snapshot: &Snapshot) -> Plan {
    let (rows, blocks) = (snapshot.waiting.len(), Blocks::new(snapshot));
    let kinds = || Kinds::new(snapshot, &blocks);
    let (kinds, (present, mut order)) = both(rows, kinds, || {
        (Present::new(snapshot), Order::new(snapshot))
    });
    let mut round = Round::new(snapshot, &present, blocks, kinds, order.is_aged);
    let mut shares = Shares::of_present(snapshot, &present);
    order.set_looks(&round.looks());
    let mut placements = round.settle_holds();
    let mut left = vec![true; snapshot.waiting.len()];
    for placed in &placements {
        left[placed.waiting.index()] = false;
    }
    let mut passed_over = Vec::new();
    for reach in [Reach::Nominal, Reach::Borrowing] {
        let mut failed = Failed::new(round.kinds.looks().len());
        passed_over = Vec::with_capacity(snapshot.waiting.len());
        let mut queue = Queue::new(snapshot, &mut shares, &order, &left);
        while let Some(ix) = queue.next(|look| failed.refuses(look), &mut passed_over) {
            let Some(placed) = round.try_place(ix, reach, &mut failed) else {
                passed_over.push(ix);
                continue;
            };
            if round.close_slot(ix) {
                // What it kept and did not take is there for others again.
                failed.clear();
            }
            queue.charge(round.gang(ix).tenant, round.worth(&placed));
            left[ix.index()] = false;
            placements.push(placed);
        }
    }
    let Preemptions { made, lapsed, .. } = &round.preemptions;
    let (mut preemptions, lapsed) = (made.clone(), lapsed.clone());
    let (placed, made) = (&mut placements, &mut preemptions);
    let write = || write_rows(snapshot, &present, placed, made, &lapsed);
    let (regraded, unplaced) = both(rows, write, || {
        let left = round.borrowers_last(passed_over);
        causes::explain(&mut round, &left)
    });
    let returning = overflow::returns(&round);
    let vacating = vacate(&round);
    Plan {
        placements,
        unplaced,
        regraded,
        returning,
        preemptions,
        lapsed,
        vacating,
    }
}

/// Kinds of gangs that could not be placed in one turn.
pub(crate) struct Failed {
    kinds: BTreeSet<(Kind, Mask)>,
    /// The same by look, for gangs without a slot: most of a long queue is told by this alone.
    looks: Vec<bool>,
}

impl Failed {
    pub(crate) fn new(looks: usize) -> Self {
        Self {
            kinds: BTreeSet::new(),
            looks: vec![false; looks],
        }
    }

    /// True for a look of which nobody can be placed any more.
    pub(crate) fn refuses(&self, look: u32) -> bool {
        self.looks.get(look as usize).copied().unwrap_or(false)
    }

    /// Nobody of a look can be placed any more.
    pub(crate) fn refuse(&mut self, look: u32) {
        if let Some(refused) = self.looks.get_mut(look as usize) {
            *refused = true;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.kinds.clear();
        self.looks.fill(false);
    }
}

/// What a round begins with and may hand on to the next.
pub(crate) struct Prepared {
    pub(crate) kinds: Kinds,
    pub(crate) pools: Vec<PoolState>,
    pub(crate) places: Places,
    pub(crate) standings: Standings,
}

/// The state of a round that is over, apart from the snapshot that it was made for.
pub(crate) struct Kept {
    pub(crate) ledger: Entries,
    pub(crate) prepared: Prepared,
    preemptions: Preemptions,
    placed: u32,
    masks: [Vec<Option<Mask>>; 2],
    slots: Vec<Option<Slot>>,
    owners: Vec<bool>,
    copies: Copies,
    others: Others,
    blocks: Blocks,
}

impl Kept {
    /// The round again, of the same snapshot.
    pub(crate) fn into_round(self, snapshot: &Snapshot) -> Round<'_> {
        Round {
            snapshot,
            ledger: self.ledger.of(&snapshot.tenants),
            pools: self.prepared.pools,
            places: self.prepared.places,
            preemptions: self.preemptions,
            placed: self.placed,
            kinds: self.prepared.kinds,
            masks: self.masks,
            slots: self.slots,
            owners: self.owners,
            standings: self.prepared.standings,
            copies: self.copies,
            others: self.others,
            blocks: self.blocks,
        }
    }
}

/// State of one round.
pub(crate) struct Round<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) ledger: Ledger<'a>,
    pub(crate) pools: Vec<PoolState>,
    pub(crate) places: Places,
    pub(crate) preemptions: Preemptions,
    /// Placements so far.
    pub(crate) placed: u32,
    pub(crate) kinds: Kinds,
    /// Slots that those of a look must leave alone, within each reach.
    pub(crate) masks: [Vec<Option<Mask>>; 2],
    /// What is kept for the oldest; `None` where the owner has its place.
    pub(crate) slots: Vec<Option<Slot>>,
    /// Gangs with a slot.
    pub(crate) owners: Vec<bool>,
    pub(crate) standings: Standings,
    pub(crate) copies: Copies,
    pub(crate) others: Others,
    pub(crate) blocks: Blocks,
}

impl<'a> Round<'a> {
    /// `is_aged` says that the table of what waits is sorted by age.
    fn new(
        snapshot: &'a Snapshot,
        present: &Present,
        blocks: Blocks,
        kinds: Kinds,
        is_aged: bool,
    ) -> Self {
        let ledger = Ledger::of_present(snapshot, present);
        let (asks, shapes) = kinds.counts();
        let prepared = Prepared {
            places: Places::new(snapshot, &ledger, asks, shapes),
            pools: snapshot.pools.iter().map(PoolState::new).collect(),
            standings: Standings::new(snapshot),
            kinds,
        };
        let whose = Beneficiaries::new(snapshot);
        let mut round = Self::with(snapshot, blocks, ledger, &whose, prepared);
        round.keep_slots(aged(snapshot, is_aged), &mut Searched::default());
        round
    }

    /// Keeps room for those that wait for too long; see [`blocked`] for `oldest`.
    pub(crate) fn keep_slots(
        &mut self,
        oldest: impl Iterator<Item = WaitingIx> + Clone,
        searched: &mut Searched,
    ) {
        let blocked = blocked(self.snapshot, &self.kinds, oldest.clone());
        let mut near = Near::new();
        for ix in &blocked {
            near.extend(self.clusters_for(*ix).map(|clusters| (*ix, clusters)));
        }
        let (ledger, blocks, kinds) = (&self.ledger, &self.blocks, &self.kinds);
        let asked = (blocked.as_slice(), &near);
        let slots = slots(self.snapshot, ledger, blocks, kinds, asked, searched);
        for slot in &slots {
            self.owners[slot.owner.index()] = true;
        }
        if !self.snapshot.hosts.is_empty() {
            let again = next_change(self.snapshot, &slots, oldest);
            self.preemptions.again.note(again);
        }
        self.slots = slots.into_iter().map(Some).collect();
    }

    /// A round that begins with what is prepared, and without slots.
    pub(crate) fn with(
        snapshot: &'a Snapshot,
        blocks: Blocks,
        ledger: Ledger<'a>,
        whose: &Beneficiaries,
        prepared: Prepared,
    ) -> Self {
        let Prepared {
            kinds,
            mut pools,
            places,
            standings,
        } = prepared;
        Self {
            snapshot,
            places,
            ledger,
            slots: Vec::new(),
            owners: vec![false; snapshot.waiting.len()],
            preemptions: Preemptions::new(snapshot, whose, &mut pools),
            placed: 0,
            pools,
            standings,
            copies: Copies::new(snapshot),
            others: Others::new(snapshot),
            masks: [(); 2].map(|()| vec![None; kinds.looks().len()]),
            kinds,
            blocks,
        }
    }

    /// The state without what is lent to it.
    pub(crate) fn into_kept(self) -> Kept {
        Kept {
            ledger: self.ledger.into_entries(),
            prepared: Prepared {
                kinds: self.kinds,
                pools: self.pools,
                places: self.places,
                standings: self.standings,
            },
            preemptions: self.preemptions,
            placed: self.placed,
            masks: self.masks,
            slots: self.slots,
            owners: self.owners,
            copies: self.copies,
            others: self.others,
            blocks: self.blocks,
        }
    }

    /// What each gang looks like; a look of its own for those with a slot.
    fn looks(&self) -> Vec<u32> {
        let mut looks = self.kinds.all().to_vec();
        for slot in self.slots.iter().flatten() {
            looks[slot.owner.index()] = u32::MAX;
        }
        looks
    }

    /// Gangs with a slot or with room that is made: of them more is to be said than of those that
    /// look like them.
    pub(crate) fn apart(&self) -> Vec<bool> {
        let mut apart = self.owners.clone();
        for ix in self.preemptions.waiting_for_room() {
            apart[ix.index()] = true;
        }
        apart
    }

    pub(crate) fn gang(&self, ix: WaitingIx) -> &'a Waiting {
        &self.snapshot.waiting[ix.index()]
    }

    /// What a placement adds to its tenant's share.
    pub(crate) fn worth(&self, placed: &Placed) -> Use {
        let gang = self.gang(placed.waiting);
        let flavor = self.snapshot.pools[placed.pool.index()].flavor;
        let worth = self.snapshot.flavors[flavor.index()].worth;
        use_of(gang.shape.demand(&placed.pods), worth)
    }

    /// Places the gang if it can be placed within `reach`. `failed` holds the kinds of gangs that
    /// could not, for the same reach.
    pub(crate) fn try_place(
        &mut self,
        ix: WaitingIx,
        reach: Reach,
        failed: &mut Failed,
    ) -> Option<Placed> {
        let look = self.kinds.look(ix);
        let owns_slot = self.owners[ix.index()];
        if failed.looks[look] && !owns_slot {
            return None;
        }
        let gang = self.gang(ix);
        let per_job = gpus_per_job(&self.snapshot.tenants, gang.tenant);
        let is_barred = (reach == Reach::Borrowing && !self.may_borrow(gang))
            || self.ledger.exhausted(gang.tenant, Reach::Nominal).is_some()
            || per_job.is_some_and(|(_, limit)| gang.job_gpus > limit);
        let kind = self.kinds.of(ix).kind;
        let mask = self.mask_of(ix, reach);
        // An owner has quota that those who look like it have not: its answer is its own.
        let has_failed = !owns_slot && failed.kinds.contains(&(kind, mask));
        if is_barred || has_failed {
            failed.looks[look] |= !owns_slot;
            return None;
        }
        if gang.suspended
            || self.preemptions.is_made(ix)
            || self.ledger.job_limit(gang.tenant, gang.gang.job).is_some()
        {
            return None;
        }
        let hold = self.preemptions.hold_of(ix);
        let snapshot = self.snapshot;
        let own = hold.map(|hold| &snapshot.holds[hold.index()]);
        if let Some(hold) = own {
            self.uncharge(hold);
        }
        let Some((pool, score, pods, found)) = self.look(ix, reach, mask, hold) else {
            if let Some(hold) = own {
                self.charge_again(hold);
            } else if !owns_slot && !self.preemptions.waits_for_room(ix) {
                failed.kinds.insert((kind, mask));
            }
            return None;
        };
        self.commit(ix, pool, &pods, &found);
        self.follow(ix, pool, mask, &found);
        if let Some(hold) = hold {
            self.leave_hold(hold);
            self.places.forget();
        }
        let cluster = snapshot.pools[pool.index()].cluster;
        self.copies.placed(gang.gang.job, cluster);
        self.others.placed(snapshot, ix, cluster);
        let gpus = gang.shape.gpus(&pods);
        Some(Placed {
            waiting: ix,
            pool,
            pods,
            gpus,
            takes: found.takes,
            rows: Vec::new(),
            score,
        })
    }

    /// The best place for the gang beside what is kept for others; where there is none, and none is
    /// held for it, it is looked whether others make room.
    fn look(
        &mut self,
        ix: WaitingIx,
        reach: Reach,
        mask: Mask,
        hold: Option<HoldIx>,
    ) -> Option<Found> {
        if hold.is_none() && !self.may_find(ix, reach) {
            return None;
        }
        self.keep_quota(ix, mask);
        let best = self.best(ix, reach, mask);
        if best.is_none() && hold.is_none() {
            self.note_slots(ix, mask);
            self.make_room(ix, reach, mask);
        }
        self.give_back_quota(ix, mask);
        best
    }

    /// The gang found no place beside slots: it may be gone by the start of one that is put off.
    /// Where no host is known nothing is looked at again for time alone.
    fn note_slots(&mut self, ix: WaitingIx, mask: Mask) {
        let may = mask != 0 && !self.snapshot.hosts.is_empty();
        let most = self.gang(ix).max_runtime.filter(|_| may);
        let beside = most.map(|most| (mask, most));
        self.preemptions.beside.extend(beside);
    }

    /// True when the gang, which finds no place within nominal quota, would find one that it
    /// borrows: nobody need go for it. `mask` is what it leaves alone within nominal.
    pub(crate) fn finds_a_place_on_loan(&mut self, ix: WaitingIx, mask: Mask) -> bool {
        if !self.may_borrow(self.gang(ix)) {
            return false;
        }
        let (own, lent) = (mask, self.mask_of(ix, Reach::Borrowing));
        self.give_back_quota(ix, own);
        self.keep_quota(ix, lent);
        let found = self.best(ix, Reach::Borrowing, lent).is_some();
        self.give_back_quota(ix, lent);
        self.keep_quota(ix, own);
        self.count_copies(ix, Reach::Nominal);
        found
    }

    /// The same gangs, those that fit in their tenant's nominal quota first; each part keeps its
    /// order.
    pub(crate) fn borrowers_last(&mut self, gangs: Vec<WaitingIx>) -> Vec<WaitingIx> {
        let mut known = vec![None; self.kinds.looks().len()];
        let (mut own, mut borrowers) = (Vec::with_capacity(gangs.len()), Vec::new());
        for ix in gangs {
            let borrows = &mut known[self.kinds.look(ix)];
            if *borrows.get_or_insert_with(|| self.borrows(ix)) {
                borrowers.push(ix);
            } else {
                own.push(ix);
            }
        }
        own.append(&mut borrowers);
        own
    }

    /// True when the gang may stand on others' quota.
    pub(crate) fn may_borrow(&self, gang: &Waiting) -> bool {
        choice(self.snapshot, gang).may_use(CapacityType::Borrowed)
    }

    /// Slots that the gang must leave alone, one bit each.
    pub(crate) fn mask(&self, ix: WaitingIx, reach: Reach) -> Mask {
        let slots = self.slots.iter().enumerate();
        let binding = slots.filter(|(_, slot)| {
            slot.as_ref()
                .is_some_and(|slot| slot.binds(self.snapshot, ix, reach))
        });
        binding.fold(0, |mask, (bit, _)| mask | (1 << bit))
    }

    /// The same, from memory for gangs without a slot: all that look alike have one answer.
    pub(crate) fn mask_of(&mut self, ix: WaitingIx, reach: Reach) -> Mask {
        if self.owners[ix.index()] {
            return self.mask(ix, reach);
        }
        let (look, turn) = (self.kinds.look(ix), usize::from(reach == Reach::Borrowing));
        if let Some(known) = self.masks[turn][look] {
            return known;
        }
        let mask = self.mask(ix, reach);
        self.masks[turn][look] = Some(mask);
        mask
    }

    /// The slots of a mask.
    pub(crate) fn bound(&self, mask: Mask) -> impl Iterator<Item = (Mask, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let slots = slots.filter_map(|(bit, slot)| Some((1 << bit, slot.as_ref()?)));
        slots.filter(move |(bit, _)| mask & bit != 0)
    }

    /// The slot of a gang, if it has one.
    pub(crate) fn slot_of(&self, ix: WaitingIx) -> Option<&Slot> {
        if !self.owners[ix.index()] {
            return None;
        }
        self.slots.iter().flatten().find(|slot| slot.owner == ix)
    }

    /// The slots of a mask that keep hosts of a pool.
    pub(crate) fn kept_in(&self, pool: PoolIx, mask: Mask) -> impl Iterator<Item = (Mask, &Slot)> {
        self.bound(mask).filter(move |(_, slot)| slot.pool == pool)
    }

    /// The bits of a mask that matter in a pool.
    pub(crate) fn bits_in(&self, pool: PoolIx, mask: Mask) -> Mask {
        self.kept_in(pool, mask)
            .fold(0, |bits, (bit, _)| bits | bit)
    }

    /// Slots whose quota the gang leaves alone: of those that bind it, all, or for an owner those
    /// of older gangs. Two owners that left each other's alone could both wait for ever.
    pub(crate) fn quota_of(&self, ix: WaitingIx, mask: Mask) -> impl Iterator<Item = &Slot> {
        let own = self.slots.iter().position(|slot| {
            let slot = slot.as_ref().filter(|_| self.owners[ix.index()]);
            slot.is_some_and(|slot| slot.owner == ix)
        });
        let older = own.map_or(Mask::MAX, |own| (1 << own) - 1);
        self.bound(mask & older).map(|(_, slot)| slot)
    }

    pub(crate) fn keep_quota(&mut self, ix: WaitingIx, mask: Mask) {
        let kept: Vec<_> = self.quota_of(ix, mask).map(Slot::quota).collect();
        for (tenant, place, need) in kept {
            self.ledger.keep(tenant, place, need);
        }
    }

    pub(crate) fn give_back_quota(&mut self, ix: WaitingIx, mask: Mask) {
        let kept: Vec<_> = self.quota_of(ix, mask).map(Slot::quota).collect();
        for (tenant, place, need) in kept {
            self.ledger.give_back(tenant, place, need);
        }
    }

    /// The gang has its place: its slot, if it had one, keeps nothing any more.
    pub(crate) fn close_slot(&mut self, ix: WaitingIx) -> bool {
        let mut slots = self.slots.iter_mut();
        let own = slots.find(|slot| slot.as_ref().is_some_and(|slot| slot.owner == ix));
        let closed = own.and_then(Option::take).is_some();
        if closed {
            self.places.forget_slots();
            self.masks.iter_mut().for_each(|masks| masks.fill(None));
        }
        closed
    }

    /// The pools in which slots keep hosts.
    pub(crate) fn pools_with_slots(&self) -> impl Iterator<Item = PoolIx> {
        self.slots.iter().flatten().map(|slot| slot.pool)
    }

    /// Room of a pool as those see it who must leave these slots alone.
    pub(crate) fn seen(&self, pool: PoolIx, mask: Mask) -> Cow<'_, [Shape]> {
        let all = Cow::Borrowed(self.pools[pool.index()].rows());
        self.kept_in(pool, mask)
            .fold(all, |rows, (_, slot)| Cow::Owned(without(&rows, slot)))
    }

    pub(crate) fn commit(&mut self, ix: WaitingIx, pool: PoolIx, pods: &[u32], found: &Fit) {
        let gang = self.gang(ix);
        let place = self.snapshot.place(&self.snapshot.pools[pool.index()]);
        let demand = gang.shape.demand(pods);
        self.pools[pool.index()].take(&gang.shape, found, demand.gpus);
        self.placed += 1;
        self.ledger.add(gang.tenant, place, demand, gang.gang.job);
        self.blocks.add(ix, pool, &gang.shape, pods);
        // Where no host is known nobody is asked to go, and hosts are told apart for nobody.
        if !self.snapshot.hosts.is_empty() {
            self.preemptions.moved.take(pool, &found.takes);
        }
    }
}
