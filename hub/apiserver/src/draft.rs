//! Drafts: a transaction on its way to the store.
//!
//! Owns what it compares and its limits. Never sends it.

use bytes::Bytes;
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, MAX_TXN_OPERATIONS, MAX_VALUE_BYTES, Op, Revision, Txn};
use serde_json::Value;

use crate::admission::Admitted;
use crate::kind::Kind;
use crate::object::Halves;
use crate::resources::WriteOptions;
use crate::status::{ApiStatus, StatusReason};

/// A transaction being put together.
pub(crate) struct Draft<'a> {
    pub kind: &'a Kind,
    pub key: &'a ObjectKey,
    /// What was read; `None` when there must be nothing.
    pub halves: Option<&'a Halves>,
    pub head: Option<Revision>,
    pub ops: Vec<Op>,
}

impl Draft<'_> {
    /// Compares the object, the head and everything that admission and the caller name.
    pub(crate) fn txn(self, admitted: Admitted, options: &WriteOptions) -> Result<Txn, ApiStatus> {
        let mut compares = match self.halves {
            None => vec![Compare::ModRevision(
                self.key.part(Part::Spec),
                Revision::default(),
            )],
            Some(halves) => vec![
                Compare::ModRevision(self.key.part(Part::Spec), halves.spec.mod_revision),
                Compare::ModRevision(self.key.part(Part::Status), halves.status_revision()),
            ],
        };
        let mut ops = self.ops;
        if let Some(head) = self.head {
            compares.push(Compare::ModRevision(keys::policy_head(), head));
            let value = Bytes::from(format!("{}/{}", self.key.plural, self.key.name));
            ops.push(Op::Put {
                key: keys::policy_head(),
                value,
                lease: None,
            });
        }
        compares.extend(admitted.compares);
        compares.extend(options.compares.iter().cloned());
        ops.extend(admitted.puts);
        ops.extend(options.puts.iter().cloned());
        let count = compares.len() + ops.len();
        if count > MAX_TXN_OPERATIONS {
            let message = format!(
                "the change of {} \"{}\" takes {count} conditions and writes, at most \
                 {MAX_TXN_OPERATIONS} fit in one transaction",
                self.kind.resource(),
                self.key.name
            );
            return Err(ApiStatus::new(StatusReason::RequestEntityTooLarge, message));
        }
        Ok(Txn {
            compares,
            success: ops,
            failure: Vec::new(),
        })
    }
}

/// A put, when the value is small enough.
pub(crate) fn put(key: Bytes, value: &Value) -> Result<Op, ApiStatus> {
    let value = Bytes::from(value.to_string());
    if value.len() > MAX_VALUE_BYTES {
        let message = format!(
            "the object has {} bytes, at most {MAX_VALUE_BYTES} can be stored: make it smaller",
            value.len()
        );
        return Err(ApiStatus::new(StatusReason::RequestEntityTooLarge, message));
    }
    Ok(Op::Put {
        key,
        value,
        lease: None,
    })
}
