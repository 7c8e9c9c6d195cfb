//! Moves: who makes room and goes on elsewhere at once, and what is held for it until it does.

use meridian_api::units::UnixMillis;
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::explain::render;
use meridian_policies::model::*;
use meridian_policies::shapes;

use crate::builders::{cards, quota, role, tenant};
use crate::ground::*;

fn sound(snapshot: &Snapshot) -> Plan {
    let plan = decide(snapshot);
    assert_eq!(check(snapshot, &plan), [], "{}", render(snapshot, &plan));
    plan
}

fn only(plan: &Plan) -> &Preemption {
    assert_eq!(plan.preemptions.len(), 1, "{plan:?}");
    &plan.preemptions[0]
}

fn next_place(victim: &Victim) -> &NextPlace {
    let Yield::Move(next) = &victim.does else {
        panic!("it goes on elsewhere: {victim:?}")
    };
    next
}

/// Two racks full of work, and half a host in another cluster: `urgent` needs a whole host.
fn one_can_move() -> Snapshot {
    let saved = |minutes: i64| {
        move |gang: &mut Held| {
            gang.class = LONG;
            gang.standing.saved = Some(UnixMillis(NOW.0 - minutes * MINUTE));
        }
    };
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("fresh", 8)], &[("stale", 4)]])
        .gang("fresh", saved(5))
        .gang("stale", saved(90))
        .cluster("c2")
        .pool("main", &[&[("there", 4)]])
        .gang("there", |gang| gang.class = PROD)
        .asks("urgent", role(1, 8), |_| {})
        .build();
    movable(&mut snapshot, "fresh");
    movable(&mut snapshot, "stale");
    snapshot
}

#[test]
fn who_fits_elsewhere_goes_on_there_for_less_than_who_would_wait() {
    let mut snapshot = one_can_move();
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["stale"]);
    let next = next_place(&made.victims[0]);
    assert_eq!((next.pool, next.pods.as_slice()), (PoolIx(1), &[1_u32][..]));
    assert_eq!(next.rows.iter().map(|row| row.gpus.whole()).sum::<u64>(), 4);
    // 4 GPUs: at most the two minutes of its notice, and two to start again.
    let each = 4_000 * 120;
    assert_eq!((made.victims[0].lost, made.cost), (each, 2 * each));
    let text = render(&snapshot, &plan);
    assert!(text.contains("goes on in c2/main"), "{text}");
    // What may not move is stopped, the cheapest first.
    snapshot.movable.clear();
    let plan = sound(&snapshot);
    assert_eq!(names(&snapshot, only(&plan)), ["fresh"]);
    assert_eq!(only(&plan).victims[0].does, Yield::Evict);
}

#[test]
fn both_get_their_places_when_the_one_has_gone() {
    let snapshot = one_can_move();
    let plan = sound(&snapshot);
    let mut next = committed(&snapshot, only(&plan));
    assert_eq!(next.holds.len(), 2);
    let plan = sound(&next);
    assert_eq!((&plan.lapsed, plan.placements.len()), (&vec![], 0));
    // Nobody else gets what is held for it.
    let mut other = next.clone();
    other.waiting.push(Waiting {
        gang: crate::builders::gang_id(50),
        shape: crate::builders::gang(role(1, 4)).into(),
        ..other.waiting[0].clone()
    });
    assert_eq!(sound(&other).placements, []);
    gone(&mut next, "stale");
    let plan = sound(&next);
    let placed = plan.placements.iter();
    let placed: Vec<(&str, PoolIx)> = placed
        .map(|it| (next.waiting[it.waiting.index()].job.as_str(), it.pool))
        .collect();
    let both = [
        ("research/urgent", PoolIx(0)),
        ("research/stale", PoolIx(1)),
    ];
    assert_eq!(placed, both);
    assert_eq!(plan.lapsed, []);
}

/// The gang has left its host, and waits for its next epoch.
fn gone(snapshot: &mut Snapshot, name: &str) {
    let ix = find(snapshot, name);
    let held = snapshot.held.remove(ix.index());
    let row = snapshot.movable.iter().find(|row| row.held == ix);
    let mut waiting = row.expect("it may move").gang.clone();
    waiting.submitted = held.since;
    snapshot.movable.clear();
    snapshot.holds.iter_mut().for_each(|it| it.victims.clear());
    let pool = held.pool.expect("it stood somewhere").index();
    let host = held.standing.seats[0].host.index();
    let row = snapshot.hosts[host].shape as usize;
    let emptied = Shape {
        free: cards(8),
        hosts: 1,
        ..snapshot.pools[pool].shapes[row].clone()
    };
    let rows = &mut snapshot.pools[pool].shapes;
    rows[row].hosts -= 1;
    rows.push(emptied);
    *rows = shapes::canonical(rows);
    for other in &mut snapshot.held {
        other.standing.seats.clear();
    }
    snapshot.hosts.clear();
    for hold in &mut snapshot.holds {
        hold.room.iter_mut().for_each(|part| part.known.clear());
    }
    snapshot.waiting.push(waiting);
    snapshot
        .waiting
        .sort_by_key(|row| (row.submitted, row.gang));
}

#[test]
fn a_place_is_not_held_for_one_who_stays_after_all() {
    let snapshot = one_can_move();
    let plan = sound(&snapshot);
    let mut next = committed(&snapshot, only(&plan));
    next.waiting.clear();
    let plan = sound(&next);
    let why = [Lapse::NotWanted, Lapse::NotWanted];
    assert_eq!(plan.lapsed.iter().map(|it| it.why).collect::<Vec<_>>(), why);
    // It has begun to leave: its place is kept for it.
    let stale = find(&next, "stale");
    next.held[stale.index()].standing.stage = Stage::Draining;
    assert_eq!(sound(&next).lapsed.len(), 1);
    next.now = next.holds[0].until;
    assert_eq!(sound(&next).lapsed.len(), 2);
}

