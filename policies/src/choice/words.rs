//! Words: why a cluster or pool is none for a job, with what it has and what is asked for.
//!
//! Owns the texts of what `standing` and the candidates found. Never decides.

use meridian_api::kinds::federated_job::{LabelOperator, LabelRule};
use meridian_api::kinds::gpu_pool::{Fabric, FabricKind};
use meridian_api::reasons::Reason;

use super::terms::label;
use crate::candidates::{Barred, choice};
use crate::model::{Cause, Choice, Pool, RegionIx, Snapshot, Waiting};

/// The cause behind what bars a pool of an allowed cluster.
pub(crate) fn barred(snapshot: &Snapshot, gang: &Waiting, pool: &Pool, barred: Barred) -> Cause {
    let choice = choice(snapshot, gang);
    let (reason, message) = match barred {
        Barred::Flavor => (
            Reason::NoMatchingFlavor,
            "has no flavor that it accepts".to_owned(),
        ),
        Barred::Class => (
            Reason::ReservedForOthers,
            "does not admit its class".to_owned(),
        ),
        Barred::Jurisdiction => jurisdiction(snapshot, choice, pool),
        Barred::Group => group(snapshot, choice, pool),
        Barred::Affinity(at) => affinity(snapshot, choice, pool, at),
        Barred::Taint(at) => taint(snapshot, pool, at),
        Barred::DataSet(at) => data_set(snapshot, choice, pool, at),
        Barred::Data(at) => data(snapshot, choice, pool, at),
        Barred::Capacity => capacity(choice, pool),
        Barred::Fabric => fabric(choice, pool),
    };
    let of_pool = matches!(barred, Barred::Capacity | Barred::Fabric);
    Cause {
        reason,
        cluster: Some(pool.cluster),
        flavor: of_pool.then_some(pool.flavor),
        amounts: None,
        message: message.into(),
    }
}

fn cluster<'a>(snapshot: &'a Snapshot, pool: &Pool) -> &'a str {
    let row = snapshot.clusters.get(pool.cluster.index());
    row.map_or("?", |row| row.name.as_str())
}

fn region(snapshot: &Snapshot, region: RegionIx) -> &str {
    snapshot
        .regions
        .get(region.index())
        .map_or("?", String::as_str)
}

fn own_region<'a>(snapshot: &'a Snapshot, pool: &Pool) -> &'a str {
    region(snapshot, snapshot.region(pool.cluster))
}

fn jurisdiction(snapshot: &Snapshot, choice: &Choice, pool: &Pool) -> (Reason, String) {
    let law = choice.jurisdiction.as_deref().unwrap_or_default();
    let there = match label(snapshot, pool.cluster, "jurisdiction") {
        Some(there) => format!("is under {there}"),
        None => "does not say under which law it is".to_owned(),
    };
    let region = own_region(snapshot, pool);
    let message = format!("must run under jurisdiction {law}; region {region} {there}");
    (Reason::DataNotInRegion, message)
}

fn group(snapshot: &Snapshot, choice: &Choice, pool: &Pool) -> (Reason, String) {
    let names: Vec<&str> = choice
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    let name = cluster(snapshot, pool);
    let message = format!(
        "cluster {name} is in none of its groups {}",
        names.join(", ")
    );
    (Reason::NoMatchingFlavor, message)
}

fn rule_words(rule: &LabelRule) -> String {
    let values = rule.values.join(", ");
    match rule.operator {
        LabelOperator::In => format!("{} to be one of {values}", rule.key),
        LabelOperator::NotIn => format!("{} to be none of {values}", rule.key),
        LabelOperator::Exists => format!("label {}", rule.key),
        LabelOperator::DoesNotExist => format!("no label {}", rule.key),
    }
}

