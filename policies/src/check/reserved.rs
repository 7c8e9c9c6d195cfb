//! Reservations of a plan, checked plainly: nothing is placed on what makes a block whole.
//!
//! Owns the two bounds that prove it: hosts that enough pods cannot have reached, and hosts that
//! stand empty. Computed anew for each placement from all that stands in the pool; no code of
//! `reserved` is used.

use std::collections::BTreeSet;

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::UnixMillis;

use super::{Found, Hosts, hosts, report, take_from};
use crate::model::{
    ClassIx, Held, Placed, Plan, PoolIx, Reserved, Role, Rule, Snapshot, TenantIx, Victim, Yield,
};

/// Work in the pool: whose, from when to when, how large.
#[derive(Clone, Copy)]
struct Work {
    tenant: TenantIx,
    class: ClassIx,
    since: UnixMillis,
    ends: Option<UnixMillis>,
    pods: u128,
    gpus: u128,
    is_held: bool,
}

/// A block is whole when it begins: each placement that could be in its way leaves it its hosts.
pub(super) fn blocks_stay_whole(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut pools: Vec<PoolIx> = snapshot.reserved.iter().map(|row| row.pool).collect();
    pools.sort_unstable();
    pools.dedup();
    for pool in pools {
        if pool.index() >= snapshot.pools.len() {
            report(
                found,
                "S5",
                format!("a reservation is in no pool {}", pool.0),
            );
            continue;
        }
        let here: Vec<&Placed> = plan
            .placements
            .iter()
            .filter(|it| it.pool == pool)
            .collect();
        if !here.is_empty() {
            in_pool(snapshot, pool, &here, found);
        }
    }
}

fn in_pool(snapshot: &Snapshot, pool: PoolIx, placements: &[&Placed], found: &mut Found) {
    let rows = snapshot.reserved.iter().filter(|row| row.pool == pool);
    let rows: Vec<&Reserved> = rows.filter(|row| row.until > snapshot.now).collect();
    let mut times: Vec<UnixMillis> = rows.iter().map(|row| row.from.max(snapshot.now)).collect();
    times.sort_unstable();
    times.dedup();
    let mut room = hosts(&snapshot.pools[pool.index()]);
    let (all, empty, largest) = sums(&room);
    let occupied = all - empty;
    let moments = times.into_iter();
    let moments = moments.map(|at| Moment::new(snapshot, &rows, at, largest));
    let mut moments: Vec<Moment<'_>> = moments.collect();
    for held in snapshot.held.iter().filter(|held| held.pool == Some(pool)) {
        let work = Work {
            tenant: held.tenant,
            class: held.class,
            since: held.since,
            ends: held.ends,
            pods: u128::from(held.pods),
            gpus: u128::from(held.resources.gpus.0),
            is_held: true,
        };
        for moment in &mut moments {
            moment.add(snapshot, &work);
        }
    }
    for placed in placements {
        let gang = &snapshot.waiting[placed.waiting.index()];
        let work = Work {
            tenant: gang.tenant,
            class: gang.class,
            since: snapshot.now,
            ends: gang.max_runtime.map(|most| snapshot.now.after(most)),
            pods: placed.pods.iter().map(|pods| u128::from(*pods)).sum(),
            gpus: u128::from(placed.gpus.0),
            is_held: false,
        };
        if take_from(&mut room, &gang.shape, placed).is_err() {
            // Said by the check of rooms; what would follow from it is of no use.
            return;
        }
        let (all, empty, _) = sums(&room);
        for moment in &mut moments {
            let is_own = moment.own(snapshot, &work);
            let matters = is_own.is_some() || moment.is_in_the_way(snapshot, &work);
            moment.add(snapshot, &work);
            if let Some(what) = moment
                .leaves_too_little(is_own, (all, empty, occupied))
                .filter(|_| matters)
            {
                let message = format!("gang {} in pool {}: {what}", gang.gang, pool.0);
                report(found, "S20", message);
            }
        }
    }
}

