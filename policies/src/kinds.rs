//! Kinds: gangs that differ in nothing a decision looks at, their age and priority apart.
//!
//! Owns what makes two gangs alike: what one of them cannot have in a round, none of them can.

use std::collections::BTreeMap;

use meridian_api::ids::Uid;
use meridian_api::units::MilliGpus;

use crate::candidates::choice;
use crate::model::{
    Accepted, ChoiceIx, ClassIx, ClusterIx, FlavorIx, GangShape, Lacking, RegionIx, Snapshot,
    TenantIx, WaitingIx,
};
use crate::preempt::cooling;
use crate::reserved::Blocks;

/// Ordinal of a kind in one round.
pub(crate) type Kind = u32;

/// What makes a kind.
type KindKey<'a> = (
    TenantIx,
    ClassIx,
    &'a GangShape,
    Vec<(FlavorIx, u32)>,
    &'a [RegionIx],
    &'a [ClusterIx],
    &'a [Lacking],
    MilliGpus,
    ChoiceIx,
    Option<Uid>,
    u32,
    Vec<Uid>,
);

/// The kind and the ordinal of the shape of each waiting gang.
pub(crate) fn kinds(snapshot: &Snapshot, blocks: &Blocks) -> (Vec<Kind>, Vec<u32>) {
    let mut by_key: BTreeMap<KindKey<'_>, Kind> = BTreeMap::new();
    let mut by_shape: BTreeMap<(&GangShape, u32), u32> = BTreeMap::new();
    let (mut kinds, mut shape_of) = (Vec::new(), Vec::new());
    for (ix, gang) in (0..).map(WaitingIx).zip(&snapshot.waiting) {
        let standing = blocks.standing(ix);
        let flavor = |accepted: &Accepted| (accepted.flavor, accepted.speed);
        let key = (
            gang.tenant,
            gang.class,
            &gang.shape,
            gang.flavors.iter().map(flavor).collect(),
            gang.regions.as_slice(),
            gang.clusters.as_slice(),
            gang.lacking.as_slice(),
            gang.job_gpus,
            gang.choice,
            // Where others stand decides too, and which are others.
            choice(snapshot, gang)
                .minds_others()
                .then_some(gang.gang.job),
            standing,
            // Whom it may not make go is nobody else's matter.
            cooling(gang, snapshot.now),
        );
        let next = u32::try_from(by_key.len()).unwrap_or(u32::MAX);
        kinds.push(*by_key.entry(key).or_insert(next));
        let next = u32::try_from(by_shape.len()).unwrap_or(u32::MAX);
        shape_of.push(*by_shape.entry((&gang.shape, standing)).or_insert(next));
    }
    (kinds, shape_of)
}
