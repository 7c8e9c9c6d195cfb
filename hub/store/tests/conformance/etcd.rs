//! What only a real etcd can show. Filled in beside the etcd store.
use crate::suite::Bench;

pub(crate) async fn bench() -> Option<((), Bench)> {
    None
}
