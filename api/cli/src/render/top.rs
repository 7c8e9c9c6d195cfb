//! `top`: clusters, pools and tenants in rows, and their sums.
//!
//! Owns its layout and its JSON shape.

use std::collections::BTreeMap;

use meridian_api::meta::API_VERSION;
use meridian_api::units::Millis;
use meridian_client::v1::PoolCapacity;
use serde_json::{Value, json};

use crate::args::TopRows;
use crate::output::Grid;
use crate::render::why::gpus_value;
use crate::text::{self, scalar};

/// What is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    /// Every pool.
    pub(crate) pools: Vec<PoolCapacity>,
    /// Every tenant, as an object.
    pub(crate) tenants: Vec<Value>,
}

/// Numbers of one row: of a pool, or of all pools of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    total: u64,
    free: u64,
    out: u64,
    block: u64,
    starting: u32,
    running: u32,
    stopping: u32,
    age_ms: u64,
    contact: String,
}

impl Row {
    fn of(pool: &PoolCapacity) -> Self {
        Self {
            total: pool.total_milli_gpus,
            free: pool.free_milli_gpus,
            out: pool.out_milli_gpus,
            block: pool.largest_block_milli_gpus,
            starting: pool.gangs_starting,
            running: pool.gangs_running,
            stopping: pool.gangs_stopping,
            age_ms: pool.age_ms,
            contact: pool.contact.clone(),
        }
    }

    /// Adds a pool; the biggest free block is of one pool, never a sum.
    fn add(&mut self, pool: &PoolCapacity) {
        let other = Self::of(pool);
        self.total = self.total.saturating_add(other.total);
        self.free = self.free.saturating_add(other.free);
        self.out = self.out.saturating_add(other.out);
        self.block = self.block.max(other.block);
        self.starting = self.starting.saturating_add(other.starting);
        self.running = self.running.saturating_add(other.running);
        self.stopping = self.stopping.saturating_add(other.stopping);
        self.age_ms = self.age_ms.max(other.age_ms);
        self.contact = other.contact;
    }

    fn held(&self) -> u64 {
        self.total
            .saturating_sub(self.free)
            .saturating_sub(self.out)
    }

    /// Cells after the names; numbers older than two beats begin with `~`.
    fn cells(&self, wide: bool) -> Vec<String> {
        let mark = if Millis(self.age_ms) > text::STALE {
            "~"
        } else {
            ""
        };
        let number = |milli| format!("{mark}{}", text::gpus(milli));
        let mut cells = vec![
            number(self.total),
            number(self.held()),
            number(self.free),
            number(self.out),
            number(self.block),
            self.starting.to_string(),
            self.running.to_string(),
            text::span(Millis(self.age_ms)),
        ];
        if wide {
            cells.extend([self.stopping.to_string(), text::or_dash(&self.contact)]);
        }
        cells
    }

    fn value(&self) -> Value {
        json!({
            "total": gpus_value(self.total),
            "held": gpus_value(self.held()),
            "free": gpus_value(self.free),
            "out": gpus_value(self.out),
            "largestBlock": gpus_value(self.block),
            "gangsStarting": self.starting,
            "gangsRunning": self.running,
            "gangsStopping": self.stopping,
            "ageMilliseconds": self.age_ms,
            "contact": self.contact,
        })
    }
}

const NUMBERS: [&str; 8] = [
    "TOTAL",
    "HELD",
    "FREE",
    "OUT",
    "BIG-BLOCK",
    "STARTING",
    "RUNNING",
    "SEEN",
];

fn clusters(fleet: &Fleet) -> BTreeMap<(&str, &str), Row> {
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    for pool in &fleet.pools {
        let names = (pool.cluster.as_str(), pool.region.as_str());
        rows.entry(names).or_default().add(pool);
    }
    rows
}

/// The rows of one part.
pub(crate) fn grid(fleet: &Fleet, rows: TopRows, wide: bool) -> Grid {
    let mut titles = match rows {
        TopRows::Cluster => vec!["CLUSTER", "REGION"],
        TopRows::Pool => vec!["POOL", "CLUSTER", "FLAVOR"],
        TopRows::Tenant => return tenants(fleet),
    };
    titles.extend(NUMBERS);
    if wide {
        titles.extend(["STOPPING", "CONTACT"]);
    }
    let mut grid = Grid::new(&titles);
    if rows == TopRows::Cluster {
        for ((cluster, region), row) in clusters(fleet) {
            let names = vec![text::or_dash(cluster), text::or_dash(region)];
            grid.row([names, row.cells(wide)].concat());
        }
    } else {
        for pool in &fleet.pools {
            let names = [&pool.pool, &pool.cluster, &pool.flavor];
            let names = names.map(|name| text::or_dash(name)).to_vec();
            grid.row([names, Row::of(pool).cells(wide)].concat());
        }
    }
    grid
}

