//! `meridian-simulate`: one seed of the fault simulation, or many, each in a process of its own.
//!
//! Owns the command line and the summary. What is simulated and checked is `meridian_e2e`'s.

use std::ops::Range;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use futures::StreamExt as _;
use meridian_api::units::Millis;
use meridian_e2e::simulation::{self, Echo, Options};

/// Simulates hubs, agents and clusters under faults, and checks invariants after each step.
#[derive(Debug, Parser)]
#[command(name = "meridian-simulate", version)]
struct Arguments {
    /// The seed to run in this process.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds to run, each in a process of its own: FIRST..END.
    #[arg(long, value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Processes at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Simulated seconds of each run, at least 60.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(60..))]
    seconds: u64,
    /// Prints the log of the run to stdout, and what hubs and agents log to stderr.
    #[arg(long, requires = "seed")]
    log: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed.ok_or_else(|| format!("{text:?} is no range such as 0..500"))
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    match (arguments.seed, &arguments.seeds) {
        (Some(seed), _) => Ok(one(seed, &arguments)),
        (None, Some(range)) => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start a runtime")?;
            runtime.block_on(many(range.clone(), &arguments))
        }
        (None, None) => anyhow::bail!("give --seed N or --seeds FIRST..END"),
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    if arguments.log {
        // Without times: those would be the machine's.
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter("debug,h2=off,hyper_util=off,turmoil=off,tower=off,tonic=off")
            .with_ansi(false)
            .without_time()
            .init();
    }
    let report = simulation::run(Options {
        seed,
        length: Millis::seconds(arguments.seconds),
        echo: if arguments.log { Echo::Yes } else { Echo::No },
    });
    println!("{report}");
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn many(range: Range<u64>, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let total = range.end.saturating_sub(range.start);
    let runs = range.map(|seed| {
        let mut command = tokio::process::Command::new(&program);
        let seconds = arguments.seconds.to_string();
        command.args(["--seed", &seed.to_string(), "--seconds", &seconds]);
        command.kill_on_drop(true);
        async move { (seed, command.output().await) }
    });
    let mut runs = futures::stream::iter(runs).buffered(arguments.jobs.max(1));
    let mut failed = Vec::new();
    while let Some((seed, output)) = runs.next().await {
        let output = output.with_context(|| format!("cannot run seed {seed}"))?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            print!("{}", String::from_utf8_lossy(&output.stderr));
            let seconds = arguments.seconds;
            println!("  again: meridian-simulate --seed {seed} --seconds {seconds} --log");
            failed.push(seed);
        }
    }
    println!("{} of {total} seeds ok", total - failed.len() as u64);
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("failed: {failed:?}");
    Ok(ExitCode::FAILURE)
}
