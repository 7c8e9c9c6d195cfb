//! Who may take what from whom.
//!
//! Owns the rules: class above class, owner from borrower, lender from whom it lent to, and what
//! protects a victim from each. Pure comparisons of one gang with one placement. Never looks at
//! room or cost.
//!
//! No cycle can come of them. A gang of a tenant that stays within its nominal quota stands above
//! every borrower, and among equals in that the class decides: whoever takes stands strictly
//! higher than whom it takes from. What changes where one stands (quota, other work of the same
//! tenant) could still make two take turns, which is what the cool-down is for.

use std::collections::BTreeSet;

use meridian_api::ids::Uid;
use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{Millis, UnixMillis};

use super::moves::Price;
use crate::books::borrowed_of;
use crate::model::{Class, ClassRule, Held, Role, Rule, Snapshot, Stage, TenantIx, Waiting};
use crate::quota::ancestry;

/// After B made A go, A may not make B go for this long: by then the first has run for longer than
/// both restarts cost, on any hardware known.
pub(crate) const COOL_DOWN: Millis = Millis::seconds(30 * 60);
/// Span of the rate cap and of the budget of lost work.
pub(crate) const HOUR: Millis = Millis::seconds(3600);
/// Times that one gang may be hit in an hour.
pub(crate) const HITS_PER_HOUR: usize = 3;
/// In an hour a tenant may lose as much work as everything that it holds does in this time: three
/// quarters of what it pays for go into results, whoever comes.
const BUDGET: Millis = Millis::seconds(15 * 60);

/// What room is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Aim {
    /// It has a right to it.
    Take,
    /// Only so that what is free comes together.
    Compact,
}

impl Aim {
    /// What victims are taken to cost, one after the other: nobody is stopped for compaction.
    pub(super) const fn prices(self) -> &'static [Price] {
        match self {
            Self::Take => &[Price::Moved, Price::Stopped],
            Self::Compact => &[Price::Moved],
        }
    }
}

/// A gang that asks for room, and how it stands.
#[derive(Clone, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) gang: &'a Waiting,
    pub(crate) priority: i32,
    /// Its class is never stopped for others: budgets of others do not hold it up.
    pub(crate) is_protected: bool,
    /// Its tenant stays within its nominal quota with it.
    pub(crate) is_owner: bool,
    /// Jobs that made it go a moment ago.
    pub(crate) cooling: Vec<Uid>,
    pub(crate) aim: Aim,
}

impl<'a> Asker<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, gang: &'a Waiting, is_owner: bool, aim: Aim) -> Self {
        let class = snapshot.classes.get(gang.class.index());
        Self {
            gang,
            priority: class.map_or(i32::MIN, |class| class.priority),
            is_protected: class.is_some_and(|class| class.rule.how.is_protected()),
            is_owner,
            cooling: cooling(gang, snapshot.now),
            aim,
        }
    }

    /// When it may make a placement go again that made it go a moment ago.
    fn cools(&self, held: &Held, now: UnixMillis) -> Option<UnixMillis> {
        let job = held.gang.job;
        if !self.cooling.contains(&job) {
            return None;
        }
        let by = self.gang.evicted_by.iter();
        let by = by.filter(|by| by.job == job && now.since(by.at) < COOL_DOWN);
        by.map(|by| by.at.after(COOL_DOWN)).max()
    }
}

/// Why a gang may not take a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// As long as nothing else changes.
    Stays,
    /// Until then.
    Until(UnixMillis),
}

impl Barred {
    /// When that may be over by time alone.
    pub(crate) const fn until(self) -> Option<UnixMillis> {
        match self {
            Self::Stays => None,
            Self::Until(at) => Some(at),
        }
    }
}

