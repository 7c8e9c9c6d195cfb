//! Tables of the embedded store: the layout of its file.
//!
//! Owns how versions, the log, leases and counters are encoded, and every walk over them. All
//! numbers are little-endian. Never decides what is written.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::Failure;
use crate::feed::READ_REVISIONS;
use crate::lease::LeaseBook;
use crate::mvcc::{FIRST_REVISION, Space};
use crate::{Event, KeyRange, KeyValue, LeaseId, StoreError, WatchBatch};

/// Key to the revision of its newest version; removed keys are absent.
const NEWEST: TableDefinition<&[u8], u64> = TableDefinition::new("newest");
/// Key and revision to the record; an empty one says that the key was removed.
const VERSIONS: TableDefinition<(&[u8], u64), &[u8]> = TableDefinition::new("versions");
/// Revision to the keys that it changed, in order.
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
/// Lease to its time in milliseconds.
const LEASES: TableDefinition<i64, u64> = TableDefinition::new("leases");
/// Counters by name.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const FORMAT_KEY: &str = "format";
const REVISION_KEY: &str = "revision";
const OLDEST_KEY: &str = "oldest";
const LAST_LEASE_KEY: &str = "last-lease";
/// Version of this layout.
const FORMAT: u64 = 1;

/// Bytes of a record before its value: create revision, version, lease.
const RECORD_HEADER: usize = 24;

/// Counters as they are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) revision: Revision,
    pub(super) oldest: Revision,
    pub(super) last_lease: LeaseId,
}

/// Makes the tables of an empty file, and refuses one of another layout. True when it wrote.
pub(super) fn prepare(txn: &WriteTransaction) -> Result<bool, Failure> {
    let mut meta = txn.open_table(META)?;
    let format = meta.get(FORMAT_KEY)?.map(|value| value.value());
    match format {
        Some(FORMAT) => return Ok(false),
        Some(other) => {
            let why = format!("the file has layout {other}, this program reads {FORMAT}");
            return Err(Failure::Store(StoreError::Refused(why)));
        }
        None => {}
    }
    meta.insert(FORMAT_KEY, FORMAT)?;
    meta.insert(REVISION_KEY, FIRST_REVISION.0)?;
    meta.insert(OLDEST_KEY, FIRST_REVISION.0)?;
    meta.insert(LAST_LEASE_KEY, 0)?;
    txn.open_table(NEWEST)?;
    txn.open_table(VERSIONS)?;
    txn.open_table(LOG)?;
    txn.open_table(LEASES)?;
    Ok(true)
}

fn encode_record(kv: &KeyValue) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER + kv.value.len());
    record.extend_from_slice(&kv.create_revision.0.to_le_bytes());
    record.extend_from_slice(&kv.version.to_le_bytes());
    record.extend_from_slice(&kv.lease.map_or(0, |lease| lease.0).to_le_bytes());
    record.extend_from_slice(&kv.value);
    record
}

/// Reads a record back; `None` for the mark of a removal.
fn decode_record(key: &[u8], revision: u64, record: &[u8]) -> Result<Option<KeyValue>, Failure> {
    if record.is_empty() {
        return Ok(None);
    }
    let (Some(create), Some(version), Some(lease), Some(value)) = (
        number(record, 0),
        number(record, 8),
        number(record, 16),
        record.get(RECORD_HEADER..),
    ) else {
        return Err(damaged(key, revision));
    };
    let lease = i64::from_le_bytes(lease);
    Ok(Some(KeyValue {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value),
        create_revision: Revision(u64::from_le_bytes(create)),
        mod_revision: Revision(revision),
        version: u64::from_le_bytes(version),
        lease: (lease != 0).then_some(LeaseId(lease)),
    }))
}

fn number(record: &[u8], at: usize) -> Option<[u8; 8]> {
    record.get(at..at + 8)?.try_into().ok()
}

