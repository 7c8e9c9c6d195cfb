//! The hub's process: configuration, store, signals.
//!
//! Owns the order of start and stop. Everything else is the library's.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use meridian_hub::config::HubConfig;
use meridian_hub::leadership::end_dead_term;
use meridian_hub::metrics::Metrics;
use meridian_hub::{Execution, HubOptions};
use meridian_runtime::network::Tcp;
use meridian_runtime::telemetry::{self, LogFormat, TelemetryOptions};
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::{
    EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, Metered, SharedStore,
};

/// Many threads, small objects, short lives: the system's allocator took a quarter of the CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The hub of a fleet of GPU clusters.
#[derive(Debug, Parser)]
#[command(name = "meridian-hub", version, max_term_width = 100)]
struct Arguments {
    /// Configuration file (YAML); see --print-schema
    #[arg(long, env = "MERIDIAN_HUB_CONFIG")]
    config: Option<PathBuf>,
    /// Name of this replica
    #[arg(long, env = "MERIDIAN_HUB_NAME")]
    name: Option<String>,
    /// Where users connect: Kubernetes API and gRPC
    #[arg(long, env = "MERIDIAN_HUB_USERS_LISTEN")]
    users_listen: Option<String>,
    /// Where agents connect
    #[arg(long, env = "MERIDIAN_HUB_AGENTS_LISTEN")]
    agents_listen: Option<String>,
    /// Endpoints of etcd; without one the embedded store is used
    #[arg(long, env = "MERIDIAN_HUB_ETCD", value_delimiter = ',')]
    etcd: Vec<String>,
    /// File of the embedded store
    #[arg(long, env = "MERIDIAN_HUB_STORE")]
    store: Option<PathBuf>,
    /// Filter of log lines: info,meridian_hub=debug
    #[arg(long, env = "MERIDIAN_HUB_LOG")]
    log: Option<String>,
    /// Log one JSON object a line
    #[arg(long, env = "MERIDIAN_HUB_LOG_JSON")]
    log_json: bool,
    /// Export traces over OTLP/gRPC: http://host:4317
    #[arg(long, env = "MERIDIAN_HUB_OTLP")]
    otlp: Option<String>,
    /// Open the listeners to everybody who can reach them, though nobody is identified
    #[arg(long)]
    allow_anonymous_from_anywhere: bool,
    /// Let agents connect in the clear and without certificates, as whichever cluster they say
    #[arg(long, env = "MERIDIAN_HUB_INSECURE_AGENTS")]
    insecure_agents: bool,
    /// Print the schema of the configuration file and exit
    #[arg(long)]
    print_schema: bool,
}

impl Arguments {
    /// File, then environment, then flags: the later wins.
    fn config(&self) -> anyhow::Result<HubConfig> {
        let mut config = match &self.config {
            Some(path) => HubConfig::read(path)?,
            None => HubConfig::default(),
        };
        let set = |target: &mut String, value: &Option<String>| {
            if let Some(value) = value {
                target.clone_from(value);
            }
        };
        set(&mut config.name, &self.name);
        set(&mut config.users_listen, &self.users_listen);
        set(&mut config.agents_listen, &self.agents_listen);
        set(&mut config.telemetry.filter, &self.log);
        if !self.etcd.is_empty() {
            config.store.etcd.clone_from(&self.etcd);
        }
        if let Some(file) = &self.store {
            config.store.file.clone_from(file);
        }
        config.telemetry.json |= self.log_json;
        config.telemetry.otlp_endpoint = self.otlp.clone().or(config.telemetry.otlp_endpoint);
        config.allow_anonymous_from_anywhere |= self.allow_anonymous_from_anywhere;
        config.insecure_agents |= self.insecure_agents;
        config.check()?;
        Ok(config)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.print_schema {
        let schema = schemars::schema_for!(HubConfig);
        println!("{:#}", schema.as_value());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("meridian-hub: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meridian-hub: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = arguments.config()?;
    let _telemetry = telemetry::init(&TelemetryOptions {
        service: "meridian-hub",
        format: if config.telemetry.json {
            LogFormat::Json
        } else {
            LogFormat::Text
        },
        filter: config.telemetry.filter.clone(),
        otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
    })?;
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a second cryptography provider is in this process"))?;
    let (clock, random) = (Clock::real(), Random::from_machine());
    let metrics = Metrics::default();
    // The store ends last: a hub that stops still gives its lead away.
    let store_tasks = Tasks::new();
    let tasks = store_tasks.child();
    let store = open_store(&config, &clock, &store_tasks, &metrics).await?;
    let hub = meridian_hub::start(HubOptions {
        config,
        store,
        clock: clock.clone(),
        random,
        network: Arc::new(Tcp),
        tasks: tasks.clone(),
        metrics,
        execution: Execution::Thread,
    })
    .await?;
    // Before it says that it is ready: who reads that may ask it to stop.
    let asked = meridian_runtime::shutdown::until_asked(&tasks);
    tracing::info!(users = %hub.users, agents = %hub.agents, "ready");
    asked.await;
    let ended = tasks.finished().await;
    store_tasks.cancel();
    store_tasks.finished().await?;
    Ok(ended?)
}

async fn open_store(
    config: &HubConfig,
    clock: &Clock,
    tasks: &Tasks,
    metrics: &Metrics,
) -> anyhow::Result<SharedStore> {
    let store: SharedStore = if config.store.etcd.is_empty() {
        let file = &config.store.file;
        let store = EmbeddedStore::open(file, clock.clone(), tasks, EmbeddedOptions::default())
            .with_context(|| format!("cannot open the store {}", file.display()))?;
        end_dead_term(&store).await?;
        Arc::new(store)
    } else {
        let options = EtcdOptions {
            prefix: config.store.etcd_prefix.clone(),
            ..EtcdOptions::default()
        };
        let endpoints = &config.store.etcd;
        let store = EtcdStore::connect(endpoints, clock.clone(), options).await;
        Arc::new(store.with_context(|| format!("cannot reach etcd at {}", endpoints.join(", ")))?)
    };
    let mut registry = metrics
        .registry
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Arc::new(Metered::new(store, clock.clone(), &mut registry)))
}
