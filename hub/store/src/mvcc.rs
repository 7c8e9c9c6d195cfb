//! What a transaction means: one pure reading of it for every store that evaluates its own.
//!
//! Owns the limits, the order of compare, read and write, and the revision arithmetic, all as
//! etcd has them (<https://etcd.io/docs/v3.6/learning/api/>): a store begins at revision 1, a
//! request that changes something raises it by one, and everything that it changes carries that
//! revision. Never stores anything itself.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_api::ids::Revision;

use crate::{
    Compare, Event, KeyRange, KeyValue, LeaseId, MAX_TXN_BYTES, MAX_TXN_OPERATIONS,
    MAX_VALUE_BYTES, Op, StoreError, Txn, TxnResponse,
};

/// Revision of a store in which nothing was ever written.
pub(crate) const FIRST_REVISION: Revision = Revision(1);

/// The newest state, as a request sees and changes it.
pub(crate) trait Space {
    /// The key as it is.
    fn newest(&self, key: &Bytes) -> Result<Option<KeyValue>, StoreError>;

    /// True when keys may be put under `lease`.
    fn has_lease(&self, lease: LeaseId) -> bool;

    /// Makes `current` the key's newest version.
    fn put(&mut self, current: &KeyValue) -> Result<(), StoreError>;

    /// Marks the key as removed by `revision`.
    fn delete(&mut self, key: &Bytes, revision: Revision) -> Result<(), StoreError>;
}

/// What a request did.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The store's revision after it.
    pub(crate) revision: Revision,
    /// Its changes in key order; empty when it changed nothing.
    pub(crate) events: Vec<Event>,
    /// One answer per transaction.
    pub(crate) responses: Vec<TxnResponse>,
}

/// Checks the limits and the independence of transactions that are to share one write.
pub(crate) fn validate(txns: &[Txn]) -> Result<(), StoreError> {
    let operations: usize = txns.iter().map(Txn::operations).sum();
    if operations > MAX_TXN_OPERATIONS {
        return refused(format!(
            "{operations} operations, the limit is {MAX_TXN_OPERATIONS}"
        ));
    }
    let bytes: usize = txns.iter().map(Txn::bytes).sum();
    if bytes > MAX_TXN_BYTES {
        return refused(format!("{bytes} bytes, the limit is {MAX_TXN_BYTES}"));
    }
    for txn in txns {
        validate_branch(&txn.success)?;
        validate_branch(&txn.failure)?;
        if txn.compares.iter().any(|compare| compare.key().is_empty()) {
            return refused("an empty key".to_owned());
        }
    }
    validate_independence(txns)
}

fn validate_branch(branch: &[Op]) -> Result<(), StoreError> {
    let mut written: Vec<&Bytes> = Vec::with_capacity(branch.len());
    for op in branch {
        if op.key().is_empty() {
            return refused("an empty key".to_owned());
        }
        if let Op::Put { key, value, .. } = op
            && value.len() > MAX_VALUE_BYTES
        {
            let (name, bytes) = (name(key), value.len());
            return refused(format!(
                "the value of {name} has {bytes} bytes, the limit is {MAX_VALUE_BYTES}"
            ));
        }
        if op.writes() {
            written.push(op.key());
        }
    }
    written.sort_unstable();
    match written.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => refused(format!("{} is written twice", name(pair[0]))),
        None => Ok(()),
    }
}

/// Every compare is evaluated before any write, so transactions that read what another of them
/// writes would be no sequence of transactions at all.
fn validate_independence(txns: &[Txn]) -> Result<(), StoreError> {
    let mut writers: BTreeMap<&Bytes, usize> = BTreeMap::new();
    for (index, txn) in txns.iter().enumerate() {
        for op in txn
            .success
            .iter()
            .chain(&txn.failure)
            .filter(|op| op.writes())
        {
            writers.entry(op.key()).or_insert(index);
        }
    }
    for (index, txn) in txns.iter().enumerate() {
        let compared = txn.compares.iter().map(Compare::key);
        let touched = txn.success.iter().chain(&txn.failure).map(Op::key);
        for key in compared.chain(touched) {
            if writers.get(key).is_some_and(|writer| *writer != index) {
                return refused(format!(
                    "{} is written by one transaction of a batch and touched by another",
                    name(key)
                ));
            }
        }
    }
    Ok(())
}

