//! The federation of the decision benches: regions, a tree of tenants, what runs and what waits.
//!
//! Owns the generator, which is seeded: the same snapshot on any machine. Never measures.
//!
//! Every region has one cluster with two pools of different hardware, in racks of 16 hosts. Of 100
//! hosts 85 are full, 10 in use in part, 5 empty. Jobs come from a table of different shapes; each
//! tenant uses a handful of them, as people submit what they submitted before. Two in three shapes
//! name the regions that hold their data, and every shape the hardware that it runs on.

use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::model::{
    Accepted, Choice, ChoiceIx, Class, ClassIx, Cluster, ClusterFacts, ClusterIx, Contact,
    Expected, Flavor, FlavorIx, GangShape, Held, Lacking, LedgerRow, Measure, Pool, PoolFacts,
    PoolIx, Quota, RegionIx, Role, RoleShape, Shape, Shared, Snapshot, Standing, Tenant, TenantIx,
    Use, Waiting,
};
use meridian_policies::shapes;

/// The moment of the decision.
const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
/// Cards of every host.
const CARDS: u64 = 8;
/// Hosts of a rack, and racks of a block.
const RACK: u32 = 16;
const BLOCK: u32 = 8;
/// Shapes that each tenant uses.
const USED_SHAPES: u64 = 20;
/// Hours over which what waits was submitted.
const SUBMITTED_OVER: u64 = 48;

/// How large the federation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Gangs that wait, one for each job.
    pub(crate) jobs: u64,
    /// Different shapes of jobs.
    pub(crate) shapes: u64,
    /// Nodes of the tenant tree.
    pub(crate) tenants: u32,
    /// Regions, of one cluster each.
    pub(crate) regions: u32,
    /// Hosts in all.
    pub(crate) nodes: u32,
}

impl Sizes {
    /// The size that the figures are for.
    pub(crate) const FULL: Self = Self {
        jobs: 1_000_000,
        shapes: 5_000,
        tenants: 1_000,
        regions: 100,
        nodes: 100_000,
    };
    /// Shows that a bench works.
    pub(crate) const QUICK: Self = Self {
        jobs: 20_000,
        shapes: 500,
        tenants: 100,
        regions: 10,
        nodes: 2_000,
    };
}

/// A small generator of numbers (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound.max(1)
    }

    /// The same, below a bound of 32 bits.
    pub(crate) fn below_u32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).unwrap_or(0)
    }

    /// Low numbers far more often than high ones.
    fn skewed(&mut self, bound: u64) -> u64 {
        let (one, other) = (self.below(bound), self.below(bound));
        one * other / bound.max(1)
    }
}

/// A job as people submit it again and again.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    class: ClassIx,
    shape: Shared<GangShape>,
    flavors: Shared<Vec<Accepted>>,
    regions: Shared<Vec<RegionIx>>,
    max_runtime: Millis,
}

/// The snapshot, and what makes more of it.
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    templates: Vec<Template>,
    /// Clusters to which jobs are bound, and that lack something: none.
    anywhere: Shared<Vec<ClusterIx>>,
    nothing: Shared<Vec<Lacking>>,
    random: Random,
    next_job: u128,
}

fn room(cards: u64) -> Resources {
    Resources {
        gpus: MilliGpus::cards(cards),
        cpu: MilliCpus(cards * 16_000),
        memory: Mebibytes(cards * 128 * 1024),
    }
}

impl World {
    /// A federation of that size.
    pub(crate) fn new(sizes: Sizes, seed: u64) -> Self {
        let mut random = Random(seed);
        let snapshot = Snapshot {
            revision: Revision(1),
            now: NOW,
            seed,
            store_generation: StoreGeneration(1),
            flavors: flavors(),
            classes: classes(),
            tenants: tenants(sizes),
            regions: (0..sizes.regions)
                .map(|ix| format!("region-{ix:03}"))
                .collect(),
            clusters: (0..sizes.regions).map(cluster).collect(),
            choices: vec![Choice::default()],
            ..Snapshot::default()
        };
        let templates = templates(sizes, &mut random);
        let mut world = Self {
            snapshot,
            templates,
            anywhere: Shared::default(),
            nothing: Shared::default(),
            random,
            next_job: 1,
        };
        for region in 0..sizes.regions {
            for half in 0..2 {
                world.add_pool(region, half, sizes.nodes / sizes.regions / 2);
            }
        }
        world.share_out();
        let spread = SUBMITTED_OVER * 3_600_000;
        for job in 0..sizes.jobs {
            let ago = spread - spread * job / sizes.jobs;
            let submitted = UnixMillis(NOW.0.saturating_sub_unsigned(ago));
            let gang = world.submitted(submitted);
            world.snapshot.waiting.push(gang);
        }
        world
    }

