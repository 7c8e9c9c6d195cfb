//! Causes that places give: what keeps a gang out of each cluster and pool that it allows.
//!
//! Owns these causes and their words. What a pool says to a shape is worked out once, on the trees
//! that placement runs on, however many gangs have it.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use meridian_api::kinds::reservation::FOREVER;
use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis};

use super::hosts::Hosts;
use super::plain;
use crate::candidates::{Barred, allows_cluster, lacks, preference_with};
use crate::choice::words;
use crate::decide::Round;
use crate::diagnosis::{Lack, NoRoom, amount, cards, diagnose, short_of};
use crate::fit::{Ground, fit, fits_on};
use crate::kinds::Fold;
use crate::model::{
    Accepted, Amounts, Cause, ClusterIx, Contact, FlavorIx, GangShape, PoolIx, RoleShape, Shared,
    Snapshot, Waiting, WaitingIx,
};
use crate::names::Names;
use crate::shapes;
use crate::slots::{Mask, Slot};

/// Answers by ordinals, never walked.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// What a pool says to a gang.
#[derive(Clone)]
enum Room {
    /// It could not hold it even when empty.
    Never,
    /// It could, and why it does not; `None` when it has room (then quota keeps the gang out).
    Could(Option<Shared<Cause>>),
}

/// A pool at the round's start, and with every host empty.
struct Grounds {
    start: Ground<'static>,
    empty: Ground<'static>,
}

/// What clusters and pools say, at the end of the round.
pub(super) struct Rooms {
    names: Arc<Names>,
    pools_of: Vec<Vec<PoolIx>>,
    grounds: Vec<Option<Grounds>>,
    hosts: Vec<Option<Hosts>>,
    /// By shape.
    known: Table<(u32, PoolIx), Room>,
    kept: Table<(u32, PoolIx, Mask), Option<Shared<Cause>>>,
    /// Whether a shape fits in pools that look the same when they are empty.
    fits: Table<(u32, u64, usize), bool>,
    /// Lists of flavors, and what clusters say that have none of them.
    lists: BTreeMap<Shared<Vec<Accepted>>, u32>,
    strangers: Table<(u32, ClusterIx), Shared<Cause>>,
}

impl Rooms {
    pub(super) fn new(snapshot: &Snapshot, names: Arc<Names>) -> Self {
        let mut pools_of = vec![Vec::new(); snapshot.clusters.len()];
        for (pool, ix) in snapshot.pools.iter().zip((0..).map(PoolIx)) {
            pools_of[pool.cluster.index()].push(ix);
        }
        Self {
            names,
            pools_of,
            grounds: snapshot.pools.iter().map(|_| None).collect(),
            hosts: snapshot.pools.iter().map(|_| None).collect(),
            known: Table::default(),
            kept: Table::default(),
            fits: Table::default(),
            lists: BTreeMap::new(),
            strangers: Table::default(),
        }
    }

    /// What keeps it out of each cluster that it allows. A pool that could not hold it even when
    /// empty is mentioned only when none could.
    pub(super) fn of_places(
        &mut self,
        round: &mut Round<'_>,
        ix: WaitingIx,
        mask: Mask,
    ) -> Vec<Shared<Cause>> {
        let (snapshot, gang) = (round.snapshot, round.gang(ix));
        let next = u32::try_from(self.lists.len()).unwrap_or(u32::MAX);
        let list = match self.lists.get(&gang.flavors) {
            Some(known) => *known,
            None => *self.lists.entry(gang.flavors.clone()).or_insert(next),
        };
        let mut causes = Vec::new();
        let (mut allowed, mut candidates, mut holding) = (0_usize, Vec::new(), 0_usize);
        for (cluster, cluster_ix) in snapshot.clusters.iter().zip((0..).map(ClusterIx)) {
            if !allows_cluster(gang, cluster_ix, cluster) {
                continue;
            }
            allowed += 1;
            causes.extend(closed(cluster, cluster_ix).into_iter().map(Shared::from));
            let lacking = lacks(gang, cluster_ix).map(|lacking| Cause {
                cluster: Some(cluster_ix),
                ..plain(lacking.reason, lacking.message.clone())
            });
            causes.extend(lacking.map(Shared::from));
            let mut flavor_matches = false;
            for at in 0..self.pools_of[cluster_ix.index()].len() {
                let pool_ix = self.pools_of[cluster_ix.index()][at];
                let pool = &snapshot.pools[pool_ix.index()];
                let standing = || round.standings.of(snapshot, gang.choice, cluster_ix);
                match preference_with(snapshot, gang, pool, standing) {
                    Err(Barred::Flavor) => {}
                    Err(Barred::Class) => {
                        flavor_matches = true;
                        causes.push(other_class(round, gang, pool_ix).into());
                    }
                    Err(barred) => {
                        flavor_matches = true;
                        causes.push(words::barred(snapshot, gang, pool, barred).into());
                    }
                    Ok(_) => {
                        flavor_matches = true;
                        candidates.push(pool_ix);
                        holding += usize::from(self.of_pool(round, ix, pool_ix, mask, &mut causes));
                    }
                }
            }
            if !flavor_matches {
                let said = self.strangers.entry((list, cluster_ix));
                let own = &self.pools_of[cluster_ix.index()];
                let said =
                    said.or_insert_with(|| no_flavor(snapshot, gang, cluster_ix, own).into());
                causes.push(said.clone());
            }
        }
        if allowed == 0 {
            let all = snapshot.clusters.len();
            let message =
                format!("none of the {all} clusters is in a region and list that it allows");
            causes.push(plain(Reason::NoMatchingFlavor, message).into());
        }
        if holding == 0 {
            causes.extend(never(round, gang, &candidates).map(Shared::from));
        }
        causes
    }

