//! Random shapes, gangs and snapshots, small enough that rules meet often.
//!
//! Owns the proptest strategies. Never asserts.

use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::reasons::Reason;
use meridian_api::units::{
    Mebibytes, MicroMoney, MilliCpus, MilliGpus, Millis, Resources, UnixMillis,
};
use meridian_policies::model::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::random_choice;

pub(crate) fn levels() -> Vec<String> {
    vec!["block".into(), "rack".into()]
}

fn resources(gpus: u64, cpu: u64, memory: u64) -> Resources {
    Resources {
        gpus: MilliGpus(gpus),
        cpu: MilliCpus(cpu * 1000),
        memory: Mebibytes(memory * 1024),
    }
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let size = prop_oneof![Just((8, 64, 512)), Just((4, 32, 128)), Just((0, 16, 64))];
    (0..2_u8, 0..3_u8, size, 0..=16_u64, 0..=4_u64, 1..4_u32).prop_map(
        |(block, rack, (gpus, cpu, memory), halves, quarters, hosts)| Shape {
            domains: vec![format!("b{block}"), format!("r{rack}")],
            allocatable: resources(gpus * 1000, cpu, memory),
            free: resources((halves * 500).min(gpus * 1000), cpu * quarters / 4, memory),
            hosts,
        },
    )
}

pub(crate) fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    vec(shape(), 0..7)
}

fn level() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        5 => Just(None),
        1 => Just(Some("host".to_owned())),
        1 => Just(Some("rack".to_owned())),
        1 => Just(Some("block".to_owned())),
    ]
}

/// Slices of a few pods, also in levels that are wider than the role's.
fn slice() -> impl Strategy<Value = Option<SliceShape>> {
    let level = prop_oneof![Just("block"), Just("rack"), Just("host")];
    let slice = (1..4_u32, level).prop_map(|(pods, level)| SliceShape {
        pods,
        level: level.to_owned(),
    });
    option::weighted(0.3, slice)
}

pub(crate) fn role() -> impl Strategy<Value = RoleShape> {
    let request = prop_oneof![
        Just(resources(0, 2, 4)),
        Just(resources(500, 4, 8)),
        Just(resources(1000, 8, 16)),
        Just(resources(2000, 8, 16)),
        Just(resources(4000, 32, 64)),
        Just(resources(8000, 32, 64)),
    ];
    let levels = (level(), level(), slice());
    (request, 1..8_u32, 0..6_u32, 1..4_u32, levels).prop_map(
        |(per_pod, min, above, step, (required, preferred, slice))| {
            let unit = slice.as_ref().map_or(1, |slice| slice.pods);
            RoleShape {
                name: "worker".into(),
                per_pod,
                min: min * unit,
                max: (min + above) * unit,
                step: step * unit,
                required,
                preferred,
                slice,
            }
        },
    )
}

pub(crate) fn gang() -> impl Strategy<Value = GangShape> {
    vec(role(), 1..3).prop_map(|roles| GangShape { roles })
}

fn amount() -> impl Strategy<Value = MilliGpus> {
    (0..40_u64).prop_map(MilliGpus::cards)
}

/// A row in cards, cores or GiB, each times a thousand and a bit.
fn quota(flavors: u32) -> impl Strategy<Value = Quota> {
    let flavor = option::of(0..flavors).prop_map(|flavor| flavor.map(FlavorIx));
    let region = option::weighted(0.3, 0..2_u32).prop_map(|region| region.map(RegionIx));
    let measure = prop_oneof![
        8 => (flavor, region).prop_map(|(flavor, region)| Measure::Gpus { flavor, region }),
        1 => Just(Measure::Cpu),
        1 => Just(Measure::Memory),
    ];
    let number = || (0..40_u64).prop_map(|cards| cards * 1000);
    let limit = || option::of(number());
    let row = (
        measure,
        number(),
        limit(),
        option::weighted(0.3, number()),
        limit(),
    );
    row.prop_map(
        |(measure, nominal, borrowing_limit, lending_limit, hard_cap)| Quota {
            measure,
            nominal,
            borrowing_limit,
            lending_limit,
            hard_cap,
        },
    )
}

