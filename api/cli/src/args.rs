//! The command line: verbs, flags and their help.
//!
//! Owns what may be written. Never does anything.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "doc comments here are help texts, not links"
)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use meridian_api::join::JoinToken;
use meridian_api::quantity::Span;
use meridian_runtime::tls::CaPin as CaHash;

use crate::commands::cluster::PoolArg;
use crate::commands::wait::Goal;
use crate::completion;
use crate::output::Format;

mod explain;
mod fleet;
mod logs;

pub(crate) use explain::{
    CapacityArgs, PlanArgs, QueueArgs, QuotaCommand, QuotaFitArgs, TenantCommand, TenantTreeArgs,
    WhyArgs,
};
pub(crate) use fleet::{ClusterDescribeArgs, ClusterDrainArgs, ClusterListArgs, TopArgs, TopRows};
pub(crate) use logs::LogsArgs;

/// Runs jobs on fleets of GPU clusters.
///
/// Names: KIND/NAME as in job/llm-70b, or KIND NAME. Kinds have short words: job, cluster, pool,
/// tenant, quota, class, region, window.
#[derive(Debug, Parser)]
#[command(name = "meridian", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 error, 2 usage, 3 unchanged (--error-unchanged), 4 denied by policy or quota,
5 not found, 6 conflict, 7 timed out, 8 hub unreachable, 9 not allowed; plan --detailed-exitcode:
20 will queue, 22 can never be placed; wait and logs --follow-exit: 30 failed, 31 cancelled,
32 preempted and not requeued; replay: 40 another plan; 130 detached by Ctrl-C.";

/// Flags of every command.
#[derive(Args, Debug)]
pub(crate) struct GlobalArgs {
    /// Where the hub listens [env: MERIDIAN_SERVER] [default: http://127.0.0.1:7080]
    #[arg(long, global = true, value_name = "http://HOST:PORT")]
    pub(crate) server: Option<String>,
    /// Namespace to work in [env: MERIDIAN_NAMESPACE] [default: default]
    #[arg(short, long, global = true, add = ArgValueCompleter::new(completion::namespaces))]
    pub(crate) namespace: Option<String>,
    /// How long one answer of the hub may take
    #[arg(long, global = true, default_value = "30s", value_name = "SPAN")]
    pub(crate) request_timeout: Span,
    /// One plain line per change instead of a live line
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make objects what their documents say
    Apply(ApplyArgs),
    /// Show objects
    Get(GetArgs),
    /// Show everything about objects, with their events
    Describe(DescribeArgs),
    /// Delete objects
    Delete(DeleteArgs),
    /// Submit jobs; safe to repeat with the same --idempotency-key
    Submit(SubmitArgs),
    /// Say what would happen to jobs, without submitting them
    Plan(PlanArgs),
    /// Wait until jobs are done, or anything else holds
    Wait(WaitArgs),
    /// Say why a job waits, or where it runs
    Why(WhyArgs),
    /// Show what the containers of a job write
    Logs(LogsArgs),
    /// Show the order of waiting gangs
    Queue(QueueArgs),
    /// Show GPUs by flavor, region, cluster and pool
    Capacity(CapacityArgs),
    /// Show tenants as they stand
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Try quotas before they are applied
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show the fleet on one screen: clusters, pools and tenants
    Top(TopArgs),
    /// Add clusters, let their agents join, look at them, close, empty and open them
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show what happened
    Events(EventsArgs),
    /// Print the script that completes commands, flags and live names in a shell
    Completion(CompletionArgs),
    /// Show the versions of this command and of the hub
    Version(VersionArgs),
    /// Say what policies would have done to a trace of jobs; asks no hub
    Simulate(SimulateArgs),
    /// Decide a recorded round once more and compare the plans; asks no hub
    Replay(ReplayArgs),
    /// Run a whole fleet in one process (see `meridian playground --help`)
    #[command(disable_help_flag = true)]
    Playground(PlaygroundArgs),
}

/// The form of results.
#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Leave out the line of titles
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// How much of a change is only tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dry {
    /// Nothing: it is done
    #[default]
    None,
    /// Checked here; nothing is sent that changes anything
    Client,
    /// Checked by the hub in every way, and not stored
    Server,
}

/// Which objects of a kind.
#[derive(Args, Debug)]
pub(crate) struct SelectorArgs {
    /// Label selector, as in team=nlp,tier!=test
    #[arg(short = 'l', long)]
    pub(crate) selector: Option<String>,
    /// Field selector, as in metadata.name=x
    #[arg(long)]
    pub(crate) field_selector: Option<String>,
}

