//! Preemption: room is made for a gang that finds none, at the least lost work anywhere.
//!
//! Owns the plan for one gang: which pool, which hosts, who goes, moves or gets smaller, what is
//! held. Every pool that the gang may use is compared; bounds refuse what can never be before
//! anybody is looked at. Needs to know on which hosts work stands (`Snapshot::hosts`), and plans
//! nothing where nobody says so. Never carries anything out: the gang is placed by `decide` when
//! the room is there.
//!
//! ```text
//! who may be taken (rules), or moved aside (compaction) -> what it costs (cost) -> hosts to clear
//! (search) -> does the whole gang fit (fit) -> who need not go after all -> is there quota
//! (ledger) -> who of them can go on elsewhere (moves) -> the cheapest pool
//! ```

pub(crate) mod again;
mod bids;
pub mod blocks;
mod candidates;
mod compaction;
mod cost;
mod ground;
pub mod holds;
mod moves;
mod room;
mod rounds;
mod rules;
mod search;
mod stands;
pub mod words;

use meridian_api::units::{Millis, Resources};

use crate::candidates::{Preference, allows_cluster, lacks, preference};
use crate::decide::Round;
use crate::model::{
    Held, PoolIx, Preemption, RoleShape, Shape, Snapshot, Victim, WaitingIx, Yield,
};
use crate::quota::{Ledger, Reach};
use crate::slots::Mask;

use bids::{Bid, bid};
pub(crate) use ground::{minus, plus};
use moves::Price;
pub(crate) use rounds::{Beneficiaries, Preemptions};
pub(crate) use rules::cooling;
use rules::{Aim, Asker};

/// From the last victim's deadline to the end of a hold: the agent's kill after its grace (30 s at
/// most by default) and the reports of both sides.
const HOLD_MARGIN: Millis = Millis::seconds(60);
/// Placements of one tenant that are looked at to free quota, its cheapest: each costs a walk up
/// the tree, and more than a thousand that make way for one gang are no plan.
const QUOTA_STEPS: usize = 1024;

/// A gang that looks for room.
struct Quest<'a> {
    ix: WaitingIx,
    reach: Reach,
    mask: Mask,
    /// The role that is hardest to find room for.
    main: usize,
    need: Resources,
    /// Quota once everybody has gone who leaves for others.
    once_gone: Ledger<'a>,
    aim: Aim,
}

/// What a search comes to.
enum Outcome {
    Found(Box<Bid>),
    /// It finds room as soon as those have gone who are leaving for others.
    Soon,
    Nothing,
}

/// The cheapest way to make room for the gang; `None` when there is none.
pub(crate) fn plan(
    round: &mut Round<'_>,
    ix: WaitingIx,
    reach: Reach,
    mask: Mask,
) -> Option<Preemption> {
    let gang = round.gang(ix);
    let pods = gang.shape.least();
    let mut quest = Quest {
        ix,
        reach,
        mask,
        main: main_role(round, ix)?,
        need: gang.shape.demand(&pods),
        once_gone: round.once_gone(),
        aim: Aim::Take,
    };
    let mut outcome = quest.best(round);
    if matches!(outcome, Outcome::Nothing) && round.slot_of(ix).is_some() {
        quest.aim = Aim::Compact;
        outcome = quest.best(round);
    }
    let bid = match outcome {
        Outcome::Found(bid) => *bid,
        Outcome::Soon | Outcome::Nothing => return None,
    };
    let last = bid.victims.iter().map(|victim| victim.deadline).max()?;
    Some(Preemption {
        waiting: ix,
        pool: bid.pool,
        gpus: quest.need.gpus,
        pods,
        takes: bid.takes,
        room: bid.room,
        rows: Vec::new(),
        cost: bid.cost,
        victims: bid.victims,
        until: last.after(HOLD_MARGIN),
        after: round.placed,
    })
}

