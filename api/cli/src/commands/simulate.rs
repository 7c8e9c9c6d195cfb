//! `simulate`: what policies would have done to a trace of jobs. Asks no hub: the decisions run
//! here, in the code that a hub of this version runs.
//!
//! Owns reading the files and naming them in errors. Decides nothing, and sums nothing up.

use std::path::Path;

use meridian_client::Resource;
use meridian_sim::table::TableError;
use meridian_sim::{Alone, Fleet, Options, Rules, Scenario, trace};
use serde_json::Value;

use crate::args::SimulateArgs;
use crate::context::Context;
use crate::documents;
use crate::exit::Exit;
use crate::failure::Failure;

/// Most bytes of one table: ten million rows of a hundred bytes, which is as many as are read.
const MAX_TABLE_BYTES: u64 = 1 << 30;
const COLUMNS: &str = "`meridian simulate --help` lists the columns; times are seconds or 1h30m";

pub(crate) fn run(context: &mut Context, args: &SimulateArgs) -> Result<Exit, Failure> {
    let rules = rules(args)?;
    let fleet = fleet(args, &rules)?;
    let name = args.trace.display().to_string();
    let jobs = trace::read_jobs(&name, &table(&args.trace)?).map_err(|error| wrong(&error))?;
    let hosts = match &args.hosts {
        Some(path) => trace::read_hosts(&path.display().to_string(), &table(path)?),
        None => Ok(Vec::new()),
    };
    let hosts = hosts.map_err(|error| wrong(&error))?;
    let scenario = Scenario {
        rules: &rules,
        fleet: &fleet,
        trace: &name,
        jobs: &jobs,
        hosts: &hosts,
        options: Options {
            round_every: args.round_every.map(|span| span.0).unwrap_or_default(),
            ..Options::default()
        },
        alone: if args.alone {
            Alone::Compared
        } else {
            Alone::Skipped
        },
    };
    let summary = scenario.run().map_err(|error| ended(error.to_string()))?;
    let value: Value = serde_json::to_value(&summary).map_err(|error| ended(error.to_string()))?;
    match context.print_value(args.output, &value) {
        Some(printed) => printed?,
        None => context.out.text(&summary.to_text())?,
    }
    Ok(Exit::Done)
}

fn rules(args: &SimulateArgs) -> Result<Rules, Failure> {
    let wanted = documents::load(&args.policies)?;
    // Namespaces may stand among policies; a simulation has none.
    let ours = wanted
        .iter()
        .filter(|document| document.resource != Resource::NAMESPACES);
    let named = ours.map(|document| (document.origin.as_str(), &document.value));
    Rules::read(named).map_err(|refused| Failure::Document {
        origin: refused.origin,
        source: refused.source,
    })
}

fn fleet(args: &SimulateArgs, rules: &Rules) -> Result<Fleet, Failure> {
    let Some(path) = &args.fleet else {
        return rules.fleet().map_err(|none| {
            Failure::usage(
                none.to_string(),
                "name a table of hosts by --fleet, or put what `meridian get pools -o yaml` \
                 prints into the folder of policies",
            )
        });
    };
    let name = path.display().to_string();
    Fleet::read(&name, &table(path)?).map_err(|error| wrong(&error))
}

fn table(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |source| Failure::Unreadable {
        path: path.display().to_string(),
        source,
    };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_TABLE_BYTES {
        let message = format!(
            "{} has {size} bytes, at most {MAX_TABLE_BYTES} are read",
            path.display()
        );
        return Err(Failure::usage(message, "cut the table into shorter times"));
    }
    std::fs::read(path).map_err(unreadable)
}

fn wrong(error: &TableError) -> Failure {
    Failure::Ended {
        code: None,
        message: error.to_string(),
        fix: COLUMNS.to_owned(),
        exit: Exit::Error,
    }
}

fn ended(message: String) -> Failure {
    Failure::Ended {
        code: None,
        message,
        fix: String::new(),
        exit: Exit::Error,
    }
}
