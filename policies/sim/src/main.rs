//! Simulates a public table that ships with the simulator, and prints the summary.
//!
//! Owns the choice of the table by arguments. Users' own traces are `meridian simulate`'s matter.

use std::process::ExitCode;

use meridian_api::units::Millis;
use meridian_sim::traces::{Prepared, helios, openb, philly};
use meridian_sim::{Alone, Options, Scenario};

/// Plans are many small objects with short lives.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
meridian-sim philly|helios|openb [--first DAY] [--days N] [--load PERCENT] [--round-every SECONDS]
                                 [--hosts-as-recorded] [--alone] [--json]";

struct Arguments {
    table: String,
    first: u64,
    days: Option<u64>,
    load: u64,
    round_every: u64,
    hosts_as_recorded: bool,
    alone: Alone,
    json: bool,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        table: words.next().ok_or("no table is named")?,
        first: 0,
        days: None,
        load: 90,
        round_every: 0,
        hosts_as_recorded: false,
        alone: Alone::Skipped,
        json: false,
    };
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a number"))?;
            value
                .parse()
                .map_err(|error| format!("{word} {value}: {error}"))
        };
        match word.as_str() {
            "--first" => arguments.first = number()?,
            "--days" => arguments.days = Some(number()?),
            "--load" => arguments.load = number()?,
            "--round-every" => arguments.round_every = number()?,
            "--hosts-as-recorded" => arguments.hosts_as_recorded = true,
            "--alone" => arguments.alone = Alone::Compared,
            "--json" => arguments.json = true,
            _ => return Err(format!("{word} is no flag")),
        }
    }
    Ok(arguments)
}

fn prepare(arguments: &Arguments) -> Result<Prepared, String> {
    let prepared = match arguments.table.as_str() {
        "philly" => {
            let days = arguments.days.unwrap_or(philly::DAYS);
            philly::prepare(arguments.first, days, arguments.load)
        }
        "helios" => helios::prepare(arguments.days.unwrap_or(31).saturating_mul(24)),
        "openb" => openb::prepare(),
        other => return Err(format!("there is no table {other}")),
    };
    prepared.map_err(|error| error.to_string())
}

fn run() -> Result<(), String> {
    let arguments =
        arguments(std::env::args().skip(1)).map_err(|wrong| format!("{wrong}\n{USAGE}"))?;
    let prepared = prepare(&arguments)?;
    let scenario = Scenario {
        rules: &prepared.rules,
        fleet: &prepared.fleet,
        trace: prepared.name,
        jobs: &prepared.jobs,
        hosts: if arguments.hosts_as_recorded {
            &prepared.hosts
        } else {
            &[]
        },
        options: Options {
            round_every: Millis::seconds(arguments.round_every),
            ..Options::default()
        },
        alone: arguments.alone,
    };
    let summary = scenario.run().map_err(|error| error.to_string())?;
    if arguments.json {
        let text = serde_json::to_string(&summary).map_err(|error| error.to_string())?;
        println!("{text}");
    } else {
        print!("{}", summary.to_text());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meridian-sim: {error}");
            ExitCode::FAILURE
        }
    }
}
