//! What really ran on real nodes, from what the trainers wrote while they ran.
//!
//! Owns the form of a heartbeat and the two judgements that every test of gangs makes: no gang was
//! started in part, and no two placements of one gang ran at once. Never asks an API: what is in a
//! file was written by a process that ran.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meridian_api::units::{BootMillis, Millis};
use serde::{Deserialize, Serialize};

/// What a trainer wrote down at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    /// It began.
    Started,
    /// It runs.
    Beat,
    /// It has written a checkpoint.
    Saved,
    /// It ends, because it is done or was told to.
    Ended,
}

/// One line of a trainer's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// When, by the boot clock, which all nodes of one machine share.
    pub at: BootMillis,
    /// What happened.
    pub what: Moment,
    /// The pod's uid.
    pub pod: String,
    /// The pod's name.
    pub name: String,
    /// The job.
    pub job: String,
    /// The gang in the job.
    pub gang: String,
    /// The placement.
    pub epoch: u64,
    /// The rank in the gang.
    pub rank: u32,
    /// Ranks of the gang.
    pub world: u32,
    /// Steps trained.
    pub step: u64,
}

impl Beat {
    /// As a line, with its end.
    pub(super) fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("numbers and texts are JSON");
        line.push('\n');
        line
    }
}

/// One process that trained, from its first line to its last. It was alive all that while, and at
/// most one [`super::trainer::BEAT_EVERY`] longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pod's uid.
    pub pod: String,
    /// The pod's name.
    pub name: String,
    /// The job.
    pub job: String,
    /// The gang in the job.
    pub gang: String,
    /// The placement.
    pub epoch: u64,
    /// The rank in the gang.
    pub rank: u32,
    /// Ranks of the gang.
    pub world: u32,
    /// Its first line.
    pub from: BootMillis,
    /// Its last line.
    pub to: BootMillis,
    /// The step that it began with.
    pub first_step: u64,
    /// The step that it came to.
    pub last_step: u64,
    /// It said that it ends; otherwise it was killed, or runs.
    pub has_ended: bool,
}

impl Run {
    fn key(&self) -> GangOf {
        (self.job.clone(), self.gang.clone())
    }

    fn meets(&self, other: &Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

type GangOf = (String, String);

/// Two placements of one gang ran at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleRun {
    /// Of the older epoch.
    pub older: Run,
    /// Of the younger one.
    pub younger: Run,
}

/// A placement of which some ranks ran for long while others never did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialStart {
    /// The job.
    pub job: String,
    /// The gang in the job.
    pub gang: String,
    /// The placement.
    pub epoch: u64,
    /// Ranks that never ran.
    pub missing: Vec<u32>,
    /// The longest run of one that did.
    pub longest: Millis,
}

/// Everything that ran.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    runs: Vec<Run>,
}

