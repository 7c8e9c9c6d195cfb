//! Small durable files: what a process must remember across a crash.
//!
//! Owns the atomic replace (write beside, fsync, rename, fsync the folder) and its simulated twin.
//! Only the owner of the process may read a record: some hold keys. Never holds more than
//! kilobytes; the hub's data is the store's business.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

/// A folder of small named records.
#[async_trait]
pub trait Disk: Send + Sync + 'static {
    /// The record, or `None` when it was never written.
    async fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the record: after `Ok` it survives a crash, before it the old one does.
    async fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;
}

/// Records as files of one folder.
#[derive(Clone, Debug)]
pub struct FolderDisk(PathBuf);

impl FolderDisk {
    /// Opens `folder`, making it when it is not there.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self(folder.to_owned()))
    }
}

#[async_trait]
impl Disk for FolderDisk {
    async fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match tokio::fs::read(self.0.join(name)).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let (folder, name) = (self.0.clone(), name.to_owned());
        let replace = move || {
            let beside = folder.join(format!(".{name}.new"));
            let file = owners_file(&beside)?;
            io::Write::write_all(&mut &file, &bytes)?;
            file.sync_all()?;
            std::fs::rename(&beside, folder.join(&name))?;
            std::fs::File::open(&folder)?.sync_all()
        };
        tokio::task::spawn_blocking(replace)
            .await
            .map_err(io::Error::other)?
    }
}

/// A new file that nobody but its owner may read or write.
fn owners_file(path: &Path) -> io::Result<std::fs::File> {
    let mode = std::fs::Permissions::from_mode(0o600);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path)?;
    // What a crash has left there has the mode that it was made with.
    file.set_permissions(mode)?;
    Ok(file)
}

/// Records in memory that outlive a simulated crash: clone the disk into the next life.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

#[async_trait]
impl Disk for MemoryDisk {
    async fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned())
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn keeps_the_newest(disk: &dyn Disk) {
        assert_eq!(disk.read("fence").await.expect("readable"), None);
        for value in [b"one".to_vec(), b"two".to_vec()] {
            disk.write("fence", value.clone()).await.expect("writable");
            assert_eq!(disk.read("fence").await.expect("readable"), Some(value));
        }
    }

    #[tokio::test]
    async fn both_disks_keep_the_newest() {
        let folder = tempfile::tempdir().expect("a folder");
        keeps_the_newest(&FolderDisk::open(&folder.path().join("state")).expect("opens")).await;
        keeps_the_newest(&MemoryDisk::default()).await;
    }

    #[tokio::test]
    async fn a_record_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(".key.new"), "left by a crash").expect("writable");
        let disk = FolderDisk::open(folder.path()).expect("opens");
        disk.write("key", b"secret".to_vec()).await.expect("writes");
        let kept = std::fs::metadata(folder.path().join("key")).expect("there");
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    }
}
