//! An agent that has joined for one cluster says everything that it can about another's gangs,
//! pools, offers, logs and checkpoints: hub as a process, its listener with certificates.
//!
//! Owns the promise that an agent touches only what is its own cluster's (S30). What a hub shows of
//! the other cluster, and what it tells the other's agent, is the same after each message.

mod raw;

use meridian_api::errors::ErrorCode;
use meridian_e2e::deployment::{
    Access, Deployment, DeploymentPlan, JobBuilder, LONG, NAMESPACE, REGION,
};
use meridian_proto::v1::agent_message::Body as Says;
use meridian_proto::v1::hub_message::Body as Hears;
use meridian_proto::{status, v1};
use meridian_runtime::Tasks;
use raw::{Manner, POOL, Raw, SLOW, observation, pool};
use serde_json::{Value, json};
use tonic::Code;

/// Whose things they are.
const VICTIM: &str = "eu-a";
/// Who speaks of them.
const LIAR: &str = "eu-b";
/// The job that runs in the victim's cluster.
const JOB: &str = "held";
/// UID of what others made in the victim's cluster.
const OFFER: &str = "5f0c1d3e-0000-4000-8000-000000000001";
/// Long after everything here.
const FAR_AWAY_MS: i64 = 4_000_000_000_000;

/// The fleet with both clusters, and what the victim holds.
struct World {
    fleet: Deployment,
    victim: Raw,
    liar: Raw,
    gang: v1::Gang,
    epoch: u64,
    /// A gang that starts there, and its epoch.
    starting: (v1::Gang, u64),
    digests: u32,
    tasks: Tasks,
}

impl World {
    async fn start() -> Self {
        let plan = DeploymentPlan {
            access: Access::Joined,
            ..DeploymentPlan::default()
        };
        let fleet = Deployment::of_hubs(&plan).await;
        let region = format!(
            "apiVersion: meridian.dev/v1alpha1\nkind: Region\nmetadata: {{name: {REGION}}}\n\
             spec: {{timeZone: Europe/Dublin}}\n"
        );
        let defaults = Deployment::defaults();
        let (classes, tenants) = (defaults.join("classes.yaml"), defaults.join("tenants.yaml"));
        for file in [fleet.file("region.yaml", &region), classes, tenants] {
            let apply = ["apply".into(), "-f".into(), file.into_os_string()];
            fleet.meridian(apply).await.succeeded();
        }
        let tasks = Tasks::new();
        let mut victim = Raw::join(&fleet, VICTIM, &tasks).await;
        let mut liar = Raw::join(&fleet, LIAR, &tasks).await;
        victim.attach(Manner::Obeys).await;
        liar.attach(Manner::Listens).await;
        let mut world = Self {
            fleet,
            victim,
            liar,
            gang: v1::Gang::default(),
            epoch: 0,
            starting: (v1::Gang::default(), 0),
            digests: 0,
            tasks,
        };
        world.victim_holds_something().await;
        world
    }

    /// A job runs there, another starts, and a gang that others made runs as well.
    async fn victim_holds_something(&mut self) {
        let offers = v1::Digest {
            offers: vec![offer("theirs")],
            ..v1::Digest::default()
        };
        self.victim.says(Says::Digest(offers)).await;
        for name in [JOB, SLOW] {
            let job = JobBuilder::new(name).pods(1, 4);
            let job = job.with("/spec/placement", json!({"clusters": [VICTIM]}));
            let file = self.fleet.file(&format!("{name}.yaml"), &job.text());
            let submit = ["submit".into(), "-f".into(), file.into_os_string()];
            self.fleet.meridian(submit).await.succeeded();
        }
        let running = async || {
            let jobs = self.fleet.jobs().await?;
            let runs = |job: &&Value| job["status"]["phase"] == "Running";
            // The offer has become a job as well.
            (jobs.iter().filter(runs).count() == 2).then_some(())
        };
        let what = "the job and the offer run in the victim's cluster";
        self.fleet.until(what, LONG, running).await;
        let shown = async || {
            let show = ["get", "cluster", VICTIM, "-o", "json"];
            let shown = self.fleet.meridian(show).await.out;
            let shown: Value = serde_json::from_str(&shown).ok()?;
            shown.pointer("/status/agent/incarnation").map(drop)
        };
        self.fleet
            .until("the cluster tells of its agent", LONG, shown)
            .await;
        let jobs = self.fleet.jobs().await.expect("just listed");
        let held = jobs.iter().find(|job| job["metadata"]["name"] == JOB);
        let uid = held.expect("submitted")["metadata"]["uid"].clone();
        assert_eq!(uid.as_str().map(str::is_empty), Some(false));
        (self.gang, self.epoch) = self.ordered(JOB).await;
        self.starting = self.ordered(SLOW).await;
    }

