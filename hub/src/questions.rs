//! Questions to the model: plan, why, queue, capacity, tenants, one cluster, and where logs are.
//!
//! Owns the answers, in the words of the wire. Asked of the task that owns the model, so that an
//! answer is of one moment. What takes a decision is handed back as work on a snapshot of that
//! moment, so that no question holds the model up. Changes nothing.

mod bill;
mod explain;
mod fleet;
mod tenancy;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::GangId;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::status::Blocker;
use meridian_api::units::MilliGpus;
use meridian_policies::model::Contact;
use meridian_proto::v1;
use tokio::sync::oneshot;

use crate::deadlines::Outlook;
use crate::explanations::{Explained, headline};
use crate::model::{Job, Model, Situation};
use crate::placement::{PlacedRole, PlacementRecord};
use crate::sessions::LogTarget;

/// Questions waiting for the model. Each is answered in microseconds to milliseconds between
/// rounds; more than this at once is overload, which callers are told.
pub(crate) const QUESTIONS: usize = 256;
/// Most queue entries in one answer; at some 200 bytes each far below a message's limit.
const MAX_ENTRIES: u32 = 5_000;

/// The costly rest of an answer, for a thread of its own.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

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
    /// How does the tenant tree stand?
    Tenants(v1::TenantsRequest, Reply<v1::TenantsResponse>),
    /// What would these quotas do?
    FitQuota(v1::FitQuotaRequest, Reply<v1::FitQuotaResponse>),
}

/// Answers, or returns what is left to do for it; nobody listening any more is no error.
pub(crate) fn answer(
    model: &Model,
    explained: &Explained,
    situation: Situation,
    question: Question,
) -> Option<Work> {
    match question {
        Question::Plan(job, reply) => return explain::plan(model, situation, &job, reply),
        Question::Why(request, reply) => {
            return explain::why(model, explained, situation, &request, reply);
        }
        Question::Tenants(request, reply) => {
            return tenancy::tree(model, situation, request, reply);
        }
        Question::FitQuota(request, reply) => {
            return tenancy::fit(model, situation, &request, reply);
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
    None
}

fn age(explained: &Explained, situation: Situation) -> u64 {
    situation.now.since(explained.decided).0
}

/// What is said of a job that is expected to be late.
fn late(model: &Model, explained: &Explained, situation: Situation, job: &Job) -> Option<v1::Late> {
    Outlook::of(model, explained, job, situation.now)?.late()
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
    let entry = |(position, (gang, blockers)): (u32, (GangId, &[Blocker]))| {
        let job = model.job(gang.job)?;
        if !request.tenant.is_empty() && job.tenant() != request.tenant {
            return None;
        }
        let gpus = job.gang(gang.index).map(|row| {
            row.shape.roles.iter().fold(MilliGpus::ZERO, |sum, role| {
                let all = role.per_pod.gpus.checked_mul(u64::from(role.max));
                sum.saturating_add(all.unwrap_or(MilliGpus(u64::MAX)))
            })
        });
        Some(v1::QueueEntry {
            position,
            namespace: job.namespace().to_owned(),
            name: job.name().to_owned(),
            index: gang.index,
            tenant: job.tenant().to_owned(),
            workload_class: job.spec().workload_class.clone(),
            milli_gpus: gpus.unwrap_or_default().0,
            blocker: headline(blockers).map(reason),
            submitted_ms: job.submitted().0,
            start: explained.start(gang).map(explain::start),
            late: late(model, explained, situation, job),
        })
    };
    v1::QueueResponse {
        entries: (1..)
            .zip(explained.queue())
            .filter_map(entry)
            .take(limit as usize)
            .collect(),
        total: u32::try_from(explained.len()).unwrap_or(u32::MAX),
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
        return Err(if job.progress().is_over(index) {
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
    let cluster = model.fleet.clusters.get(&*record.cluster);
    let heard = cluster.map(|cluster| cluster.contact(situation.boot, situation.terms));
    match heard {
        Some(Contact::Ready | Contact::Suspect) => Ok(LogTarget {
            cluster: record.cluster.to_string(),
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