    /// One more job that waits.
    pub(crate) fn submitted(&mut self, submitted: UnixMillis) -> Waiting {
        let count = u64::try_from(self.snapshot.tenants.len()).unwrap_or(1);
        let (roots, _) = levels(count);
        let tenant = roots + self.random.below(count - roots);
        // A tenant's own few, of all.
        let used = self.random.skewed(USED_SHAPES);
        let mut own = Random(tenant.wrapping_mul(1_000_003) + used);
        let all = u64::try_from(self.templates.len()).unwrap_or(1);
        let template = &self.templates[usize::try_from(own.below(all)).unwrap_or(0)];
        let number = self.next_job;
        self.next_job += 1;
        Waiting {
            gang: GangId {
                job: Uid(number),
                index: 0,
            },
            job: format!("team-{tenant}/job-{number}"),
            tenant: TenantIx(u32::try_from(tenant).unwrap_or(0)),
            class: template.class,
            priority: i32::try_from(self.random.below(3)).unwrap_or(0),
            submitted,
            finish_by: None,
            max_runtime: Some(template.max_runtime),
            suspended: false,
            flavors: template.flavors.clone(),
            regions: template.regions.clone(),
            clusters: self.anywhere.clone(),
            lacking: self.nothing.clone(),
            job_gpus: template.shape.gpus(&template.shape.least()),
            shape: template.shape.clone(),
            next_epoch: Epoch::first(StoreGeneration(1)),
            spec_revision: Revision(1),
            evicted_by: Vec::new(),
            choice: ChoiceIx(0),
            expected: Expected::default(),
        }
    }

    /// A pool, and the placements that stand in it.
    fn add_pool(&mut self, region: u32, half: u32, nodes: u32) {
        let flavor = FlavorIx((region * 2 + half) % 5);
        let pool = PoolIx(u32::try_from(self.snapshot.pools.len()).unwrap_or(0));
        let (mut rows, mut used) = (Vec::new(), 0);
        for node in 0..nodes {
            let busy = match self.random.below(100) {
                0..85 => CARDS,
                85..95 => 1 + self.random.below(CARDS - 1),
                _ => 0,
            };
            used += busy;
            let rack = node / RACK;
            rows.push(Shape {
                domains: vec![
                    format!("block-{:03}", rack / BLOCK),
                    format!("rack-{rack:04}"),
                ],
                allocatable: room(CARDS),
                free: room(CARDS - busy),
                hosts: 1,
            });
        }
        self.snapshot.pools.push(Pool {
            cluster: ClusterIx(region),
            name: format!("pool-{half}"),
            flavor,
            classes: Vec::new(),
            levels: vec!["block".to_owned(), "rack".to_owned()],
            shapes: shapes::canonical(&rows),
            facts: PoolFacts::default(),
        });
        while used > 0 {
            let cards = match self.random.below(100) {
                0..40 => 1,
                40..55 => 2,
                55..70 => 4,
                70..93 => 8,
                93..97 => 32,
                97..99 => 64,
                _ => 128,
            };
            let cards = cards.min(used);
            used -= cards;
            self.add_held(pool, region, flavor, cards);
        }
    }

    fn add_held(&mut self, pool: PoolIx, region: u32, flavor: FlavorIx, cards: u64) {
        let count = u64::try_from(self.snapshot.tenants.len()).unwrap_or(1);
        let (roots, _) = levels(count);
        let tenant = roots + self.random.below(count - roots);
        let number = self.next_job;
        self.next_job += 1;
        let since = UnixMillis(
            NOW.0
                .saturating_sub_unsigned(1 + self.random.below(24 * 3_600_000)),
        );
        let ends = NOW.after(Millis(self.random.below(24 * 3_600_000)));
        self.snapshot.held.push(Held {
            gang: GangId {
                job: Uid(number),
                index: 0,
            },
            epoch: Epoch::first(StoreGeneration(1)),
            tenant: TenantIx(u32::try_from(tenant).unwrap_or(0)),
            class: ClassIx(self.random.below_u32(3)),
            cluster: ClusterIx(region),
            flavor,
            pool: Some(pool),
            ends: (self.random.below(4) > 0).then_some(ends),
            resources: room(cards),
            pods: u32::try_from(cards.div_ceil(CARDS)).unwrap_or(1),
            rows: vec![LedgerRow {
                role: Role::Own,
                lender: None,
                gpus: MilliGpus::cards(cards),
            }],
            since,
            standing: Standing::default(),
        });
    }

    /// Gives every tenant quota: the fleet at the roots, and what is above shared out below, some
    /// more than its tenant uses and some less.
    fn share_out(&mut self) {
        let fleet: Vec<u64> = (0..5)
            .map(|flavor| self.cards_of(FlavorIx(flavor)))
            .collect();
        let count = u64::try_from(self.snapshot.tenants.len()).unwrap_or(1);
        let (roots, middle) = levels(count);
        for (ix, tenant) in (0_u64..).zip(&mut self.snapshot.tenants) {
            let among = if ix < roots { roots } else { middle };
            if ix >= roots + middle {
                // Those who submit stand on what is above them, and on a limit for all hardware.
                let all: u64 = fleet.iter().sum::<u64>() / (count - roots - middle).max(1);
                let measure = Measure::Gpus {
                    flavor: None,
                    region: None,
                };
                tenant.quotas = vec![quota(measure, all)];
                continue;
            }
            let rows = fleet.iter().zip(0..).map(|(cards, flavor)| {
                let measure = Measure::Gpus {
                    flavor: Some(FlavorIx(flavor)),
                    region: None,
                };
                quota(measure, cards / among)
            });
            tenant.quotas = rows.collect();
        }
    }

