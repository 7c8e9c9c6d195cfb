//! The planner: round after round over a fleet that changes little in between.
//!
//! Owns a snapshot, the changes to it, and what one round may hand on to the next; gives exactly
//! what [`crate::decide()`] gives of the same snapshot (invariant S27). Never waits, asks or reads
//! a clock: time is a change like others.
//!
//! What is kept from round to round, and when it is made again:
//!
//! - What gangs look like, the lines of the queue, ages, tenants' sums and shares, what is held in
//!   sum, whose it is and when it ends follow each change. Quota that is edited makes the ledger
//!   anew from the tenants' sums.
//! - Room of the pools. A placement that was decided and not started is taken back when the next
//!   round begins.
//! - That a shape does not fit in a pool: until hosts there come or have more room. Gangs of
//!   several roles are packed by rules that are not exact, so of them nothing is kept.
//!
//! A round then walks through the lines as ever, but of a look that finds no place by these bounds
//! nobody is tried (see `openings`). Slots are chosen, room that is held is kept out of sight, and
//! whoever borrows is told from whom, in each round. Where room or quota is held for others, ledger
//! and shares are made of what is held in sum, which takes no walk over the placements.
//! Reasons, positions and estimates are worked out when they are first asked for.
//!
//! Rounds with reservations, or with jobs that ask for others beside them by label, are decided in
//! full. So is the first round after an [`edit`](Planner::edit), and one now and then when most of
//! what was told apart is gone. [`full_rounds`](Planner::full_rounds) counts them.

mod ages;
mod apply;
mod change;
mod follow;
mod lines;
mod openings;
mod settle;
mod state;

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::UnixMillis;

use crate::decide::decide;
use crate::model::{HeldIx, Plan, Reasons, Snapshot, Standing, Unplaced, WaitingIx};
use crate::preempt::again::DRIFT;

pub use crate::shapes::RoomChange;
use change::Tables;
pub use change::{Change, Refused};
use state::State;

/// Why some wait on that look alike.
#[derive(Clone, Debug)]
pub struct Reasoned {
    /// What they look like: equal numbers until the next round are equal looks.
    pub look: u32,
    /// One of them.
    pub waiting: WaitingIx,
    /// How many they are.
    pub gangs: usize,
    /// All reasons that apply, most actionable first.
    pub reasons: Reasons,
}

/// Decides rounds over one fleet.
pub struct Planner {
    tables: Tables,
    /// `None` until a round is decided in full that may hand something on.
    state: Option<State>,
    /// The decisions of the last round; whoever waits on is in `unplaced`.
    decided: Plan,
    /// Everything that waits on, once it was asked for.
    unplaced: Option<Vec<Unplaced>>,
    /// Nothing has changed since the last round.
    is_current: bool,
    rounds: u64,
    full_rounds: u64,
}

