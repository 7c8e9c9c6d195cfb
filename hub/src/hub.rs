//! One hub replica, put together: a library with a handle.
//!
//! Owns the wiring of the parts and their listeners. Everything that differs between a process, the
//! playground and a simulation is handed in. Never decides.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use meridian_api::units::Millis;
use meridian_apiserver::{RegistryError, Resources, ResourcesOptions};
use meridian_proto::v1::agent_admission_service_server::AgentAdmissionServiceServer;
use meridian_proto::v1::agent_service_server::AgentServiceServer;
use meridian_proto::v1::federation_service_server::FederationServiceServer;
use meridian_proto::v1::join_service_server::JoinServiceServer;
use meridian_runtime::network::{self, Listener};
use meridian_runtime::{Clock, Network, Random, Tasks};
use meridian_store::SharedStore;
use tokio::sync::{Semaphore, mpsc};

use crate::admission::HubAdmission;
use crate::bounds::Bounds;
use crate::config::HubConfig;
use crate::decider::{Decider, DeciderOptions};
use crate::execution::Execution;
use crate::explanations::Explanations;
use crate::housekeeping;
use crate::identity::{self, Admission, AuthorityError, Identities, Joins};
use crate::journal::Journal;
use crate::keepers::Keepers;
use crate::kinds;
use crate::leadership::{Election, Leader, Leadership};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::model::JOBS;
use crate::offers::OfferKeeper;
use crate::own_writes::OwnWrites;
use crate::questions::{QUESTIONS, Question};
use crate::rounds::Recorder;
use crate::runs::RunKeeper;
use crate::services::ServiceKeeper;
use crate::sessions::{
    AgentSessions, LogDesk, Orderbook, Refusals, SESSION_EVENTS, SessionEvent, SessionOptions,
};
use crate::submissions::Submitter;
use crate::templates::Templates;
use crate::users::{MAX_WATCHES, Users};
use crate::views::Views;

/// A digest of the largest cluster that the model takes in stays below this.
const MAX_AGENT_MESSAGE: usize = 8 * 1024 * 1024;
/// A token and a certificate request, from whoever reaches the listener.
const MAX_JOIN_MESSAGE: usize = 16 * 1024;

/// What a hub is made of.
pub struct HubOptions {
    /// Its settings.
    pub config: HubConfig,
    /// Where the truth is.
    pub store: SharedStore,
    /// Time.
    pub clock: Clock,
    /// UIDs, jitter, seeds.
    pub random: Random,
    /// Where it listens.
    pub network: Arc<dyn Network>,
    /// Where its tasks run; they end with it.
    pub tasks: Tasks,
    /// Counts; the store's are registered in the same.
    pub metrics: Metrics,
    /// Where decisions run.
    pub execution: Execution,
}