impl Truth {
    /// Reads the files of a folder; nothing when there is none. A last line that is being written
    /// is left out.
    ///
    /// # Panics
    /// When a whole line is not of a heartbeat's form.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let mut runs = Vec::new();
        for path in paths {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            runs.extend(Self::of(&text).runs);
        }
        Self { runs }
    }

    /// The runs of one file: each start begins another.
    fn of(text: &str) -> Self {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut runs: Vec<Run> = Vec::new();
        for line in whole.lines() {
            let beat: Beat = serde_json::from_str(line).expect("a line of a heartbeat file");
            match (beat.what, runs.last_mut()) {
                (Moment::Started, _) | (_, None) => runs.push(Run {
                    pod: beat.pod,
                    name: beat.name,
                    job: beat.job,
                    gang: beat.gang,
                    epoch: beat.epoch,
                    rank: beat.rank,
                    world: beat.world,
                    from: beat.at,
                    to: beat.at,
                    first_step: beat.step,
                    last_step: beat.step,
                    has_ended: false,
                }),
                (Moment::Beat | Moment::Saved | Moment::Ended, Some(run)) => {
                    run.to = beat.at;
                    run.last_step = beat.step;
                    run.has_ended = beat.what == Moment::Ended;
                }
            }
        }
        Self { runs }
    }

    /// Each run, by pod.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Runs of one pod, by its name.
    #[must_use]
    pub fn runs_of(&self, pod: &str) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.name == pod).collect()
    }

    /// Where two placements of one gang ran at once: there must be none.
    #[must_use]
    pub fn double_runs(&self) -> Vec<DoubleRun> {
        let mut found = Vec::new();
        for older in &self.runs {
            for younger in &self.runs {
                let same_gang = older.key() == younger.key();
                if same_gang && older.epoch < younger.epoch && older.meets(younger) {
                    let (older, younger) = (older.clone(), younger.clone());
                    found.push(DoubleRun { older, younger });
                }
            }
        }
        found
    }

    /// Placements that were started in part: a rank ran longer than `patience`, which is what the
    /// slowest rank may take to start after the first, and another never ran.
    #[must_use]
    pub fn partial_starts(&self, patience: Millis) -> Vec<PartialStart> {
        let mut placements: BTreeMap<(GangOf, u64), Vec<&Run>> = BTreeMap::new();
        for run in &self.runs {
            let key = (run.key(), run.epoch);
            placements.entry(key).or_default().push(run);
        }
        let mut found = Vec::new();
        for (((job, gang), epoch), runs) in placements {
            let ran: BTreeSet<u32> = runs.iter().map(|run| run.rank).collect();
            let world = runs.iter().map(|run| run.world).max().unwrap_or(0);
            let missing: Vec<u32> = (0..world).filter(|rank| !ran.contains(rank)).collect();
            let longest = runs.iter().map(|run| run.to.since(run.from)).max();
            let longest = longest.unwrap_or(Millis::ZERO);
            if !missing.is_empty() && longest > patience {
                found.push(PartialStart {
                    job,
                    gang,
                    epoch,
                    missing,
                    longest,
                });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(at: u64, what: Moment, epoch: u64, rank: u32) -> Beat {
        Beat {
            at: BootMillis(at),
            what,
            pod: format!("{epoch}-{rank}"),
            name: format!("pod-{epoch}-{rank}"),
            job: "job".into(),
            gang: "0".into(),
            epoch,
            rank,
            world: 2,
            step: 0,
        }
    }

    /// A run from `from` to `to` for each rank.
    fn placement(epoch: u64, ranks: &[u32], from: u64, to: u64) -> Vec<Run> {
        let run = |rank: &u32| {
            let lines = [
                beat(from, Moment::Started, epoch, *rank).line(),
                beat(to, Moment::Beat, epoch, *rank).line(),
            ];
            Truth::of(&lines.concat()).runs
        };
        ranks.iter().flat_map(run).collect()
    }

    fn truth(placements: &[Vec<Run>]) -> Truth {
        let runs = placements.concat();
        Truth { runs }
    }

    #[test]
    fn a_second_epoch_may_run_only_after_the_first() {
        let first = placement(1, &[0, 1], 100, 900);
        let after = truth(&[first.clone(), placement(2, &[0, 1], 901, 1500)]);
        assert_eq!(after.double_runs(), []);
        let both = truth(&[first, placement(2, &[0], 899, 1500)]);
        assert_eq!(both.double_runs().len(), 2, "with either rank of the first");
    }

    #[test]
    fn a_rank_that_never_ran_is_missed_once_another_ran_for_long() {
        let part = truth(&[placement(1, &[1], 100, 900)]);
        assert_eq!(part.partial_starts(Millis(800)), []);
        let found = part.partial_starts(Millis(799));
        assert_eq!(found[0].missing, [0]);
        let whole = truth(&[placement(1, &[0, 1], 100, 900)]);
        assert_eq!(whole.partial_starts(Millis::ZERO), []);
    }

    #[test]
    fn a_restarted_container_runs_twice_and_half_a_line_is_left_out() {
        let mut text = beat(1, Moment::Started, 1, 0).line();
        text += &beat(200, Moment::Ended, 1, 0).line();
        text += &beat(900, Moment::Started, 1, 0).line();
        text += "{\"at\":";
        let runs = Truth::of(&text).runs;
        assert_eq!(runs.len(), 2);
        assert!(runs[0].has_ended && !runs[1].has_ended);
        assert_eq!(
            (runs[0].to, runs[1].from),
            (BootMillis(200), BootMillis(900))
        );
    }
}
