//! The control plane of one member cluster: etcd, API server, controllers, and the scheduler when
//! it is asked for.
//!
//! Owns their processes, certificates and flags. Never runs a node.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use http::Request;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use meridian_runtime::Clock;

use super::certificates::{Authority, Pair};
use super::files::{kubeconfig, write};
use super::network::{NODES, Subnet};
use super::place::Place;
use super::{
    CONTROL_PLANE_LIMIT, FAKE_NODES_LIMIT, LOOK_EVERY, MemberError, MemberOptions, NODE_LIMIT,
    Scheduling, until,
};
use crate::etcd::{Durability, Etcd, Members};
use crate::ports::free_address;
use crate::process::{Harness, Process, ProcessSpec};
use crate::tools::Tool;

/// What pods, jobs and nodes of a member cluster need. The others (volumes, certificates,
/// autoscaling) would only cost memory.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,job-controller,\
    node-lifecycle-controller,pod-garbage-collector-controller,serviceaccount-controller,\
    serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
    taint-eviction-controller,endpoints-controller,endpointslice-controller";

/// Resident memory of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Which.
    pub process: String,
    /// KiB, as the kernel counts them.
    pub kib: u64,
}

impl MemoryUse {
    /// Of a process of ours; 0 when it does not run.
    pub(super) fn of(process: &Process) -> Self {
        let kib = process.id().map_or(0, resident_kib);
        let process = process.name().to_owned();
        Self { process, kib }
    }
}

/// Resident KiB of a process; 0 when it is gone.
pub(super) fn resident_kib(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}

/// A control plane that runs.
pub(super) struct ControlPlane {
    // In this order they go: clients before the server, the server before its store.
    scheduler: Option<Process>,
    controllers: Process,
    api_server: Process,
    etcd: Etcd,
    authority: Authority,
    port: u16,
    kubeconfig: PathBuf,
    client: Client,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ControlPlane({})", self.kubeconfig.display())
    }
}

impl ControlPlane {
    /// Starts it and waits until it answers and gives namespaces their service account.
    pub(super) async fn start(
        harness: &Harness,
        place: &Place,
        options: &MemberOptions,
    ) -> Result<Self, MemberError> {
        let program = Tool::Etcd.locate()?;
        // A member's store dies with the test; a hub's durability is tested with etcd of its own.
        let etcd = Etcd::start(harness, &program, Members::One, Durability::NoFsync);
        let etcd = etcd.await.map_err(|error| MemberError::Command {
            what: "etcd".to_owned(),
            output: error.to_string(),
        })?;
        let folder = place.folder().join("control-plane");
        let authority = Authority::new(&folder)?;
        let port = free_address().port();
        let admin = authority.client("admin", "admin", "system:masters")?;
        let server = format!("https://127.0.0.1:{port}");
        let path = folder.join("kubeconfig");
        write(
            &path,
            &kubeconfig(&server, &authority.certificate(), &admin),
        )?;
        let client = client(&path).await?;
        let tokens = authority.token_key()?;
        let spec = ApiServer {
            authority: &authority,
            tokens: &tokens,
            etcd: &etcd.endpoints().join(","),
            port,
            place,
            real_nodes: options.nodes > 0,
        }
        .spec()?;
        let mut api_server = harness.start(spec)?;
        ready(&mut api_server, harness.clock(), &client).await?;
        let spec = controllers(&authority, &tokens, &path, options)?;
        let mut controllers = harness.start(spec)?;
        let account = default_account(harness.clock(), &client);
        let made = "the default service account is there";
        let made = controllers.unless_ended(made, CONTROL_PLANE_LIMIT, account);
        made.await??;
        let scheduler = match options.scheduling {
            Scheduling::None => None,
            Scheduling::Kubernetes => Some(harness.start(scheduler(&path)?)?),
        };
        Ok(Self {
            scheduler,
            controllers,
            api_server,
            etcd,
            authority,
            port,
            kubeconfig: path,
            client,
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where a node reaches it.
    pub(super) fn url_for(&self, subnet: Subnet) -> String {
        format!("https://{}:{}", subnet.host(), self.port)
    }

    pub(super) fn api_server(&mut self) -> &mut Process {
        &mut self.api_server
    }

    pub(super) fn memory(&self) -> Vec<MemoryUse> {
        let own = [&self.api_server, &self.controllers];
        let etcd = self.etcd.processes();
        etcd.chain(own)
            .chain(self.scheduler.as_ref())
            .map(MemoryUse::of)
            .collect()
    }

    /// Waits until every node is Ready and has all its GPUs.
    pub(super) async fn nodes_ready(
        &self,
        clock: &Clock,
        options: &MemberOptions,
    ) -> Result<(), MemberError> {
        let wanted = usize::from(options.nodes) + usize::from(options.fake_nodes);
        let limit = NODE_LIMIT.max(FAKE_NODES_LIMIT);
        let nodes = Api::<Node>::all(self.client.clone());
        let what = format!(
            "{wanted} nodes are Ready with {} GPUs",
            options.gpus_per_node
        );
        until(clock, what, limit, async || {
            let list = nodes.list(&ListParams::default()).await;
            let list = list.map_err(MemberError::api("list nodes"))?;
            let ready = list.items.iter().filter(|node| is_whole(node, options));
            Ok((ready.count() >= wanted).then_some(()))
        })
        .await
    }
}

/// True when a node is Ready with the GPUs that it shall have.
fn is_whole(node: &Node, options: &MemberOptions) -> bool {
    let Some(status) = &node.status else {
        return false;
    };
    let conditions = status.conditions.iter().flatten();
    let is_ready = |condition: &k8s_openapi::api::core::v1::NodeCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    let gpus = status.allocatable.iter().flatten();
    let mut gpus = gpus.filter(|(name, _)| **name == options.gpu_resource);
    let has_gpus = |(_, amount): (_, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
        amount.0 == options.gpus_per_node.to_string()
    };
    let counted = options.gpus_per_node == 0 || gpus.any(has_gpus);
    counted && conditions.into_iter().any(is_ready)
}

async fn client(kubeconfig: &Path) -> Result<Client, MemberError> {
    // Of two TLS libraries in the tree, which one is not for chance to say.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let wrong = |error: &dyn std::error::Error| MemberError::Command {
        what: "reading our own kubeconfig".to_owned(),
        output: error.to_string(),
    };
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| wrong(&error))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| wrong(&error))?;
    Client::try_from(config).map_err(MemberError::api("make a client"))
}