    /// Says why a pool that the gang may use does not hold it; false when it never could.
    fn of_pool(
        &mut self,
        round: &mut Round<'_>,
        ix: WaitingIx,
        pool: PoolIx,
        mask: Mask,
        causes: &mut Vec<Shared<Cause>>,
    ) -> bool {
        let shape = round.kinds.of(ix).shape;
        let room = if let Some(known) = self.known.get(&(shape, pool)) {
            known.clone()
        } else {
            let room = self.room(round, ix, pool);
            self.known.insert((shape, pool), room.clone());
            room
        };
        let Room::Could(cause) = room else {
            return false;
        };
        if cause.is_some() {
            causes.extend(cause);
            return true;
        }
        let key = (shape, pool, round.bits_in(pool, mask));
        let known = self.kept.entry(key);
        let known = known.or_insert_with(|| {
            let by_slot = kept(round, ix, pool, mask);
            let kept = by_slot.or_else(|| reserved(round, ix, pool));
            kept.map(Shared::from)
        });
        causes.extend(known.clone());
        true
    }

    fn hosts(&mut self, round: &Round<'_>, pool: PoolIx) -> &Hosts {
        self.hosts[pool.index()].get_or_insert_with(|| {
            let (state, source) = (&round.pools[pool.index()], round.snapshot);
            Hosts::new(state, &source.pools[pool.index()].shapes)
        })
    }

    fn grounds(&mut self, snapshot: &Snapshot, pool: PoolIx) -> &mut Grounds {
        self.grounds[pool.index()].get_or_insert_with(|| {
            let source = &snapshot.pools[pool.index()];
            let (levels, rows) = (&source.levels, &source.shapes);
            Grounds {
                start: Ground::new(levels, rows).into_owned(),
                empty: Ground::with(levels, rows, |row| row.allocatable).into_owned(),
            }
        })
    }

    fn room(&mut self, round: &mut Round<'_>, ix: WaitingIx, pool: PoolIx) -> Room {
        let gang = &round.gang(ix).shape;
        if let Some((role, pods)) = anywhere(gang) {
            let hosts = self.hosts(round, pool);
            if hosts.empty.pods(role.per_pod, pods) < pods {
                return Room::Never;
            }
            let lack = hosts.lack(role.per_pod, pods);
            let cause = lack.map(|(lack, had_room)| {
                let cause = self.no_room(round, ix, pool, lack, had_room);
                Shared::from(cause)
            });
            return Room::Could(cause);
        }
        let snapshot = round.snapshot;
        let (levels, least) = (&snapshot.pools[pool.index()].levels, gang.least());
        let empty = &mut self.grounds(snapshot, pool).empty;
        let key = (round.kinds.of(ix).shape, empty.looks(), levels.len());
        let fits = if let Some(known) = self.fits.get(&key) {
            *known
        } else {
            let empty = &mut self.grounds(snapshot, pool).empty;
            let fits = fits_on(empty, levels, gang, &least);
            self.fits.insert(key, fits);
            fits
        };
        if !fits {
            return Room::Never;
        }
        let state = &mut round.pools[pool.index()];
        let has_changed = state.version > 0;
        let ground = state.ground(levels);
        if fits_on(ground, levels, gang, &least) {
            return Room::Could(None);
        }
        let lack = Lack::of(levels, &ground.tree, gang, &least);
        let start = &mut self.grounds(snapshot, pool).start;
        let had_room = has_changed && fits_on(start, levels, gang, &least);
        Room::Could(Some(self.no_room(round, ix, pool, lack, had_room).into()))
    }

