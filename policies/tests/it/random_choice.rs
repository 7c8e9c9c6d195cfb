//! Random wishes and facts of places, few values each, so that they meet often.
//!
//! Owns the proptest strategies. Never asserts.

use meridian_api::kinds::federated_job::{
    Affinity, FabricWish, LabelOperator, LabelRule, Objective, Toleration, TolerationOperator,
};
use meridian_api::kinds::gpu_pool::{Fabric, FabricKind, PoolCapacity};
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::units::{MicroMoney, Millis};
use meridian_policies::model::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn word(prefix: &'static str) -> impl Strategy<Value = String> {
    (0..2_u8).prop_map(move |number| format!("{prefix}{number}"))
}

fn effect() -> impl Strategy<Value = TaintEffect> {
    select(vec![
        TaintEffect::NoSchedule,
        TaintEffect::PreferNoSchedule,
        TaintEffect::NoExecute,
    ])
}

fn taint() -> impl Strategy<Value = Taint> {
    (word("k"), word("v"), effect()).prop_map(|(key, value, effect)| Taint {
        key,
        value,
        effect,
        time_added: None,
    })
}

pub(crate) fn cluster_facts() -> impl Strategy<Value = ClusterFacts> {
    (
        option::of(word("z")),
        option::of(word("p")),
        option::of(word("v")),
        vec(taint(), 0..2),
        option::of(word("d")),
    )
        .prop_map(|(zone, provider, label, taints, set)| ClusterFacts {
            zone,
            provider,
            labels: label
                .map(|value| ("label".to_owned(), value))
                .into_iter()
                .collect(),
            taints,
            data_sets: set.into_iter().collect(),
        })
}

pub(crate) fn region_facts() -> impl Strategy<Value = RegionFacts> {
    (
        option::of(word("law")),
        option::of(word("p")),
        option::of(word("d")),
        vec(option::of((0..100_i64).prop_map(MicroMoney)), 2),
    )
        .prop_map(|(jurisdiction, provider, set, egress)| RegionFacts {
            jurisdiction,
            provider,
            data_sets: set.into_iter().collect(),
            egress,
            ..RegionFacts::default()
        })
}

fn kind() -> impl Strategy<Value = FabricKind> {
    select(vec![FabricKind::InfiniBand, FabricKind::Ethernet])
}

pub(crate) fn pool_facts() -> impl Strategy<Value = PoolFacts> {
    let capacity = select(vec![
        PoolCapacity::Owned,
        PoolCapacity::Reserved,
        PoolCapacity::Spot,
    ]);
    let fabric = (kind(), 1..4_u32).prop_map(|(kind, gbps)| Fabric { kind, gbps });
    let price = || option::of((0..5_000_000_i64).prop_map(MicroMoney));
    (capacity, option::of(fabric), price(), price()).prop_map(
        |(capacity, fabric, price, borrowed_price)| PoolFacts {
            capacity,
            fabric,
            price,
            borrowed_price,
        },
    )
}

fn rule() -> impl Strategy<Value = LabelRule> {
    let operator = select(vec![
        LabelOperator::In,
        LabelOperator::NotIn,
        LabelOperator::Exists,
        LabelOperator::DoesNotExist,
    ]);
    let key = select(vec!["label", "zone", "provider", "region"]);
    let value = select(vec!["v0", "z0", "p0", "east"]);
    (key, operator, value).prop_map(|(key, operator, value)| LabelRule {
        key: key.to_owned(),
        operator,
        values: match operator {
            LabelOperator::In | LabelOperator::NotIn => vec![value.to_owned()],
            LabelOperator::Exists | LabelOperator::DoesNotExist => Vec::new(),
        },
    })
}

fn toleration() -> impl Strategy<Value = Toleration> {
    (
        word("k"),
        word("v"),
        option::of(effect()),
        option::of(0..9_u64),
        any::<bool>(),
    )
        .prop_map(|(key, value, effect, seconds, exists)| Toleration {
            key,
            operator: if exists {
                TolerationOperator::Exists
            } else {
                TolerationOperator::Equal
            },
            value: if exists { String::new() } else { value },
            effect,
            toleration_seconds: seconds,
        })
}

fn data() -> impl Strategy<Value = DataNeed> {
    (
        vec((0..2_u32).prop_map(RegionIx), 0..2),
        option::of(0..9_u64),
    )
        .prop_map(|(regions, gigabytes)| DataNeed {
            uri: "s3://corpus".to_owned(),
            regions,
            gigabytes,
        })
}

/// What a job asks for; every other one asks for nothing of a kind.
pub(crate) fn choice() -> impl Strategy<Value = Choice> {
    let objective = select(vec![
        Objective::Cheapest,
        Objective::Soonest,
        Objective::Balanced,
    ]);
    let capacity = select(vec![
        vec![],
        vec![CapacityType::Nominal],
        vec![CapacityType::Nominal, CapacityType::Borrowed],
        vec![CapacityType::Reserved, CapacityType::Spot],
    ]);
    let fabric = (vec(kind(), 0..2), option::of(1..4_u32));
    let fabric = fabric.prop_map(|(kinds, min_gbps)| FabricWish { kinds, min_gbps });
    let group = vec((0..2_u32).prop_map(RegionIx), 1..2).prop_map(|regions| Group {
        regions,
        ..Group::default()
    });
    (
        (objective, capacity, option::weighted(0.2, word("law"))),
        vec(data(), 0..2),
        vec(word("d"), 0..2),
        vec(toleration(), 0..3),
        (vec(rule(), 0..2), vec(rule(), 0..2)),
        (option::weighted(0.2, fabric), vec(group, 0..2)),
    )
        .prop_map(
            |(plain, data, data_sets, tolerations, rules, (fabric, groups))| Choice {
                objective: plain.0,
                capacity: plain.1,
                jurisdiction: plain.2,
                data,
                data_sets,
                tolerations,
                affinity: Affinity {
                    required: rules.0,
                    preferred: rules.1,
                },
                fabric,
                groups,
                spread: None,
                division: None,
                jobs: Vec::new(),
            },
        )
}

pub(crate) fn expected() -> impl Strategy<Value = Expected> {
    let span = || option::of((1..1_000_000_000_u64).prop_map(Millis));
    (span(), span()).prop_map(|(runtime, checkpoint_every)| Expected {
        runtime,
        checkpoint_every,
    })
}
