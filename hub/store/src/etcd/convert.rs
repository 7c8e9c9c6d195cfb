//! Our words in etcd's, and back.
//!
//! Owns the key prefix (added and taken off here and nowhere else) and what each of etcd's errors
//! means to us. Never calls anything.

use bytes::Bytes;
use etcd_client::{
    Compare as EtcdCompare, CompareOp, DeleteOptions, Error, PutOptions, ResponseHeader,
    Txn as EtcdTxn, TxnOp, TxnOpResponse, TxnResponse as EtcdTxnResponse,
};
use meridian_api::ids::Revision;
use tonic::Code;

use crate::{Compare, KeyRange, KeyValue, LeaseId, Op, StoreError, Txn, TxnResponse};

/// The prefix under which every key lives in etcd.
#[derive(Clone, Debug)]
pub(super) struct Prefix(Bytes);

impl Prefix {
    pub(super) fn new(prefix: String) -> Self {
        Self(prefix.into())
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.0[..], key].concat()
    }

    /// Start and end of a range that is not empty.
    pub(super) fn range(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        (self.key(&range.start), self.key(&range.end))
    }

    /// A key of etcd's without the prefix.
    pub(super) fn strip(&self, key: Vec<u8>) -> Result<Bytes, StoreError> {
        let key = Bytes::from(key);
        if key.starts_with(&self.0) {
            return Ok(key.slice(self.0.len()..));
        }
        let key = String::from_utf8_lossy(&key).into_owned();
        Err(StoreError::Corrupt(format!(
            "etcd answered with {key}, which is not below our prefix"
        )))
    }

    pub(super) fn key_value(&self, kv: etcd_client::KeyValue) -> Result<KeyValue, StoreError> {
        let lease = kv.lease();
        let (create, modified) = (unsigned(kv.create_revision()), unsigned(kv.mod_revision()));
        let version = u64::try_from(kv.version()).unwrap_or(0);
        let (key, value) = kv.into_key_value();
        Ok(KeyValue {
            key: self.strip(key)?,
            value: value.into(),
            create_revision: create,
            mod_revision: modified,
            version,
            lease: (lease != 0).then_some(LeaseId(lease)),
        })
    }

    pub(super) fn txn(&self, txn: &Txn) -> EtcdTxn {
        let compares = txn.compares.iter().map(|compare| match compare {
            Compare::ModRevision(key, revision) => {
                EtcdCompare::mod_revision(self.key(key), CompareOp::Equal, signed(*revision))
            }
            Compare::CreateRevision(key, revision) => {
                EtcdCompare::create_revision(self.key(key), CompareOp::Equal, signed(*revision))
            }
        });
        EtcdTxn::new()
            .when(compares.collect::<Vec<_>>())
            .and_then(self.branch(&txn.success))
            .or_else(self.branch(&txn.failure))
    }

    fn branch(&self, branch: &[Op]) -> Vec<TxnOp> {
        let op = |op: &Op| match op {
            Op::Put { key, value, lease } => {
                let lease = lease.map(|lease| PutOptions::new().with_lease(lease.0));
                TxnOp::put(self.key(key), &value[..], lease)
            }
            Op::Delete { key } => TxnOp::delete(self.key(key), None::<DeleteOptions>),
            Op::Get { key } => TxnOp::get(self.key(key), None),
        };
        branch.iter().map(op).collect()
    }

    /// Independent transactions inside one that always holds.
    pub(super) fn batch(&self, txns: &[Txn]) -> EtcdTxn {
        let inner = txns.iter().map(|txn| TxnOp::txn(self.txn(txn)));
        EtcdTxn::new().and_then(inner.collect::<Vec<_>>())
    }

    pub(super) fn txn_response(&self, answer: &EtcdTxnResponse) -> Result<TxnResponse, StoreError> {
        let revision = header_revision(answer.header())?;
        self.inner_response(answer, revision)
    }

    pub(super) fn batch_response(
        &self,
        answer: &EtcdTxnResponse,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        let revision = header_revision(answer.header())?;
        let inner = answer
            .op_responses()
            .into_iter()
            .map(|response| match response {
                TxnOpResponse::Txn(inner) => self.inner_response(&inner, revision),
                TxnOpResponse::Put(_) | TxnOpResponse::Get(_) | TxnOpResponse::Delete(_) => Err(
                    StoreError::Corrupt("etcd answered another request than ours".to_owned()),
                ),
            });
        inner.collect()
    }

    fn inner_response(
        &self,
        answer: &EtcdTxnResponse,
        revision: Revision,
    ) -> Result<TxnResponse, StoreError> {
        let mut reads = Vec::new();
        for response in answer.op_responses() {
            match response {
                TxnOpResponse::Get(mut read) => {
                    let found = read.take_kvs().into_iter().next();
                    reads.push(found.map(|kv| self.key_value(kv)).transpose()?);
                }
                TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => {}
            }
        }
        Ok(TxnResponse {
            succeeded: answer.succeeded(),
            revision,
            reads,
        })
    }
}

