//! Lines: the order of the queue, kept while gangs come and go.
//!
//! Owns, for each tenant and class priority, its gangs in order, and the walk through them that a
//! round makes. The order is that of [`crate::order`], which says why; here a gang is found, put in
//! and taken out by halving, and a walk passes over a run of gangs that are not looked at in one
//! step. Never looks at room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::model::{Snapshot, TenantIx, Use, Waiting, WaitingIx};
use crate::order::{Level, Player, Standing, Urgency, by_urgency, urgency};
use crate::quota::{ancestry, from_the_leaves};
use crate::shares::Shares;

/// Orders the gangs of one line.
type Key = (Reverse<i32>, Urgency);

fn key(snapshot: &Snapshot, ix: WaitingIx) -> Key {
    let gang = &snapshot.waiting[ix.index()];
    (Reverse(gang.priority), urgency(gang))
}

fn urgency_of(snapshot: &Snapshot, ix: WaitingIx) -> Urgency {
    urgency(&snapshot.waiting[ix.index()])
}

/// Gangs of one tenant and one class priority.
#[derive(Clone, Debug, Default)]
struct Line {
    /// By priority, then urgency.
    gangs: Vec<WaitingIx>,
    /// By urgency alone: the one at a place lends its urgency to the gang at that place.
    urgencies: Vec<WaitingIx>,
    /// What its gangs look like; each once.
    looks: Vec<u32>,
}

/// All that waits.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// Of each class, the place of its priority among all.
    levels: Vec<usize>,
    /// Different priorities.
    priorities: usize,
    tenants: usize,
    /// By priority, then tenant.
    all: Vec<Line>,
    /// Gangs of each look, in the order of their line. A look has one tenant and one class.
    by_look: Vec<Vec<WaitingIx>>,
    /// Tenants, each before the one above it.
    from_the_leaves: Vec<TenantIx>,
}

/// Gangs that are looked at whatever is known of their look, by line.
pub(super) type Apart = BTreeMap<usize, Vec<WaitingIx>>;

impl Lines {
    /// The lines of all that waits, with what each gang looks like.
    pub(super) fn new(snapshot: &Snapshot, looks: &[u32]) -> Self {
        let mut priorities: Vec<i32> = snapshot.classes.iter().map(|it| it.priority).collect();
        // Of classes that are not there.
        priorities.push(i32::MIN);
        priorities.sort_unstable();
        priorities.dedup();
        let classes = snapshot.classes.iter();
        let levels = classes.map(|class| priorities.partition_point(|it| *it < class.priority));
        let tenants = snapshot.tenants.len();
        let mut own = Self {
            levels: levels.collect(),
            priorities: priorities.len(),
            tenants,
            all: vec![Line::default(); priorities.len() * tenants],
            by_look: Vec::new(),
            from_the_leaves: from_the_leaves(&snapshot.tenants),
        };
        for ix in by_urgency(snapshot) {
            let line = own.line_of(&snapshot.waiting[ix.index()]);
            own.all[line].urgencies.push(ix);
        }
        for line in &mut own.all {
            line.gangs.clone_from(&line.urgencies);
            // Stable, so between equals the most urgent stays first.
            let priority = |ix: &WaitingIx| Reverse(snapshot.waiting[ix.index()].priority);
            line.gangs.sort_by_key(priority);
            for ix in &line.gangs {
                let look = looks[ix.index()] as usize;
                if own.by_look.len() <= look {
                    own.by_look.resize_with(look + 1, Vec::new);
                }
                if own.by_look[look].is_empty() {
                    line.looks.push(looks[ix.index()]);
                }
                own.by_look[look].push(*ix);
            }
        }
        own
    }

    /// The line in which a gang stands.
    pub(super) fn line_of(&self, gang: &Waiting) -> usize {
        let level = self.levels.get(gang.class.index()).copied().unwrap_or(0);
        level * self.tenants + gang.tenant.index()
    }

    /// Puts a gang in.
    pub(super) fn insert(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32) {
        let at = self.line_of(&snapshot.waiting[ix.index()]);
        if self.by_look.len() <= look as usize {
            self.by_look.resize_with(look as usize + 1, Vec::new);
        }
        let line = &mut self.all[at];
        let (own, urgent) = (key(snapshot, ix), urgency_of(snapshot, ix));
        put(&mut line.gangs, ix, |it| key(snapshot, it) <= own);
        put(&mut line.urgencies, ix, |it| {
            urgency_of(snapshot, it) <= urgent
        });
        let alike = &mut self.by_look[look as usize];
        if alike.is_empty() {
            line.looks.push(look);
        }
        put(alike, ix, |it| key(snapshot, it) <= own);
    }

