//! `cluster list` and `cluster describe`.
//!
//! Owns their layout and their JSON shape.

use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::v1::{CapacityResponse, ClusterResponse, PoolCapacity, StandingGang};
use serde_json::{Value, json};

use crate::output::{Grid, Headers};
use crate::render::why::gpus_value;
use crate::text::{self, or_dash, scalar};

/// Width of the names of a page's lines.
const NAMES: usize = 10;

/// Whether new work comes to a cluster, in one word.
const fn door(cordoned: bool, drained: bool) -> &'static str {
    match (cordoned, drained) {
        (_, true) => "Drained",
        (true, false) => "Cordoned",
        (false, false) => "Open",
    }
}

/// One row per cluster.
pub(crate) fn grid(
    clusters: &[Value],
    capacity: &CapacityResponse,
    now: UnixMillis,
    wide: bool,
) -> Grid {
    let mut titles = vec![
        "NAME", "REGION", "STATE", "CONTACT", "GPUS", "FREE", "OUT", "GANGS", "SEEN",
    ];
    if wide {
        titles.extend(["AGENT", "POOLS", "FINDINGS", "AGE"]);
    }
    let mut grid = Grid::new(&titles);
    for object in clusters {
        let (spec, status) = (&object["spec"], &object["status"]);
        let name = scalar(&object["metadata"]["name"]);
        let pools = capacity.pools.iter().filter(|pool| pool.cluster == name);
        let pools: Vec<&PoolCapacity> = pools.collect();
        let flag = |name: &str| spec[name].as_bool().unwrap_or(false);
        let gangs = |pool: &&PoolCapacity| {
            u64::from(pool.gangs_starting)
                + u64::from(pool.gangs_running)
                + u64::from(pool.gangs_stopping)
        };
        // The leader's own word is younger than what is stored.
        let seen = pools.iter().map(|pool| pool.age_ms).max();
        let contact = pools.first().map(|pool| pool.contact.as_str());
        let mut row = vec![
            name,
            scalar(&spec["region"]),
            door(flag("cordoned"), flag("drained")).to_owned(),
            contact.map_or_else(|| scalar(&status["contact"]), or_dash),
            scalar(&status["gpus"]["total"]),
            scalar(&status["gpus"]["free"]),
            scalar(&status["gpus"]["out"]),
            pools.iter().map(gangs).sum::<u64>().to_string(),
            seen.map_or_else(|| "-".to_owned(), |age| text::span(Millis(age))),
        ];
        if wide {
            let findings: usize = pools.iter().map(|pool| pool.findings.len()).sum();
            row.extend([
                scalar(&status["agent"]["version"]),
                pools.len().to_string(),
                findings.to_string(),
                text::age_of(&object["metadata"]["creationTimestamp"], now),
            ]);
        }
        grid.row(row);
    }
    grid
}

/// Everything about one cluster.
pub(crate) fn page(cluster: &ClusterResponse, now: UnixMillis) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: &str| {
        let name = format!("{name}:");
        let _ = writeln!(page, "{name:NAMES$}{value}");
    };
    line("Name", &or_dash(&cluster.name));
    line("Region", &or_dash(&cluster.region));
    line("State", door(cluster.cordoned, cluster.drained));
    let heard = text::span(Millis(cluster.age_ms));
    line(
        "Contact",
        &format!("{}, heard {heard} ago", or_dash(&cluster.contact)),
    );
    line("Agent", &or_dash(&cluster.agent_version));
    section(&mut page, "Pools", &pools(cluster).to_text(Headers::Shown));
    let findings = cluster.pools.iter().flat_map(|pool| {
        let findings = pool.findings.iter();
        findings.map(move |finding| format!("{}: {finding}\n", pool.pool))
    });
    section(&mut page, "Findings", &findings.collect::<String>());
    let total = text::gpus(cluster.milli_gpus_total);
    let title = format!("Gangs ({}, {total} GPUs)", cluster.gangs_total);
    let listed = if cluster.gangs.is_empty() {
        "none".to_owned()
    } else {
        gangs(cluster, now).to_text(Headers::Shown)
    };
    section(&mut page, &title, &listed);
    page
}

fn section(page: &mut String, title: &str, text: &str) {
    if text.trim().is_empty() {
        return;
    }
    let _ = writeln!(page, "\n{title}:");
    for line in text.trim_end().lines() {
        let _ = writeln!(page, "{}", format!("  {line}").trim_end());
    }
}

fn pools(cluster: &ClusterResponse) -> Grid {
    let mut grid = Grid::new(&[
        "POOL",
        "FLAVOR",
        "TOTAL",
        "FREE",
        "OUT",
        "BIG-BLOCK",
        "GANGS",
        "LEVELS",
    ]);
    for pool in &cluster.pools {
        let gangs = u64::from(pool.gangs_starting)
            + u64::from(pool.gangs_running)
            + u64::from(pool.gangs_stopping);
        let levels = pool.levels.iter().map(String::as_str).chain(["host"]);
        grid.row(vec![
            or_dash(&pool.pool),
            or_dash(&pool.flavor),
            text::gpus(pool.total_milli_gpus),
            text::gpus(pool.free_milli_gpus),
            text::gpus(pool.out_milli_gpus),
            text::gpus(pool.largest_block_milli_gpus),
            gangs.to_string(),
            levels.collect::<Vec<_>>().join(">"),
        ]);
    }
    grid
}