/// By which rule the gang may take the placement. Who is not known to stand anywhere frees nothing
/// that can be counted on.
///
/// # Errors
/// It may not.
pub(crate) fn rule(snapshot: &Snapshot, asker: &Asker<'_>, held: &Held) -> Result<Rule, Barred> {
    let class = snapshot.classes.get(held.class.index());
    let class = class.filter(|_| !held.standing.seats.is_empty());
    let class = class.ok_or(Barred::Stays)?;
    if held.standing.stage == Stage::Draining {
        let may = asker.aim == Aim::Take;
        return may.then_some(Rule::Leaving).ok_or(Barred::Stays);
    }
    if class.rule.how == Manner::Never {
        return Err(Barred::Stays);
    }
    let borrows = borrowed_of(&held.rows).0 > 0;
    let rule = match asker.aim {
        Aim::Take => claim(snapshot, asker, held, class, borrows),
        Aim::Compact => class.rule.comes_back().then_some(Rule::Compaction),
    };
    let rule = rule.ok_or(Barred::Stays)?;
    if class.rule.is_shielded && !borrows {
        // Windows open and shut by another row of the class.
        return Err(Barred::Stays);
    }
    let now = snapshot.now;
    let old = held.standing.started.unwrap_or(held.since);
    let old = old.after(class.rule.min_runtime);
    let old = (rule != Rule::Reclaim && is_young(held, &class.rule, now)).then_some(old);
    let lapses = [old, left_alone_until(held, now), asker.cools(held, now)];
    let lapses = lapses.into_iter().flatten().max();
    lapses.map_or(Ok(rule), |until| Err(Barred::Until(until)))
}

/// When a placement that was hit as often as one may be can be hit again.
fn left_alone_until(held: &Held, now: UnixMillis) -> Option<UnixMillis> {
    let mut hits = held.standing.evictions.clone();
    hits.retain(|at| now.since(*at) < HOUR);
    hits.sort_unstable();
    let allowed = hits.len().checked_sub(HITS_PER_HOUR)?;
    hits.get(allowed).map(|at| at.after(HOUR))
}

/// What gives the gang the right, protections apart.
fn claim(
    snapshot: &Snapshot,
    asker: &Asker<'_>,
    held: &Held,
    class: &Class,
    borrows: bool,
) -> Option<Rule> {
    let tenant = asker.gang.tenant;
    let lent = |lender: TenantIx| ancestry(&snapshot.tenants, tenant).any(|(ix, _)| ix == lender);
    let mut loans = held.rows.iter().filter(|row| row.role == Role::Borrowed);
    if asker.is_owner && loans.any(|row| row.lender.is_some_and(lent)) {
        return Some(Rule::Reclaim);
    }
    let reaches = asker.is_owner || borrows || held.tenant == tenant;
    if class.priority < asker.priority && reaches {
        return Some(Rule::LowerClass);
    }
    (asker.is_owner && borrows).then_some(Rule::OverShare)
}

pub(crate) fn is_young(held: &Held, rule: &ClassRule, now: UnixMillis) -> bool {
    let since = held.standing.started.unwrap_or(held.since);
    now.since(since) < rule.min_runtime
}

/// How many of these lie within the last hour.
pub(crate) fn recent(at: &[UnixMillis], now: UnixMillis) -> usize {
    at.iter().filter(|at| now.since(**at) < HOUR).count()
}

/// Jobs that made the gang go a moment ago: it may not make them go yet. By id, each once.
pub(crate) fn cooling(gang: &Waiting, now: UnixMillis) -> Vec<Uid> {
    let by = gang.evicted_by.iter();
    let by = by.filter(|by| now.since(by.at) < COOL_DOWN);
    let jobs: BTreeSet<Uid> = by.map(|by| by.job).collect();
    jobs.into_iter().collect()
}

/// Work that each tenant may still lose by rules that heed its budget, in thousandths of seconds
/// of a reference card. A tenant that has lost nothing always may: else one that holds a single
/// gang without checkpoints could keep a higher class out for ever.
pub(crate) fn budgets(snapshot: &Snapshot) -> Vec<u64> {
    if snapshot.tenants.iter().all(|tenant| tenant.lost == 0) {
        return vec![u64::MAX; snapshot.tenants.len()];
    }
    let mut held = vec![0_u64; snapshot.tenants.len()];
    for row in &snapshot.held {
        let worth = snapshot.flavors.get(row.flavor.index());
        let worth = worth.map_or(1000, |flavor| flavor.worth);
        if let Some(sum) = held.get_mut(row.tenant.index()) {
            *sum = sum.saturating_add(super::cost::work(row.resources.gpus, worth, BUDGET));
        }
    }
    let left = |(tenant, most): (&crate::model::Tenant, u64)| match tenant.lost {
        0 => u64::MAX,
        lost => most.saturating_sub(lost),
    };
    snapshot.tenants.iter().zip(held).map(left).collect()
}
