//! Copies: where the next gang of an array job may go, given where the others stand.
//!
//! Owns the keeping of a spread, gang by gang, and the shares of a division, which are made anew in
//! each turn of a round (the rules of both are `division`'s). Never chooses among what is left.
//!
//! A spread is kept so that it can always be finished: a gang may go to a domain if the gangs after
//! it suffice to fill the domains that are short. What its other gangs wait for does not hold it
//! up, so an array starts as room comes, and never in a way that ends lopsided.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::Uid;
use meridian_api::kinds::spread::{DivisionRule, SpreadRule};
use meridian_api::reasons::Reason;

use super::standing::holds;
use super::terms::{Choice, Shares, label};
use crate::candidates::{allows_cluster, choice, lacks, preference_with};
use crate::decide::Round;
use crate::diagnosis::fits_when_empty;
use crate::division::{Part, Rule, Spread, divide};
use crate::fit::fit;
use crate::model::{Cause, ClusterIx, PoolIx, Snapshot, WaitingIx};
use crate::preempt::holds::promised;
use crate::quota::Reach;
use crate::shapes;

/// Gangs that are fitted into one pool to count its room; beyond that its free GPUs are divided.
/// Shares of more gangs than this differ by less than one in a hundred.
const COUNTED: u32 = 128;

/// Domain of a spread, by ordinal.
type DomainIx = u32;

/// How the gangs of one job stand.
#[derive(Default)]
struct Job {
    /// Gangs that wait.
    left: u32,
    /// Gangs by cluster.
    held: Vec<u32>,
    /// Gangs that wait, and for which room is held, by cluster. What is held may come to nothing,
    /// so they count where too many would be one too many, and not where too few would.
    promised: Vec<u32>,
    spread: Option<Domains>,
    /// More gangs that each cluster may get in this turn.
    shares: Option<(Reach, Vec<u32>)>,
}

/// Domains of a spread.
struct Domains {
    rule: SpreadRule,
    names: Vec<String>,
    of: Vec<Option<DomainIx>>,
    /// Those that could hold a gang.
    open: BTreeSet<DomainIx>,
}

/// The array jobs of a round that are spread or divided.
pub(crate) struct Copies {
    jobs: BTreeMap<Uid, Job>,
}

impl Copies {
    /// Counts the gangs of all such jobs.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let mut jobs: BTreeMap<Uid, Job> = BTreeMap::new();
        if !snapshot.choices.iter().any(Choice::is_divided) {
            return Self { jobs };
        }
        let clusters = snapshot.clusters.len();
        let promised = promised(snapshot);
        for gang in &snapshot.waiting {
            if choice(snapshot, gang).is_divided() {
                let job = jobs.entry(gang.gang.job).or_default();
                job.left += 1;
                job.held.resize(clusters, 0);
                job.promised.resize(clusters, 0);
                let promised = promised.get(&gang.gang);
                let promised = promised.and_then(|at| job.promised.get_mut(at.index()));
                if let Some(promised) = promised {
                    *promised += 1;
                }
            }
        }
        for held in &snapshot.held {
            if let Some(job) = jobs.get_mut(&held.gang.job)
                && let Some(count) = job.held.get_mut(held.cluster.index())
            {
                *count += 1;
            }
        }
        Self { jobs }
    }

    /// True when the next gang of the job may go to the cluster.
    pub(crate) fn allows(&self, job: Uid, cluster: ClusterIx) -> bool {
        let Some(job) = self.jobs.get(&job) else {
            return true;
        };
        let shares = job.shares.as_ref();
        shares.is_none_or(|(_, shares)| shares[cluster.index()] > 0) && job.keeps_spread(cluster)
    }

    /// Room is held for a gang of the job that waits.
    pub(crate) fn promise(&mut self, job: Uid, cluster: ClusterIx) {
        self.change_promised(job, cluster, |promised| promised.saturating_add(1));
    }

    /// Room is not held any more for a gang of the job: it got a place, or waits on.
    pub(crate) fn take_back(&mut self, job: Uid, cluster: ClusterIx) {
        self.change_promised(job, cluster, |promised| promised.saturating_sub(1));
    }

    fn change_promised(&mut self, job: Uid, cluster: ClusterIx, with: impl Fn(u32) -> u32) {
        let job = self.jobs.get_mut(&job);
        if let Some(promised) = job.and_then(|job| job.promised.get_mut(cluster.index())) {
            *promised = with(*promised);
        }
    }

    /// A gang of the job got a place.
    pub(crate) fn placed(&mut self, job: Uid, cluster: ClusterIx) {
        let Some(job) = self.jobs.get_mut(&job) else {
            return;
        };
        job.left = job.left.saturating_sub(1);
        job.held[cluster.index()] += 1;
        if let Some((_, shares)) = &mut job.shares {
            shares[cluster.index()] = shares[cluster.index()].saturating_sub(1);
        }
    }
}

