//! `meridian-trainer`: what real nodes run in place of training, and in place of a pause container.
//!
//! Owns the command line. What it does is `meridian_e2e::member::trainer`'s.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use meridian_e2e::member::trainer::{self, TrainerOptions};
use meridian_runtime::Clock;

/// Stands in for training on a real node.
#[derive(Debug, Parser)]
#[command(name = "meridian-trainer", version)]
enum Command {
    /// Trains as its environment says.
    Train(Box<TrainerOptions>),
    /// Waits for SIGTERM: holds the namespaces of a pod.
    Pause,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Train(options) => {
            let code = trainer::train(*options, &Clock::real()).await;
            Ok(ExitCode::from(code.context("cannot train")?))
        }
        Command::Pause => {
            trainer::pause().await.context("cannot wait for SIGTERM")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
