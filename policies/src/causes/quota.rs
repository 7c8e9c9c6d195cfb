//! Causes that quota and money give: which row is full, how full, and whose it is.
//!
//! Owns these causes and their words. Never counts anything itself (see the ledger).

use std::fmt;
use std::sync::Arc;

use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::quantity::{CpuQuantity, MemoryQuantity, Money};
use meridian_api::reasons::Reason;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use super::plain;
use super::rooms::slot_words;
use crate::decide::Round;
use crate::diagnosis::{amount, cards};
use crate::model::{Amounts, Cause, Measure, Place, Tenant, Waiting, WaitingIx};
use crate::names::Names;
use crate::quota::{Bound, Reach, gpus_per_job};
use crate::slots::Mask;

/// How many tenants stand right below each node, and below none; and what they are called.
pub(super) struct Families {
    below: Vec<u32>,
    roots: u32,
    names: Arc<Names>,
}

impl Families {
    pub(super) fn new(tenants: &[Tenant], names: Arc<Names>) -> Self {
        let mut own = Self {
            below: vec![0; tenants.len()],
            roots: 0,
            names,
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
        )
        .into(),
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
    let message = message.into();
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
    let whose = match (
        bound.siblings && !families.is_alone(tenant),
        bound.tenant == gang.tenant,
    ) {
        (true, _) => Whose::Siblings,
        (false, true) => Whose::Own,
        (false, false) => Whose::Above,
    };
    let need = bound.measure.amount(need);
    let (flavor, counts_gpus) = match bound.measure {
        Measure::Gpus { flavor, .. } => (flavor, true),
        Measure::Cpu | Measure::Memory => (None, false),
    };
    let amounts = Amounts {
        need: MilliGpus(need),
        free: MilliGpus(bound.used),
        limit: MilliGpus(bound.limit),
    };
    let words = OverQuota {
        names: Arc::clone(&families.names),
        bound: *bound,
        whose,
        need,
        is_for_ever: reason == Reason::ExceedsQuota,
    };
    Cause {
        reason,
        cluster: None,
        flavor,
        amounts: counts_gpus.then_some(amounts),
        message: words.into(),
    }
}

/// Whose limit keeps a gang out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Its tenant's and its siblings' together.
    Siblings,
    /// Its tenant's.
    Own,
    /// That of a tenant above.
    Above,
}

/// A limit that a gang would pass; the words come of nothing else.
#[derive(Clone)]
pub(crate) struct OverQuota {
    names: Arc<Names>,
    bound: Bound,
    whose: Whose,
    /// What it needs, in the unit of the measure.
    need: u64,
    /// It could never have so much.
    is_for_ever: bool,
}

impl OverQuota {
    /// Names of the tenant, and of hardware and region where only those count.
    fn named(&self) -> (&str, Option<&str>, Option<&str>) {
        let (flavor, region) = match self.bound.measure {
            Measure::Gpus { flavor, region } => (flavor, region),
            Measure::Cpu | Measure::Memory => (None, None),
        };
        (
            self.names.tenant(self.bound.tenant),
            flavor.map(|ix| self.names.flavor(ix)),
            region.map(|ix| self.names.region(ix)),
        )
    }

    fn show(&self, number: u64) -> String {
        match self.bound.measure {
            Measure::Gpus { .. } => amount(MilliGpus(number)),
            Measure::Cpu => format!("{} CPUs", CpuQuantity(MilliCpus(number))),
            Measure::Memory => format!("{} of memory", MemoryQuantity(Mebibytes(number))),
        }
    }
}

impl PartialEq for OverQuota {
    /// True only if the words are the same.
    fn eq(&self, other: &Self) -> bool {
        let rest = |it: &Self| (it.bound, it.whose, it.need, it.is_for_ever);
        rest(self) == rest(other) && self.named() == other.named()
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tenant, flavor, region) = self.named();
        match self.bound.measure {
            Measure::Gpus { .. } => write!(f, "needs {}", cards(MilliGpus(self.need)))?,
            Measure::Cpu | Measure::Memory => write!(f, "needs {}", self.show(self.need))?,
        }
        if let Some(flavor) = flavor {
            write!(f, " of {flavor}")?;
        }
        write!(f, "; tenant {tenant}")?;
        f.write_str(match self.whose {
            Whose::Siblings => " and its siblings",
            Whose::Own => "",
            Whose::Above => " above it",
        })?;
        let limit = self.show(self.bound.limit);
        if self.is_for_ever {
            write!(f, " may never hold more than {limit}")?;
        } else {
            write!(f, " may hold {limit}")?;
        }
        if let Some(region) = region {
            write!(f, " in {region}")?;
        }
        if self.is_for_ever {
            return Ok(());
        }
        write!(f, ", {} are held", self.show(self.bound.used))
    }
}
