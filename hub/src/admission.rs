//! Admission: what the schema cannot say, for every way in alike.
//!
//! Owns defaults of jobs, the whole-tree check of tenants and quotas, references between
//! cluster-scoped objects, and the refusal to delete what still holds work. What it read is
//! compared in the write's transaction, so that no two replicas accept half of a contradiction.

mod limited;
mod money;
mod reservation;
mod service;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use meridian_api::errors::ErrorCode;
use meridian_api::ids::Revision;
use meridian_api::kinds::federated_job::admission::{fits_class, fits_tenant};
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_api::kinds::{FederatedJob, Tenant, TenantQuota, WorkloadClass};
use meridian_api::quantity::Time;
use meridian_api::tree;
use meridian_api::validate::{self, Findings};
use meridian_apiserver::{
    Actor, Admission, Admitted, Change, Denial, DryRun, FieldError, FieldReason, Operation,
    Request, StatusReason,
};
use meridian_runtime::{Clock, telemetry};
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, KeyRange, Op, Operation as StoreCall, SharedStore, StoreError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bounds::Bounds;
use crate::kinds::field_error;
use crate::limits::Limits;
use crate::model::{FINALIZER, JOBS, SERVICES, TRACEPARENT_ANNOTATION};
use crate::placement::PlacementRecord;
use crate::references::{Freshness, Named, References};

/// Name under which the hub itself writes objects. It is given to no caller.
const OWN_NAME: &str = "system:meridian-hub";

/// The circumstances of what the hub itself writes.
pub(crate) fn own_request() -> Request {
    Request {
        actor: Actor {
            name: OWN_NAME.to_owned(),
            groups: Vec::new(),
        },
    }
}

/// Keys in one page of a scan.
const PAGE: usize = 2_000;

/// The hub's admission over its store.
pub(crate) struct HubAdmission {
    store: SharedStore,
    references: References,
    bounds: Bounds,
    limits: Limits,
    clock: Clock,
}

impl HubAdmission {
    /// Admission that reads from `store`.
    #[must_use]
    pub(crate) fn new(store: SharedStore, bounds: Bounds, limits: Limits, clock: Clock) -> Self {
        let references = References::new(SharedStore::clone(&store));
        Self {
            store,
            references,
            bounds,
            limits,
            clock,
        }
    }
}

#[async_trait]
impl Admission for HubAdmission {
    async fn admit(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        match (change.kind.plural.as_str(), change.operation) {
            (JOBS, Operation::Create) => self.job(change).await,
            (JOBS, Operation::Update) => self.job_update(change).await,
            (SERVICES, Operation::Create | Operation::Update) => self.service(change).await,
            (
                "tenants" | "tenantquotas",
                Operation::Create | Operation::Update | Operation::Delete,
            ) => self.tenancy(change).await,
            ("memberclusters", Operation::Create | Operation::Update) => self.cluster(change).await,
            ("memberclusters", Operation::Delete) => self.cluster_delete(change).await,
            ("workloadclasses", Operation::Delete) => {
                self.nothing_placed(change, "class", |row, name| *row.class == *name)
                    .await
            }
            ("pricebooks", Operation::Create | Operation::Update) => self.price_book(change).await,
            ("regions", Operation::Delete) => self.region_delete(change).await,
            ("reservations", Operation::Create | Operation::Update) => {
                self.reservation(change).await
            }
            ("timewindows", Operation::Update | Operation::Delete) => {
                self.window_of_reservations(change).await
            }
            _ => Ok(Admitted::default()),
        }
    }
}

impl HubAdmission {
    /// A new job: defaults are written down, and what it names and is not there is said.
    async fn job(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let Some(job) = change.after else {
            return Ok(Admitted::default());
        };
        if job.pointer("/spec/origin").is_some() && change.actor.name != OWN_NAME {
            return Err(only_the_hub_writes("spec.origin"));
        }
        let (mut warnings, unchanged) = self.fits(job, change).await?;
        warnings.extend(self.within_limits(job, change)?);
        Ok(Admitted {
            warnings,
            object: traced(job),
            compares: vec![unchanged],
            ..Admitted::default()
        })
    }

