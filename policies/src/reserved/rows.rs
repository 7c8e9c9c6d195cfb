//! Reservations as a decision reads them: one row for each span of time in which one holds.
//!
//! Owns the rows, and who may use them. Never looks at room.

use meridian_api::units::{Millis, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::model::{ClassIx, PoolIx, Snapshot, TenantIx};
use crate::quota::ancestry;

/// Whole hosts of a pool that are a tenant's in one span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// Name of the reservation; one that recurs has several rows.
    pub name: String,
    /// Whose work may use it, with that of everyone below.
    pub tenant: TenantIx,
    /// Classes of that work; empty = all.
    pub classes: Vec<ClassIx>,
    /// Where.
    pub pool: PoolIx,
    /// How many hosts.
    pub hosts: u32,
    /// From when on.
    pub from: UnixMillis,
    /// Until when.
    pub until: UnixMillis,
    /// Others are gone this long before.
    pub lead: Millis,
    /// Whose work may use what stands unused meanwhile.
    pub lends: Option<Lends>,
}

/// Whose work may use what stands unused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lends {
    /// Its classes.
    pub classes: Vec<ClassIx>,
    /// Longest it may run.
    pub within: Millis,
}

/// Who runs, or would, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) tenant: TenantIx,
    pub(crate) class: ClassIx,
    pub(crate) since: UnixMillis,
    pub(crate) ends: Option<UnixMillis>,
}

impl Reserved {
    /// True for work of the tenant's own tree and of the classes named.
    pub(crate) fn is_for(&self, snapshot: &Snapshot, who: Who) -> bool {
        (self.classes.is_empty() || self.classes.contains(&who.class))
            && ancestry(&snapshot.tenants, who.tenant).any(|(ix, _)| ix == self.tenant)
    }

    /// True for work that may stand on it though it is not its own: it came while the reservation
    /// held, and is gone soon.
    pub(crate) fn lends_to(&self, who: Who) -> bool {
        let is_short =
            |within: Millis| who.ends.is_some_and(|ends| ends.since(who.since) <= within);
        self.lends.as_ref().is_some_and(|lends| {
            self.from <= who.since && lends.classes.contains(&who.class) && is_short(lends.within)
        })
    }
}
