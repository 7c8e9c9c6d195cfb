//! The embedded store's file, and where else it can lie.
//!
//! Owns opening, locking and growing the file. Room is taken from the file system when the file
//! grows, so that no later write into it can find the disk full. Never knows what is in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, DatabaseError, StorageBackend};

use super::Durability;

/// Where a database lies. A test gives one that fails.
pub trait Medium: Send + Sync + 'static {
    /// Opens the database with `builder`: at the start, and again after an I/O error.
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// Bytes that it takes, where that can be said.
    fn size(&self) -> Option<u64> {
        None
    }
}

/// A database in a file.
#[derive(Debug)]
pub(super) struct FileMedium {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
}

impl Medium for FileMedium {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            Some(_) | None => Path::new("."),
        };
        std::fs::create_dir_all(folder)?;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)?;
        // A file whose name is not on disk is lost with everything in it.
        File::open(folder)?.sync_all()?;
        builder.create_with_backend(StoreFile {
            room: file.try_clone()?,
            inner: FileBackend::new(file)?,
            durability: self.durability,
        })
    }

    fn size(&self) -> Option<u64> {
        std::fs::metadata(&self.path).ok().map(|found| found.len())
    }
}

#[derive(Debug)]
struct StoreFile {
    inner: FileBackend,
    /// The same file, to take room for it.
    room: File,
    durability: Durability,
}

impl StoreFile {
    /// Takes blocks for `from..to`. A file system that cannot promise them goes without.
    fn take_room(&self, from: u64, to: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.room, flags, from, to - from) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.inner.len()?;
        if len > before
            && self.durability == Durability::Immediate
            && let Err(error) = self.take_room(before, len)
        {
            self.inner.set_len(before)?;
            return Err(error);
        }
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.durability {
            Durability::Immediate => self.inner.sync_data(),
            Durability::None => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