impl Domains {
    /// Domains that must hold gangs and how many each, as far as there are gangs to fill them: the
    /// last gangs of a job that is almost done are not held up for those that have ended.
    fn least(&self, total: u32) -> (u32, u32) {
        let (domains, each) = self.rule.least();
        let domains = domains.min(total.max(1));
        (domains, each.min(total / domains).max(1))
    }
}

impl Job {
    fn total(&self) -> u32 {
        self.held
            .iter()
            .fold(self.left, |sum, held| sum.saturating_add(*held))
    }

    /// Gangs by domain.
    fn counts(&self, domains: &Domains) -> BTreeMap<DomainIx, u32> {
        let mut counts: BTreeMap<DomainIx, u32> = domains.open.iter().map(|ix| (*ix, 0)).collect();
        for (domain, held) in domains.of.iter().zip(&self.held) {
            if let Some(domain) = domain
                && *held > 0
            {
                *counts.entry(*domain).or_default() += held;
            }
        }
        counts
    }

    fn keeps_spread(&self, cluster: ClusterIx) -> bool {
        let Some(domains) = &self.spread else {
            return true;
        };
        let Some(domain) = domains.of[cluster.index()] else {
            return false;
        };
        let mut counts = self.counts(domains);
        let (need, each) = domains.least(self.total());
        let there = counts.len();
        let lowest = counts.values().min().copied().unwrap_or(0);
        let Some(own) = counts.get_mut(&domain) else {
            return false;
        };
        *own += 1;
        let promised = domains.of.iter().zip(&self.promised);
        let promised = promised.filter(|(of, _)| **of == Some(domain));
        let most_there = promised.fold(*own, |sum, (_, more)| sum.saturating_add(*more));
        let skewed = domains
            .rule
            .max_skew
            .is_some_and(|most| most_there - lowest > most);
        let mut fullest: Vec<u32> = counts.into_values().collect();
        fullest.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let fullest = fullest.into_iter().take(need as usize);
        let short: u64 = fullest
            .map(|count| u64::from(each.saturating_sub(count)))
            .sum();
        !skewed && there >= need as usize && short <= u64::from(self.left.saturating_sub(1))
    }
}