    /// The gang of a job that the victim was ordered to run, and its epoch.
    async fn ordered(&self, job: &str) -> (v1::Gang, u64) {
        let placements = |body: Hears| match body {
            Hears::Intent(intent) => intent.placements,
            Hears::Welcome(_)
            | Hears::HeartbeatAck(_)
            | Hears::Reserve(_)
            | Hears::Commit(_)
            | Hears::Abort(_)
            | Hears::CheckpointRequest(_)
            | Hears::Lease(_)
            | Hears::DigestRequest(_)
            | Hears::LogRequest(_) => Vec::new(),
        };
        let heard = async || {
            let all = self.victim.heard().into_iter().flat_map(placements);
            let placement = all.filter(|placement| placement.job == job).last()?;
            Some((placement.gang?, placement.epoch))
        };
        self.fleet.until("it was ordered", LONG, heard).await
    }

    /// Everything that the hub shows of the victim and of the jobs there, and what it has told the
    /// victim's agent.
    async fn of_victim(&self) -> Value {
        let jobs = self.fleet.jobs().await.expect("the hub answers");
        let there = |job: &&Value| {
            let clusters = job.pointer("/spec/placement/clusters");
            clusters.is_some_and(|clusters| clusters[0] == VICTIM)
        };
        let jobs: Vec<&Value> = jobs.iter().filter(there).collect();
        let pools = self.fleet.client().capacity("", false).await;
        let pools = pools.expect("the hub answers").pools.into_iter();
        let pools = pools.filter(|pool| pool.cluster == VICTIM).map(|pool| {
            // When it was last heard changes all the time.
            let pool = v1::PoolCapacity { age_ms: 0, ..pool };
            format!("{pool:?}")
        });
        let show = ["get", "cluster", VICTIM, "-o", "json"];
        let shown = self.fleet.meridian(show).await;
        let shown: Value = serde_json::from_str(&shown.out).expect("JSON, as asked for");
        let agent = shown.pointer("/status/agent/incarnation");
        let heard = format!("{:?}", self.victim.heard());
        let pools: Vec<String> = pools.collect();
        json!({"jobs": jobs, "pools": pools, "agent": agent, "heard": heard})
    }

    /// Waits until the hub has taken in all that the liar has said, and has decided since.
    async fn settled(&mut self) {
        // What is said before a digest is taken in before it, and a round lies between two.
        for _ in 0..2 {
            self.digests += 1;
            let mark = format!("mark {}", self.digests);
            let digest = v1::Digest {
                full: true,
                pools: vec![pool(&mark)],
                ..v1::Digest::default()
            };
            self.liar.says(Says::Digest(digest)).await;
            let client = self.fleet.client();
            let shown = async || {
                let pools = client.capacity("", false).await.ok()?.pools;
                let own = pools.iter().find(|pool| pool.cluster == LIAR)?;
                (own.findings == [mark.clone()]).then_some(())
            };
            self.fleet
                .until("the liar's digest is shown", LONG, shown)
                .await;
        }
    }

    /// The liar says something; nothing of the victim's changes.
    async fn is_nothing_to_the_victim(&mut self, what: &str, body: Says) {
        let before = self.of_victim().await;
        self.liar.says(body).await;
        self.settled().await;
        assert_eq!(self.of_victim().await, before, "{what}");
    }

