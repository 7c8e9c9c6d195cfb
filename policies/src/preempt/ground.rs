//! The ground of one pool: its hosts, who stands on them, and what comes free when somebody goes.
//!
//! Owns the arithmetic of freed room. Each change is counted at once, on all hosts that it
//! touches. Never chooses.

use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Resources};

use crate::model::{HeldIx, RoleShape, Rule, Shape, Snapshot};

/// Position among the candidates of a pool.
pub(crate) type CandidateIx = usize;

/// A placement that may make room, and how far it has been asked to.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) held: HeldIx,
    pub(crate) rule: Rule,
    pub(crate) lost: u64,
    pub(crate) cost: u64,
    /// It may be stopped as a whole.
    pub(crate) may_go: bool,
    /// Pods of each role that may leave before it must be stopped; empty where none may.
    pub(crate) slack: Vec<u32>,
    /// The same before anything was asked.
    pub(crate) full_slack: Vec<u32>,
    /// What one pod of each role costs that leaves; empty where none may.
    pub(crate) unit: Vec<u64>,
    pub(crate) gpus: MilliGpus,
    /// Asked to go as a whole.
    pub(crate) goes: bool,
}

/// Somebody's pods on one host.
#[derive(Clone, Debug)]
pub(crate) struct Seated {
    pub(crate) candidate: CandidateIx,
    /// What they hold; what was asked to leave is out of it.
    pub(crate) held: Resources,
    /// Pods of each role; those asked to leave are out of it.
    pub(crate) pods: Vec<u32>,
}

/// A host with candidates on it.
#[derive(Clone, Debug)]
pub(crate) struct GroundHost {
    /// Row of the snapshot's `hosts`.
    pub(crate) ix: u32,
    /// Row of the pool's shapes.
    pub(crate) row: u32,
    /// Free, with what was asked to leave.
    pub(crate) free: Resources,
    pub(crate) seats: Vec<Seated>,
    /// Grows with each change.
    pub(crate) version: u32,
}

/// What is asked of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Go.
    Go(CandidateIx),
    /// Let one pod of a role leave, on the host that the ask is about.
    Leave(CandidateIx, u32),
}

/// Hosts and candidates of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) hosts: Vec<GroundHost>,
    /// Hosts of each candidate, with the position of its seat there.
    pub(crate) where_is: Vec<Vec<(usize, usize)>>,
}

