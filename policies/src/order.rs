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
use std::collections::{BTreeSet, BinaryHeap};

use meridian_api::ids::GangId;
use meridian_api::units::UnixMillis;

use crate::model::{Snapshot, TenantIx, Use, Waiting, WaitingIx};
use crate::quota::{ancestry, from_the_leaves};
use crate::shares::{Share, Shares};

/// Slack to `finishBy`, age, id: the lower goes first.
type Urgency = (i64, UnixMillis, GangId);

/// Position among all that waits, by urgency.
type Rank = u32;

/// All that waits, first to be tried first, as if nothing were placed.
#[must_use]
pub fn queue(snapshot: &Snapshot) -> Vec<WaitingIx> {
    let mut shares = Shares::new(snapshot);
    let order = Order::new(snapshot);
    let all = vec![true; snapshot.waiting.len()];
    let mut queue = Queue::new(snapshot, &mut shares, &order, &all);
    std::iter::from_fn(|| queue.next()).collect()
}

/// What the order within a round is made of, however often the queue is gone through.
pub(crate) struct Order {
    /// By rank.
    rows: Vec<Row>,
    /// Ranks of each class priority, the highest priority last.
    classes: Vec<Vec<Rank>>,
}

/// What the order needs to know of a gang.
#[derive(Clone, Copy)]
struct Row {
    gang: WaitingIx,
    tenant: TenantIx,
    priority: i32,
}

impl Order {
    /// The order of all that waits.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let priority = |gang: &Waiting| {
            let class = snapshot.classes.get(gang.class.index());
            class.map_or(i32::MIN, |class| class.priority)
        };
        let priorities: BTreeSet<i32> = snapshot.waiting.iter().map(priority).collect();
        let priorities: Vec<i32> = priorities.into_iter().collect();
        let mut classes = vec![Vec::new(); priorities.len()];
        let mut rows = Vec::with_capacity(snapshot.waiting.len());
        for (gang, rank) in by_urgency(snapshot).into_iter().zip(0..) {
            let row = &snapshot.waiting[gang.index()];
            let class = priorities.partition_point(|it| *it < priority(row));
            classes[class].push(rank);
            rows.push(Row {
                gang,
                tenant: row.tenant,
                priority: row.priority,
            });
        }
        Self { rows, classes }
    }

    fn row(&self, rank: Rank) -> &Row {
        &self.rows[rank as usize]
    }
}

/// Everything that waits, the most urgent first. The table is sorted by age already, and where
/// nothing presses that is all.
fn by_urgency(snapshot: &Snapshot) -> Vec<WaitingIx> {
    let age = |gang: &Waiting| (gang.submitted, gang.gang);
    let is_aged = snapshot.waiting.is_sorted_by_key(age);
    let presses = snapshot.waiting.iter().any(|gang| gang.finish_by.is_some());
    let all = (0..).map(WaitingIx).zip(&snapshot.waiting);
    if is_aged && !presses {
        return all.map(|(ix, _)| ix).collect();
    }
    if is_aged {
        let mut sorted: Vec<(i64, WaitingIx)> =
            all.map(|(ix, gang)| (slack(snapshot, gang), ix)).collect();
        sorted.sort();
        return sorted.into_iter().map(|(_, ix)| ix).collect();
    }
    let mut sorted: Vec<(Urgency, WaitingIx)> = all
        .map(|(ix, gang)| (urgency(snapshot, gang), ix))
        .collect();
    sorted.sort_unstable();
    sorted.into_iter().map(|(_, ix)| ix).collect()
}

/// What stands below a tenant and wants to be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Player {
    /// Its own jobs.
    Own,
    /// A tenant below it.
    Below(TenantIx),
}

/// The waiting gangs of one tenant and one class priority: a part of the lists of the queue that
/// is not yet gone through. A tenant's priorities reorder its gangs among the urgencies that these
/// have, so that no tenant gains on another by them.
#[derive(Clone, Copy, Default)]
struct Line {
    next: usize,
    end: usize,
}

/// One node of the tournament: the players in the order in which they go.
type Level = BinaryHeap<Reverse<(Share, Rank, Player)>>;

/// Gangs in the order in which they are tried.
///
/// Only the winner's way through the tree ever changes: its next gang is less urgent, its share
/// has grown. So each node is a heap whose first is replaced, and nearly always stays first.
pub(crate) struct Queue<'a, 'b> {
    snapshot: &'a Snapshot,
    shares: &'b mut Shares<'a>,
    order: &'b Order,
    /// Gangs that take part.
    left: &'b [bool],
    /// Class priorities that are left, the highest last.
    classes: usize,
    /// Own gangs of each tenant, for the class priority at hand.
    lines: Vec<Line>,
    /// Ranks of the lines, by priority, and the urgencies among which they are.
    gangs: Vec<Rank>,
    urgencies: Vec<Rank>,
    levels: Vec<Level>,
    roots: Level,
    /// Who was next last: its place is looked at when it is known what it was given.
    moved: Option<TenantIx>,
}