impl Quest<'_> {
    /// The cheapest bid of all pools.
    fn best(&self, round: &mut Round<'_>) -> Outcome {
        let snapshot = round.snapshot;
        let gang = round.gang(self.ix);
        let pods = gang.shape.least();
        let mut best: Option<Bid> = None;
        let near = round.clusters_for(self.ix);
        for (pool, preference) in open_to(round, self.ix, near.as_deref()) {
            let source = &snapshot.pools[pool.index()];
            let owed = self.once_gone.owed(gang.tenant, snapshot.place(source));
            let is_owner = owed.covers(self.need);
            let may = match self.aim {
                Aim::Take => self.reach != Reach::Nominal || is_owner,
                Aim::Compact => round.is_fragmented(self.ix, pool, self.need.gpus),
            };
            if !may || !could_hold(&source.shapes, &gang.shape.roles, &pods) {
                continue;
            }
            let asker = Asker::new(snapshot, gang, is_owner, self.aim);
            if !round.may_yield(&asker, pool) {
                continue;
            }
            for price in self.aim.prices().iter().copied() {
                let most = best.as_ref().map(|best| best.cost);
                match self.offer(round, &asker, (pool, preference), price, most) {
                    Offer::None => break,
                    Offer::Soon => return Outcome::Soon,
                    Offer::Bid(bid, as_priced) => {
                        if best.as_ref().is_none_or(|best| bid.key() < best.key()) {
                            best = Some(*bid);
                        }
                        if as_priced {
                            break;
                        }
                    }
                }
            }
        }
        best.map_or(Outcome::Nothing, |bid| Outcome::Found(Box::new(bid)))
    }

    /// What one pool offers, if that may cost no more than `most`.
    fn offer(
        &self,
        round: &mut Round<'_>,
        asker: &Asker<'_>,
        (pool, preference): (PoolIx, Preference),
        price: Price,
        most: Option<u64>,
    ) -> Offer {
        let snapshot = round.snapshot;
        let spare = round.pools[pool.index()].free;
        if self.aim == Aim::Take {
            // They free as much whatever it costs, so that is asked before who could go on where.
            let stopped = round.candidates(asker, pool, Price::Stopped);
            if stopped.bound(self.need.gpus, spare).is_none() {
                return Offer::None;
            }
        }
        let candidates = round.candidates(asker, pool, price);
        let bound = candidates.bound(self.need.gpus, spare);
        if bound.is_none_or(|bound| most.is_some_and(|most| most < bound)) {
            return Offer::None;
        }
        let found = bid(
            round,
            self.ix,
            pool,
            self.mask,
            &candidates,
            self.main,
            preference,
        );
        let Some(mut bid) = found else {
            return Offer::None;
        };
        if !self.with_quota(round, asker, &mut bid) {
            return Offer::None;
        }
        if bid.victims.is_empty() {
            let place = snapshot.place(&snapshot.pools[pool.index()]);
            let room = round.ledger.room(asker.gang.tenant, place, self.reach);
            // It finds room there, and quota as soon as those have gone who are leaving.
            return if room.covers(self.need) {
                Offer::None
            } else {
                Offer::Soon
            };
        }
        let as_priced = self.let_move(round, &mut bid, price);
        if self.aim == Aim::Compact
            && let Err(barred) = round.is_worth_it(self.ix, self.need.gpus, &bid)
        {
            round.preemptions.again.note(barred.until());
            return Offer::None;
        }
        Offer::Bid(Box::new(bid), as_priced)
    }
}

/// What one pool offers.
enum Offer {
    None,
    /// Nobody need go: see [`Outcome::Soon`].
    Soon,
    /// True when everybody goes on elsewhere who was priced as if it did.
    Bid(Box<Bid>, bool),
}

/// The role that is hardest to find room for.
fn main_role(round: &Round<'_>, ix: WaitingIx) -> Option<usize> {
    let roles = &round.gang(ix).shape.roles;
    let all = roles.iter().enumerate();
    let sized = all.map(|(at, role)| {
        let gpus = role.per_pod.gpus.0.saturating_mul(role.min.into());
        (gpus, role.per_pod, at)
    });
    sized.max().map(|(_, _, at)| at)
}

