//! Names: those of a snapshot's tables, for words that are made once it is gone.
//!
//! Owns a copy of them, which all words of a round share. Never says anything itself.

use crate::model::{FlavorIx, PoolIx, RegionIx, Snapshot, TenantIx};

/// Names by ordinal.
#[derive(Debug)]
pub(crate) struct Names {
    pools: Vec<String>,
    tenants: Vec<String>,
    flavors: Vec<String>,
    regions: Vec<String>,
}

impl Names {
    /// Those of the snapshot.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let pools = snapshot.pools.iter().map(|it| it.name.clone());
        let tenants = snapshot.tenants.iter().map(|it| it.name.clone());
        let flavors = snapshot.flavors.iter().map(|it| it.name.clone());
        Self {
            pools: pools.collect(),
            tenants: tenants.collect(),
            flavors: flavors.collect(),
            regions: snapshot.regions.clone(),
        }
    }

    pub(crate) fn pool(&self, ix: PoolIx) -> &str {
        name(&self.pools, ix.index())
    }

    pub(crate) fn tenant(&self, ix: TenantIx) -> &str {
        name(&self.tenants, ix.index())
    }

    pub(crate) fn flavor(&self, ix: FlavorIx) -> &str {
        name(&self.flavors, ix.index())
    }

    pub(crate) fn region(&self, ix: RegionIx) -> &str {
        name(&self.regions, ix.index())
    }
}

fn name(table: &[String], at: usize) -> &str {
    table.get(at).map_or("?", String::as_str)
}