/// A number of things as etcd takes it.
pub(super) fn int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A revision as etcd takes it.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// A revision as etcd gives it.
pub(super) fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

pub(super) fn header_revision(header: Option<&ResponseHeader>) -> Result<Revision, StoreError> {
    let header = header.ok_or_else(|| StoreError::Corrupt("etcd gave no header".to_owned()))?;
    Ok(unsigned(header.revision()))
}

/// True when the request cannot have reached any member.
pub(super) fn never_left(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else {
        return false;
    };
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Names the lease that a transaction was refused for; etcd only says that there was one.
pub(super) fn name_lease(error: StoreError, txns: &[Txn]) -> StoreError {
    let StoreError::LeaseNotFound(_) = error else {
        return error;
    };
    let mut ops = txns
        .iter()
        .flat_map(|txn| txn.success.iter().chain(&txn.failure));
    let lease = ops.find_map(|op| match op {
        Op::Put { lease, .. } => *lease,
        Op::Delete { .. } | Op::Get { .. } => None,
    });
    lease.map_or(error, StoreError::LeaseNotFound)
}

/// What etcd's error means. Revisions and leases that it does not name are zero here.
pub(super) fn to_store_error(error: &Error) -> StoreError {
    match error {
        Error::GRpcStatus(status) => status_error(status.code(), status.message()),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            StoreError::Refused(error.to_string())
        }
        Error::Utf8Error(_) => StoreError::Corrupt(error.to_string()),
        Error::IoError(_)
        | Error::TransportError(_)
        | Error::WatchError(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::EndpointError(_)
        | Error::EndpointsNotManaged
        | Error::Internal(_) => StoreError::Unavailable(error.to_string()),
    }
}

/// etcd has one code for several things; its texts are constants of `rpctypes/error.go`.
fn status_error(code: Code, message: &str) -> StoreError {
    let zero = Revision(0);
    match code {
        Code::OutOfRange if message.contains("compacted") => StoreError::Compacted {
            requested: zero,
            oldest: zero,
        },
        Code::OutOfRange if message.contains("future") => StoreError::FutureRevision {
            requested: zero,
            newest: zero,
        },
        Code::NotFound if message.contains("lease not found") => {
            StoreError::LeaseNotFound(LeaseId(0))
        }
        Code::ResourceExhausted if message.contains("space exceeded") => {
            StoreError::Full(message.to_owned())
        }
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::Unimplemented => StoreError::Refused(message.to_owned()),
        Code::DataLoss => StoreError::Corrupt(message.to_owned()),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => StoreError::Unavailable(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_etcd_are_understood() {
        let error = |code, message| status_error(code, message).label();
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(error(Code::OutOfRange, compacted), "compacted");
        let future = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(error(Code::OutOfRange, future), "future_revision");
        let lease = "etcdserver: requested lease not found";
        assert_eq!(error(Code::NotFound, lease), "lease_not_found");
        let space = "etcdserver: mvcc: database space exceeded";
        assert_eq!(error(Code::ResourceExhausted, space), "full");
        let busy = "etcdserver: too many requests";
        assert_eq!(error(Code::ResourceExhausted, busy), "unavailable");
        assert_eq!(
            error(Code::InvalidArgument, "etcdserver: duplicate key"),
            "refused"
        );
        assert_eq!(
            error(Code::Unavailable, "etcdserver: leader changed"),
            "unavailable"
        );
    }

    #[test]
    fn the_prefix_goes_on_and_comes_off() {
        let prefix = Prefix::new("/p/".to_owned());
        let (start, end) = prefix.range(&KeyRange::prefix("a/"));
        assert_eq!((&start[..], &end[..]), (&b"/p/a/"[..], &b"/p/a0"[..]));
        assert_eq!(prefix.strip(b"/p/a/b".to_vec()), Ok("a/b".into()));
        assert!(prefix.strip(b"/q/a/b".to_vec()).is_err());
    }
}
