//! From a plan to writes: each placement whole, under everything that it read.
//!
//! Owns the record that a decision makes and the compares that it stands on. Pure. A conflict
//! drops the decision; nothing is patched.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::{GangId, Revision, Term};
use meridian_api::kinds::federated_job::{
    Checkpoint, CostAttribution, FederatedJobSpec, SuccessRule,
};
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Placed, Regraded, RoleShape, Snapshot};
use meridian_runtime::telemetry;
use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Op, Operation};

use crate::fence::put;
use crate::model::{GangRow, Job, Model, TemplateHash};
use crate::placement::{Chosen, PlacedCheckpoint, PlacedRole, PlacementRecord, stored_rows};
use crate::settle::{Change, Subject, to_json};
use crate::status::job_status;

/// The write of one placement; `None` when its job is gone meanwhile.
#[must_use]
pub(crate) fn placement_change(
    model: &Model,
    snapshot: &Snapshot,
    placed: &Placed,
    term: Term,
) -> Option<Change> {
    let gang = snapshot.waiting[placed.waiting.index()].gang;
    let job = model.job(gang.job)?;
    let record = record(job, snapshot, placed, term)?;
    let (placement, progress) = (keys::placement(gang), keys::progress(job.uid));
    let spec = job.key(Part::Spec);
    let mut compares = vec![
        Compare::ModRevision(keys::policy_head(), snapshot.policy_head),
        Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
        Compare::ModRevision(spec, snapshot.waiting[placed.waiting.index()].spec_revision),
        Compare::ModRevision(progress, job.progress_revision()),
        Compare::ModRevision(placement.clone(), Revision(0)),
    ];
    let mut rows: Vec<&PlacementRecord> = model
        .placements_of(gang.job)
        .map(|row| row.record.as_ref())
        .collect();
    rows.push(&record);
    rows.sort_by_key(|row| row.gang);
    let status = job_status(job, &rows, snapshot.now);
    let mut ops = vec![
        put(placement, record.to_json()),
        put(job.key(Part::Status), to_json(&status)),
        put(keys::ledger_head(), gang.to_string()),
    ];
    if let Some(hold) = model.hold(gang) {
        // The hold has done its work, wherever the gang goes.
        let key = keys::hold(gang);
        compares.push(Compare::ModRevision(key.clone(), hold.revision));
        ops.push(Op::Delete { key });
    }
    let place = format!("{}/{}", record.cluster, record.pool);
    let gpus = record.gpus.whole();
    let told = format!(
        "gang {} goes to {place} with {gpus} GPUs, epoch {}",
        gang.index, record.epoch.0
    );
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitDecision,
        compares,
        ops,
        told: Some(("Placed", told)),
    })
}

/// The write of a placement's ledger rows; `None` when it is gone or another meanwhile.
#[must_use]
pub(crate) fn regrade_change(
    model: &Model,
    snapshot: &Snapshot,
    regraded: &Regraded,
) -> Option<Change> {
    let held = &snapshot.held[regraded.held.index()];
    let stored = model.placement(held.gang)?;
    let same = stored.record.epoch == held.epoch && stored.record.gpus == held.resources.gpus;
    let record = same.then(|| PlacementRecord {
        ledger: stored_rows(snapshot, &regraded.rows).into(),
        ..stored.record.as_ref().clone()
    })?;
    let key = keys::placement(held.gang);
    Some(Change {
        subject: Subject::Gang(held.gang),
        why: Operation::CommitLedger,
        compares: vec![
            Compare::ModRevision(keys::policy_head(), snapshot.policy_head),
            Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
            Compare::ModRevision(key.clone(), stored.revision),
        ],
        ops: vec![put(key, record.to_json())],
        told: None,
    })
}

