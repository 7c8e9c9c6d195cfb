//! The kinds: one file each, and the list of them.
//!
//! Owns what a server or a client must know about each kind without knowing its type. Never
//! stores or serves one.

pub mod federated_job;
pub mod federated_service;
pub mod gpu_pool;
pub mod member_cluster;
pub mod price_book;
pub mod region;
pub mod reservation;
pub mod spread;
pub mod tenant;
pub mod tenant_quota;
pub mod time_window;
pub mod workload_class;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use federated_job::FederatedJob;
pub use federated_service::FederatedService;
pub use gpu_pool::GPUPool;
pub use member_cluster::MemberCluster;
pub use price_book::PriceBook;
pub use region::Region;
pub use reservation::Reservation;
pub use tenant::Tenant;
pub use tenant_quota::TenantQuota;
pub use time_window::TimeWindow;
pub use workload_class::WorkloadClass;

use crate::errors::{ApiError, ErrorCode, FieldError};
use crate::fields::{nearest, unknown_fields};
use crate::meta::{API_VERSION, GROUP, Object, Spec, VERSION};
use crate::schema;
use crate::validate::{self, Checked};

/// Category that every kind is in: `kubectl get meridian`.
pub const CATEGORY: &str = "meridian";

/// One column of a table of objects, as `additionalPrinterColumns` of a CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// `string`, `integer`, `number`, `boolean` or `date` (shown as an age).
    pub kind: &'static str,
    /// JSON path into the object: `.status.phase`.
    pub path: &'static str,
    /// 0 is always shown, more only when asked for wide.
    pub priority: i32,
}

const fn column(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column {
        name,
        kind,
        path,
        priority: 0,
    }
}

const fn wide(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column {
        name,
        kind,
        path,
        priority: 1,
    }
}

const AGE: Column = column("Age", "date", ".metadata.creationTimestamp");

/// Everything about a kind but its type.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// API group.
    pub group: &'static str,
    /// Version in the group.
    pub version: &'static str,
    /// `FederatedJob`.
    pub kind: &'static str,
    /// `federatedjobs`; also the name under which objects are stored.
    pub plural: &'static str,
    /// `federatedjob`.
    pub singular: &'static str,
    /// `fj`.
    pub short_names: &'static [&'static str],
    /// Groups of kinds that are listed together.
    pub categories: &'static [&'static str],
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
    /// OpenAPI v3 structural schema of the whole object, without references. Made anew by each
    /// call: keep it.
    pub schema: fn() -> Value,
    /// Columns after the name.
    pub columns: &'static [Column],
    /// Everything wrong with a complete object, unknown fields aside.
    pub validate: fn(&Value) -> Vec<FieldError>,
    /// Everything that a change from the first to the second may not change.
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
    /// Whether status is written apart from spec.
    pub has_status: bool,
}

impl KindInfo {
    /// Everything wrong with a document, unknown fields included.
    #[must_use]
    pub fn check(&self, value: &Value) -> Vec<FieldError> {
        let mut found = unknown_fields(&(self.schema)(), value);
        found.extend((self.validate)(value));
        found
    }
}

const fn kind<S>(
    singular: &'static str,
    short_names: &'static [&'static str],
    columns: &'static [Column],
) -> KindInfo
where
    S: Checked + JsonSchema,
    S::Status: JsonSchema + DeserializeOwned,
{
    KindInfo {
        group: GROUP,
        version: VERSION,
        kind: S::KIND,
        plural: S::PLURAL,
        singular,
        short_names,
        categories: &[CATEGORY],
        namespaced: S::NAMESPACED,
        schema: schema_of::<S>,
        columns,
        validate: validate::validate::<S>,
        validate_update: validate::validate_update::<S>,
        has_status: true,
    }
}

fn schema_of<S>() -> Value
where
    S: Spec + JsonSchema,
    S::Status: JsonSchema,
{
    let mut schema = schema::structural::<Object<S, S::Status>>();
    schema["description"] = S::ABOUT.into();
    schema
}

