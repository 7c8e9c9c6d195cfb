//! Holds: room and quota kept for a gang while others leave, as stored.
//!
//! Owns the stored form (`holds/<job uid>/<index>`): one write is a whole decision, with its
//! victims, what is held and the ledger rows, and the holds of those victims that go on elsewhere,
//! so that no leader leaves half of one behind. A victim leaves because a hold names it, and for
//! no other reason. Never stops anything itself.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, Revision, Term};
use meridian_api::units::{MilliGpus, Resources, UnixMillis};
use meridian_policies::model::{
    Hold, HoldRoom, HostIx, Lapse, Lapsed, Preemption, Rule, Snapshot, Vacating, Victim, Yield,
};
use meridian_policies::preempt::given_up;
use meridian_policies::preempt::words::work;
use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Op, Operation};
use serde::{Deserialize, Serialize};

use crate::fence::put;
use crate::model::{HostId, Model};
use crate::placement::{StoredRow, stored_rows};
use crate::settle::{Change, Subject};

/// Room and quota that are kept for one gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldRecord {
    /// Whose.
    pub gang: GangId,
    /// `namespace/name` of its job.
    pub job: String,
    /// Who pays.
    pub tenant: String,
    /// Where.
    pub cluster: String,
    /// Pool there.
    pub pool: String,
    /// Hardware there.
    pub flavor: String,
    /// Term of the leader that decided it.
    pub term: Term,
    /// Pods per role.
    pub pods: Vec<u32>,
    /// All of them together.
    pub resources: Resources,
    /// Hosts that are kept.
    pub room: Vec<StoredRoom>,
    /// Its entries in the ledger.
    pub ledger: Vec<StoredRow>,
    /// Who makes room.
    pub victims: Vec<StoredVictim>,
    /// When it was decided.
    pub decided: UnixMillis,
    /// It ends then, met or not.
    pub until: UnixMillis,
    /// The reservation for whose block others leave; absent = it is for a gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
}

/// Alike hosts of which the same amount is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRoom {
    /// Their domains.
    pub domains: Vec<String>,
    /// Size of each.
    pub allocatable: Resources,
    /// Kept on each.
    pub need: Resources,
    /// How many.
    pub hosts: u32,
    /// Those that somebody had to leave, as their agent numbers them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<u64>,
}

/// One placement that makes room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredVictim {
    /// Which gang.
    pub gang: GangId,
    /// Under which epoch: another one is another placement.
    pub epoch: Epoch,
    /// `namespace/name` of its job.
    pub job: String,
    /// Why it may be taken.
    pub rule: Rule,
    /// Cluster and pool in which it goes on; absent = it waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<String>,
    /// What it goes on with; absent = it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrinks: Option<StoredShrink>,
    /// What it gives up.
    pub resources: Resources,
    /// Work that it loses.
    pub lost: u64,
    /// It is gone by then.
    pub deadline: UnixMillis,
}

/// What an elastic victim goes on with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredShrink {
    /// Pods per role.
    pub pods: Vec<u32>,
    /// Role, host and how many pods leave it first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<(u32, u64, u32)>,
}

impl HoldRecord {
    /// As stored.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a hold holds only text, numbers and lists")
    }

    /// The part that names this placement.
    #[must_use]
    pub fn victim(&self, gang: GangId, epoch: Epoch) -> Option<&StoredVictim> {
        let mut victims = self.victims.iter();
        victims.find(|victim| victim.gang == gang && victim.epoch == epoch)
    }
}

/// The write of a whole decision to make room; `None` when the gang's job is gone meanwhile.
#[must_use]
pub(crate) fn hold_change(
    model: &Model,
    snapshot: &Snapshot,
    hosts: &[HostId],
    made: &Preemption,
    term: Term,
) -> Option<Change> {
    let waiting = &snapshot.waiting[made.waiting.index()];
    let gang = waiting.gang;
    let job = model.job(gang.job)?;
    let mut records = records(snapshot, hosts, made, term);
    let next_places = records.split_off(1);
    let record = records.pop()?;
    let key = keys::hold(gang);
    let mut compares = vec![
        Compare::ModRevision(keys::policy_head(), snapshot.policy_head),
        Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
        Compare::ModRevision(job.key(Part::Spec), waiting.spec_revision),
        Compare::ModRevision(keys::progress(job.uid), job.progress_revision()),
        Compare::ModRevision(keys::placement(gang), Revision(0)),
        Compare::ModRevision(key.clone(), Revision(0)),
    ];
    compares.extend(victim_compares(model, &record));
    let told = format!(
        "gang {} gets {} GPUs in {}/{}: {} make room, {} lost",
        gang.index,
        record.resources.gpus.whole(),
        record.cluster,
        record.pool,
        names(&record.victims),
        work(
            record
                .victims
                .iter()
                .fold(0, |sum, it| sum.saturating_add(it.lost))
        ),
    );
    let mut ops = vec![
        put(key, record.to_json()),
        put(keys::ledger_head(), gang.to_string()),
    ];
    for next in &next_places {
        let key = keys::hold(next.gang);
        compares.push(Compare::ModRevision(key.clone(), Revision(0)));
        ops.push(put(key, next.to_json()));
    }
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitDecision,
        compares,
        ops,
        told: Some(("Preempting", told)),
    })
}