    fn seen(&self, epoch: u64, step: v1::GangStep) -> v1::GangObservation {
        observation(Some(self.gang.clone()), epoch, step)
    }
}

fn offer(name: &str) -> v1::OfferedGang {
    let role = v1::RoleIntent {
        name: "worker".to_owned(),
        pods: 1,
        per_pod: Some(v1::Resources {
            milli_gpus: 4_000,
            milli_cpus: 1_000,
            memory_mib: 1_024,
        }),
        ..v1::RoleIntent::default()
    };
    v1::OfferedGang {
        uid: OFFER.to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        workload_class: "batch-short".to_owned(),
        roles: vec![role],
        ..v1::OfferedGang::default()
    }
}

fn report(gang: v1::GangObservation) -> Says {
    Says::Report(v1::PlacementReport { gangs: vec![gang] })
}

fn digest(digest: v1::Digest) -> Says {
    Says::Digest(digest)
}

/// Every kind of message that can name something of another cluster's.
fn lies(world: &World) -> Vec<(String, Says)> {
    let mut lies = lies_about_steps(world);
    lies.extend(lies_about_the_cluster(world));
    lies.extend(lies_about_work(world));
    lies
}

/// Each step under each epoch, as a report and in a digest.
fn lies_about_steps(world: &World) -> Vec<(String, Says)> {
    use v1::GangStep::{Accepted, Bound, Failed, Running, Stopped, Stopping, Succeeded};
    let epoch = world.epoch;
    let mut lies = Vec::new();
    for step in [
        Accepted, Bound, Running, Stopping, Succeeded, Failed, Stopped,
    ] {
        for epoch in [epoch - 1, epoch, epoch + 1] {
            let seen = v1::GangObservation {
                // A node that was lost: the gang would start again elsewhere, for nothing.
                reason: "NodeLost".to_owned(),
                checkpoint_ms: FAR_AWAY_MS,
                started_ms: FAR_AWAY_MS,
                sizes: vec![v1::RoleSize {
                    role: "worker".to_owned(),
                    pods: 0,
                }],
                ..world.seen(epoch, step)
            };
            lies.push((
                format!("report {step:?} of epoch {epoch}"),
                report(seen.clone()),
            ));
            let told = v1::Digest {
                gangs: vec![seen],
                ..v1::Digest::default()
            };
            lies.push((format!("digest {step:?} of epoch {epoch}"), digest(told)));
        }
    }
    lies
}

/// What is there, and what is not any more.
fn lies_about_the_cluster(world: &World) -> [(String, Says); 3] {
    let gone = v1::Digest {
        removed_gangs: vec![world.gang.clone()],
        removed_pools: vec![POOL.to_owned(), format!("{VICTIM}/{POOL}")],
        removed_offers: vec![OFFER.to_owned()],
        ..v1::Digest::default()
    };
    let empty = v1::Pool {
        name: format!("{VICTIM}/{POOL}"),
        ..pool("")
    };
    let pools = v1::Digest {
        pools: vec![empty],
        ..v1::Digest::default()
    };
    let offers = v1::Digest {
        offers: vec![offer("mine")],
        ..v1::Digest::default()
    };
    [
        ("gang, pools and offer are gone".to_owned(), digest(gone)),
        ("a pool under the victim's name".to_owned(), digest(pools)),
        ("the victim's offer".to_owned(), digest(offers)),
    ]
}