    /// Why the pool, which could hold the gang, does not.
    fn no_room(
        &mut self,
        round: &Round<'_>,
        ix: WaitingIx,
        pool: PoolIx,
        lack: Lack,
        had_room: bool,
    ) -> Cause {
        let gang = &round.gang(ix).shape;
        let (names, hosts) = (Arc::clone(&self.names), self.hosts(round, pool));
        let need = gang.demand(&gang.least());
        let words = NoRoom {
            names,
            pool,
            lack,
            free: hosts.free.gpus,
            at_start: had_room.then_some(hosts.free_at_start),
        };
        let source = &round.snapshot.pools[pool.index()];
        Cause {
            reason: if had_room {
                Reason::BehindHigherPriority
            } else {
                short_of(hosts.free, need)
            },
            cluster: Some(source.cluster),
            flavor: Some(source.flavor),
            amounts: Some(Amounts {
                need: need.gpus,
                free: hosts.free.gpus,
                limit: words.at_start.unwrap_or(hosts.total),
            }),
            message: words.into(),
        }
    }
}

/// The role of a gang that may stand anywhere in a pool, and its least pods: it fits if and only
/// if the hosts hold these.
fn anywhere(gang: &GangShape) -> Option<(&RoleShape, u32)> {
    let [role] = gang.roles.as_slice() else {
        return None;
    };
    let is_free = role.required.is_none() && role.slice.is_none();
    is_free.then_some((role, role.min))
}

fn closed(cluster: &crate::model::Cluster, ix: ClusterIx) -> Vec<Cause> {
    let here = |reason, message| Cause {
        cluster: Some(ix),
        ..plain(reason, message)
    };
    let mut causes = Vec::new();
    if cluster.cordoned {
        let message = format!("cluster {} is cordoned", cluster.name);
        causes.push(here(Reason::ClusterCordoned, message));
    }
    let heard = match cluster.contact {
        Contact::Ready => return causes,
        Contact::Suspect => "is late",
        Contact::Unreachable => "is not heard",
        Contact::Lost => "is lost or never attached",
    };
    let message = format!("the agent of cluster {} {heard}", cluster.name);
    causes.push(here(Reason::ClusterUnreachable, message));
    causes
}

fn other_class(round: &Round<'_>, gang: &Waiting, pool: PoolIx) -> Cause {
    let snapshot = round.snapshot;
    let source = &snapshot.pools[pool.index()];
    let class = snapshot
        .classes
        .get(gang.class.index())
        .map_or("?", |class| &class.name);
    Cause {
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        ..plain(
            Reason::ReservedForOthers,
            format!("pool {} does not admit class {class}", source.name),
        )
    }
}