#[test]
fn room_elsewhere_is_given_once() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 4), ("b", 4)]])
        .cluster("c2")
        .pool("main", &[&[("there", 4)]])
        .gang("there", |gang| gang.class = PROD)
        .asks("urgent", role(1, 8), |_| {})
        .build();
    movable(&mut snapshot, "a");
    movable(&mut snapshot, "b");
    let plan = sound(&snapshot);
    let made = only(&plan);
    let does = |at: usize| matches!(made.victims[at].does, Yield::Move(_));
    assert_eq!((made.victims.len(), does(0), does(1)), (2, true, false));
}

#[test]
fn who_may_not_hold_it_any_more_does_not_go_on_elsewhere() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("guest", 8)], &[]])
        .gang("guest", |gang| gang.rows = borrowed(8, 1))
        .asks("own", role(2, 8), |gang| {
            gang.tenant = TenantIx(1);
            gang.class = BATCH;
        })
        .cluster("c2")
        .pool("main", &[&[]])
        .build();
    snapshot.tenants = vec![tenant("borrower", None), tenant("lender", None)];
    snapshot.tenants[0].quotas = vec![quota(0, None)];
    snapshot.tenants[1].quotas = vec![quota(16, None)];
    movable(&mut snapshot, "guest");
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(made.victims[0].rule, Rule::Reclaim);
    assert_eq!(made.victims[0].does, Yield::Evict);
    // With something to borrow left, it moves.
    snapshot.tenants[1].quotas = vec![quota(24, None)];
    let plan = sound(&snapshot);
    assert!(matches!(only(&plan).victims[0].does, Yield::Move(_)));
}

#[test]
fn a_place_that_is_not_there_is_found() {
    let snapshot = one_can_move();
    let plan = sound(&snapshot);
    let wrong = |change: &dyn Fn(&mut NextPlace)| {
        let mut plan = plan.clone();
        let Yield::Move(next) = &mut plan.preemptions[0].victims[0].does else {
            panic!("it moves")
        };
        change(next);
        let found = check(&snapshot, &plan);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        found.join("; ")
    };
    let there = |next: &mut NextPlace| next.room[0].hosts = 2;
    assert!(wrong(&there).contains("is kept"));
    assert!(wrong(&|next| next.pool = PoolIx(0)).contains("S5"));
    assert!(wrong(&|next| next.pods[0] = 2).contains("cannot go on there"));
    let mut cordoned = snapshot.clone();
    cordoned.clusters[1].cordoned = true;
    assert!(!check(&cordoned, &plan).is_empty());
    let mut rooted = snapshot;
    rooted.movable.clear();
    assert!(!check(&rooted, &plan).is_empty());
}

/// Two hosts with a little on each, and a gang that has waited long for a whole one.
fn fragmented() -> Snapshot {
    let saved = |gang: &mut Held| {
        gang.class = LONG;
        gang.standing.saved = Some(NOW);
    };
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 2)], &[("b", 4)]])
        .gang("a", saved)
        .gang("b", saved)
        .asks("large", role(1, 8), |gang| {
            gang.class = BATCH;
            gang.submitted = UnixMillis(NOW.0 - 11 * MINUTE);
        })
        .build();
    for name in ["a", "b"] {
        movable(&mut snapshot, name);
    }
    snapshot
}

#[test]
fn small_work_moves_aside_for_the_one_that_waits_longest() {
    let snapshot = fragmented();
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["a"], "the smaller one");
    assert_eq!(made.victims[0].rule, Rule::Compaction);
    assert_eq!(next_place(&made.victims[0]).pool, PoolIx(0));
}

#[test]
fn nobody_moves_aside_in_vain() {
    let none = |why: &str, change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = fragmented();
        change(&mut snapshot);
        assert_eq!(sound(&snapshot).preemptions, [], "{why}");
    };
    none("it has not waited for long", &|it| {
        it.waiting[0].submitted = UnixMillis(NOW.0 - 10 * MINUTE);
    });
    none("nobody may move", &|it| it.movable.clear());
    none("the class's windows are shut", &|it| {
        it.classes[LONG.index()].rule.is_shielded = true;
    });
    none("a host comes free by itself before", &|it| {
        for held in &mut it.held {
            held.ends = Some(UnixMillis(NOW.0 + MINUTE));
        }
    });
    none(
        "it loses more than a hundredth of an hour of the pool",
        &|it| {
            for held in &mut it.held {
                held.standing.saved = None;
            }
        },
    );
    none("they have moved enough", &|it| {
        for held in &mut it.held {
            held.standing.evictions = vec![NOW; 3];
        }
    });
    none("there is no quota for it", &|it| {
        it.tenants[0].quotas = vec![quota(13, Some(0))];
    });
    none("others that stand there have moved enough", &|it| {
        let extra = it.held[1].clone();
        it.held[1].standing.evictions = vec![NOW; 2];
        it.held[0].standing.evictions = vec![NOW; 2];
        for (at, job) in [(2, 7_000), (3, 7_001)] {
            it.held.insert(
                at,
                Held {
                    gang: crate::builders::gang_id(job),
                    standing: Standing {
                        evictions: vec![NOW; 2],
                        ..Standing::default()
                    },
                    ..extra.clone()
                },
            );
        }
    });
}
