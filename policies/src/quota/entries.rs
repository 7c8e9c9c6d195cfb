//! The ledger's entries apart from the tenants that they are about.
//!
//! Owns a form that outlives what a ledger borrows, from one round to the next. Never counts.

use std::collections::BTreeSet;

use meridian_api::ids::Uid;

use super::{Family, Ledger, Line};
use crate::model::{Measure, Tenant, TenantIx};

/// A ledger apart from the tenants that it is about, to be kept for longer than they are lent.
#[derive(Clone, Debug)]
pub(crate) struct Entries {
    measures: Vec<Measure>,
    lines: Vec<Line>,
    families: Vec<Family>,
    running: Vec<u32>,
    jobs: BTreeSet<(TenantIx, Uid)>,
}

impl Entries {
    /// What is counted, in order.
    pub(crate) fn measures(&self) -> &[Measure] {
        &self.measures
    }

    /// The ledger again, of the tenants it was made for.
    pub(crate) fn of(self, tenants: &[Tenant]) -> Ledger<'_> {
        Ledger {
            tenants,
            measures: self.measures,
            lines: self.lines,
            families: self.families,
            running: self.running,
            jobs: self.jobs,
        }
    }
}

impl Ledger<'_> {
    /// The same without the tenants.
    pub(crate) fn into_entries(self) -> Entries {
        Entries {
            measures: self.measures,
            lines: self.lines,
            families: self.families,
            running: self.running,
            jobs: self.jobs,
        }
    }
}