fn no_flavor(snapshot: &Snapshot, gang: &Waiting, cluster: ClusterIx, pools: &[PoolIx]) -> Cause {
    let names = |flavors: Vec<FlavorIx>| {
        let names = flavors
            .iter()
            .map(|flavor| snapshot.flavors[flavor.index()].name.as_str());
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    let own = pools.iter().map(|pool| snapshot.pools[pool.index()].flavor);
    let mut own: Vec<FlavorIx> = own.collect();
    own.sort_unstable();
    own.dedup();
    let wanted = if gang.flavors.is_empty() {
        "any".to_owned()
    } else {
        names(
            gang.flavors
                .iter()
                .map(|accepted| accepted.flavor)
                .collect(),
        )
    };
    let name = &snapshot.clusters[cluster.index()].name;
    let message = format!("accepts {wanted}; cluster {name} has {}", names(own));
    Cause {
        cluster: Some(cluster),
        ..plain(Reason::NoMatchingFlavor, message)
    }
}

/// The pool that comes closest, when none could hold the gang.
fn never(round: &Round<'_>, gang: &Waiting, candidates: &[PoolIx]) -> Option<Cause> {
    let largest = candidates.iter().max_by_key(|pool| {
        let source = &round.snapshot.pools[pool.index()];
        let cluster = &round.snapshot.clusters[source.cluster.index()].name;
        let total = shapes::allocatable(&source.shapes);
        (total.gpus, std::cmp::Reverse((cluster, &source.name)))
    })?;
    let source = &round.snapshot.pools[largest.index()];
    let least = gang.shape.least();
    let found = diagnose(&source.levels, &source.shapes, &gang.shape, &least);
    let cluster = &round.snapshot.clusters[source.cluster.index()].name;
    Some(Cause {
        amounts: Some(found.amounts),
        ..plain(
            Reason::NeverPlaceable,
            format!(
                "none of {} pools could hold it; the largest, {cluster}/{}: {}",
                candidates.len(),
                source.name,
                found.message,
            ),
        )
    })
}
/// Room that the gang would have in the pool, if slots did not keep it.
fn kept(round: &Round<'_>, ix: WaitingIx, pool: PoolIx, mask: Mask) -> Option<Cause> {
    let gang = &round.gang(ix).shape;
    let source = &round.snapshot.pools[pool.index()];
    let seen = round.seen(pool, mask);
    let (_, slot) = round.kept_in(pool, mask).next()?;
    if fit(&source.levels, &seen, gang, &gang.least()).is_some() {
        return None;
    }
    let amounts = Amounts {
        need: gang.gpus(&gang.least()),
        free: shapes::free(&seen).gpus,
        limit: shapes::free(round.pools[pool.index()].rows()).gpus,
    };
    let message = format!(
        "pool {}: {} of {} free GPUs are kept for {}; what ends before that may run",
        source.name,
        amount(amounts.limit.saturating_sub(amounts.free)),
        amount(amounts.limit),
        slot_words(round, slot),
    );
    Some(Cause {
        reason: Reason::ReservedForOthers,
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        amounts: Some(amounts),
        message: message.into(),
    })
}

/// Room that the gang would have in the pool, if a reservation did not keep it.
fn reserved(round: &Round<'_>, ix: WaitingIx, pool: PoolIx) -> Option<Cause> {
    let snapshot = round.snapshot;
    if !round.blocks.mind(pool) {
        return None;
    }
    let gang = &round.gang(ix).shape;
    let source = &snapshot.pools[pool.index()];
    let rows = round.pools[pool.index()].rows();
    let least = gang.least();
    let view = round.blocks.view(ix, pool, (gang, &least), rows);
    let fits = |rows: &[_]| fit(&source.levels, rows, gang, &least).is_some();
    if view.as_deref().is_some_and(fits) {
        return None;
    }
    let row = &snapshot.reserved[round.blocks.keeper(ix, pool, gang)?];
    let amounts = Amounts {
        need: gang.gpus(&least),
        free: view.map_or(MilliGpus::ZERO, |rows| shapes::free(&rows).gpus),
        limit: shapes::free(rows).gpus,
    };
    let tenant = &snapshot.tenants[row.tenant.index()].name;
    let wait = row.from.since(snapshot.now);
    let gone = Millis(wait.0.saturating_sub(row.lead.0));
    let when = if wait == Millis::ZERO {
        let ends = row.until.since(snapshot.now).0.div_ceil(60_000);
        if row.until == FOREVER {
            "has them".to_owned()
        } else {
            format!("has them for {ends} min")
        }
    } else {
        let (begins, gone) = (wait.0.div_ceil(60_000), gone.0 / 60_000);
        format!("gets them in {begins} min; what runs for at most {gone} min may run before that")
    };
    let message = format!(
        "pool {}: {} hosts are reserved ({}) for tenant {tenant}, who {when}",
        source.name, row.hosts, row.name,
    );
    Some(Cause {
        reason: Reason::ReservedForOthers,
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        amounts: Some(amounts),
        message: message.into(),
    })
}

/// Whose slot it is, how large, and when it is due.
pub(super) fn slot_words(round: &Round<'_>, slot: &Slot) -> String {
    let owner = round.gang(slot.owner);
    let wait = slot.start.earliest.since(round.snapshot.now);
    let minutes = wait.0.div_ceil(60_000);
    format!(
        "{} gang {}, which takes {} on {} hosts in {minutes} min at the earliest",
        owner.job,
        owner.gang.index,
        cards(slot.need.gpus),
        slot.host_count(),
    )
}