/// `apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    /// File, folder or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
    /// End with 3 when nothing had to change
    #[arg(long)]
    pub(crate) error_unchanged: bool,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// KIND[,KIND], KIND NAME... or KIND/NAME...
    #[arg(required = true, add = ArgValueCompleter::new(completion::targets))]
    pub(crate) targets: Vec<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) selector: SelectorArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Sort the rows by a column, numbers by size
    #[arg(long, value_name = "COLUMN")]
    pub(crate) sort_by: Option<String>,
    /// Go on showing changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// `describe`.
#[derive(Args, Debug)]
pub(crate) struct DescribeArgs {
    /// KIND, KIND NAME... or KIND/NAME...
    #[arg(required = true, add = ArgValueCompleter::new(completion::targets))]
    pub(crate) targets: Vec<String>,
    #[command(flatten)]
    pub(crate) selector: SelectorArgs,
}

/// `delete`.
#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// KIND NAME..., KIND/NAME..., or KIND with a selector or --all
    #[arg(add = ArgValueCompleter::new(completion::targets))]
    pub(crate) targets: Vec<String>,
    /// Delete what these documents name
    #[arg(
        short,
        long = "filename",
        value_name = "FILE|DIR|-",
        conflicts_with = "targets"
    )]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) selector: SelectorArgs,
    /// Everything of the kind in the namespace
    #[arg(long, conflicts_with = "selector")]
    pub(crate) all: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// What is not there is no error
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    /// Wait until it is gone
    #[arg(long)]
    pub(crate) wait: bool,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
    /// Form of the result: table or name
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `submit`.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// File, folder or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// Submit each job so many times, as NAME-0, NAME-1, ...
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) count: Option<u32>,
    /// Makes a repeated command store nothing twice; default: the document and a random part
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Refuse (6) when the fleet can no longer do what the plan with this token said
    #[arg(long, value_name = "TOKEN", conflicts_with = "count")]
    pub(crate) plan_token: Option<String>,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
    /// Wait until every job is done
    #[arg(long)]
    pub(crate) wait: bool,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `wait`.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// job/NAME, NAME of a job, or KIND/NAME
    #[arg(required = true, add = ArgValueCompleter::new(completion::job_targets))]
    pub(crate) targets: Vec<String>,
    /// finished, delete, phase=PHASE or condition=TYPE[=STATUS]
    #[arg(long = "for", default_value = "finished", value_name = "GOAL")]
    pub(crate) goal: Goal,
    /// Give up after this long
    #[arg(long, value_name = "SPAN")]
    pub(crate) timeout: Option<Span>,
}

/// `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Add a simulated cluster
    Add(ClusterAddArgs),
    /// Let one agent join as a cluster, and print the line that starts it there
    Join(ClusterJoinArgs),
    /// Print what starts an agent in a Kubernetes cluster; asks no hub
    Manifests(ClusterManifestsArgs),
    /// Take the right to speak for a cluster from its agent, at once; what runs there goes on
    Revoke(ClusterRevokeArgs),
    /// Show clusters
    List(ClusterListArgs),
    /// Show everything about a cluster: how it is heard, its pools, and what stands there
    Describe(ClusterDescribeArgs),
    /// Close a cluster to new work; what runs there goes on
    Cordon(CordonArgs),
    /// Close a cluster and empty it: what runs there is stopped and goes elsewhere
    Drain(ClusterDrainArgs),
    /// Open a cluster to new work again, whether it was cordoned or drained
    Uncordon(CordonArgs),
}

/// `cluster add`.
#[derive(Args, Debug)]
pub(crate) struct ClusterAddArgs {
    /// Its name
    pub(crate) name: String,
    /// Region that it is in
    #[arg(long, add = ArgValueCompleter::new(completion::regions))]
    pub(crate) region: String,
    /// Hosts that are alike:
    /// flavor=F,hosts=N,gpus-per-host=G[,pool=P][,cpu=C][,memory=M][,blocks=B][,racks-per-block=R]
    #[arg(long = "pool", required = true, value_name = "HOSTS")]
    pub(crate) pools: Vec<PoolArg>,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `cluster join`.
#[derive(Args, Debug)]
pub(crate) struct ClusterJoinArgs {
    /// Its name; it is added when it is not there yet
    #[arg(add = ArgValueCompleter::new(completion::clusters))]
    pub(crate) name: String,
    /// Region that it is in; needed when it is not there yet
    #[arg(long, add = ArgValueCompleter::new(completion::regions))]
    pub(crate) region: Option<String>,
    /// How long the token is good, at most 1h [default: 15m]
    #[arg(long, value_name = "SPAN")]
    pub(crate) ttl: Option<Span>,
    /// Where agents reach the hub; default: as the hub says
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) hub: Option<String>,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
    /// Try it only; there is no token then
    #[arg(long, value_enum, default_value_t, num_args = 0..=1, default_missing_value = "server")]
    pub(crate) dry_run: Dry,
    /// The line, its parts as json, or as yaml what the line applies
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: JoinFormat,
}