async fn ready(process: &mut Process, clock: &Clock, client: &Client) -> Result<(), MemberError> {
    let asking = async {
        loop {
            let request = Request::get("/readyz").body(Vec::new());
            let request = request.expect("a path is a request");
            if client.request_text(request).await.is_ok() {
                return;
            }
            clock.sleep(LOOK_EVERY).await;
        }
    };
    let ready = process.unless_ended("/readyz answers", CONTROL_PLANE_LIMIT, asking);
    Ok(ready.await?)
}

async fn default_account(clock: &Clock, client: &Client) -> Result<(), MemberError> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let what = "the default service account is there";
    until(clock, what, CONTROL_PLANE_LIMIT, async || {
        let found = accounts.get_opt("default").await;
        let found = found.map_err(MemberError::api("get the default service account"))?;
        Ok(found.map(|_| ()))
    })
    .await
}

/// Flags of an API server.
struct ApiServer<'a> {
    authority: &'a Authority,
    tokens: &'a Pair,
    etcd: &'a str,
    port: u16,
    place: &'a Place,
    real_nodes: bool,
}

impl ApiServer<'_> {
    fn spec(&self) -> Result<ProcessSpec, MemberError> {
        let hosts = (0..NODES).map(|node| Subnet::new(self.place.index(), node).host());
        let addresses: Vec<Ipv4Addr> = std::iter::once(Ipv4Addr::LOCALHOST).chain(hosts).collect();
        let server = self.authority.server("api-server", &addresses)?;
        let to_kubelets =
            self.authority
                .client("api-server-to-kubelets", "api-server", "system:masters")?;
        // Nodes reach it through their links; without real nodes nobody else needs to.
        let bind = if self.real_nodes {
            Ipv4Addr::UNSPECIFIED
        } else {
            Ipv4Addr::LOCALHOST
        };
        let file = |path: &Path| path.display().to_string();
        let flags = [
            ("etcd-servers", self.etcd.to_owned()),
            ("bind-address", bind.to_string()),
            ("advertise-address", addresses[1].to_string()),
            ("secure-port", self.port.to_string()),
            ("tls-cert-file", file(&server.certificate)),
            ("tls-private-key-file", file(&server.key)),
            ("client-ca-file", file(&self.authority.certificate())),
            ("anonymous-auth", "false".to_owned()),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".to_owned(),
            ),
            ("service-account-key-file", file(&self.tokens.certificate)),
            ("service-account-signing-key-file", file(&self.tokens.key)),
            ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
            ("authorization-mode", "Node,RBAC".to_owned()),
            ("enable-admission-plugins", "NodeRestriction".to_owned()),
            ("allow-privileged", "true".to_owned()),
            ("endpoint-reconciler-type", "none".to_owned()),
            ("kubelet-preferred-address-types", "InternalIP".to_owned()),
            ("kubelet-client-certificate", file(&to_kubelets.certificate)),
            ("kubelet-client-key", file(&to_kubelets.key)),
        ];
        spec(Tool::ApiServer, flags)
    }
}

fn controllers(
    authority: &Authority,
    tokens: &Pair,
    kubeconfig: &Path,
    options: &MemberOptions,
) -> Result<ProcessSpec, MemberError> {
    let flags = [
        ("kubeconfig", kubeconfig.display().to_string()),
        ("leader-elect", "false".to_owned()),
        (
            "root-ca-file",
            authority.certificate().display().to_string(),
        ),
        (
            "service-account-private-key-file",
            tokens.key.display().to_string(),
        ),
        ("kube-api-qps", "500".to_owned()),
        ("kube-api-burst", "1000".to_owned()),
        ("secure-port", "0".to_owned()),
        (
            "node-monitor-grace-period",
            format!("{}ms", options.node_grace.0),
        ),
        ("controllers", CONTROLLERS.to_owned()),
    ];
    spec(Tool::ControllerManager, flags)
}

/// By its own default it would ask for no more than 50 things in a second, whatever the machine.
fn scheduler(kubeconfig: &Path) -> Result<ProcessSpec, MemberError> {
    let flags = [
        ("kubeconfig", kubeconfig.display().to_string()),
        ("leader-elect", "false".to_owned()),
        ("kube-api-qps", "5000".to_owned()),
        ("kube-api-burst", "5000".to_owned()),
        ("secure-port", "0".to_owned()),
    ];
    spec(Tool::Scheduler, flags)
}

fn spec<const N: usize>(
    tool: Tool,
    flags: [(&'static str, String); N],
) -> Result<ProcessSpec, MemberError> {
    let flags = flags.map(|(name, value)| format!("--{name}={value}"));
    Ok(ProcessSpec::new(tool.name(), tool.locate()?).args(flags))
}
