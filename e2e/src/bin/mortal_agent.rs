//! `mortal-agent`: the agent, which dies or is held where a test says.
//!
//! Owns nothing but the question after each step. All the rest is the real agent's command,
//! compiled once more; the agent that ships is built without any of this.

#[path = "../../../member-agent/src/command.rs"]
mod command;

use std::path::PathBuf;
use std::process::ExitCode;

use meridian_agent::kubernetes::Hook;
use meridian_e2e::deployment::{FAIL_POINT, goes_on};

fn main() -> ExitCode {
    let Some(file) = std::env::var_os(FAIL_POINT).map(PathBuf::from) else {
        eprintln!("mortal-agent: {FAIL_POINT} names no file");
        return ExitCode::FAILURE;
    };
    command::main(Hook::new(move |step| goes_on(&file, step)))
}
