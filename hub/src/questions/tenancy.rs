//! Questions about tenants: the tree as it stands, and what another tree of quotas would do.
//!
//! Owns these answers, in the words of the wire. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::errors::{ApiError, ErrorCode, FieldError, FieldReason};
use meridian_api::kinds::{self, Tenant};
use meridian_api::reasons::Reason;
use meridian_api::tree;
use meridian_api::units::MilliGpus;
use meridian_policies::accounts::{Account, AccountRow, accounts};
use meridian_policies::model::{self, Held, LedgerRow, Measure, Plan, Role, Snapshot, TenantIx};
use meridian_proto::v1;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Reply, Work};
use crate::model::{Catalog, Model, Situation, Versioned};

/// Most gangs that an answer names of each sort: a person reads tens.
const MAX_NAMED: usize = 100;

/// The tree as it stands.
pub(super) fn tree(
    model: &Model,
    situation: Situation,
    request: v1::TenantsRequest,
    reply: Reply<v1::TenantsResponse>,
) -> Option<Work> {
    let asked = request.tenant;
    if !asked.is_empty() && !model.catalog.tenants.contains_key(&asked) {
        let error = ApiError::new(ErrorCode::NotFound, format!("there is no Tenant {asked:?}"));
        drop(reply.send(Err(error.help("list them: meridian get tenants"))));
        return None;
    }
    let labelled = model.snapshot(situation);
    let prices = model.catalog.prices();
    let currency = prices.map(|book| book.currency.clone()).unwrap_or_default();
    Some(Box::new(move || {
        let snapshot = &labelled.snapshot;
        let accounts = accounts(snapshot);
        let mut tenants = Vec::with_capacity(accounts.len());
        let all = (0..).map(TenantIx).zip(&snapshot.tenants);
        for (ix, tenant) in all {
            let is_top = if asked.is_empty() {
                tenant.parent.is_none()
            } else {
                tenant.name == asked
            };
            if is_top {
                push(snapshot, &accounts, ix, 0, &mut tenants);
            }
        }
        for budget in tenants.iter_mut().filter_map(|node| node.budget.as_mut()) {
            budget.currency.clone_from(&currency);
        }
        drop(reply.send(Ok(v1::TenantsResponse { tenants })));
    }))
}

/// A tenant, then everything below it.
fn push(
    snapshot: &Snapshot,
    accounts: &[Account],
    ix: TenantIx,
    depth: u32,
    nodes: &mut Vec<v1::TenantNode>,
) {
    if depth as usize > tree::MAX_TREE_DEPTH {
        return;
    }
    let (tenant, account) = (&snapshot.tenants[ix.index()], &accounts[ix.index()]);
    let parent = tenant.parent.map(|ix| &snapshot.tenants[ix.index()].name);
    nodes.push(v1::TenantNode {
        name: tenant.name.clone(),
        parent: parent.cloned().unwrap_or_default(),
        depth,
        rows: account.rows.iter().map(|row| used(snapshot, row)).collect(),
        share_thousandths: account.share,
        weight: tenant.weight,
        running_jobs: account.running_jobs,
        waiting_gangs: account.waiting,
        budget: budget(tenant),
    });
    let all = (0..).map(TenantIx).zip(&snapshot.tenants);
    for (below, _) in all.filter(|(_, tenant)| tenant.parent == Some(ix)) {
        push(snapshot, accounts, below, depth + 1, nodes);
    }
}

/// What of a tenant's budget is spent; its currency is left to the caller.
pub(super) fn budget(tenant: &model::Tenant) -> Option<v1::BudgetUse> {
    let budget = tenant.budget.as_ref()?;
    Some(v1::BudgetUse {
        currency: String::new(),
        spent_micros: budget.spent.0,
        limit_micros: budget.limit.0,
        on_exhausted: format!("{:?}", budget.on_exhausted),
        tenant: tenant.name.clone(),
    })
}