    /// A changed job must still fit, and keeps what holds it until nothing of it runs.
    async fn job_update(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let (Some(before), Some(after)) = (change.before, change.after) else {
            return Ok(Admitted::default());
        };
        finalizer_stays(before, after, "job")?;
        if before.get("spec") == after.get("spec") {
            return Ok(Admitted::default());
        }
        let (warnings, unchanged) = self.fits(after, change).await?;
        Ok(Admitted {
            warnings,
            compares: vec![unchanged],
            ..Admitted::default()
        })
    }

    /// A job must fit the class and the tenant that it names, which the returned condition holds
    /// it to; where they are not there yet it is let in and waits, so that documents may be
    /// applied in any order.
    async fn fits(
        &self,
        job: &Value,
        change: &Change<'_>,
    ) -> Result<(Vec<String>, Compare), Denial> {
        let job: FederatedJob = validate::from_value(job).map_err(|wrong| invalid(vec![wrong]))?;
        self.fits_also(&job, change, |_| Vec::new()).await
    }

    /// The same, with what `also` finds wrong with its class.
    async fn fits_also(
        &self,
        job: &FederatedJob,
        change: &Change<'_>,
        also: impl Fn(&WorkloadClass) -> Vec<meridian_api::errors::FieldError> + Send,
    ) -> Result<(Vec<String>, Compare), Denial> {
        let tenant = job.spec.tenant.as_deref().unwrap_or_default();
        let class = job.spec.workload_class.as_str();
        let mut freshness = if change.attempt == 0 && change.dry_run == DryRun::No {
            Freshness::Known
        } else {
            Freshness::Read
        };
        loop {
            let named = self.references.named(tenant, class, freshness).await;
            let named = named.map_err(broken)?;
            let mut wrong = misfits(job, &named);
            wrong.extend(named.class.as_deref().into_iter().flat_map(&also));
            if wrong.is_empty() {
                return Ok((absences(tenant, class, &named), named.unchanged));
            }
            // No transaction follows on a refusal: what it rests on is read first.
            if freshness == Freshness::Read {
                return Err(invalid(wrong));
            }
            freshness = Freshness::Read;
        }
    }

    /// The tree of tenants is checked whole, as it would be after the change.
    async fn tenancy(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let mut tenants = self.table::<Tenant>("tenants").await?;
        let mut quotas = self.table::<TenantQuota>("tenantquotas").await?;
        let name = change.key.name.clone();
        if change.kind.plural == "tenants" {
            put(&mut tenants, &name, change.after)?;
            self.budget_can_be_counted(tenants.get(&name)).await?;
        } else {
            put(&mut quotas, &name, change.after)?;
        }
        let tenants: Vec<Tenant> = tenants.into_values().collect();
        let quotas: Vec<TenantQuota> = quotas.into_values().collect();
        let wrong = tree::check(&tenants, &quotas);
        if !wrong.is_empty() {
            return Err(Denial {
                reason: StatusReason::Invalid,
                message: "the tenant tree would contradict itself".to_owned(),
                causes: wrong.into_iter().map(field_error).collect(),
            });
        }
        if change.operation == Operation::Delete && change.kind.plural == "tenants" {
            self.not_reserved("tenant", |spec| spec.tenant == change.key.name)
                .await?;
            let mut admitted = self
                .nothing_placed(change, "tenant", |row, name| *row.tenant == *name)
                .await?;
            // A tenant of that name which is added later is another.
            let key = keys::history(&change.key.name);
            admitted.puts.push(Op::Delete { key });
            return Ok(admitted);
        }
        Ok(Admitted::default())
    }

