//! A person at a small federation: makes, changes and deletes documents, and waits for what they
//! say.
//!
//! Owns what tests of one promise share beside the federation itself. Never looks inside a hub.

use meridian_agent::simulated::{RUNTIME, Truth};
use meridian_api::kinds;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::meta::Spec;
use meridian_api::units::Millis;
use meridian_client::{Client, DryRun, Form, ListOptions, Resource};
use meridian_runtime::Clock;
use serde_json::{Value, json};

use super::{Fleet, FleetError, FleetOptions, object};

/// More than anything takes that such a test waits for, in simulated time.
const WITHIN: Millis = Millis::seconds(24 * 3600);
/// Between two looks.
const LOOK_EVERY: Millis = Millis::seconds(1);

/// A federation, and whoever works with it.
pub struct Person {
    /// Time of everybody.
    pub clock: Clock,
    /// The federation.
    pub fleet: Fleet,
    /// The way to it.
    pub client: Client,
}

impl Person {
    /// Starts a federation.
    pub async fn at(options: FleetOptions) -> Result<Self, FleetError> {
        let clock = options.clock.clone();
        let fleet = Fleet::start(options).await?;
        let client = fleet.client(0)?;
        Ok(Self {
            clock,
            fleet,
            client,
        })
    }

    /// The hub dies, and the next one leads.
    pub async fn next_hub(&mut self) -> Result<(), FleetError> {
        self.fleet.crash_hub(0).await?;
        self.fleet.start_hub(0).await?;
        self.fleet.led().await?;
        self.client = self.fleet.client(0)?;
        Ok(())
    }

    /// Makes an object; an error is what the person reads.
    pub async fn make(&self, object: &Value) -> Result<Value, String> {
        self.create(object, DryRun::No).await
    }