fn damaged(key: &[u8], revision: u64) -> Failure {
    let key = String::from_utf8_lossy(key);
    Failure::Store(StoreError::Corrupt(format!(
        "no sound record of {key} at revision {revision}"
    )))
}

fn encode_keys(events: &[Event]) -> Vec<u8> {
    let mut row = Vec::new();
    for event in events {
        let key = event.key();
        let length = u32::try_from(key.len()).expect("a key is within the transaction's limit");
        row.extend_from_slice(&length.to_le_bytes());
        row.extend_from_slice(key);
    }
    row
}

fn decode_keys(revision: u64, mut row: &[u8]) -> Result<Vec<Bytes>, Failure> {
    let mut keys = Vec::new();
    while !row.is_empty() {
        let Some((length, rest)) = row.split_first_chunk::<4>() else {
            return Err(damaged(b"the log", revision));
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((key, rest)) = rest.split_at_checked(length) else {
            return Err(damaged(b"the log", revision));
        };
        keys.push(Bytes::copy_from_slice(key));
        row = rest;
    }
    Ok(keys)
}

/// The open tables of one write, as the space in which transactions are evaluated.
pub(super) struct Writing<'txn> {
    newest: Table<'txn, &'static [u8], u64>,
    versions: Table<'txn, (&'static [u8], u64), &'static [u8]>,
    log: Table<'txn, u64, &'static [u8]>,
    lease_rows: Table<'txn, i64, u64>,
    meta: Table<'txn, &'static str, u64>,
    leases: &'txn Mutex<LeaseBook>,
}

impl<'txn> Writing<'txn> {
    pub(super) fn open(
        txn: &'txn WriteTransaction,
        leases: &'txn Mutex<LeaseBook>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            newest: txn.open_table(NEWEST)?,
            versions: txn.open_table(VERSIONS)?,
            log: txn.open_table(LOG)?,
            lease_rows: txn.open_table(LEASES)?,
            meta: txn.open_table(META)?,
            leases,
        })
    }

    /// Notes what a revision changed.
    pub(super) fn log(&mut self, revision: Revision, events: &[Event]) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        self.log
            .insert(revision.0, encode_keys(events).as_slice())?;
        self.meta.insert(REVISION_KEY, revision.0)?;
        Ok(())
    }

    pub(super) fn add_lease(&mut self, lease: LeaseId, ttl: Millis) -> Result<(), Failure> {
        self.lease_rows.insert(lease.0, ttl.0)?;
        self.meta.insert(LAST_LEASE_KEY, lease.0.unsigned_abs())?;
        Ok(())
    }

    pub(super) fn remove_lease(&mut self, lease: LeaseId) -> Result<(), Failure> {
        self.lease_rows.remove(lease.0)?;
        Ok(())
    }

    /// Forgets up to `most` revisions below `below`; says how far it came.
    pub(super) fn compact(&mut self, below: Revision, most: usize) -> Result<Revision, Failure> {
        let mut rows: Vec<(u64, Vec<Bytes>)> = Vec::new();
        for row in self.log.range(..below.0)?.take(most) {
            let (revision, keys) = row?;
            rows.push((
                revision.value(),
                decode_keys(revision.value(), keys.value())?,
            ));
        }
        let reached = match rows.last() {
            Some((revision, _)) if rows.len() == most => Revision(revision + 1),
            Some(_) | None => below,
        };
        for (revision, keys) in rows {
            for key in keys {
                self.forget_before(&key, revision)?;
            }
            self.log.remove(revision)?;
        }
        self.meta.insert(OLDEST_KEY, reached.0)?;
        Ok(reached)
    }

    /// Removes the versions of `key` that `revision` made old, and its own mark of a removal.
    fn forget_before(&mut self, key: &[u8], revision: u64) -> Result<(), Failure> {
        let mut old = Vec::new();
        for version in self.versions.range((key, 0)..=(key, revision))? {
            let (at, record) = version?;
            if at.value().1 < revision || record.value().is_empty() {
                old.push(at.value().1);
            }
        }
        for at in old {
            self.versions.remove((key, at))?;
        }
        Ok(())
    }
}

