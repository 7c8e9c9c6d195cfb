//! A scenario: everything that one simulation is asked, and its answer.
//!
//! Owns putting the parts together. Never reads a file.

use crate::engine::{self, EngineError, Moment, Options};
use crate::fleet::Fleet;
use crate::private;
use crate::rules::Rules;
use crate::summary::{Summary, summarise, waits};
use crate::trace::{HostsUp, Job};
use crate::world::{Stranger, World};

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'a> {
    /// Tenants, quotas and classes.
    pub rules: &'a Rules,
    /// Where jobs run.
    pub fleet: &'a Fleet,
    /// Name of the trace, for errors.
    pub trace: &'a str,
    /// Jobs, by submission.
    pub jobs: &'a [Job],
    /// Hosts that go and come, by instant; empty keeps all up.
    pub hosts: &'a [HostsUp],
    /// How it is run.
    pub options: Options,
    /// Whether each tenant is also run alone.
    pub alone: Alone,
}

/// Whether each tenant is also run on a private cluster of its own quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alone {
    /// It is not.
    #[default]
    Skipped,
    /// It is, and the waits are compared.
    Compared,
}

/// A scenario that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// A job does not fit the policies or the fleet.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// The run broke off.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Scenario<'_> {
    /// Runs it to its end.
    pub fn run(&self) -> Result<Summary, SimulationError> {
        self.run_watched(|_| {})
    }

    /// Runs it to its end and shows each moment of the shared fleet on the way.
    pub fn run_watched(
        &self,
        mut watch: impl FnMut(Moment<'_>),
    ) -> Result<Summary, SimulationError> {
        let world = World::new(self.rules, self.fleet);
        let gangs = world.gangs(self.trace, self.jobs)?;
        let outcome = engine::run(&world, &gangs, self.hosts, self.options, &mut watch)?;
        let mut summary = summarise(&world, &gangs, self.jobs, &outcome);
        if self.alone == Alone::Compared {
            let shared = waits(&outcome.runs);
            let sharing = private::compare(&world, self.jobs, &gangs, &shared, self.options)?;
            summary.sharing = Some(sharing);
        }
        Ok(summary)
    }
}
