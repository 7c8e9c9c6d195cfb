//! Bounds: what the fleet could hold if all of it were empty.
//!
//! Owns the early word to whoever submits a job that no cluster could ever hold, and the copy of
//! the fleet's hosts that it is made from. Never refuses anything: a fleet grows, and what is let
//! in waits with the same reason. Says nothing on a follower, nor while a cluster has yet to tell
//! what it has.

use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::ids::Revision;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::RegionChoice;
use meridian_api::reasons::Reason;
use meridian_api::units::{BootMillis, MilliGpus, Millis};
use meridian_policies::diagnosis::{diagnose, fits_when_empty};
use meridian_policies::model::{GangShape, RoleShape, Shape};
use meridian_policies::shapes;

use crate::model::{Job, Model};

/// The copy is made anew this often, and when policies change: hosts come and go by the minute.
const EVERY: Millis = Millis::seconds(10);

/// The newest bounds, for admission on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds(Arc<RwLock<Arc<Table>>>);

#[derive(Debug, Default)]
struct Table {
    made: BootMillis,
    head: Revision,
    /// Empty while not all of the fleet is known.
    pools: Vec<Pool>,
}

/// One pool with nothing on it.
#[derive(Debug)]
struct Pool {
    region: String,
    cluster: String,
    name: String,
    flavor: String,
    /// Classes that it admits; empty = all.
    classes: Vec<String>,
    levels: Vec<String>,
    shapes: Vec<Shape>,
}

impl Bounds {
    /// Looks at the fleet, unless that was done a moment ago.
    pub(crate) fn look(&self, model: &Model, now: BootMillis) {
        let known = self.table();
        let head = model.policy_head();
        if known.head == head && known.made > BootMillis::ZERO && now.since(known.made) < EVERY {
            return;
        }
        self.replace(Table {
            made: now,
            head,
            pools: pools(model).unwrap_or_default(),
        });
    }

    /// This hub leads no more.
    pub(crate) fn clear(&self) {
        self.replace(Table::default());
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, table: Table) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// Why some gang of the job fits nowhere even if nothing else were there; `None` when each
    /// could be placed, or that is not known.
    pub(crate) fn never(&self, object: FederatedJob) -> Option<String> {
        let table = self.table();
        if table.pools.is_empty() {
            return None;
        }
        let gangs = object.gangs_per_copy();
        let job = Job::new(object, Revision::default());
        let open: Vec<&Pool> = table
            .pools
            .iter()
            .filter(|pool| pool.admits(&job))
            .collect();
        (0..gangs).find_map(|index| {
            let shape = &job.gang(index)?.shape;
            let least = shape.least();
            let fits = |pool: &&Pool| pool.holds(shape, &least);
            (!open.iter().any(fits)).then(|| words(&open, shape, &least))
        })
    }
}

/// The fleet's pools; `None` while a cluster has yet to tell of its own.
fn pools(model: &Model) -> Option<Vec<Pool>> {
    let mut pools = Vec::new();
    for (cluster, declared) in &model.catalog.clusters {
        let state = model.fleet.clusters.get(cluster)?;
        if state.pools.is_empty() {
            return None;
        }
        for (name, pool) in &state.pools {
            let mut documents = model.catalog.pools.iter();
            let document = documents.find(|(own, document)| {
                let spec = &document.value.spec;
                spec.cluster == *cluster && spec.pool.as_ref().unwrap_or(own) == name
            });
            pools.push(Pool {
                region: declared.value.spec.region.clone(),
                cluster: cluster.clone(),
                name: name.clone(),
                flavor: pool.flavor.clone(),
                classes: document.map_or_else(Vec::new, |(_, it)| it.value.spec.classes.clone()),
                levels: pool.levels.clone(),
                shapes: shapes::emptied(&pool.shapes),
            });
        }
    }
    Some(pools)
}

impl Pool {
    /// False where the job's own words keep it out.
    fn admits(&self, job: &Job) -> bool {
        let placement = &job.spec().placement;
        let regions = placement.regions.iter().flat_map(RegionChoice::names);
        let regions: Vec<&str> = regions.collect();
        let flavors = &placement.flavors;
        let class = &job.spec().workload_class;
        (regions.is_empty() || regions.contains(&self.region.as_str()))
            && (placement.clusters.is_empty() || placement.clusters.contains(&self.cluster))
            && (flavors.is_empty() || flavors.iter().any(|it| it.name == self.flavor))
            && (self.classes.is_empty() || self.classes.contains(class))
    }