    /// Takes a gang out that is in.
    pub(super) fn remove(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32) {
        self.each(snapshot, ix, look, |list, at| {
            list.remove(at);
        });
        if self.by_look[look as usize].is_empty() {
            let at = self.line_of(&snapshot.waiting[ix.index()]);
            self.all[at].looks.retain(|it| *it != look);
        }
    }

    /// A gang that is in gets another row of the table.
    pub(super) fn rename(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32, to: WaitingIx) {
        self.each(snapshot, ix, look, |list, at| list[at] = to);
    }

    /// Calls `with` for each list with the gang, and where it is there.
    fn each(
        &mut self,
        snapshot: &Snapshot,
        ix: WaitingIx,
        look: u32,
        with: impl Fn(&mut Vec<WaitingIx>, usize),
    ) {
        let at = self.line_of(&snapshot.waiting[ix.index()]);
        let line = &mut self.all[at];
        let (own, urgent) = (key(snapshot, ix), urgency_of(snapshot, ix));
        let alike = &mut self.by_look[look as usize];
        let in_gangs = find(&line.gangs, ix, |it| key(snapshot, it) < own);
        let in_urgencies = find(&line.urgencies, ix, |it| urgency_of(snapshot, it) < urgent);
        let in_look = find(alike, ix, |it| key(snapshot, it) < own);
        with(&mut line.gangs, in_gangs);
        with(&mut line.urgencies, in_urgencies);
        with(alike, in_look);
    }

    /// The first gang of a look from a key on.
    fn head(&self, snapshot: &Snapshot, look: u32, from: Key) -> Option<Head> {
        let alike = &self.by_look[look as usize];
        let place = alike.partition_point(|ix| key(snapshot, *ix) < from);
        let ix = *alike.get(place)?;
        Some(Reverse((key(snapshot, ix), look, place, ix)))
    }

    /// A gang of the look, if there is any.
    pub(super) fn any_of(&self, look: u32) -> Option<WaitingIx> {
        self.by_look.get(look as usize)?.first().copied()
    }

    /// The gangs of a look, in order.
    pub(super) fn alike(&self, look: u32) -> &[WaitingIx] {
        self.by_look.get(look as usize).map_or(&[], Vec::as_slice)
    }

    /// Looks that were ever in.
    pub(super) fn looks(&self) -> usize {
        self.by_look.len()
    }
}

fn put(list: &mut Vec<WaitingIx>, ix: WaitingIx, before: impl Fn(WaitingIx) -> bool) {
    let at = list.partition_point(|it| before(*it));
    list.insert(at, ix);
}

fn find(list: &[WaitingIx], ix: WaitingIx, before: impl Fn(WaitingIx) -> bool) -> usize {
    let first = list.partition_point(|it| before(*it));
    let same = list[first..].iter().position(|it| *it == ix);
    first + same.expect("whoever is taken out was put in")
}

/// The next gang of a look in its line: its key, the look, and its place among those alike.
type Head = Reverse<(Key, u32, usize, WaitingIx)>;

/// One walk through the lines, as [`crate::order::Queue`] makes it.
pub(super) struct Walk<'a, 'b> {
    snapshot: &'a Snapshot,
    shares: &'b mut Shares<'a>,
    lines: &'b Lines,
    /// Priorities that are left, the highest last.
    priorities: usize,
    /// Gangs of each tenant that were passed, of the priority at hand.
    passed: Vec<usize>,
    /// By tenant: the next of each look that was wanted when its line was first looked at.
    heads: Vec<Option<BinaryHeap<Head>>>,
    levels: Vec<Level<Urgency>>,
    roots: Level<Urgency>,
    moved: Option<TenantIx>,
}