/// Compares and writes of one transaction are limited to 120, and the next places of up to 16
/// victims take two each. So of a decision with very many victims only the first are compared: one
/// that is gone meanwhile has made its room already.
const COMPARED: usize = 80;

fn victim_compares(model: &Model, record: &HoldRecord) -> Vec<Compare> {
    let stored = record.victims.iter().filter_map(|victim| {
        let row = model.placement(victim.gang)?;
        let same = row.record.epoch == victim.epoch;
        same.then(|| Compare::ModRevision(keys::placement(victim.gang), row.revision))
    });
    stored.take(COMPARED).collect()
}

/// The gang's own hold, with those who make room, then one for each of them that goes on elsewhere:
/// its place is kept for it as if it waited already.
fn records(
    snapshot: &Snapshot,
    hosts: &[HostId],
    made: &Preemption,
    term: Term,
) -> Vec<HoldRecord> {
    let waiting = &snapshot.waiting[made.waiting.index()];
    let moved = made.moves().map(|(victim, _)| victim.held.index());
    let moved = moved.map(|held| snapshot.held[held].standing.job.as_str());
    let jobs = std::iter::once(waiting.job.as_str()).chain(moved);
    let holds = made.holds(snapshot);
    let mut records: Vec<HoldRecord> = jobs
        .zip(&holds)
        .map(|(job, hold)| stored(snapshot, hosts, hold, job, term))
        .collect();
    let victims = made.victims.iter().map(|it| victim(snapshot, hosts, it));
    records[0].victims = victims.collect();
    records
}

/// A hold as stored, without who makes room for it.
fn stored(snapshot: &Snapshot, hosts: &[HostId], hold: &Hold, job: &str, term: Term) -> HoldRecord {
    let number = |ix: &HostIx| hosts.get(ix.index()).map(|host| host.number);
    let room = hold.room.iter().map(|room: &HoldRoom| StoredRoom {
        domains: room.domains.clone(),
        allocatable: room.allocatable,
        need: room.need,
        hosts: room.hosts,
        known: room.known.iter().filter_map(number).collect(),
    });
    let pool = hold.pool.and_then(|pool| snapshot.pools.get(pool.index()));
    HoldRecord {
        gang: hold.gang,
        job: job.to_owned(),
        tenant: snapshot.tenants[hold.tenant.index()].name.clone(),
        cluster: snapshot.clusters[hold.cluster.index()].name.clone(),
        pool: pool.map(|pool| pool.name.clone()).unwrap_or_default(),
        flavor: snapshot.flavors[hold.flavor.index()].name.clone(),
        term,
        pods: hold.pods.clone(),
        resources: hold.resources,
        room: room.collect(),
        ledger: stored_rows(snapshot, &hold.rows),
        victims: Vec::new(),
        decided: hold.since,
        until: hold.until,
        block: None,
    }
}

/// Orders for one reservation that may be under way at a time: those of one block follow each other
/// within minutes, and each is gone a minute after its last victim.
const ORDERS: u32 = 16;

