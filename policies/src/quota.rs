//! The quota ledger: what each tenant holds, and what it may still take.
//!
//! Owns the limits on GPUs, CPU, memory and running jobs over the tenant tree, kept up to date
//! while a round places gangs. Never decides order, never knows what a GPU is worth. Whose quota
//! a placement stands on is `books`' matter.
//!
//! A row limits what its tenant holds with everything below it to `min(nominal + borrowing limit,
//! hard cap)`. What is borrowed is what others leave unused: every tenant *claims* of the node
//! above what it holds, yet never less than what it does not lend (`nominal - lending limit`), and
//! the claims stay within the row above. Where no node above has such a row, the claims of
//! siblings stay within the sum of their nominal. Roots are siblings of each other.

mod entries;

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::Uid;
use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::kinds::tenant_quota::{Amounts, TenantQuotaSpec};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use crate::model::{Budget, FlavorIx, Measure, Place, Quota, RegionIx, Snapshot, Tenant, TenantIx};
use crate::present::Present;

pub(crate) use entries::Entries;

/// How far a tenant may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Only its own: nothing that others leave unused.
    Nominal,
    /// Its own and what it may borrow.
    Borrowing,
    /// As if nobody held anything: what it can ever get.
    Ever,
}

/// A limit with its numbers, in the unit of its measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Whose row it is.
    pub tenant: TenantIx,
    /// What it counts.
    pub measure: Measure,
    /// True when it is the sum of the tenant and its siblings that is limited.
    pub siblings: bool,
    /// Held already, or kept by those who do not lend it.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// What a tenant may still take of one measure; without a bound when nothing limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    amount: u64,
    bound: Option<Bound>,
}

/// One tenant and one measure.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    row: Option<Row>,
    /// Held by the tenant itself, and claimed by those directly below it.
    inner: u64,
    /// `inner` when nobody holds anything.
    base: u64,
    /// Nominal of the nearest rows below.
    given: u64,
    /// Held by tenants whose nearest row this is.
    pot_used: u64,
    /// Siblings that are limited by their sum, when no row above does it.
    family: Option<usize>,
}

/// The numbers of a quota row.
#[derive(Clone, Copy, Debug)]
struct Row {
    nominal: u64,
    limit: u64,
    /// Nominal that is never lent.
    kept: u64,
}

impl Line {
    /// What the node above counts of this one.
    fn claim(&self) -> u64 {
        self.inner.max(self.row.map_or(0, |row| row.kept))
    }

    /// Nominal left over for those whose nearest row this is.
    fn pot_left(&self) -> u64 {
        let nominal = self.row.map_or(0, |row| row.nominal);
        nominal
            .saturating_sub(self.given)
            .saturating_sub(self.pot_used)
    }
}

impl Row {
    fn of(quota: &Quota) -> Self {
        let cap = quota.hard_cap.unwrap_or(u64::MAX);
        let borrowing = quota.borrowing_limit.unwrap_or(u64::MAX);
        let lending = quota.lending_limit.unwrap_or(quota.nominal);
        Self {
            nominal: quota.nominal.min(cap),
            limit: quota.nominal.saturating_add(borrowing).min(cap),
            kept: quota.nominal.saturating_sub(lending),
        }
    }
}

/// Siblings with a row that nothing above limits.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    limit: u64,
    claims: u64,
    /// `claims` when nobody holds anything.
    base: u64,
}

/// Use and limits of every tenant: one line per tenant and measure.
#[derive(Clone, Debug)]
pub struct Ledger<'a> {
    tenants: &'a [Tenant],
    measures: Vec<Measure>,
    lines: Vec<Line>,
    families: Vec<Family>,
    running: Vec<u32>,
    /// Jobs that run, at each node that limits them.
    jobs: BTreeSet<(TenantIx, Uid)>,
}

impl<'a> Ledger<'a> {
    /// Tenants times measures: the size of the sums of [`Ledger::count`].
    pub(crate) fn size(&self) -> usize {
        self.lines.len()
    }

