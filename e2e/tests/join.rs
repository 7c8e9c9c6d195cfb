//! Agents join, prove who they are, renew, and are shut out: hub and agents as processes.
//!
//! Owns the promise that a cluster's name is worth nothing without its certificate, and that a
//! certificate is no reason for an outage.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use meridian_agent::identity::{JoinOptions, Membership, Seams};
use meridian_agent::{
    Agent, AgentMetrics, AgentOptions, Contact, Inventory, SimulatedCluster, simulated::Profile,
};
use meridian_api::errors::ErrorCode;
use meridian_api::units::{Millis, UnixMillis};
use meridian_e2e::deployment::{
    Access, Deployment, DeploymentPlan, GPUS_PER_HOST, Invitation, LONG, REGION, SOON, START, words,
};
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::{status, v1};
use meridian_runtime::disk::MemoryDisk;
use meridian_runtime::network::{self, Tcp};
use meridian_runtime::tls::{self, Identity, TlsDialer, Trust};
use meridian_runtime::{Clock, Network, Random, Tasks};
use serde_json::Value;
use tokio::sync::watch;

const CLUSTER: &str = "eu-a";
const AGENT: &str = "agent-eu-a";

/// A hub that asks for certificates, and a region.
async fn fleet(settings: &str) -> Deployment {
    let plan = DeploymentPlan {
        access: Access::Joined,
        settings: settings.to_owned(),
        ..DeploymentPlan::default()
    };
    let fleet = Deployment::of_hubs(&plan).await;
    let region = format!(
        "apiVersion: meridian.dev/v1alpha1\nkind: Region\nmetadata: {{name: {REGION}}}\n\
         spec: {{timeZone: Europe/Dublin}}\n"
    );
    let region = fleet.file("region.yaml", &region);
    let apply = ["apply".into(), "-f".into(), region.into_os_string()];
    fleet.meridian(apply).await.succeeded();
    fleet
}

/// The same with an agent that has joined and whose GPUs are counted.
async fn joined(settings: &str) -> (Deployment, Invitation) {
    let mut fleet = fleet(settings).await;
    let invitation = fleet.invite(CLUSTER).await;
    let agent = fleet.joining_agent(AGENT, &invitation, 2);
    fleet.agents.push(agent);
    fleet.gpus_counted(2 * GPUS_PER_HOST).await;
    (fleet, invitation)
}

/// Waits until the process has ended badly and said all of these.
async fn ended_saying(agent: &mut meridian_e2e::deployment::Agent, said: &[&str]) {
    let ended = agent.process.ended(START).await.expect("it ends");
    assert!(!ended.success(), "{ended}");
    let lines = agent.process.lines().join("\n");
    for word in said {
        assert!(lines.contains(word), "does not say {word:?}:\n{lines}");
    }
}

fn secret_of(invitation: &Invitation) -> &str {
    let token = invitation.token.as_str();
    token.rsplit_once('.').expect("a token has a secret").1
}

#[tokio::test]
async fn an_agent_joins_by_the_line_and_stays_in_through_restarts() {
    let (mut fleet, invitation) = joined("").await;
    // What the line applies, as the member cluster gets it.
    let (print, _) = invitation.line.split_once(" | ").expect("a pipe");
    let print = print.strip_prefix("meridian ").expect("our command");
    let manifests = fleet.meridian(words(print)).await;
    manifests.succeeded();
    let kinds = manifests
        .out
        .lines()
        .filter(|line| line.starts_with("kind: "));
    assert_eq!(kinds.count(), 8, "{}", manifests.out);

    let record = fleet.state_of(AGENT).join("identity.json");
    let mode = std::fs::metadata(&record)
        .expect("it is kept")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);

    let agent = &mut fleet.agents[0].process;
    agent.kill().await.expect("killed");
    agent.start().expect("the binary starts");
    agent
        .line(" attached", START)
        .await
        .expect("under its certificate");
    fleet.hubs[0].process.kill().await.expect("killed");
    fleet.hubs[0].start_again().await;
    fleet.gpus_counted(2 * GPUS_PER_HOST).await;

    let secret = secret_of(&invitation);
    for process in [&fleet.hubs[0].process, &fleet.agents[0].process] {
        let told = process
            .lines()
            .into_iter()
            .find(|line| line.contains(secret));
        assert_eq!(told, None, "a log has the token");
    }
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_token_is_for_one_agent_and_for_a_while() {
    let (fleet, invitation) = joined("").await;
    let mut second = fleet.joining_agent("second", &invitation, 2);
    ended_saying(&mut second, &["E5021", "used by another agent"]).await;

    let again = format!("cluster join {CLUSTER}");
    fleet
        .meridian_does(&[(&again, 9, &["E5001", "meridian cluster revoke eu-a"])])
        .await;

    let late = fleet.invite_for("eu-b", "1ms").await;
    let mut late = fleet.joining_agent("late", &late, 2);
    ended_saying(
        &mut late,
        &["E5022", "expired", "meridian cluster join eu-b"],
    )
    .await;

    let mut other = fleet.invite("eu-b").await;
    other.ca_hash = format!("sha256:{}", "00".repeat(32));
    let mut fooled = fleet.joining_agent("fooled", &other, 2);
    ended_saying(&mut fooled, &["is not believed", "UnknownIssuer"]).await;
}

