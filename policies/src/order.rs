//! The queue: who is tried first.
//!
//! Owns the order within a round, apart from "tenants under nominal before borrowers", which
//! `decide` applies because it moves with each placement. Never looks at room.
//!
//! Class priority comes first. Within it the tenants play a tournament: at every level of the tree
//! the one with the lowest share wins, between equals the one whose next gang is more urgent. A
//! tenant's own jobs are one more player among its children. Shares move with every placement, so
//! the next to be tried is known only when the last has been.

use std::borrow::Cow;

use meridian_api::ids::GangId;
use meridian_api::units::UnixMillis;

use crate::model::{Snapshot, TenantIx, Use, Waiting, WaitingIx};
use crate::quota::{ancestry, from_the_leaves};
use crate::shares::{Share, Shares};

/// The latest start that is still in time, age, id: the lower goes first.
pub(crate) type Urgency = (i128, UnixMillis, GangId);

/// Position among all that waits, by urgency.
type Rank = u32;

/// All that waits, first to be tried first, as if nothing were placed.
#[must_use]
pub fn queue(snapshot: &Snapshot) -> Vec<WaitingIx> {
    let mut shares = Shares::new(snapshot);
    let mut order = Order::new(snapshot);
    order.set_looks(&vec![0; snapshot.waiting.len()]);
    let all = vec![true; snapshot.waiting.len()];
    let mut queue = Queue::new(snapshot, &mut shares, &order, &all);
    let mut passed = Vec::new();
    std::iter::from_fn(|| queue.next(|_| false, &mut passed)).collect()
}

/// What the order within a round is made of, however often the queue is gone through.
pub(crate) struct Order {
    by_urgency: Vec<WaitingIx>,
    /// The table of what waits is sorted by age.
    pub(crate) is_aged: bool,
    lines: Lines,
    /// Tenants, each before the one above it.
    from_the_leaves: Vec<TenantIx>,
}

/// The gangs of a queue in lines: those of one tenant and one class priority each. A tenant's
/// priorities reorder its gangs among the urgencies that these have, so that no tenant gains on
/// another by them.
#[derive(Clone, Default)]
struct Lines {
    /// Line after line, by priority, then urgency.
    gangs: Vec<WaitingIx>,
    /// What those look like.
    looks: Vec<u32>,
    /// Line after line, by urgency.
    urgencies: Vec<Rank>,
    /// Lines of each class priority, the highest priority last: a row for each tenant that has
    /// gangs of it.
    classes: Vec<Vec<(TenantIx, Line)>>,
}

/// A part of the lists of [`Lines`] that is not yet gone through.
#[derive(Clone, Copy, Default)]
struct Line {
    next: usize,
    end: usize,
}

/// What the order of a queue comes of, read in one walk: rows are wide, and a queue is long.
struct Scan {
    /// Of each gang its line, and what sorts high priorities first.
    rows: Vec<(u32, u32)>,
    /// Class priorities.
    levels: usize,
    /// The table is sorted by age.
    is_aged: bool,
    /// Some gang has a time by which it should finish.
    presses: bool,
}

impl Scan {
    /// All that waits.
    fn new(snapshot: &Snapshot) -> Self {
        let mut priorities: Vec<i32> = snapshot.classes.iter().map(|it| it.priority).collect();
        // Of classes that are not there.
        priorities.push(i32::MIN);
        priorities.sort_unstable();
        priorities.dedup();
        let levels = snapshot.classes.iter();
        let levels = levels.map(|class| priorities.partition_point(|it| *it < class.priority));
        let levels: Vec<usize> = levels.collect();
        let tenants = snapshot.tenants.len();
        let (mut is_aged, mut presses) = (true, false);
        let mut last = None;
        let row = |gang: &Waiting| {
            let age = Some((gang.submitted, gang.gang));
            is_aged &= last <= age;
            last = age;
            presses |= gang.finish_by.is_some();
            let level = levels.get(gang.class.index()).copied().unwrap_or(0);
            let line = u32::try_from(level * tenants + gang.tenant.index());
            let descending = !(gang.priority.cast_unsigned() ^ (1 << 31));
            (line.expect("lines are numbered in 32 bits"), descending)
        };
        Self {
            rows: snapshot.waiting.iter().map(row).collect(),
            levels: priorities.len(),
            is_aged,
            presses,
        }
    }
}

