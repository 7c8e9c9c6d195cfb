//! The agent's command: configuration, state folder, member cluster, signals.
//!
//! Owns the order of start and stop. Everything else is the library's. A module of the binary and
//! not of the library: the proof compiles it once more, into an agent that dies where a test says.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use fs4::fs_std::FileExt as _;
use meridian_agent::config::{self, AgentConfig, BackendKind, SecretText};
use meridian_agent::identity::{IdentityLink, JoinOptions, Membership, Seams};
use meridian_agent::kubernetes::{Hook, KubernetesBackend, connect};
use meridian_agent::simulated::{Keeper, Profile};
use meridian_agent::{
    Agent, AgentHandle, AgentMetrics, AgentOptions, ClusterBackend, Inventory, SimulatedCluster,
    answers, probes,
};
use meridian_runtime::disk::FolderDisk;
use meridian_runtime::network::Tcp;
use meridian_runtime::telemetry::{self, LogFormat, TelemetryOptions};
use meridian_runtime::{Clock, Network, Random, Tasks};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The agent of one member cluster: it dials the hub, reports, places gangs, obeys.
#[derive(Debug, Parser)]
#[command(name = "meridian-agent", version, max_term_width = 100)]
struct Arguments {
    /// Configuration file (YAML); see --print-schema
    #[arg(long, env = "MERIDIAN_AGENT_CONFIG")]
    config: Option<PathBuf>,
    /// Name of the member cluster that it speaks for
    #[arg(long, env = "MERIDIAN_AGENT_CLUSTER")]
    cluster: Option<String>,
    /// Agents' addresses of hub replicas, host:port
    #[arg(long = "hub", env = "MERIDIAN_AGENT_HUB", value_delimiter = ',')]
    hubs: Vec<String>,
    /// Token to join on, as `meridian cluster join` prints it; better in a file
    #[arg(long, env = "MERIDIAN_AGENT_JOIN_TOKEN", hide_env_values = true)]
    join_token: Option<String>,
    /// File that holds the token to join on
    #[arg(
        long,
        env = "MERIDIAN_AGENT_JOIN_TOKEN_FILE",
        conflicts_with = "join_token"
    )]
    join_token_file: Option<PathBuf>,
    /// Hash of the key of the hub's authority, sha256:HEX, as `meridian cluster join` prints it
    #[arg(long, env = "MERIDIAN_AGENT_CA_HASH")]
    ca_hash: Option<String>,
    /// Dial hubs in the clear and without a certificate; they must run with --insecure-agents
    #[arg(long, env = "MERIDIAN_AGENT_INSECURE_HUB")]
    insecure_hub: bool,
    /// Folder of what must survive a crash
    #[arg(long, env = "MERIDIAN_AGENT_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// What the member cluster is
    #[arg(long, env = "MERIDIAN_AGENT_BACKEND", value_enum)]
    backend: Option<Backend>,
    /// Credentials for the API of a real cluster; without one, the service account of this pod
    #[arg(long, env = "MERIDIAN_AGENT_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; without one, its current context
    #[arg(long, env = "MERIDIAN_AGENT_CONTEXT")]
    context: Option<String>,
    /// Table of flavors (YAML) that goes before the one that ships
    #[arg(long, env = "MERIDIAN_AGENT_FLAVORS")]
    flavors: Option<PathBuf>,
    /// Where pods of gangs may call the agent, host:port
    #[arg(long, env = "MERIDIAN_AGENT_ANSWERS_LISTEN")]
    answers_listen: Option<String>,
    /// What that address is to pods, http://host:port
    #[arg(long, env = "MERIDIAN_AGENT_ANSWERS_URL")]
    answers_url: Option<String>,
    /// Pools and nodes of the simulated cluster (YAML)
    #[arg(long, env = "MERIDIAN_AGENT_INVENTORY")]
    inventory: Option<PathBuf>,
    /// Delays and faults of the simulated cluster (YAML)
    #[arg(long, env = "MERIDIAN_AGENT_SIMULATED_PROFILE")]
    simulated_profile: Option<PathBuf>,
    /// Seed of its delays and faults
    #[arg(long, env = "MERIDIAN_AGENT_SIMULATED_SEED")]
    simulated_seed: Option<u64>,
    /// File that keeps the simulated cluster when this process dies
    #[arg(long, env = "MERIDIAN_AGENT_SIMULATED_STATE")]
    simulated_state: Option<PathBuf>,
    /// File that gets what really ran in it, as JSON lines
    #[arg(long, env = "MERIDIAN_AGENT_SIMULATED_HISTORY")]
    simulated_history: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are served; loopback only
    #[arg(long, env = "MERIDIAN_AGENT_METRICS_LISTEN")]
    metrics_listen: Option<String>,
    /// How log lines look
    #[arg(long, env = "MERIDIAN_AGENT_LOG", value_enum)]
    log: Option<Lines>,
    /// Filter of log lines: info,meridian_agent=debug
    #[arg(long, env = "MERIDIAN_AGENT_LOG_FILTER")]
    log_filter: Option<String>,
    /// Export traces over OTLP/gRPC: http://host:4317
    #[arg(long, env = "MERIDIAN_AGENT_OTLP")]
    otlp: Option<String>,
    /// Print the schema of the configuration file and exit
    #[arg(long)]
    print_schema: bool,
}

