//! `capacity`: one row per pool; numbers that are old are marked.
//!
//! Owns its layout and its JSON shape.

use meridian_api::meta::API_VERSION;
use meridian_api::units::Millis;
use meridian_client::v1::{CapacityResponse, LargestGang, PoolCapacity};
use serde_json::{Value, json};

use crate::output::Grid;
use crate::render::why::gpus_value;
use crate::text;

/// Rows of pools. Numbers older than two beats begin with `~`.
pub(crate) fn grid(capacity: &CapacityResponse, wide: bool) -> Grid {
    let mut titles = vec![
        "FLAVOR",
        "REGION",
        "CLUSTER",
        "POOL",
        "TOTAL",
        "FREE",
        "OUT",
        "BIG-BLOCK",
    ];
    if wide {
        titles.extend(["BIG-HOST", "CONTACT", "SEEN"]);
    }
    let mut grid = Grid::new(&titles);
    for pool in &capacity.pools {
        let mark = if is_stale(pool) { "~" } else { "" };
        let number = |milli| format!("{mark}{}", text::gpus(milli));
        let mut row = vec![
            text::or_dash(&pool.flavor),
            text::or_dash(&pool.region),
            text::or_dash(&pool.cluster),
            text::or_dash(&pool.pool),
            number(pool.total_milli_gpus),
            number(pool.free_milli_gpus),
            number(pool.out_milli_gpus),
            number(pool.largest_block_milli_gpus),
        ];
        if wide {
            row.extend([
                number(pool.largest_host_milli_gpus),
                text::or_dash(&pool.contact),
                text::span(Millis(pool.age_ms)),
            ]);
        }
        grid.row(row);
    }
    grid
}

/// The largest gangs that could start, one row per pool and size of pod.
pub(crate) fn gangs(capacity: &CapacityResponse) -> Grid {
    let titles = ["FLAVOR", "CLUSTER", "POOL", "POD-GPUS", "LARGEST-GANGS"];
    let mut grid = Grid::new(&titles);
    for pool in &capacity.pools {
        let mark = if is_stale(pool) { "~" } else { "" };
        let mut sizes: Vec<u64> = pool
            .largest_gangs
            .iter()
            .map(|gang| gang.milli_gpus_per_pod)
            .collect();
        sizes.dedup();
        for size in sizes {
            let of_size = pool.largest_gangs.iter();
            let of_size = of_size.filter(|gang| gang.milli_gpus_per_pod == size);
            let pods = of_size.map(|gang| format!("{} {mark}{}", gang.within, gang.pods));
            grid.row(vec![
                text::or_dash(&pool.flavor),
                text::or_dash(&pool.cluster),
                text::or_dash(&pool.pool),
                text::gpus(size),
                pods.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    grid
}

fn is_stale(pool: &PoolCapacity) -> bool {
    Millis(pool.age_ms) > text::STALE
}

/// How old the old numbers are; `None` when none is.
pub(crate) fn footer(capacity: &CapacityResponse) -> Option<String> {
    let stale: Vec<&PoolCapacity> = capacity
        .pools
        .iter()
        .filter(|pool| is_stale(pool))
        .collect();
    let oldest = stale.iter().map(|pool| pool.age_ms).max()?;
    let pools = text::plural(stale.len(), "pool");
    let oldest = text::span(Millis(oldest));
    Some(format!(
        "~ marks numbers that are old: {pools}, up to {oldest}"
    ))
}

/// The pools for a program.
pub(crate) fn value(capacity: &CapacityResponse) -> Value {
    let gang = |gang: &LargestGang| {
        json!({
            "gpusPerPod": gpus_value(gang.milli_gpus_per_pod),
            "within": gang.within,
            "pods": gang.pods,
        })
    };
    let pool = |pool: &PoolCapacity| {
        json!({
            "largestGangs": pool.largest_gangs.iter().map(gang).collect::<Vec<_>>(),
            "flavor": pool.flavor,
            "region": pool.region,
            "cluster": pool.cluster,
            "pool": pool.pool,
            "total": gpus_value(pool.total_milli_gpus),
            "free": gpus_value(pool.free_milli_gpus),
            "out": gpus_value(pool.out_milli_gpus),
            "largestHost": gpus_value(pool.largest_host_milli_gpus),
            "largestBlock": gpus_value(pool.largest_block_milli_gpus),
            "contact": pool.contact,
            "ageMilliseconds": pool.age_ms,
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "Capacity",
        "pools": capacity.pools.iter().map(pool).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Headers;

    fn capacity() -> CapacityResponse {
        let pool = |cluster: &str, free, age_ms, contact: &str| PoolCapacity {
            flavor: "h100-80gb".into(),
            region: "eu-west".into(),
            cluster: cluster.into(),
            pool: "train".into(),
            total_milli_gpus: 512_000,
            free_milli_gpus: free,
            out_milli_gpus: 8_000,
            largest_host_milli_gpus: 8_000,
            largest_block_milli_gpus: 24_000,
            age_ms,
            contact: contact.into(),
            ..PoolCapacity::default()
        };
        CapacityResponse {
            pools: vec![
                pool("euw-a", 34_000, 1_200, "Ready"),
                pool("euw-b", 500, 95_000, "Unreachable"),
            ],
        }
    }

    #[test]
    fn pools_narrow_and_wide() {
        insta::assert_snapshot!(grid(&capacity(), false).to_text(Headers::Shown), @r#"
        FLAVOR      REGION    CLUSTER   POOL    TOTAL   FREE   OUT   BIG-BLOCK
        h100-80gb   eu-west   euw-a     train   512     34     8     24
        h100-80gb   eu-west   euw-b     train   ~512    ~0.5   ~8    ~24
        "#);
        let wide = grid(&capacity(), true);
        assert_eq!(wide.titles[8..], ["BIG-HOST", "CONTACT", "SEEN"]);
        assert_eq!(wide.rows[1][8..], ["~8", "Unreachable", "95s"]);
    }

    #[test]
    fn the_largest_gangs_are_one_row_per_size_of_pod() {
        let gang = |gpus: u64, within: &str, pods| LargestGang {
            milli_gpus_per_pod: gpus * 1000,
            within: within.into(),
            pods,
        };
        let mut capacity = capacity();
        capacity.pools[0].largest_gangs = vec![
            gang(1, "host", 8),
            gang(1, "pool", 34),
            gang(8, "host", 1),
            gang(8, "pool", 3),
        ];
        capacity.pools[1].largest_gangs = vec![gang(8, "pool", 0)];
        insta::assert_snapshot!(gangs(&capacity).to_text(Headers::Shown), @r#"
        FLAVOR      CLUSTER   POOL    POD-GPUS   LARGEST-GANGS
        h100-80gb   euw-a     train   1          host 8, pool 34
        h100-80gb   euw-a     train   8          host 1, pool 3
        h100-80gb   euw-b     train   8          pool ~0
        "#);
        assert_eq!(value(&capacity)["pools"][0]["largestGangs"][1]["pods"], 34);
    }

    #[test]
    fn the_footer_says_how_old_old_numbers_are() {
        let footer_text = footer(&capacity()).expect("one is old");
        assert_eq!(
            footer_text,
            "~ marks numbers that are old: 1 pool, up to 95s"
        );
        assert_eq!(footer(&CapacityResponse::default()), None);
        assert_eq!(value(&capacity())["pools"][0]["free"], 34);
    }
}