fn used(snapshot: &Snapshot, row: &AccountRow) -> v1::TenantUse {
    let (flavor, region) = match row.measure {
        Measure::Gpus { flavor, region } => (flavor, region),
        Measure::Cpu | Measure::Memory => (None, None),
    };
    let flavor = flavor.map(|ix| snapshot.flavors[ix.index()].name.clone());
    let region = region.map(|ix| snapshot.regions[ix.index()].clone());
    v1::TenantUse {
        flavor: flavor.unwrap_or_default(),
        region: region.unwrap_or_default(),
        nominal: row.nominal.0,
        has_limit: row.limit.is_some(),
        limit: row.limit.unwrap_or_default().0,
        used: row.used.0,
        borrowed: row.borrowed.0,
        lent: row.lent.0,
    }
}

/// What these tenants and quotas would do.
pub(super) fn fit(
    model: &Model,
    situation: Situation,
    request: &v1::FitQuotaRequest,
    reply: Reply<v1::FitQuotaResponse>,
) -> Option<Work> {
    let (catalog, mut causes) = match changed(&model.catalog, &request.documents) {
        Ok(changed) => changed,
        Err(error) => {
            drop(reply.send(Err(error)));
            return None;
        }
    };
    if causes.is_empty() {
        let tenants: Vec<Tenant> = values(&catalog.tenants);
        causes = tree::check(&tenants, &values(&catalog.quotas));
    }
    let revision = model.revision().0;
    if !causes.is_empty() {
        let cause = |cause: &FieldError| v1::FieldCause {
            field: cause.path.clone(),
            reason: cause.reason.as_str().to_owned(),
            message: cause.message.clone(),
        };
        drop(reply.send(Ok(v1::FitQuotaResponse {
            causes: causes.iter().map(cause).collect(),
            revision,
            ..v1::FitQuotaResponse::default()
        })));
        return None;
    }
    let before = model.snapshot(situation).snapshot;
    let after = model.snapshot_under(&catalog, situation).snapshot;
    Some(Box::new(move || {
        let answer = v1::FitQuotaResponse {
            revision,
            ..compared(&before, &after)
        };
        drop(reply.send(Ok(answer)));
    }))
}

fn values<T: Clone>(table: &BTreeMap<String, Versioned<T>>) -> Vec<T> {
    table.values().map(|row| row.value.clone()).collect()
}

/// The catalog with these documents in it, and what is wrong with each by itself.
fn changed(catalog: &Catalog, documents: &[u8]) -> Result<(Catalog, Vec<FieldError>), ApiError> {
    let wrong = |message: String| ApiError::new(ErrorCode::InvalidObject, message);
    let documents: Vec<Value> = serde_json::from_slice(documents)
        .map_err(|error| wrong(format!("the documents are no JSON array: {error}")))?;
    let mut catalog = catalog.clone();
    let mut causes = Vec::new();
    for document in documents {
        let kind = document["kind"].as_str().unwrap_or_default();
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let (kind, name) = (kind.to_owned(), name.to_owned());
        let Some(info) = kinds::by_kind(&kind) else {
            return Err(wrong(format!("there is no kind {kind:?}")));
        };
        let found = info.check(&document);
        let path = |cause: FieldError| FieldError {
            path: format!("{}/{name} {}", info.plural, cause.path),
            ..cause
        };
        causes.extend(found.into_iter().map(path));
        let read = match kind.as_str() {
            "Tenant" => put(&mut catalog.tenants, &name, document),
            "TenantQuota" => put(&mut catalog.quotas, &name, document),
            _ => {
                let message = format!("{kind} {name} is no Tenant and no TenantQuota");
                return Err(wrong(message).help("leave other kinds out of the file"));
            }
        };
        if let Err(error) = read {
            let path = format!("{}/{name}", info.plural);
            let unread = causes.iter().all(|cause| !cause.path.starts_with(&path));
            if unread {
                causes.push(FieldError::new(path, FieldReason::Invalid, error));
            }
        }
    }
    Ok((catalog, causes))
}

