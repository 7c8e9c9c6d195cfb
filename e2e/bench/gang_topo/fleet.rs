//! The three pools of the bench and the gangs that are placed on them, and what a right placement
//! is.
//!
//! Owns the generators, which are seeded. Never measures.

use std::collections::BTreeSet;

use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};
use meridian_policies::model::{GangShape, RoleShape, SliceShape};
use meridian_policies::nodes::{Member, Node};

/// One placement to be measured.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) levels: Vec<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gang: GangShape,
}

fn room(gpus: u64, cpu: u64, memory_gib: u64) -> Resources {
    Resources {
        gpus: MilliGpus::cards(gpus),
        cpu: MilliCpus(cpu * 1000),
        memory: Mebibytes(memory_gib * 1024),
    }
}

fn names(levels: &[&str]) -> Vec<String> {
    levels.iter().map(|level| (*level).to_owned()).collect()
}

fn role(name: &str, pods: u32, per_pod: Resources) -> RoleShape {
    RoleShape {
        name: name.to_owned(),
        per_pod,
        min: pods,
        max: pods,
        step: 1,
        required: None,
        preferred: None,
        slice: None,
    }
}

/// Kueue's `BenchmarkTASFlavorAssignment`: empty nodes of 96 CPUs, 16 in a rack, 16 racks in a
/// block, and pods of 8 CPUs, nine for each node of a block, that prefer one rack.
pub(crate) fn balanced(nodes: u32) -> Case {
    let node = |number: u32| Node {
        name: format!("node-{number}"),
        domains: vec![
            format!("block-{}", number / 256),
            format!("rack-{}", number / 16),
        ],
        allocatable: room(0, 96, 384),
        free: room(0, 96, 384),
        ready: true,
    };
    let workers = RoleShape {
        preferred: Some("rack".to_owned()),
        ..role("workers", 9 * nodes.min(256), room(0, 8, 0))
    };
    Case {
        name: "balanced",
        levels: names(&["block", "rack"]),
        nodes: (0..nodes).map(node).collect(),
        gang: GangShape {
            roles: vec![workers],
        },
    }
}

/// Volcano's `BenchmarkHyperNodeGradientFnPerformance`: subgroups of 10 pods, each in one
/// hypernode of 10 nodes, as many as there are hypernodes.
pub(crate) fn subgroups(count: u32) -> Case {
    let node = |number: u32| Node {
        name: format!("node-{number}"),
        domains: vec![format!("hypernode-{}", number / 10)],
        allocatable: room(8, 96, 384),
        free: room(8, 96, 384),
        ready: true,
    };
    let subgroup = |number: u32| RoleShape {
        required: Some("hypernode".to_owned()),
        ..role(&format!("subgroup-{number}"), 10, room(8, 64, 256))
    };
    Case {
        name: "subgroups",
        levels: names(&["hypernode"]),
        nodes: (0..count * 10).map(node).collect(),
        gang: GangShape {
            roles: (0..count).map(subgroup).collect(),
        },
    }
}

/// How the 85 % that are in use lie in the large pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InUse {
    /// In 85 of 100 racks hosts are in use in part, in whole or not at all; the gang wants 16
    /// whole hosts of a rack at a time.
    Racks,
    /// Of 100 hosts anywhere 85 are in use in part or in whole; the gang wants whole hosts.
    Hosts,
}

/// NVL72 racks of 18 hosts with 4 GPUs, 32 in a block, 8 blocks in a zone. The gang wants whole
/// hosts, and all in one block if that were possible.
pub(crate) fn fragmented(in_use: InUse, nodes: u32, pods: u32, seed: u64) -> Case {
    let mut random = Random(seed);
    let mut rack_in_use = false;
    let mut node = |number: u32| {
        let rack = number / 18;
        if number.is_multiple_of(18) {
            rack_in_use = random.below(100) < 85;
        }
        let used = match in_use {
            InUse::Racks if rack_in_use => random.below(5),
            InUse::Hosts if random.below(100) < 85 => 1 + random.below(4),
            InUse::Racks | InUse::Hosts => 0,
        };
        Node {
            name: format!("node-{number:06}"),
            domains: vec![
                format!("zone-{:03}", rack / 256),
                format!("block-{:04}", rack / 32),
                format!("rack-{rack:05}"),
            ],
            allocatable: room(4, 144, 960),
            free: room(4 - used, 144 - 32 * used, 960 - 200 * used),
            ready: true,
        }
    };
    let slice = SliceShape {
        pods: 16,
        level: "rack".to_owned(),
    };
    let workers = RoleShape {
        preferred: Some("block".to_owned()),
        slice: (in_use == InUse::Racks).then_some(slice),
        ..role("workers", pods, room(4, 128, 800))
    };
    Case {
        name: match in_use {
            InUse::Racks => "fragmented",
            InUse::Hosts => "scattered",
        },
        levels: names(&["zone", "block", "rack"]),
        nodes: (0..nodes).map(&mut node).collect(),
        gang: GangShape {
            roles: vec![workers],
        },
    }
}

/// A small generator of numbers (splitmix64): the same fleet on any machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}

impl Case {
    /// Pods per role.
    pub(crate) fn pods(&self) -> Vec<u32> {
        self.gang.least()
    }

    /// Domains of each level that the members are spread over.
    pub(crate) fn spans(&self, members: &[Member]) -> Vec<usize> {
        let spread = |depth: usize| {
            let domain = |member: &Member| &self.nodes[member.node].domains[..=depth];
            members.iter().map(domain).collect::<BTreeSet<_>>().len()
        };
        (0..self.levels.len()).map(spread).collect()
    }

    /// What is wrong with the placement: the gang is whole, nothing is given twice, levels and
    /// slices are kept.
    pub(crate) fn judge(&self, members: &[Member]) -> anyhow::Result<()> {
        let mut free: Vec<Resources> = self.nodes.iter().map(|node| node.free).collect();
        for (index, (role, pods)) in (0_u32..).zip(self.gang.roles.iter().zip(self.pods())) {
            let own: Vec<&Member> = members.iter().filter(|it| it.role == index).collect();
            let ranks = own.iter().map(|member| member.rank);
            anyhow::ensure!(ranks.eq(0..pods), "{}: not whole", role.name);
            for member in &own {
                let left = free[member.node].checked_sub(role.per_pod);
                free[member.node] =
                    left.ok_or_else(|| anyhow::anyhow!("{}: over-committed", role.name))?;
            }
            let together = |members: &[&Member], level: &str| {
                let depth = self.levels.iter().position(|it| it == level);
                let domain = |it: &&Member| depth.map(|at| &self.nodes[it.node].domains[..=at]);
                members.iter().map(domain).collect::<BTreeSet<_>>().len() == 1
            };
            if let Some(level) = &role.required {
                anyhow::ensure!(together(&own, level), "{}: not in one {level}", role.name);
            }
            if let Some(slice) = &role.slice {
                let mut parts = own.chunks(slice.pods as usize);
                let whole = parts.all(|part| together(part, &slice.level));
                anyhow::ensure!(whole, "{}: a slice is torn", role.name);
            }
        }
        Ok(())
    }
}