#[tokio::test]
async fn nobody_speaks_for_another_cluster() {
    let (fleet, _) = joined("").await;
    fleet.invite("eu-b").await;
    let mut renamed = fleet.agent_with(
        "renamed",
        2,
        &["--cluster", "eu-b", "--ca-hash", &fleet_hash(&fleet).await],
    );
    ended_saying(&mut renamed, &["has not joined"]).await;

    // An agent that lies in its Hello, under a certificate that is in order.
    let refused = attach(&fleet, Some(&identity(&fleet.state_of(AGENT))), "eu-b").await;
    assert_eq!(refused.code, ErrorCode::ClusterClaimed);
    assert!(refused.message.contains("eu-a") && refused.message.contains("eu-b"));
    let nobody = attach(&fleet, None, CLUSTER).await;
    assert_eq!(nobody.code, ErrorCode::AgentNotJoined);

    // In the clear nothing is heard at all.
    let mut clear = fleet.agent("clear", CLUSTER, 2);
    let hub = &mut fleet.hubs.into_iter().next().expect("one").process;
    let refusal = hub.line("TLS handshake refused", SOON).await;
    assert!(refusal.is_ok(), "{refusal:?}");
    clear.process.kill().await.expect("killed");
}

/// Waits until the condition `Connected` of the cluster has that reason.
async fn connected(fleet: &Deployment, reason: &str) {
    let what = format!("Connected is {reason}");
    let look = async || {
        let show = ["get", "cluster", CLUSTER, "-o", "json"];
        let shown: Value = serde_json::from_str(&fleet.meridian(show).await.out).ok()?;
        let conditions = shown.pointer("/status/conditions")?.as_array()?;
        let is =
            |condition: &Value| condition["type"] == "Connected" && condition["reason"] == reason;
        conditions.iter().any(is).then_some(())
    };
    fleet.until(&what, LONG, look).await;
}

/// The hash of the hub's authority, as an invitation says it.
async fn fleet_hash(fleet: &Deployment) -> String {
    fleet.invite("eu-c").await.ca_hash
}

#[tokio::test]
async fn a_copied_identity_does_not_make_a_second_agent() {
    let (fleet, _) = joined("").await;
    let from = fleet.state_of(AGENT).join("identity.json");
    let to = fleet.state_of("copy").join("identity.json");
    std::fs::copy(from, to).expect("copied");
    let mut copy = fleet.agent_with("copy", 2, &[]);
    let refused = copy.process.line("E5001", START).await.expect("refused");
    assert!(refused.contains("bound to another agent"), "{refused}");
    // Whoever looks at the cluster learns of it; the agent that is heard stays what it is.
    connected(&fleet, "HeartbeatFresh").await;
    let events = fleet
        .meridian(["events", &format!("cluster/{CLUSTER}")])
        .await;
    events
        .succeeded()
        .saying(&["ClusterClaimed", "bound to another agent"]);
    copy.process.kill().await.expect("killed");
    fleet.gpus_counted(2 * GPUS_PER_HOST).await;
}

#[tokio::test]
async fn a_revoked_agent_is_out_at_once_until_it_joins_again() {
    let (mut fleet, _) = joined("").await;
    fleet
        .meridian_does(&[
            ("cluster revoke eu-a", 0, &["eu-a revoked"]),
            ("cluster revoke eu-a", 0, &["had no agent"]),
        ])
        .await;
    let agent = &mut fleet.agents[0].process;
    // Some seconds, on a machine that does nothing else.
    let refused = agent.line("E5012", SOON).await.expect("refused");
    assert!(refused.contains("meridian cluster join eu-a"), "{refused}");
    fleet.hubs[0]
        .process
        .line("its right to speak for the cluster was taken away", SOON)
        .await
        .expect("the session ended");
    connected(&fleet, "AgentRevoked").await;

    let invitation = fleet.invite(CLUSTER).await;
    let _ = fleet.token_file(AGENT, &invitation);
    let agent = &mut fleet.agents[0].process;
    agent.terminate(START).await.expect("it ends");
    agent.start().expect("the binary starts");
    agent.line(" attached", START).await.expect("joined again");
    connected(&fleet, "HeartbeatFresh").await;
    fleet.gpus_counted(2 * GPUS_PER_HOST).await;
}