/// The gangs of a cluster.
pub(crate) fn gangs(cluster: &ClusterResponse, now: UnixMillis) -> Grid {
    let mut grid = Grid::new(&[
        "JOB", "GANG", "TENANT", "CLASS", "POOL", "GPUS", "STATE", "AGE",
    ]);
    for gang in &cluster.gangs {
        grid.row(vec![
            format!("{}/{}", gang.namespace, gang.name),
            gang.index.to_string(),
            or_dash(&gang.tenant),
            or_dash(&gang.workload_class),
            or_dash(&gang.pool),
            text::gpus(gang.milli_gpus),
            or_dash(&gang.state),
            text::age(UnixMillis(gang.since_ms), now),
        ]);
    }
    grid
}

/// The same for a program.
pub(crate) fn value(cluster: &ClusterResponse) -> Value {
    let pool = |pool: &PoolCapacity| {
        json!({
            "pool": pool.pool,
            "flavor": pool.flavor,
            "levels": pool.levels,
            "total": gpus_value(pool.total_milli_gpus),
            "free": gpus_value(pool.free_milli_gpus),
            "out": gpus_value(pool.out_milli_gpus),
            "largestBlock": gpus_value(pool.largest_block_milli_gpus),
            "gangsStarting": pool.gangs_starting,
            "gangsRunning": pool.gangs_running,
            "gangsStopping": pool.gangs_stopping,
            "findings": pool.findings,
        })
    };
    let gang = |gang: &StandingGang| {
        json!({
            "namespace": gang.namespace,
            "job": gang.name,
            "gang": gang.index,
            "tenant": gang.tenant,
            "workloadClass": gang.workload_class,
            "pool": gang.pool,
            "epoch": gang.epoch,
            "state": gang.state,
            "gpus": gpus_value(gang.milli_gpus),
            "sinceMilliseconds": gang.since_ms,
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterDescription",
        "name": cluster.name,
        "region": cluster.region,
        "contact": cluster.contact,
        "ageMilliseconds": cluster.age_ms,
        "agentVersion": cluster.agent_version,
        "cordoned": cluster.cordoned,
        "drained": cluster.drained,
        "pools": cluster.pools.iter().map(pool).collect::<Vec<_>>(),
        "gangs": cluster.gangs.iter().map(gang).collect::<Vec<_>>(),
        "gangsTotal": cluster.gangs_total,
        "gpusTotal": gpus_value(cluster.milli_gpus_total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_600_000);

    fn cluster() -> ClusterResponse {
        ClusterResponse {
            name: "euw-a".into(),
            region: "eu-west".into(),
            contact: "Ready".into(),
            age_ms: 1_200,
            agent_version: "0.1.0".into(),
            cordoned: true,
            drained: false,
            pools: vec![PoolCapacity {
                pool: "train".into(),
                cluster: "euw-a".into(),
                flavor: "h100-80gb".into(),
                total_milli_gpus: 64_000,
                free_milli_gpus: 48_000,
                out_milli_gpus: 8_000,
                largest_block_milli_gpus: 32_000,
                age_ms: 1_200,
                contact: "Ready".into(),
                gangs_running: 1,
                levels: vec!["block".into(), "rack".into()],
                findings: vec!["drivers 550.54 on 6 nodes, 535.10 on 2".into()],
                ..PoolCapacity::default()
            }],
            gangs: vec![StandingGang {
                namespace: "nlp".into(),
                name: "llm".into(),
                index: 0,
                tenant: "nlp".into(),
                workload_class: "batch".into(),
                pool: "train".into(),
                epoch: 1,
                state: "Running".into(),
                milli_gpus: 8_000,
                since_ms: 1_700_000_000_000,
            }],
            gangs_total: 3,
            milli_gpus_total: 24_000,
        }
    }

    #[test]
    fn a_cluster_on_one_page() {
        insta::assert_snapshot!(page(&cluster(), NOW), @r#"
        Name:     euw-a
        Region:   eu-west
        State:    Cordoned
        Contact:  Ready, heard 1s ago
        Agent:    0.1.0

        Pools:
          POOL    FLAVOR      TOTAL   FREE   OUT   BIG-BLOCK   GANGS   LEVELS
          train   h100-80gb   64      48     8     32          1       block>rack>host

        Findings:
          train: drivers 550.54 on 6 nodes, 535.10 on 2

        Gangs (3, 24 GPUs):
          JOB       GANG   TENANT   CLASS   POOL    GPUS   STATE     AGE
          nlp/llm   0      nlp      batch   train   8      Running   10m
        "#);
        assert_eq!(value(&cluster())["pools"][0]["levels"][1], "rack");
        assert_eq!(value(&cluster())["gpusTotal"], 24);
    }

    #[test]
    fn clusters_in_rows() {
        let object = |name: &str, spec: Value, status: Value| {
            let metadata = json!({"name": name});
            json!({"metadata": metadata, "spec": spec, "status": status})
        };
        let gpus = json!({"total": 64, "free": 48, "out": 8});
        let clusters = [
            object(
                "euw-a",
                json!({"region": "eu-west", "cordoned": true}),
                json!({"gpus": gpus, "agent": {"version": "0.1.0"}}),
            ),
            object(
                "euw-b",
                json!({"region": "eu-west", "drained": true}),
                json!({}),
            ),
        ];
        let capacity = CapacityResponse {
            pools: cluster().pools,
        };
        let shown = |wide| grid(&clusters, &capacity, NOW, wide).to_text(Headers::Shown);
        insta::assert_snapshot!(shown(false), @r#"
        NAME    REGION    STATE      CONTACT   GPUS   FREE   OUT   GANGS   SEEN
        euw-a   eu-west   Cordoned   Ready     64     48     8     1       1s
        euw-b   eu-west   Drained    -         -      -      -     0       -
        "#);
        assert!(shown(true).contains("FINDINGS"));
    }
}
