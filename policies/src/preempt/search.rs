//! The cheapest hosts to clear in one pool.
//!
//! Owns the greedy choice: each host offers its cheapest way to hold one pod more, the cheapest
//! offer of all is taken, and what it frees elsewhere makes other offers cheaper. At the end
//! whoever need not go after all, the dearest first, is reprieved. Never knows what the gang's
//! other roles need: the caller fits the whole gang on what comes out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use meridian_api::units::Resources;

use super::ground::{Ask, CandidateIx, Ground, minus, plus};

/// Hosts that may be cleared together, and pods that the others there hold as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Area {
    pub(crate) hosts: Vec<usize>,
    pub(crate) natural: u64,
}

/// A way for one host to hold more pods.
#[derive(Clone, Debug)]
struct Offer {
    cost: u64,
    extra: u64,
    /// Seats and what is asked of them.
    asks: Vec<(usize, Ask)>,
}

/// One thing that could be asked on a host.
#[derive(Clone, Copy, Debug)]
struct Item {
    seat: usize,
    ask: Ask,
    freed: Resources,
    cost: u64,
}

/// The search in one pool for hosts that hold pods of one size.
pub(crate) struct Search<'g, 'a> {
    pub(crate) ground: &'g mut Ground<'a>,
    per_pod: Resources,
    /// Pods that each host holds at the moment.
    caps: Vec<u64>,
    offers: Vec<Option<Offer>>,
}

impl<'g, 'a> Search<'g, 'a> {
    pub(crate) fn new(ground: &'g mut Ground<'a>, per_pod: Resources) -> Self {
        let caps = ground.hosts.iter().map(|host| host.free.times(per_pod));
        let caps: Vec<u64> = caps.collect();
        Self {
            offers: vec![None; caps.len()],
            ground,
            per_pod,
            caps,
        }
    }

    /// Pods that the area holds if everybody does what he can be asked.
    pub(crate) fn most(&self, area: &Area) -> u64 {
        let most = |host: &usize| {
            let own = &self.ground.hosts[*host];
            let all = own.seats.iter().fold(own.free, |free, seat| {
                let it = &self.ground.candidates[seat.candidate];
                if it.may_go {
                    return plus(free, seat.held);
                }
                let roles = &self.ground.held(seat.candidate).standing.shape.roles;
                let leaves = seat.pods.iter().zip(&it.slack).zip(roles);
                leaves.fold(free, |free, ((pods, slack), role)| {
                    let pods = u64::from(*pods.min(slack));
                    plus(free, role.per_pod.checked_mul(pods).unwrap_or_default())
                })
            });
            all.times(self.per_pod)
        };
        let hosts = area.hosts.iter().map(most);
        hosts.fold(area.natural, u64::saturating_add)
    }

    /// About what it costs to make the area hold so many pods; `None` when it cannot.
    pub(crate) fn estimate(&mut self, area: &Area, pods: u64) -> Option<u64> {
        if self.most(area) < pods {
            return None;
        }
        let mut have = self.have(area);
        let mut offers: Vec<(u128, usize)> = Vec::new();
        for host in &area.hosts {
            self.refresh(*host);
            if let Some(offer) = &self.offers[*host] {
                offers.push((ratio(offer), *host));
            }
        }
        offers.sort_unstable();
        let mut cost = 0_u64;
        for (_, host) in offers {
            if have >= pods {
                break;
            }
            if let Some(offer) = &self.offers[host] {
                have = have.saturating_add(offer.extra);
                cost = cost.saturating_add(offer.cost);
            }
        }
        Some(cost)
    }

    fn have(&self, area: &Area) -> u64 {
        let caps = area.hosts.iter().map(|host| self.caps[*host]);
        caps.fold(area.natural, u64::saturating_add)
    }

    /// Clears hosts of the area until it holds so many pods.
    pub(crate) fn clear(&mut self, area: &Area, pods: u64) -> bool {
        let mut have = self.have(area);
        let mut heap = BinaryHeap::new();
        for host in &area.hosts {
            self.push(*host, &mut heap);
        }
        let mut inside = vec![false; self.caps.len()];
        for host in &area.hosts {
            inside[*host] = true;
        }
        while have < pods {
            let Some(Reverse((_, host, version))) = heap.pop() else {
                return false;
            };
            if self.ground.hosts[host].version != version {
                continue;
            }
            let Some(offer) = self.offers[host].take() else {
                continue;
            };
            let mut changed = vec![host];
            for (seat, ask) in offer.asks {
                changed.extend(self.ground.ask(host, seat, ask));
            }
            changed.sort_unstable();
            changed.dedup();
            for host in changed {
                let cap = self.ground.hosts[host].free.times(self.per_pod);
                if inside[host] {
                    have = have.saturating_add(cap.saturating_sub(self.caps[host]));
                    self.caps[host] = cap;
                    self.push(host, &mut heap);
                }
                self.caps[host] = cap;
            }
        }
        self.spare(area, pods);
        true
    }

