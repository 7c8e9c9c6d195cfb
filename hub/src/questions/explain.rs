//! Questions about one job: what would happen to it, why it waits, what would help it.
//!
//! Owns these answers, in the words of the wire. What is costly is decided on a snapshot of its
//! own, away from the task that owns the model. Changes nothing.

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::price_book::PriceBookSpec;
use meridian_api::reasons::Reason;
use meridian_policies::counterfactual::{self, Effect, Remedy};
use meridian_policies::model::{
    Cause, Estimate, Placed, Plan, Shared, Snapshot, Unplaced, WaitingIx,
};
use meridian_proto::v1;

use super::{Reply, Work, age, bill, fleet, reason};
use crate::explanations::{Explained, blocker};
use crate::model::{Job, Labelled, Model, Situation, Trouble};
use crate::placement::PlacementRecord;

/// Decides on a snapshot in which the job had been submitted just now.
pub(super) fn plan(
    model: &Model,
    situation: Situation,
    job: &FederatedJob,
    reply: Reply<v1::PlanResponse>,
) -> Option<Work> {
    let revision = model.revision().0;
    let (labelled, uid) = match model.hypothetical(situation, job) {
        Ok(made) => made,
        Err(trouble) => {
            let error = ApiError::new(ErrorCode::InvalidObject, trouble.message);
            drop(reply.send(Err(error)));
            return None;
        }
    };
    let troubled = labelled.troubled.iter();
    if let Some((_, trouble)) = troubled.clone().find(|(gang, _)| gang.job == uid) {
        drop(reply.send(Ok(in_trouble(trouble, revision))));
        return None;
    }
    let prices = model.catalog.prices().cloned();
    Some(Box::new(move || {
        let snapshot = &labelled.snapshot;
        let answer = v1::PlanResponse {
            revision,
            budgets: bill::budgets(snapshot, uid, prices.as_ref()),
            ..decided(snapshot, uid, prices.as_ref())
        };
        drop(reply.send(Ok(answer)));
    }))
}

fn in_trouble(trouble: &Trouble, revision: u64) -> v1::PlanResponse {
    let reason = v1::Reason {
        code: trouble.reason.to_string(),
        message: trouble.message.clone(),
        ..v1::Reason::default()
    };
    v1::PlanResponse {
        verdict: v1::Verdict::WillQueue.into(),
        reasons: vec![reason],
        revision,
        ..v1::PlanResponse::default()
    }
}

fn decided(snapshot: &Snapshot, uid: Uid, prices: Option<&PriceBookSpec>) -> v1::PlanResponse {
    let plan = meridian_policies::decide(snapshot);
    let is_ours = |ix: WaitingIx| snapshot.waiting[ix.index()].gang.job == uid;
    let mut left = plan.unplaced.iter().zip(1_u32..);
    if let Some((left, position)) = left.find(|(left, _)| is_ours(left.waiting)) {
        return v1::PlanResponse {
            position,
            waiting: u32::try_from(plan.unplaced.len()).unwrap_or(u32::MAX),
            ..queued(snapshot, &plan, left)
        };
    }
    let placed: Vec<&Placed> = plan
        .placements
        .iter()
        .filter(|placed| is_ours(placed.waiting))
        .collect();
    let Some(first) = placed.first() else {
        return v1::PlanResponse::default();
    };
    let pool = &snapshot.pools[first.pool.index()];
    v1::PlanResponse {
        verdict: v1::Verdict::StartsNow.into(),
        cluster: snapshot.clusters[pool.cluster.index()].name.clone(),
        pool: pool.name.clone(),
        milli_gpus: first.gpus.0,
        cost: prices.and_then(|prices| bill::at_most(snapshot, &placed, prices)),
        bill: bill::expected(snapshot, &placed, prices),
        ..v1::PlanResponse::default()
    }
}

fn queued(snapshot: &Snapshot, plan: &Plan, left: &Unplaced) -> v1::PlanResponse {
    let never = left.reasons.iter().any(|cause| {
        matches!(
            cause.reason,
            Reason::NeverPlaceable | Reason::ExceedsQuota | Reason::Denied
        )
    });
    let verdict = if never {
        v1::Verdict::Never
    } else {
        v1::Verdict::WillQueue
    };
    let gang = &snapshot.waiting[left.waiting.index()];
    let reasons = left.reasons.iter();
    v1::PlanResponse {
        verdict: verdict.into(),
        reasons: reasons
            .map(|cause| reason(&blocker(snapshot, cause)))
            .collect(),
        remedies: remedies(snapshot, plan, gang.gang, &left.reasons),
        start: left.start.map(start),
        milli_gpus: gang.shape.gpus(&gang.shape.least()).0,
        ..v1::PlanResponse::default()
    }
}

pub(super) fn start(estimate: Estimate) -> v1::Start {
    v1::Start {
        earliest_ms: estimate.earliest.0,
        latest_ms: estimate.latest.map_or(0, |latest| latest.0),
    }
}

