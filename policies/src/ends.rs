//! Ends: when placements end, pool by pool, in the order in which that is expected.
//!
//! Owns the two orders that do not change while time passes: of those that say when they end by
//! that, and of all others by when they began, as what runs for longer is taken to run on for
//! longer. Never says what becomes of the room.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{Millis, Resources, UnixMillis};

use crate::model::{Held, Place, PoolIx, Snapshot, TenantIx};

/// What runs without a limit is taken to run for as long again as it has, at least this long.
pub(crate) const SHORTEST_GUESS: Millis = Millis::seconds(3600);

/// One placement's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// When it ends, if it says so, else when it began.
    at: UnixMillis,
    name: (GangId, Epoch),
    pub(crate) tenant: TenantIx,
    pub(crate) place: Place,
    /// What comes free.
    pub(crate) what: Resources,
}

/// Ends of the placements in one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    is_sorted: bool,
    /// The next first.
    told: Vec<End>,
    /// The one that began last first.
    open: Vec<End>,
}

impl List {
    fn side(&mut self, held: &Held) -> &mut Vec<End> {
        if held.ends.is_some() {
            &mut self.told
        } else {
            &mut self.open
        }
    }

    fn sort(&mut self) {
        if !std::mem::replace(&mut self.is_sorted, true) {
            self.told.sort_unstable_by_key(|end| (end.at, end.name));
            self.open
                .sort_unstable_by_key(|end| (Reverse(end.at), end.name));
        }
    }

    /// All, the next first: when, and whether that is told or guessed. Of those at one time the
    /// guessed come first.
    pub(crate) fn expected(
        &self,
        now: UnixMillis,
    ) -> impl Iterator<Item = (UnixMillis, bool, &End)> {
        let told = self.told.iter().map(move |end| (end.at.max(now), end));
        let open = self.open.iter().map(move |end| {
            let guess = now.since(end.at).max(SHORTEST_GUESS);
            (now.after(guess), end)
        });
        let (mut told, mut open) = (told.peekable(), open.peekable());
        std::iter::from_fn(move || {
            let is_told = match (told.peek(), open.peek()) {
                (Some((told, _)), Some((open, _))) => told < open,
                (told, _) => told.is_some(),
            };
            let next = if is_told { told.next() } else { open.next() };
            next.map(|(at, end)| (at, is_told, end))
        })
    }

    /// When the next of those that do not say when they end has run for so long.
    pub(crate) fn next_open(&self, ran: Millis, now: UnixMillis) -> Option<UnixMillis> {
        let younger = self.open.partition_point(|end| now.since(end.at) < ran);
        let oldest = self.open[..younger].last();
        oldest.map(|end| end.at.after(ran))
    }

    /// The last, if all say when they end.
    pub(crate) fn last_told(&self, now: UnixMillis) -> Option<UnixMillis> {
        let last = self.told.last().filter(|_| self.open.is_empty());
        last.map(|end| end.at.max(now))
    }
}

/// Ends of everything that is held; made when they are first asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    /// By pool; the last of what is in no pool that is reported.
    lists: Option<Vec<List>>,
}

impl Ends {
    /// Those of a pool.
    pub(crate) fn of(&mut self, snapshot: &Snapshot, pool: PoolIx) -> &List {
        let list = &mut self.lists(snapshot)[pool.index()];
        list.sort();
        list
    }

    /// All, the next first.
    pub(crate) fn all<'a>(
        &'a mut self,
        snapshot: &Snapshot,
    ) -> impl Iterator<Item = (UnixMillis, bool, End)> + use<'a> {
        let now = snapshot.now;
        self.lists(snapshot).iter_mut().for_each(List::sort);
        let lists = self.lists.iter().flatten();
        let mut lists: Vec<_> = lists.map(|list| list.expected(now).peekable()).collect();
        let first = lists.iter_mut().enumerate();
        let first = first.filter_map(|(list, ends)| {
            let (at, is_told, end) = ends.peek()?;
            Some(Reverse((*at, *is_told, end.name, list)))
        });
        let mut heap: BinaryHeap<_> = first.collect();
        std::iter::from_fn(move || {
            let Reverse((.., list)) = heap.pop()?;
            let (at, is_told, end) = lists[list].next()?;
            if let Some((at, is_told, end)) = lists[list].peek() {
                heap.push(Reverse((*at, *is_told, end.name, list)));
            }
            Some((at, is_told, *end))
        })
    }

    /// When the next of all those that do not say when they end has run for so long.
    pub(crate) fn next_open(&mut self, snapshot: &Snapshot, ran: Millis) -> Option<UnixMillis> {
        let lists = self.lists(snapshot).iter_mut();
        let next = lists.filter_map(|list| {
            list.sort();
            list.next_open(ran, snapshot.now)
        });
        next.min()
    }

    fn lists(&mut self, snapshot: &Snapshot) -> &mut Vec<List> {
        self.lists.get_or_insert_with(|| {
            let mut lists = vec![List::default(); snapshot.pools.len() + 1];
            for held in &snapshot.held {
                let list = &mut lists[list_of(snapshot, held)];
                list.side(held).push(end_of(snapshot, held));
            }
            lists
        })
    }

    /// One placement more.
    pub(crate) fn push(&mut self, snapshot: &Snapshot, held: &Held) {
        self.change(snapshot, held, |side, at| {
            side.insert(at, end_of(snapshot, held));
        });
    }

    /// A placement is gone.
    pub(crate) fn remove(&mut self, snapshot: &Snapshot, held: &Held) {
        self.change(snapshot, held, |side, at| {
            debug_assert!(side[at].name == (held.gang, held.epoch), "it was there");
            side.remove(at);
        });
    }

    /// Calls `with` for where the end of a placement is, or would be, as far as ends are known.
    fn change(
        &mut self,
        snapshot: &Snapshot,
        held: &Held,
        with: impl FnOnce(&mut Vec<End>, usize),
    ) {
        let Some(lists) = &mut self.lists else { return };
        let list = &mut lists[list_of(snapshot, held)];
        list.sort();
        let name = (held.gang, held.epoch);
        let at = if let Some(ends) = held.ends {
            list.told
                .partition_point(|it| (it.at, it.name) < (ends, name))
        } else {
            let own = (Reverse(held.since), name);
            list.open
                .partition_point(|it| (Reverse(it.at), it.name) < own)
        };
        with(list.side(held), at);
    }
}

fn list_of(snapshot: &Snapshot, held: &Held) -> usize {
    let none = snapshot.pools.len();
    held.pool.map_or(none, |pool| pool.index().min(none))
}

fn end_of(snapshot: &Snapshot, held: &Held) -> End {
    End {
        at: held.ends.unwrap_or(held.since),
        name: (held.gang, held.epoch),
        tenant: held.tenant,
        place: held.place(snapshot),
        what: held.resources,
    }
}