    fn push(&mut self, host: usize, heap: &mut BinaryHeap<Reverse<(u128, usize, u32)>>) {
        self.refresh(host);
        if let Some(offer) = &self.offers[host] {
            let version = self.ground.hosts[host].version;
            heap.push(Reverse((ratio(offer), host, version)));
        }
    }

    fn refresh(&mut self, host: usize) {
        self.offers[host] = self.offer(host);
    }

    /// The cheapest way for a host to hold one pod more: what frees most for its price first, and
    /// of that whatever turns out not to be needed is left out again.
    fn offer(&self, host: usize) -> Option<Offer> {
        let own = &self.ground.hosts[host];
        let mut items = self.items(host);
        items.sort_by(|a, b| {
            let (one, other) = (u128::from(a.cost), u128::from(b.cost));
            let weighed = (one * weight(b.freed)).cmp(&(other * weight(a.freed)));
            weighed.then_with(|| self.tie(host, a).cmp(&self.tie(host, b)))
        });
        let (mut free, mut used): (Resources, Vec<Item>) = (own.free, Vec::new());
        let target = self.caps[host].saturating_add(1);
        for item in items {
            if free.times(self.per_pod) >= target {
                break;
            }
            let mut item = item;
            if let Ask::Go(candidate) = item.ask {
                // Whoever goes takes along what it would have let go.
                used.retain(|other| match other.ask {
                    Ask::Leave(leaves, _) if leaves == candidate => {
                        free = minus(free, other.freed);
                        false
                    }
                    Ask::Leave(..) | Ask::Go(_) => true,
                });
                item.freed = own.seats[item.seat].held;
            }
            free = plus(free, item.freed);
            used.push(item);
        }
        if free.times(self.per_pod) < target {
            return None;
        }
        used.sort_by_key(|item| Reverse(item.cost));
        used.retain(|item| {
            let without = minus(free, item.freed);
            let needed = without.times(self.per_pod) < target;
            if !needed {
                free = without;
            }
            needed
        });
        let cost = used
            .iter()
            .fold(0_u64, |sum, item| sum.saturating_add(item.cost));
        Some(Offer {
            cost,
            extra: free.times(self.per_pod).saturating_sub(self.caps[host]),
            asks: used.into_iter().map(|item| (item.seat, item.ask)).collect(),
        })
    }

    fn items(&self, host: usize) -> Vec<Item> {
        let own = &self.ground.hosts[host];
        let mut items = Vec::with_capacity(own.seats.len());
        for (seat, seated) in own.seats.iter().enumerate() {
            let it = &self.ground.candidates[seated.candidate];
            if it.goes {
                continue;
            }
            for ((role, pods), slack) in (0_u32..).zip(&seated.pods).zip(&it.slack) {
                for _ in 0..*pods.min(slack) {
                    items.push(self.item(host, seat, Ask::Leave(seated.candidate, role)));
                }
            }
            if it.may_go {
                items.push(self.item(host, seat, Ask::Go(seated.candidate)));
            }
        }
        items
    }

    fn item(&self, host: usize, seat: usize, ask: Ask) -> Item {
        Item {
            seat,
            ask,
            freed: self.ground.freed(host, seat, ask),
            cost: self.ground.price(host, seat, ask),
        }
    }

    /// Between equals: who need not be stopped, then by name, as candidates are.
    fn tie(&self, host: usize, item: &Item) -> (bool, CandidateIx) {
        let candidate = self.ground.hosts[host].seats[item.seat].candidate;
        (matches!(item.ask, Ask::Go(_)), candidate)
    }

    /// Reprieves whoever need not do anything after all, the dearest first.
    fn spare(&mut self, area: &Area, pods: u64) {
        let mut have = self.have(area);
        let mut inside = vec![false; self.caps.len()];
        for host in &area.hosts {
            inside[*host] = true;
        }
        let all = 0..self.ground.candidates.len();
        let mut asked: Vec<usize> = all.filter(|ix| self.ground.is_asked(*ix)).collect();
        asked.sort_by_key(|ix| (Reverse(self.ground.cost(*ix)), *ix));
        for candidate in asked {
            let places = self.ground.where_is[candidate].clone();
            let drop = places.iter().filter(|(host, _)| inside[*host]);
            let drop = drop.map(|(host, seat)| {
                let given = self.ground.given(candidate, *host, *seat);
                let without = minus(self.ground.hosts[*host].free, given);
                self.caps[*host].saturating_sub(without.times(self.per_pod))
            });
            let drop: u64 = drop.sum();
            if have.saturating_sub(drop) < pods {
                continue;
            }
            have -= drop;
            self.ground.reprieve(candidate);
            for (host, _) in places {
                self.caps[host] = self.ground.hosts[host].free.times(self.per_pod);
            }
        }
    }
}

/// Cost of one pod more, in fixed point.
fn ratio(offer: &Offer) -> u128 {
    (u128::from(offer.cost) << 16) / u128::from(offer.extra.max(1))
}

/// How much a freed amount is worth in the comparison of offers: GPUs, and a little for a core, so
/// that work without GPUs can be asked to go, too.
fn weight(freed: Resources) -> u128 {
    u128::from(freed.gpus.0) * 64 + u128::from(freed.cpu.0) + 1
}