/// Does validated transactions as one request on top of `newest`. An error of the space leaves
/// it half changed, to be thrown away; every other error comes before the first change.
pub(crate) fn apply(
    space: &mut impl Space,
    newest: Revision,
    txns: &[Txn],
) -> Result<Applied, StoreError> {
    let mut branches = Vec::with_capacity(txns.len());
    for txn in txns {
        let succeeded = holds(space, &txn.compares)?;
        let branch = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        for op in branch {
            if let Op::Put {
                lease: Some(lease), ..
            } = op
                && !space.has_lease(*lease)
            {
                return Err(StoreError::LeaseNotFound(*lease));
            }
        }
        branches.push((succeeded, branch));
    }
    let mut request = Request {
        space,
        next: Revision(newest.0 + 1),
        events: Vec::new(),
    };
    let mut responses = Vec::with_capacity(txns.len());
    for (succeeded, branch) in branches {
        let reads = request.run(branch)?;
        responses.push(TxnResponse {
            succeeded,
            revision: newest,
            reads,
        });
    }
    Ok(request.finish(newest, responses))
}

/// Removes `keys` as one request: a lease's end.
pub(crate) fn remove(
    space: &mut impl Space,
    newest: Revision,
    keys: &[Bytes],
) -> Result<Applied, StoreError> {
    let mut request = Request {
        space,
        next: Revision(newest.0 + 1),
        events: Vec::new(),
    };
    for key in keys {
        request.delete(key)?;
    }
    Ok(request.finish(newest, Vec::new()))
}

fn holds(space: &impl Space, compares: &[Compare]) -> Result<bool, StoreError> {
    for compare in compares {
        let newest = space.newest(compare.key())?;
        let (is, wanted) = match compare {
            Compare::ModRevision(_, wanted) => (newest.map(|kv| kv.mod_revision), wanted),
            Compare::CreateRevision(_, wanted) => (newest.map(|kv| kv.create_revision), wanted),
        };
        if is.unwrap_or_default() != *wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Request<'a, S> {
    space: &'a mut S,
    next: Revision,
    events: Vec<Event>,
}

impl<S: Space> Request<'_, S> {
    /// Does the operations in order; answers the reads.
    fn run(&mut self, branch: &[Op]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        let mut reads = Vec::new();
        for op in branch {
            match op {
                Op::Put { key, value, lease } => self.put(key, value, *lease)?,
                Op::Delete { key } => self.delete(key)?,
                Op::Get { key } => reads.push(self.space.newest(key)?),
            }
        }
        Ok(reads)
    }

    fn put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        lease: Option<LeaseId>,
    ) -> Result<(), StoreError> {
        let previous = self.space.newest(key)?;
        let current = KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: previous.as_ref().map_or(self.next, |kv| kv.create_revision),
            mod_revision: self.next,
            version: previous.as_ref().map_or(1, |kv| kv.version + 1),
            lease,
        };
        self.space.put(&current)?;
        self.events.push(Event::Put { current, previous });
        Ok(())
    }

    fn delete(&mut self, key: &Bytes) -> Result<(), StoreError> {
        let Some(previous) = self.space.newest(key)? else {
            return Ok(());
        };
        self.space.delete(key, self.next)?;
        let (key, previous) = (key.clone(), Some(previous));
        self.events.push(Event::Delete {
            key,
            previous,
            revision: self.next,
        });
        Ok(())
    }

    fn finish(mut self, newest: Revision, mut responses: Vec<TxnResponse>) -> Applied {
        let revision = if self.events.is_empty() {
            newest
        } else {
            self.next
        };
        for response in &mut responses {
            response.revision = revision;
        }
        self.events.sort_by(|a, b| a.key().cmp(b.key()));
        Applied {
            revision,
            events: self.events,
            responses,
        }
    }
}

/// Checks what a range read asks for: a limit, and a revision between the oldest and the newest.
pub(crate) fn validate_read(
    limit: usize,
    at: Option<Revision>,
    oldest: Revision,
    newest: Revision,
) -> Result<Revision, StoreError> {
    if limit == 0 {
        return refused("a page of no keys".to_owned());
    }
    let at = at.unwrap_or(newest);
    if at < oldest {
        return Err(StoreError::Compacted {
            requested: at,
            oldest,
        });
    }
    if at > newest {
        return Err(StoreError::FutureRevision {
            requested: at,
            newest,
        });
    }
    Ok(at)
}

/// Checks what a watch asks for: a range with room for keys, and a revision from the oldest kept
/// to the next one (0 is read as 1).
pub(crate) fn validate_watch(
    range: &KeyRange,
    from: Revision,
    oldest: Revision,
    newest: Revision,
) -> Result<Revision, StoreError> {
    let from = from.max(FIRST_REVISION);
    if range.is_empty() {
        return refused("a watch of an empty range".to_owned());
    }
    if from < oldest {
        return Err(StoreError::Compacted {
            requested: from,
            oldest,
        });
    }
    if from.0 > newest.0 + 1 {
        return Err(StoreError::FutureRevision {
            requested: from,
            newest,
        });
    }
    Ok(from)
}

fn name(key: &Bytes) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn refused<T>(why: String) -> Result<T, StoreError> {
    Err(StoreError::Refused(why))
}