/// Only who is in the way of a block that is about to begin goes for it, and only who may be made
/// to (S14).
pub(super) fn vacating(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let holds = snapshot.holds.iter().flat_map(|hold| &hold.victims);
    let mut hit: BTreeSet<_> = holds.map(|it| it.held).collect();
    let made = plan.preemptions.iter().flat_map(|made| &made.victims);
    hit.extend(made.map(|it| it.held));
    let notices = snapshot.classes.iter().map(|class| class.rule.notice.0);
    let ahead = i128::from(notices.max().unwrap_or(0)) + 60_000;
    for leaving in &plan.vacating {
        let Some(row) = snapshot.reserved.get(leaving.reserved as usize) else {
            report(found, "S14", format!("no reservation {}", leaving.reserved));
            continue;
        };
        let mut wrong = |what: String| {
            report(
                found,
                "S14",
                format!("room for reservation {}: {what}", row.name),
            );
        };
        let now = i128::from(snapshot.now.0);
        let empty_by = i128::from(row.from.0) - i128::from(row.lead.0);
        if now + ahead < empty_by || row.until <= snapshot.now {
            wrong("it is not about to begin".to_owned());
        }
        for victim in &leaving.victims {
            let Some(held) = snapshot.held.get(victim.held.index()) else {
                wrong(format!("no placement {}", victim.held.0));
                continue;
            };
            if !hit.insert(victim.held) {
                wrong(format!("gang {} makes room twice", held.gang));
            }
            if let Some(what) = stays(snapshot, row, held, victim) {
                wrong(format!("gang {} {what}", held.gang));
            }
        }
    }
}

/// Why a placement may not be made to go for a block; `None` when it may.
fn stays(
    snapshot: &Snapshot,
    row: &Reserved,
    held: &Held,
    victim: &Victim,
) -> Option<&'static str> {
    let work = Work {
        tenant: held.tenant,
        class: held.class,
        since: held.since,
        ends: held.ends,
        pods: 0,
        gpus: 0,
        is_held: true,
    };
    let rule = &snapshot.classes[held.class.index()].rule;
    let empty_by = i128::from(row.from.0) - i128::from(row.lead.0);
    let gone = held.ends.is_some_and(|ends| i128::from(ends.0) <= empty_by);
    let borrows = held.rows.iter().any(|it| it.role == Role::Borrowed);
    let began = held.standing.started.unwrap_or(held.since);
    let hits = held.standing.evictions.iter();
    let hits = hits.filter(|at| snapshot.now.since(**at).0 < 3_600_000);
    let is_evicted = victim.rule == Rule::Reserved && victim.does == Yield::Evict;
    match () {
        () if held.pool != Some(row.pool) => Some("stands elsewhere"),
        () if held.standing.seats.is_empty() => Some("is not known to stand anywhere"),
        () if may_use(snapshot, row, &work) => Some("is of those that it is for"),
        () if row.from > snapshot.now && gone => Some("has ended by then"),
        () if matches!(rule.how, Manner::Never | Manner::ShrinkToFloor) => {
            Some("is of a class that is never stopped")
        }
        () if rule.is_shielded && !borrows => Some("is protected by the windows of its class"),
        () if snapshot.now.since(began) < rule.min_runtime => {
            Some("has not run for its least time")
        }
        () if hits.count() >= 3 => Some("was hit three times in this hour"),
        () if !is_evicted => Some("goes by another rule"),
        () => None,
    }
}

/// True for work of the tenant's tree and of the classes named.
fn may_use(snapshot: &Snapshot, row: &Reserved, work: &Work) -> bool {
    let mut at = Some(work.tenant);
    for _ in 0..=snapshot.tenants.len() {
        if at == Some(row.tenant) {
            return row.classes.is_empty() || row.classes.contains(&work.class);
        }
        let node = at.and_then(|ix| snapshot.tenants.get(ix.index()));
        at = node.and_then(|node| node.parent);
    }
    false
}

