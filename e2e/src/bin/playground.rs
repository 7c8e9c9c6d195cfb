//! `meridian-playground`: see a federation at work, with nothing to set up.
//!
//! Owns its command line. The world behind it is `meridian_e2e::playground`.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use meridian_e2e::playground::{self, FastOptions, Progress, ServeOptions, ShowProgress};
use meridian_runtime::Clock;
use meridian_runtime::telemetry::{self, LogFormat, TelemetryOptions};

/// A week of real training jobs on three simulated regions, in one process.
///
/// Hub, store and agents are the real ones; machines and time are simulated. The result goes to
/// stdout and is the same, byte for byte, for the same seed; progress goes to stderr.
#[derive(Debug, Parser)]
#[command(name = "meridian-playground", version, max_term_width = 100)]
struct Arguments {
    /// Everything that looks random follows from it
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Days of submissions
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=7))]
    days: u64,
    /// Only the first N jobs; submissions end with the last of them
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Pace of the submissions in percent of the table's; more makes jobs wait
    #[arg(
        long, value_name = "PERCENT", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(10..=1000),
    )]
    load: u64,
    /// Nodes that fail in a week, on average
    #[arg(long, value_name = "N", default_value_t = playground::FAILURES_A_WEEK)]
    faults: u32,
    /// No node fails, as --faults 0
    #[arg(long, conflicts_with = "faults")]
    no_faults: bool,
    /// Plain lines instead of bars
    #[arg(long)]
    no_progress: bool,
    /// Filter of the hub's and agents' log lines on stderr: warn,meridian_hub=debug
    #[arg(long, default_value = "error")]
    log: String,
    /// Keep it running on a scaled clock, for kubectl and meridian from another terminal
    #[arg(long)]
    serve: bool,
    /// With --serve: simulated seconds for each real one
    #[arg(
        long, default_value_t = 60, requires = "serve",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(playground::MAX_SCALE)),
    )]
    scale: u32,
    /// With --serve: where users connect
    #[arg(long, default_value = "127.0.0.1:7080", requires = "serve")]
    listen: std::net::SocketAddr,
}

impl Arguments {
    fn failures_a_week(&self) -> u32 {
        if self.no_faults { 0 } else { self.faults }
    }
}

/// Form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs; the order of fields is stable.
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.serve {
        serve(&arguments)
    } else {
        fast(&arguments)
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("meridian-playground: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fast(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::init(&telemetry_options(arguments))?;
    let clock = Clock::real();
    let began = clock.boot();
    let mut progress = Progress::new(if arguments.no_progress {
        ShowProgress::Plain
    } else {
        ShowProgress::Auto
    });
    let options = FastOptions {
        seed: arguments.seed,
        days: arguments.days,
        jobs: arguments.jobs,
        load_percent: arguments.load,
        failures_a_week: arguments.failures_a_week(),
    };
    let summary = playground::run(&options, &mut progress)?;
    match arguments.output {
        Output::Table => print!("{summary}"),
        Output::Json => {
            let json = serde_json::to_string_pretty(&summary);
            println!("{}", json.context("the summary as JSON")?);
        }
    }
    let took = clock.boot().since(began).0;
    eprintln!("took {}.{} s", took / 1000, took % 1000 / 100);
    Ok(if summary.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn serve(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("a runtime")?;
    runtime.block_on(async {
        let _telemetry = telemetry::init(&telemetry_options(arguments))?;
        let options = ServeOptions {
            seed: arguments.seed,
            scale: arguments.scale.try_into().context("--scale")?,
            listen: arguments.listen,
            failures_a_week: arguments.failures_a_week(),
        };
        playground::serve(options).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn telemetry_options(arguments: &Arguments) -> TelemetryOptions {
    TelemetryOptions {
        service: "meridian-playground",
        format: LogFormat::Text,
        filter: arguments.log.clone(),
        otlp_endpoint: None,
    }
}