impl<'a, 'b> Walk<'a, 'b> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        shares: &'b mut Shares<'a>,
        lines: &'b Lines,
    ) -> Self {
        let tenants = snapshot.tenants.len();
        Self {
            snapshot,
            shares,
            lines,
            priorities: lines.priorities,
            passed: vec![0; tenants],
            heads: vec![None; tenants],
            levels: vec![Level::default(); tenants],
            roots: Level::default(),
            moved: None,
        }
    }

    /// The next gang that is `wanted` by its look or stands `apart`. All before it are passed over,
    /// and noted in `passed` if anybody asks for them.
    pub(super) fn next(
        &mut self,
        mut wanted: impl FnMut(u32) -> bool,
        apart: &Apart,
        mut passed: Option<&mut Vec<WaitingIx>>,
    ) -> Option<WaitingIx> {
        loop {
            if let Some(tenant) = self.moved.take() {
                self.refresh(tenant);
            }
            while self.roots.first().is_none() {
                self.priorities = self.priorities.checked_sub(1)?;
                self.seat();
            }
            let (tenant, until) = self.winner()?;
            self.moved = Some(tenant);
            let (lines, at) = (self.lines, self.line_at(tenant));
            let line = &lines.all[at];
            let first = self.passed[tenant.index()];
            // Its share stays as it is, so it goes on until another's next gang is more urgent.
            let end = until.map_or(line.gangs.len(), |until| {
                let rest = &line.urgencies[first + 1..];
                let own = |ix: &WaitingIx| urgency_of(self.snapshot, *ix) < until;
                first + 1 + rest.partition_point(own)
            });
            let found = self.first_wanted(tenant, first, &mut wanted, apart.get(&at));
            let found = found.filter(|(place, _)| *place < end);
            let stop = found.map_or(end, |(place, _)| place);
            if let Some(passed) = &mut passed {
                passed.extend_from_slice(&line.gangs[first..stop]);
            }
            self.passed[tenant.index()] = stop + usize::from(found.is_some());
            if let Some((_, ix)) = found {
                self.leave(tenant, ix);
                return Some(ix);
            }
        }
    }

    /// The first gang of a tenant's line from a place on that is to be looked at, and its place.
    fn first_wanted(
        &mut self,
        tenant: TenantIx,
        from: usize,
        wanted: &mut impl FnMut(u32) -> bool,
        apart: Option<&Vec<WaitingIx>>,
    ) -> Option<(usize, WaitingIx)> {
        let (snapshot, lines) = (self.snapshot, self.lines);
        let line = &lines.all[self.line_at(tenant)];
        let first = key(snapshot, *line.gangs.get(from)?);
        let heads = self.heads[tenant.index()].get_or_insert_with(|| {
            let looks = line.looks.iter().filter(|look| wanted(**look));
            looks
                .filter_map(|look| lines.head(snapshot, *look, first))
                .collect()
        });
        while let Some(Reverse((_, look, ..))) = heads.peek()
            && !wanted(*look)
        {
            heads.pop();
        }
        let head = heads.peek().map(|Reverse((own, _, _, ix))| (*own, *ix));
        let apart = apart.into_iter().flatten();
        let apart = apart.map(|ix| (key(snapshot, *ix), *ix));
        let apart = apart.filter(|(own, _)| *own >= first);
        let (own, ix) = head.into_iter().chain(apart).min()?;
        let rest = &line.gangs[from..];
        let at = find(rest, ix, |it| key(snapshot, it) < own);
        Some((from + at, ix))
    }

    /// A gang was looked at: the next that looks like it stands for its look.
    fn leave(&mut self, tenant: TenantIx, ix: WaitingIx) {
        let Some(heads) = &mut self.heads[tenant.index()] else {
            return;
        };
        if let Some(Reverse((_, look, place, head))) = heads.peek().copied()
            && head == ix
        {
            heads.pop();
            let alike = &self.lines.by_look[look as usize];
            let next = alike.get(place + 1).copied();
            heads.extend(next.map(|ix| Reverse((key(self.snapshot, ix), look, place + 1, ix))));
        }
    }

    /// Looks that were not wanted may be from here on.
    pub(super) fn ask_again(&mut self) {
        self.heads.fill(None);
    }

    /// Counts what the tenant whose gang was next was just given.
    pub(super) fn charge(&mut self, tenant: TenantIx, has: Use) {
        self.shares.charge(tenant, has);
    }

    fn line_at(&self, tenant: TenantIx) -> usize {
        self.priorities * self.lines.tenants + tenant.index()
    }

    /// Whose gang is next, and the urgency below which its gangs go on being so.
    fn winner(&self) -> Option<(TenantIx, Option<Urgency>)> {
        let (mut level, mut tenant) = (&self.roots, None);
        let mut until: Option<Urgency> = None;
        loop {
            until = until.into_iter().chain(level.until()).min();
            match level.first()?.2 {
                Player::Own => return Some((tenant?, until)),
                Player::Below(below) => {
                    tenant = Some(below);
                    level = &self.levels[below.index()];
                }
            }
        }
    }

    /// Lets the gangs of one priority play.
    fn seat(&mut self) {
        self.passed.fill(0);
        self.heads.fill(None);
        let lines = self.lines;
        for &tenant in &lines.from_the_leaves {
            if let Some(own) = self.own(tenant) {
                self.levels[tenant.index()].push(own);
            }
            if let Some(stands) = self.stands(tenant) {
                self.above(tenant).push(stands);
            }
        }
    }

    fn own(&self, tenant: TenantIx) -> Option<Standing<Urgency>> {
        let line = &self.lines.all[self.line_at(tenant)];
        let next = line.urgencies.get(self.passed[tenant.index()])?;
        let urgency = urgency_of(self.snapshot, *next);
        Some((self.shares.alone(tenant), urgency, Player::Own))
    }

    fn stands(&self, tenant: TenantIx) -> Option<Standing<Urgency>> {
        let (_, next, _) = self.levels[tenant.index()].first()?;
        Some((self.shares.of(tenant), *next, Player::Below(tenant)))
    }

    fn above(&mut self, tenant: TenantIx) -> &mut Level<Urgency> {
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
