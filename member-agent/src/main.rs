//! The agent's process.
//!
//! Owns nothing: `command` is all of it, with nobody who is asked whether to go on.

mod command;

use std::process::ExitCode;

use meridian_agent::kubernetes::Hook;

fn main() -> ExitCode {
    command::main(Hook::default())
}
