//! Builder of fleets on which gangs already stand, host by host.
//!
//! Owns the defaults of placements and classes for tests of preemption. Never asserts.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, StoreGeneration};
use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::model::*;

use crate::builders::{World, cards, gang, gang_id, role};

/// Classes of these tests, by ordinal.
pub(crate) const BATCH: ClassIx = ClassIx(0);
pub(crate) const ELASTIC: ClassIx = ClassIx(1);
pub(crate) const LONG: ClassIx = ClassIx(2);
pub(crate) const FLOOR: ClassIx = ClassIx(3);
pub(crate) const PROD: ClassIx = ClassIx(4);

/// One minute.
pub(crate) const MINUTE: i64 = 60_000;
/// When the tests' decisions are made: long after everything began.
pub(crate) const NOW: UnixMillis = UnixMillis(1_000 * MINUTE);

fn class(name: &str, priority: i32, how: Manner, notice: u64) -> Class {
    Class {
        name: name.into(),
        priority,
        ignores_slots: how.is_protected(),
        rule: ClassRule {
            how,
            floor_percent: 50,
            notice: Millis::seconds(notice),
            min_runtime: Millis::ZERO,
            is_shielded: false,
        },
    }
}

/// One host: its domains, and who holds how many GPUs of it.
type Host = (u32, Vec<String>, Vec<(String, u64)>);

/// A fleet under construction.
pub(crate) struct Ground {
    pub(crate) world: World,
    hosts: Vec<Host>,
    gangs: BTreeMap<String, Held>,
}

impl Ground {
    /// One region, one flavor, one tenant, the five classes.
    pub(crate) fn new() -> Self {
        let mut world = World::new();
        world.0.now = NOW;
        world.0.classes = vec![
            class("batch", 10, Manner::Requeue, 30),
            class("elastic", 20, Manner::ShrinkThenRequeue, 120),
            class("long", 30, Manner::CheckpointThenRequeue, 120),
            class("floor", 40, Manner::ShrinkToFloor, 30),
            class("prod", 100, Manner::Never, 0),
        ];
        Self {
            world,
            hosts: Vec::new(),
            gangs: BTreeMap::new(),
        }
    }

    pub(crate) fn cluster(mut self, name: &str) -> Self {
        self.world = self.world.cluster(name);
        self
    }

    /// A pool of the newest cluster, of 8-GPU hosts in one rack: for each, who holds what.
    pub(crate) fn pool(mut self, name: &str, hosts: &[&[(&str, u64)]]) -> Self {
        self.world = self.world.pool(name, Vec::new());
        let last = self.world.0.pools.len() - 1;
        self.world.0.pools[last].levels = vec!["rack".into()];
        self.rack("r1", hosts)
    }

    /// One more rack of the newest pool.
    pub(crate) fn rack(mut self, rack: &str, hosts: &[&[(&str, u64)]]) -> Self {
        let pool = u32::try_from(self.world.0.pools.len()).expect("a small table") - 1;
        for host in hosts {
            let seats = host.iter().map(|(name, gpus)| ((*name).to_owned(), *gpus));
            self.hosts
                .push((pool, vec![rack.to_owned()], seats.collect()));
        }
        self
    }

    /// Changes a gang that stands there; all begin as `batch` of the first tenant, ten hours old.
    pub(crate) fn gang(mut self, name: &str, change: impl FnOnce(&mut Held)) -> Self {
        change(self.gangs.entry(name.to_owned()).or_insert_with(held));
        self
    }

    /// A gang that waits, of class `prod`.
    pub(crate) fn asks(
        mut self,
        name: &str,
        role: RoleShape,
        change: impl FnOnce(&mut Waiting),
    ) -> Self {
        self.world = self.world.job_with(name, role, |waiting| {
            waiting.class = PROD;
            waiting.submitted = NOW;
            change(waiting);
        });
        self
    }