    fn holds(&self, shape: &GangShape, least: &[u32]) -> bool {
        // The plain case costs one division per row: a submit must not wait for more.
        match (shape.roles.as_slice(), least) {
            ([role], [pods]) if role.required.is_none() && role.slice.is_none() => {
                self.pods_of(role) >= u64::from(*pods)
            }
            _ => fits_when_empty(&self.levels, &self.shapes, shape, least),
        }
    }

    fn pods_of(&self, role: &RoleShape) -> u64 {
        let on_row = |row: &Shape| {
            let each = row.allocatable.times(role.per_pod);
            each.saturating_mul(u64::from(row.hosts))
        };
        self.shapes.iter().map(on_row).fold(0, u64::saturating_add)
    }

    fn gpus(&self) -> MilliGpus {
        shapes::allocatable(&self.shapes).gpus
    }
}

/// What the largest of the pools lacks: the others lack more.
fn words(open: &[&Pool], shape: &GangShape, least: &[u32]) -> String {
    let reason = Reason::NeverPlaceable;
    let largest = open.iter().max_by_key(|pool| pool.gpus());
    match largest {
        Some(pool) => {
            let why = diagnose(&pool.levels, &pool.shapes, shape, least).message;
            let (cluster, name) = (&pool.cluster, &pool.name);
            format!("{reason}: no pool could hold it; {cluster}/{name}: {why}")
        }
        None => format!(
            "{reason}: no pool of the fleet is in its regions and clusters, of its flavors and \
             open to its class"
        ),
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::units::{Mebibytes, MilliCpus, Resources};
    use serde_json::{Value, json};

    use super::*;

    fn bounds() -> Bounds {
        let host = Resources {
            gpus: MilliGpus(8_000),
            cpu: MilliCpus(96_000),
            memory: Mebibytes(400_000),
        };
        let row = |rack: &str| Shape {
            domains: vec![rack.into()],
            allocatable: host,
            free: host,
            hosts: 2,
        };
        let pool = Pool {
            region: "eu".to_owned(),
            cluster: "eu-a".to_owned(),
            name: "train".to_owned(),
            flavor: "h100".to_owned(),
            classes: vec!["batch".to_owned()],
            levels: vec!["rack".to_owned()],
            shapes: vec![row("r1"), row("r2")],
        };
        let bounds = Bounds::default();
        bounds.replace(Table {
            pools: vec![pool],
            ..Table::default()
        });
        bounds
    }

    fn job(pods: u32, gpus: u32, fields: &Value) -> FederatedJob {
        let mut spec = json!({
            "workloadClass": "batch",
            "roles": [{"name": "worker", "replicas": pods, "gpus": gpus}],
        });
        let fields = fields.as_object().into_iter().flatten();
        for (field, value) in fields {
            spec[field] = value.clone();
        }
        FederatedJob::new("job", serde_json::from_value(spec).expect("a spec"))
    }

    #[test]
    fn what_no_pool_could_hold_is_said_and_nothing_else() {
        let never = |job| bounds().never(job);
        assert_eq!(never(job(4, 8, &json!({}))), None);
        let many = never(job(5, 8, &json!({}))).expect("there are four hosts");
        assert!(
            many.contains("eu-a/train") && many.contains("even when empty"),
            "{many}"
        );
        assert!(
            never(job(1, 16, &json!({}))).is_some(),
            "no host has sixteen"
        );
        let rack = json!({"topology": [{"role": "worker", "required": "rack"}]});
        assert_eq!(never(job(2, 8, &rack)), None);
        assert!(never(job(3, 8, &rack)).is_some(), "no rack has three hosts");
        let elastic = json!({"elasticity": {"role": "worker", "min": 2, "max": 9}});
        assert_eq!(never(job(5, 8, &elastic)), None, "it starts smaller");
        let elsewhere = json!({"placement": {"regions": {"anyOf": ["us"]}}});
        assert!(never(job(1, 1, &elsewhere)).is_some());
        let online = json!({"workloadClass": "online"});
        assert!(never(job(1, 1, &online)).is_some());
        assert_eq!(
            Bounds::default().never(job(99, 8, &json!({}))),
            None,
            "not known"
        );
    }
}
