//! A place on this machine for one member cluster: a number, a folder and a mark, taken by a lock
//! that dies with its holder.
//!
//! Owns what a cluster leaves behind: processes that carry its mark, cgroups of its containers, its
//! folder. Whoever takes a place removes what its last holder left. Never signals a process that
//! does not carry the mark of a place whose lock it holds.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::MemberError;
use super::files::make;
use super::network::link_prefix;

/// The variable that every process of a cluster carries; its value is the folder.
pub(super) const MARK: &str = "MERIDIAN_MEMBER_PLACE";
/// Clusters of one machine at once: more than its memory has room for.
const PLACES: u8 = 64;
/// For SIGKILL, which no process can refuse: a kernel that ends a node's containers needs a moment.
const KERNEL_LIMIT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
/// Looks for marked processes: each finds what the ones before it were starting.
const SWEEPS: usize = 8;

/// A place of ours, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    index: u8,
    folder: PathBuf,
    /// Held, not read: the kernel lets it go when this process ends, however it ends.
    _lock: File,
}

impl Place {
    /// Takes the first free place, after removing what killed runs left in any.
    pub(super) fn take() -> Result<Self, MemberError> {
        let root = std::env::temp_dir().join("meridian-member");
        make(&root)?;
        let mut first = None;
        for index in 0..PLACES {
            let folder = root.join(index.to_string());
            // A place that nobody ever took needs no look once there is one to take.
            if first.is_some() && !folder.exists() {
                continue;
            }
            let path = root.join(format!("{index}.lock"));
            let open = File::options().create(true).append(true).open(&path);
            let lock = open.map_err(MemberError::system("cannot open a lock", &path))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(source)) => {
                    return Err(MemberError::system("cannot lock", &path)(source));
                }
            }
            clear(index, &folder)?;
            if first.is_none() {
                first = Some((index, folder, lock));
            }
        }
        let (index, folder, lock) = first.ok_or(MemberError::TooMany {
            what: "member clusters of one machine",
            wanted: usize::from(PLACES) + 1,
            most: usize::from(PLACES),
        })?;
        make(&folder)?;
        make(&folder.join("heartbeats"))?;
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        super::files::write(&folder.join("cgroups"), &cgroups)?;
        Ok(Self {
            index,
            folder,
            _lock: lock,
        })
    }

    /// Its number: addresses follow from it.
    pub(super) fn index(&self) -> u8 {
        self.index
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where trainers write.
    pub(super) fn heartbeats(&self) -> PathBuf {
        self.folder.join("heartbeats")
    }

    /// Ends what is left of the cluster and removes its folder; an error names what stays.
    pub(super) fn leave(self) -> Result<(), MemberError> {
        clear(self.index, &self.folder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What fails here is found by the next start; a panic in a drop would hide the first.
        if let Err(error) = clear(self.index, &self.folder) {
            eprintln!("a member cluster left something behind: {error}");
        }
    }
}

/// Leaves nothing of a cluster whose place is locked by us.
fn clear(index: u8, folder: &Path) -> Result<(), MemberError> {
    if !folder.exists() {
        return Ok(());
    }
    for _ in 0..SWEEPS {
        let marked = marked_processes(folder);
        if marked.is_empty() {
            break;
        }
        for pid in marked {
            end(pid).map_err(MemberError::system("cannot end a process of", folder))?;
        }
    }
    remove_links(index);
    remove_cgroups(folder);
    // Its mounts lived in namespaces that are gone with their processes: this is only files.
    std::fs::remove_dir_all(folder).map_err(MemberError::system("cannot remove", folder))
}

/// Processes that carry the mark of `folder`.
pub(super) fn marked_processes(folder: &Path) -> Vec<Pid> {
    let mark = format!("{MARK}={}", folder.display());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_marked = |pid: &Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        // A process that is gone, or a zombie, has no environment.
        let environment = std::fs::read(path).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == mark.as_bytes())
    };
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(is_marked)
        .collect()
}

/// Kills a process and waits until it has ended. By a handle, so that a number that the kernel
/// gives to another process in between cannot hit that one.
fn end(pid: Pid) -> io::Result<()> {
    let handle: OwnedFd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match rustix::process::pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ended = [PollFd::new(&handle, PollFlags::IN)];
    // The end of a child of ours is a signal to us too, and interrupts the wait for it.
    let waited = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&KERNEL_LIMIT)));
    match waited? {
        0 => Err(io::Error::other("it does not end")),
        _ => Ok(()),
    }
}

/// Removes the machine's ends of nodes' links. The kernel would, some time after a node's
/// namespaces are gone; who takes this place next needs the names before that.
fn remove_links(index: u8) {
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    let names = devices.flatten().map(|device| device.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        if name.starts_with(&link_prefix(index)) {
            // Absent when the kernel was faster.
            let _ = Command::new("ip").args(["link", "del", &name]).output();
        }
    }
}

/// Removes cgroups of containers whose shim was killed before it could. A cgroup has the name of
/// its container and lies below that of the run that started it.
fn remove_cgroups(folder: &Path) {
    let ours = std::fs::read_to_string(folder.join("cgroups")).unwrap_or_default();
    let containers: Vec<String> = containers(folder);
    for line in ours.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let root = Path::new("/sys/fs/cgroup").join(controllers.trim_start_matches("name="));
        for parent in [root.join(path.trim_start_matches('/')), root.clone()] {
            for container in &containers {
                // Absent, or busy for a moment longer: an empty cgroup harms nobody.
                let _ = std::fs::remove_dir(parent.join(container));
            }
        }
    }
}

/// Ids of containers that a node of the cluster has had and whose shim did not clean up.
fn containers(folder: &Path) -> Vec<String> {
    let nodes = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let tasks = nodes.flat_map(|node| {
        let tasks = "containerd/state/io.containerd.runtime.v2.task/k8s.io";
        std::fs::read_dir(node.path().join(tasks))
            .into_iter()
            .flatten()
            .flatten()
    });
    tasks
        .filter_map(|task| task.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Harness, ProcessSpec};
    use meridian_api::units::Millis;

    #[tokio::test]
    async fn only_what_carries_the_mark_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("7");
        make(&place).expect("a folder can be made");
        let sleeper = ProcessSpec::new("sleeper", "sleep").args(["600"]);
        let stranger = Harness::new().start(sleeper.clone()).expect("starts");
        let other = Harness::bonded((MARK, &folder.path().join("70")));
        let other = other.start(sleeper.clone()).expect("starts");
        let marked = Harness::bonded((MARK, &place));
        let mut marked = marked.start(sleeper).expect("starts");

        clear(7, &place).expect("cleared");
        assert!(!place.exists());
        marked
            .ended(Millis::seconds(20))
            .await
            .expect("it was killed");
        for process in [stranger, other] {
            let id = process.id().expect("it was not waited for");
            let state = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it is there");
            assert!(!state.contains(") Z "), "it runs: {state}");
        }
    }
}
