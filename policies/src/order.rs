//! The queue: who is tried first.
//!
//! Owns the order within a round, apart from "tenants under nominal before borrowers", which
//! `decide` applies because it moves with each placement. Never looks at room.
//!
//! Class priority comes first. Within it the tenants play a tournament: at every level of the tree
//! the one with the lowest share wins, between equals the one whose next gang is more urgent. A
//! tenant's own jobs are one more player among its children. Shares move with every placement, so
//! the next to be tried is known only when the last has been.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meridian_api::ids::GangId;
use meridian_api::units::UnixMillis;

use crate::model::{Snapshot, TenantIx, Use, Waiting, WaitingIx};
use crate::quota::{ancestry, from_the_leaves};
use crate::shares::{Share, Shares};

/// Slack to `finishBy`, age, id: the lower goes first.
type Urgency = (i64, UnixMillis, GangId);

/// All that waits, first to be tried first, as if nothing were placed.
#[must_use]
pub fn queue(snapshot: &Snapshot) -> Vec<WaitingIx> {
    let mut shares = Shares::new(snapshot);
    let all: Vec<WaitingIx> = (0..).map(WaitingIx).take(snapshot.waiting.len()).collect();
    let mut queue = Queue::new(snapshot, &mut shares, &all);
    std::iter::from_fn(|| queue.next()).collect()
}

/// What stands below a tenant and wants to be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Player {
    /// Its own jobs.
    Own,
    /// A tenant below it.
    Below(TenantIx),
}

/// The waiting gangs of one tenant and one class priority. A tenant's priorities reorder its gangs
/// among the urgencies that these have, so that no tenant gains on another by them.
#[derive(Default)]
struct Line {
    gangs: VecDeque<WaitingIx>,
    urgencies: VecDeque<Urgency>,
}

/// One node of the tournament: the players in the order in which they go.
#[derive(Clone, Default)]
struct Level {
    players: BTreeSet<(Share, Urgency, Player)>,
}

/// Gangs in the order in which they are tried.
pub(crate) struct Queue<'a, 'b> {
    snapshot: &'a Snapshot,
    shares: &'b mut Shares<'a>,
    /// Class priorities that are left, the highest last, with their gangs.
    classes: Vec<Vec<WaitingIx>>,
    /// Own gangs of each tenant, for the class priority at hand.
    lines: Vec<Line>,
    levels: Vec<Level>,
    roots: Level,
    /// How each tenant stands with its own jobs, and how with everything below it.
    own: Vec<Option<(Share, Urgency)>>,
    stands: Vec<Option<(Share, Urgency)>>,
}

impl<'a, 'b> Queue<'a, 'b> {
    /// The order of these gangs.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        shares: &'b mut Shares<'a>,
        gangs: &[WaitingIx],
    ) -> Self {
        let mut classes: BTreeMap<i32, Vec<WaitingIx>> = BTreeMap::new();
        for ix in gangs {
            let class = snapshot.waiting[ix.index()].class;
            let class = snapshot.classes.get(class.index());
            let priority = class.map_or(i32::MIN, |class| class.priority);
            classes.entry(priority).or_default().push(*ix);
        }
        let count = snapshot.tenants.len();
        Self {
            snapshot,
            shares,
            classes: classes.into_values().collect(),
            lines: (0..count).map(|_| Line::default()).collect(),
            levels: vec![Level::default(); count],
            roots: Level::default(),
            own: vec![None; count],
            stands: vec![None; count],
        }
    }

    /// The next to be tried.
    pub(crate) fn next(&mut self) -> Option<WaitingIx> {
        while self.roots.players.is_empty() {
            let gangs = self.classes.pop()?;
            self.seat(&gangs);
        }
        let mut winner = self.roots.players.first()?.2;
        let mut tenant = None;
        while let Player::Below(below) = winner {
            tenant = Some(below);
            winner = self.levels[below.index()].players.first()?.2;
        }
        let tenant = tenant?;
        let line = &mut self.lines[tenant.index()];
        line.urgencies.pop_front();
        let gang = line.gangs.pop_front();
        self.refresh(tenant);
        gang
    }

    /// Counts what `tenant` was just given.
    pub(crate) fn charge(&mut self, tenant: TenantIx, has: Use) {
        self.shares.charge(tenant, has);
        self.refresh(tenant);
    }

    /// Lets the gangs of one class priority play.
    fn seat(&mut self, gangs: &[WaitingIx]) {
        let snapshot = self.snapshot;
        let waiting = |ix: WaitingIx| &snapshot.waiting[ix.index()];
        let mut by_urgency: Vec<(Urgency, WaitingIx)> = gangs
            .iter()
            .map(|ix| (urgency(snapshot, waiting(*ix)), *ix))
            .collect();
        by_urgency.sort_unstable();
        for (urgency, ix) in by_urgency {
            let line = &mut self.lines[waiting(ix).tenant.index()];
            line.urgencies.push_back(urgency);
            line.gangs.push_back(ix);
        }
        for line in &mut self.lines {
            // Stable: equal priorities keep their order.
            let gangs = line.gangs.make_contiguous();
            gangs.sort_by_key(|ix| Reverse(waiting(*ix).priority));
        }
        for tenant in from_the_leaves(&snapshot.tenants) {
            self.refresh_one(tenant);
        }
    }

    /// Puts a tenant, and every one above it, where it now stands.
    fn refresh(&mut self, tenant: TenantIx) {
        for (ix, _) in ancestry(&self.snapshot.tenants, tenant) {
            self.refresh_one(ix);
        }
    }

    fn refresh_one(&mut self, tenant: TenantIx) {
        let at = tenant.index();
        let own = self.lines[at].urgencies.front();
        let own = own.map(|urgency| (self.shares.alone(tenant), *urgency));
        let before = std::mem::replace(&mut self.own[at], own);
        self.levels[at].moved(Player::Own, before, own);
        let first = self.levels[at].players.first();
        let stands = first.map(|(_, urgency, _)| (self.shares.of(tenant), *urgency));
        let before = std::mem::replace(&mut self.stands[at], stands);
        let parent = self.snapshot.tenants[at].parent;
        let above = match parent.and_then(|parent| self.levels.get_mut(parent.index())) {
            Some(level) => level,
            None => &mut self.roots,
        };
        above.moved(Player::Below(tenant), before, stands);
    }
}

impl Level {
    fn moved(
        &mut self,
        player: Player,
        from: Option<(Share, Urgency)>,
        to: Option<(Share, Urgency)>,
    ) {
        if from == to {
            return;
        }
        if let Some((share, urgency)) = from {
            self.players.remove(&(share, urgency, player));
        }
        if let Some((share, urgency)) = to {
            self.players.insert((share, urgency, player));
        }
    }
}

fn urgency(snapshot: &Snapshot, gang: &Waiting) -> Urgency {
    (slack(snapshot, gang), gang.submitted, gang.gang)
}

/// Milliseconds to spare before the gang must have started to be done in time, negative when it
/// is late; the largest value when nothing presses.
fn slack(snapshot: &Snapshot, gang: &Waiting) -> i64 {
    let Some(finish_by) = gang.finish_by else {
        return i64::MAX;
    };
    let runtime = gang.max_runtime.unwrap_or_default().0;
    finish_by
        .0
        .saturating_sub(snapshot.now.0)
        .saturating_sub_unsigned(runtime)
}