/// The write by which those in the way of a block go; `None` when the reservation is gone
/// meanwhile, or has too many such orders under way.
#[must_use]
pub(crate) fn vacate_change(
    model: &Model,
    snapshot: &Snapshot,
    hosts: &[HostId],
    leaving: &Vacating,
    term: Term,
) -> Option<Change> {
    let row = snapshot.reserved.get(leaving.reserved as usize)?;
    let reservation = model.catalog.reservations.get(&row.name)?;
    let uid = reservation.value.metadata.uid?;
    let mut orders = (0..ORDERS).map(|index| GangId { job: uid, index });
    let gang = orders.find(|gang| model.hold(*gang).is_none())?;
    let pool = &snapshot.pools[row.pool.index()];
    let victims = leaving.victims.iter();
    let record = HoldRecord {
        gang,
        job: format!("reservation {}", row.name),
        tenant: snapshot.tenants[row.tenant.index()].name.clone(),
        cluster: snapshot.clusters[pool.cluster.index()].name.clone(),
        pool: pool.name.clone(),
        flavor: snapshot.flavors[pool.flavor.index()].name.clone(),
        term,
        pods: Vec::new(),
        resources: Resources::default(),
        room: Vec::new(),
        ledger: Vec::new(),
        victims: victims.map(|it| victim(snapshot, hosts, it)).collect(),
        decided: snapshot.now,
        until: leaving.until,
        block: Some(row.name.clone()),
    };
    let key = keys::hold(gang);
    let mut compares = vec![
        Compare::ModRevision(keys::policy_head(), snapshot.policy_head),
        Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
        Compare::ModRevision(key.clone(), Revision(0)),
    ];
    compares.extend(victim_compares(model, &record));
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitDecision,
        compares,
        ops: vec![
            put(key, record.to_json()),
            put(keys::ledger_head(), gang.to_string()),
        ],
        told: None,
    })
}

fn victim(snapshot: &Snapshot, hosts: &[HostId], victim: &Victim) -> StoredVictim {
    let held = &snapshot.held[victim.held.index()];
    let shrinks = match &victim.does {
        Yield::Evict | Yield::Move(_) => None,
        Yield::Shrink { pods, leaves } => {
            let leaves = leaves.iter().filter_map(|it| {
                let host = hosts.get(it.host.index())?;
                Some((it.role, host.number, it.pods))
            });
            Some(StoredShrink {
                pods: pods.clone(),
                leaves: leaves.collect(),
            })
        }
    };
    let moves_to = match &victim.does {
        Yield::Evict | Yield::Shrink { .. } => None,
        Yield::Move(next) => {
            let pool = &snapshot.pools[next.pool.index()];
            let cluster = &snapshot.clusters[pool.cluster.index()].name;
            Some(format!("{cluster}/{}", pool.name))
        }
    };
    StoredVictim {
        gang: held.gang,
        epoch: held.epoch,
        job: held.standing.job.clone(),
        rule: victim.rule,
        moves_to,
        shrinks,
        resources: given_up(held, &victim.does),
        lost: victim.lost,
        deadline: victim.deadline,
    }
}

/// The first few, for an event.
fn names(victims: &[StoredVictim]) -> String {
    let mut jobs: BTreeMap<&str, MilliGpus> = BTreeMap::new();
    for victim in victims {
        let sum = jobs.entry(&victim.job).or_default();
        *sum = sum.saturating_add(victim.resources.gpus);
    }
    let all = jobs.len();
    let shown = jobs.into_iter().take(3);
    let shown: Vec<String> = shown
        .map(|(job, gpus)| format!("{job} ({} GPUs)", gpus.whole()))
        .collect();
    if all > shown.len() {
        format!("{} and {} more", shown.join(", "), all - shown.len())
    } else {
        shown.join(", ")
    }
}

/// The write that ends a hold; `None` when it has ended meanwhile.
#[must_use]
pub(crate) fn lapse_change(model: &Model, snapshot: &Snapshot, lapsed: Lapsed) -> Option<Change> {
    let gang = snapshot.holds[lapsed.hold.index()].gang;
    let stored = model.hold(gang)?;
    let why = match lapsed.why {
        Lapse::Expired => "its time is over",
        Lapse::NotWanted => "its gang does not wait any more",
        Lapse::Closed => "its pool takes no new work",
        Lapse::PlacedElsewhere => "its gang found another place",
        Lapse::Done => "everybody has gone who was to go",
    };
    let record = &stored.record;
    let told = format!(
        "{} GPUs in {}/{} are not held for gang {} any more: {why}",
        record.resources.gpus.whole(),
        record.cluster,
        record.pool,
        gang.index,
    );
    let (key, revision) = (keys::hold(gang), stored.revision);
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitDecision,
        compares: vec![
            Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
            Compare::ModRevision(key.clone(), revision),
        ],
        ops: vec![
            Op::Delete { key },
            put(keys::ledger_head(), gang.to_string()),
        ],
        told: Some(("HoldEnded", told)),
    })
}

#[cfg(test)]
#[path = "holds_tests.rs"]
mod tests;