impl Round<'_> {
    /// Brings up to date where the next gang of an array job may go.
    pub(crate) fn count_copies(&mut self, ix: WaitingIx, reach: Reach) {
        let gang = self.gang(ix);
        let wish = choice(self.snapshot, gang);
        let job = gang.gang.job;
        if !wish.is_divided() {
            return;
        }
        self.find_domains(ix);
        if let Some(division) = &wish.division
            && let Some(known) = self.copies.jobs.get(&job)
            && known
                .shares
                .as_ref()
                .is_none_or(|(known, _)| *known != reach)
        {
            let shares = self.shares(ix, division, |own, pool| own.room_for(ix, reach, pool));
            if let Some(job) = self.copies.jobs.get_mut(&job) {
                job.shares = Some((reach, shares));
            }
        }
    }

    /// Works out the domains of the job's spread, if it has one, the first time.
    fn find_domains(&mut self, ix: WaitingIx) {
        let gang = self.gang(ix);
        let job = gang.gang.job;
        let known = self.copies.jobs.get(&job);
        if let Some(rule) = &choice(self.snapshot, gang).spread
            && known.is_some_and(|job| job.spread.is_none())
        {
            let domains = self.domains(ix, rule);
            if let Some(job) = self.copies.jobs.get_mut(&job) {
                job.spread = Some(domains);
            }
        }
    }

    /// True when the gang may go to the cluster, given where others stand, whether it has room at
    /// the moment or not.
    fn is_near(&self, ix: WaitingIx, cluster: ClusterIx) -> bool {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let job = self.copies.jobs.get(&gang.gang.job);
        job.is_none_or(|job| job.keeps_spread(cluster))
            && self.others.allow(snapshot, gang, cluster)
    }

    /// True when the gang may still go to the cluster in which room is held for it.
    pub(crate) fn may_still_go(&mut self, ix: WaitingIx, cluster: ClusterIx) -> bool {
        let gang = self.gang(ix);
        if !choice(self.snapshot, gang).minds_others() {
            return true;
        }
        self.find_domains(ix);
        self.copies.take_back(gang.gang.job, cluster);
        let may = self.is_near(ix, cluster);
        self.copies.promise(gang.gang.job, cluster);
        may
    }

    /// Clusters in which room may be kept or made for the gang, given where others stand: those to
    /// which it could go if there were room. `None` when they are all alike to it.
    pub(crate) fn clusters_for(&mut self, ix: WaitingIx) -> Option<Vec<bool>> {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let wish = choice(snapshot, gang);
        if !wish.minds_others() {
            return None;
        }
        self.find_domains(ix);
        let division = wish.division.as_ref();
        let shares = division.and_then(|division| match division.rule {
            DivisionRule::Duplicated | DivisionRule::Weighted => {
                let left = self
                    .copies
                    .jobs
                    .get(&gang.gang.job)
                    .map_or(0, |job| job.left);
                Some(self.shares(ix, division, |_, _| left))
            }
            // These follow the room that there is.
            DivisionRule::Dynamic | DivisionRule::Aggregated => None,
        });
        let clusters = (0..).map(ClusterIx).take(snapshot.clusters.len());
        let may = |at: ClusterIx| {
            let has_share = shares.as_ref().is_none_or(|shares| shares[at.index()] > 0);
            has_share && self.is_near(ix, at)
        };
        Some(clusters.map(may).collect())
    }

    /// Open pools of each cluster that the gang may use by its wishes, and how it likes the best.
    fn usable(&mut self, ix: WaitingIx) -> Vec<(PoolIx, (u32, u32, u32, i64))> {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let mut usable = Vec::new();
        for at in 0..self.places.open.len() {
            let pool = self.places.open[at];
            let source = &snapshot.pools[pool.index()];
            let cluster = &snapshot.clusters[source.cluster.index()];
            if !allows_cluster(gang, source.cluster, cluster)
                || lacks(gang, source.cluster).is_some()
            {
                continue;
            }
            let standing = self.standings.of(snapshot, gang.choice, source.cluster);
            let Ok(likes) = preference_with(snapshot, gang, source, || standing) else {
                continue;
            };
            let price = source.facts.price.map_or(0, |price| price.0);
            let price = price.saturating_mul(1000) / i64::from(likes.speed.max(1));
            let rank = (
                likes.shunned,
                likes.region_order,
                likes.wishes_missed,
                price,
            );
            usable.push((pool, rank));
        }
        usable
    }

    fn domains(&mut self, ix: WaitingIx, rule: &SpreadRule) -> Domains {
        let usable = self.usable(ix);
        let snapshot = self.snapshot;
        let clusters = || (0..).map(ClusterIx).take(snapshot.clusters.len());
        let value = |cluster| label(snapshot, cluster, &rule.topology_key);
        let names: BTreeSet<&str> = clusters().filter_map(value).collect();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let ordinal = |cluster| {
            let at = names
                .iter()
                .position(|name| Some(name.as_str()) == value(cluster));
            at.and_then(|at| DomainIx::try_from(at).ok())
        };
        let of: Vec<Option<DomainIx>> = clusters().map(ordinal).collect();
        let gang = &self.gang(ix).shape;
        let least = gang.least();
        let could_hold = |pool: &PoolIx| {
            let source = &snapshot.pools[pool.index()];
            fits_when_empty(&source.levels, &source.shapes, gang, &least)
        };
        let able = usable
            .iter()
            .map(|(pool, _)| pool)
            .filter(|pool| could_hold(pool));
        let open = able.filter_map(|pool| of[snapshot.pools[pool.index()].cluster.index()]);
        Domains {
            open: open.collect(),
            rule: rule.clone(),
            names,
            of,
        }
    }

    /// How many more gangs of the job each cluster may get, where pools have as much `room`.
    fn shares(
        &mut self,
        ix: WaitingIx,
        division: &Shares,
        room_for: impl Fn(&Self, PoolIx) -> u32,
    ) -> Vec<u32> {
        let (snapshot, job) = (self.snapshot, self.gang(ix).gang.job);
        let mut room = vec![0_u32; snapshot.clusters.len()];
        let mut best = vec![None; snapshot.clusters.len()];
        for (pool, rank) in self.usable(ix) {
            let cluster = snapshot.pools[pool.index()].cluster.index();
            room[cluster] = room[cluster].saturating_add(room_for(self, pool));
            best[cluster] = best[cluster].into_iter().chain([rank]).min();
        }
        let Some(known) = self.copies.jobs.get(&job) else {
            return room;
        };
        let mut order: Vec<usize> = (0..room.len()).collect();
        order.sort_by_key(|at| (best[*at].is_none(), best[*at], &snapshot.clusters[*at].name));
        let domain = |at: usize| known.spread.as_ref().and_then(|spread| spread.of[at]);
        let part = |at: &usize| Part {
            held: known.held[*at].saturating_add(known.promised[*at]),
            // Where the spread lets none go a share would never be used.
            room: if known.spread.is_some() && domain(*at).is_none() {
                0
            } else {
                room[*at]
            },
            weight: weight(snapshot, division, *at),
            domain: domain(*at).unwrap_or(u32::MAX),
        };
        let parts: Vec<Part> = order.iter().map(part).collect();
        let spread = known.spread.as_ref().map(|domains| {
            let (min_domains, min_per_domain) = domains.least(known.total());
            Spread {
                min_domains,
                min_per_domain,
                max_skew: domains.rule.max_skew,
            }
        });
        let counts = match division.rule {
            DivisionRule::Duplicated => {
                let one = |part: &Part| part.held.max(part.room.min(1));
                parts.iter().map(one).collect()
            }
            DivisionRule::Weighted => counts(Rule::Weighted, known.total(), &parts, spread),
            DivisionRule::Dynamic => counts(Rule::Dynamic, known.total(), &parts, spread),
            DivisionRule::Aggregated => counts(Rule::Aggregated, known.total(), &parts, spread),
        };
        let mut shares = vec![0; room.len()];
        for ((at, count), part) in order.into_iter().zip(counts).zip(&parts) {
            shares[at] = count.saturating_sub(part.held);
        }
        shares
    }

    /// Gangs like this one that the pool and quota have room for, at most those that wait: room
    /// that slots and reservations keep from it is none.
    fn room_for(&self, ix: WaitingIx, reach: Reach, pool: PoolIx) -> u32 {
        let gang = self.gang(ix);
        let least = gang.shape.least();
        let demand = gang.shape.demand(&least);
        let source = &self.snapshot.pools[pool.index()];
        let quota = self
            .ledger
            .room(gang.tenant, self.snapshot.place(source), reach);
        let known = self.copies.jobs.get(&gang.gang.job);
        let most = known.map_or(0, |job| job.left);
        let most = u32::try_from(quota.times(demand))
            .unwrap_or(u32::MAX)
            .min(most);
        let seen = self.seen(pool, self.mask(ix, reach));
        let Some(rows) = self.blocks.view(ix, pool, (&gang.shape, &least), &seen) else {
            return 0;
        };
        let mut shapes = rows.into_owned();
        for fitted in 0..most.min(COUNTED) {
            let Some(found) = fit(&source.levels, &shapes, &gang.shape, &least) else {
                return fitted;
            };
            shapes = shapes::subtract(&shapes, &gang.shape, &found.takes)
                .expect("a fit takes from the shapes it was made for");
        }
        let free = shapes::free(&shapes).times(demand);
        most.min(COUNTED.saturating_add(u32::try_from(free).unwrap_or(u32::MAX)))
    }

    /// What keeps the gang back because of where others of its job stand.
    pub(crate) fn copies_cause(&self, ix: WaitingIx) -> Option<Cause> {
        let job = self.copies.jobs.get(&self.gang(ix).gang.job)?;
        let spread = job
            .spread
            .as_ref()
            .and_then(|domains| job.spread_words(domains));
        let (reason, message) = spread.or_else(|| {
            let division = choice(self.snapshot, self.gang(ix)).division.as_ref()?;
            job.share_words(self.snapshot, division)
        })?;
        Some(Cause {
            reason,
            cluster: None,
            flavor: None,
            amounts: None,
            message: message.into(),
        })
    }
}

