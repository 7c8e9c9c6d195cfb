//! Causes that quota and money give: which row is full, how full, and whose it is.
//!
//! Owns these causes and their words. Never counts anything itself (see the ledger).

use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::quantity::{CpuQuantity, MemoryQuantity, Money};
use meridian_api::reasons::Reason;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use super::plain;
use super::rooms::slot_words;
use crate::decide::Round;
use crate::diagnosis::{amount, cards};
use crate::model::{Amounts, Cause, Measure, Place, Tenant, Waiting, WaitingIx};
use crate::quota::{Bound, Reach, gpus_per_job};
use crate::slots::Mask;

/// How many tenants stand right below each node, and below none.
pub(super) struct Families {
    below: Vec<u32>,
    roots: u32,
}

impl Families {
    pub(super) fn new(tenants: &[Tenant]) -> Self {
        let mut own = Self {
            below: vec![0; tenants.len()],
            roots: 0,
        };
        for tenant in tenants {
            match tenant.parent {
                None => own.roots += 1,
                Some(parent) => {
                    if let Some(count) = own.below.get_mut(parent.index()) {
                        *count += 1;
                    }
                }
            }
        }
        own
    }

    fn is_alone(&self, tenant: &Tenant) -> bool {
        match tenant.parent {
            None => self.roots == 1,
            Some(parent) => self.below.get(parent.index()) == Some(&1),
        }
    }
}

pub(super) fn per_job(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let tenants = &round.snapshot.tenants;
    let (tenant, limit) = gpus_per_job(tenants, gang.tenant)?;
    (gang.job_gpus > limit).then(|| Cause {
        reason: Reason::ExceedsQuota,
        cluster: None,
        flavor: None,
        amounts: Some(Amounts {
            need: gang.job_gpus,
            free: MilliGpus::ZERO,
            limit,
        }),
        message: format!(
            "the job asks for {}; tenant {} allows {} per job",
            cards(gang.job_gpus),
            tenants[tenant.index()].name,
            amount(limit),
        ),
    })
}

pub(super) fn job_limit(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let (tenant, running, limit) = round.ledger.job_limit(gang.tenant, gang.gang.job)?;
    let name = &round.snapshot.tenants[tenant.index()].name;
    let reason = if limit == 0 {
        Reason::ExceedsQuota
    } else {
        Reason::WaitingForQuota
    };
    Some(plain(
        reason,
        format!("tenant {name} runs {running} jobs of the {limit} that it may"),
    ))
}

/// What the ledger and the budget say, wherever the gang may go.
pub(super) fn quota(round: &mut Round<'_>, ix: WaitingIx, families: &Families) -> Vec<Cause> {
    let asked = round.asked(ix);
    let places = asked.places.as_slice();
    let (round, gang) = (&*round, round.gang(ix));
    let need = gang.shape.demand(&gang.shape.least());
    let ledger = &round.ledger;
    let mut causes = Vec::new();
    for place in places.iter().copied() {
        let ever = ledger.passed(gang.tenant, place, Reach::Ever, need);
        if ever.is_empty() {
            let bounds = ledger.passed(gang.tenant, place, Reach::Borrowing, need);
            let waits = Reason::WaitingForQuota;
            let cause = |bound| quota_cause(round, gang, waits, need, bound, families);
            causes.extend(bounds.iter().map(cause));
        } else {
            let exceeds = Reason::ExceedsQuota;
            let cause = |bound| quota_cause(round, gang, exceeds, need, bound, families);
            causes.extend(ever.iter().map(cause));
        }
    }
    causes.extend(own_quota(round, gang, places, need).filter(|_| causes.is_empty()));
    let fits = |place: &Place| {
        let reach = Reach::Borrowing;
        ledger.passed(gang.tenant, *place, reach, need).is_empty()
            && !ledger.room(gang.tenant, *place, reach).covers(need)
    };
    if places.iter().any(fits) || ledger.exhausted(gang.tenant, Reach::Nominal).is_some() {
        causes.extend(budget(round, gang));
    }
    causes
}

/// Quota of its own that a gang lacks which may not stand on others'.
fn own_quota(
    round: &Round<'_>,
    gang: &Waiting,
    places: &[Place],
    need: Resources,
) -> Option<Cause> {
    let rooms = places.iter();
    let rooms = rooms.map(|place| round.ledger.room(gang.tenant, *place, Reach::Nominal));
    let rooms: Vec<Resources> = rooms.collect();
    let short = !round.may_borrow(gang) && !rooms.iter().any(|room| room.covers(need));
    let most = rooms.into_iter().max().filter(|_| short)?;
    let message = format!(
        "needs {} of its own quota, which has {} left; it may not borrow: add Borrowed to \
         placement.capacity, or to mayUse of its class",
        cards(need.gpus),
        amount(most.gpus),
    );
    let amounts = Amounts {
        need: need.gpus,
        free: most.gpus,
        limit: most.gpus,
    };
    Some(Cause {
        amounts: Some(amounts),
        ..plain(Reason::WaitingForQuota, message)
    })
}

