//! The world of a simulation: policies and fleet as the tables that a decision reads.
//!
//! Owns the translation of names to ordinals, as the hub's model makes it, and the kinds of gangs
//! in a trace. Never changes once it is made: what happens in it is the engine's.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::fields::nearest;
use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::kinds::workload_class::Preemption;
use meridian_api::kinds::{TimeWindow, WorkloadClass};
use meridian_api::quantity::GpuQuantity;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::model::{
    Accepted, ChoiceIx, Class, ClassIx, ClassRule, Cluster, ClusterFacts, ClusterIx, Contact,
    Expected, Flavor, FlavorIx, GangShape, Lacking, Pool, PoolFacts, RegionIx, RoleShape, Shared,
    Snapshot, Tenant, TenantIx, Use, Waiting,
};
use meridian_policies::quota::rows_of;

use crate::fleet::Fleet;
use crate::rules::Rules;
use crate::trace::Job;

/// Windows are looked at once a week when nothing opens or closes before.
const LOOK_AHEAD: Millis = Millis::seconds(7 * 24 * 3600);

/// A job that names what is not there, or that the hub would not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} line {line}, column {column}: {message}")]
pub struct Stranger {
    /// Name of the trace.
    pub file: String,
    /// Line of the job, from 1.
    pub line: u64,
    /// Column that names it.
    pub column: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Fleet and policies, ready to be decided upon.
#[derive(Clone, Debug)]
pub struct World {
    /// Every table but what is held and what waits; all hosts empty.
    pub(crate) empty: Snapshot,
    /// The same hosts, pool by pool.
    pub(crate) fleet: Fleet,
    classes: BTreeMap<String, WorkloadClass>,
    windows: Vec<TimeWindow>,
    tenants: BTreeMap<String, TenantIx>,
    flavors: BTreeMap<String, FlavorIx>,
    regions: BTreeMap<String, RegionIx>,
}

/// What a decision sees of a job, its identity and age apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) tenant: TenantIx,
    pub(crate) class: ClassIx,
    pub(crate) priority: i32,
    pub(crate) max_runtime: Option<Millis>,
    pub(crate) accepted: Shared<Vec<Accepted>>,
    pub(crate) regions: Shared<Vec<RegionIx>>,
    /// Clusters to which it is bound, and that lack something: none.
    anywhere: Shared<Vec<ClusterIx>>,
    nothing: Shared<Vec<Lacking>>,
    pub(crate) shape: Shared<GangShape>,
    pub(crate) gpus: MilliGpus,
    /// How often it saves its work.
    pub(crate) checkpoint: Option<Millis>,
}

/// One job of a trace, translated.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    pub(crate) id: GangId,
    pub(crate) kind: u32,
    pub(crate) submit: UnixMillis,
    pub(crate) finish_by: Option<UnixMillis>,
    pub(crate) duration: Millis,
}

/// A trace, translated: gangs in the order of the jobs, and their kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs {
    pub(crate) list: Vec<Gang>,
    pub(crate) kinds: Vec<Kind>,
}

fn number<I>(
    names: impl IntoIterator<Item = String>,
    ordinal: fn(u32) -> I,
) -> BTreeMap<String, I> {
    let names: BTreeSet<String> = names.into_iter().collect();
    names
        .into_iter()
        .zip(0_u32..)
        .map(|(name, position)| (name, ordinal(position)))
        .collect()
}

/// Worth of a card: as the price book says, else as the fleet does.
fn worth(rules: &Rules, priced: &BTreeMap<&str, u64>, flavor: &str) -> u64 {
    match (rules.prices.first(), priced.get(flavor)) {
        (Some(book), _) => book.spec.worth(flavor).0.into(),
        (None, Some(worth)) => *worth,
        (None, None) => crate::fleet::DEFAULT_WORTH,
    }
}