#[tokio::test]
async fn certificates_are_renewed_without_an_outage() {
    let lives = "agentCertificates: {validity: 12000, hubValidity: 12000}\n";
    let (fleet, _) = joined(lives).await;
    let (client, clock) = (fleet.client(), Clock::real());
    let renewed = fleet.until(
        "two renewals, each in use, on both sides",
        LONG,
        async || {
            let lines = fleet.agents[0].process.lines();
            let at = |wanted: &str| {
                let said = lines.iter().enumerate();
                let said = said.filter(|(_, line)| line.contains(wanted));
                said.map(|(at, _)| at).collect::<Vec<_>>()
            };
            let (renewed, attached) = (at("certificate renewed"), at(" attached"));
            let in_use = renewed.len() >= 2 && attached.last() > renewed.last();
            let hub = fleet.hubs[0].process.lines();
            let hub = hub
                .iter()
                .any(|line| line.contains("has its next certificate"));
            (in_use && hub).then_some(())
        },
    );
    let watched = async {
        loop {
            let pools = client.capacity("", false).await.expect("it answers").pools;
            let contact: Vec<_> = pools.iter().map(|pool| pool.contact.as_str()).collect();
            assert_eq!(contact, ["Ready"]);
            clock.sleep(Millis(20)).await;
        }
    };
    tokio::select! {
        () = renewed => {}
        () = watched => {}
    }
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_clock_that_is_an_hour_off_changes_nothing() {
    let fleet = fleet("").await;
    let hour = 3_600_000;
    for (cluster, off) in [("ahead", hour), ("behind", -hour)] {
        let invitation = fleet.invite(cluster).await;
        let clock = Clock::simulated(UnixMillis(Clock::real().wall().0 + off));
        let tasks = Tasks::new();
        let seams = Seams {
            disk: Arc::new(MemoryDisk::default()),
            network: Arc::new(Tcp),
            clock: clock.clone(),
            random: Random::from_machine(),
        };
        let options = JoinOptions {
            cluster: None,
            hubs: vec![fleet.hubs[0].agents.to_string()],
            token: Some(invitation.token.parse().expect("a token")),
            ca_hash: Some(invitation.ca_hash.parse().expect("a hash")),
        };
        let membership = Membership::open(options.clone(), seams.clone()).await;
        let membership = membership.expect("joined");
        let inventory = Inventory::from_yaml("pools: []").expect("an inventory");
        let simulated = SimulatedCluster::new(&inventory, Profile::default(), 1, clock.wall());
        let handle = Agent::start(AgentOptions {
            cluster: membership.cluster().to_owned(),
            hubs: options.hubs,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            network: membership.network(),
            clock: clock.clone(),
            random: seams.random,
            disk: seams.disk,
            backend: Arc::new(simulated.expect("a cluster").backend(clock.clone())),
            tasks: tasks.clone(),
            metrics: AgentMetrics::default(),
            identity: Some(membership.link()),
        });
        let handle = handle.await.expect("a new state folder");
        let mut contact = handle.contact();
        let attached = contact.wait_for(|contact| matches!(contact, Contact::Attached { .. }));
        let attached = clock.timeout(SOON, attached).await;
        assert!(
            attached.is_ok(),
            "{cluster}: {:?}",
            *handle.contact().borrow()
        );
        handle.shutdown().await;
    }
}

/// The certificate in an agent's state folder, with its key.
fn identity(state: &Path) -> Identity {
    let record = std::fs::read(state.join("identity.json")).expect("it has joined");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let text = |field: &str| record["certified"][field].as_str().expect("a text");
    Identity::from_pem(text("chain"), text("key")).expect("usable")
}

/// Says Hello as `cluster`, and returns what the hub has against it.
async fn attach(
    fleet: &Deployment,
    identity: Option<&Identity>,
    cluster: &str,
) -> meridian_api::errors::ApiError {
    let hash = fleet_hash(fleet).await.parse().expect("a hash");
    let config = tls::client_config(&Clock::real(), Trust::Pin(hash), identity);
    let (_, config) = watch::channel(config.expect("usable"));
    let dialer = TlsDialer::new(Arc::new(Tcp), Clock::real(), config);
    let dialer: Arc<dyn Network> = Arc::new(dialer);
    let hub = fleet.hubs[0].agents.to_string();
    let hello = v1::Hello {
        cluster: cluster.to_owned(),
        version: "0.1.0".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        credential: vec![7; 32].into(),
        digest: Some(v1::Digest {
            full: true,
            ..v1::Digest::default()
        }),
        ..v1::Hello::default()
    };
    let hello = v1::AgentMessage {
        body: Some(v1::agent_message::Body::Hello(hello)),
    };
    let mut client = AgentServiceClient::new(network::channel(dialer, &hub));
    let answer = client.attach(tokio_stream::iter([hello])).await;
    status::from_status(&answer.expect_err("refused"))
}