    /// The ledger of what is held: who leaves counts until it has gone, and what is kept for a gang
    /// counts beside it.
    #[must_use]
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self::of_present(snapshot, &Present::new(snapshot))
    }

    /// The same, when what is held is added up already.
    pub(crate) fn of_present(snapshot: &'a Snapshot, present: &Present) -> Self {
        let mut ledger = Self::empty(&snapshot.tenants);
        let mut sums = vec![0; ledger.lines.len()];
        let by = u64::saturating_add;
        for group in present.groups() {
            ledger.count(&mut sums, group.tenant, group.place, group.what, by);
        }
        let holds = snapshot.holds.iter().filter(|hold| hold.block.is_none());
        for hold in holds.clone() {
            let place = hold.place(snapshot);
            ledger.count(&mut sums, hold.tenant, place, hold.resources, by);
        }
        ledger.enter(&sums);
        if snapshot.tenants.iter().any(|it| it.running_jobs.is_some()) {
            let held = snapshot.held.iter().map(|row| (row.tenant, row.gang.job));
            for (tenant, job) in held.chain(holds.map(|hold| (hold.tenant, hold.gang.job))) {
                ledger.start(tenant, job);
            }
        }
        ledger
    }

    /// The ledger of these tenants while nobody holds anything.
    pub(crate) fn empty(tenants: &'a [Tenant]) -> Self {
        let rows = tenants.iter().flat_map(|tenant| &tenant.quotas);
        let measures: BTreeSet<Measure> = rows.map(|quota| quota.measure).collect();
        let measures: Vec<Measure> = measures.into_iter().collect();
        let mut ledger = Self {
            tenants,
            lines: vec![Line::default(); tenants.len() * measures.len()],
            measures,
            families: Vec::new(),
            running: vec![0; tenants.len()],
            jobs: BTreeSet::new(),
        };
        ledger.put_rows();
        ledger
    }

    /// Changes the sums of one tenant by what it holds in `place`: a row of all measures for each
    /// tenant.
    pub(crate) fn count(
        &self,
        sums: &mut [u64],
        tenant: TenantIx,
        place: Place,
        what: Resources,
        by: fn(u64, u64) -> u64,
    ) {
        if tenant.index() >= self.tenants.len() {
            return;
        }
        for (measure, counted) in self.measures.iter().enumerate() {
            if counted.counts(place) {
                let sum = &mut sums[self.slot(tenant, measure)];
                *sum = by(*sum, counted.amount(what));
            }
        }
    }

    /// Enters what is held, the sums of each tenant at once.
    pub(crate) fn enter(&mut self, sums: &[u64]) {
        for tenant in (0..).map(TenantIx).take(self.tenants.len()) {
            for measure in 0..self.measures.len() {
                let sum = sums[self.slot(tenant, measure)];
                if sum > 0 {
                    self.shift_one(tenant, measure, sum, u64::saturating_add);
                }
            }
        }
    }

    /// What `tenant` has left of its own nominal quota in `place`, whoever uses it meanwhile; the
    /// largest amount where nothing limits it.
    #[must_use]
    pub fn owed(&self, tenant: TenantIx, place: Place) -> Resources {
        let mut owed = [u64::MAX; 3];
        for (measure, counted) in self.measures.iter().enumerate() {
            if !counted.counts(place) {
                continue;
            }
            let lines = ancestry(self.tenants, tenant);
            let mut lines = lines.map(|(ix, _)| &self.lines[self.slot(ix, measure)]);
            let home = lines.find(|line| line.row.is_some());
            let part = match counted {
                Measure::Gpus { .. } => 0,
                Measure::Cpu => 1,
                Measure::Memory => 2,
            };
            owed[part] = owed[part].min(home.map_or(u64::MAX, Line::pot_left));
        }
        Resources {
            gpus: MilliGpus(owed[0]),
            cpu: MilliCpus(owed[1]),
            memory: Mebibytes(owed[2]),
        }
    }

    /// The measures that count what stands in `place`: where they are the same, so is what is left.
    pub(crate) fn counting(&self, place: Place) -> Vec<usize> {
        let all = self.measures.iter().enumerate();
        let counting = all.filter(|(_, measure)| measure.counts(place));
        counting.map(|(ix, _)| ix).collect()
    }

    /// Puts the rows in, and what follows from them while nobody holds anything.
    fn put_rows(&mut self) {
        for (tenant, ix) in self.tenants.iter().zip((0..).map(TenantIx)) {
            for quota in &tenant.quotas {
                let measure = self.measures.binary_search(&quota.measure);
                let measure = measure.expect("every row's measure is in the table");
                let slot = self.slot(ix, measure);
                self.lines[slot].row = Some(Row::of(quota));
            }
        }
        let mut families: BTreeMap<(Option<TenantIx>, usize), usize> = BTreeMap::new();
        // From the leaves up, so that what is below a node is known before the node.
        for ix in from_the_leaves(self.tenants) {
            let parent = self.tenants[ix.index()].parent;
            for measure in 0..self.measures.len() {
                let slot = self.slot(ix, measure);
                self.lines[slot].base = self.lines[slot].inner;
                let claim = self.lines[slot].claim();
                if let Some(row) = self.lines[slot].row {
                    if let Some(above) = self.row_above(ix, measure) {
                        let given = &mut self.lines[above].given;
                        *given = given.saturating_add(row.nominal);
                    } else {
                        let next = self.families.len();
                        let family = *families.entry((parent, measure)).or_insert(next);
                        if family == next {
                            self.families.push(Family::default());
                        }
                        let sums = &mut self.families[family];
                        sums.limit = sums.limit.saturating_add(row.nominal);
                        sums.base = sums.base.saturating_add(claim);
                        sums.claims = sums.base;
                        self.lines[slot].family = Some(family);
                    }
                }
                if let Some(parent) = parent.filter(|parent| parent.index() < self.tenants.len()) {
                    let slot = self.slot(parent, measure);
                    self.lines[slot].inner = self.lines[slot].inner.saturating_add(claim);
                }
            }
        }
    }

    /// Enters what `tenant` holds in `place` for a gang of `job`.
    pub fn add(&mut self, tenant: TenantIx, place: Place, what: Resources, job: Uid) {
        self.keep(tenant, place, what);
        self.start(tenant, job);
    }

    /// Enters a job that runs.
    fn start(&mut self, tenant: TenantIx, job: Uid) {
        for (ix, node) in ancestry(self.tenants, tenant) {
            // Where nobody limits them, nobody asks how many they are.
            if node.running_jobs.is_some() && self.jobs.insert((ix, job)) {
                self.running[ix.index()] = self.running[ix.index()].saturating_add(1);
            }
        }
    }

    /// Keeps quota for `tenant`, as if it were held, until it is given back.
    pub fn keep(&mut self, tenant: TenantIx, place: Place, what: Resources) {
        self.shift(tenant, place, what, u64::saturating_add);
    }

    /// Gives back what was kept.
    pub fn give_back(&mut self, tenant: TenantIx, place: Place, what: Resources) {
        self.shift(tenant, place, what, u64::saturating_sub);
    }

    fn shift(&mut self, tenant: TenantIx, place: Place, what: Resources, by: fn(u64, u64) -> u64) {
        for measure in 0..self.measures.len() {
            let counted = self.measures[measure];
            let amount = counted.amount(what);
            if amount > 0 && counted.counts(place) {
                self.shift_one(tenant, measure, amount, by);
            }
        }
    }

    fn shift_one(
        &mut self,
        tenant: TenantIx,
        measure: usize,
        amount: u64,
        by: fn(u64, u64) -> u64,
    ) {
        let (mut rest, mut is_home) = (amount, true);
        for (ix, _) in ancestry(self.tenants, tenant) {
            let slot = self.slot(ix, measure);
            let line = &mut self.lines[slot];
            if line.row.is_some() && std::mem::take(&mut is_home) {
                line.pot_used = by(line.pot_used, amount);
            }
            let before = line.claim();
            line.inner = by(line.inner, rest);
            // What it keeps for itself anyway is no news above.
            rest = line.claim().abs_diff(before);
            if let Some(family) = line.family {
                let claims = &mut self.families[family].claims;
                *claims = by(*claims, rest);
            }
        }
    }

    /// What `tenant` may still take in `place` within `reach`; the largest amount where nothing
    /// limits it.
    #[must_use]
    pub fn room(&self, tenant: TenantIx, place: Place, reach: Reach) -> Resources {
        let reach = self.within_budget(tenant, reach);
        let mut room = [u64::MAX; 3];
        for (measure, counted) in self.measures.iter().enumerate() {
            if counted.counts(place) {
                let part = match counted {
                    Measure::Gpus { .. } => 0,
                    Measure::Cpu => 1,
                    Measure::Memory => 2,
                };
                room[part] = room[part].min(self.left(tenant, measure, reach).amount);
            }
        }
        Resources {
            gpus: MilliGpus(room[0]),
            cpu: MilliCpus(room[1]),
            memory: Mebibytes(room[2]),
        }
    }

    /// The limits that `need` would pass, the tightest of each measure.
    #[must_use]
    pub fn passed(
        &self,
        tenant: TenantIx,
        place: Place,
        reach: Reach,
        need: Resources,
    ) -> Vec<Bound> {
        let short = self.short(tenant, place, reach, need);
        short.into_iter().map(|(bound, _)| bound).collect()
    }

    /// The same, with how much is missing of each measure.
    pub(crate) fn short(
        &self,
        tenant: TenantIx,
        place: Place,
        reach: Reach,
        need: Resources,
    ) -> Vec<(Bound, u64)> {
        let measures = self.measures.iter().enumerate();
        let counted = measures.filter(|(_, measure)| measure.counts(place));
        let passed = counted.filter_map(|(ix, measure)| {
            let left = self.left(tenant, ix, reach);
            let missing = measure.amount(need).saturating_sub(left.amount);
            left.bound.zip(Some(missing).filter(|missing| *missing > 0))
        });
        passed.collect()
    }

    /// The nearest tenant upward whose money is used up, if that keeps `tenant` from `reach`.
    #[must_use]
    pub fn exhausted(&self, tenant: TenantIx, reach: Reach) -> Option<(TenantIx, &'a Budget)> {
        let stops = |budget: &Budget| match budget.on_exhausted {
            OnExhausted::Warn => false,
            OnExhausted::BlockBorrowing => reach == Reach::Borrowing,
            OnExhausted::BlockAll => reach != Reach::Ever,
        };
        let mut budgets = ancestry(self.tenants, tenant)
            .filter_map(|(ix, node)| Some((ix, node.budget.as_ref()?)));
        budgets.find(|(_, budget)| budget.spent >= budget.limit && stops(budget))
    }

    /// Whoever may not borrow for want of money reaches its own.
    fn within_budget(&self, tenant: TenantIx, reach: Reach) -> Reach {
        if reach == Reach::Borrowing && self.exhausted(tenant, reach).is_some() {
            return Reach::Nominal;
        }
        reach
    }

    fn left(&self, tenant: TenantIx, measure: usize, reach: Reach) -> Left {
        let left = self.left_above(Some(tenant), measure, reach, self.tenants.len());
        if reach != Reach::Nominal {
            return left;
        }
        let mut lines =
            ancestry(self.tenants, tenant).map(|(ix, _)| &self.lines[self.slot(ix, measure)]);
        let home = lines.find(|line| line.row.is_some());
        let amount = home.map_or(u64::MAX, Line::pot_left).min(left.amount);
        Left { amount, ..left }
    }

    /// `steps` ends the walk, should the tree bite its tail.
    fn left_above(
        &self,
        tenant: Option<TenantIx>,
        measure: usize,
        reach: Reach,
        steps: usize,
    ) -> Left {
        let unlimited = Left {
            amount: u64::MAX,
            bound: None,
        };
        let Some((ix, node)) = tenant
            .filter(|_| steps > 0)
            .and_then(|ix| Some((ix, self.tenants.get(ix.index())?)))
        else {
            return unlimited;
        };
        let line = &self.lines[self.slot(ix, measure)];
        let Some(row) = line.row else {
            return self.left_above(node.parent, measure, reach, steps - 1);
        };
        let bound = |siblings, used, limit| Bound {
            tenant: ix,
            measure: self.measures[measure],
            siblings,
            used,
            limit,
        };
        let ever = reach == Reach::Ever;
        let above = match line.family {
            None => self.left_above(node.parent, measure, reach, steps - 1),
            Some(family) => {
                let family = &self.families[family];
                let claims = if ever { family.base } else { family.claims };
                Left {
                    amount: family.limit.saturating_sub(claims),
                    bound: Some(bound(true, claims, family.limit)),
                }
            }
        };
        let inner = if ever { line.base } else { line.inner };
        let own = row.limit.saturating_sub(inner);
        // What it keeps for itself, it need not find above.
        let kept = row.kept.saturating_sub(inner);
        let found = kept.saturating_add(above.amount);
        if own <= found {
            Left {
                amount: own,
                bound: Some(bound(false, inner, row.limit)),
            }
        } else {
            Left {
                amount: found,
                ..above
            }
        }
    }

    /// The first tenant upward whose limit on running jobs keeps `job` from starting, with how
    /// many run and the limit. Further gangs of a job that runs already are not counted again.
    #[must_use]
    pub fn job_limit(&self, tenant: TenantIx, job: Uid) -> Option<(TenantIx, u32, u32)> {
        ancestry(self.tenants, tenant).find_map(|(ix, node)| {
            let (limit, running) = (node.running_jobs?, self.running[ix.index()]);
            let counted = self.jobs.contains(&(ix, job));
            (!counted && running >= limit).then_some((ix, running, limit))
        })
    }

    /// True when somebody upward limits running jobs.
    pub(crate) fn limits_jobs(&self, tenant: TenantIx) -> bool {
        ancestry(self.tenants, tenant).any(|(_, node)| node.running_jobs.is_some())
    }

    /// The line of the nearest node above that has a row.
    fn row_above(&self, tenant: TenantIx, measure: usize) -> Option<usize> {
        let above = ancestry(self.tenants, tenant).skip(1);
        let mut slots = above.map(|(ix, _)| self.slot(ix, measure));
        slots.find(|slot| self.lines[*slot].row.is_some())
    }

    const fn slot(&self, tenant: TenantIx, measure: usize) -> usize {
        tenant.index() * self.measures.len() + measure
    }
}

