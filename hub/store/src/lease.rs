//! The book of leases of a store that keeps its own.
//!
//! Owns deadlines and which keys live under which lease. Never removes a key: it says which
//! leases are over, and the store does the rest.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_api::units::{BootMillis, Millis};

use crate::{Event, KeyValue, LeaseId, StoreError};

/// Longest life of a lease: a day. A lease is for what must vanish soon after its owner.
const MAX_TTL: Millis = Millis::seconds(24 * 60 * 60);

/// Every lease that has not ended.
#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    leases: BTreeMap<LeaseId, Lease>,
    last: i64,
}

#[derive(Debug)]
struct Lease {
    ttl: Millis,
    deadline: BootMillis,
    keys: BTreeSet<Bytes>,
    /// Its end is being written.
    is_ending: bool,
}

impl LeaseBook {
    /// The id after every one that was ever given out.
    pub(crate) fn next_id(&self) -> LeaseId {
        LeaseId(self.last + 1)
    }

    /// Enters a lease that begins at `now`.
    pub(crate) fn enter(&mut self, id: LeaseId, ttl: Millis, now: BootMillis) {
        self.last = self.last.max(id.0);
        self.leases.insert(
            id,
            Lease {
                ttl,
                deadline: now.after(ttl),
                keys: BTreeSet::new(),
                is_ending: false,
            },
        );
    }

    /// Ids up to `last` have been given out before.
    pub(crate) fn resume_after(&mut self, last: LeaseId) {
        self.last = self.last.max(last.0);
    }

    /// Starts the lease's time again, unless its end is being written: who has seen its keys
    /// vanish is never told that it lives.
    pub(crate) fn renew(&mut self, id: LeaseId, now: BootMillis) -> Result<(), StoreError> {
        let lease = self.alive(id)?;
        lease.deadline = now.after(lease.ttl);
        Ok(())
    }

    /// True while the lease can hold keys.
    pub(crate) fn contains(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| !lease.is_ending)
    }

    fn alive(&mut self, id: LeaseId) -> Result<&mut Lease, StoreError> {
        let found = self.leases.get_mut(&id).filter(|lease| !lease.is_ending);
        found.ok_or(StoreError::LeaseNotFound(id))
    }

    /// Says that the lease's end is being written, and which keys it takes along.
    pub(crate) fn begin_to_end(&mut self, id: LeaseId) -> Result<Vec<Bytes>, StoreError> {
        self.alive(id)?.is_ending = true;
        Ok(self.keys(id))
    }

    /// The end could not be written: the lease goes on as it was.
    pub(crate) fn go_on(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.is_ending = false;
        }
    }

    /// Keys under the lease, in order.
    pub(crate) fn keys(&self, id: LeaseId) -> Vec<Bytes> {
        self.leases
            .get(&id)
            .map(|lease| lease.keys.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Strikes the lease out.
    pub(crate) fn remove(&mut self, id: LeaseId) {
        self.leases.remove(&id);
    }

    /// Leases whose time is over at `now`, by id.
    pub(crate) fn expired(&self, now: BootMillis) -> Vec<LeaseId> {
        let over = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.deadline <= now);
        over.map(|(id, _)| *id).collect()
    }

    /// When the next lease ends if nobody renews it.
    pub(crate) fn next_deadline(&self) -> Option<BootMillis> {
        self.leases.values().map(|lease| lease.deadline).min()
    }

    /// Takes note of a key that was found under its lease.
    pub(crate) fn attach(&mut self, kv: &KeyValue) {
        if let Some(lease) = kv.lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(kv.key.clone());
        }
    }

    /// Follows keys from lease to lease.
    pub(crate) fn observe(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Put { current, previous } => {
                    self.detach(previous.as_ref());
                    self.attach(current);
                }
                Event::Delete { previous, .. } => self.detach(previous.as_ref()),
            }
        }
    }

    fn detach(&mut self, kv: Option<&KeyValue>) {
        let Some((key, id)) = kv.and_then(|kv| Some((&kv.key, kv.lease?))) else {
            return;
        };
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.keys.remove(key);
        }
    }
}

/// Checks the time that a new lease asks for.
pub(crate) fn validate_ttl(ttl: Millis) -> Result<(), StoreError> {
    if ttl == Millis::ZERO || ttl > MAX_TTL {
        return Err(StoreError::Refused(format!(
            "a lease of {ttl}, it can be 1ms to {MAX_TTL}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_not_renewed_while_its_end_is_written() {
        let (id, ttl) = (LeaseId(1), Millis::seconds(2));
        let mut book = LeaseBook::default();
        book.enter(id, ttl, BootMillis::ZERO);
        book.begin_to_end(id).expect("alive");
        let gone = Err(StoreError::LeaseNotFound(id));
        assert_eq!(book.renew(id, BootMillis::ZERO), gone);
        assert_eq!(book.begin_to_end(id).map(|_| ()), gone);
        book.go_on(id);
        assert_eq!(book.renew(id, BootMillis::ZERO), Ok(()));
    }
}