/// Every kind.
pub static ALL: &[KindInfo] = &[
    kind::<tenant::TenantSpec>(
        "tenant",
        &["tn"],
        &[
            column("Parent", "string", ".spec.parent"),
            column("Nominal", "string", ".status.gpus.nominal"),
            column("Used", "string", ".status.gpus.used"),
            column("Borrowed", "string", ".status.gpus.borrowed"),
            column("Pending", "string", ".status.gpus.pending"),
            wide("Running", "integer", ".status.runningJobs"),
            wide("Queued", "integer", ".status.queuedJobs"),
            AGE,
        ],
    ),
    kind::<tenant_quota::TenantQuotaSpec>(
        "tenantquota",
        &["tq"],
        &[
            column("Tenant", "string", ".spec.tenant"),
            column("Used", "string", ".status.used"),
            wide("Flavors", "string", ".spec.resources[*].flavor"),
            wide("Nominal", "string", ".spec.resources[*].nominal"),
            AGE,
        ],
    ),
    kind::<workload_class::WorkloadClassSpec>(
        "workloadclass",
        &["wc"],
        &[
            column("Priority", "integer", ".spec.priority"),
            column("Preemption", "string", ".spec.preemption"),
            column("Notice", "string", ".spec.notice"),
            column("MaxRuntime", "string", ".spec.maxRuntime"),
            wide("MayUse", "string", ".spec.mayUse[*]"),
            AGE,
        ],
    ),
    kind::<price_book::PriceBookSpec>(
        "pricebook",
        &["pb"],
        &[
            column("Currency", "string", ".spec.currency"),
            wide("Flavors", "string", ".spec.flavors[*].flavor"),
            wide("Worth", "string", ".spec.flavors[*].worth"),
            AGE,
        ],
    ),
    kind::<region::RegionSpec>(
        "region",
        &["rg"],
        &[
            column("Zone", "string", ".spec.timeZone"),
            column("Ready", "integer", ".status.clusters.ready"),
            column("Clusters", "integer", ".status.clusters.total"),
            column("GPUs", "string", ".status.gpus.total"),
            column("Free", "string", ".status.gpus.free"),
            wide("Jurisdiction", "string", ".spec.jurisdiction"),
            AGE,
        ],
    ),
    kind::<member_cluster::MemberClusterSpec>(
        "membercluster",
        &["mc"],
        &[
            column("Region", "string", ".spec.region"),
            column(
                "Connected",
                "string",
                ".status.conditions[?(@.type==\"Connected\")].status",
            ),
            column("GPUs", "string", ".status.gpus.total"),
            column("Free", "string", ".status.gpus.free"),
            column("Out", "string", ".status.gpus.out"),
            column("Cordoned", "boolean", ".spec.cordoned"),
            wide("Contact", "string", ".status.contact"),
            wide("Agent", "string", ".status.agent.version"),
            column("Seen", "date", ".status.agent.lastHeartbeat"),
            AGE,
        ],
    ),
    kind::<gpu_pool::GPUPoolSpec>(
        "gpupool",
        &["pool"],
        &[
            column("Cluster", "string", ".spec.cluster"),
            column("Flavor", "string", ".spec.flavor"),
            column("Total", "string", ".status.gpus.total"),
            column("Alloc", "string", ".status.gpus.allocated"),
            column("Free", "string", ".status.gpus.free"),
            column("Unhealthy", "string", ".status.gpus.unhealthy"),
            AGE,
        ],
    ),
    kind::<time_window::TimeWindowSpec>(
        "timewindow",
        &["tw"],
        &[
            column("Zone", "string", ".spec.timeZone"),
            column("Open", "boolean", ".status.open"),
            wide("ClosesAt", "string", ".status.closesAt"),
            wide("NextOpen", "string", ".status.nextOpen"),
            AGE,
        ],
    ),
    kind::<reservation::ReservationSpec>(
        "reservation",
        &["rsv"],
        &[
            column("Tenant", "string", ".spec.tenant"),
            column("Cluster", "string", ".spec.capacity.cluster"),
            column("Pool", "string", ".spec.capacity.pool"),
            column("Hosts", "integer", ".spec.capacity.hosts"),
            column("State", "string", ".status.phase"),
            column("Used", "integer", ".status.hosts.used"),
            column("Ready", "integer", ".status.hosts.ready"),
            column("Start", "string", ".status.start"),
            wide("End", "string", ".status.end"),
            wide("Flavor", "string", ".spec.capacity.flavor"),
            wide("Window", "string", ".spec.schedule.window"),
            AGE,
        ],
    ),
    kind::<federated_job::FederatedJobSpec>(
        "federatedjob",
        &["fj"],
        &[
            column("Class", "string", ".spec.workloadClass"),
            column("State", "string", ".status.phase"),
            column("Reason", "string", ".status.reason"),
            column("GPUs", "string", ".status.gpus"),
            column("Flavor", "string", ".status.flavor"),
            column("Cluster", "string", ".status.cluster"),
            wide("Tenant", "string", ".spec.tenant"),
            wide("Model", "string", ".spec.costAttribution.model"),
            wide("Prio", "integer", ".spec.priority"),
            wide("Pos", "integer", ".status.position"),
            AGE,
        ],
    ),
    kind::<federated_service::FederatedServiceSpec>(
        "federatedservice",
        &["fs"],
        &[
            column("Class", "string", ".spec.workloadClass"),
            column("Ready", "integer", ".status.ready"),
            column("Want", "integer", ".status.desired"),
            column("Updated", "integer", ".status.updated"),
            column("Waiting", "integer", ".status.waiting"),
            column("GPUs", "string", ".status.gpus"),
            column(
                "Spread",
                "string",
                ".status.conditions[?(@.type==\"SpreadSatisfied\")].status",
            ),
            wide("Tenant", "string", ".spec.tenant"),
            wide("Division", "string", ".spec.placement.division.rule"),
            wide("Model", "string", ".spec.costAttribution.model"),
            AGE,
        ],
    ),
];