/// A hub that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A kind that cannot be served: a defect.
    #[error("the kinds cannot be served")]
    Kinds(#[from] RegistryError),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Agents cannot be identified.
    #[error("the agents' listener cannot be secured")]
    Identities(#[from] AuthorityError),
    /// A folder for rounds that cannot be used.
    #[error("rounds cannot be recorded in {folder}")]
    Rounds {
        /// Which.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A running hub.
#[derive(Clone)]
pub struct HubHandle {
    /// Where users connect.
    pub users: String,
    /// Where agents connect.
    pub agents: String,
    /// Whether it leads.
    pub leadership: Leadership,
    /// Its objects.
    pub resources: Resources,
    /// Its counts.
    pub metrics: Metrics,
    /// What happened lately.
    pub journal: Journal,
    tasks: Tasks,
}

impl HubHandle {
    /// Asks it to stop: the lead is given away, sessions end, listeners close.
    pub fn stop(&self) {
        self.tasks.cancel();
    }
}

/// Starts a hub; it runs in the tasks that it was given.
pub async fn start(options: HubOptions) -> Result<HubHandle, StartError> {
    let users = listen(options.network.as_ref(), &options.config.users_listen).await?;
    let agents = listen(options.network.as_ref(), &options.config.agents_listen).await?;
    let (users_at, agents_at) = (users.address().to_owned(), agents.address().to_owned());
    let (identities, agents) = identify(&options, agents).await?;
    let rounds = record(&options)?;
    let leadership = campaign(&options, &users_at, &agents_at);
    let (events_in, events) = mpsc::channel(SESSION_EVENTS);
    let (questions_in, questions) = mpsc::channel(QUESTIONS);
    let journal = Journal::default();
    let shared = Shared {
        leadership: leadership.clone(),
        explanations: Explanations::default(),
        bounds: Bounds::default(),
        limits: Limits::default(),
        views: Views::default(),
        refusals: Refusals::new(options.clock.clone(), journal.clone()),
        journal,
        orders: Orderbook::default(),
        logs: LogDesk::new(
            options.clock.clone(),
            options.random.clone(),
            options.tasks.cancelled(),
        ),
        rounds,
    };
    let resources = serve_objects(&options, &shared)?;
    decide(&options, &shared, &resources, events, questions);
    keep_house(&options, &leadership);
    serve_agents(agents, &options, &shared, identities.clone(), events_in);
    let admission = Admission {
        identities,
        hub: advertised(&options.config, &agents_at),
    };
    let HubOptions {
        store,
        clock,
        metrics,
        tasks,
        ..
    } = options;
    let jobs = resources
        .registry()
        .plural(JOBS)
        .expect("the list of kinds has jobs");
    let service = Users {
        clock,
        store: Arc::clone(&store),
        submitter: Submitter::new(resources.clone(), Arc::clone(jobs)),
        resources: resources.clone(),
        questions: questions_in,
        leadership: leadership.clone(),
        logs: shared.logs.clone(),
        watches: Arc::new(Semaphore::new(MAX_WATCHES)),
    };
    serve_users(users, service, admission, &store, &metrics, &tasks);
    tracing::warn!(
        users = %users_at,
        "NOBODY IS IDENTIFIED at the users' address: whoever reaches it may do everything"
    );
    Ok(HubHandle {
        users: users_at,
        agents: agents_at,
        leadership,
        resources,
        metrics,
        journal: shared.journal,
        tasks,
    })
}

/// What the parts of one hub share.
struct Shared {
    leadership: Leadership,
    explanations: Explanations,
    bounds: Bounds,
    limits: Limits,
    views: Views,
    journal: Journal,
    refusals: Refusals,
    orders: Orderbook,
    logs: LogDesk,
    rounds: Recorder,
}

/// Where rounds are recorded, if they are.
fn record(options: &HubOptions) -> Result<Recorder, StartError> {
    let Some(folder) = &options.config.record_rounds else {
        return Ok(Recorder::off(&options.metrics));
    };
    let opened = Recorder::open(folder, options.execution, &options.metrics);
    let (recorder, writer) = opened.map_err(|source| StartError::Rounds {
        folder: folder.clone(),
        source,
    })?;
    let writing = writer.run(options.tasks.cancelled());
    options.tasks.spawn("recorder of rounds", writing);
    Ok(recorder)
}

/// Agents' address of this hub, as others are told it.
fn advertised(config: &HubConfig, agents: &str) -> String {
    let advertised = config.agents_advertise.clone();
    advertised.unwrap_or_else(|| agents.to_owned())
}

/// Puts TLS over the agents' listener, unless it was asked in so many words to do without.
async fn identify(
    options: &HubOptions,
    agents: Listener,
) -> Result<(Option<Identities>, Listener), StartError> {
    let HubOptions {
        config,
        store,
        clock,
        random,
        tasks,
        ..
    } = options;
    if config.insecure_agents {
        tracing::warn!(
            agents = %agents.address(),
            "AGENTS ARE NOT IDENTIFIED: whoever reaches this address may speak for any cluster"
        );
        return Ok((None, agents));
    }
    let identities = Identities::open(config, store, clock, random).await?;
    let secured = identity::secure(&identities, agents, config, tasks)?;
    let watch = identities.registry().watch(tasks.cancelled());
    tasks.spawn("identities", watch);
    Ok((Some(identities), secured))
}

fn campaign(options: &HubOptions, users: &str, agents: &str) -> Leadership {
    let config = &options.config;
    let me = Leader {
        name: config.name.clone(),
        agents: advertised(config, agents),
        users: config
            .users_advertise
            .clone()
            .unwrap_or_else(|| users.to_owned()),
    };
    let (election, leadership) = Election::new(
        Arc::clone(&options.store),
        options.clock.clone(),
        options.random.clone(),
        config.leadership_terms(),
        me,
    );
    options
        .tasks
        .spawn("election", election.run(options.tasks.cancelled()));
    leadership
}

fn serve_objects(options: &HubOptions, shared: &Shared) -> Result<Resources, RegistryError> {
    Ok(Resources::new(ResourcesOptions {
        store: Arc::clone(&options.store),
        registry: kinds::registry(&shared.explanations, &shared.views)?,
        clock: options.clock.clone(),
        random: options.random.clone(),
        admission: Arc::new(HubAdmission::new(
            Arc::clone(&options.store),
            shared.bounds.clone(),
            shared.limits.clone(),
            options.clock.clone(),
        )),
        events: Arc::new(shared.journal.clone()),
        tasks: options.tasks.clone(),
    }))
}

fn decide(
    options: &HubOptions,
    shared: &Shared,
    resources: &Resources,
    events: mpsc::Receiver<SessionEvent>,
    questions: mpsc::Receiver<Question>,
) {
    let writes = OwnWrites::new(
        resources.clone(),
        options.clock.clone(),
        shared.journal.clone(),
    );
    let keepers = Keepers {
        runs: RunKeeper::new(writes.clone(), shared.explanations.clone()),
        offers: OfferKeeper::new(writes.clone(), options.config.offered_class.clone()),
        services: ServiceKeeper::new(Arc::clone(&options.store), writes),
    };
    let decider = Decider::new(DeciderOptions {
        clock: options.clock.clone(),
        store: Arc::clone(&options.store),
        leadership: shared.leadership.clone(),
        events,
        questions,
        orders: shared.orders.clone(),
        keepers,
        explanations: shared.explanations.clone(),
        bounds: shared.bounds.clone(),
        limits: shared.limits.clone(),
        views: shared.views.clone(),
        journal: shared.journal.clone(),
        refusals: shared.refusals.clone(),
        metrics: options.metrics.clone(),
        rounds: shared.rounds.clone(),
        terms: options.config.contact_terms(),
        execution: options.execution,
    });
    options
        .tasks
        .spawn("decider", decider.run(options.tasks.cancelled()));
}

async fn listen(network: &dyn Network, address: &str) -> Result<Listener, StartError> {
    let listener = network.listen(address).await;
    listener.map_err(|source| StartError::Listen {
        address: address.to_owned(),
        source,
    })
}

fn keep_house(options: &HubOptions, leadership: &Leadership) {
    let (tasks, history) = (&options.tasks, options.config.history);
    let (store, clock) = (Arc::clone(&options.store), options.clock.clone());
    let compaction = housekeeping::compact(store, clock, history, tasks.cancelled());
    tasks.spawn("compaction", compaction);
    let (store, clock) = (Arc::clone(&options.store), options.clock.clone());
    let sweep = housekeeping::sweep(store, clock, leadership.clone(), tasks.cancelled());
    tasks.spawn("sweep", sweep);
}

fn serve_agents(
    listener: Listener,
    options: &HubOptions,
    shared: &Shared,
    identities: Option<Identities>,
    events: mpsc::Sender<SessionEvent>,
) {
    let HubOptions {
        config,
        store,
        clock,
        tasks,
        ..
    } = options;
    let sessions = AgentSessions::new(SessionOptions {
        clock: clock.clone(),
        store: Arc::clone(store),
        leadership: shared.leadership.clone(),
        orders: shared.orders.clone(),
        events,
        logs: shared.logs.clone(),
        templates: Arc::new(Templates::new(Arc::clone(store))),
        terms: config.contact_terms(),
        beat: config.contact.beat,
        tasks: tasks.clone(),
        identities: identities.clone(),
        refusals: shared.refusals.clone(),
    });
    let service = AgentServiceServer::new(sessions).max_decoding_message_size(MAX_AGENT_MESSAGE);
    let joins = identities.map(|identities| {
        JoinServiceServer::new(Joins(identities)).max_decoding_message_size(MAX_JOIN_MESSAGE)
    });
    let serving = network::grpc_server(options.network.as_ref())
        .add_service(service)
        .add_optional_service(joins)
        .serve_with_incoming_shutdown(listener.into_stream(), tasks.cancelled().cancelled_owned());
    tasks.spawn("agents' listener", serving);
}

/// Kubernetes API, gRPC, health and metrics on one port.
fn serve_users(
    listener: Listener,
    service: Users,
    admission: Admission,
    store: &SharedStore,
    metrics: &Metrics,
    tasks: &Tasks,
) {
    let health = Health {
        store: Arc::clone(store),
        clock: service.clock.clone(),
        metrics: metrics.clone(),
    };
    let api = meridian_apiserver::router(service.resources.clone());
    let grpc = tonic::service::Routes::new(FederationServiceServer::new(service))
        .add_service(AgentAdmissionServiceServer::new(admission));
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(show_metrics))
        .with_state(Arc::new(health))
        .merge(api)
        .merge(grpc.into_axum_router());
    let stop = tasks.cancelled();
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    tasks.spawn("users' listener", async move { serving.await });
}

struct Health {
    store: SharedStore,
    clock: Clock,
    metrics: Metrics,
}

/// Ready when the store answers in time.
async fn ready(State(health): State<Arc<Health>>) -> impl IntoResponse {
    const WITHIN: Millis = Millis::seconds(2);
    match health.clock.timeout(WITHIN, health.store.revision()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ok".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("store: {error}")),
        Err(late) => (StatusCode::SERVICE_UNAVAILABLE, format!("store: {late}")),
    }
}

async fn show_metrics(State(health): State<Arc<Health>>) -> impl IntoResponse {
    match health.metrics.encode() {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
