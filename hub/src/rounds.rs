//! Recorded rounds: what each decision saw and said, as files that `meridian replay` reads.
//!
//! Owns the folder, its bounds, and the task that writes there off the decision's path. Never
//! holds a decision up: a round that comes while others are still being written is dropped, and
//! counted. Never read by the hub.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meridian_policies::model::Plan;
use meridian_policies::record;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::execution::Execution;
use crate::metrics::{Metrics, RecordLabels};
use crate::model::Labelled;

/// Files kept: an hour and a half of a hub that decides once in five seconds, long enough to fetch
/// the one that somebody complains about.
const KEPT_FILES: usize = 1000;
/// Bytes kept, whatever the fleet's size: a round of 1,000 pools and 10,000 waiting gangs is about
/// 10 MB, so a hundred of the largest.
const KEPT_BYTES: u64 = 1 << 30;
/// Rounds that wait to be written. Each holds a whole snapshot: one on the disk's way and one
/// behind it even out a slow write, more would only hold memory.
const QUEUE: usize = 2;
/// Beginning and end of the name of a round's file.
const PREFIX: &str = "round-";
const SUFFIX: &str = ".json";

/// One decision.
struct Round {
    labelled: Arc<Labelled>,
    plan: Plan,
}

/// Where the decision loop leaves its rounds.
#[derive(Clone)]
pub(crate) struct Recorder {
    queue: Option<mpsc::Sender<Round>>,
    metrics: Metrics,
}

/// What the writing task works with.
pub(crate) struct Writer {
    queue: mpsc::Receiver<Round>,
    shelf: Shelf,
    execution: Execution,
    metrics: Metrics,
}

impl Recorder {
    /// One that records nothing.
    pub(crate) fn off(metrics: &Metrics) -> Self {
        Self {
            queue: None,
            metrics: metrics.clone(),
        }
    }

    /// Opens `folder`, making it when it is not there.
    pub(crate) fn open(
        folder: &Path,
        execution: Execution,
        metrics: &Metrics,
    ) -> io::Result<(Self, Writer)> {
        let shelf = Shelf::open(folder)?;
        let (sender, queue) = mpsc::channel(QUEUE);
        let recorder = Self {
            queue: Some(sender),
            metrics: metrics.clone(),
        };
        let writer = Writer {
            queue,
            shelf,
            execution,
            metrics: metrics.clone(),
        };
        Ok((recorder, writer))
    }

    /// Leaves a round to be written, unless earlier ones still are.
    pub(crate) fn note(&self, labelled: &Arc<Labelled>, plan: &Plan) {
        let Some(queue) = &self.queue else { return };
        match queue.try_reserve() {
            Ok(place) => place.send(Round {
                labelled: Arc::clone(labelled),
                plan: plan.clone(),
            }),
            Err(_) => count(&self.metrics, "dropped"),
        }
    }
}

impl Writer {
    /// Writes rounds until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        loop {
            let round = tokio::select! {
                round = self.queue.recv() => round,
                () = stop.cancelled() => return Ok(()),
            };
            let Some(round) = round else {
                // The loop has ended, and so will the hub.
                stop.cancelled().await;
                return Ok(());
            };
            let mut shelf = std::mem::take(&mut self.shelf);
            let work = move || {
                let written = put(&mut shelf, &round);
                (shelf, written)
            };
            let written = match self.execution.run(work).await {
                Ok((shelf, written)) => {
                    self.shelf = shelf;
                    written
                }
                Err(panic) => Err(io::Error::other(panic)),
            };
            match written {
                Ok(()) => count(&self.metrics, "written"),
                Err(error) => {
                    tracing::warn!(%error, "a round could not be recorded");
                    count(&self.metrics, "failed");
                }
            }
        }
    }
}

fn count(metrics: &Metrics, outcome: &'static str) {
    let labels = RecordLabels { outcome };
    metrics.rounds_recorded.get_or_create(&labels).inc();
}

fn put(shelf: &mut Shelf, round: &Round) -> io::Result<()> {
    let snapshot = &round.labelled.snapshot;
    let bytes = record::write(snapshot, &round.plan)?;
    // By time, then revision: names sort as rounds were made.
    let name = format!(
        "{PREFIX}{:014}-{:012}{SUFFIX}",
        snapshot.now.0, snapshot.revision.0
    );
    shelf.put(name, &bytes)
}

/// The folder: its files by name, oldest first.
#[derive(Debug, Default)]
struct Shelf {
    folder: PathBuf,
    files: VecDeque<(String, u64)>,
    bytes: u64,
}

impl Shelf {
    fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                files.push((name, entry.metadata()?.len()));
            }
        }
        files.sort();
        Ok(Self {
            folder: folder.to_owned(),
            bytes: files.iter().map(|(_, bytes)| bytes).sum(),
            files: files.into(),
        })
    }

    /// Writes a file, whole or not at all, then lets the oldest go until the rest is within bounds.
    fn put(&mut self, name: String, bytes: &[u8]) -> io::Result<()> {
        let beside = self.folder.join(format!(".{name}.new"));
        std::fs::write(&beside, bytes)?;
        std::fs::rename(&beside, self.folder.join(&name))?;
        self.forget(|own| *own == name);
        self.bytes += bytes.len() as u64;
        self.files.push_back((name, bytes.len() as u64));
        while self.files.len() > KEPT_FILES || self.bytes > KEPT_BYTES && self.files.len() > 1 {
            let Some((oldest, size)) = self.files.pop_front() else {
                break;
            };
            self.bytes -= size;
            match std::fs::remove_file(self.folder.join(oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Forgets files of which another has taken the name.
    fn forget(&mut self, which: impl Fn(&String) -> bool) {
        let bytes = &mut self.bytes;
        self.files.retain(|(name, size)| {
            let goes = which(name);
            if goes {
                *bytes -= size;
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("readable");
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("notes.txt"), "a person's").expect("writable");
        let mut shelf = Shelf::open(folder.path()).expect("readable");
        let name = |number: usize| format!("{PREFIX}{number:06}{SUFFIX}");
        for number in 0..KEPT_FILES + 5 {
            shelf.put(name(number), b"x").expect("writable");
        }
        shelf
            .put(name(KEPT_FILES), b"yy")
            .expect("the same name again");
        let kept = names(folder.path());
        assert_eq!(kept.len(), KEPT_FILES + 1);
        assert_eq!(kept[0], "notes.txt");
        assert_eq!(kept[1], name(5));
        assert_eq!(shelf.bytes, KEPT_FILES as u64 + 1);

        let again = Shelf::open(folder.path()).expect("readable");
        assert_eq!((again.files.len(), again.bytes), (KEPT_FILES, shelf.bytes));
    }

    #[test]
    fn a_round_that_comes_too_early_is_dropped_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let metrics = Metrics::default();
        let opened = Recorder::open(folder.path(), Execution::Inline, &metrics);
        let (recorder, _writer) = opened.expect("writable");
        let labelled = Arc::new(Labelled::default());
        for _ in 0..QUEUE + 3 {
            recorder.note(&labelled, &Plan::default());
        }
        let dropped = RecordLabels { outcome: "dropped" };
        assert_eq!(metrics.rounds_recorded.get_or_create(&dropped).get(), 3);
    }
}