impl Space for Writing<'_> {
    fn newest(&self, key: &Bytes) -> Result<Option<KeyValue>, StoreError> {
        newest(&self.newest, &self.versions, key).map_err(StoreError::from)
    }

    fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(lease)
    }

    fn put(&mut self, current: &KeyValue) -> Result<(), StoreError> {
        let (key, revision) = (&current.key[..], current.mod_revision.0);
        let record = encode_record(current);
        self.versions
            .insert((key, revision), record.as_slice())
            .map_err(Failure::from)?;
        self.newest.insert(key, revision).map_err(Failure::from)?;
        Ok(())
    }

    fn delete(&mut self, key: &Bytes, revision: Revision) -> Result<(), StoreError> {
        self.versions
            .insert((&key[..], revision.0), &[][..])
            .map_err(Failure::from)?;
        self.newest.remove(&key[..]).map_err(Failure::from)?;
        Ok(())
    }
}

fn newest(
    newest: &impl ReadableTable<&'static [u8], u64>,
    versions: &impl ReadableTable<(&'static [u8], u64), &'static [u8]>,
    key: &[u8],
) -> Result<Option<KeyValue>, Failure> {
    let Some(revision) = newest.get(key)?.map(|revision| revision.value()) else {
        return Ok(None);
    };
    record(versions, key, revision)?
        .ok_or_else(|| damaged(key, revision))
        .map(Some)
}

/// The record of `key` made by `revision`; `None` when it is a removal or gone.
fn record(
    versions: &impl ReadableTable<(&'static [u8], u64), &'static [u8]>,
    key: &[u8],
    revision: u64,
) -> Result<Option<KeyValue>, Failure> {
    match versions.get((key, revision))? {
        Some(record) => decode_record(key, revision, record.value()),
        None => Ok(None),
    }
}

/// The counters.
pub(super) fn counters(txn: &ReadTransaction) -> Result<Counters, Failure> {
    let meta = txn.open_table(META)?;
    let read = |key: &str| -> Result<u64, Failure> {
        let value = meta.get(key)?.ok_or_else(|| damaged(key.as_bytes(), 0))?;
        Ok(value.value())
    };
    let last_lease = i64::try_from(read(LAST_LEASE_KEY)?).map_err(|_| damaged(b"lease", 0))?;
    Ok(Counters {
        revision: Revision(read(REVISION_KEY)?),
        oldest: Revision(read(OLDEST_KEY)?),
        last_lease: LeaseId(last_lease),
    })
}

/// Every lease and its time.
pub(super) fn leases(txn: &ReadTransaction) -> Result<Vec<(LeaseId, Millis)>, Failure> {
    let rows = txn.open_table(LEASES)?;
    let mut leases = Vec::new();
    for row in rows.iter()? {
        let (id, ttl) = row?;
        leases.push((LeaseId(id.value()), Millis(ttl.value())));
    }
    Ok(leases)
}

/// The key as it is.
pub(super) fn get(txn: &ReadTransaction, key: &[u8]) -> Result<Option<KeyValue>, Failure> {
    newest(&txn.open_table(NEWEST)?, &txn.open_table(VERSIONS)?, key)
}

/// Number of keys in the range.
pub(super) fn count(txn: &ReadTransaction, range: &KeyRange) -> Result<u64, Failure> {
    let table = txn.open_table(NEWEST)?;
    let mut count = 0;
    for row in table.range::<&[u8]>(&range.start[..]..&range.end[..])? {
        row?;
        count += 1;
    }
    Ok(count)
}

/// Up to `most` keys of the range as they are.
pub(super) fn range_newest(
    txn: &ReadTransaction,
    range: &KeyRange,
    most: usize,
) -> Result<Vec<KeyValue>, Failure> {
    let (table, versions) = (txn.open_table(NEWEST)?, txn.open_table(VERSIONS)?);
    let mut found = Vec::new();
    for row in table
        .range::<&[u8]>(&range.start[..]..&range.end[..])?
        .take(most)
    {
        let (key, revision) = row?;
        let (key, revision) = (key.value(), revision.value());
        found.push(record(&versions, key, revision)?.ok_or_else(|| damaged(key, revision))?);
    }
    Ok(found)
}

/// Up to `most` keys of the range as they were at `at`.
pub(super) fn range_at(
    txn: &ReadTransaction,
    range: &KeyRange,
    most: usize,
    at: Revision,
) -> Result<Vec<KeyValue>, Failure> {
    let versions = txn.open_table(VERSIONS)?;
    let mut found: Vec<KeyValue> = Vec::new();
    // The newest version so far of the key that the walk is at.
    let mut candidate: Option<(Vec<u8>, Option<KeyValue>)> = None;
    for row in versions.range::<(&[u8], u64)>((&range.start[..], 0)..(&range.end[..], 0))? {
        let (at_key, value) = row?;
        let (key, revision) = at_key.value();
        if candidate.as_ref().is_none_or(|(current, _)| current != key) {
            found.extend(candidate.take().and_then(|(_, kv)| kv));
            if found.len() >= most {
                return Ok(found);
            }
            candidate = Some((key.to_vec(), None));
        }
        if revision <= at.0 {
            candidate = Some((key.to_vec(), decode_record(key, revision, value.value())?));
        }
    }
    found.extend(candidate.and_then(|(_, kv)| kv));
    Ok(found)
}

/// Every key of the store that lives under a lease.
pub(super) fn leased(txn: &ReadTransaction) -> Result<Vec<KeyValue>, Failure> {
    let (table, versions) = (txn.open_table(NEWEST)?, txn.open_table(VERSIONS)?);
    let mut leased = Vec::new();
    for row in table.iter()? {
        let (key, revision) = row?;
        let kv = record(&versions, key.value(), revision.value())?;
        leased.extend(kv.filter(|kv| kv.lease.is_some()));
    }
    Ok(leased)
}

/// Events of `range` from revision `from` on, of at most [`READ_REVISIONS`] revisions, and the
/// revision up to which they are all.
pub(super) fn history(
    txn: &ReadTransaction,
    range: Option<&KeyRange>,
    from: Revision,
) -> Result<(VecDeque<WatchBatch>, Revision), Failure> {
    let (log, versions) = (txn.open_table(LOG)?, txn.open_table(VERSIONS)?);
    let mut batches = VecDeque::new();
    let mut rows = log.range(from.0..)?;
    for row in rows.by_ref().take(READ_REVISIONS) {
        let (revision, keys) = row?;
        let revision = Revision(revision.value());
        let mut events = Vec::new();
        for key in decode_keys(revision.0, keys.value())? {
            if range.is_none_or(|range| range.contains(&key)) {
                events.push(event(&versions, key, revision)?);
            }
        }
        if !events.is_empty() {
            batches.push_back(WatchBatch { revision, events });
        }
    }
    let through = match rows.next() {
        Some(row) => Revision(row?.0.value() - 1),
        None => counters(txn)?.revision,
    };
    Ok((batches, through))
}

fn event(
    versions: &impl ReadableTable<(&'static [u8], u64), &'static [u8]>,
    key: Bytes,
    revision: Revision,
) -> Result<Event, Failure> {
    let before = versions
        .range::<(&[u8], u64)>((&key[..], 0)..(&key[..], revision.0))?
        .next_back();
    let previous = match before {
        Some(row) => {
            let (at, value) = row?;
            decode_record(&key, at.value().1, value.value())?
        }
        None => None,
    };
    match versions.get((&key[..], revision.0))? {
        Some(value) => match decode_record(&key, revision.0, value.value())? {
            Some(current) => Ok(Event::Put { current, previous }),
            None => Ok(Event::Delete {
                key,
                previous,
                revision,
            }),
        },
        None => Err(damaged(&key, revision.0)),
    }
}