    async fn cluster(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let region = change.after.and_then(|after| after.pointer("/spec/region"));
        let region = region.and_then(Value::as_str).unwrap_or_default();
        if self.object("regions", region).await?.is_some() {
            let object = change
                .after
                .and_then(|after| stamped(change.before, after, Time(self.clock.wall())));
            return Ok(Admitted {
                object,
                ..Admitted::default()
            });
        }
        let message = format!("there is no Region {region:?}; create it first");
        Err(Denial {
            reason: StatusReason::Invalid,
            message: String::new(),
            causes: vec![FieldError::new(
                "spec.region",
                FieldReason::NotFound,
                message,
            )],
        })
    }

    /// With a cluster go its agent's binding, its identity and its capacity: a cluster of that name
    /// which is added later is another.
    async fn cluster_delete(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let is_there = |cluster: Option<&str>| cluster == Some(change.key.name.as_str());
        self.not_reserved("cluster", |spec| is_there(spec.capacity.cluster.as_deref()))
            .await?;
        let mut admitted = self
            .nothing_placed(change, "cluster", |row, name| *row.cluster == *name)
            .await?;
        let gone = [
            keys::agent(&change.key.name),
            keys::identity(&change.key.name),
            keys::capacity(&change.key.name),
        ];
        admitted.puts.extend(gone.map(|key| Op::Delete { key }));
        Ok(admitted)
    }

    async fn region_delete(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let name = change.key.name.as_str();
        let clusters = self
            .table::<meridian_api::kinds::MemberCluster>("memberclusters")
            .await?;
        let inside = clusters
            .values()
            .filter(|cluster| cluster.spec.region == name);
        let inside: Vec<&str> = inside
            .map(|cluster| cluster.metadata.name.as_str())
            .collect();
        if inside.is_empty() {
            return Ok(Admitted::default());
        }
        Err(in_use(format!(
            "clusters are in it: {}; delete them first",
            inside.join(", ")
        )))
    }

    /// Refuses to delete what placements stand on. The ledger's head is compared, so that no
    /// decision slips in between.
    async fn nothing_placed(
        &self,
        change: &Change<'_>,
        what: &str,
        stands_on: impl Fn(&PlacementRecord, &str) -> bool + Send + Sync,
    ) -> Result<Admitted, Denial> {
        let head = self
            .store
            .get(StoreCall::WriteObject, keys::ledger_head())
            .await
            .map_err(broken)?;
        let head = head.map_or(Revision(0), |head| head.mod_revision);
        let mut count = 0_usize;
        let mut first = None;
        self.scan(keys::placements(), |value| {
            let Ok(row) = serde_json::from_slice::<PlacementRecord>(value) else {
                return;
            };
            if stands_on(&row, &change.key.name) {
                count += 1;
                first.get_or_insert(format!("{}/{}", row.namespace, row.job));
            }
        })
        .await?;
        if let Some(first) = first {
            return Err(in_use(format!(
                "{count} gangs still stand on this {what}, of {first} and others; delete or drain \
                 them first"
            )));
        }
        let compares = vec![Compare::ModRevision(keys::ledger_head(), head)];
        Ok(Admitted {
            compares,
            ..Admitted::default()
        })
    }

    async fn object(&self, plural: &str, name: &str) -> Result<Option<Bytes>, Denial> {
        let key = ObjectKey {
            plural: plural.to_owned(),
            namespace: None,
            name: name.to_owned(),
        };
        let stored = self
            .store
            .get(StoreCall::WriteObject, key.part(Part::Spec))
            .await;
        Ok(stored.map_err(broken)?.map(|stored| stored.value))
    }