    async fn create(&self, object: &Value, dry_run: DryRun) -> Result<Value, String> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let kind = text("/kind").and_then(kinds::by_kind);
        let kind = kind.ok_or_else(|| format!("no kind: {object}"))?;
        let resource = Resource::meridian(kind.kind, kind.plural, kind.namespaced);
        let namespace = text("/metadata/namespace").unwrap_or_default();
        let made = self.client.create(&resource, namespace, object, dry_run);
        let made = made.await.map(|written| written.object);
        made.map_err(|error| format!("{error:?}"))
    }

    /// Changes the spec of an object.
    pub async fn edit<S: Spec>(
        &self,
        namespace: &str,
        name: &str,
        spec: Value,
    ) -> Result<(), String> {
        let (kind, patch) = (Resource::of::<S>(), json!({"spec": spec}));
        let patched = self
            .client
            .merge_patch(&kind, namespace, name, &patch, DryRun::No);
        let patched = patched.await.map(drop);
        patched.map_err(|error| format!("{error:?}"))
    }

    /// Deletes an object.
    pub async fn delete<S: Spec>(&self, namespace: &str, name: &str) -> Result<(), String> {
        let kind = Resource::of::<S>();
        let deleted = self.client.delete(&kind, namespace, name, None, DryRun::No);
        let deleted = deleted.await.map(drop);
        deleted.map_err(|error| format!("{error:?}"))
    }

    /// An object as it is; null when it is not there.
    pub async fn get<S: Spec>(&self, namespace: &str, name: &str) -> Value {
        let kind = Resource::of::<S>();
        let found = self.client.get(&kind, namespace, name, Form::Objects).await;
        found.unwrap_or_default()
    }

    /// A job as it is.
    pub async fn job(&self, namespace: &str, name: &str) -> Value {
        self.get::<FederatedJobSpec>(namespace, name).await
    }

    /// What was told of an object: reason and message of each event.
    pub async fn told(&self, namespace: &str, name: &str) -> Vec<(String, String)> {
        let options = ListOptions::default();
        let events = self
            .client
            .list(&Resource::EVENTS, Some(namespace), &options);
        let events = events.await.map(|list| list.items).unwrap_or_default();
        let about = events.iter();
        let about = about.filter(|event| event["involvedObject"]["name"] == name);
        let word = |event: &Value, field: &str| {
            let word = event[field].as_str();
            word.unwrap_or_default().to_owned()
        };
        about
            .map(|event| (word(event, "reason"), word(event, "message")))
            .collect()
    }

    /// A number that the hub counts.
    ///
    /// # Panics
    /// When it counts nothing of that name without labels.
    #[must_use]
    pub fn counted(&self, name: &str) -> u64 {
        let metrics = self.fleet.metrics(0).expect("it has a hub");
        let text = metrics.encode().expect("numbers are text");
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let count = line.and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// How often user code of any pod has started, or ended, by the clusters' own word.
    #[must_use]
    pub fn truths(&self, what: Truth) -> usize {
        let histories = self.fleet.clusters();
        let histories = histories.flat_map(|(.., cluster)| cluster.history(self.clock.wall()));
        histories.filter(|event| event.what == what).count()
    }

    /// Waits until `look` sees something.
    ///
    /// # Panics
    /// When it never does; `what` says what was waited for.
    pub async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let reached = async {
            loop {
                if let Some(seen) = look().await {
                    return seen;
                }
                self.clock.sleep(LOOK_EVERY).await;
            }
        };
        let seen = self.clock.timeout(WITHIN, reached).await;
        seen.unwrap_or_else(|_| panic!("never: {what}"))
    }

    /// Waits until the object is as told, and returns it.
    ///
    /// # Panics
    /// When it never is; the object as it is then is shown.
    pub async fn until_is<S: Spec>(
        &self,
        (namespace, name): (&str, &str),
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let reached = async {
            loop {
                let object = self.get::<S>(namespace, name).await;
                if is(&object) {
                    return object;
                }
                self.clock.sleep(LOOK_EVERY).await;
            }
        };
        if let Ok(object) = self.clock.timeout(WITHIN, reached).await {
            return object;
        }
        panic!("never so: {:#}", self.get::<S>(namespace, name).await)
    }

    /// Makes the job, and waits until it runs.
    ///
    /// # Panics
    /// When it is refused, or never runs.
    pub async fn runs(&self, job: &Value) -> Value {
        self.make(job).await.expect("let in");
        let text = |path| job.pointer(path).and_then(Value::as_str);
        let tenant = text("/metadata/namespace").unwrap_or_default();
        let name = text("/metadata/name").expect("it has a name");
        self.until_job(tenant, name, "Running").await
    }

    /// Makes an object as soon as it is let in.
    pub async fn until_made(&self, object: &Value) {
        self.until("let in", async || self.make(object).await.ok())
            .await;
    }

    /// Waits until the object would be refused with these words; says all of them.
    pub async fn until_refused(&self, object: &Value, words: &str) -> String {
        self.until(words, async || {
            let refused = self.create(object, DryRun::Server).await.err();
            refused.filter(|refused| refused.contains(words))
        })
        .await
    }

    /// Waits until the job says `phase`; one that is pending, until it says why.
    pub async fn until_job(&self, namespace: &str, name: &str, phase: &str) -> Value {
        self.until_is::<FederatedJobSpec>((namespace, name), |job| {
            let status = &job["status"];
            let reason = &status["blockers"][0]["reason"];
            let is_told = reason.is_string() && reason != "PendingEvaluation";
            status["phase"] == phase && (phase != "Pending" || is_told)
        })
        .await
    }
}

/// A job of one role: so many pods of so many cards each, which run so long.
#[must_use]
pub fn job(tenant: &str, name: &str, (pods, gpus): (u32, u64), runtime: &str) -> Value {
    let template = json!({
        "metadata": {"annotations": {RUNTIME: runtime}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    });
    let mut job = object(
        "FederatedJob",
        name,
        json!({
            "workloadClass": "batch",
            "roles": [{"name": "worker", "replicas": pods, "gpus": gpus, "template": template}],
        }),
    );
    job["metadata"]["namespace"] = json!(tenant);
    job
}

/// A service of replicas of one pod with so many cards each.
#[must_use]
pub fn service(tenant: &str, name: &str, (replicas, gpus): (u32, u64)) -> Value {
    let template = json!({"spec": {"containers": [{"name": "main", "image": "x"}]}});
    let mut service = object(
        "FederatedService",
        name,
        json!({
            "workloadClass": "batch", "replicas": replicas,
            "roles": [{"name": "server", "replicas": 1, "gpus": gpus, "template": template}],
        }),
    );
    service["metadata"]["namespace"] = json!(tenant);
    service
}

/// The job with what its simulated pods do: an annotation of each.
#[must_use]
pub fn doing(mut job: Value, annotation: &str, how: &str) -> Value {
    let roles = job["spec"]["roles"].as_array_mut().into_iter().flatten();
    for role in roles {
        role["template"]["metadata"]["annotations"][annotation] = json!(how);
    }
    job
}

/// The job or service with these fields in its spec, too.
#[must_use]
pub fn with(mut job: Value, fields: &Value) -> Value {
    if let (Some(spec), Some(fields)) = (job["spec"].as_object_mut(), fields.as_object()) {
        spec.extend(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
    job
}
