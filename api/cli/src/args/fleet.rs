//! The command line of what looks after the fleet: `cluster list`, `describe` and `drain`, `top`.
//!
//! Owns what may be written. Never does anything.

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use meridian_api::quantity::Span;

use super::{Dry, OutputArgs};
use crate::completion;
use crate::output::Format;

/// `cluster list`.
#[derive(Args, Debug)]
pub(crate) struct ClusterListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `cluster describe`.
#[derive(Args, Debug)]
pub(crate) struct ClusterDescribeArgs {
    /// Name of the cluster
    #[arg(add = ArgValueCompleter::new(completion::clusters))]
    pub(crate) name: String,
    /// At most so many of the gangs there
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `cluster drain`.
#[derive(Args, Debug)]
pub(crate) struct ClusterDrainArgs {
    /// Name of the cluster
    #[arg(add = ArgValueCompleter::new(completion::clusters))]
    pub(crate) name: String,
    /// Close it first, and leave gangs this long to end by themselves
    #[arg(long, value_name = "SPAN")]
    pub(crate) grace: Option<Span>,
    /// Wait until nothing is placed there
    #[arg(long)]
    pub(crate) wait: bool,
    /// Give up waiting after this long
    #[arg(long, value_name = "SPAN", requires = "wait")]
    pub(crate) timeout: Option<Span>,
    /// Try it only
    #[arg(long, value_enum, default_value_t, num_args = 0..=1, default_missing_value = "client")]
    pub(crate) dry_run: Dry,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// What the rows are; default: clusters, pools and tenants
    #[arg(long, value_enum)]
    pub(crate) by: Option<TopRows>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Go on, every two seconds
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// What the rows of `top` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopRows {
    /// One for each cluster
    Cluster,
    /// One for each pool
    Pool,
    /// One for each tenant
    Tenant,
}
