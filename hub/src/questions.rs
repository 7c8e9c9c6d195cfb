//! Questions to the model: plan, why, queue, capacity, one cluster, and where logs are.
//!
//! Owns the answers, in the words of the wire. Asked of the task that owns the model, so that an
//! answer is of one moment. Changes nothing.

mod fleet;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::GangId;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::status::Blocker;
use meridian_api::reasons::Reason;
use meridian_api::units::MilliGpus;
use meridian_policies::model::Contact;
use meridian_proto::v1;
use tokio::sync::oneshot;

use crate::explanations::{Explained, blocker, headline};
use crate::model::{Job, Model, Situation};
use crate::placement::{PlacedRole, PlacementRecord};
use crate::sessions::LogTarget;

/// Questions waiting for the model. Each is answered in microseconds to milliseconds between
/// rounds; more than this at once is overload, which callers are told.
pub(crate) const QUESTIONS: usize = 256;
/// Most queue entries in one answer; at some 200 bytes each far below a message's limit.
const MAX_ENTRIES: u32 = 5_000;

/// The answer's way back.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// What can be asked.
pub(crate) enum Question {
    /// What would happen to this job?
    Plan(Box<FederatedJob>, Reply<v1::PlanResponse>),
    /// Why does it wait, or where does it run?
    Why(v1::WhyRequest, Reply<v1::WhyResponse>),
    /// Who waits, in which order?
    Queue(v1::QueueRequest, Reply<v1::QueueResponse>),
    /// What is to be known of this cluster?
    Cluster(v1::ClusterRequest, Reply<v1::ClusterResponse>),
    /// Where are the logs of this container?
    Logs(v1::LogsRequest, Reply<LogTarget>),
    /// What is there?
    Capacity(v1::CapacityRequest, Reply<v1::CapacityResponse>),
}

/// Answers; nobody listening any more is no error.
pub(crate) fn answer(
    model: &Model,
    explained: &Explained,
    situation: Situation,
    question: Question,
) {
    match question {
        Question::Plan(job, reply) => drop(reply.send(plan(model, situation, &job))),
        Question::Why(request, reply) => {
            drop(reply.send(why(model, explained, situation, &request)));
        }
        Question::Queue(request, reply) => {
            drop(reply.send(Ok(queue(model, explained, situation, &request))));
        }
        Question::Logs(request, reply) => drop(reply.send(logs(model, situation, request))),
        Question::Capacity(request, reply) => {
            drop(reply.send(Ok(fleet::capacity(model, situation, &request))));
        }
        Question::Cluster(request, reply) => {
            drop(reply.send(fleet::cluster(model, situation, &request)));
        }
    }
}

/// Decides on a snapshot in which the job had been submitted just now.
fn plan(
    model: &Model,
    situation: Situation,
    job: &FederatedJob,
) -> Result<v1::PlanResponse, ApiError> {
    let revision = model.revision().0;
    let (labelled, uid) = model
        .hypothetical(situation, job)
        .map_err(|trouble| ApiError::new(ErrorCode::InvalidObject, trouble.message))?;
    if let Some((_, trouble)) = labelled.troubled.iter().find(|(gang, _)| gang.job == uid) {
        let reason = v1::Reason {
            code: trouble.reason.to_string(),
            message: trouble.message.clone(),
            ..v1::Reason::default()
        };
        return Ok(v1::PlanResponse {
            verdict: v1::Verdict::WillQueue.into(),
            reasons: vec![reason],
            revision,
            ..v1::PlanResponse::default()
        });
    }
    let snapshot = &labelled.snapshot;
    let decided = meridian_policies::decide(snapshot);
    let is_ours = |gang: GangId| gang.job == uid;
    let left = decided
        .unplaced
        .iter()
        .find(|left| is_ours(snapshot.waiting[left.waiting.index()].gang));
    if let Some(left) = left {
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
        let reasons = left
            .reasons
            .iter()
            .map(|cause| reason(&blocker(snapshot, cause)));
        return Ok(v1::PlanResponse {
            verdict: verdict.into(),
            reasons: reasons.collect(),
            revision,
            ..v1::PlanResponse::default()
        });
    }
    let placed = decided
        .placements
        .iter()
        .find(|placed| is_ours(snapshot.waiting[placed.waiting.index()].gang));
    let pool = placed.map(|placed| &snapshot.pools[placed.pool.index()]);
    Ok(v1::PlanResponse {
        verdict: v1::Verdict::StartsNow.into(),
        cluster: pool
            .map(|pool| snapshot.clusters[pool.cluster.index()].name.clone())
            .unwrap_or_default(),
        pool: pool.map(|pool| pool.name.clone()).unwrap_or_default(),
        revision,
        ..v1::PlanResponse::default()
    })
}