fn affinity(snapshot: &Snapshot, choice: &Choice, pool: &Pool, at: u32) -> (Reason, String) {
    let Some(rule) = choice.affinity.required.get(at as usize) else {
        return (
            Reason::NoMatchingFlavor,
            "breaks a rule of affinity".to_owned(),
        );
    };
    let there = match label(snapshot, pool.cluster, &rule.key) {
        Some(value) => format!("has {value}"),
        None => "does not have it".to_owned(),
    };
    let name = cluster(snapshot, pool);
    let message = format!("needs {}; cluster {name} {there}", rule_words(rule));
    (Reason::NoMatchingFlavor, message)
}

fn taint(snapshot: &Snapshot, pool: &Pool, at: u32) -> (Reason, String) {
    let row = snapshot.clusters.get(pool.cluster.index());
    let taint = row.and_then(|row| row.facts.taints.get(at as usize));
    let text = taint.map_or_else(String::new, |taint| match taint.value.as_str() {
        "" => format!("{}:{:?}", taint.key, taint.effect),
        value => format!("{}={value}:{:?}", taint.key, taint.effect),
    });
    let name = cluster(snapshot, pool);
    let message = format!("cluster {name} has taint {text}, which it does not tolerate for good");
    (Reason::ReservedForOthers, message)
}

fn data_set(snapshot: &Snapshot, choice: &Choice, pool: &Pool, at: u32) -> (Reason, String) {
    let set = choice
        .data_sets
        .get(at as usize)
        .map_or("?", String::as_str);
    let (name, region) = (cluster(snapshot, pool), own_region(snapshot, pool));
    let message = format!("neither cluster {name} nor region {region} has data set {set}");
    (Reason::DataNotInRegion, message)
}

fn data(snapshot: &Snapshot, choice: &Choice, pool: &Pool, at: u32) -> (Reason, String) {
    let to = own_region(snapshot, pool);
    let Some(need) = choice.data.get(at as usize) else {
        return (
            Reason::DataNotInRegion,
            format!("its data is not in region {to}"),
        );
    };
    let from: Vec<&str> = need
        .regions
        .iter()
        .map(|ix| region(snapshot, *ix))
        .collect();
    let unknown = if need.gigabytes.is_none() {
        "its sizeGB is not said".to_owned()
    } else {
        format!("no price of egress to {to} is known")
    };
    let uri = &need.uri;
    let message = format!(
        "{uri} is in {}, not in {to}, and {unknown}",
        from.join(", ")
    );
    (Reason::DataNotInRegion, message)
}

fn capacity(choice: &Choice, pool: &Pool) -> (Reason, String) {
    let may: Vec<String> = choice.capacity.iter().map(|it| format!("{it:?}")).collect();
    let (name, has) = (&pool.name, pool.facts.capacity);
    let message = format!(
        "pool {name} is {has:?} capacity; it may stand on {}",
        may.join(", ")
    );
    (Reason::NoMatchingFlavor, message)
}

fn fabric_words(fabric: Fabric) -> String {
    format!("{} of {} Gbit/s", kind_words(fabric.kind), fabric.gbps)
}

const fn kind_words(kind: FabricKind) -> &'static str {
    match kind {
        FabricKind::InfiniBand => "InfiniBand",
        FabricKind::RoCE => "RoCE",
        FabricKind::Ethernet => "Ethernet",
    }
}

fn fabric(choice: &Choice, pool: &Pool) -> (Reason, String) {
    let wish = choice.fabric.as_ref();
    let kinds: Vec<&str> = wish.map_or_else(Vec::new, |wish| {
        wish.kinds.iter().map(|kind| kind_words(*kind)).collect()
    });
    let kinds = if kinds.is_empty() {
        "a network".to_owned()
    } else {
        kinds.join(" or ")
    };
    let least = wish.and_then(|wish| wish.min_gbps);
    let least = least.map_or_else(String::new, |least| format!(" of {least} Gbit/s"));
    let has = pool.facts.fabric;
    let has = has.map_or_else(
        || "does not say what it has".to_owned(),
        |has| format!("has {}", fabric_words(has)),
    );
    let message = format!(
        "needs {kinds}{least} between hosts; pool {} {has}",
        pool.name
    );
    (Reason::NoMatchingFlavor, message)
}
