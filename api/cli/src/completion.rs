//! Completion in shells: verbs and flags from the command line's own definition, names live.
//!
//! Owns asking the hub for names, for at most a second and in silence: a shell that hangs or
//! prints errors while one types is worse than one that offers nothing.

use std::ffi::OsStr;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use meridian_client::{Client, ClientOptions, ListOptions, Resource};
use meridian_runtime::clock::Millis;
use serde_json::Value;

use crate::args::{Cli, Shell};
use crate::context::{Context, NAMESPACE_VARIABLE, SERVER_VARIABLE, Server};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::targets;

/// How long a shell waits for names.
const LIMIT: Millis = Millis::seconds(1);
/// Environment variable by which the script asks; the library's own name for it.
const VARIABLE: &str = "COMPLETE";
/// Name of the command in shells.
const BINARY: &str = "meridian";

/// Answers a shell that asks for completions and ends; returns when this is an ordinary run.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .bin(BINARY)
        .complete();
}

/// Prints the script for a shell.
pub(crate) fn print(context: &mut Context, shell: Shell) -> Result<Exit, Failure> {
    let script = match shell {
        Shell::Bash => script(&Bash),
        Shell::Zsh => script(&Zsh),
        Shell::Fish => script(&Fish),
    };
    context.out.text(&script.map_err(Failure::Output)?)?;
    Ok(Exit::Done)
}

fn script(shell: &dyn EnvCompleter) -> Result<String, std::io::Error> {
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, BINARY, BINARY, BINARY, &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Kinds, `KIND/NAME`, and names behind a kind that was written already.
pub(crate) fn targets(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    if let Some((kind, _)) = current.split_once('/') {
        return slashed(kind, &current);
    }
    let line = Line::read();
    match line.kind() {
        Some(resource) => candidates(names(&line, resource), &current),
        None => candidates(targets::words().map(str::to_owned).collect(), &current),
    }
}

/// Names of jobs, with or without `job/`, and `KIND/NAME`.
pub(crate) fn job_targets(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    match current.split_once('/') {
        Some((kind, _)) => slashed(kind, &current),
        None => candidates(names(&Line::read(), targets::jobs()), &current),
    }
}

/// Names of clusters.
pub(crate) fn clusters(current: &OsStr) -> Vec<CompletionCandidate> {
    of_kind("clusters", current)
}

/// Names of regions.
pub(crate) fn regions(current: &OsStr) -> Vec<CompletionCandidate> {
    of_kind("regions", current)
}

/// Names of tenants.
pub(crate) fn tenants(current: &OsStr) -> Vec<CompletionCandidate> {
    of_kind("tenants", current)
}

/// Names of namespaces.
pub(crate) fn namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    of_kind("namespaces", current)
}

fn of_kind(kind: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let found = targets::kind(kind).map(|resource| names(&Line::read(), resource));
    candidates(found.unwrap_or_default(), &current.to_string_lossy())
}

fn slashed(kind: &str, current: &str) -> Vec<CompletionCandidate> {
    let Ok(resource) = targets::kind(kind) else {
        return Vec::new();
    };
    let names = names(&Line::read(), resource);
    let whole = names.iter().map(|name| format!("{kind}/{name}")).collect();
    candidates(whole, current)
}

fn candidates(words: Vec<String>, current: &str) -> Vec<CompletionCandidate> {
    words
        .into_iter()
        .filter(|word| word.starts_with(current))
        .map(CompletionCandidate::new)
        .collect()
}

/// The command line as far as it is written: the library hands completers only the last word.
struct Line(Vec<String>);

impl Line {
    /// The shell's words come after `--`.
    fn read() -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self(words.skip_while(|word| word != "--").skip(1).collect())
    }

    /// Value of a flag, as `--flag value`, `--flag=value` or `-f value`.
    fn flag(&self, names: &[&str]) -> Option<&str> {
        self.0.iter().enumerate().find_map(|(at, word)| {
            if names.contains(&word.as_str()) {
                return self.0.get(at + 1).map(String::as_str);
            }
            let (name, value) = word.split_once('=')?;
            names.contains(&name).then_some(value)
        })
    }

    /// The kind that is written behind the verb, when another word follows it.
    fn kind(&self) -> Option<Resource> {
        let written = self.0.get(..self.0.len().checked_sub(1)?)?;
        written
            .iter()
            .skip(2)
            .find_map(|word| targets::kind(word).ok())
    }
}

/// Names of live objects; none when the hub does not answer in time.
fn names(line: &Line, resource: Resource) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    runtime.block_on(ask(line, resource)).unwrap_or_default()
}

async fn ask(line: &Line, resource: Resource) -> Option<Vec<String>> {
    let variable = |name: &str| std::env::var(name).ok();
    let server = Server::choose(line.flag(&["--server"]), variable(SERVER_VARIABLE));
    let namespace = line.flag(&["-n", "--namespace"]).map(str::to_owned);
    let namespace = namespace
        .or_else(|| variable(NAMESPACE_VARIABLE))
        .unwrap_or_else(|| "default".to_owned());
    let mut options = ClientOptions::new(server.address);
    options.timeout = LIMIT;
    let clock = options.clock.clone();
    let client = Client::new(options).ok()?;
    let everything = ListOptions::default();
    let listed = client.list(&resource, Some(&namespace), &everything);
    let listing = clock.timeout(LIMIT, listed).await.ok()?.ok()?;
    let name = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
    Some(listing.items.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_kinds_are_found_in_a_line() {
        let line = |text: &str| Line(text.split(' ').map(str::to_owned).collect());
        let written = line("meridian get jobs -n nlp --server=x:1 ll");
        assert_eq!(written.flag(&["-n", "--namespace"]), Some("nlp"));
        assert_eq!(written.flag(&["--server"]), Some("x:1"));
        assert_eq!(written.flag(&["--other"]), None);
        assert_eq!(written.kind(), Some(targets::jobs()));
        assert_eq!(
            line("meridian get jobs").kind(),
            None,
            "still being written"
        );
        assert_eq!(line("meridian").kind(), None);
    }

    #[test]
    fn every_shell_has_a_script_that_calls_back() {
        for shell in [&Bash as &dyn EnvCompleter, &Zsh, &Fish] {
            let script = script(shell).expect("a script");
            assert!(
                script.contains("meridian") && script.contains(VARIABLE),
                "{script}"
            );
        }
    }
}
