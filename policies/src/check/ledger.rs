//! The ledger of a plan, checked plainly: no limit passed, rows that add up.
//!
//! Owns the checks of quota, budgets and ledger rows. Every sum is made anew for every tenant, in
//! integers too wide to wrap; no code of `quota` or `books` is used.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::units::Resources;

use super::{Found, report};
use crate::model::{
    Held, Lapse, LedgerRow, Measure, NextPlace, Place, Plan, Quota, Role, Snapshot, TenantIx,
    WaitingIx, Yield,
};

/// One placement: who pays, where it counts, how much of everything, its rows.
struct Entry<'a> {
    tenant: TenantIx,
    place: Place,
    amounts: [u128; 3],
    rows: &'a [LedgerRow],
    name: String,
}

impl Entry<'_> {
    fn amount(&self, measure: Measure) -> u128 {
        let part = match measure {
            Measure::Gpus { flavor, region } => {
                let same_flavor = flavor.is_none_or(|it| it == self.place.flavor);
                let same_region = region.is_none_or(|it| it == self.place.region);
                if !same_flavor || !same_region {
                    return 0;
                }
                0
            }
            Measure::Cpu => 1,
            Measure::Memory => 2,
        };
        self.amounts[part]
    }
}

fn held(snapshot: &Snapshot) -> Vec<Entry<'_>> {
    let entry = |row: &crate::model::Held| {
        let cluster = snapshot.clusters.get(row.cluster.index());
        (
            row.tenant,
            Place {
                flavor: row.flavor,
                region: cluster.map(|cluster| cluster.region).unwrap_or_default(),
            },
            [
                row.resources.gpus.0,
                row.resources.cpu.0,
                row.resources.memory.0,
            ]
            .map(u128::from),
            format!("held gang {}", row.gang),
        )
    };
    let rows = snapshot.held.iter();
    rows.map(|row| {
        let (tenant, place, amounts, name) = entry(row);
        Entry {
            tenant,
            place,
            amounts,
            rows: &row.rows,
            name,
        }
    })
    .collect()
}

/// What is held for gangs that wait, but for those that are placed and holds that end.
fn holds<'a>(snapshot: &'a Snapshot, plan: &Plan) -> Vec<Entry<'a>> {
    let placed: BTreeSet<_> = plan
        .placements
        .iter()
        .map(|placed| snapshot.waiting[placed.waiting.index()].gang)
        .collect();
    let ended: BTreeSet<usize> = plan.lapsed.iter().map(|it| it.hold.index()).collect();
    let holds = snapshot.holds.iter().enumerate();
    let standing = holds.filter(|(ix, hold)| !placed.contains(&hold.gang) && !ended.contains(ix));
    let entry = |(_, hold): (usize, &'a crate::model::Hold)| {
        let cluster = snapshot.clusters.get(hold.cluster.index());
        Entry {
            tenant: hold.tenant,
            place: Place {
                flavor: hold.flavor,
                region: cluster.map(|cluster| cluster.region).unwrap_or_default(),
            },
            amounts: vector(hold.resources),
            rows: &hold.rows,
            name: format!("hold of gang {}", hold.gang),
        }
    };
    standing.map(entry).collect()
}

/// Room that the plan makes.
fn made<'a>(snapshot: &'a Snapshot, plan: &'a Plan) -> Vec<Entry<'a>> {
    let entry = |made: &'a crate::model::Preemption| {
        let gang = &snapshot.waiting[made.waiting.index()];
        let pool = &snapshot.pools[made.pool.index()];
        Entry {
            tenant: gang.tenant,
            place: Place {
                flavor: pool.flavor,
                region: snapshot.clusters[pool.cluster.index()].region,
            },
            amounts: vector(gang.shape.demand(&made.pods)),
            rows: &made.rows,
            name: format!("room for gang {}", gang.gang),
        }
    };
    plan.preemptions.iter().map(entry).collect()
}

/// Next places of those who make room and go on elsewhere: charged beside the old ones, which they
/// give up.
fn moved<'a>(snapshot: &'a Snapshot, plan: &'a Plan) -> Vec<Entry<'a>> {
    let victims = plan.preemptions.iter().flat_map(|made| &made.victims);
    let moves = victims.filter_map(|victim| match &victim.does {
        Yield::Move(next) => Some((&snapshot.held[victim.held.index()], next)),
        Yield::Evict | Yield::Shrink { .. } => None,
    });
    let entry = |(held, next): (&'a Held, &'a NextPlace)| {
        let pool = &snapshot.pools[next.pool.index()];
        Entry {
            tenant: held.tenant,
            place: Place {
                flavor: pool.flavor,
                region: snapshot.clusters[pool.cluster.index()].region,
            },
            amounts: vector(held.resources),
            rows: &next.rows,
            name: format!("next place of gang {}", held.gang),
        }
    };
    moves.map(entry).collect()
}

