//! Machines that die and come back, drawn from the seed.
//!
//! Owns when and which. A node fails with everything on it; repair takes hours. Never fails more
//! than the draws say: what follows from a failure is the product's to show.

use meridian_api::units::Millis;
use meridian_runtime::Random;

use super::data;
use crate::fleet::FleetRegion;

/// Failures in a week when nothing else is said. Training Llama 3 on 16,384 GPUs met 419
/// unexpected interruptions in 54 days (arXiv 2407.21783, section 3.3.4): 2.7 a week for 820.
pub const FAILURES_A_WEEK: u32 = 3;
/// Shortest repair: a reboot with its checks.
const REPAIR_LEAST: Millis = Millis::seconds(1_800);
/// What failures are counted in.
const WEEK: Millis = Millis(data::DAYS * data::DAY.0);
/// Longest repair: somebody comes with a spare part.
const REPAIR_MOST: Millis = Millis::seconds(6 * 3_600);

/// One machine, from its death to its return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) cluster: String,
    pub(super) node: String,
    pub(super) gpus: u64,
    /// From the beginning of the simulation.
    pub(super) from: Millis,
    pub(super) until: Millis,
}

/// All failures within `span`, by time; `a_week` of them on average.
pub(super) fn draw(seed: u64, regions: &[FleetRegion], span: Millis, a_week: u32) -> Vec<Outage> {
    let Some(mean) = WEEK.0.checked_div(u64::from(a_week)) else {
        return Vec::new();
    };
    // A stream of its own: the same failures whatever else draws from the seed.
    let random = Random::seeded(seed.wrapping_add(0x6661_756c_7473));
    let clusters = regions.iter().flat_map(|region| &region.clusters);
    let nodes = clusters.flat_map(|cluster| {
        let nodes = cluster.inventory.pools.iter().flat_map(|pool| &pool.nodes);
        nodes.map(|node| (&cluster.name, &node.name, node.resources.gpus))
    });
    let nodes: Vec<_> = nodes.collect();
    let mut outages: Vec<Outage> = Vec::new();
    let mut at = Millis::ZERO;
    loop {
        // Uniform up to twice the mean, in place of an exponential: integers, and no cluster of
        // failures that a short run would mistake for the rule.
        at = at.saturating_add(Millis(random.below(2 * mean)));
        let which = usize::try_from(random.below(nodes.len() as u64)).unwrap_or(0);
        let width = REPAIR_MOST.saturating_sub(REPAIR_LEAST).0;
        let repair = REPAIR_LEAST.saturating_add(Millis(random.below(width)));
        let Some((cluster, node, gpus)) = nodes.get(which).filter(|_| at < span) else {
            return outages;
        };
        let is_down = |outage: &&Outage| outage.node == **node && outage.until >= at;
        if outages.iter().any(|outage| is_down(&outage)) {
            continue;
        }
        outages.push(Outage {
            cluster: (*cluster).clone(),
            node: (*node).clone(),
            gpus: *gpus,
            from: at,
            until: at.saturating_add(repair),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_list_and_a_few_a_week() {
        let regions = data::regions().expect("the inventory is whole");
        let of = |seed, a_week| draw(seed, &regions, WEEK, a_week);
        assert_eq!(of(7, 3), of(7, 3));
        assert_ne!(of(7, 3), of(8, 3));
        assert_eq!(of(7, 0), []);
        let all: usize = (0..100).map(|seed| of(seed, 3).len()).sum();
        assert!((200..=400).contains(&all), "{all} in 100 weeks");
    }
}