fn why(
    model: &Model,
    explained: &Explained,
    situation: Situation,
    request: &v1::WhyRequest,
) -> Result<v1::WhyResponse, ApiError> {
    let job = model
        .job_named(&request.namespace, &request.name)
        .ok_or_else(|| {
            let message = format!("there is no job {}/{}", request.namespace, request.name);
            ApiError::new(ErrorCode::NotFound, message).help("list them: meridian get jobs -A")
        })?;
    let waiting = explained.of_job(job.uid);
    let rows: Vec<_> = model
        .placements_of(job.uid)
        .map(|row| row.record.as_ref())
        .collect();
    let status = crate::status::job_status(job, &rows, situation.now);
    let placement = |row: &&crate::placement::PlacementRecord| v1::GangPlacement {
        index: row.gang.index,
        cluster: row.cluster.clone(),
        pool: row.pool.clone(),
        epoch: row.epoch.0,
        state: fleet::word(row.state).to_owned(),
        milli_gpus: row.gpus.0,
        since_ms: row.started.unwrap_or(row.decided).0,
    };
    let reasons = waiting.map(|(_, blockers)| blockers.iter().map(reason).collect());
    Ok(v1::WhyResponse {
        phase: status.phase.to_string(),
        reasons: reasons.unwrap_or_else(|| unexplained(model, job)),
        position: waiting.map_or(0, |(position, _)| *position),
        waiting: u32::try_from(explained.queue.len()).unwrap_or(u32::MAX),
        placements: rows.iter().map(placement).collect(),
        revision: explained.revision.0,
        age_ms: age(explained, situation),
    })
}

/// A job that waits and that no decision has seen yet.
fn unexplained(model: &Model, job: &Job) -> Vec<v1::Reason> {
    let waits = model.waiting().iter().any(|gang| gang.job == job.uid);
    let pending = || v1::Reason {
        code: Reason::PendingEvaluation.to_string(),
        message: "the next decision looks at it".to_owned(),
        ..v1::Reason::default()
    };
    if waits { vec![pending()] } else { Vec::new() }
}

fn age(explained: &Explained, situation: Situation) -> u64 {
    situation.now.since(explained.decided).0
}

fn queue(
    model: &Model,
    explained: &Explained,
    situation: Situation,
    request: &v1::QueueRequest,
) -> v1::QueueResponse {
    let limit = if request.limit == 0 {
        MAX_ENTRIES
    } else {
        request.limit.min(MAX_ENTRIES)
    };
    let entry = |gang: &GangId| {
        let job = model.job(gang.job)?;
        if !request.tenant.is_empty() && job.tenant() != request.tenant {
            return None;
        }
        let (position, blockers) = explained.of.get(gang)?;
        let gpus = job.gang(gang.index).map(|row| {
            row.shape.roles.iter().fold(MilliGpus::ZERO, |sum, role| {
                let all = role.per_pod.gpus.checked_mul(u64::from(role.max));
                sum.saturating_add(all.unwrap_or(MilliGpus(u64::MAX)))
            })
        });
        Some(v1::QueueEntry {
            position: *position,
            namespace: job.key.namespace.clone().unwrap_or_default(),
            name: job.key.name.clone(),
            index: gang.index,
            tenant: job.tenant().to_owned(),
            workload_class: job.object.spec.workload_class.clone(),
            milli_gpus: gpus.unwrap_or_default().0,
            blocker: headline(blockers).map(reason),
            submitted_ms: job.submitted().0,
        })
    };
    v1::QueueResponse {
        entries: explained
            .queue
            .iter()
            .filter_map(entry)
            .take(limit as usize)
            .collect(),
        total: u32::try_from(explained.queue.len()).unwrap_or(u32::MAX),
        age_ms: age(explained, situation),
    }
}