impl World {
    /// The world of `rules` and `fleet`. Classes that a pool admits and that nobody declares
    /// admit nobody, as in the hub.
    #[must_use]
    pub fn new(rules: &Rules, fleet: &Fleet) -> Self {
        let mut fleet = fleet.clone();
        fleet
            .pools
            .sort_by(|a, b| (&a.cluster, &a.name).cmp(&(&b.cluster, &b.name)));
        let quota_rows = rules.quotas.iter().flat_map(|quota| &quota.spec.resources);
        let priced: BTreeMap<&str, u64> = fleet
            .pools
            .iter()
            .map(|pool| (pool.flavor.as_str(), pool.worth))
            .collect();
        let flavors = number(
            fleet
                .pools
                .iter()
                .map(|pool| pool.flavor.clone())
                .chain(quota_rows.filter_map(|row| row.flavor.clone())),
            FlavorIx,
        );
        let regions = number(fleet.pools.iter().map(|pool| pool.region.clone()), RegionIx);
        let tenants = number(
            rules.tenants.iter().map(|own| own.metadata.name.clone()),
            TenantIx,
        );
        let classes: BTreeMap<String, WorkloadClass> = rules
            .classes
            .iter()
            .map(|class| (class.metadata.name.clone(), class.clone()))
            .collect();
        let mut empty = Snapshot {
            revision: Revision(1),
            store_generation: StoreGeneration(1),
            flavors: flavors
                .keys()
                .map(|name| Flavor {
                    name: name.clone(),
                    worth: worth(rules, &priced, name),
                })
                .collect(),
            classes: classes
                .values()
                .map(|class| Class {
                    name: class.metadata.name.clone(),
                    priority: class.spec.priority,
                    ignores_slots: class.spec.preemption.is_protected(),
                    // Its windows are looked at as time passes.
                    rule: ClassRule::new(&class.spec, |_| false),
                })
                .collect(),
            tenants: tenant_rows(rules, &tenants, &flavors, &regions),
            regions: regions.keys().cloned().collect(),
            ..Snapshot::default()
        };
        (empty.clusters, empty.pools) = places(&fleet, &regions, &flavors, &classes);
        Self {
            empty,
            fleet,
            classes,
            windows: rules.windows.clone(),
            tenants,
            flavors,
            regions,
        }
    }

    /// Names of the tenants, by ordinal.
    pub(crate) fn tenant_name(&self, tenant: TenantIx) -> &str {
        &self.empty.tenants[tenant.index()].name
    }

    /// True when a class may be preempted only at times.
    pub(crate) fn has_windows(&self) -> bool {
        let mut classes = self.classes.values();
        classes.any(|class| !class.spec.preemption_windows.is_empty())
    }

    /// Shields the classes whose windows are shut at `at`, until the instant that is returned.
    pub(crate) fn shield(&self, classes: &mut [Class], at: UnixMillis) -> UnixMillis {
        let window = |name: &str| self.windows.iter().find(|it| it.metadata.name == name);
        let is_open = |name: &str| window(name).is_some_and(|it| it.spec.is_open(at));
        for (row, class) in classes.iter_mut().zip(self.classes.values()) {
            row.rule = ClassRule::new(&class.spec, is_open);
        }
        let most = at.after(LOOK_AHEAD);
        let edges = self.windows.iter();
        let edges = edges.filter_map(|it| it.spec.next_edge(at, most));
        edges.min().unwrap_or(most)
    }

    /// How work of a class makes room for others.
    pub(crate) fn manner(&self, class: ClassIx) -> Preemption {
        self.empty.classes[class.index()].rule.how
    }

    /// True when anything that runs may be made to go.
    pub(crate) fn preempts(&self) -> bool {
        let mut classes = self.empty.classes.iter();
        classes.any(|class| class.rule.how != Preemption::Never)
    }

    /// Position of a pool by its names.
    pub(crate) fn pool(&self, cluster: &str, name: &str) -> Option<usize> {
        let same = |pool: &crate::fleet::FleetPool| pool.cluster == cluster && pool.name == name;
        self.fleet.pools.iter().position(same)
    }

    /// The same world without any quota, and with other hosts.
    pub(crate) fn private(&self, fleet: Fleet) -> Self {
        let mut world = self.clone();
        for (pool, hosts) in world.empty.pools.iter_mut().zip(&fleet.pools) {
            pool.shapes = shapes_of(hosts);
        }
        for tenant in &mut world.empty.tenants {
            tenant.quotas.clear();
            tenant.gpus_per_job = None;
            tenant.running_jobs = None;
        }
        world.fleet = fleet;
        world
    }