    /// All objects of a cluster-scoped kind, by name.
    async fn table<T: DeserializeOwned>(
        &self,
        plural: &str,
    ) -> Result<BTreeMap<String, T>, Denial> {
        let mut table = BTreeMap::new();
        let mut range = keys::objects(plural, None);
        loop {
            let page = self
                .store
                .range(StoreCall::WriteObject, range.clone(), PAGE, None)
                .await;
            let page = page.map_err(broken)?;
            for entry in &page.entries {
                let Some((key, Part::Spec)) = ObjectKey::parse(&entry.key) else {
                    continue;
                };
                if let Ok(object) = serde_json::from_slice(&entry.value) {
                    table.insert(key.name, object);
                }
            }
            match page.entries.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(table),
            }
        }
    }

    async fn scan(
        &self,
        mut range: KeyRange,
        mut see: impl FnMut(&[u8]) + Send,
    ) -> Result<(), Denial> {
        loop {
            let page = self
                .store
                .range(StoreCall::WriteObject, range.clone(), PAGE, None)
                .await;
            let page = page.map_err(broken)?;
            page.entries.iter().for_each(|entry| see(&entry.value));
            match page.entries.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }
}

/// What of a job does not fit what it names.
fn misfits(job: &FederatedJob, named: &Named) -> Vec<meridian_api::errors::FieldError> {
    let mut found = Findings::default();
    if let Some(tenant) = &named.tenant {
        fits_tenant(job, tenant, &mut found);
    }
    if let Some(class) = &named.class {
        fits_class(job, class, &mut found);
    }
    found.list
}

/// Warns of what a job names and is not there.
fn absences(tenant: &str, class: &str, named: &Named) -> Vec<String> {
    let mut warnings = Vec::new();
    if named.tenant.is_none() {
        warnings.push(not_there("spec.tenant", "Tenant", tenant));
    }
    if named.class.is_none() {
        warnings.push(not_there("spec.workloadClass", "WorkloadClass", class));
    }
    warnings
}

/// Writes down what a job leaves out: its tenant, and that it goes only when drained.
pub(crate) fn complete(key: &ObjectKey, job: &mut Value) {
    // What is on its way out is not held back again.
    if job.pointer("/metadata/deletionTimestamp").is_none() {
        add_finalizer(job);
    }
    let tenant = key.namespace.as_deref().unwrap_or_default();
    if let Some(spec) = job.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("tenant").or_insert_with(|| json!(tenant));
    }
}

/// The job with the trace of its submit, so that decision and agent go on with it; `None` when it
/// carries one already, or there is none.
fn traced(job: &Value) -> Option<Value> {
    let annotations = job.pointer("/metadata/annotations");
    if annotations.is_some_and(|known| known.get(TRACEPARENT_ANNOTATION).is_some()) {
        return None;
    }
    let traceparent = telemetry::traceparent(&tracing::Span::current())?;
    let mut job = job.clone();
    job["metadata"]["annotations"][TRACEPARENT_ANNOTATION] = json!(traceparent);
    Some(job)
}

/// The cluster with the time at which each taint was added that ends work, so that the time for
/// which a job bears it can be counted; `None` when nothing is missing.
fn stamped(before: Option<&Value>, after: &Value, now: Time) -> Option<Value> {
    let taints = |object: &Value| -> Vec<Taint> {
        let list = object.pointer("/spec/taints").cloned();
        list.and_then(|list| serde_json::from_value(list).ok())
            .unwrap_or_default()
    };
    let known = before.map(taints).unwrap_or_default();
    let mut next = taints(after);
    let missing = next
        .iter_mut()
        .filter(|taint| taint.effect == TaintEffect::NoExecute && taint.time_added.is_none());
    let mut is_changed = false;
    for taint in missing {
        let same = |old: &&Taint| {
            (&old.key, &old.value, old.effect) == (&taint.key, &taint.value, taint.effect)
        };
        let since = known.iter().find(same).and_then(|old| old.time_added);
        taint.time_added = Some(since.unwrap_or(now));
        is_changed = true;
    }
    if !is_changed {
        return None;
    }
    let mut object = after.clone();
    object["spec"]["taints"] = serde_json::to_value(next).ok()?;
    Some(object)
}