impl<'a> Ground<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            candidates: Vec::new(),
            hosts: Vec::new(),
            where_is: Vec::new(),
        }
    }

    pub(crate) fn held(&self, candidate: CandidateIx) -> &'a crate::model::Held {
        &self.snapshot.held[self.candidates[candidate].held.index()]
    }

    fn role(&self, candidate: CandidateIx, role: u32) -> &'a RoleShape {
        &self.held(candidate).standing.shape.roles[role as usize]
    }

    /// What one host gets back by an ask.
    pub(crate) fn freed(&self, host: usize, seat: usize, ask: Ask) -> Resources {
        match ask {
            Ask::Go(_) => self.hosts[host].seats[seat].held,
            Ask::Leave(candidate, role) => self.role(candidate, role).per_pod,
        }
    }

    /// Cost of an ask for the one host that it is about: of a gang that goes, its share of what
    /// the gang holds there.
    pub(crate) fn price(&self, host: usize, seat: usize, ask: Ask) -> u64 {
        match ask {
            Ask::Go(candidate) => {
                let it = &self.candidates[candidate];
                let here = u128::from(self.hosts[host].seats[seat].held.gpus.0);
                let all = u128::from(it.gpus.0).max(1);
                let share = u128::from(it.cost) * here.min(all) / all;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
            Ask::Leave(candidate, role) => self.candidates[candidate].unit[role as usize],
        }
    }

    /// Carries out an ask that is about `seat` of `host`; says which hosts changed.
    pub(crate) fn ask(&mut self, host: usize, seat: usize, ask: Ask) -> Vec<usize> {
        match ask {
            Ask::Go(candidate) => {
                self.candidates[candidate].goes = true;
                let places = self.where_is[candidate].clone();
                for (at, seat) in &places {
                    let host = &mut self.hosts[*at];
                    let held = std::mem::take(&mut host.seats[*seat].held);
                    host.free = plus(host.free, held);
                    host.version += 1;
                }
                places.into_iter().map(|(at, _)| at).collect()
            }
            Ask::Leave(candidate, role) => {
                let per_pod = self.role(candidate, role).per_pod;
                let slack = &mut self.candidates[candidate].slack[role as usize];
                *slack = slack.saturating_sub(1);
                let own = &mut self.hosts[host];
                let seated = &mut own.seats[seat];
                seated.pods[role as usize] = seated.pods[role as usize].saturating_sub(1);
                seated.held = minus(seated.held, per_pod);
                own.free = plus(own.free, per_pod);
                own.version += 1;
                vec![host]
            }
        }
    }

    /// Takes back whatever a candidate was asked.
    pub(crate) fn reprieve(&mut self, candidate: CandidateIx) {
        let it = &mut self.candidates[candidate];
        it.goes = false;
        it.slack.clone_from(&it.full_slack);
        for (at, seat) in self.where_is[candidate].clone() {
            let (held, pods) = self.seat_of(candidate, at);
            let host = &mut self.hosts[at];
            let still = host.seats[seat].held;
            host.free = minus(host.free, minus(held, still));
            host.seats[seat].held = held;
            host.seats[seat].pods = pods;
            host.version += 1;
        }
    }

    /// What of a host's free room is there only because of what the candidate was asked.
    pub(crate) fn given(&self, candidate: CandidateIx, host: usize, seat: usize) -> Resources {
        let (held, _) = self.seat_of(candidate, host);
        minus(held, self.hosts[host].seats[seat].held)
    }

    /// Pods of each role of the candidate that leave a host.
    pub(crate) fn pods_gone(&self, candidate: CandidateIx, host: usize, seat: usize) -> Vec<u32> {
        let (_, pods) = self.seat_of(candidate, host);
        let now = &self.hosts[host].seats[seat].pods;
        let both = pods.iter().zip(now);
        both.map(|(before, now)| before.saturating_sub(*now))
            .collect()
    }

    /// True when something was asked of a candidate.
    pub(crate) fn is_asked(&self, candidate: CandidateIx) -> bool {
        let it = &self.candidates[candidate];
        it.goes || it.slack != it.full_slack
    }

    /// What all that was asked of a candidate costs.
    pub(crate) fn cost(&self, candidate: CandidateIx) -> u64 {
        let it = &self.candidates[candidate];
        if it.goes {
            return it.cost;
        }
        let pods = it.full_slack.iter().zip(&it.slack).zip(&it.unit);
        pods.fold(0, |sum, ((full, slack), unit)| {
            sum.saturating_add(unit.saturating_mul(u64::from(full - slack)))
        })
    }

    /// What a candidate held on a host, and its pods there, before anything was asked.
    fn seat_of(&self, candidate: CandidateIx, host: usize) -> (Resources, Vec<u32>) {
        let ix = self.hosts[host].ix;
        let seats = &self.held(candidate).standing.seats;
        let own = seats.binary_search_by_key(&ix, |seat| seat.host.0);
        own.map(|at| (seats[at].held, seats[at].pods.clone()))
            .unwrap_or_default()
    }

    /// The pool's rows as they are once everybody has done as asked.
    pub(crate) fn rows(&self, rows: &[Shape], snapshot_rows: &[Shape]) -> Vec<Shape> {
        let mut gone: BTreeMap<(&[String], Resources, Resources), u32> = BTreeMap::new();
        let mut changed = Vec::new();
        for host in &self.hosts {
            let row = &snapshot_rows[host.row as usize];
            if host.free != row.free {
                let key = (row.domains.as_slice(), row.allocatable, row.free);
                *gone.entry(key).or_default() += 1;
                changed.push(Shape {
                    free: host.free,
                    hosts: 1,
                    ..row.clone()
                });
            }
        }
        for row in rows {
            let key = (row.domains.as_slice(), row.allocatable, row.free);
            let mut row = row.clone();
            if let Some(gone) = gone.get_mut(&key) {
                let used = row.hosts.min(*gone);
                row.hosts -= used;
                *gone -= used;
            }
            changed.push(row);
        }
        crate::shapes::canonical(&changed)
    }
}

/// The sum; stops at the largest amount of each unit.
pub(crate) fn plus(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.saturating_add(b.gpus),
        cpu: a.cpu.saturating_add(b.cpu),
        memory: a.memory.saturating_add(b.memory),
    }
}

/// The difference; stops at zero.
pub(crate) fn minus(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.saturating_sub(b.gpus),
        cpu: a.cpu.saturating_sub(b.cpu),
        memory: a.memory.saturating_sub(b.memory),
    }
}