fn put<T: DeserializeOwned>(
    table: &mut BTreeMap<String, Versioned<T>>,
    name: &str,
    document: Value,
) -> Result<(), String> {
    let value = serde_json::from_value(document).map_err(|error| error.to_string())?;
    let revision = table.get(name).map(|row| row.revision).unwrap_or_default();
    table.insert(name.to_owned(), Versioned { value, revision });
    Ok(())
}

/// What the other tree changes for what runs and for what waits.
fn compared(before: &Snapshot, after: &Snapshot) -> v1::FitQuotaResponse {
    let (plan_before, plan_after) = (
        meridian_policies::decide(before),
        meridian_policies::decide(after),
    );
    let started = |snapshot: &Snapshot, plan: &Plan| -> BTreeSet<String> {
        let names = plan.placements.iter();
        names
            .map(|row| name(snapshot, row.waiting.index()))
            .collect()
    };
    let never = |snapshot: &Snapshot, plan: &Plan| -> BTreeSet<String> {
        let never = plan.unplaced.iter().filter(|left| {
            let mut reasons = left.reasons.iter();
            reasons.any(|cause| cause.reason == Reason::ExceedsQuota)
        });
        never
            .map(|left| name(snapshot, left.waiting.index()))
            .collect()
    };
    let new = |after: BTreeSet<String>, before: &BTreeSet<String>| -> Vec<String> {
        let new = after.into_iter().filter(|name| !before.contains(name));
        new.take(MAX_NAMED).collect()
    };
    v1::FitQuotaResponse {
        shifts: shifts((before, &plan_before), (after, &plan_after)),
        would_start: new(started(after, &plan_after), &started(before, &plan_before)),
        would_never_start: new(never(after, &plan_after), &never(before, &plan_before)),
        ..v1::FitQuotaResponse::default()
    }
}

fn name(snapshot: &Snapshot, waiting: usize) -> String {
    let gang = &snapshot.waiting[waiting];
    match gang.gang.index {
        0 => gang.job.clone(),
        index => format!("{}[{index}]", gang.job),
    }
}

/// GPUs of what runs, by tenant: its own, borrowed, and of that what nobody lends.
fn books(snapshot: &Snapshot, plan: &Plan) -> BTreeMap<String, [MilliGpus; 3]> {
    let mut rows: Vec<&[LedgerRow]> = snapshot.held.iter().map(|held| &held.rows[..]).collect();
    for moved in &plan.regraded {
        rows[moved.held.index()] = &moved.rows;
    }
    let mut sums: BTreeMap<String, [MilliGpus; 3]> = BTreeMap::new();
    for (Held { tenant, .. }, rows) in snapshot.held.iter().zip(rows) {
        let name = &snapshot.tenants[tenant.index()].name;
        let sums = sums.entry(name.clone()).or_default();
        for row in rows {
            let mut add = |at: usize| sums[at] = sums[at].saturating_add(row.gpus);
            match row.role {
                Role::Own => add(0),
                Role::Borrowed => {
                    add(1);
                    if row.lender.is_none() {
                        add(2);
                    }
                }
            }
        }
    }
    sums
}

fn shifts(before: (&Snapshot, &Plan), after: (&Snapshot, &Plan)) -> Vec<v1::TenantShift> {
    let (before, after) = (books(before.0, before.1), books(after.0, after.1));
    let moved = after.into_iter().filter_map(|(tenant, after)| {
        let before = before.get(&tenant).copied().unwrap_or_default();
        (before != after).then(|| v1::TenantShift {
            own_before: before[0].0,
            own_after: after[0].0,
            borrowed_before: before[1].0,
            borrowed_after: after[1].0,
            over_after: after[2].0,
            tenant,
        })
    });
    moved.collect()
}

#[cfg(test)]
mod tests {
    use meridian_policies::lifecycle::State;
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;
    use crate::fixture_tests::{FIRST, Fixture};