/// The kind of that name: `FederatedJob`.
#[must_use]
pub fn by_kind(name: &str) -> Option<&'static KindInfo> {
    ALL.iter().find(|info| info.kind == name)
}

/// The kind that a person means by a plural, a singular, a short name or the kind itself, in any
/// case.
#[must_use]
pub fn by_any_name(name: &str) -> Option<&'static KindInfo> {
    let name = name.to_ascii_lowercase();
    ALL.iter().find(|info| {
        [info.plural, info.singular].contains(&name.as_str())
            || info.short_names.contains(&name.as_str())
    })
}

/// The kind of a document.
///
/// # Errors
/// `UnknownKind`, with what was most likely meant.
pub fn of(value: &Value) -> Result<&'static KindInfo, ApiError> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let Some(name) = text("kind") else {
        let error = ApiError::new(ErrorCode::UnknownKind, "the document has no kind");
        return Err(error.help(format!("begin it with apiVersion: {API_VERSION} and kind")));
    };
    let known = by_kind(name).filter(|_| text("apiVersion") == Some(API_VERSION));
    known.ok_or_else(|| {
        let short: String = name.chars().take(64).collect();
        let version: String = text("apiVersion")
            .unwrap_or("none")
            .chars()
            .take(64)
            .collect();
        let message = format!("there is no kind {short:?} in apiVersion {version:?}");
        let meant = nearest(name, ALL.iter().map(|info| info.kind));
        let help = if let Some(meant) = meant {
            format!("did you mean {meant} of {API_VERSION}?")
        } else {
            let names: Vec<&str> = ALL.iter().map(|info| info.kind).collect();
            format!("{API_VERSION} has {}", names.join(", "))
        };
        ApiError::new(ErrorCode::UnknownKind, message).help(help)
    })
}
