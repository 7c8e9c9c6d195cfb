//! The command line of `logs`.
//!
//! Owns what may be written. Never does anything.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use meridian_api::quantity::Span;

use crate::completion;

/// `logs`.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// job/NAME or NAME
    #[arg(add = ArgValueCompleter::new(completion::job_targets))]
    pub(crate) job: String,
    /// Index of the gang in the job
    #[arg(long, default_value_t = 0)]
    pub(crate) gang: u32,
    /// Role; default: the gang's first
    #[arg(long)]
    pub(crate) role: Option<String>,
    /// Rank in the role
    #[arg(long, default_value_t = 0, conflicts_with = "all")]
    pub(crate) rank: u32,
    /// Every pod of the gang, or of the role; each line begins with its pod
    #[arg(long)]
    pub(crate) all: bool,
    /// Container; default: the pod's first
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Go on with lines as they are written
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only so many of the newest lines
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Only lines that are not older, as in 10m
    #[arg(long, value_name = "SPAN")]
    pub(crate) since: Option<Span>,
    /// Of the container's life before the present one
    #[arg(short, long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Each line begins with its time
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Then wait for the job, and end with its code as `wait` does
    #[arg(long, requires = "follow")]
    pub(crate) follow_exit: bool,
}