    fn quota(tenant: &str, nominal: u64, borrowing: u64) -> Value {
        json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "TenantQuota",
            "metadata": {"name": tenant},
            "spec": {
                "tenant": tenant,
                "resources": [{
                    "flavor": "h100-80gb", "nominal": nominal, "borrowingLimit": borrowing,
                }],
            },
        })
    }

    /// Tenant `nlp` below `org`, with 8 of its 8 GPUs in use.
    fn fixture() -> Fixture {
        let mut fixture = Fixture::new(4);
        fixture.object("tenants/-/org", "Tenant", &json!({}));
        fixture.object("tenants/-/nlp", "Tenant", &json!({"parent": "org"}));
        for (name, nominal) in [("org", 32), ("nlp", 8)] {
            let spec = quota(name, nominal, 8)["spec"].clone();
            fixture.object(&format!("tenantquotas/-/{name}"), "TenantQuota", &spec);
        }
        fixture.job(&json!({"copies": 2}), &json!({}));
        fixture.place(0, FIRST, State::Running);
        fixture
    }

    fn answered<T>(ask: impl FnOnce(Reply<T>) -> Option<Work>) -> Result<T, ApiError> {
        let (reply, mut answer) = oneshot::channel();
        if let Some(work) = ask(reply) {
            work();
        }
        answer.try_recv().expect("it was answered")
    }

    fn fitted(documents: &[Value]) -> Result<v1::FitQuotaResponse, ApiError> {
        let fixture = fixture();
        let request = v1::FitQuotaRequest {
            documents: Value::Array(documents.to_vec()).to_string().into(),
        };
        answered(|reply| fit(&fixture.model, Fixture::situation(), &request, reply))
    }

    #[test]
    fn the_tree_comes_from_the_roots_with_what_is_used() {
        let fixture = fixture();
        let of = |tenant: &str| {
            let request = v1::TenantsRequest {
                tenant: tenant.to_owned(),
            };
            answered(|reply| tree(&fixture.model, Fixture::situation(), request, reply))
        };
        let all = of("").expect("a tree").tenants;
        let rows: Vec<_> = all
            .iter()
            .map(|node| {
                (
                    node.name.as_str(),
                    node.depth,
                    node.rows[0].nominal,
                    node.rows[0].used,
                )
            })
            .collect();
        assert_eq!(rows, [("org", 0, 32_000, 8_000), ("nlp", 1, 8_000, 8_000)]);
        assert_eq!((all[1].running_jobs, all[1].waiting_gangs), (1, 1));
        assert_eq!(all[1].rows[0].limit, 16_000);
        assert_eq!(of("nlp").expect("a tenant").tenants.len(), 1);
        assert_eq!(of("cv").expect_err("not there").code, ErrorCode::NotFound);
    }

    #[test]
    fn a_cut_moves_running_work_to_borrowed_quota() {
        let cut = fitted(&[quota("nlp", 0, 8)]).expect("an answer");
        assert_eq!(cut.causes, []);
        let shift = &cut.shifts[0];
        assert_eq!(shift.tenant, "nlp");
        assert_eq!((shift.own_after, shift.borrowed_after), (0, 8_000));
        assert_eq!(shift.over_after, 0, "org has enough");
        assert_eq!(cut.would_start, Vec::<String>::new());
        let same = fitted(&[quota("nlp", 16, 0)]).expect("an answer");
        assert_eq!(same.shifts, []);
        let tight = fitted(&[quota("nlp", 4, 0)]).expect("an answer");
        assert_eq!(tight.would_never_start, ["nlp/train[1]"]);
    }

    #[test]
    fn a_tree_that_contradicts_itself_is_refused_and_other_kinds_are_too() {
        let over = fitted(&[quota("nlp", 64, 0)]).expect("an answer");
        assert!(over.causes[0].field.contains("tenantquotas/"), "{over:?}");
        let circle = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "org"}, "spec": {"parent": "nlp"},
        });
        assert!(!fitted(&[circle]).expect("an answer").causes.is_empty());
        let job = json!({"kind": "FederatedJob", "metadata": {"name": "x"}});
        assert_eq!(
            fitted(&[job]).expect_err("no quota").code,
            ErrorCode::InvalidObject
        );
    }
}