    fn cards_of(&self, flavor: FlavorIx) -> u64 {
        let own = self
            .snapshot
            .pools
            .iter()
            .filter(|pool| pool.flavor == flavor);
        own.map(|pool| shapes::allocatable(&pool.shapes).gpus.0)
            .sum()
    }
}

fn quota(measure: Measure, nominal: u64) -> Quota {
    Quota {
        measure,
        nominal,
        borrowing_limit: None,
        lending_limit: None,
        hard_cap: None,
    }
}

/// Roots of the tree, and nodes right below them; the rest submits.
fn levels(tenants: u64) -> (u64, u64) {
    let roots = (tenants / 100).max(1);
    (roots, (tenants / 10).saturating_sub(roots).max(1))
}

fn tenants(sizes: Sizes) -> Vec<Tenant> {
    let (roots, middle) = levels(u64::from(sizes.tenants));
    let tenant = |ix: u64| {
        let parent = if ix < roots {
            None
        } else if ix < roots + middle {
            Some(ix % roots)
        } else {
            Some(roots + ix % middle)
        };
        Tenant {
            name: format!("tenant-{ix:04}"),
            parent: parent.map(|ix| TenantIx(u32::try_from(ix).unwrap_or(0))),
            quotas: Vec::new(),
            gpus_per_job: None,
            running_jobs: None,
            budget: None,
            weight: 1 + u32::try_from(ix % 3).unwrap_or(0),
            history: Use([ix * 7919 % 100_000, 0, 0]),
            lost: 0,
        }
    };
    (0..u64::from(sizes.tenants)).map(tenant).collect()
}

fn flavors() -> Vec<Flavor> {
    let flavor = |(name, worth): (&str, u64)| Flavor {
        name: name.to_owned(),
        worth,
    };
    let all = [
        ("a100", 600),
        ("b200", 2_200),
        ("h100", 1_000),
        ("l40s", 300),
        ("mi300x", 1_100),
    ];
    all.map(flavor).to_vec()
}

fn classes() -> Vec<Class> {
    let class = |(name, priority): (&str, i32)| Class {
        name: name.to_owned(),
        priority,
        ignores_slots: false,
        rule: meridian_policies::model::ClassRule::default(),
    };
    let all = [
        ("batch-long", 100),
        ("batch-short", 200),
        ("exploration", 50),
    ];
    all.map(class).to_vec()
}

fn cluster(region: u32) -> Cluster {
    Cluster {
        name: format!("cluster-{region:03}"),
        region: RegionIx(region),
        contact: Contact::Ready,
        cordoned: false,
        facts: ClusterFacts::default(),
    }
}

/// One in five is a gang, of 2 to 512 pods.
fn templates(sizes: Sizes, random: &mut Random) -> Vec<Template> {
    let template = |number: u64| {
        let is_gang = number.is_multiple_of(5);
        let (pods, cards) = if is_gang {
            // Powers of two and what lies between, each doubling half as often.
            let doublings = random.skewed(9);
            let base = 2_u32 << doublings;
            ((base + random.below_u32(base / 2)).min(512), CARDS)
        } else {
            (1, 1 << random.below(4))
        };
        // Hardly two jobs ask for the same memory.
        let mut per_pod = room(cards);
        per_pod.memory = Mebibytes(per_pod.memory.0 - number % 997);
        let role = RoleShape {
            name: "worker".to_owned(),
            per_pod,
            min: pods,
            max: pods,
            step: 1,
            required: None,
            preferred: (is_gang && random.below(2) == 0).then(|| "block".to_owned()),
            slice: None,
        };
        let first = random.below_u32(5);
        let count = 1 + random.below_u32(3);
        let flavors = (0..count).map(|more| Accepted {
            flavor: FlavorIx((first + more) % 5),
            speed: 1_000,
        });
        let home = random.below_u32(sizes.regions);
        let regions = if random.below(3) == 0 {
            Shared::default()
        } else {
            let few = 1 + random.below_u32(4);
            let near = (0..few).map(|more| RegionIx((home + more) % sizes.regions));
            near.collect()
        };
        Template {
            class: ClassIx(random.below_u32(3)),
            shape: GangShape { roles: vec![role] }.into(),
            flavors: flavors.collect(),
            regions,
            max_runtime: Millis::seconds(3_600 * (1 + random.below(24))),
        }
    };
    (0..sizes.shapes).map(template).collect()
}
