//! What really ran, as the simulated cluster wrote it down: the judge of every claim.
//!
//! Owns the reading of that history and what must hold of it in every test. Never asks hub or
//! agent what they believe.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meridian_agent::backend::GangKey;
use meridian_agent::simulated::{Truth, TruthEvent};
use meridian_api::ids::{GangId, Uid};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::check::truth::{DeviceHold, Run, devices, exclusive_runs};

/// User code of one pod, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRun {
    /// Whose.
    pub key: GangKey,
    /// In which pod.
    pub pod: String,
    /// Members of its gang.
    pub members: u32,
    /// Members of its gang that were bound when it started.
    pub bound: u32,
    /// Since when.
    pub from: UnixMillis,
    /// Until when; `None` = it runs.
    pub until: Option<UnixMillis>,
}

impl PodRun {
    /// True when it ran at least so long.
    #[must_use]
    pub fn lasted(&self, span: Millis) -> bool {
        let lasts = |until: UnixMillis| until.0 - self.from.0 >= i64::try_from(span.0).unwrap_or(0);
        self.until.is_some_and(lasts)
    }
}

/// What really ran in one cluster.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    events: Vec<TruthEvent>,
}

impl Evidence {
    /// The history in that file; nothing when there is none yet. A last line that is being
    /// written is left out.
    ///
    /// # Panics
    /// When a whole line is not of the history's form.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let event = |line| serde_json::from_str(line).expect("a line of the history");
        let events = whole.lines().map(event).collect();
        Self { events }
    }

    /// Starts of pods so far.
    #[must_use]
    pub fn starts(&self) -> usize {
        let started = |event: &&TruthEvent| event.what == Truth::Started;
        self.events.iter().filter(started).count()
    }

    /// Each run of a pod, in order of their starts.
    ///
    /// # Panics
    /// When a pod ended that had not started.
    #[must_use]
    pub fn runs(&self) -> Vec<PodRun> {
        let mut runs: Vec<PodRun> = Vec::new();
        for event in &self.events {
            match event.what {
                Truth::Started => runs.push(PodRun {
                    key: event.key,
                    pod: event.pod.clone(),
                    members: event.members,
                    bound: event.bound,
                    from: event.at,
                    until: None,
                }),
                Truth::Ended => {
                    let its = |run: &&mut PodRun| {
                        (run.key, &run.pod, run.until) == (event.key, &event.pod, None)
                    };
                    let run = runs.iter_mut().rfind(its).expect("it had started");
                    run.until = Some(event.at);
                }
            }
        }
        runs
    }

    /// What holds always: no device has two owners, no two epochs of a gang run at once, and no
    /// member starts before every member is bound. Empty = all well.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut found = self.shared_devices();
        let told = |violation: Violation| violation.to_string();
        found.extend(exclusive_runs(&self.epochs()).into_iter().map(told));
        let partial = self
            .runs()
            .into_iter()
            .filter(|run| run.bound < run.members);
        found.extend(partial.map(|run| {
            let PodRun {
                key,
                pod,
                bound,
                members,
                ..
            } = run;
            format!("S9: {key}: {pod} started with {bound} of {members} bound")
        }));
        found
    }

    fn shared_devices(&self) -> Vec<String> {
        let mut held: Vec<(&str, DeviceHold)> = Vec::new();
        let mut found = Vec::new();
        for event in &self.events {
            held.retain(|(pod, _)| *pod != event.pod);
            if event.what == Truth::Started {
                let hold = |card: &u32| DeviceHold {
                    device: (String::new(), event.node.clone(), card.to_string()),
                    gang: event.key.gang,
                    epoch: event.key.epoch,
                };
                held.extend(
                    event
                        .devices
                        .iter()
                        .map(|card| (event.pod.as_str(), hold(card))),
                );
                let holds: Vec<DeviceHold> = held.iter().map(|(_, hold)| hold.clone()).collect();
                found.extend(
                    devices(&holds)
                        .into_iter()
                        .map(|violation| violation.to_string()),
                );
                let distinct: BTreeSet<_> = holds.iter().map(|hold| &hold.device).collect();
                if distinct.len() < holds.len() {
                    found.push(format!("S6: {}: a card is given twice", event.key));
                }
            }
        }
        found
    }

    fn epochs(&self) -> Vec<Run> {
        let mut epochs: BTreeMap<GangKey, Run> = BTreeMap::new();
        for run in self.runs() {
            let known = epochs.entry(run.key).or_insert(Run {
                gang: run.key.gang,
                epoch: run.key.epoch,
                from: run.from,
                until: run.until,
            });
            known.from = known.from.min(run.from);
            known.until = match (known.until, run.until) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (None, _) | (_, None) => None,
            };
        }
        epochs.into_values().collect()
    }

    /// Checks that of each of these jobs every pod of its one gang ran to its end exactly once, for
    /// at least `span`, that nothing else ever ran, and what holds always.
    ///
    /// # Panics
    /// When that is not so, with all that is wrong.
    #[track_caller]
    pub fn each_ran_once(&self, jobs: &[Uid], pods: u32, span: Millis) {
        let mut wrong = self.violations();
        let mut by_gang: BTreeMap<GangId, Vec<PodRun>> = BTreeMap::new();
        for run in self.runs() {
            by_gang.entry(run.key.gang).or_default().push(run);
        }
        for job in jobs {
            let gang = GangId {
                job: *job,
                index: 0,
            };
            let runs = by_gang.remove(&gang).unwrap_or_default();
            let epochs: BTreeSet<_> = runs.iter().map(|run| run.key.epoch).collect();
            let ended = runs.iter().filter(|run| run.lasted(span)).count();
            let wanted = usize::try_from(pods).unwrap_or(usize::MAX);
            if (runs.len(), epochs.len(), ended) != (wanted, 1, wanted) {
                let (runs, epochs) = (runs.len(), epochs.len());
                wrong.push(format!(
                    "{gang}: {runs} runs in {epochs} epochs, {ended} to their end; \
                     expected {pods} in 1"
                ));
            }
        }
        let others = by_gang
            .keys()
            .map(|gang| format!("{gang} ran and was not submitted"));
        wrong.extend(others);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