/// Pools that the gang may use, by name; those in clusters that are `near` to it, if it minds.
fn open_to(round: &Round<'_>, ix: WaitingIx, near: Option<&[bool]>) -> Vec<(PoolIx, Preference)> {
    let (snapshot, gang) = (round.snapshot, round.gang(ix));
    let open = round.places.open.iter().filter_map(|pool| {
        let source = &snapshot.pools[pool.index()];
        let cluster = &snapshot.clusters[source.cluster.index()];
        // Hosts that a reservation keeps from it would not be its own when they are free.
        let least = gang.shape.least();
        let may = allows_cluster(gang, source.cluster, cluster)
            && lacks(gang, source.cluster).is_none()
            && near.is_none_or(|near| near[source.cluster.index()])
            && round.blocks.must_leave(ix, *pool, &gang.shape, &least) == 0;
        let preference = preference(snapshot, gang, source).ok().filter(|_| may)?;
        Some((*pool, preference))
    });
    open.collect()
}

/// False when the hosts could not hold the pods of some role even if they were empty: a bound that
/// costs one division per row.
fn could_hold(shapes: &[Shape], roles: &[RoleShape], pods: &[u32]) -> bool {
    roles.iter().zip(pods).all(|(role, pods)| {
        let mut left = u64::from(*pods);
        shapes.iter().any(|row| {
            let each = row.allocatable.times(role.per_pod);
            left = left.saturating_sub(each.saturating_mul(u64::from(row.hosts)));
            left == 0
        })
    })
}

/// What a victim gives up.
#[must_use]
pub fn given_up(held: &Held, does: &Yield) -> Resources {
    match does {
        Yield::Evict | Yield::Move(_) => held.resources,
        Yield::Shrink { pods, .. } => {
            let stays = held.standing.shape.demand(pods);
            minus(held.resources, stays)
        }
    }
}

impl Quest<'_> {
    /// True when there is quota for the gang once the victims are gone, and those who leave
    /// already; adds more of those that it may take where quota is short, the cheapest first.
    fn with_quota(&self, round: &mut Round<'_>, asker: &Asker<'_>, bid: &mut Bid) -> bool {
        let snapshot = round.snapshot;
        let place = snapshot.place(&snapshot.pools[bid.pool.index()]);
        let (tenant, reach, need) = (asker.gang.tenant, self.reach, self.need);
        let mut ledger = self.once_gone.clone();
        for victim in &bid.victims {
            give_back(snapshot, &mut ledger, victim);
        }
        if ledger.room(tenant, place, reach).covers(need) {
            return true;
        }
        if self.aim == Aim::Compact {
            return false;
        }
        let more = round.for_quota(asker, place);
        let is_new = |it: &Victim| bid.victims.iter().all(|other| other.held != it.held);
        let more: Vec<Victim> = more.into_iter().filter(is_new).collect();
        let mut bound = ledger.clone();
        for victim in &more {
            give_back(snapshot, &mut bound, victim);
        }
        if !bound.room(tenant, place, reach).covers(need) {
            return false;
        }
        let mut added: Vec<Victim> = Vec::new();
        for victim in more {
            give_back(snapshot, &mut ledger, &victim);
            added.push(victim);
            if ledger.room(tenant, place, reach).covers(need) {
                break;
            }
        }
        // Whoever made no difference stays: the cheap ones were added first, so the dear ones are
        // asked last whether they must go.
        added.retain(|victim| {
            let held = &snapshot.held[victim.held.index()];
            let stood = snapshot.held[victim.held.index()].place(snapshot);
            ledger.keep(held.tenant, stood, given_up(held, &victim.does));
            let needed = !ledger.room(tenant, place, reach).covers(need);
            if needed {
                give_back(snapshot, &mut ledger, victim);
            }
            needed
        });
        bid.victims.extend(added);
        bid.add_up(snapshot);
        true
    }
}

fn give_back(snapshot: &Snapshot, ledger: &mut Ledger<'_>, victim: &Victim) {
    let held = &snapshot.held[victim.held.index()];
    let stood = snapshot.held[victim.held.index()].place(snapshot);
    ledger.give_back(held.tenant, stood, given_up(held, &victim.does));
}