fn tenants(fleet: &Fleet) -> Grid {
    let mut grid = Grid::new(&[
        "TENANT", "NOMINAL", "HELD", "BORROWED", "PENDING", "RUNNING", "QUEUED",
    ]);
    for tenant in &fleet.tenants {
        let status = &tenant["status"];
        let gpus = |name: &str| scalar(&status["gpus"][name]);
        grid.row(vec![
            scalar(&tenant["metadata"]["name"]),
            gpus("nominal"),
            gpus("used"),
            gpus("borrowed"),
            gpus("pending"),
            scalar(&status["runningJobs"]),
            scalar(&status["queuedJobs"]),
        ]);
    }
    grid
}

/// The same for a program.
pub(crate) fn value(fleet: &Fleet) -> Value {
    let named = |mut value: Value, names: &[(&str, &str)]| {
        for (field, name) in names {
            value[*field] = json!(name);
        }
        value
    };
    let cluster = |((cluster, region), row): ((&str, &str), Row)| {
        named(row.value(), &[("cluster", cluster), ("region", region)])
    };
    let pool = |pool: &PoolCapacity| {
        let names = [
            ("pool", pool.pool.as_str()),
            ("cluster", pool.cluster.as_str()),
            ("flavor", pool.flavor.as_str()),
        ];
        named(Row::of(pool).value(), &names)
    };
    let tenant = |tenant: &Value| {
        let status = &tenant["status"];
        json!({
            "tenant": tenant["metadata"]["name"],
            "nominal": status["gpus"]["nominal"],
            "held": status["gpus"]["used"],
            "borrowed": status["gpus"]["borrowed"],
            "pending": status["gpus"]["pending"],
            "jobsRunning": status["runningJobs"],
            "jobsQueued": status["queuedJobs"],
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "Top",
        "clusters": clusters(fleet).into_iter().map(cluster).collect::<Vec<_>>(),
        "pools": fleet.pools.iter().map(pool).collect::<Vec<_>>(),
        "tenants": fleet.tenants.iter().map(tenant).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Headers;

    fn fleet() -> Fleet {
        let pool = |cluster: &str, pool: &str, free, age_ms| PoolCapacity {
            flavor: "h100".into(),
            region: "eu-west".into(),
            cluster: cluster.into(),
            pool: pool.into(),
            total_milli_gpus: 512_000,
            free_milli_gpus: free,
            out_milli_gpus: 8_000,
            largest_block_milli_gpus: 24_000,
            age_ms,
            contact: "Ready".into(),
            gangs_starting: 1,
            gangs_running: 12,
            ..PoolCapacity::default()
        };
        let tenant = json!({
            "metadata": {"name": "nlp"},
            "status": {"gpus": {"nominal": 256, "used": 300, "borrowed": 44, "pending": 8},
                       "runningJobs": 12, "queuedJobs": 3},
        });
        Fleet {
            pools: vec![
                pool("euw-a", "infer", 34_000, 1_200),
                pool("euw-a", "train", 4_000, 1_200),
                pool("euw-b", "train", 0, 95_000),
            ],
            tenants: vec![tenant],
        }
    }

    #[test]
    fn clusters_pools_and_tenants() {
        let shown = |rows| grid(&fleet(), rows, false).to_text(Headers::Shown);
        insta::assert_snapshot!(shown(TopRows::Cluster), @r#"
        CLUSTER   REGION    TOTAL   HELD   FREE   OUT   BIG-BLOCK   STARTING   RUNNING   SEEN
        euw-a     eu-west   1024    970    38     16    24          2          24        1s
        euw-b     eu-west   ~512    ~504   ~0     ~8    ~24         1          12        95s
        "#);
        insta::assert_snapshot!(shown(TopRows::Pool), @r#"
        POOL    CLUSTER   FLAVOR   TOTAL   HELD   FREE   OUT   BIG-BLOCK   STARTING   RUNNING   SEEN
        infer   euw-a     h100     512     470    34     8     24          1          12        1s
        train   euw-a     h100     512     500    4      8     24          1          12        1s
        train   euw-b     h100     ~512    ~504   ~0     ~8    ~24         1          12        95s
        "#);
        insta::assert_snapshot!(shown(TopRows::Tenant), @r#"
        TENANT   NOMINAL   HELD   BORROWED   PENDING   RUNNING   QUEUED
        nlp      256       300    44         8         12        3
        "#);
        let wide = grid(&fleet(), TopRows::Pool, true);
        assert_eq!(wide.titles[11..], ["STOPPING", "CONTACT"]);
    }

    #[test]
    fn a_program_gets_the_same_numbers() {
        let value = value(&fleet());
        assert_eq!(value["clusters"][0]["held"], 970);
        assert_eq!(value["pools"][2]["ageMilliseconds"], 95_000);
        assert_eq!(value["tenants"][0]["jobsQueued"], 3);
    }
}