fn record(job: &Job, snapshot: &Snapshot, placed: &Placed, term: Term) -> Option<PlacementRecord> {
    let waiting = &snapshot.waiting[placed.waiting.index()];
    let pool = &snapshot.pools[placed.pool.index()];
    let gang: GangId = waiting.gang;
    let row = job.gang(gang.index)?;
    let roles = row.shape.roles.iter().zip(&row.templates).zip(&placed.pods);
    let flavor = snapshot.flavors[pool.flavor.index()].name.as_str();
    let cluster = &snapshot.clusters[pool.cluster.index()];
    let region = snapshot.regions.get(cluster.region.index());
    let place = job
        .object()
        .override_at(&cluster.name, region.map_or("", String::as_str));
    let role = |((role, template), pods): ((&RoleShape, &TemplateHash), &u32)| PlacedRole {
        name: role.name.clone(),
        pods: *pods,
        per_pod: role.per_pod,
        template: template.on(flavor, place).to_owned(),
        required: role.required.clone(),
        preferred: role.preferred.clone(),
        slice: role.slice.clone(),
        min: if role.min < role.max { role.min } else { 0 },
        step: if role.min < role.max { role.step } else { 0 },
        full: None,
    };
    let class = &snapshot.classes[waiting.class.index()];
    let tenant = &snapshot.tenants[waiting.tenant.index()];
    Some(PlacementRecord {
        gang,
        namespace: job.namespace().into(),
        job: job.name().into(),
        tenant: tenant.name.as_str().into(),
        class: class.name.as_str().into(),
        priority: class.priority,
        cluster: cluster.name.as_str().into(),
        pool: pool.name.as_str().into(),
        flavor: flavor.into(),
        epoch: waiting.next_epoch,
        term,
        state: State::Starting,
        roles: Arc::new(roles.map(role).collect()),
        gpus: placed.gpus,
        ledger: stored_rows(snapshot, &placed.rows).into(),
        grace: row.grace,
        max_runtime: waiting.max_runtime,
        place_timeout: row.place_timeout,
        decided: snapshot.now,
        preempted: None,
        started: None,
        traceparent: trace(job).map(Into::into),
        labels: cost_labels(&job.spec().cost_attribution).into(),
        checkpoint: job.spec().checkpoint.as_ref().map(checkpoint).map(Arc::new),
        leader: leader(job.spec(), row),
        dependencies: job.spec().dependencies.clone().map(Box::new),
        carried: job.form.carried.clone(),
        origin: job.spec().origin.clone().map(Box::new),
        chosen: Some(Box::new(chosen(snapshot, placed))),
    })
}

fn chosen(snapshot: &Snapshot, placed: &Placed) -> Chosen {
    let waiting = &snapshot.waiting[placed.waiting.index()];
    let choice = snapshot.choices.get(waiting.choice.index());
    let group = choice.and_then(|choice| choice.groups.get(placed.score.region_order as usize));
    let group = group.map(|group| group.name.clone());
    Chosen {
        group: group.filter(|name| !name.is_empty()),
        bill: placed.score.bill,
    }
}

fn checkpoint(save: &Checkpoint) -> PlacedCheckpoint {
    PlacedCheckpoint {
        uri: save.uri.clone(),
        resume_env: save.resume_env.clone(),
        signal: save.on_preempt.as_ref().map(|how| how.signal.clone()),
    }
}

/// The role whose rank 0 decides about the gang. A leader that is in another gang leaves this one
/// to all of its pods.
fn leader(spec: &FederatedJobSpec, row: &GangRow) -> Option<Box<str>> {
    let policy = spec.success_policy.as_ref()?;
    let mut names = row.shape.roles.iter().map(|role| &role.name);
    let leader = match (policy.rule, &policy.role) {
        (SuccessRule::All, _) => None,
        (SuccessRule::Leader, None) => names.next(),
        (SuccessRule::Leader, Some(role)) => names.find(|name| *name == role),
    };
    leader.map(|name| name.as_str().into())
}

/// The decision as a span of the job's own trace; what is carried on is its context.
fn trace(job: &Job) -> Option<String> {
    let submitted = job.traceparent()?;
    let span = tracing::info_span!(parent: None, "place gang", job = %job.full_name());
    telemetry::set_parent(&span, submitted);
    Some(telemetry::traceparent(&span).unwrap_or_else(|| submitted.to_owned()))
}

fn cost_labels(cost: &CostAttribution) -> BTreeMap<String, String> {
    let all = [
        ("meridian.dev/team", &cost.team),
        ("meridian.dev/project", &cost.project),
        ("meridian.dev/model", &cost.model),
        ("meridian.dev/cost-center", &cost.cost_center),
    ];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    given
        .map(|(label, value)| (label.to_owned(), value.clone()))
        .collect()
}