fn counts(rule: Rule, total: u32, parts: &[Part], spread: Option<Spread>) -> Vec<u32> {
    divide(rule, total, parts, spread.as_ref()).counts
}

fn weight(snapshot: &Snapshot, division: &Shares, cluster: usize) -> u32 {
    let ix = ClusterIx(u32::try_from(cluster).unwrap_or(u32::MAX));
    let mut rows = division.weights.iter();
    let own = rows.find(|(group, _)| holds(snapshot, group, ix));
    own.map_or(0, |(_, weight)| *weight)
}

impl Job {
    fn spread_words(&self, domains: &Domains) -> Option<(Reason, String)> {
        let key = &domains.rule.topology_key;
        let counts = self.counts(domains);
        let (need, each) = domains.least(self.total());
        let name = |ix: DomainIx| domains.names[ix as usize].as_str();
        if counts.len() < need as usize {
            let known: Vec<&str> = counts.keys().map(|ix| name(*ix)).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            let message = format!(
                "its spread over {key} needs {need} domains that could hold a gang, there are {}: \
                 {known}; lower minDomains, or let it use more clusters",
                counts.len()
            );
            return Some((Reason::NeverPlaceable, message));
        }
        let may = |domain: DomainIx| {
            let mut clusters = domains.of.iter().zip(0..);
            let own = clusters.find(|(of, _)| **of == Some(domain));
            own.is_some_and(|(_, cluster)| self.keeps_spread(ClusterIx(cluster)))
        };
        let open: Vec<&str> = counts
            .keys()
            .filter(|ix| may(**ix))
            .map(|ix| name(*ix))
            .collect();
        if open.len() == counts.len() {
            return None;
        }
        let stand: Vec<String> = counts
            .iter()
            .map(|(ix, count)| format!("{count} in {}", name(*ix)))
            .collect();
        let skew = domains.rule.max_skew;
        let skew = skew.map_or_else(String::new, |most| format!(", maxSkew {most}"));
        let message = format!(
            "its gangs stand {}; by its spread over {key} ({need} domains of {each}{skew}) the next \
             goes to {}",
            stand.join(", "),
            if open.is_empty() {
                "none".to_owned()
            } else {
                open.join(" or ")
            },
        );
        Some((Reason::WaitingForCapacity, message))
    }

    fn share_words(&self, snapshot: &Snapshot, division: &Shares) -> Option<(Reason, String)> {
        let (_, shares) = self.shares.as_ref()?;
        let rows = snapshot.clusters.iter().zip(&self.held).zip(shares);
        let rows = rows.filter(|((_, held), left)| **held > 0 || **left > 0);
        let rows: Vec<String> = rows
            .map(|((cluster, held), left)| {
                format!("{} {held} of {}", cluster.name, held.saturating_add(*left))
            })
            .collect();
        let rows = if rows.is_empty() {
            "none".to_owned()
        } else {
            rows.join(", ")
        };
        let rule = division.rule;
        let message = match rule {
            DivisionRule::Duplicated => format!(
                "one copy goes to each cluster ({rows}); this one waits for a cluster that joins or \
                 has room"
            ),
            DivisionRule::Weighted | DivisionRule::Dynamic | DivisionRule::Aggregated => {
                format!("divided {rule:?}, with the room there is: {rows}; the rest waits for room")
            }
        };
        Some((Reason::WaitingForCapacity, message))
    }
}