/// What the member cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Described by an inventory, beside this process.
    Simulated,
    /// Behind a Kubernetes API.
    Kubernetes,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lines {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Arguments {
    /// File, then environment, then flags: the later wins.
    fn config(&self) -> anyhow::Result<AgentConfig> {
        let mut config: AgentConfig = match &self.config {
            Some(path) => config::read_yaml(path)?,
            None => AgentConfig::default(),
        };
        let set = |target: &mut String, value: &Option<String>| {
            if let Some(value) = value {
                target.clone_from(value);
            }
        };
        set(&mut config.cluster, &self.cluster);
        set(&mut config.metrics_listen, &self.metrics_listen);
        set(&mut config.telemetry.filter, &self.log_filter);
        if !self.hubs.is_empty() {
            config.hubs.clone_from(&self.hubs);
        }
        config.insecure_hub |= self.insecure_hub;
        let join = &mut config.join;
        join.token = self
            .join_token
            .clone()
            .map(SecretText::new)
            .or(join.token.take());
        join.token_file = self.join_token_file.clone().or(join.token_file.take());
        join.ca_hash = self.ca_hash.clone().or(join.ca_hash.take());
        if let Some(folder) = &self.state_dir {
            config.state_dir.clone_from(folder);
        }
        if let Some(lines) = self.log {
            config.telemetry.json = lines == Lines::Json;
        }
        config.telemetry.otlp_endpoint = self.otlp.clone().or(config.telemetry.otlp_endpoint);
        let simulated = &mut config.simulated;
        let or = |ours: &Option<PathBuf>, theirs: Option<PathBuf>| ours.clone().or(theirs);
        simulated.inventory = or(&self.inventory, simulated.inventory.take());
        simulated.profile = or(&self.simulated_profile, simulated.profile.take());
        simulated.state = or(&self.simulated_state, simulated.state.take());
        simulated.history = or(&self.simulated_history, simulated.history.take());
        simulated.seed = self.simulated_seed.unwrap_or(simulated.seed);
        if let Some(backend) = self.backend {
            config.backend = match backend {
                Backend::Simulated => BackendKind::Simulated,
                Backend::Kubernetes => BackendKind::Kubernetes,
            };
        }
        let kubernetes = &mut config.kubernetes;
        kubernetes.kubeconfig = or(&self.kubeconfig, kubernetes.kubeconfig.take());
        kubernetes.flavors = or(&self.flavors, kubernetes.flavors.take());
        let text = |ours: &Option<String>, theirs: Option<String>| ours.clone().or(theirs);
        kubernetes.answers_listen = text(&self.answers_listen, kubernetes.answers_listen.take());
        kubernetes.answers_url = text(&self.answers_url, kubernetes.answers_url.take());
        kubernetes.context = self.context.clone().or(kubernetes.context.take());
        config.check()?;
        Ok(config)
    }
}

/// Runs the agent to its end. `hook` is asked after each step of a gang's life on a real cluster.
pub(crate) fn main(hook: Hook) -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.print_schema {
        println!("{:#}", schemars::schema_for!(AgentConfig).as_value());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("meridian-agent: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&arguments, hook)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meridian-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments, hook: Hook) -> anyhow::Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another TLS library was chosen before"))?;
    let config = arguments.config()?;
    let _telemetry = telemetry::init(&TelemetryOptions {
        service: "meridian-agent",
        format: if config.telemetry.json {
            LogFormat::Json
        } else {
            LogFormat::Text
        },
        filter: config.telemetry.filter.clone(),
        otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
    })?;
    let (clock, tasks) = (Clock::real(), Tasks::new());
    let folder = &config.state_dir;
    let disk = FolderDisk::open(folder)
        .with_context(|| format!("state folder {} cannot be used", folder.display()))?;
    let _lock = lock(folder)?;
    let seams = Seams {
        disk: Arc::new(disk),
        network: Arc::new(Tcp),
        clock: clock.clone(),
        random: Random::from_machine(),
    };
    let way = way_to_hub(&config, &seams, &tasks).await?;
    let mut registry = Registry::default();
    let metrics = AgentMetrics::register(&mut registry);
    let listener = Tcp.listen(&config.metrics_listen).await;
    let listener =
        listener.with_context(|| format!("cannot listen at {}", config.metrics_listen))?;
    let address = listener.address().to_owned();
    let agent = Agent::start(AgentOptions {
        cluster: way.cluster.clone(),
        hubs: config.hubs.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        network: way.network,
        clock: clock.clone(),
        random: seams.random,
        disk: seams.disk,
        backend: cluster(&config, clock, hook, &tasks).await?,
        tasks: tasks.clone(),
        metrics,
        identity: way.identity,
    })
    .await?;
    let probes = probes::serve(listener, registry, agent.contact(), tasks.cancelled());
    tasks.spawn("probes", probes);
    // Before it says that it is ready: who reads that may ask it to stop.
    let signals = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    tracing::info!(
        cluster = way.cluster,
        hubs = config.hubs.join(","),
        metrics = address,
        "meridian-agent is ready"
    );
    until_stopped(&tasks, agent, signals).await
}

