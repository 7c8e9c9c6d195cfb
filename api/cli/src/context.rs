//! What every command works with: the client, the clock, where output goes.
//!
//! Owns the defaults of server and namespace and where they came from. Never reads arguments.

use std::io::{IsTerminal as _, Write as _};

use meridian_client::{Client, ClientOptions, DEFAULT_SERVER};
use meridian_runtime::{Clock, Random};
use serde_json::Value;

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::output::{Format, Out, list_of};
use crate::progress::{Mode, Progress};

/// Environment variable of the server's address.
pub(crate) const SERVER_VARIABLE: &str = "MERIDIAN_SERVER";
/// Environment variable of the namespace.
pub(crate) const NAMESPACE_VARIABLE: &str = "MERIDIAN_NAMESPACE";
/// Namespace when nothing else is said.
const DEFAULT_NAMESPACE: &str = "default";

/// Where requests go, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) address: String,
    from: &'static str,
}

impl Server {
    pub(crate) fn choose(flag: Option<&str>, variable: Option<String>) -> Self {
        let (address, from) = match (flag, variable.filter(|value| !value.is_empty())) {
            (Some(address), _) => (address.to_owned(), "from --server"),
            (None, Some(address)) => (address, "from MERIDIAN_SERVER"),
            (None, None) => (DEFAULT_SERVER.to_owned(), "the default"),
        };
        Self { address, from }
    }

    /// `http://127.0.0.1:7080 (the default)`.
    pub(crate) fn described(&self) -> String {
        format!("{} ({})", self.address, self.from)
    }
}

/// What a command works with.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) server: Server,
    /// The namespace that was asked for on the command line.
    pub(crate) asked_namespace: Option<String>,
    /// The namespace when a document or name has none.
    pub(crate) namespace: String,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) out: Out,
    pub(crate) progress: Mode,
    /// A person is there to be asked.
    pub(crate) interactive: bool,
}

impl Context {
    /// From arguments and environment. Call within a tokio runtime.
    pub(crate) fn new(args: &GlobalArgs) -> Result<Self, Failure> {
        let server = Server::choose(args.server.as_deref(), variable(SERVER_VARIABLE));
        let (clock, random) = (Clock::real(), Random::from_machine());
        let mut options = ClientOptions::new(server.address.clone());
        options.timeout = args.request_timeout.0;
        options.clock = clock.clone();
        options.random = random.clone();
        let fallback = variable(NAMESPACE_VARIABLE).filter(|value| !value.is_empty());
        let namespace = args.namespace.clone().or(fallback);
        Ok(Self {
            client: Client::new(options)?,
            server,
            asked_namespace: args.namespace.clone(),
            namespace: namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            clock,
            random,
            out: Out::stdout(),
            progress: Mode::choose(args.no_progress),
            interactive: std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
        })
    }

    /// A line of progress about one thing.
    pub(crate) fn progress(&self) -> Progress {
        Progress::new(self.progress, self.clock.clone())
    }

    /// Prints whole objects in a structured form, or their names; `None` when `format` is a table,
    /// which each command lays out itself.
    pub(crate) fn print_objects(
        &mut self,
        format: Format,
        objects: &[Value],
        single: bool,
    ) -> Option<Result<(), Failure>> {
        match format {
            Format::Table | Format::Wide => None,
            Format::Json => Some(self.out.json(&list_of(objects.to_vec(), single))),
            Format::Yaml => Some(self.out.yaml(&list_of(objects.to_vec(), single))),
            Format::Name => Some(objects.iter().try_for_each(|object| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                self.out.line(&format!("{}/{name}", singular(object)))
            })),
        }
    }

    /// Prints one value that is no object; it has no name.
    pub(crate) fn print_value(
        &mut self,
        format: Format,
        value: &Value,
    ) -> Option<Result<(), Failure>> {
        match format {
            Format::Table | Format::Wide => None,
            Format::Json => Some(self.out.json(value)),
            Format::Yaml => Some(self.out.yaml(value)),
            Format::Name => Some(Err(Failure::usage(
                "this command's result has no names",
                "use -o table, wide, json or yaml",
            ))),
        }
    }
}

/// `federatedjob.meridian.dev` of an object, from its own words.
fn singular(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    match version.split_once('/') {
        Some((group, _)) => format!("{kind}.{group}"),
        None => kind,
    }
}

/// A line for the person, beside the data. Nobody there to read it is no error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The hub's warnings.
pub(crate) fn warn(what: &str, warnings: &[String]) {
    for warning in warnings {
        note(&format!("warning: {what}: {warning}"));
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_default() {
        let server = |flag, variable: Option<&str>| {
            Server::choose(flag, variable.map(str::to_owned)).described()
        };
        assert_eq!(server(Some("a:1"), Some("b:2")), "a:1 (from --server)");
        assert_eq!(server(None, Some("b:2")), "b:2 (from MERIDIAN_SERVER)");
        assert_eq!(
            server(None, Some("")),
            format!("{DEFAULT_SERVER} (the default)")
        );
    }
}
