//! The `meridian` command: a person's and a script's way to a hub.
//!
//! Owns arguments, output, exit codes and words. Decides nothing about work, and keeps nothing:
//! everything it shows is asked of the hub.

mod args;
mod commands;
mod completion;
mod context;
mod documents;
mod exit;
mod failure;
mod manifests;
mod output;
mod progress;
mod render;
mod targets;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};
use crate::context::{Context, Server, note};
use crate::exit::Exit;
use crate::failure::Failure;

/// A shell that asks for completions is answered before anything else happens, because that must
/// be done while there is one thread.
fn main() -> ExitCode {
    completion::answer_shell();
    run()
}

#[tokio::main]
async fn run() -> ExitCode {
    let cli = Cli::parse();
    let variable = std::env::var(context::SERVER_VARIABLE).ok();
    let server = Server::choose(cli.global.server.as_deref(), variable).described();
    let exit = match execute(cli).await {
        Ok(exit) => exit,
        Err(failure) => {
            if let Some(report) = failure.report(&server) {
                note(&report);
            }
            failure.exit()
        }
    };
    ExitCode::from(exit.code())
}

async fn execute(cli: Cli) -> Result<Exit, Failure> {
    let mut context = Context::new(&cli.global)?;
    let context = &mut context;
    match cli.command {
        Command::Apply(args) => commands::apply::run(context, args).await,
        Command::Get(args) => commands::get::run(context, args).await,
        Command::Describe(args) => commands::describe::run(context, args).await,
        Command::Delete(args) => commands::delete::run(context, args).await,
        Command::Submit(args) => commands::submit::run(context, args).await,
        Command::Plan(args) => commands::plan::run(context, args).await,
        Command::Wait(args) => commands::wait::run(context, args).await,
        Command::Why(args) => commands::why::run(context, args).await,
        Command::Logs(args) => commands::logs::run(context, args).await,
        Command::Queue(args) => commands::queue::run(context, args).await,
        Command::Capacity(args) => commands::capacity::run(context, args).await,
        Command::Tenant(command) => commands::tenant::run(context, command).await,
        Command::Quota(command) => commands::quota::run(context, command).await,
        Command::Top(args) => commands::top::run(context, args).await,
        Command::Cluster(command) => commands::cluster::run(context, command).await,
        Command::Events(args) => commands::events::run(context, args).await,
        Command::Completion(args) => completion::print(context, args.shell),
        Command::Version(args) => commands::version::run(context, args).await,
        Command::Simulate(args) => commands::simulate::run(context, &args),
        Command::Replay(args) => commands::replay::run(context, &args),
        Command::Playground(args) => commands::playground::run(&args.args),
    }
}