/// What keeps an object until nothing of it runs is not for others to take off.
fn finalizer_stays(before: &Value, after: &Value, what: &str) -> Result<(), Denial> {
    if has_finalizer(before) && !has_finalizer(after) {
        let message = format!(
            "finalizer {FINALIZER} goes by itself when nothing of the {what} runs; it cannot be \
             taken off"
        );
        return Err(Denial::forbidden(message));
    }
    Ok(())
}

fn has_finalizer(job: &Value) -> bool {
    let finalizers = job
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array);
    finalizers.is_some_and(|list| list.iter().any(|name| name == FINALIZER))
}

fn add_finalizer(job: &mut Value) {
    let Some(metadata) = job.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let finalizers = metadata.entry("finalizers").or_insert(Value::Null);
    match finalizers {
        Value::Array(list) if list.iter().any(|name| name == FINALIZER) => {}
        Value::Array(list) => list.push(json!(FINALIZER)),
        Value::Null => *finalizers = json!([FINALIZER]),
        // Wrong, and said so by the checks.
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
    }
}

fn put<T: DeserializeOwned>(
    table: &mut BTreeMap<String, T>,
    name: &str,
    after: Option<&Value>,
) -> Result<(), Denial> {
    match after {
        None => {
            table.remove(name);
        }
        Some(after) => {
            let object = T::deserialize(after).map_err(|error| Denial {
                reason: StatusReason::Invalid,
                message: error.to_string(),
                causes: Vec::new(),
            })?;
            table.insert(name.to_owned(), object);
        }
    }
    Ok(())
}

fn not_there(field: &str, kind: &str, name: &str) -> String {
    format!("{field}: there is no {kind} {name:?} yet; the job waits until there is one")
}

fn invalid(wrong: Vec<meridian_api::errors::FieldError>) -> Denial {
    Denial {
        reason: StatusReason::Invalid,
        message: String::new(),
        causes: wrong.into_iter().map(field_error).collect(),
    }
}

fn only_the_hub_writes(path: &str) -> Denial {
    let message = "is written by the hub for work that was made in a member cluster: leave it out";
    Denial {
        reason: StatusReason::Invalid,
        message: String::new(),
        causes: vec![FieldError::new(path, FieldReason::Forbidden, message)],
    }
}

fn in_use(message: String) -> Denial {
    let code = FieldError::new("", FieldReason::ErrorCode, ErrorCode::InUse.as_str());
    Denial {
        reason: StatusReason::Conflict,
        message,
        causes: vec![code],
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a mapping of errors")]
fn broken(error: StoreError) -> Denial {
    Denial {
        reason: StatusReason::ServiceUnavailable,
        message: format!("the store could not be read: {error}"),
        causes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::units::UnixMillis;

    use super::*;

    #[test]
    fn a_taint_that_ends_work_keeps_the_time_at_which_it_came() {
        let cluster = |taints: Value| json!({"spec": {"taints": taints}});
        let plain =
            json!([{"key": "k", "effect": "NoExecute"}, {"key": "k", "effect": "NoSchedule"}]);
        let at = |seconds: i64| Time(UnixMillis(seconds * 1000));
        let first = stamped(None, &cluster(plain.clone()), at(10)).expect("it came");
        assert_eq!(
            first["spec"]["taints"][0]["timeAdded"],
            "1970-01-01T00:00:10Z"
        );
        assert!(first["spec"]["taints"][1].get("timeAdded").is_none());
        let again = stamped(Some(&first), &cluster(plain), at(20)).expect("applied again");
        assert_eq!(again, first);
        assert_eq!(stamped(Some(&first), &first, at(30)), None);
        let other = cluster(json!([{"key": "k", "value": "v", "effect": "NoExecute"}]));
        let other = stamped(Some(&first), &other, at(30)).expect("another taint");
        assert_eq!(
            other["spec"]["taints"][0]["timeAdded"],
            "1970-01-01T00:00:30Z"
        );
    }
}