/// What would admit the gang that the plan left, tried in the world after it.
fn remedies(
    snapshot: &Snapshot,
    plan: &Plan,
    gang: GangId,
    causes: &[Shared<Cause>],
) -> Vec<v1::Remedy> {
    let Some(world) = counterfactual::after(snapshot, plan) else {
        return Vec::new();
    };
    let own = (0..).map(WaitingIx).zip(&world.waiting);
    let Some((ix, _)) = own.into_iter().find(|(_, row)| row.gang == gang) else {
        return Vec::new();
    };
    let found = counterfactual::remedies(&world, ix, causes);
    let words = |remedy: &Remedy| {
        let pool = &world.pools[remedy.effect.pool().index()];
        v1::Remedy {
            change: counterfactual::kind(&remedy.change).to_owned(),
            message: counterfactual::describe(&world, ix, remedy),
            starts_now: matches!(remedy.effect, Effect::StartsNow(_)),
            cluster: world.clusters[pool.cluster.index()].name.clone(),
            pool: pool.name.clone(),
            milli_gpus: remedy.gpus.0,
        }
    };
    found.iter().map(words).collect()
}

/// Why a job waits, or where it runs; with what would help it, if it waits.
pub(super) fn why(
    model: &Model,
    explained: &Explained,
    situation: Situation,
    request: &v1::WhyRequest,
    reply: Reply<v1::WhyResponse>,
) -> Option<Work> {
    let Some(job) = model.job_named(&request.namespace, &request.name) else {
        let message = format!("there is no job {}/{}", request.namespace, request.name);
        let error = ApiError::new(ErrorCode::NotFound, message);
        drop(reply.send(Err(error.help("list them: meridian get jobs -A"))));
        return None;
    };
    let (uid, answer) = (job.uid, known(model, explained, situation, job));
    if !model.waiting().has_job(uid) {
        drop(reply.send(Ok(answer)));
        return None;
    }
    let labelled = model.snapshot(situation);
    Some(Box::new(move || {
        let answer = v1::WhyResponse {
            remedies: helping(&labelled, uid),
            ..answer
        };
        drop(reply.send(Ok(answer)));
    }))
}

/// What would help the first gang of the job that the next round would leave.
fn helping(labelled: &Labelled, uid: Uid) -> Vec<v1::Remedy> {
    let snapshot = &labelled.snapshot;
    if !snapshot.waiting.iter().any(|gang| gang.gang.job == uid) {
        return Vec::new();
    }
    let plan = meridian_policies::decide(snapshot);
    let gang = |left: &Unplaced| snapshot.waiting[left.waiting.index()].gang;
    let left = plan.unplaced.iter().find(|left| gang(left).job == uid);
    left.map(|left| remedies(snapshot, &plan, gang(left), &left.reasons))
        .unwrap_or_default()
}

/// What the model and the last decision say of a job.
fn known(model: &Model, explained: &Explained, situation: Situation, job: &Job) -> v1::WhyResponse {
    let waiting = explained.of_job(job.uid);
    let rows: Vec<_> = model
        .placements_of(job.uid)
        .map(|row| row.record.as_ref())
        .collect();
    let status = crate::status::job_status(job, &rows, situation.now);
    let placement = |row: &&PlacementRecord| v1::GangPlacement {
        index: row.gang.index,
        cluster: row.cluster.to_string(),
        pool: row.pool.to_string(),
        epoch: row.epoch.0,
        state: fleet::word(row.state).to_owned(),
        milli_gpus: row.gpus.0,
        since_ms: row.started.unwrap_or(row.decided).0,
        message: model.words_of(row).to_owned(),
    };
    let reasons = waiting.map(|(_, blockers)| blockers.iter().map(reason).collect());
    v1::WhyResponse {
        phase: status.phase.to_string(),
        reasons: reasons.unwrap_or_else(|| unexplained(model, job)),
        position: waiting.map_or(0, |(position, _)| position),
        waiting: u32::try_from(explained.len()).unwrap_or(u32::MAX),
        placements: rows.iter().map(placement).collect(),
        revision: explained.revision.0,
        age_ms: age(explained, situation),
        start: explained.start_of_job(job.uid).map(|known| v1::Start {
            earliest_ms: known.earliest.0.0,
            latest_ms: known.latest.map_or(0, |latest| latest.0.0),
        }),
        late: super::late(model, explained, situation, job),
        ..v1::WhyResponse::default()
    }
}