/// How hubs are reached, and as whom.
struct WayToHub {
    cluster: String,
    network: Arc<dyn Network>,
    identity: Option<IdentityLink>,
}

/// Under a certificate, which is joined for if need be; or in the clear, if that was asked for.
async fn way_to_hub(
    config: &AgentConfig,
    seams: &Seams,
    tasks: &Tasks,
) -> anyhow::Result<WayToHub> {
    if config.insecure_hub {
        tracing::warn!("THE HUB IS NOT IDENTIFIED: whoever answers at its address is obeyed");
        return Ok(WayToHub {
            cluster: config.cluster.clone(),
            network: Arc::clone(&seams.network),
            identity: None,
        });
    }
    let options = JoinOptions {
        cluster: Some(config.cluster.clone()).filter(|name| !name.is_empty()),
        hubs: config.hubs.clone(),
        token: config.join.token()?,
        ca_hash: config.join.ca_hash()?,
    };
    let membership = Membership::open(options, seams.clone()).await?;
    let way = WayToHub {
        cluster: membership.cluster().to_owned(),
        network: membership.network(),
        identity: Some(membership.link()),
    };
    membership.keep(tasks);
    Ok(way)
}

/// One agent at a time may use a state folder: two would fence each other for ever.
fn lock(folder: &Path) -> anyhow::Result<std::fs::File> {
    let path = folder.join("lock");
    let file =
        std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let free = file
        .try_lock_exclusive()
        .with_context(|| format!("locking {}", path.display()))?;
    anyhow::ensure!(
        free,
        "state folder {} is used by another agent",
        folder.display()
    );
    Ok(file)
}

