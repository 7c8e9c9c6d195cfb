//! Clients: they submit with idempotency keys and try again, delete, suspend, and change the fleet.
//!
//! Owns what they do and when, drawn from the seed. They tell the judge what they were promised.
//! Never look behind the hub's answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{
    Client, ClientError, ClientOptions, DryRun, FailureKind, Resource, Submission,
};
use meridian_policies::check::Violation;
use meridian_runtime::{Clock, Random};
use serde_json::{Value, json};

use super::jobs::{self, NAMESPACE};
use super::network::Turmoil;
use super::world::{self, CLUSTERS, Note, OPERATOR, USERS_PORT, World};

/// A client waits this long for an answer, then tries another hub: long enough for a store that
/// answers late, short enough to try often in two minutes.
const ANSWER_WITHIN: Millis = Millis(4_000);
/// The last submit and the last order of a person come this long before the calm, so that what is
/// to be explained at the end has been there for a while.
const STOP_BEFORE_END: Millis = Millis::seconds(35);
/// Reasons are asked for this long before the end.
const ASK_BEFORE_END: Millis = Millis::seconds(8);

/// A client of all hubs.
struct Caller {
    world: Arc<World>,
    name: String,
    clock: Clock,
    random: Random,
    hubs: Vec<Client>,
}

impl Caller {
    fn new(world: Arc<World>, name: String) -> Result<Self, ClientError> {
        let (clock, random) = (world::host_clock(), world.random_for(&name, 0));
        let client = |hub: usize| {
            Client::new(ClientOptions {
                server: format!("http://{}:{USERS_PORT}", world::hub_name(hub)),
                timeout: ANSWER_WITHIN,
                network: Arc::new(Turmoil),
                clock: clock.clone(),
                random: random.clone(),
            })
        };
        let hubs = (0..world.hubs.len()).map(client);
        Ok(Self {
            hubs: hubs.collect::<Result<_, _>>()?,
            world,
            name,
            clock,
            random,
        })
    }

    fn any_hub(&self) -> (usize, &Client) {
        let hub = usize::try_from(self.random.below(self.hubs.len() as u64)).unwrap_or(0);
        (hub, &self.hubs[hub])
    }

    async fn pause(&self, least: u64, most: u64) {
        let span = least + self.random.below(most - least + 1);
        self.clock.sleep(Millis(span)).await;
    }

    fn log(&self, text: &str) {
        let line = format!("{} {text}", self.name);
        self.world.log.line(self.clock.wall(), &line);
    }

    fn broken(&self, invariant: &'static str, message: String) {
        let violation = Violation { invariant, message };
        self.world.notes.push(Note::Broken(violation));
    }

    fn has_time(&self) -> bool {
        let last = self
            .world
            .end()
            .0
            .saturating_sub_unsigned(STOP_BEFORE_END.0);
        self.clock.wall().0 < last
    }

    async fn until_ready(&self) {
        while !self.world.ready.load(Ordering::Relaxed) {
            self.clock.sleep(Millis(100)).await;
        }
    }

    /// Submits until a hub has said yes; `None` when time is over.
    async fn submit(&self, key: &str, job: &Value) -> Option<(String, String)> {
        loop {
            let (hub, client) = self.any_hub();
            match client.submit(submission(key, job)).await {
                Ok(stored) => {
                    let (uid, again) = (stored.uid, stored.replayed);
                    self.log(&format!("{key} is {uid} by hub-{hub}, replayed {again}"));
                    let (key, known) = (key.to_owned(), uid.clone());
                    self.world
                        .notes
                        .push(Note::Acknowledged { key, uid: known });
                    return Some((uid, stored.name));
                }
                Err(error) => {
                    self.log(&format!("{key} not stored by hub-{hub}: {error}"));
                    self.judge_refusal(key, &error);
                }
            }
            if self.clock.wall() >= self.world.end() {
                return None;
            }
            self.pause(100, 1_500).await;
        }
    }