fn budget() -> impl Strategy<Value = Option<Budget>> {
    let what = prop_oneof![
        Just(OnExhausted::Warn),
        Just(OnExhausted::BlockBorrowing),
        Just(OnExhausted::BlockAll),
    ];
    let budget = (0..3_i64, what).prop_map(|(spent, on_exhausted)| Budget {
        spent: MicroMoney(spent),
        limit: MicroMoney(2),
        on_exhausted,
    });
    option::weighted(0.2, budget)
}

fn tenant(index: u32, flavors: u32) -> impl Strategy<Value = Tenant> {
    let parent = option::of(0..index.max(1));
    (
        parent,
        vec(quota(flavors), 0..3),
        option::weighted(0.2, amount()),
        option::weighted(0.2, 0..4_u32),
        budget(),
        (1..4_u32, 0..3_u64),
    )
        .prop_map(
            move |(parent, mut quotas, gpus_per_job, running_jobs, budget, share)| {
                quotas.sort_by_key(|row| row.measure);
                quotas.dedup_by_key(|row| row.measure);
                Tenant {
                    name: format!("t{index}"),
                    parent: parent.filter(|_| index > 0).map(TenantIx),
                    quotas,
                    gpus_per_job,
                    running_jobs,
                    budget,
                    weight: share.0,
                    history: Use([share.1 * 8_000; 3]),
                    lost: 0,
                }
            },
        )
}

pub(crate) fn tenants(flavors: u32) -> impl Strategy<Value = Vec<Tenant>> {
    (1..5_u32).prop_flat_map(move |count| {
        (0..count)
            .map(|index| tenant(index, flavors))
            .collect::<Vec<_>>()
    })
}

fn cluster(index: usize) -> impl Strategy<Value = Cluster> {
    let contact = prop_oneof![
        8 => Just(Contact::Ready),
        1 => Just(Contact::Suspect),
        1 => Just(Contact::Lost),
    ];
    let facts = random_choice::cluster_facts();
    (0..2_u32, contact, prop::bool::weighted(0.1), facts).prop_map(
        move |(region, contact, cordoned, facts)| Cluster {
            name: format!("c{index}"),
            region: RegionIx(region),
            contact,
            cordoned,
            facts,
        },
    )
}

fn pool(clusters: u32, flavors: u32) -> impl Strategy<Value = Pool> {
    (
        0..clusters,
        0..flavors,
        option::weighted(0.2, 0..2_u32),
        shapes(),
        random_choice::pool_facts(),
    )
        .prop_map(|(cluster, flavor, class, shapes, facts)| Pool {
            cluster: ClusterIx(cluster),
            name: String::new(),
            flavor: FlavorIx(flavor),
            classes: class.map(ClassIx).into_iter().collect(),
            levels: levels(),
            shapes,
            facts,
        })
}

pub(crate) fn waiting(tenants: u32, clusters: u32, flavors: u32) -> impl Strategy<Value = Waiting> {
    let who = (
        0..tenants,
        0..2_u32,
        -1..2_i32,
        0..4_i64,
        prop::bool::weighted(0.1),
    );
    let place = (
        vec(0..flavors, 0..2),
        vec(0..2_u32, 0..2),
        vec(0..clusters, 0..2),
        option::of(0..clusters),
    );
    let when = (option::of(0..1000_i64), option::of(0..1000_u64));
    let choice = (
        prop_oneof![3 => Just(0), 1 => 1..4_u32],
        random_choice::expected(),
    );
    (who, place, when, gang(), 0..6_u128, choice).prop_map(
        |(who, place, when, shape, job, choice)| {
            let (tenant, class, priority, submitted, suspended) = who;
            let accept = |flavor: u32| Accepted {
                flavor: FlavorIx(flavor),
                speed: 1000 - flavor * 300,
            };
            let lacking = |cluster| Lacking {
                reason: Reason::DependencyMissing,
                cluster: ClusterIx(cluster),
                message: "no ConfigMap conf".to_owned(),
            };
            Waiting {
                gang: GangId {
                    job: Uid(job),
                    index: 0,
                },
                job: format!("ns/job-{job}"),
                tenant: TenantIx(tenant),
                class: ClassIx(class),
                priority,
                submitted: UnixMillis(submitted),
                finish_by: when.0.map(UnixMillis),
                max_runtime: when.1.map(Millis),
                suspended,
                flavors: place.0.into_iter().map(accept).collect(),
                regions: place.1.into_iter().map(RegionIx).collect(),
                clusters: place.2.into_iter().map(ClusterIx).collect(),
                lacking: place.3.into_iter().map(lacking).collect(),
                job_gpus: shape.gpus(&shape.most()),
                shape: shape.into(),
                next_epoch: Epoch::first(StoreGeneration(1)),
                spec_revision: Revision(1),
                evicted_by: Vec::new(),
                choice: ChoiceIx(choice.0),
                expected: choice.1,
            }
        },
    )
}