fn vector(resources: Resources) -> [u128; 3] {
    [
        resources.gpus.0.into(),
        resources.cpu.0.into(),
        resources.memory.0.into(),
    ]
}

/// What is held counts as quota less what it gives up to holds, which are charged in its place.
fn give_up<'a>(entries: &mut [Entry<'_>], victims: impl Iterator<Item = (usize, Resources)> + 'a) {
    for (ix, given) in victims {
        if let Some(entry) = entries.get_mut(ix) {
            for (amount, given) in entry.amounts.iter_mut().zip(vector(given)) {
                *amount = amount.saturating_sub(given);
            }
        }
    }
}

fn planned<'a>(snapshot: &'a Snapshot, plan: &'a Plan) -> Vec<Entry<'a>> {
    let entry = |placed: &'a crate::model::Placed| {
        let gang = &snapshot.waiting[placed.waiting.index()];
        let pool = &snapshot.pools[placed.pool.index()];
        let mut amounts = [0_u128; 3];
        for (role, pods) in gang.shape.roles.iter().zip(&placed.pods) {
            let each = [
                role.per_pod.gpus.0,
                role.per_pod.cpu.0,
                role.per_pod.memory.0,
            ];
            for (sum, each) in amounts.iter_mut().zip(each) {
                *sum += u128::from(each) * u128::from(*pods);
            }
        }
        Entry {
            tenant: gang.tenant,
            place: Place {
                flavor: pool.flavor,
                region: snapshot.clusters[pool.cluster.index()].region,
            },
            amounts,
            rows: &placed.rows,
            name: format!("gang {}", gang.gang),
        }
    };
    plan.placements.iter().map(entry).collect()
}

/// What one measure sees of the tree.
struct Sums<'a> {
    snapshot: &'a Snapshot,
    measure: Measure,
    /// Held by each tenant itself.
    direct: Vec<u128>,
}

impl<'a> Sums<'a> {
    fn new(snapshot: &'a Snapshot, measure: Measure, entries: &[&Entry<'_>]) -> Self {
        let mut direct = vec![0_u128; snapshot.tenants.len()];
        for entry in entries {
            if let Some(sum) = direct.get_mut(entry.tenant.index()) {
                *sum += entry.amount(measure);
            }
        }
        Self {
            snapshot,
            measure,
            direct,
        }
    }

    fn row(&self, tenant: usize) -> Option<&'a Quota> {
        let rows = &self.snapshot.tenants[tenant].quotas;
        rows.iter().find(|row| row.measure == self.measure)
    }

    /// Held by the tenant, and claimed by those below. `steps` ends a tree that bites its tail.
    fn inner(&self, tenant: usize, steps: usize) -> u128 {
        let children = self.snapshot.tenants.iter().enumerate();
        let children = children.filter(|(_, node)| {
            steps > 0 && node.parent.is_some_and(|parent| parent.index() == tenant)
        });
        let below: u128 = children
            .map(|(child, _)| self.claim(child, steps - 1))
            .sum();
        self.direct[tenant] + below
    }

    /// What counts above: never less than what the tenant does not lend.
    fn claim(&self, tenant: usize, steps: usize) -> u128 {
        let kept = self.row(tenant).map_or(0, |row| {
            let lent = row.lending_limit.unwrap_or(row.nominal);
            u128::from(row.nominal.saturating_sub(lent))
        });
        self.inner(tenant, steps).max(kept)
    }

    fn has_row_above(&self, tenant: usize) -> bool {
        let above = upward(
            self.snapshot,
            TenantIx(u32::try_from(tenant).unwrap_or(u32::MAX)),
        );
        above
            .into_iter()
            .skip(1)
            .any(|ix| self.row(ix.index()).is_some())
    }
}

/// The tenant and those above it.
fn upward(snapshot: &Snapshot, tenant: TenantIx) -> Vec<TenantIx> {
    let mut path = Vec::new();
    let mut next = Some(tenant);
    while let Some(ix) = next.filter(|ix| !path.contains(ix)) {
        let Some(node) = snapshot.tenants.get(ix.index()) else {
            break;
        };
        path.push(ix);
        next = node.parent;
    }
    path
}