    /// The first body of a key is never refused for a reason of its own.
    fn judge_refusal(&self, key: &str, error: &ClientError) {
        let lasting = [FailureKind::AlreadyExists, FailureKind::Invalid];
        let used = error.to_string().contains("was used for another request");
        if used || lasting.into_iter().any(|kind| error.is(kind)) {
            self.broken(
                "S8",
                format!("the first body of key {key} is refused: {error}"),
            );
        }
    }

    /// Uses a key again: with the same body it answers as before, with another it is refused.
    async fn use_again(&self, key: &str, job: &Value, uid: &str) {
        let (_, client) = self.any_hub();
        match self.random.below(6) {
            0 => {
                if let Ok(stored) = client.submit(submission(key, job)).await {
                    let (key, uid) = (key.to_owned(), stored.uid);
                    self.world.notes.push(Note::Acknowledged { key, uid });
                }
            }
            1 => match client.submit(submission(key, &jobs::another(job))).await {
                Ok(stored) => self.broken(
                    "S8",
                    format!("another body under {key} of {uid} made {}", stored.uid),
                ),
                Err(error) => self.log(&format!("another body under {key}: {error}")),
            },
            _ => {}
        }
    }

    /// Asks for a deletion until a hub has said yes.
    async fn delete(&self, uid: &str, name: &str) {
        self.world.job_goes(uid);
        self.world.notes.push(Note::AskedToDelete {
            uid: uid.to_owned(),
        });
        let resource = Resource::of::<FederatedJobSpec>();
        for _ in 0..20 {
            let (hub, client) = self.any_hub();
            let asked = client.delete(&resource, NAMESPACE, name, Some(uid), DryRun::No);
            match asked.await {
                Ok(_) => return self.log(&format!("deletes {name} by hub-{hub}")),
                Err(error) if error.is(FailureKind::NotFound) => return,
                Err(error) => self.log(&format!("cannot delete {name} by hub-{hub}: {error}")),
            }
            self.pause(100, 1_500).await;
        }
    }

    /// Merges a patch until a hub has said yes or that there is nothing to patch.
    async fn patch(&self, plural: &str, name: &str, patch: Value) {
        let Some(resource) = resource(plural) else {
            return;
        };
        for _ in 0..20 {
            let (hub, client) = self.any_hub();
            let asked = client.merge_patch(&resource, NAMESPACE, name, &patch, DryRun::No);
            match asked.await {
                Ok(_) => {
                    return self.log(&format!("patched {plural} {name} by hub-{hub}: {patch}"));
                }
                Err(error) if error.is(FailureKind::NotFound) => return,
                Err(error) => self.log(&format!("cannot patch {name} by hub-{hub}: {error}")),
            }
            self.pause(100, 1_500).await;
        }
    }
}

fn submission(key: &str, job: &Value) -> Submission {
    Submission {
        job: job.clone(),
        idempotency_key: key.to_owned(),
        dry_run: DryRun::No,
        plan_token: String::new(),
    }
}

fn resource(plural: &str) -> Option<Resource> {
    let (kind, plural, namespaced) = match plural {
        "workloadclasses" => ("WorkloadClass", "workloadclasses", false),
        "tenants" => ("Tenant", "tenants", false),
        "tenantquotas" => ("TenantQuota", "tenantquotas", false),
        "regions" => ("Region", "regions", false),
        "memberclusters" => ("MemberCluster", "memberclusters", false),
        "federatedjobs" => ("FederatedJob", "federatedjobs", true),
        _ => return None,
    };
    Some(Resource::meridian(kind, plural, namespaced))
}

/// Submits jobs, uses keys again, and deletes some.
pub(crate) async fn submitter(world: Arc<World>, index: usize) -> turmoil::Result {
    let caller = Caller::new(world, world::submitter_name(index))?;
    caller.until_ready().await;
    for number in 0_u32.. {
        caller.pause(200, 2_200).await;
        if !caller.has_time() {
            break;
        }
        let key = format!("{}-{number}", caller.name);
        let job = jobs::draw(&caller.random, &key);
        let Some((uid, name)) = caller.submit(&key, &job).await else {
            break;
        };
        caller.world.job_is_known(&uid, &name);
        caller.use_again(&key, &job, &uid).await;
        if caller.random.below(6) == 0 {
            caller.pause(0, 4_000).await;
            caller.delete(&uid, &name).await;
        }
    }
    std::future::pending().await
}

