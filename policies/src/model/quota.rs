//! Quota rows: what they count, and where.
//!
//! Owns the rows of a tenant's quota. Never adds anything up.

use meridian_api::units::Resources;
use serde::{Deserialize, Serialize};

use super::{FlavorIx, RegionIx};

/// What a quota row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Measure {
    /// GPUs.
    Gpus {
        /// Of one flavor; `None` = of all together.
        flavor: Option<FlavorIx>,
        /// In one region; `None` = in all together.
        region: Option<RegionIx>,
    },
    /// Host CPU.
    Cpu,
    /// Host memory.
    Memory,
}

impl Measure {
    /// True when what stands in `place` counts.
    #[must_use]
    pub fn counts(self, place: Place) -> bool {
        match self {
            Self::Gpus { flavor, region } => {
                flavor.is_none_or(|flavor| flavor == place.flavor)
                    && region.is_none_or(|region| region == place.region)
            }
            Self::Cpu | Self::Memory => true,
        }
    }

    /// The part of `resources` that is counted, in the measure's own unit.
    #[must_use]
    pub const fn amount(self, resources: Resources) -> u64 {
        match self {
            Self::Gpus { .. } => resources.gpus.0,
            Self::Cpu => resources.cpu.0,
            Self::Memory => resources.memory.0,
        }
    }
}

/// Where quota is counted: hardware and region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Hardware.
    pub flavor: FlavorIx,
    /// Region.
    pub region: RegionIx,
}

/// What a tenant, with everything below it, may hold. Amounts are in the smallest unit of the
/// measure: thousandths of a GPU or of a core, mebibytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// What is counted.
    pub measure: Measure,
    /// Its own.
    pub nominal: u64,
    /// Most it may hold beyond nominal while others leave theirs unused; `None` = no limit.
    pub borrowing_limit: Option<u64>,
    /// Most of its unused nominal that others may hold; `None` = all of it.
    pub lending_limit: Option<u64>,
    /// Never more than this, borrowed or not.
    pub hard_cap: Option<u64>,
}