/// What counts before the plan, and after it, once everybody has gone who leaves for a gang; who
/// leaves for one whose hold ends stays.
fn sides<'a>(snapshot: &'a Snapshot, plan: &'a Plan) -> (Vec<Entry<'a>>, Vec<Entry<'a>>) {
    let ended: BTreeSet<usize> = plan.lapsed.iter().map(|it| it.hold.index()).collect();
    // Who left for a gang that has its place counts again, if it is still there.
    let placed: BTreeSet<_> = plan
        .placements
        .iter()
        .map(|placed| snapshot.waiting[placed.waiting.index()].gang)
        .collect();
    let standing = snapshot.holds.iter().enumerate();
    let standing =
        standing.filter(|(ix, hold)| !ended.contains(ix) && !placed.contains(&hold.gang));
    let victims = standing.flat_map(|(_, hold)| &hold.victims);
    let victims = victims.map(|it| (it.held.index(), it.resources));
    let mut before = held(snapshot);
    give_up(&mut before, victims.clone());
    let mut after = held(snapshot);
    give_up(&mut after, victims);
    let victims = plan.preemptions.iter().flat_map(|made| &made.victims);
    give_up(
        &mut after,
        victims.map(|it| {
            let held = &snapshot.held[it.held.index()];
            (it.held.index(), crate::preempt::given_up(held, &it.does))
        }),
    );
    before.extend(holds(snapshot, &Plan::default()));
    after.extend(holds(snapshot, plan));
    after.extend(planned(snapshot, plan));
    after.extend(made(snapshot, plan));
    after.extend(moved(snapshot, plan));
    (before, after)
}

/// No limit is passed that was not passed before; what was is not made worse (S4): neither by what
/// is placed, while nobody has gone yet, nor once everybody has.
pub(super) fn limits(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let now = held(snapshot);
    let mut with_placed = held(snapshot);
    with_placed.extend(planned(snapshot, plan));
    limits_of(snapshot, &now, &with_placed, found);
    let (before, after) = sides(snapshot, plan);
    limits_of(snapshot, &before, &after, found);
}