/// Declares the fleet, turns on it, puts it right, and asks why what waits does.
pub(crate) async fn operator(world: Arc<World>) -> turmoil::Result {
    let caller = Caller::new(world, OPERATOR.to_owned())?;
    for (plural, object) in jobs::fleet() {
        declare(&caller, plural, &object).await;
    }
    caller.log("the fleet is declared");
    caller.world.ready.store(true, Ordering::Relaxed);
    while caller.has_time() {
        caller.pause(1_500, 6_000).await;
        turn(&caller).await;
    }
    for cluster in CLUSTERS {
        let open = json!({"spec": {"cordoned": false}});
        caller.patch("memberclusters", cluster, open).await;
    }
    set_quota(&caller, jobs::QUOTAS[0]).await;
    for (_, name) in caller.world.known_jobs() {
        let resume = json!({"spec": {"suspend": false}});
        caller.patch("federatedjobs", &name, resume).await;
    }
    let ask = caller
        .world
        .end()
        .0
        .saturating_sub_unsigned(ASK_BEFORE_END.0);
    let left = u64::try_from(ask - caller.clock.wall().0).unwrap_or(0);
    caller.clock.sleep(Millis(left)).await;
    for (uid, name) in caller.world.known_jobs() {
        explain(&caller, &uid, &name).await;
    }
    std::future::pending().await
}

async fn declare(caller: &Caller, plural: &str, object: &Value) {
    let Some(resource) = resource(plural) else {
        return;
    };
    loop {
        let (_, client) = caller.any_hub();
        let made = client.create(&resource, NAMESPACE, object, DryRun::No);
        match made.await {
            Ok(_) => return,
            Err(error) if error.is(FailureKind::AlreadyExists) => return,
            Err(error) => caller.log(&format!("cannot declare {plural}: {error}")),
        }
        caller.pause(50, 300).await;
    }
}

/// One thing that a person may do to a fleet.
async fn turn(caller: &Caller) {
    let cluster = CLUSTERS[usize::try_from(caller.random.below(3)).unwrap_or(0)];
    match caller.random.below(5) {
        0 => {
            let close = json!({"spec": {"cordoned": true}});
            caller.patch("memberclusters", cluster, close).await;
        }
        1 | 2 => {
            let open = json!({"spec": {"cordoned": false}});
            caller.patch("memberclusters", cluster, open).await;
        }
        3 => {
            let at = usize::try_from(caller.random.below(3)).unwrap_or(0);
            set_quota(caller, jobs::QUOTAS[at]).await;
        }
        _ => {
            let known = caller.world.known_jobs();
            let at = usize::try_from(caller.random.below(known.len() as u64)).unwrap_or(0);
            if let Some((_, name)) = known.get(at) {
                let suspend = caller.random.below(2) == 0;
                let patch = json!({"spec": {"suspend": suspend}});
                caller.patch("federatedjobs", name, patch).await;
            }
        }
    }
}

async fn set_quota(caller: &Caller, nominal: u32) {
    let patch = json!({"spec": {"resources": [{"nominal": nominal}]}});
    caller.patch("tenantquotas", "vision", patch).await;
}

/// Asks until the leader has answered.
async fn explain(caller: &Caller, uid: &str, name: &str) {
    for _ in 0..10 {
        for client in &caller.hubs {
            match client.why(NAMESPACE, name).await {
                Ok(why) => {
                    let codes = why.reasons.iter().map(|reason| reason.code.clone());
                    let reasons: Vec<String> = codes.collect();
                    caller.log(&format!("{name} is {}: {}", why.phase, reasons.join(", ")));
                    return caller.world.notes.push(Note::Explained {
                        uid: uid.to_owned(),
                        phase: why.phase,
                        reasons,
                    });
                }
                Err(error) if error.is(FailureKind::NotFound) => return,
                Err(_) => {}
            }
        }
        caller.pause(50, 200).await;
    }
}
