//! Submissions: the gRPC way in for jobs.
//!
//! Owns how many are on their way at once, idempotency keys, and the namespace of a job that names
//! none. Each is a create like any other, alone in success or failure and acknowledged after its
//! commit; the store's batcher makes few durable writes of many.

use meridian_api::canonical;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_apiserver::{
    ApiStatus, DryRun, FieldValidation, Idempotency, Kind, Request, Resources, WriteOptions,
    Written,
};
use meridian_store::keys;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Submissions on their way at once: a burst of a thousand clients with some in flight each. The
/// next one waits in its call.
const AT_ONCE: usize = 4096;
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
    /// Hash of the request, wanted with a key: another request under that key is an error.
    pub(crate) fingerprint: String,
    /// Everything but storing.
    pub(crate) dry_run: DryRun,
}

/// The way in.
#[derive(Clone)]
pub(crate) struct Submitter {
    resources: Resources,
    kind: Arc<Kind>,
    room: Arc<Semaphore>,
}

impl Submitter {
    /// A way into `resources` for jobs, whose kind is `kind`.
    #[must_use]
    pub(crate) fn new(resources: Resources, kind: Arc<Kind>) -> Self {
        Self {
            resources,
            kind,
            room: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Stores one job; durable when it returns. A caller that has gone away may find its job
    /// stored all the same.
    pub(crate) async fn submit(&self, submission: Submission) -> Result<Written, SubmitError> {
        let room = self.room.acquire().await;
        let _room = room.map_err(|_| SubmitError::Stopping)?;
        let namespace = namespace(&submission.job).to_owned();
        let options = options(&namespace, &submission);
        let Submission { request, job, .. } = submission;
        let created = self
            .resources
            .create(&request, &self.kind, Some(&namespace), job, &options);
        Ok(created.await?)
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