/// A job that waits and that no decision has seen yet.
fn unexplained(model: &Model, job: &Job) -> Vec<v1::Reason> {
    let waits = model.waiting().has_job(job.uid);
    let pending = || v1::Reason {
        code: Reason::PendingEvaluation.to_string(),
        message: "the next decision looks at it".to_owned(),
        ..v1::Reason::default()
    };
    if waits { vec![pending()] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use meridian_policies::lifecycle::State;
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;
    use crate::fixture_tests::{FIRST, Fixture, JOB};

    fn answered<T>(ask: impl FnOnce(Reply<T>) -> Option<Work>) -> Result<T, ApiError> {
        let (reply, mut answer) = oneshot::channel();
        if let Some(work) = ask(reply) {
            work();
        }
        answer.try_recv().expect("it was answered")
    }

    fn planned(fixture: &Fixture, extra: &serde_json::Value) -> v1::PlanResponse {
        let mut spec = json!({
            "workloadClass": "batch", "tenant": "nlp", "maxRuntime": "2h",
            "roles": [{"name": "worker", "replicas": 2, "gpus": 8, "template": {"a": 1}}],
        });
        let extra = extra.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(extra);
        let job: FederatedJob = serde_json::from_value(json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {"name": "asked", "namespace": "nlp"}, "spec": spec,
        }))
        .expect("a job");
        let situation = Fixture::situation();
        answered(|reply| plan(&fixture.model, situation, &job, reply)).expect("a plan")
    }

    #[test]
    fn a_plan_that_starts_says_where_and_what_it_costs() {
        let mut fixture = Fixture::new(2);
        let prices = json!({
            "currency": "EUR", "flavors": [{"flavor": "h100-80gb", "gpuHour": "2.50"}],
        });
        fixture.object("pricebooks/-/book", "PriceBook", &prices);
        let plan = planned(&fixture, &json!({}));
        assert_eq!(plan.verdict(), v1::Verdict::StartsNow);
        assert_eq!((plan.cluster.as_str(), plan.milli_gpus), ("euw-a", 16_000));
        let cost = plan.cost.expect("it says how long it runs");
        // 16 GPUs for two hours.
        assert_eq!((cost.micros, cost.currency.as_str()), (80_000_000, "EUR"));
        // Who may run for two hours is expected to run for one.
        let bill = plan.bill.expect("its cards have a price");
        assert_eq!(
            (bill.gpus_micros, bill.total_micros),
            (40_000_000, 40_000_000)
        );
        assert_eq!((bill.milli_gpus, bill.time_ms), (16_000, 3_600_000));
        assert_eq!(plan.budgets, []);
        let endless = planned(&fixture, &json!({"maxRuntime": null}));
        assert_eq!(endless.cost, None);
    }

    #[test]
    fn a_plan_says_what_is_left_of_every_budget_it_is_counted_against() {
        let mut fixture = Fixture::new(2);
        let budget = |monthly: &str| json!({"currency": "EUR", "monthly": monthly});
        let org = json!({"budget": budget("100.00")});
        fixture.object("tenants/-/org", "Tenant", &org);
        let nlp = json!({"parent": "org", "budget": budget("60.00")});
        fixture.object("tenants/-/nlp", "Tenant", &nlp);
        let unpriced = planned(&fixture, &json!({}));
        assert_eq!(unpriced.bill, None, "nobody says what a card costs");
        let prices = json!({
            "currency": "EUR", "flavors": [{"flavor": "h100-80gb", "gpuHour": "2.50"}],
        });
        fixture.object("pricebooks/-/book", "PriceBook", &prices);
        let plan = planned(&fixture, &json!({}));
        let rows = plan
            .budgets
            .iter()
            .map(|row| (row.tenant.as_str(), row.limit_micros));
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows, [("nlp", 60_000_000), ("org", 100_000_000)]);
        assert!(plan.budgets.iter().all(|row| row.currency == "EUR"));
    }

    #[test]
    fn a_plan_that_queues_says_what_would_help() {
        let mut fixture = Fixture::new(2);
        fixture.job(&json!({}), &json!({}));
        fixture.place(0, FIRST, State::Running);
        let plan = planned(&fixture, &json!({}));
        assert_eq!(plan.verdict(), v1::Verdict::WillQueue);
        assert_eq!((plan.position, plan.waiting), (1, 1));
        let messages: Vec<&str> = plan.remedies.iter().map(|it| it.message.as_str()).collect();
        assert_eq!(
            messages,
            ["run with 1 pod of worker instead of 2: starts now on euw-a/h100"]
        );
    }

    #[test]
    fn a_waiting_job_hears_what_would_help_and_a_running_one_where_it_is() {
        let mut fixture = Fixture::new(1);
        fixture.job(&json!({"suspend": true}), &json!({}));
        let request = v1::WhyRequest {
            namespace: "nlp".to_owned(),
            name: "train".to_owned(),
        };
        let explained = Explained::default();
        let ask = |fixture: &Fixture| {
            let situation = Fixture::situation();
            answered(|reply| why(&fixture.model, &explained, situation, &request, reply))
        };
        let waiting = ask(&fixture).expect("it is there");
        assert_eq!(waiting.phase, "Pending");
        assert_eq!(waiting.remedies[0].change, "Resume");
        fixture.job(&json!({}), &json!({}));
        fixture.place(0, FIRST, State::Running);
        let running = ask(&fixture).expect("it is there");
        assert_eq!((running.placements.len(), running.remedies.len()), (1, 0));
        assert!(fixture.model.job(JOB).is_some());
    }
}