impl Order {
    /// The order of all that waits.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let scan = &Scan::new(snapshot);
        let (rows, tenants) = (&scan.rows, snapshot.tenants.len());
        let mut ends = vec![0_usize; scan.levels * tenants];
        for (line, _) in rows {
            ends[*line as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += std::mem::replace(end, sum);
        }
        let by_urgency = sorted(snapshot, scan);
        let mut urgencies = vec![0; rows.len()];
        let mut keys = vec![0_u64; rows.len()];
        for (gang, rank) in by_urgency.iter().zip(0..) {
            let (line, descending) = rows[gang.index()];
            let end = &mut ends[line as usize];
            urgencies[*end] = rank;
            keys[*end] = (u64::from(descending) << u32::BITS) | u64::from(rank);
            *end += 1;
        }
        let (mut classes, mut spare) = (vec![Vec::new(); scan.levels], Vec::new());
        let mut next = 0;
        for (line, end) in ends.into_iter().enumerate() {
            if next < end {
                by_priority(&mut keys[next..end], &mut spare);
                let tenant = TenantIx(u32::try_from(line % tenants).unwrap_or(u32::MAX));
                classes[line / tenants].push((tenant, Line { next, end }));
                next = end;
            }
        }
        let gangs = keys.iter().map(|key| by_urgency[(key & LOW) as usize]);
        let gangs: Vec<WaitingIx> = gangs.collect();
        Self {
            lines: Lines {
                looks: Vec::new(),
                gangs,
                urgencies,
                classes,
            },
            by_urgency,
            is_aged: scan.is_aged,
            from_the_leaves: from_the_leaves(&snapshot.tenants),
        }
    }

    /// Says what each gang looks like.
    pub(crate) fn set_looks(&mut self, looks: &[u32]) {
        let gangs = self.lines.gangs.iter();
        self.lines.looks = gangs.map(|gang| looks[gang.index()]).collect();
    }

    /// The lines of those that are `left`.
    fn left(&self, left: &[bool]) -> Lines {
        let count = self.lines.gangs.len();
        let mut kept = Lines {
            gangs: Vec::with_capacity(count),
            looks: Vec::with_capacity(count),
            urgencies: Vec::with_capacity(count),
            classes: Vec::with_capacity(self.lines.classes.len()),
        };
        let is_left = |gang: WaitingIx| left[gang.index()];
        for class in &self.lines.classes {
            let mut rows = Vec::with_capacity(class.len());
            for (tenant, line) in class {
                let next = kept.gangs.len();
                for at in line.next..line.end {
                    let (gang, rank) = (self.lines.gangs[at], self.lines.urgencies[at]);
                    if is_left(gang) {
                        kept.gangs.push(gang);
                        kept.looks.push(self.lines.looks[at]);
                    }
                    if is_left(self.by_urgency[rank as usize]) {
                        kept.urgencies.push(rank);
                    }
                }
                let end = kept.gangs.len();
                rows.push((*tenant, Line { next, end }));
            }
            kept.classes.push(rows);
        }
        kept
    }
}

/// Sorts keys that are sorted by rank: of one priority after the other, as there are few.
fn by_priority(keys: &mut [u64], spare: &mut Vec<u64>) {
    const FEW: usize = 8;
    let mut priorities: Vec<u64> = Vec::with_capacity(FEW);
    for key in keys.iter() {
        let priority = key >> u32::BITS;
        if !priorities.contains(&priority) {
            priorities.push(priority);
            if priorities.len() > FEW {
                return keys.sort_unstable();
            }
        }
    }
    if priorities.len() < 2 {
        return;
    }
    priorities.sort_unstable();
    spare.clear();
    for priority in priorities {
        let same = keys.iter().filter(|key| **key >> u32::BITS == priority);
        spare.extend(same);
    }
    keys.copy_from_slice(spare);
}

/// The rank in a key of a gang in its line.
const LOW: u64 = u32::MAX as u64;

