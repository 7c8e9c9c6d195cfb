//! Submissions: many jobs, few durable writes.
//!
//! Owns the queue between the gRPC calls and the write path: whatever waits when a writer is free
//! goes into the store together, each job alone in success or failure, acknowledged after its
//! commit. Never holds a submission back to wait for company.

use meridian_api::canonical;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_apiserver::{
    ApiStatus, DryRun, FieldValidation, Idempotency, Kind, Request, Resources, WriteOptions,
    Written,
};
use meridian_runtime::Tasks;
use meridian_store::keys;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Submissions waiting for a writer: a burst of a thousand clients with some in flight each. The
/// next one waits in its call.
const WAITING: usize = 4096;
/// Submissions taken together; the store's batcher cuts them into transactions within its limits.
const TOGETHER: usize = 64;
/// Writers at once: one forms a batch while others are at the disk.
const WRITERS: usize = 4;
/// Longest idempotency key, in bytes.
const MAX_KEY: usize = 128;

/// One job on its way in.
pub(crate) struct Submission {
    /// Who asks.
    pub(crate) request: Request,
    /// The job.
    pub(crate) job: Value,
    /// Sent again, it answers as the first time.
    pub(crate) idempotency_key: String,
    /// Hash of the request: another one under the same key is an error.
    pub(crate) fingerprint: String,
    /// Everything but storing.
    pub(crate) dry_run: DryRun,
}

type Answer = oneshot::Sender<Result<Written, ApiStatus>>;

/// The way in.
#[derive(Clone)]
pub(crate) struct Submitter(mpsc::Sender<(Submission, Answer)>);

impl Submitter {
    /// Starts the writers in `tasks`.
    #[must_use]
    pub(crate) fn start(resources: &Resources, kind: &Arc<Kind>, tasks: &Tasks) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING);
        let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
        for writer in 0..WRITERS {
            let (resources, kind) = (resources.clone(), Arc::clone(kind));
            let (waiting, stop) = (Arc::clone(&waiting), tasks.cancelled());
            tasks.spawn(format!("submit-{writer}"), async move {
                loop {
                    let batch = tokio::select! {
                        batch = next_batch(&waiting) => batch,
                        () = stop.cancelled() => return Ok::<(), std::convert::Infallible>(()),
                    };
                    write(&resources, &kind, batch).await;
                }
            });
        }
        Self(queue)
    }

    /// Stores one job; durable when it returns.
    pub(crate) async fn submit(&self, submission: Submission) -> Result<Written, SubmitError> {
        let (answer, answered) = oneshot::channel();
        self.0
            .send((submission, answer))
            .await
            .map_err(|_| SubmitError::Stopping)?;
        Ok(answered.await.map_err(|_| SubmitError::Stopping)??)
    }
}

/// Why a job was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    /// It is refused, or the store failed.
    #[error("refused: {}", .0.message)]
    Refused(#[from] ApiStatus),
    /// The hub is going down: nothing was promised.
    #[error("the hub is stopping")]
    Stopping,
}

/// Waits for one submission, then takes whatever else is there. One writer at a time forms a
/// batch; the lock is that turn.
async fn next_batch(
    waiting: &tokio::sync::Mutex<mpsc::Receiver<(Submission, Answer)>>,
) -> Vec<(Submission, Answer)> {
    let mut waiting = waiting.lock().await;
    let mut batch = Vec::with_capacity(TOGETHER);
    if waiting.recv_many(&mut batch, TOGETHER).await == 0 {
        // Every sender is gone: the hub is stopping, and this writer is told so elsewhere.
        std::future::pending::<()>().await;
    }
    batch
}

async fn write(resources: &Resources, kind: &Kind, batch: Vec<(Submission, Answer)>) {
    let mut groups: BTreeMap<(String, String), Vec<(Submission, Answer)>> = BTreeMap::new();
    for (submission, answer) in batch {
        let namespace = namespace(&submission.job).to_owned();
        let actor = submission.request.actor.name.clone();
        groups
            .entry((namespace, actor))
            .or_default()
            .push((submission, answer));
    }
    for ((namespace, _), group) in groups {
        let (mut items, mut answers) = (Vec::new(), Vec::new());
        let mut request = Request::default();
        for (submission, answer) in group {
            let options = options(&namespace, &submission);
            request = submission.request;
            items.push((submission.job, options));
            answers.push(answer);
        }
        let written = resources
            .create_many(&request, kind, Some(&namespace), items)
            .await;
        for (answer, written) in answers.into_iter().zip(written) {
            // A caller that has gone away gets no answer; its job is stored all the same.
            let _ = answer.send(written);
        }
    }
}

fn options(namespace: &str, submission: &Submission) -> WriteOptions {
    let key = &submission.idempotency_key;
    let idempotency = (!key.is_empty()).then(|| Idempotency {
        key: keys::idempotency(namespace, &canonical::hex(&Sha256::digest(key).into())),
        fingerprint: submission.fingerprint.clone(),
    });
    WriteOptions {
        dry_run: submission.dry_run,
        field_validation: FieldValidation::Strict,
        field_manager: "submit".to_owned(),
        idempotency,
        ..WriteOptions::default()
    }
}

/// The job's namespace; `default` when it names none.
#[must_use]
pub(crate) fn namespace(job: &Value) -> &str {
    job.pointer("/metadata/namespace")
        .and_then(Value::as_str)
        .unwrap_or("default")
}

/// Refuses a key that is too long.
pub(crate) fn check_key(key: &str) -> Result<(), ApiError> {
    if key.len() <= MAX_KEY {
        return Ok(());
    }
    let message = format!("idempotency key of {} bytes, at most {MAX_KEY}", key.len());
    Err(ApiError::new(ErrorCode::TooLarge, message).help("use a UUID or a hash"))
}