fn limits_of(
    snapshot: &Snapshot,
    all_before: &[Entry<'_>],
    all_after: &[Entry<'_>],
    found: &mut Found,
) {
    let rows = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let measures: BTreeSet<Measure> = rows.map(|row| row.measure).collect();
    let steps = snapshot.tenants.len();
    for measure in measures {
        let before: Vec<&Entry<'_>> = all_before.iter().collect();
        let after: Vec<&Entry<'_>> = all_after.iter().collect();
        let before = Sums::new(snapshot, measure, &before);
        let after = Sums::new(snapshot, measure, &after);
        let mut families: BTreeMap<Option<TenantIx>, [u128; 3]> = BTreeMap::new();
        for (ix, tenant) in snapshot.tenants.iter().enumerate() {
            let Some(row) = before.row(ix) else { continue };
            let (was, is) = (before.inner(ix, steps), after.inner(ix, steps));
            let borrowed = row.borrowing_limit;
            let borrowed = borrowed.map(|limit| u128::from(row.nominal) + u128::from(limit));
            let limits = [borrowed, row.hard_cap.map(u128::from)];
            for limit in limits.into_iter().flatten() {
                if is > limit && is > was {
                    let message = format!("tenant {} holds {is} of {limit}", tenant.name);
                    report(found, "S4", message);
                }
            }
            if !before.has_row_above(ix) {
                let claims = [before.claim(ix, steps), after.claim(ix, steps)];
                let nominal = row.hard_cap.map_or(row.nominal, |cap| cap.min(row.nominal));
                let family = families.entry(tenant.parent).or_default();
                let parts = [claims[0], claims[1], u128::from(nominal)];
                for (sum, part) in family.iter_mut().zip(parts) {
                    *sum += part;
                }
            }
        }
        for [was, is, nominal] in families.into_values() {
            if is > nominal && is > was {
                let message = format!("siblings borrow: they claim {is} of their {nominal}");
                report(found, "S4", message);
            }
        }
    }
}

/// Nobody whose money is used up gets more than it may.
fn budgets(snapshot: &Snapshot, entry: &Entry<'_>, found: &mut Found) {
    let borrows = entry.rows.iter().any(|row| row.role == Role::Borrowed);
    for ix in upward(snapshot, entry.tenant) {
        let tenant = &snapshot.tenants[ix.index()];
        let Some(budget) = tenant.budget.filter(|budget| budget.spent >= budget.limit) else {
            continue;
        };
        let blocked = match budget.on_exhausted {
            OnExhausted::Warn => false,
            OnExhausted::BlockBorrowing => borrows,
            OnExhausted::BlockAll => true,
        };
        if blocked {
            let message = format!("{} though {} has spent its budget", entry.name, tenant.name);
            report(found, "S4", message);
        }
    }
}

/// Rows of each placement add up to it, own ones to no more than nominal, and nothing is borrowed
/// while there is nominal left (S33).
pub(super) fn rows_add_up(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let (mut entries, planned) = (held(snapshot), planned(snapshot, plan));
    for regraded in &plan.regraded {
        match entries.get_mut(regraded.held.index()) {
            Some(entry) => entry.rows = &regraded.rows,
            None => report(found, "S33", format!("no held row {}", regraded.held.0)),
        }
    }
    for entry in &planned {
        budgets(snapshot, entry, found);
    }
    entries.extend(planned);
    entries.extend(made(snapshot, plan));
    entries.extend(moved(snapshot, plan));
    let holds = holds(snapshot, plan);
    for entry in &entries {
        let sum: u128 = entry.rows.iter().map(|row| u128::from(row.gpus.0)).sum();
        if sum != entry.amounts[0] {
            let message = format!(
                "{} holds {}m, its rows {sum}m",
                entry.name, entry.amounts[0]
            );
            report(found, "S33", message);
        }
        let strange = |row: &&LedgerRow| match row.role {
            Role::Own => row.lender.is_some(),
            Role::Borrowed => row.lender == Some(entry.tenant),
        };
        if let Some(row) = entry.rows.iter().find(strange) {
            let message = format!("{}: {:?} of {:?}", entry.name, row.role, row.lender);
            report(found, "S33", message);
        }
    }
    own_within_nominal(snapshot, &entries, &holds, found);
}

/// Rows of holds are those of their decision, and written anew when their gang is placed: what
/// they hold counts as used.
fn own_within_nominal(
    snapshot: &Snapshot,
    entries: &[Entry<'_>],
    holds: &[Entry<'_>],
    found: &mut Found,
) {
    let rows = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let measures: BTreeSet<Measure> = rows.map(|row| row.measure).collect();
    let is_gpus = |measure: &&Measure| matches!(measure, Measure::Gpus { .. });
    let mut over: BTreeSet<TenantIx> = BTreeSet::new();
    for measure in measures.iter().filter(is_gpus) {
        let sums = Sums::new(snapshot, *measure, &[]);
        let home = |ix: TenantIx, skip| {
            let mut path = upward(snapshot, ix).into_iter().skip(skip);
            path.find(|ix| sums.row(ix.index()).is_some())
        };
        let own =
            |row: &Quota| u128::from(row.hard_cap.map_or(row.nominal, |cap| cap.min(row.nominal)));
        let (mut rest, mut owned, mut used) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let all = || (0..).map(TenantIx).take(snapshot.tenants.len());
        for ix in all() {
            let Some(row) = sums.row(ix.index()) else {
                continue;
            };
            *rest.entry(ix).or_insert(0_i128) += i128::try_from(own(row)).unwrap_or(i128::MAX);
            if let Some(above) = home(ix, 1) {
                *rest.entry(above).or_insert(0) -= i128::try_from(own(row)).unwrap_or(i128::MAX);
            }
        }
        for entry in entries.iter().filter(|entry| entry.amount(*measure) > 0) {
            let Some(home) = home(entry.tenant, 0) else {
                continue;
            };
            let mine = entry.rows.iter().filter(|row| row.role == Role::Own);
            let mine: u128 = mine.map(|row| u128::from(row.gpus.0)).sum();
            *owned.entry(home).or_insert(0_u128) += mine;
            *used.entry(home).or_insert(0_u128) += entry.amount(*measure);
        }
        for hold in holds {
            if let Some(home) = home(hold.tenant, 0) {
                *used.entry(home).or_insert(0_u128) += hold.amount(*measure);
            }
        }
        for (home, used) in used {
            let rest = rest.get(&home).copied().unwrap_or(0);
            let rest = u128::try_from(rest).unwrap_or(0);
            let owned = owned.get(&home).copied().unwrap_or(0);
            let name = &snapshot.tenants[home.index()].name;
            if owned > rest {
                let message = format!("tenant {name} owns {owned}m of its {rest}m");
                report(found, "S33", message);
            }
            if used > rest {
                over.insert(home);
            }
        }
    }
    for entry in entries {
        let borrows = entry.rows.iter().any(|row| row.role == Role::Borrowed);
        let may = upward(snapshot, entry.tenant)
            .iter()
            .any(|ix| over.contains(ix));
        if borrows && !may {
            let message = format!("{} borrows though nominal is left", entry.name);
            report(found, "S33", message);
        }
    }
}

/// True when the `at`th gang that room is made for stays within what is left of its tenant's own
/// nominal quota at its turn.
pub(super) fn is_within_nominal(snapshot: &Snapshot, plan: &Plan, at: usize) -> bool {
    let own = &plan.preemptions[at];
    // As it was at its turn. A hold that ends because its gang got another place may have ended
    // before or after: whichever leaves more.
    let so_far = Plan {
        placements: plan.placements[..plan.placements.len().min(own.after as usize)].to_vec(),
        preemptions: plan.preemptions[..at].to_vec(),
        lapsed: plan.lapsed.clone(),
        ..Plan::default()
    };
    let (_, mut entries) = sides(snapshot, &so_far);
    let elsewhere = plan
        .lapsed
        .iter()
        .filter(|it| it.why == Lapse::PlacedElsewhere);
    let victims = elsewhere.flat_map(|it| &snapshot.holds[it.hold.index()].victims);
    give_up(
        &mut entries,
        victims.map(|it| (it.held.index(), it.resources)),
    );
    let gang = &snapshot.waiting[own.waiting.index()];
    let pool = &snapshot.pools[own.pool.index()];
    let need = Entry {
        tenant: gang.tenant,
        place: snapshot.place(pool),
        amounts: vector(gang.shape.demand(&own.pods)),
        rows: &[],
        name: String::new(),
    };
    let rows = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let measures: BTreeSet<Measure> = rows.map(|row| row.measure).collect();
    let counted = measures.into_iter().filter(|it| it.counts(need.place));
    let mut parts = counted.map(|measure| {
        let sums = Sums::new(snapshot, measure, &[]);
        let home = |tenant, skip| {
            let mut path = upward(snapshot, tenant).into_iter().skip(skip);
            path.find(|ix| sums.row(ix.index()).is_some())
        };
        let Some(own) = home(need.tenant, 0) else {
            return true;
        };
        let nominal = |ix: TenantIx| {
            let row = sums.row(ix.index());
            row.map_or(0, |row| {
                u128::from(row.hard_cap.unwrap_or(u64::MAX).min(row.nominal))
            })
        };
        let all = (0..).map(TenantIx).take(snapshot.tenants.len());
        let below = all.filter(|ix| sums.row(ix.index()).is_some() && home(*ix, 1) == Some(own));
        let given: u128 = below.map(nominal).sum();
        let mine = entries.iter().filter(|it| home(it.tenant, 0) == Some(own));
        let used: u128 = mine.map(|it| it.amount(measure)).sum();
        need.amount(measure) + given + used <= nominal(own) || need.amount(measure) == 0
    });
    parts.all(|fits| fits)
}

/// Limits on GPUs of one job and on running jobs hold upward of each placed gang.
pub(super) fn limits_of_jobs(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let within = |mut tenant: TenantIx, above: u32| {
        for _ in 0..=snapshot.tenants.len() {
            if tenant.0 == above {
                return true;
            }
            match snapshot
                .tenants
                .get(tenant.index())
                .and_then(|node| node.parent)
            {
                Some(parent) => tenant = parent,
                None => return false,
            }
        }
        false
    };
    let gang = |ix: WaitingIx| &snapshot.waiting[ix.index()];
    for (tenant, ix) in snapshot.tenants.iter().zip(0_u32..) {
        if tenant.gpus_per_job.is_none() && tenant.running_jobs.is_none() {
            continue;
        }
        let mine = plan.placements.iter().map(|placed| gang(placed.waiting));
        let mine: Vec<_> = mine.filter(|gang| within(gang.tenant, ix)).collect();
        for gang in &mine {
            if tenant
                .gpus_per_job
                .is_some_and(|limit| gang.job_gpus > limit)
            {
                let message = format!("job {} is larger than {} allows", gang.job, tenant.name);
                report(found, "S4", message);
            }
        }
        let Some(limit) = tenant.running_jobs else {
            continue;
        };
        let held = snapshot.held.iter().filter(|row| within(row.tenant, ix));
        let before: BTreeSet<_> = held.map(|row| row.gang.job).collect();
        let mut after = before.clone();
        after.extend(mine.iter().map(|gang| gang.gang.job));
        if after.len() > limit as usize && after.len() > before.len() {
            let message = format!(
                "tenant {} runs {} jobs of {limit}",
                tenant.name,
                after.len()
            );
            report(found, "S4", message);
        }
    }
}