/// Everything that waits, the most urgent first. The table is sorted by age already, and where
/// nothing presses that is all.
pub(crate) fn by_urgency(snapshot: &Snapshot) -> Vec<WaitingIx> {
    sorted(snapshot, &Scan::new(snapshot))
}

fn sorted(snapshot: &Snapshot, scan: &Scan) -> Vec<WaitingIx> {
    let all = (0..).map(WaitingIx).zip(&snapshot.waiting);
    if scan.is_aged && !scan.presses {
        return all.map(|(ix, _)| ix).collect();
    }
    if scan.is_aged {
        let mut sorted: Vec<(i128, WaitingIx)> =
            all.map(|(ix, gang)| (latest_start(gang), ix)).collect();
        sorted.sort();
        return sorted.into_iter().map(|(_, ix)| ix).collect();
    }
    let mut sorted: Vec<(Urgency, WaitingIx)> = all.map(|(ix, gang)| (urgency(gang), ix)).collect();
    sorted.sort_unstable();
    sorted.into_iter().map(|(_, ix)| ix).collect()
}

/// What stands below a tenant and wants to be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Player {
    /// Its own jobs.
    Own,
    /// A tenant below it.
    Below(TenantIx),
}

/// How a player stands; the lower goes first.
pub(crate) type Standing<R> = (Share, R, Player);

/// One node of the tournament: a heap of the players, in which nobody goes before the one above
/// it, at half its position.
#[derive(Clone)]
pub(crate) struct Level<R>(Vec<Standing<R>>);

impl<R> Default for Level<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R: Copy + Ord> Level<R> {
    pub(crate) fn first(&self) -> Option<&Standing<R>> {
        self.0.first()
    }

    /// The urgency below which the first stays so, as long as its share does not grow: those right
    /// below it are the next; `None` = whatever follows.
    pub(crate) fn until(&self) -> Option<R> {
        let mut all = self.0.iter();
        let share = all.next().map(|first| first.0);
        let next = all.take(2).filter(|it| Some(it.0) == share);
        next.map(|it| it.1).min()
    }