impl Planner {
    /// A planner for a fleet that looks like this.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        Self {
            tables: Tables::new(snapshot),
            state: None,
            decided: Plan::default(),
            unplaced: None,
            is_current: false,
            rounds: 0,
            full_rounds: 0,
        }
    }

    /// The fleet as it is.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.tables.snapshot
    }

    /// Rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Rounds that were decided from nothing.
    #[must_use]
    pub const fn full_rounds(&self) -> u64 {
        self.full_rounds
    }

    /// Something happened. Ordinals in what the last round gave mean nothing from here on.
    ///
    /// # Errors
    /// It cannot have happened; nothing has changed.
    pub fn apply(&mut self, change: Change) -> Result<(), Refused> {
        self.is_current = false;
        self.unplaced = None;
        apply::apply(&mut self.tables, &mut self.state, change)
    }

    /// How placements stand moves on: what they have saved, how far they are, on which hosts.
    /// `with` is called for each.
    pub fn stand(&mut self, mut with: impl FnMut(GangId, &mut Standing)) {
        self.is_current = false;
        self.unplaced = None;
        for held in &mut self.tables.snapshot.held {
            with(held.gang, &mut held.standing);
        }
    }

    /// Anything else happened: the next round is decided in full.
    pub fn edit(&mut self, with: impl FnOnce(&mut Snapshot)) {
        self.is_current = false;
        self.unplaced = None;
        self.state = None;
        let mut snapshot = std::mem::take(&mut self.tables.snapshot);
        with(&mut snapshot);
        self.tables = Tables::new(snapshot);
    }

    /// Decides a round, unless nothing has changed since the last: what is placed, and all that
    /// follows, as in [`decide`]; `unplaced` is empty.
    pub fn round(&mut self) -> &Plan {
        if self.is_current {
            return &self.decided;
        }
        self.rounds += 1;
        self.unplaced = None;
        if may_hand_on(&self.tables.snapshot) {
            let state = self.state.take().filter(|state| !state.is_worn_out());
            if state.is_none() {
                self.full_rounds += 1;
            }
            let mut state = state.unwrap_or_else(|| State::new(&mut self.tables));
            self.decided = state.round(&self.tables);
            self.state = Some(state);
        } else {
            self.full_rounds += 1;
            self.state = None;
            let mut plan = decide(&self.tables.snapshot);
            self.unplaced = Some(std::mem::take(&mut plan.unplaced));
            self.decided = plan;
        }
        self.is_current = true;
        &self.decided
    }

    /// When time alone may let room be made for a gang that the last round has refused: a run is
    /// old enough to be stopped, a hold ends, a gang has waited long enough for a slot. `None`
    /// while nothing else happens. Never later than it may; asking earlier gives the same answer.
    #[must_use]
    pub fn again(&self) -> Option<UnixMillis> {
        if let Some(state) = &self.state {
            return state.again;
        }
        let snapshot = &self.tables.snapshot;
        (!snapshot.hosts.is_empty()).then(|| snapshot.now.after(DRIFT))
    }

    /// The decisions of the last round, as [`round`](Self::round) gave them.
    #[must_use]
    pub const fn decided(&self) -> &Plan {
        &self.decided
    }

    /// Everything that waits on, in the order of the queue, with all reasons.
    pub fn unplaced(&mut self) -> &[Unplaced] {
        self.round();
        if self.unplaced.is_none() {
            let snapshot = &self.tables.snapshot;
            let state = self.state.as_mut();
            self.unplaced = state.map(|state| state.explain(snapshot, &self.decided));
        }
        self.unplaced.as_deref().unwrap_or_default()
    }

    /// Why everything waits on, a row for all that look alike; one with a slot, or for which room
    /// is made, has a row of its own. Takes work for each look, and not for each gang.
    pub fn reasons(&mut self) -> Vec<Reasoned> {
        self.round();
        if let Some(state) = &mut self.state {
            return state.reasons(&self.tables);
        }
        let alone = self.unplaced.iter().flatten().zip(0..);
        let alone = alone.map(|(it, look)| Reasoned {
            look,
            waiting: it.waiting,
            gangs: 1,
            reasons: it.reasons.clone(),
        });
        alone.collect()
    }

    /// What a waiting gang looks like, as [`Reasoned::look`] numbers it.
    #[must_use]
    pub fn look(&self, gang: GangId) -> Option<u32> {
        self.state.as_ref()?.look(self.tables.waits(gang)?)
    }

    /// Where a placement is in the table of the snapshot.
    #[must_use]
    pub fn holds(&self, gang: GangId, epoch: Epoch) -> Option<HeldIx> {
        self.tables.holds(gang, epoch)
    }

    /// Why a gang waits on, with its position, from 1; `None` when it is placed or does not wait.
    pub fn explain(&mut self, gang: GangId) -> Option<(usize, Unplaced)> {
        let ix = self.tables.waits(gang)?;
        let mut all = self.unplaced().iter().zip(1..);
        let (unplaced, position) = all.find(|(unplaced, _)| unplaced.waiting == ix)?;
        Some((position, unplaced.clone()))
    }

    /// The whole plan, as [`decide`] gives it.
    pub fn plan(&mut self) -> Plan {
        let unplaced = self.unplaced().to_vec();
        Plan {
            unplaced,
            ..self.decided.clone()
        }
    }
}

/// True when a round of the snapshot may hand something on to the next.
fn may_hand_on(snapshot: &Snapshot) -> bool {
    snapshot.reserved.is_empty() && snapshot.selectors.is_empty()
}