    /// Translates a trace; `file` names it in errors.
    pub(crate) fn gangs(&self, file: &str, jobs: &[Job]) -> Result<Gangs, Stranger> {
        let mut known: BTreeMap<Kind, u32> = BTreeMap::new();
        let mut gangs = Gangs::default();
        for (job, id) in jobs.iter().zip(1_u128..) {
            let kind = self.kind(job).map_err(|(column, message)| Stranger {
                file: file.to_owned(),
                line: job.line,
                column,
                message,
            })?;
            let limit = kind.max_runtime.unwrap_or(Millis(u64::MAX));
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            let ordinal = *known.entry(kind).or_insert(next);
            gangs.list.push(Gang {
                id: identity(id),
                kind: ordinal,
                submit: job.submit,
                finish_by: job.finish_by,
                duration: job.duration.min(limit),
            });
        }
        let mut kinds: Vec<(Kind, u32)> = known.into_iter().collect();
        kinds.sort_by_key(|(_, ordinal)| *ordinal);
        gangs.kinds = kinds.into_iter().map(|(kind, _)| kind).collect();
        Ok(gangs)
    }

    fn kind(&self, job: &Job) -> Result<Kind, (&'static str, String)> {
        let class = find(&self.classes, "WorkloadClass", &job.class).map_err(|m| ("class", m))?;
        let position = self.classes.keys().position(|name| *name == job.class);
        let position = u32::try_from(position.unwrap_or_default()).unwrap_or(u32::MAX);
        let tenant = find(&self.tenants, "Tenant", &job.tenant).map_err(|m| ("tenant", m))?;
        let gpus = job.per_pod.gpus.checked_mul(job.pods.into());
        let gpus = gpus.ok_or_else(|| ("gpus", "more GPUs than can be counted".to_owned()))?;
        if let Some(most) = class.spec.gpus_per_job.filter(|most| most.0 < gpus) {
            let message = format!(
                "the job asks for {} GPUs; class {} allows {most}",
                GpuQuantity(gpus),
                job.class
            );
            return Err(("gpus", message));
        }
        let flavors = job.flavors.iter().map(|(name, speed)| {
            let flavor = find(&self.flavors, "flavor", name).map_err(|m| ("flavor", m))?;
            Ok(Accepted {
                flavor: *flavor,
                speed: *speed,
            })
        });
        let regions = job.regions.iter();
        let regions = regions
            .map(|name| Ok(*find(&self.regions, "region", name).map_err(|m| ("region", m))?));
        let own = class.spec.max_runtime.map(|span| span.0);
        Ok(Kind {
            tenant: *tenant,
            class: ClassIx(position),
            priority: job.priority,
            max_runtime: job.max_runtime.or(own),
            accepted: flavors.collect::<Result<_, _>>()?,
            regions: regions.collect::<Result<_, _>>()?,
            anywhere: Shared::default(),
            nothing: Shared::default(),
            shape: shape_of(job).into(),
            gpus,
            checkpoint: job.checkpoint,
        })
    }
}

/// Identity of the gang of the job at a position, from 1: ages of one instant are told apart by it.
const fn identity(position: u128) -> GangId {
    GangId {
        job: Uid(position),
        index: 0,
    }
}

fn shape_of(job: &Job) -> GangShape {
    let role = RoleShape {
        name: "worker".to_owned(),
        per_pod: job.per_pod,
        min: job.pods,
        max: job.pods,
        step: 1,
        required: job.required.clone(),
        preferred: job.preferred.clone(),
        slice: None,
    };
    GangShape { roles: vec![role] }
}

fn find<'a, T>(table: &'a BTreeMap<String, T>, what: &str, name: &str) -> Result<&'a T, String> {
    table.get(name).ok_or_else(|| {
        let meant = nearest(name, table.keys().map(String::as_str));
        let meant = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant:?}?)"));
        format!("there is no {what} {name:?}{meant}")
    })
}

fn tenant_rows(
    rules: &Rules,
    tenants: &BTreeMap<String, TenantIx>,
    flavors: &BTreeMap<String, FlavorIx>,
    regions: &BTreeMap<String, RegionIx>,
) -> Vec<Tenant> {
    let mut rows = Vec::with_capacity(rules.tenants.len());
    for tenant in &rules.tenants {
        let name = &tenant.metadata.name;
        let quota = rules.quotas.iter().find(|quota| quota.spec.tenant == *name);
        let limits = quota.map(|quota| quota.spec.limits).unwrap_or_default();
        let quotas = quota.map_or_else(Vec::new, |quota| {
            let flavor = |name: &str| flavors.get(name).copied();
            rows_of(&quota.spec, flavor, |name| regions.get(name).copied())
        });
        let weight = quota.and_then(|quota| quota.spec.fair_sharing);
        let parent = tenant.spec.parent.as_ref();
        rows.push(Tenant {
            name: name.clone(),
            parent: parent.and_then(|parent| tenants.get(parent).copied()),
            quotas,
            gpus_per_job: limits.gpus_per_job.map(|limit| limit.0),
            running_jobs: limits.running_jobs,
            budget: None,
            weight: weight.map_or(1, |sharing| sharing.weight),
            history: Use::default(),
            lost: 0,
        });
    }
    rows
}

