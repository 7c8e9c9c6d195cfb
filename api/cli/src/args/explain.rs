//! The command line of questions: `plan`, `why`, `queue`, `capacity`, `tenant tree`, `quota fit`.
//!
//! Owns what may be written. Never does anything.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::OutputArgs;
use crate::completion;

/// `plan`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian plan -f job.yaml
  meridian plan -f job.yaml --detailed-exitcode || echo does not start now
  meridian submit -f job.yaml --plan-token \"$(meridian plan -f job.yaml -o json | jq -r .token)\"
")]
pub(crate) struct PlanArgs {
    /// File, folder or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// End with 0 when all start now, 20 when one queues, 22 when one can never be placed
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `why`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian why llm-70b
  meridian why job/llm-70b -n nlp -o json | jq -r '.remedies[].message'")]
pub(crate) struct WhyArgs {
    /// job/NAME or NAME
    #[arg(add = ArgValueCompleter::new(completion::job_targets))]
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `queue`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian queue --eta
  meridian queue --tenant nlp --limit 10 -o wide")]
pub(crate) struct QueueArgs {
    /// Only of this tenant
    #[arg(long, add = ArgValueCompleter::new(completion::tenants))]
    pub(crate) tenant: Option<String>,
    /// At most so many gangs
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
    /// Show when each may start: at the earliest, and by then if all before it end as they say
    #[arg(long)]
    pub(crate) eta: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `capacity`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian capacity --flavor h100-80gb
  meridian capacity --gangs")]
pub(crate) struct CapacityArgs {
    /// Only of this flavor
    #[arg(long)]
    pub(crate) flavor: Option<String>,
    /// Show the largest gangs that could start, by size of pod, instead of sums
    #[arg(long)]
    pub(crate) gangs: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `tenant`.
#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Show the tree: what each tenant has, uses, borrows and lends, with everything below it
    #[command(after_help = "\
Examples:
  meridian tenant tree
  meridian tenant tree research -o json")]
    Tree(TenantTreeArgs),
}

/// `tenant tree`.
#[derive(Args, Debug)]
pub(crate) struct TenantTreeArgs {
    /// Only this tenant and those below it
    #[arg(add = ArgValueCompleter::new(completion::tenants))]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `quota`.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Say whether tenants and quotas would be let in, and what they would change for work
    #[command(after_help = "\
Nothing is stored. Documents take the place of those of the same name; others stay as they are.
Ends with 4 when the tree as a whole would be refused.

Examples:
  meridian quota fit quotas.yaml
  meridian quota fit tenants/ quotas/ -o json")]
    Fit(QuotaFitArgs),
}

/// `quota fit`.
#[derive(Args, Debug)]
pub(crate) struct QuotaFitArgs {
    /// File, folder or - for standard input, of Tenant and TenantQuota documents
    #[arg(required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
