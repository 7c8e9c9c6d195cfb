//! A simulated cluster on disk: it must not die with the agent's process.
//!
//! Owns the file of its state and the file of its truth. Delays are drawn by hash and the timeline
//! is part of the state, so what was due while no process lived is played when one does. Truth
//! waits in the state until it is in the history file: after any crash each event is there once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meridian_runtime::Disk;
use tokio::io::AsyncWriteExt as _;

use super::SimulatedCluster;
use super::state::{State, TruthEvent};

/// A kept cluster cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The disk said no.
    #[error("the simulated cluster cannot be kept: {0}")]
    Io(#[from] io::Error),
    /// The record is not one of ours.
    #[error("record {name:?} holds no simulated cluster: {source}")]
    Damaged {
        /// Name of the record.
        name: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Where one cluster is kept.
pub struct Keeper {
    disk: Arc<dyn Disk>,
    name: String,
    history: Option<PathBuf>,
    /// Sequence of the newest event in the history file; held while writing, so that an older
    /// state never replaces a newer one.
    written: tokio::sync::Mutex<u64>,
}

impl Keeper {
    /// Keeps the state as record `name` of `disk`, and appends the truth to `history` as JSON
    /// lines.
    pub fn open(
        disk: Arc<dyn Disk>,
        name: &str,
        history: Option<&Path>,
    ) -> Result<Self, KeepError> {
        let written = history.map(repair).transpose()?.unwrap_or(0);
        Ok(Self {
            disk,
            name: name.to_owned(),
            history: history.map(Path::to_owned),
            written: tokio::sync::Mutex::new(written),
        })
    }

    /// The cluster as it was kept, if it ever was.
    pub async fn load(&self) -> Result<Option<SimulatedCluster>, KeepError> {
        let Some(bytes) = self.disk.read(&self.name).await? else {
            return Ok(None);
        };
        let state: State = serde_json::from_slice(&bytes).map_err(|source| KeepError::Damaged {
            name: self.name.clone(),
            source,
        })?;
        Ok(Some(SimulatedCluster::from_state(state)))
    }

    /// Keeps the cluster as it is.
    pub(super) async fn keep(&self, cluster: &SimulatedCluster) -> Result<(), KeepError> {
        let mut written = self.written.lock().await;
        let (bytes, truth) = {
            let inside = cluster.lock();
            (
                serde_json::to_vec(&inside.state),
                inside.state.truth.clone(),
            )
        };
        let damaged = |source| KeepError::Damaged {
            name: self.name.clone(),
            source,
        };
        self.disk.write(&self.name, bytes.map_err(damaged)?).await?;
        let fresh = truth.iter().filter(|event| event.sequence > *written);
        let mut lines = String::new();
        for event in fresh {
            lines += &serde_json::to_string(event).map_err(damaged)?;
            lines.push('\n');
        }
        if let Some(path) = self.history.as_deref().filter(|_| !lines.is_empty()) {
            append(path, lines.as_bytes()).await?;
        }
        let newest = truth.last().map_or(*written, |event| event.sequence);
        *written = newest.max(*written);
        cluster
            .lock()
            .state
            .truth
            .retain(|event| event.sequence > *written);
        Ok(())
    }
}

async fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(path).await?;
    file.write_all(lines).await?;
    file.flush().await
}

/// Cuts a last line that a crash tore, and finds the newest event that is whole.
fn repair(path: &Path) -> io::Result<u64> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    if whole < bytes.len() {
        std::fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .set_len(whole as u64)?;
    }
    let last = bytes[..whole]
        .split(|byte| *byte == b'\n')
        .rfind(|line| !line.is_empty());
    let event = last.map(serde_json::from_slice::<TruthEvent>).transpose()?;
    Ok(event.map_or(0, |event| event.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.jsonl");
        assert_eq!(repair(&path).expect("absent"), 0);
        let event = TruthEvent {
            sequence: 7,
            at: meridian_api::units::UnixMillis(1),
            key: crate::backend::GangKey {
                gang: meridian_api::ids::GangId::default(),
                epoch: meridian_api::ids::Epoch(1),
            },
            pod: "p".to_owned(),
            node: "n".to_owned(),
            devices: vec![0],
            bound: 1,
            members: 1,
            what: crate::simulated::Truth::Started,
        };
        let line = serde_json::to_string(&event).expect("writes");
        std::fs::write(&path, format!("{line}\n{}", &line[..20])).expect("writes");
        assert_eq!(repair(&path).expect("repairs"), 7);
        assert_eq!(
            std::fs::read_to_string(&path).expect("reads"),
            format!("{line}\n")
        );
    }
}