/// Hosts with GPUs, those of them on which nobody stands, and GPUs of the largest.
fn sums(room: &Hosts<'_>) -> (u128, u128, u128) {
    let mut sums = (0, 0, 1);
    for ((_, size, free), hosts) in room.iter().filter(|((_, size, _), _)| size[0] > 0) {
        sums.0 += u128::from(*hosts);
        sums.1 += if size == free { u128::from(*hosts) } else { 0 };
        sums.2 = sums.2.max(u128::from(size[0]));
    }
    sums
}

/// What stands in the pool as the blocks of one time see it, in sums: each piece of work is looked
/// at once for each time.
struct Moment<'a> {
    at: UnixMillis,
    lead: u64,
    /// GPUs of the largest host.
    largest: u128,
    holding: Vec<&'a Reserved>,
    /// Pods of those in the way.
    in_the_way: u128,
    /// Of each block's own work: pods, and hosts that it fills alone, held and placed.
    own: Vec<[u128; 3]>,
}

impl<'a> Moment<'a> {
    fn new(snapshot: &Snapshot, rows: &[&'a Reserved], at: UnixMillis, largest: u128) -> Self {
        let begin = rows.iter().filter(|row| row.from.max(snapshot.now) == at);
        let holding = rows.iter().filter(|row| row.from <= at && at < row.until);
        let holding: Vec<&Reserved> = holding.copied().collect();
        Self {
            at,
            lead: begin.map(|row| row.lead.0).max().unwrap_or(0),
            largest,
            in_the_way: 0,
            own: vec![[0; 3]; holding.len()],
            holding,
        }
    }

    /// The block that the work is for, by its place.
    fn own(&self, snapshot: &Snapshot, work: &Work) -> Option<usize> {
        let mut rows = self.holding.iter();
        rows.position(|row| may_use(snapshot, row, work))
    }

    fn is_in_the_way(&self, snapshot: &Snapshot, work: &Work) -> bool {
        let lent = |row: &&Reserved| {
            let ends = work.ends.map(|ends| ends.0 - work.since.0);
            row.lends.as_ref().is_some_and(|lends| {
                let soon =
                    ends.is_some_and(|length| i128::from(length) <= i128::from(lends.within.0));
                row.from <= work.since && lends.classes.contains(&work.class) && soon
            })
        };
        let by = i128::from(self.at.0) - i128::from(self.lead);
        let gone = self.at > snapshot.now && work.ends.is_some_and(|ends| i128::from(ends.0) <= by);
        self.own(snapshot, work).is_none() && !gone && !self.holding.iter().all(lent)
    }

    fn add(&mut self, snapshot: &Snapshot, work: &Work) {
        let Some(place) = self.own(snapshot, work) else {
            if self.is_in_the_way(snapshot, work) {
                self.in_the_way += work.pods;
            }
            return;
        };
        let [pods, held, placed] = &mut self.own[place];
        *pods += work.pods;
        // Only where every pod fills a host does nobody stand beside it.
        if work.gpus >= work.pods * self.largest {
            *(if work.is_held { held } else { placed }) += work.pods;
        }
    }

    /// What is wrong when the newest work, which may be some block's own, leaves the blocks fewer
    /// hosts than they have.
    fn leaves_too_little(
        &self,
        newest: Option<usize>,
        (all, empty, occupied): (u128, u128, u128),
    ) -> Option<String> {
        let mut taken = self.in_the_way;
        let (mut claimed, mut needed) = (0_u128, 0_u128);
        for (place, (row, [pods, held, placed])) in self.holding.iter().zip(&self.own).enumerate() {
            // What is held may have gone already: it fills no host that is empty.
            let fills = held.min(&occupied) + placed;
            let wanted = u128::from(row.hosts);
            if newest == Some(place) {
                taken += pods;
            } else {
                taken += pods.saturating_sub(wanted);
                claimed += wanted;
                needed += wanted.saturating_sub(fills);
            }
        }
        if all >= claimed + taken || empty >= needed {
            return None;
        }
        let names: Vec<&str> = self.holding.iter().map(|row| row.name.as_str()).collect();
        Some(format!(
            "of {all} hosts {claimed} are reserved ({}), others may stand on {taken}, and {empty} \
             are empty where {needed} must be",
            names.join(", ")
        ))
    }
}
