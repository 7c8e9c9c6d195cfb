//! Whoever submits through faults: the same key again until the job is acknowledged.
//!
//! Owns the patience of a client that never gives up and never submits twice. Knows no fault.

use meridian_api::ids::Uid;
use meridian_api::units::Millis;
use meridian_client::{Client, DryRun, Submission};
use meridian_runtime::Clock;
use serde_json::Value;

use super::LONG;

/// Between two tries while no hub answers: below the time in which a hub starts.
const TRY_EVERY: Millis = Millis(50);
/// One try may take this long; a paused hub never answers.
const TRY_LIMIT: Millis = Millis::seconds(3);

/// A client of several hubs.
#[derive(Clone)]
pub struct Submitter {
    clients: Vec<Client>,
    clock: Clock,
}

impl Submitter {
    pub(super) fn new(clients: Vec<Client>, clock: Clock) -> Self {
        Self { clients, clock }
    }

    /// Submits each until it is acknowledged, one after the other, and returns what was
    /// acknowledged.
    ///
    /// # Panics
    /// When one is refused, or is not acknowledged in time.
    pub async fn acknowledged(&self, jobs: Vec<Value>) -> Vec<Uid> {
        let mut acknowledged = Vec::new();
        for job in jobs {
            let name = job["metadata"]["name"].to_string();
            let submitted = self
                .clock
                .timeout(LONG, self.until_acknowledged(&job))
                .await;
            acknowledged.push(submitted.unwrap_or_else(|late| panic!("job {name}: {late}")));
        }
        acknowledged
    }

    async fn until_acknowledged(&self, job: &Value) -> Uid {
        loop {
            for client in &self.clients {
                let submission = Submission {
                    job: job.clone(),
                    idempotency_key: format!("proof-{}", job["metadata"]["name"]),
                    dry_run: DryRun::No,
                    plan_token: String::new(),
                };
                let answer = self
                    .clock
                    .timeout(TRY_LIMIT, client.submit(submission))
                    .await;
                match answer {
                    Ok(Ok(stored)) => return stored.uid.parse().expect("the hub's own UID"),
                    // A refusal is for good; all else may be a fault, and is asked again.
                    Ok(Err(error)) => assert!(
                        error.failure().is_none_or(|failure| {
                            failure.kind == meridian_client::FailureKind::Unavailable
                        }),
                        "refused: {error}"
                    ),
                    Err(_) => {}
                }
            }
            self.clock.sleep(TRY_EVERY).await;
        }
    }
}