/// The member cluster. A real one need not answer yet: it is waited for.
async fn cluster(
    config: &AgentConfig,
    clock: Clock,
    hook: Hook,
    tasks: &Tasks,
) -> anyhow::Result<Arc<dyn ClusterBackend>> {
    Ok(match config.backend {
        BackendKind::Simulated => Arc::new(simulated(config, clock).await?),
        BackendKind::Kubernetes => {
            let mut options = connect::options(&config.kubernetes, clock.clone()).await?;
            options.hook = hook;
            let backend = KubernetesBackend::new(options);
            if let Some(address) = &config.kubernetes.answers_listen {
                take_answers(address, backend.clone(), clock, tasks).await?;
            }
            Arc::new(backend)
        }
    })
}

/// Lets pods call.
async fn take_answers(
    address: &str,
    backend: KubernetesBackend,
    clock: Clock,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let listener = Tcp.listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
    tracing::info!(address = listener.address(), "pods may call");
    let answers = answers::serve(listener, backend, clock, tasks.cancelled());
    tasks.spawn("answers", answers);
    Ok(())
}

/// The simulated cluster, as it was kept or as the inventory describes it.
async fn simulated(
    config: &AgentConfig,
    clock: Clock,
) -> anyhow::Result<meridian_agent::simulated::SimulatedBackend> {
    let simulated = &config.simulated;
    let profile: Profile = match &simulated.profile {
        Some(path) => config::read_yaml(path)?,
        None => Profile::default(),
    };
    let fresh = || -> anyhow::Result<SimulatedCluster> {
        let path = simulated.inventory.as_deref().context("no inventory")?;
        let inventory = Inventory::from_yaml(&config::read(path)?)
            .with_context(|| format!("inventory {}", path.display()))?;
        let now = clock.wall();
        Ok(SimulatedCluster::new(
            &inventory,
            profile.clone(),
            simulated.seed,
            now,
        )?)
    };
    let Some(path) = &simulated.state else {
        tracing::warn!("the simulated cluster dies with this process, see --simulated-state");
        return Ok(fresh()?.backend(clock));
    };
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let disk = FolderDisk::open(folder.unwrap_or(Path::new(".")))?;
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .context("state has no name")?;
    let keeper = Keeper::open(Arc::new(disk), name, simulated.history.as_deref())?;
    let cluster = match keeper.load().await? {
        Some(kept) => kept,
        None => fresh()?,
    };
    Ok(cluster.backend(clock).kept_by(Arc::new(keeper)))
}

/// The first signal ends the session and the agent; what runs in the cluster goes on. The second
/// ends the process where it stands. A task that died is an error.
async fn until_stopped(
    tasks: &Tasks,
    agent: AgentHandle,
    [mut terminate, mut interrupt]: [Signal; 2],
) -> anyhow::Result<()> {
    let died = tasks.cancelled();
    tokio::select! {
        () = asked(&mut terminate, &mut interrupt) => tracing::info!("stopping"),
        () = died.cancelled() => {}
    }
    tasks.cancel();
    tokio::select! {
        () = agent.shutdown() => {}
        () = asked(&mut terminate, &mut interrupt) => anyhow::bail!("stopped at once"),
    }
    tokio::select! {
        ended = tasks.finished() => Ok(ended?),
        () = asked(&mut terminate, &mut interrupt) => anyhow::bail!("stopped at once"),
    }
}

async fn asked(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