fn places(
    fleet: &Fleet,
    regions: &BTreeMap<String, RegionIx>,
    flavors: &BTreeMap<String, FlavorIx>,
    classes: &BTreeMap<String, WorkloadClass>,
) -> (Vec<Cluster>, Vec<Pool>) {
    let (mut clusters, mut pools): (Vec<Cluster>, Vec<Pool>) = (Vec::new(), Vec::new());
    for pool in &fleet.pools {
        if clusters.last().is_none_or(|last| last.name != pool.cluster) {
            clusters.push(Cluster {
                name: pool.cluster.clone(),
                region: regions[&pool.region],
                contact: Contact::Ready,
                cordoned: false,
                facts: ClusterFacts::default(),
            });
        }
        let cluster = u32::try_from(clusters.len() - 1).unwrap_or(u32::MAX);
        let admitted = pool.classes.iter().map(|name| {
            let position = classes.keys().position(|known| known == name);
            let position = position.and_then(|position| u32::try_from(position).ok());
            ClassIx(position.unwrap_or(u32::MAX))
        });
        pools.push(Pool {
            cluster: ClusterIx(cluster),
            name: pool.name.clone(),
            flavor: flavors[&pool.flavor],
            classes: admitted.collect(),
            levels: pool.levels.clone(),
            shapes: shapes_of(pool),
            facts: PoolFacts::default(),
        });
    }
    (clusters, pools)
}

fn shapes_of(pool: &crate::fleet::FleetPool) -> Vec<meridian_policies::model::Shape> {
    let rows = pool
        .hosts
        .iter()
        .map(|hosts| meridian_policies::model::Shape {
            domains: hosts.domains.clone(),
            allocatable: hosts.allocatable,
            free: hosts.allocatable,
            hosts: hosts.count,
        });
    meridian_policies::shapes::canonical(&rows.collect::<Vec<_>>())
}

impl Gangs {
    pub(crate) fn kind(&self, gang: u32) -> &Kind {
        &self.kinds[self.list[gang as usize].kind as usize]
    }

    /// Some of the gangs, by position, as a trace of their own.
    pub(crate) fn only(&self, some: &[usize]) -> Self {
        let gang = |(ix, id): (&usize, u128)| Gang {
            id: identity(id),
            ..self.list[*ix].clone()
        };
        Self {
            list: some.iter().zip(1..).map(gang).collect(),
            kinds: self.kinds.clone(),
        }
    }

    /// The row of a gang that waits for the place that gets `epoch`. Without the job's name, which
    /// only words would use.
    pub(crate) fn waiting(&self, gang: u32, epoch: Epoch) -> Waiting {
        let row = &self.list[gang as usize];
        let kind = &self.kinds[row.kind as usize];
        Waiting {
            gang: row.id,
            job: String::new(),
            tenant: kind.tenant,
            class: kind.class,
            priority: kind.priority,
            submitted: row.submit,
            finish_by: row.finish_by,
            max_runtime: kind.max_runtime,
            suspended: false,
            flavors: kind.accepted.clone(),
            regions: kind.regions.clone(),
            clusters: kind.anywhere.clone(),
            lacking: kind.nothing.clone(),
            shape: kind.shape.clone(),
            job_gpus: kind.gpus,
            next_epoch: epoch,
            spec_revision: Revision(1),
            evicted_by: Vec::new(),
            choice: ChoiceIx(0),
            expected: Expected::default(),
        }
    }

    /// Identity of the gang at a position.
    pub(crate) fn id(gang: u32) -> GangId {
        identity(u128::from(gang) + 1)
    }

    /// The gang of a row.
    pub(crate) fn ordinal(id: GangId) -> u32 {
        u32::try_from(id.job.0 - 1).unwrap_or(u32::MAX)
    }
}