/// Which cluster has the pods whose logs are asked for, and whether it can be asked.
fn logs(
    model: &Model,
    situation: Situation,
    request: v1::LogsRequest,
) -> Result<LogTarget, ApiError> {
    let v1::LogsRequest {
        namespace,
        name,
        gang: index,
        query,
    } = request;
    let job = model.job_named(&namespace, &name).ok_or_else(|| {
        let message = format!("there is no job {namespace}/{name}");
        ApiError::new(ErrorCode::NotFound, message).help("list them: meridian get jobs -A")
    })?;
    let what = format!("gang {index} of {namespace}/{name}");
    let wrong = |message: String| ApiError::new(ErrorCode::InvalidObject, message);
    if index >= job.gang_count() {
        let last = job.gang_count().saturating_sub(1);
        return Err(wrong(format!(
            "there is no {what}: its gangs are 0 to {last}"
        )));
    }
    let gang = GangId {
        job: job.uid,
        index,
    };
    let Some(row) = model.placement(gang) else {
        let nothing = |message: String| ApiError::new(ErrorCode::NoLogs, message);
        return Err(if job.progress.is_over(index) {
            nothing(format!("{what} has ended: its logs went with its pods"))
                .help("what must outlive a job belongs into a log store of the cluster")
        } else {
            nothing(format!("{what} waits for a place: it has no pods"))
                .help(format!("see why: meridian why {name} -n {namespace}"))
        });
    };
    let record = row.record.as_ref();
    let mut query = query.unwrap_or_default();
    query.role = queried_role(record, &query).map_err(|why| wrong(format!("{what} {why}")))?;
    let cluster = model.fleet.clusters.get(&record.cluster);
    let heard = cluster.map(|cluster| cluster.contact(situation.boot, situation.terms));
    match heard {
        Some(Contact::Ready | Contact::Suspect) => Ok(LogTarget {
            cluster: record.cluster.clone(),
            gang,
            epoch: record.epoch,
            query,
        }),
        Some(Contact::Unreachable | Contact::Lost) | None => {
            let silence = cluster.map_or(0, |cluster| cluster.silence(situation.boot).0 / 1000);
            let name = &record.cluster;
            let message = format!("{what} is in cluster {name}, not heard for {silence} s");
            let help = format!("see how it is heard: meridian cluster describe {name}");
            Err(ApiError::new(ErrorCode::ClusterUnreachable, message).help(help))
        }
    }
}

/// The role that a query is about, by name; an error says what of it the gang has not.
fn queried_role(record: &PlacementRecord, query: &v1::LogQuery) -> Result<String, String> {
    let named = |role: &&PlacedRole| query.role.is_empty() || role.name == query.role;
    let Some(role) = record.roles.iter().find(named) else {
        let names: Vec<&str> = record.roles.iter().map(|role| role.name.as_str()).collect();
        let (role, names) = (&query.role, names.join(", "));
        return Err(format!("has no role {role:?}: it has {names}"));
    };
    if query.rank >= role.pods {
        let (rank, last) = (query.rank, role.pods.saturating_sub(1));
        let name = &role.name;
        return Err(format!("has no rank {rank} in role {name}: 0 to {last}"));
    }
    Ok(role.name.clone())
}

fn reason(blocker: &Blocker) -> v1::Reason {
    v1::Reason {
        code: blocker.reason.to_string(),
        message: blocker.message.clone(),
        cluster: blocker.cluster.clone().unwrap_or_default(),
        flavor: blocker.flavor.clone().unwrap_or_default(),
        has_numbers: blocker.need.is_some(),
        need: blocker.need.map_or(0, |amount| amount.0.0),
        free: blocker.free.map_or(0, |amount| amount.0.0),
        limit: blocker.limit.map_or(0, |amount| amount.0.0),
    }
}