/// In which form a join is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum JoinFormat {
    /// One line to run in the member cluster.
    #[default]
    Line,
    /// Its parts.
    Json,
    /// The manifests that it applies.
    Yaml,
}

/// Which agent is started.
#[derive(Args, Debug)]
pub(crate) struct ImageArgs {
    /// Image of the agent
    #[arg(long, default_value = concat!("meridian-agent:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: String,
}

/// `cluster manifests`.
#[derive(Args, Debug)]
pub(crate) struct ClusterManifestsArgs {
    /// Where agents reach the hub
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) hub: String,
    /// Hash of the key of the hub's authority
    #[arg(long, value_name = "sha256:HEX")]
    pub(crate) ca_hash: CaHash,
    /// The join token; it names the cluster
    #[arg(long, env = "MERIDIAN_JOIN_TOKEN", hide_env_values = true)]
    pub(crate) token: JoinToken,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
}

/// `cluster revoke`.
#[derive(Args, Debug)]
pub(crate) struct ClusterRevokeArgs {
    /// Name of the cluster
    #[arg(add = ArgValueCompleter::new(completion::clusters))]
    pub(crate) name: String,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
}

/// `cluster cordon` and `cluster uncordon`.
#[derive(Args, Debug)]
pub(crate) struct CordonArgs {
    /// Names of clusters
    #[arg(required = true, add = ArgValueCompleter::new(completion::clusters))]
    pub(crate) names: Vec<String>,
    /// Try it only
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dry_run: Dry,
}

/// `events`.
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only those about this object: KIND/NAME
    #[arg(add = ArgValueCompleter::new(completion::job_targets))]
    pub(crate) target: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Go on showing events
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// `completion`.
#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Shells that can be completed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// source <(meridian completion bash)
    Bash,
    /// source <(meridian completion zsh)
    Zsh,
    /// meridian completion fish | source
    Fish,
}

/// `version`.
#[derive(Args, Debug)]
pub(crate) struct VersionArgs {
    /// Only of this command, without asking the hub
    #[arg(long)]
    pub(crate) client: bool,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `simulate`.
#[derive(Args, Debug)]
#[command(after_help = TABLES)]
pub(crate) struct SimulateArgs {
    /// Documents as they are applied: Tenant, TenantQuota, WorkloadClass, and GPUPool with status
    #[arg(long, required = true, value_name = "DIR|FILE")]
    pub(crate) policies: Vec<PathBuf>,
    /// Jobs, as a CSV with named columns
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Hosts, as a CSV with named columns; default: the GPUPools among the policies
    #[arg(long, value_name = "FILE")]
    pub(crate) fleet: Option<PathBuf>,
    /// Hosts that go and come, as a CSV with named columns
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Least time between two rounds; default: one whenever it could place something
    #[arg(long, value_name = "SPAN")]
    pub(crate) round_every: Option<Span>,
    /// Also run each tenant alone on whole hosts of its own quota, and compare the waits
    #[arg(long)]
    pub(crate) alone: bool,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

const TABLES: &str = "\
Columns, in any order; those in brackets may be left out:
  trace  submit,tenant,class,gpus,duration[,pods,flavor,name,cpu,memory,region,priority,finishBy,
         maxRuntime,checkpoint,required,preferred]; submit is seconds or RFC 3339, gpus is of each
         pod, flavor is h100=1|a100=0.45
  fleet  cluster,pool,flavor,hosts,gpus[,region,cpu,memory,worth,classes,block,rack]
  hosts  at,cluster,pool,hosts";

/// `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Files that a hub wrote into the folder of its recordRounds
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `playground`.
#[derive(Args, Debug)]
pub(crate) struct PlaygroundArgs {
    /// Handed to meridian-playground as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_lists_every_exit_code() {
        use crate::exit::Exit;
        let codes = [
            Exit::Done,
            Exit::Error,
            Exit::Usage,
            Exit::Unchanged,
            Exit::Denied,
            Exit::NotFound,
            Exit::Conflict,
            Exit::TimedOut,
            Exit::Unreachable,
            Exit::NotAllowed,
            Exit::WillQueue,
            Exit::NeverPlaced,
            Exit::WorkFailed,
            Exit::WorkCancelled,
            Exit::WorkPreempted,
            Exit::Differs,
            Exit::Interrupted,
        ];
        let words: Vec<&str> = EXIT_CODES
            .split(|character: char| !character.is_ascii_alphanumeric())
            .collect();
        for code in codes {
            assert!(
                words.contains(&code.code().to_string().as_str()),
                "{code:?}"
            );
        }
    }

    #[test]
    fn arguments_of_the_playground_pass_through() {
        let cli = Cli::try_parse_from(["meridian", "playground", "--serve", "--seed", "7"]);
        let Command::Playground(args) = cli.expect("valid").command else {
            panic!("another command");
        };
        assert_eq!(args.args, ["--serve", "--seed", "7"]);
    }
}