fn held(tenants: u32, flavors: u32) -> impl Strategy<Value = Held> {
    (0..tenants, 0..flavors, 0..12_u64, 100..110_u128).prop_map(|(tenant, flavor, gpus, job)| {
        Held {
            gang: GangId {
                job: Uid(job),
                index: 0,
            },
            epoch: Epoch::first(StoreGeneration(1)),
            tenant: TenantIx(tenant),
            class: ClassIx(0),
            cluster: ClusterIx(0),
            flavor: FlavorIx(flavor),
            pool: None,
            ends: None,
            resources: resources(gpus * 1000, gpus * 8, gpus * 16),
            pods: 1,
            rows: Vec::new(),
            since: UnixMillis(0),
            standing: Standing::default(),
        }
    })
}

/// A fleet of up to 3 clusters and 5 pools with up to 12 gangs waiting.
pub(crate) fn snapshot() -> impl Strategy<Value = Snapshot> {
    let flavors = 2_u32;
    let fleet = (1..4_usize).prop_flat_map(|count| (0..count).map(cluster).collect::<Vec<_>>());
    (fleet, tenants(flavors)).prop_flat_map(move |(clusters, tenants)| {
        let cluster_count = u32::try_from(clusters.len()).expect("a small table");
        let tenant_count = u32::try_from(tenants.len()).expect("a small table");
        let pools = vec(pool(cluster_count, flavors), 0..5);
        let waiting = vec(waiting(tenant_count, cluster_count, flavors), 0..12);
        let held = vec(held(tenant_count, flavors), 0..3);
        let fleet = (Just(clusters), Just(tenants), pools, waiting, held);
        let facts = vec(random_choice::region_facts(), 2);
        let wishes = vec(random_choice::choice(), 3);
        (fleet, facts, wishes).prop_map(|(fleet, region_facts, wishes)| Snapshot {
            region_facts,
            choices: std::iter::once(Choice::default()).chain(wishes).collect(),
            ..assemble(fleet)
        })
    })
}

type Tables = (
    Vec<Cluster>,
    Vec<Tenant>,
    Vec<Pool>,
    Vec<Waiting>,
    Vec<Held>,
);

/// Gives names and ids that are in order and differ.
fn assemble((clusters, tenants, mut pools, mut waiting, held): Tables) -> Snapshot {
    pools.sort_by_key(|pool| pool.cluster);
    for (index, pool) in pools.iter_mut().enumerate() {
        pool.name = format!("p{index}");
    }
    waiting.sort_by_key(|gang| gang.submitted);
    for (gang, index) in waiting.iter_mut().zip(0..) {
        // Some gangs share a job, hence a tenant.
        gang.gang.index = index;
        gang.gang.job = Uid(gang.gang.job.0 * 10 + u128::from(gang.tenant.0));
    }
    let class = |name: &str, priority| Class {
        name: name.into(),
        priority,
        ignores_slots: priority > 1,
        rule: ClassRule::default(),
    };
    let flavor = |name: &str| Flavor {
        name: name.into(),
        worth: 1000,
    };
    Snapshot {
        revision: Revision(9),
        now: UnixMillis(500),
        store_generation: StoreGeneration(1),
        flavors: vec![flavor("a100"), flavor("h100")],
        classes: vec![class("batch", 1), class("prod", 2)],
        tenants,
        regions: vec!["east".into(), "west".into()],
        clusters,
        pools,
        held,
        waiting,
        ..Snapshot::default()
    }
}
