//! Rows that the judges' tests begin with.
//!
//! Owns their shape, as the hub stores it.

use meridian_api::ids::{Epoch, GangId, Term, Uid};
use meridian_hub::placement::PlacementRecord;
use serde_json::json;

/// The gang of every row.
pub(super) const GANG: GangId = GangId {
    job: Uid(1),
    index: 0,
};

/// A starting gang of one GPU in `cluster`.
pub(super) fn placement(cluster: &str, epoch: Epoch, term: Term) -> PlacementRecord {
    let row = json!({
        "gang": GANG, "namespace": "lab", "job": "job", "tenant": "org", "class": "plain",
        "priority": 0, "cluster": cluster, "pool": "h100", "flavor": "h100", "epoch": epoch,
        "term": term, "state": "Starting", "roles": [], "gpus": 1000, "grace": 0, "decided": 0,
    });
    serde_json::from_value(row).expect("it is written as the hub writes rows")
}