/// Quota that the gang would have, if it were not kept for those before it.
pub(super) fn kept_quota(
    round: &mut Round<'_>,
    ix: WaitingIx,
    mask: Mask,
    families: &Families,
) -> Option<Cause> {
    let asked = round.asked(ix);
    let gang = round.gang(ix);
    let need = gang.shape.demand(&gang.shape.least());
    round.keep_quota(ix, mask);
    let short = |place: &Place| {
        let passed = round
            .ledger
            .passed(gang.tenant, *place, Reach::Borrowing, need);
        passed.first().copied()
    };
    let bounds: Vec<_> = asked.places.iter().map(short).collect();
    round.give_back_quota(ix, mask);
    let bound = bounds
        .into_iter()
        .collect::<Option<Vec<_>>>()?
        .first()
        .copied()?;
    let slot = round.quota_of(ix, mask).next()?;
    let kept = Reason::ReservedForOthers;
    let cause = quota_cause(round, gang, kept, need, &bound, families);
    let message = format!(
        "{}, with what is kept for {}",
        cause.message,
        slot_words(round, slot)
    );
    Some(Cause { message, ..cause })
}

fn budget(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let (tenant, budget) = round.ledger.exhausted(gang.tenant, Reach::Borrowing)?;
    let name = &round.snapshot.tenants[tenant.index()].name;
    let left = match budget.on_exhausted {
        OnExhausted::Warn => return None,
        OnExhausted::BlockBorrowing => "only its own quota is left to it",
        OnExhausted::BlockAll => "it starts no work",
    };
    let (spent, limit) = (Money(budget.spent), Money(budget.limit));
    let message = format!("tenant {name} has spent {spent} of {limit}: {left}");
    Some(plain(Reason::BudgetExhausted, message))
}

fn quota_cause(
    round: &Round<'_>,
    gang: &Waiting,
    reason: Reason,
    need: Resources,
    bound: &Bound,
    families: &Families,
) -> Cause {
    let tenant = &round.snapshot.tenants[bound.tenant.index()];
    let name = &tenant.name;
    let whose = match (
        bound.siblings && !families.is_alone(tenant),
        bound.tenant == gang.tenant,
    ) {
        (true, _) => format!("tenant {name} and its siblings"),
        (false, true) => format!("tenant {name}"),
        (false, false) => format!("tenant {name} above it"),
    };
    let need = bound.measure.amount(need);
    let (flavor, region) = match bound.measure {
        Measure::Gpus { flavor, region } => (flavor, region),
        Measure::Cpu | Measure::Memory => (None, None),
    };
    let of = flavor.map(|flavor| format!(" of {}", round.snapshot.flavors[flavor.index()].name));
    let within = region.map(|region| format!(" in {}", round.snapshot.regions[region.index()]));
    let (of, within) = (of.unwrap_or_default(), within.unwrap_or_default());
    let show = |number: u64| match bound.measure {
        Measure::Gpus { .. } => amount(MilliGpus(number)),
        Measure::Cpu => format!("{} CPUs", CpuQuantity(MilliCpus(number))),
        Measure::Memory => format!("{} of memory", MemoryQuantity(Mebibytes(number))),
    };
    let needs = match bound.measure {
        Measure::Gpus { .. } => format!("needs {}{of}", cards(MilliGpus(need))),
        Measure::Cpu | Measure::Memory => format!("needs {}", show(need)),
    };
    let (used, limit) = (show(bound.used), show(bound.limit));
    let message = if reason == Reason::ExceedsQuota {
        format!("{needs}; {whose} may never hold more than {limit}{within}")
    } else {
        format!("{needs}; {whose} may hold {limit}{within}, {used} are held")
    };
    let amounts = Amounts {
        need: MilliGpus(need),
        free: MilliGpus(bound.used),
        limit: MilliGpus(bound.limit),
    };
    let counts_gpus = matches!(bound.measure, Measure::Gpus { .. });
    Cause {
        reason,
        cluster: None,
        flavor,
        amounts: counts_gpus.then_some(amounts),
        message,
    }
}