impl<'a, 'b> Queue<'a, 'b> {
    /// The order of the gangs that are `left`.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        shares: &'b mut Shares<'a>,
        order: &'b Order,
        left: &'b [bool],
    ) -> Self {
        let count = snapshot.tenants.len();
        Self {
            snapshot,
            shares,
            order,
            left,
            classes: order.classes.len(),
            lines: vec![Line::default(); count],
            gangs: Vec::new(),
            urgencies: Vec::new(),
            levels: vec![Level::new(); count],
            roots: Level::new(),
            moved: None,
        }
    }

    /// The next to be tried.
    pub(crate) fn next(&mut self) -> Option<WaitingIx> {
        if let Some(tenant) = self.moved.take() {
            self.refresh(tenant);
        }
        while self.roots.is_empty() {
            self.classes = self.classes.checked_sub(1)?;
            self.seat();
        }
        let mut winner = self.roots.peek()?.0.2;
        let mut tenant = None;
        while let Player::Below(below) = winner {
            tenant = Some(below);
            winner = self.levels[below.index()].peek()?.0.2;
        }
        let tenant = tenant?;
        let line = &mut self.lines[tenant.index()];
        let rank = *self.gangs.get(line.next)?;
        line.next += 1;
        self.moved = Some(tenant);
        Some(self.order.row(rank).gang)
    }

    /// Counts what the tenant whose gang was next was just given.
    pub(crate) fn charge(&mut self, tenant: TenantIx, has: Use) {
        debug_assert_eq!(
            self.moved,
            Some(tenant),
            "only who was next is given anything"
        );
        self.shares.charge(tenant, has);
    }

    /// Lets the gangs of one class priority play.
    fn seat(&mut self) {
        let order = self.order;
        let left = self.left;
        let ranks = order.classes[self.classes].iter().copied();
        let ranks = || {
            let ranks = ranks.clone();
            ranks.filter(|rank| left[order.row(*rank).gang.index()])
        };
        self.lines.fill(Line::default());
        for rank in ranks() {
            self.lines[order.row(rank).tenant.index()].end += 1;
        }
        let mut sum = 0;
        for line in &mut self.lines {
            let count = std::mem::replace(&mut line.end, sum);
            line.next = sum;
            sum += count;
        }
        self.urgencies.clear();
        self.urgencies.resize(sum, 0);
        for rank in ranks() {
            let line = &mut self.lines[order.row(rank).tenant.index()];
            self.urgencies[line.end] = rank;
            line.end += 1;
        }
        self.gangs.clone_from(&self.urgencies);
        for line in &self.lines {
            // Stable: equal priorities keep their order.
            let own = &mut self.gangs[line.next..line.end];
            own.sort_by_key(|rank| Reverse(order.row(*rank).priority));
        }
        for tenant in from_the_leaves(&self.snapshot.tenants) {
            let own = self.own(tenant);
            self.levels[tenant.index()].extend(own);
            let stands = self.stands(tenant);
            self.above(tenant).extend(stands);
        }
    }

    /// How a tenant stands with its own jobs.
    fn own(&self, tenant: TenantIx) -> Option<Reverse<(Share, Rank, Player)>> {
        let line = self.lines[tenant.index()];
        let next = self.urgencies[line.next..line.end].first()?;
        Some(Reverse((self.shares.alone(tenant), *next, Player::Own)))
    }

    /// How a tenant stands with everything below it.
    fn stands(&self, tenant: TenantIx) -> Option<Reverse<(Share, Rank, Player)>> {
        let Reverse((_, next, _)) = self.levels[tenant.index()].peek()?;
        Some(Reverse((
            self.shares.of(tenant),
            *next,
            Player::Below(tenant),
        )))
    }

    fn above(&mut self, tenant: TenantIx) -> &mut Level {
        let parent = self.snapshot.tenants[tenant.index()].parent;
        match parent.and_then(|parent| self.levels.get_mut(parent.index())) {
            Some(level) => level,
            None => &mut self.roots,
        }
    }

    /// Puts the winner, and every one above it, where it now stands.
    fn refresh(&mut self, tenant: TenantIx) {
        let own = self.own(tenant);
        replace_first(&mut self.levels[tenant.index()], own);
        let tenants = &self.snapshot.tenants;
        for (ix, _) in ancestry(tenants, tenant) {
            let stands = self.stands(ix);
            replace_first(self.above(ix), stands);
        }
    }
}

fn replace_first(level: &mut Level, by: Option<Reverse<(Share, Rank, Player)>>) {
    match (by, level.peek_mut()) {
        (Some(by), Some(mut first)) => *first = by,
        (None, Some(first)) => {
            std::collections::binary_heap::PeekMut::pop(first);
        }
        (_, None) => {}
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