/// A tenant's quota as written, in ordinals. A row of a flavor or region that is not there counts
/// nothing, so it is left out.
pub fn rows_of(
    spec: &TenantQuotaSpec,
    flavor: impl Fn(&str) -> Option<FlavorIx>,
    region: impl Fn(&str) -> Option<RegionIx>,
) -> Vec<Quota> {
    let row = |measure, amounts: Amounts| Quota {
        measure,
        nominal: amounts.nominal,
        borrowing_limit: amounts.borrowing_limit,
        lending_limit: amounts.lending_limit,
        hard_cap: amounts.hard_cap,
    };
    let gpus = spec.resources.iter().filter_map(|declared| {
        let flavor = match &declared.flavor {
            Some(name) => Some(flavor(name)?),
            None => None,
        };
        let region = match &declared.region {
            Some(name) => Some(region(name)?),
            None => None,
        };
        Some(row(Measure::Gpus { flavor, region }, declared.amounts()))
    });
    let cpu = spec.cpu.map(|cpu| row(Measure::Cpu, cpu.amounts()));
    let memory = spec
        .memory
        .map(|memory| row(Measure::Memory, memory.amounts()));
    gpus.chain(cpu).chain(memory).collect()
}

/// All tenants, each before the one above it.
pub(crate) fn from_the_leaves(tenants: &[Tenant]) -> Vec<TenantIx> {
    let all = (0..).map(TenantIx).take(tenants.len());
    let mut all: Vec<TenantIx> = all.collect();
    all.sort_by_cached_key(|ix| std::cmp::Reverse(ancestry(tenants, *ix).count()));
    all
}

/// The tenant and every node above it. Ends after as many nodes as there are, should the tree
/// bite its tail.
pub(crate) fn ancestry(
    tenants: &[Tenant],
    tenant: TenantIx,
) -> impl Iterator<Item = (TenantIx, &Tenant)> {
    let mut next = Some(tenant);
    let step = move || {
        let ix = next?;
        let node = tenants.get(ix.index())?;
        next = node.parent;
        Some((ix, node))
    };
    std::iter::from_fn(step).take(tenants.len())
}

/// The smallest limit upward on GPUs of one job.
pub(crate) fn gpus_per_job(tenants: &[Tenant], tenant: TenantIx) -> Option<(TenantIx, MilliGpus)> {
    ancestry(tenants, tenant)
        .filter_map(|(ix, node)| node.gpus_per_job.map(|limit| (ix, limit)))
        .min_by_key(|(_, limit)| *limit)
}