    /// The snapshot.
    pub(crate) fn build(self) -> Snapshot {
        let Self {
            world,
            hosts,
            mut gangs,
        } = self;
        let mut snapshot = world.0;
        let mut shapes: Vec<Vec<Shape>> = vec![Vec::new(); snapshot.pools.len()];
        let row = |domains: &Vec<String>, used: u64| Shape {
            domains: domains.clone(),
            allocatable: cards(8),
            free: cards(8 - used),
            hosts: 1,
        };
        let used = |seats: &[(String, u64)]| seats.iter().map(|(_, gpus)| gpus).sum::<u64>();
        for (pool, domains, seats) in &hosts {
            shapes[*pool as usize].push(row(domains, used(seats)));
        }
        for (pool, rows) in snapshot.pools.iter_mut().zip(&shapes) {
            pool.shapes = meridian_policies::shapes::canonical(rows);
        }
        for (pool, domains, seats) in &hosts {
            if seats.is_empty() {
                continue;
            }
            let ix = HostIx(u32::try_from(snapshot.hosts.len()).expect("a small table"));
            let looks = row(domains, used(seats));
            let rows = &snapshot.pools[*pool as usize].shapes;
            let shape = rows
                .iter()
                .position(|row| row.free == looks.free && row.domains == *domains);
            snapshot.hosts.push(HostRow {
                pool: PoolIx(*pool),
                shape: u32::try_from(shape.expect("its row")).expect("a small table"),
            });
            for (name, gpus) in seats {
                let gang = gangs.entry(name.clone()).or_insert_with(held);
                stand(gang, &snapshot, PoolIx(*pool), ix, *gpus);
            }
        }
        for (number, (name, mut held)) in gangs.into_iter().enumerate() {
            held.gang = gang_id(1_000 + number as u128);
            held.standing.job = format!("research/{name}");
            if held.rows.is_empty() {
                held.rows = vec![LedgerRow {
                    role: Role::Own,
                    lender: None,
                    gpus: held.resources.gpus,
                }];
            }
            snapshot.held.push(held);
        }
        snapshot
    }
}

fn held() -> Held {
    Held {
        gang: gang_id(0),
        epoch: Epoch::first(StoreGeneration(1)),
        tenant: TenantIx(0),
        class: BATCH,
        cluster: ClusterIx(0),
        flavor: FlavorIx(0),
        pool: None,
        ends: None,
        resources: Resources::default(),
        pods: 0,
        rows: Vec::new(),
        since: UnixMillis(NOW.0 - 600 * MINUTE),
        standing: Standing {
            started: Some(UnixMillis(NOW.0 - 600 * MINUTE)),
            ..Standing::default()
        },
    }
}

/// Adds a pod of so many GPUs on a host.
fn stand(held: &mut Held, snapshot: &Snapshot, pool: PoolIx, host: HostIx, gpus: u64) {
    held.pool = Some(pool);
    held.cluster = snapshot.pools[pool.index()].cluster;
    held.resources = held
        .resources
        .checked_add(cards(gpus))
        .expect("small numbers");
    let standing = &mut held.standing;
    if standing.shape.roles.is_empty() {
        standing.shape = gang(RoleShape {
            min: 0,
            max: 0,
            ..role(1, gpus)
        });
    }
    let own = &mut standing.shape.roles[0];
    own.max += 1;
    if own.step == 1 && own.min + 1 == own.max {
        // Rigid, unless a test says otherwise.
        own.min = own.max;
    }
    standing.full = vec![own.max];
    standing.seats.push(Seat {
        host,
        held: cards(gpus),
        pods: vec![1],
    });
}

/// Makes a gang elastic: it goes on with `min` pods.
pub(crate) fn elastic(snapshot: &mut Snapshot, name: &str, min: u32) {
    let held = find(snapshot, name);
    snapshot.held[held.index()].standing.shape.roles[0].min = min;
}

/// The placement of a job.
pub(crate) fn find(snapshot: &Snapshot, name: &str) -> HeldIx {
    let name = format!("research/{name}");
    let at = snapshot
        .held
        .iter()
        .position(|held| held.standing.job == name);
    HeldIx(u32::try_from(at.expect("it stands there")).expect("a small table"))
}

/// What a gang borrows of another tenant.
pub(crate) fn borrowed(gpus: u64, lender: u32) -> Vec<LedgerRow> {
    vec![LedgerRow {
        role: Role::Borrowed,
        lender: Some(TenantIx(lender)),
        gpus: MilliGpus::cards(gpus),
    }]
}

/// Names of those who make room.
pub(crate) fn names(snapshot: &Snapshot, made: &Preemption) -> Vec<String> {
    let name = |victim: &Victim| {
        let job = &snapshot.held[victim.held.index()].standing.job;
        job.trim_start_matches("research/").to_owned()
    };
    made.victims.iter().map(name).collect()
}

/// The snapshot after the plan's first preemption was committed: its holds, its victims still
/// there.
pub(crate) fn committed(snapshot: &Snapshot, made: &Preemption) -> Snapshot {
    let mut next = snapshot.clone();
    next.holds.extend(made.holds(snapshot));
    next.holds.sort_by_key(|hold| hold.gang);
    next
}

/// Says of a gang that it saves its work and may go on elsewhere.
pub(crate) fn movable(snapshot: &mut Snapshot, name: &str) {
    let ix = find(snapshot, name);
    let template = World::new().job("any", role(1, 1)).0.waiting.remove(0);
    let held = &snapshot.held[ix.index()];
    let row = Movable {
        held: ix,
        gang: Waiting {
            gang: held.gang,
            job: held.standing.job.clone(),
            tenant: held.tenant,
            class: held.class,
            shape: held.standing.shape.clone().into(),
            next_epoch: Epoch(held.epoch.0 + 1),
            ..template
        },
    };
    snapshot.movable.push(row);
    snapshot.movable.sort_by_key(|row| row.held);
}