    pub(crate) fn push(&mut self, standing: Standing<R>) {
        let mut at = self.0.len();
        self.0.push(standing);
        while at > 0 && self.0[at] < self.0[(at - 1) / 2] {
            self.0.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Puts the first where it stands by now; `None` when it is done.
    pub(crate) fn replace_first(&mut self, by: Option<Standing<R>>) {
        match by {
            Some(by) => self.0[0] = by,
            None => {
                self.0.swap_remove(0);
            }
        }
        let mut at = 0;
        loop {
            let below = (2 * at + 1..self.0.len()).take(2);
            let Some(next) = below.min_by_key(|below| self.0[*below]) else {
                return;
            };
            if self.0[at] <= self.0[next] {
                return;
            }
            self.0.swap(at, next);
            at = next;
        }
    }
}

/// Gangs in the order in which they are tried.
///
/// Only the winner's way through the tree ever changes: its next gang is less urgent, its share
/// has grown. So each node is a heap whose first is replaced, and nearly always stays first.
pub(crate) struct Queue<'a, 'b> {
    snapshot: &'a Snapshot,
    shares: &'b mut Shares<'a>,
    order: &'b Order,
    /// Those that take part.
    all: Cow<'b, Lines>,
    /// Class priorities that are left, the highest last.
    classes: usize,
    /// Own gangs of each tenant, for the class priority at hand.
    lines: Vec<Line>,
    levels: Vec<Level<Rank>>,
    roots: Level<Rank>,
    /// Who was next last: its place is looked at when it is known what it was given.
    moved: Option<TenantIx>,
}

impl<'a, 'b> Queue<'a, 'b> {
    /// The order of the gangs that are `left`.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        shares: &'b mut Shares<'a>,
        order: &'b Order,
        left: &[bool],
    ) -> Self {
        let count = snapshot.tenants.len();
        let all = if left.contains(&false) {
            Cow::Owned(order.left(left))
        } else {
            Cow::Borrowed(&order.lines)
        };
        Self {
            snapshot,
            shares,
            order,
            classes: all.classes.len(),
            all,
            lines: vec![Line::default(); count],
            levels: vec![Level::default(); count],
            roots: Level::default(),
            moved: None,
        }
    }

    /// The next to be tried. Whoever looks `refused` is passed over, and noted in `passed`: most
    /// of a long queue, in long runs of one tenant.
    pub(crate) fn next(
        &mut self,
        refused: impl Fn(u32) -> bool,
        passed: &mut Vec<WaitingIx>,
    ) -> Option<WaitingIx> {
        loop {
            if let Some(tenant) = self.moved.take() {
                self.refresh(tenant);
            }
            while self.roots.first().is_none() {
                self.classes = self.classes.checked_sub(1)?;
                self.seat();
            }
            let (tenant, until) = self.winner()?;
            self.moved = Some(tenant);
            let line = &mut self.lines[tenant.index()];
            let first = line.next;
            let mut found = None;
            // Its share stays as it is, so it goes on until another's next gang is more urgent.
            while found.is_none()
                && line.next < line.end
                && (line.next == first || self.all.urgencies[line.next] < until)
            {
                if !refused(self.all.looks[line.next]) {
                    found = Some(self.all.gangs[line.next]);
                }
                line.next += 1;
            }
            let end = line.next - usize::from(found.is_some());
            passed.extend_from_slice(&self.all.gangs[first..end]);
            if found.is_some() {
                return found;
            }
        }
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

    /// Whose gang is next, and the urgency below which its gangs go on being so.
    fn winner(&self) -> Option<(TenantIx, Rank)> {
        let (mut level, mut tenant, mut until) = (&self.roots, None, Rank::MAX);
        loop {
            until = until.min(level.until().unwrap_or(Rank::MAX));
            match level.first()?.2 {
                Player::Own => return Some((tenant?, until)),
                Player::Below(below) => {
                    tenant = Some(below);
                    level = &self.levels[below.index()];
                }
            }
        }
    }

    /// Lets the gangs of one class priority play.
    fn seat(&mut self) {
        self.lines.fill(Line::default());
        for (tenant, line) in &self.all.classes[self.classes] {
            self.lines[tenant.index()] = *line;
        }
        for &tenant in &self.order.from_the_leaves {
            if let Some(own) = self.own(tenant) {
                self.levels[tenant.index()].push(own);
            }
            if let Some(stands) = self.stands(tenant) {
                self.above(tenant).push(stands);
            }
        }
    }

    /// How a tenant stands with its own jobs.
    fn own(&self, tenant: TenantIx) -> Option<Standing<Rank>> {
        let line = self.lines[tenant.index()];
        let next = self.all.urgencies[line.next..line.end].first()?;
        Some((self.shares.alone(tenant), *next, Player::Own))
    }

    /// How a tenant stands with everything below it.
    fn stands(&self, tenant: TenantIx) -> Option<Standing<Rank>> {
        let (_, next, _) = self.levels[tenant.index()].first()?;
        Some((self.shares.of(tenant), *next, Player::Below(tenant)))
    }

    fn above(&mut self, tenant: TenantIx) -> &mut Level<Rank> {
        let parent = self.snapshot.tenants[tenant.index()].parent;
        match parent.and_then(|parent| self.levels.get_mut(parent.index())) {
            Some(level) => level,
            None => &mut self.roots,
        }
    }

    /// Puts the winner, and every one above it, where it now stands.
    fn refresh(&mut self, tenant: TenantIx) {
        let own = self.own(tenant);
        self.levels[tenant.index()].replace_first(own);
        let tenants = &self.snapshot.tenants;
        for (ix, _) in ancestry(tenants, tenant) {
            let stands = self.stands(ix);
            self.above(ix).replace_first(stands);
        }
    }
}

/// How urgent a gang is.
pub(crate) fn urgency(gang: &Waiting) -> Urgency {
    (latest_start(gang), gang.submitted, gang.gang)
}

/// When the gang must have started to be done in time, in Unix milliseconds; the largest value when
/// nothing presses. The least slack goes first, whatever the time is.
fn latest_start(gang: &Waiting) -> i128 {
    let runtime = i128::from(gang.max_runtime.unwrap_or_default().0);
    let done = gang.finish_by.map(|finish_by| i128::from(finish_by.0));
    done.map_or(i128::MAX, |done| done - runtime)
}
