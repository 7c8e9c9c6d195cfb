//! What alike placements share.
//!
//! Owns the tables in which their words, roles, rows, labels and ways of saving are found again.
//! What a record says stays as it was.

use std::collections::BTreeMap;

use super::alike::Alike;
use crate::placement::{PlacedCheckpoint, PlacedRole, PlacementRecord, StoredRow};

/// One of each.
#[derive(Debug, Default)]
pub(super) struct Common {
    words: Alike<str>,
    roles: Alike<Vec<PlacedRole>>,
    ledgers: Alike<Vec<StoredRow>>,
    labels: Alike<BTreeMap<String, String>>,
    checkpoints: Alike<PlacedCheckpoint>,
}

impl Common {
    /// Puts what others have, too, in the place of the record's own.
    pub(super) fn share(&mut self, record: &mut PlacementRecord) {
        let words = [
            &mut record.namespace,
            &mut record.tenant,
            &mut record.class,
            &mut record.cluster,
            &mut record.pool,
            &mut record.flavor,
        ];
        for word in words {
            self.words.share(word);
        }
        self.roles.share(&mut record.roles);
        self.ledgers.share(&mut record.ledger);
        self.labels.share(&mut record.labels);
        if let Some(checkpoint) = &mut record.checkpoint {
            self.checkpoints.share(checkpoint);
        }
    }
}