/// Refusals, and what work used or needs.
fn lies_about_work(world: &World) -> Vec<(String, Says)> {
    let (gang, epoch) = (world.gang.clone(), world.epoch);
    let (starting, first) = world.starting.clone();
    let mut lies = Vec::new();
    for (gang, epoch) in [
        (&gang, epoch),
        (&gang, epoch + 1),
        (&starting, first),
        (&starting, first + 1),
    ] {
        let refusal = v1::Refusal {
            gang: Some(gang.clone()),
            epoch,
            reason: "Fenced".to_owned(),
            highest_epoch: u64::MAX,
            ..v1::Refusal::default()
        };
        let what = format!("refusal of gang {gang:?} of epoch {epoch}");
        lies.push((what, Says::Refusal(refusal)));
    }
    for step in [v1::GangStep::Running, v1::GangStep::Failed] {
        let seen = observation(Some(starting.clone()), first, step);
        lies.push((format!("what starts is {step:?}"), report(seen)));
    }
    let usage = v1::GangUsage {
        gang: Some(gang),
        epoch,
        milli_gpu_seconds: u64::MAX,
    };
    let usage = v1::Usage { gangs: vec![usage] };
    lies.push(("usage".to_owned(), Says::Usage(usage)));
    let demand = v1::ServiceDemand {
        namespace: NAMESPACE.to_owned(),
        name: JOB.to_owned(),
        replicas_needed: u32::MAX,
    };
    let demand = v1::Demand {
        services: vec![demand],
    };
    lies.push(("demand".to_owned(), Says::Demand(demand)));
    lies
}

#[tokio::test]
async fn an_agent_touches_nothing_of_another_clusters() {
    let mut world = World::start().await;
    for (what, lie) in lies(&world) {
        world.is_nothing_to_the_victim(&what, lie).await;
    }
    // The liar was told nothing of the victim's gang but to forget what it claimed to have.
    for body in world.liar.heard() {
        let Hears::Intent(intent) = body else {
            continue;
        };
        for placement in intent.placements {
            let is_told = placement.gang.as_ref() == Some(&world.gang);
            let stops = placement.desired() == v1::Desired::Stop;
            assert!(!is_told || stops, "{placement:?}");
        }
    }
    streams_are_the_clusters_own(&world).await;
    logs_are_the_clusters_own(&world).await;
    assert_eq!(world.fleet.errors(&[]), [] as [String; 0]);
    world.tasks.cancel();
}

/// Under the liar's certificate nobody attaches as the victim, whose session goes on.
async fn streams_are_the_clusters_own(world: &World) {
    let before = world.of_victim().await;
    let refused = world.liar.hello_as(VICTIM).await.map(drop);
    let refused = status::from_status(&refused.expect_err("refused"));
    assert_eq!(refused.code, ErrorCode::ClusterClaimed);
    assert_eq!(world.of_victim().await, before);
}

/// Somebody reads logs of the victim's gang: the liar's text is not what they read, even when it
/// has got hold of the ticket, which is still good for the victim.
async fn logs_are_the_clusters_own(world: &World) {
    let request = v1::LogsRequest {
        namespace: NAMESPACE.to_owned(),
        name: JOB.to_owned(),
        gang: world.gang.index,
        query: Some(v1::LogQuery::default()),
    };
    let client = world.fleet.client();
    let reading = async {
        let mut text = client.logs(request).await.expect("lines come");
        text.next().await.expect("a line").expect("and not its end")
    };
    let answering = async {
        let asked = async || {
            let heard = world.victim.heard();
            heard.into_iter().find_map(|body| match body {
                Hears::LogRequest(request) => Some(request.ticket),
                Hears::Welcome(_)
                | Hears::Intent(_)
                | Hears::HeartbeatAck(_)
                | Hears::Reserve(_)
                | Hears::Commit(_)
                | Hears::Abort(_)
                | Hears::CheckpointRequest(_)
                | Hears::Lease(_)
                | Hears::DigestRequest(_) => None,
            })
        };
        let ticket = world.fleet.until("the victim is asked", LONG, asked).await;
        let refused = world.liar.sends_logs(&ticket).await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        let guessed = world.liar.sends_logs(&[0; 16]).await.expect_err("refused");
        assert_eq!(
            (guessed.code(), guessed.message()),
            (refused.code(), refused.message()),
            "nobody learns which tickets there are"
        );
        world.victim.sends_logs(&ticket).await.expect("its own");
    };
    let (text, ()) = tokio::join!(reading, answering);
    assert_eq!(text, format!("of {VICTIM}\n"));
    let told = world.liar.heard();
    let told = told
        .iter()
        .filter(|body| matches!(body, Hears::LogRequest(_)));
    assert_eq!(told.count(), 0);
}
