//! Preemption: who makes room for whom, at what cost, and who then gets it.

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::explain::render;
use meridian_policies::model::*;

use crate::builders::{gang_id, quota, role, tenant};
use crate::ground::*;

/// The plan, which must be sound.
fn sound(snapshot: &Snapshot) -> Plan {
    let plan = decide(snapshot);
    assert_eq!(check(snapshot, &plan), [], "{}", render(snapshot, &plan));
    assert_eq!(decide(snapshot), plan, "the same twice");
    plan
}

/// The one preemption of a plan.
fn only(plan: &Plan) -> &Preemption {
    assert_eq!(plan.preemptions.len(), 1, "{plan:?}");
    &plan.preemptions[0]
}

#[test]
fn the_one_with_the_fresh_checkpoint_goes() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("stale", 8)], &[("fresh", 8)]])
        .gang("fresh", |gang| {
            gang.standing.saved = Some(UnixMillis(NOW.0 - MINUTE));
        })
        .asks("urgent", role(1, 8), |_| {})
        .build();
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["fresh"]);
    // 8 GPUs: a minute since the checkpoint, two to start again.
    assert_eq!((made.victims[0].lost, made.cost), (480_000, 1_440_000));
    assert_eq!(made.until, UnixMillis(NOW.0 + 30_000 + 60_000));
    let waits = &plan.unplaced[0].reasons;
    assert_eq!(waits[0].reason, Reason::WaitingForPreemption);
    assert!(
        waits[0].message.to_string().contains("research/fresh"),
        "{}",
        waits[0].message
    );
}

#[test]
fn it_is_cheapest_wherever_that_is() {
    let stands = |name: &str, saved: i64| {
        let (name, at) = (name.to_owned(), UnixMillis(NOW.0 - saved * MINUTE));
        (name, at)
    };
    let mut ground = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a1", 8)], &[("a2", 8)]])
        .cluster("c2")
        .pool("main", &[&[("b1", 8)], &[("b2", 8)]]);
    // One is cheap in each cluster; the pair is cheaper in the second.
    for (name, saved) in [
        stands("a1", 1),
        stands("a2", 90),
        stands("b1", 30),
        stands("b2", 31),
    ] {
        ground = ground.gang(&name, |gang| gang.standing.saved = Some(saved));
    }
    let snapshot = ground.asks("urgent", role(2, 8), |_| {}).build();
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["b1", "b2"], "in one cluster only");
}

#[test]
fn elastic_work_gets_smaller_before_anybody_goes() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("rigid", 8)], &[("big", 8)], &[("big", 8)], &[("big", 8)]],
        )
        .gang("big", |gang| gang.class = ELASTIC)
        .gang("rigid", |gang| {
            gang.standing.saved = Some(NOW);
        })
        .asks("urgent", role(2, 8), |_| {})
        .build();
    elastic(&mut snapshot, "big", 1);
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["big"]);
    let Yield::Shrink { pods, leaves } = &made.victims[0].does else {
        panic!("it goes on: {made:?}")
    };
    assert_eq!((pods.as_slice(), leaves.len()), (&[1_u32][..], 2));
    assert_eq!(made.victims[0].lost, 0);
}

#[test]
fn a_protected_class_is_never_touched_and_a_floor_is_kept() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("p0", 8)], &[("p1", 8)], &[("p1", 8)], &[("p1", 8)]],
        )
        .gang("p0", |gang| gang.class = PROD)
        .gang("p1", |gang| gang.class = FLOOR)
        .asks("urgent", role(2, 8), |_| {})
        .build();
    elastic(&mut snapshot, "p1", 1);
    assert_eq!(sound(&snapshot).preemptions, [], "only one may leave");
    snapshot.waiting[0].shape.roles[0] = role(1, 8);
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["p1"]);
    assert!(matches!(&made.victims[0].does, Yield::Shrink { pods, .. } if pods == &[2]));
}

#[test]
fn windows_shield_what_is_own_and_not_what_is_borrowed() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("pretraining", 8)]])
        .gang("pretraining", |gang| gang.class = LONG)
        .asks("urgent", role(1, 8), |_| {})
        .build();
    snapshot.classes[LONG.index()].rule.is_shielded = true;
    assert_eq!(sound(&snapshot).preemptions, []);
    snapshot.classes[LONG.index()].rule.is_shielded = false;
    assert_eq!(only(&sound(&snapshot)).victims[0].rule, Rule::LowerClass);
    // On what another tenant lent: at any time.
    snapshot.classes[LONG.index()].rule.is_shielded = true;
    snapshot.tenants = vec![tenant("borrower", None), tenant("lender", None)];
    snapshot.tenants[0].quotas = vec![quota(0, None)];
    snapshot.tenants[1].quotas = vec![quota(8, None)];
    snapshot.held[0].rows = borrowed(8, 1);
    snapshot.waiting[0].tenant = TenantIx(1);
    assert_eq!(only(&sound(&snapshot)).victims[0].rule, Rule::Reclaim);
}

#[test]
fn a_lender_gets_its_own_back_from_any_class_and_at_any_age() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("young", 8)]])
        .gang("young", |gang| {
            gang.class = LONG;
            gang.standing.started = Some(UnixMillis(NOW.0 - 1000));
            gang.rows = borrowed(8, 1);
        })
        .asks("own", role(1, 8), |gang| {
            gang.tenant = TenantIx(1);
            gang.class = BATCH;
        })
        .build();
    snapshot.classes[LONG.index()].rule.min_runtime = Millis::seconds(3600);
    snapshot.tenants = vec![tenant("borrower", None), tenant("lender", None)];
    snapshot.tenants[0].quotas = vec![quota(0, None)];
    snapshot.tenants[1].quotas = vec![quota(8, None)];
    let plan = sound(&snapshot);
    assert_eq!(only(&plan).victims[0].rule, Rule::Reclaim);
    assert_eq!(
        plan.unplaced[0].reasons[0].reason,
        Reason::WaitingForReclaim
    );
    // Beyond its own it borrows itself, and takes from no one of a higher class.
    snapshot.waiting[0].shape.roles[0] = role(2, 8);
    assert_eq!(sound(&snapshot).preemptions, []);
    // Another's loan is safe while it is young.
    snapshot.waiting[0].shape.roles[0] = role(1, 8);
    snapshot.held[0].rows[0].lender = None;
    assert_eq!(sound(&snapshot).preemptions, []);
    snapshot.held[0].standing.started = Some(UnixMillis(NOW.0 - 61 * MINUTE));
    assert_eq!(only(&sound(&snapshot)).victims[0].rule, Rule::OverShare);
}

#[test]
fn nobody_is_hit_again_and_again() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("poor", 8)]])
        .asks("urgent", role(1, 8), |_| {})
        .build();
    let ago = |minutes: i64| UnixMillis(NOW.0 - minutes * MINUTE);
    snapshot.held[0].standing.evictions = vec![ago(59), ago(30), ago(10)];
    assert_eq!(sound(&snapshot).preemptions, []);
    snapshot.held[0].standing.evictions[0] = ago(60);
    assert_eq!(sound(&snapshot).preemptions.len(), 1);
    // Who had to go for it does not come back at once.
    snapshot.waiting[0].evicted_by = vec![EvictedBy {
        job: snapshot.held[0].gang.job,
        at: ago(29),
    }];
    assert_eq!(sound(&snapshot).preemptions, []);
    snapshot.waiting[0].evicted_by[0].at = ago(30);
    assert_eq!(sound(&snapshot).preemptions.len(), 1);
}

#[test]
fn a_tenant_that_lost_its_share_of_work_is_left_alone() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .asks("next", role(1, 8), |gang| gang.class = ELASTIC)
        .build();
    // A quarter of an hour of 8 GPUs.
    snapshot.tenants[0].lost = 8_000 * 900;
    assert_eq!(sound(&snapshot).preemptions, []);
    snapshot.tenants[0].lost -= 1;
    assert_eq!(sound(&snapshot).preemptions.len(), 1);
    // Those who serve do not wait for that.
    snapshot.tenants[0].lost = u64::MAX;
    snapshot.waiting[0].class = PROD;
    assert_eq!(sound(&snapshot).preemptions.len(), 1);
}

#[test]
fn what_can_never_be_moves_nobody() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[("b", 4)]])
        .asks("too-many", role(3, 8), |_| {})
        .build();
    let plan = sound(&snapshot);
    assert_eq!(plan.preemptions, []);
    assert_eq!(plan.unplaced[0].reasons[0].reason, Reason::NeverPlaceable);
}

/// A hundred that need more in one rack than there is come before one whose room could be made.
#[test]
fn whoever_never_finds_room_keeps_nobody_from_being_looked_at_for_ever() {
    let mut ground = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .rack("r2", &[&[("b", 8)]]);
    for cpu in 1..=100 {
        let mut pair = role(2, 8);
        (pair.required, pair.per_pod.cpu) = (Some("rack".into()), MilliCpus(cpu));
        ground = ground.asks(&format!("pair-{cpu}"), pair, |gang| gang.priority = 1);
    }
    let mut snapshot = ground.asks("one", role(1, 8), |_| {}).build();
    let rounds = 200;
    let made = (0..rounds).filter(|seed| {
        snapshot.seed = *seed;
        !decide(&snapshot).preemptions.is_empty()
    });
    let made = made.count();
    // One in 128 is the least, of those that are not refused before they are searched for.
    assert!(made >= 2, "{made} of {rounds}");
    snapshot.waiting.drain(63..100);
    snapshot.seed = 0;
    assert_eq!(
        sound(&snapshot).preemptions.len(),
        1,
        "with few there is room for all"
    );
}

/// A host is free, and all quota is used up by one who could be stopped.
fn short_of_quota() -> Snapshot {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[]])
        .asks("urgent", role(1, 8), |_| {})
        .build();
    snapshot.tenants[0].quotas = vec![quota(8, Some(0))];
    snapshot
}

#[test]
fn quota_comes_free_with_whoever_goes() {
    let snapshot = short_of_quota();
    let plan = sound(&snapshot);
    assert_eq!(names(&snapshot, only(&plan)), ["a"]);
}

#[test]
fn nobody_is_stopped_where_nobody_says_on_which_hosts_work_stands() {
    let mut snapshot = short_of_quota();
    snapshot.hosts.clear();
    for held in &mut snapshot.held {
        held.standing = Standing::default();
    }
    let plan = sound(&snapshot);
    assert_eq!((plan.placements.len(), plan.preemptions.len()), (0, 0));
    let reasons: Vec<Reason> = plan.unplaced[0]
        .reasons
        .iter()
        .map(|it| it.reason)
        .collect();
    assert_eq!(reasons, [Reason::WaitingForQuota]);
}

#[test]
fn free_parts_are_used_and_nobody_goes_in_vain() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("a", 4), ("b", 4)], &[("c", 2)], &[("d", 8)], &[("e", 6)]],
        )
        .asks("urgent", role(2, 8), |_| {})
        .build();
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(names(&snapshot, made), ["c", "e"]);
    assert_eq!(made.room.len(), 1);
    assert_eq!((made.room[0].hosts, made.room[0].known.len()), (2, 2));
}

#[test]
fn a_whole_gang_goes_and_all_its_hosts_count() {
    // The pair frees both hosts at once; two singles would cost more.
    let snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("pair", 8)], &[("x", 8)], &[("pair", 8)], &[("y", 8)]],
        )
        .gang("pair", |gang| {
            gang.standing.saved = Some(UnixMillis(NOW.0 - 10 * MINUTE));
        })
        .asks("urgent", role(2, 8), |_| {})
        .build();
    let plan = sound(&snapshot);
    assert_eq!(names(&snapshot, only(&plan)), ["pair"]);
}

#[test]
fn one_rack_is_cleared_for_a_gang_that_needs_one() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[("b", 8)], &[]])
        .rack("r2", &[&[("c", 8)], &[("d", 8)]])
        .gang("c", |gang| gang.standing.saved = Some(NOW))
        .asks(
            "urgent",
            RoleShape {
                required: Some("rack".into()),
                ..role(2, 8)
            },
            |_| {},
        )
        .build();
    let plan = sound(&snapshot);
    let made = only(&plan);
    // A free host and one of ten hours beside it, and not one for nothing and one of ten hours.
    assert_eq!(names(&snapshot, made).len(), 1);
    assert!(made.room.iter().all(|room| room.domains == ["r1"]));
}

#[test]
fn freed_room_goes_to_the_one_it_was_freed_for() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 4), ("b", 4)]])
        .asks("urgent", role(1, 8), |_| {})
        .asks("small", role(1, 4), |gang| gang.class = BATCH)
        .build();
    let plan = sound(&snapshot);
    let made = only(&plan).clone();
    assert_eq!(names(&snapshot, &made), ["a", "b"]);
    // Nothing has gone yet; then one of the two.
    let mut held_for = committed(&snapshot, &made);
    let waits = sound(&held_for);
    assert!(waits.placements.is_empty() && waits.preemptions.is_empty());
    leave(&mut held_for, "a");
    let waits = sound(&held_for);
    assert!(waits.placements.is_empty(), "{}", render(&held_for, &waits));
    leave(&mut held_for, "b");
    let plan = sound(&held_for);
    assert_eq!(plan.placements.len(), 1);
    assert_eq!(plan.placements[0].waiting, WaitingIx(0));
    assert_eq!(plan.lapsed, []);
}

/// A placement of the one-host pool is gone.
fn leave(snapshot: &mut Snapshot, name: &str) {
    let ix = find(snapshot, name);
    let gone = snapshot.held.remove(ix.index());
    let row = &mut snapshot.pools[0].shapes[0];
    row.free = row.free.checked_add(gone.resources).expect("small numbers");
    for hold in &mut snapshot.holds {
        hold.victims.retain(|leaving| leaving.held != ix);
        for leaving in &mut hold.victims {
            leaving.held.0 -= u32::from(leaving.held > ix);
        }
        if snapshot.held.is_empty() {
            hold.room.iter_mut().for_each(|room| room.known.clear());
        }
    }
    if snapshot.held.is_empty() {
        snapshot.hosts.clear();
    }
}

#[test]
fn a_hold_ends_in_time_and_where_it_is_not_wanted() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .asks("urgent", role(1, 8), |_| {})
        .build();
    let made = only(&sound(&snapshot)).clone();
    let mut held_for = committed(&snapshot, &made);
    held_for.now = made.until;
    assert_eq!(sound(&held_for).lapsed[0].why, Lapse::Expired);
    held_for.now = NOW;
    held_for.clusters[0].cordoned = true;
    assert_eq!(sound(&held_for).lapsed[0].why, Lapse::Closed);
    held_for.clusters[0].cordoned = false;
    held_for.waiting.clear();
    assert_eq!(sound(&held_for).lapsed[0].why, Lapse::NotWanted);
}

#[test]
fn a_place_elsewhere_ends_the_hold_and_spares_the_victims() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .cluster("c2")
        .pool("main", &[&[("b", 8)]])
        .gang("b", |gang| gang.class = PROD)
        .asks("urgent", role(1, 8), |_| {})
        .build();
    let made = only(&sound(&snapshot)).clone();
    let mut held_for = committed(&snapshot, &made);
    let b = find(&held_for, "b");
    held_for.held.remove(b.index());
    held_for.hosts.pop();
    held_for.pools[1].shapes[0].free = held_for.pools[1].shapes[0].allocatable;
    let plan = sound(&held_for);
    assert_eq!(plan.placements[0].pool, PoolIx(1));
    assert_eq!(plan.lapsed[0].why, Lapse::PlacedElsewhere);
}

#[test]
fn what_is_kept_for_a_gang_is_kept_until_it_is_placed_elsewhere() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("c", 4)], &[("d", 4)], &[("a", 7)], &[("b", 7)]],
        )
        .gang("c", |gang| gang.class = PROD)
        .gang("d", |gang| gang.class = PROD)
        .asks("one", role(1, 8), |_| {})
        .asks("two", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    // It wants all of one host, and half of what is free on another: a host that is kept for it
    // is out of sight, and a second one like it is not.
    let head = RoleShape {
        name: "head".into(),
        ..role(1, 2)
    };
    let mut shape = (*snapshot.waiting[0].shape).clone();
    shape.roles.push(head);
    snapshot.waiting[0].job_gpus = shape.gpus(&shape.most());
    snapshot.waiting[0].shape = shape.into();
    let plan = sound(&snapshot);
    let [one, two] = plan.preemptions.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!((names(&snapshot, one), names(&snapshot, two)), {
        let name = |name: &str| vec![name.to_owned()];
        (name("a"), name("b"))
    });
    let mut next = committed(&committed(&snapshot, one), two);
    // The second one's room comes free when it does not want it any more.
    next.waiting.pop();
    let gone = find(&next, "b");
    next.held.remove(gone.index());
    next.hosts.pop();
    next.holds[1].victims.clear();
    next.holds[1].room[0].known.clear();
    let full = &mut next.pools[0].shapes[0];
    full.hosts = 1;
    let free = Shape {
        free: full.allocatable,
        ..full.clone()
    };
    next.pools[0].shapes.push(free);
    let plan = sound(&next);
    assert_eq!(plan.placements[0].waiting, WaitingIx(0));
    let why = plan.lapsed.iter().map(|lapsed| (lapsed.hold, lapsed.why));
    let why: Vec<_> = why.collect();
    assert_eq!(
        why,
        [
            (HoldIx(1), Lapse::NotWanted),
            (HoldIx(0), Lapse::PlacedElsewhere)
        ]
    );
}

#[test]
fn several_get_room_at_once_on_hosts_that_look_alike() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[("b", 8)], &[("c", 8)]])
        .asks("one", role(1, 8), |_| {})
        .asks("two", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    let plan = sound(&snapshot);
    let [one, two] = plan.preemptions.as_slice() else {
        panic!("{}", render(&snapshot, &plan));
    };
    let (one, two) = (one.clone(), two.clone());
    assert_eq!(names(&snapshot, &one), ["a"]);
    assert_eq!(names(&snapshot, &two), ["b"]);
    // And a third one in the next round, while those are leaving.
    let mut third = snapshot.waiting[0].clone();
    third.gang = gang_id(500);
    third.submitted = UnixMillis(NOW.0 + 2);
    snapshot.waiting.push(third);
    let next = committed(&committed(&snapshot, &one), &two);
    assert_eq!(names(&next, only(&sound(&next))), ["c"]);
}

#[test]
fn a_hold_is_charged_at_once() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[("b", 8)], &[]])
        .gang("a", |gang| gang.tenant = TenantIx(1))
        .gang("b", |gang| gang.tenant = TenantIx(1))
        .asks("urgent", role(2, 8), |_| {})
        .asks("more", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    snapshot.tenants.push(tenant("other", None));
    snapshot.tenants[0].quotas = vec![quota(16, Some(0))];
    snapshot.tenants[1].quotas = vec![quota(16, Some(0))];
    let plan = sound(&snapshot);
    let made = only(&plan);
    assert_eq!(made.gpus, MilliGpus::cards(16));
    assert_eq!(made.victims.len(), 1, "one host is free");
    // Its quota is used up by what is held.
    assert!(plan.placements.is_empty(), "{}", render(&snapshot, &plan));
    let next = committed(&snapshot, made);
    assert!(sound(&next).placements.is_empty());
}

#[test]
fn what_a_victim_gives_up_beyond_the_need_is_given_to_others_when_it_has_gone() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("big", 8)], &[("big", 8)], &[("theirs", 4)]])
        .gang("theirs", |gang| {
            (gang.tenant, gang.class) = (TenantIx(1), PROD);
        })
        .asks("urgent", role(1, 8), |_| {})
        .asks("small", role(1, 4), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    snapshot.tenants.push(tenant("other", None));
    snapshot.tenants[0].quotas = vec![quota(16, Some(0))];
    snapshot.tenants[1].quotas = vec![quota(16, Some(0))];
    let plan = sound(&snapshot);
    assert_eq!(names(&snapshot, only(&plan)), ["big"]);
    assert!(plan.placements.is_empty(), "{}", render(&snapshot, &plan));
    let mut next = committed(&snapshot, only(&plan));
    let waits = sound(&next);
    assert!(waits.placements.is_empty(), "{}", render(&next, &waits));
    assert!(waits.preemptions.is_empty(), "{}", render(&next, &waits));
    // Whoever asked does not want it any more, and nobody is over quota by that.
    let urgent = next.waiting.remove(0);
    assert_eq!(sound(&next).lapsed[0].why, Lapse::NotWanted);
    next.waiting.insert(0, urgent);
    // All of it has gone: there is quota and room for both.
    let big = find(&next, "big");
    next.held.remove(big.index());
    next.hosts.retain(|host| host.shape != 0);
    for held in &mut next.held {
        held.standing
            .seats
            .iter_mut()
            .for_each(|seat| seat.host = HostIx(0));
    }
    next.holds[0].victims.clear();
    next.holds[0]
        .room
        .iter_mut()
        .for_each(|room| room.known.clear());
    let emptied = &mut next.pools[0].shapes[0];
    emptied.free = emptied.allocatable;
    assert_eq!(sound(&next).placements.len(), 2);
}

#[test]
fn a_hold_is_met_while_others_still_leave_for_another() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("b", 8)], &[("a", 8)]])
        .asks("one", role(1, 8), |_| {})
        .asks("two", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    snapshot.tenants[0].quotas = vec![quota(16, Some(0))];
    let plan = sound(&snapshot);
    let [one, two] = plan.preemptions.as_slice() else {
        panic!("{}", render(&snapshot, &plan));
    };
    assert_eq!(names(&snapshot, one), ["a"]);
    let mut next = committed(&committed(&snapshot, one), two);
    next.held.remove(find(&snapshot, "a").index());
    next.hosts.pop();
    next.holds[0].victims.clear();
    next.holds[0].room[0].known.clear();
    next.holds[1].victims[0].held = HeldIx(0);
    let full = &mut next.pools[0].shapes[0];
    full.hosts = 1;
    let free = Shape {
        free: full.allocatable,
        ..full.clone()
    };
    next.pools[0].shapes.push(free);
    let plan = sound(&next);
    assert_eq!(plan.placements.len(), 1, "{}", render(&next, &plan));
    assert_eq!(plan.placements[0].waiting, WaitingIx(0));
    assert!(plan.preemptions.is_empty() && plan.lapsed.is_empty());
}

#[test]
fn a_job_does_not_make_room_for_itself_in_its_class() {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .asks("peer", role(1, 8), |gang| {
            gang.class = BATCH;
            gang.priority = 100;
        })
        .build();
    assert_eq!(sound(&snapshot).preemptions, []);
    assert_eq!(snapshot.held[0].gang, gang_id(1_000));
}

fn golden(name: &str, snapshot: &Snapshot) {
    let plan = sound(snapshot);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, render(snapshot, &plan)));
}

#[test]
fn the_plan_says_who_why_and_what_is_lost() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("train", 8)], &[("eval", 4), ("notebook", 2)]])
        .cluster("c2")
        .pool("main", &[&[("tune", 8)], &[("tune", 8)], &[("serve", 8)]])
        .gang("tune", |gang| gang.class = ELASTIC)
        .gang("serve", |gang| gang.class = PROD)
        .gang("eval", |gang| {
            gang.standing.saved = Some(UnixMillis(NOW.0 - 2 * MINUTE));
        })
        .gang("notebook", |gang| {
            gang.standing.started = Some(UnixMillis(NOW.0 - 5 * MINUTE));
        })
        .asks("chat", role(1, 8), |_| {})
        .asks("chat-more", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .asks("nightly", role(4, 8), |gang| gang.class = LONG)
        .build();
    elastic(&mut snapshot, "tune", 1);
    golden("preemption", &snapshot);
}

#[test]
fn a_hold_that_ends_counts_for_nobody_in_the_same_round() {
    // The tenant's own quota is one host: another gang of it gets it in the round in which the
    // hold is not wanted any more, and does not borrow.
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)], &[("b", 8)]])
        .gang("a", |gang| gang.tenant = TenantIx(1))
        .gang("b", |gang| {
            (gang.tenant, gang.class) = (TenantIx(1), PROD);
        })
        .asks("urgent", role(1, 8), |_| {})
        .build();
    snapshot.tenants.push(tenant("other", None));
    snapshot.tenants[0].quotas = vec![quota(8, None)];
    snapshot.tenants[1].quotas = vec![quota(16, None)];
    let mut held_for = committed(&snapshot, only(&sound(&snapshot)));
    // The other host comes free, and who asked has gone.
    held_for.held.pop();
    held_for.hosts.pop();
    let full = &mut held_for.pools[0].shapes[0];
    full.hosts = 1;
    let free = Shape {
        free: full.allocatable,
        ..full.clone()
    };
    held_for.pools[0].shapes.push(free);
    held_for.waiting[0].gang = gang_id(77);
    let plan = sound(&held_for);
    assert_eq!(plan.lapsed[0].why, Lapse::NotWanted);
    assert_eq!(plan.placements[0].rows[0].role, Role::Own);
}

#[test]
fn whom_one_may_not_take_yet_another_may() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("a", 8)]])
        .asks("cooling", role(1, 8), |_| {})
        .asks("like-it", role(1, 8), |gang| {
            gang.submitted = UnixMillis(NOW.0 + 1);
        })
        .build();
    snapshot.waiting[0].evicted_by = vec![EvictedBy {
        job: snapshot.held[0].gang.job,
        at: UnixMillis(NOW.0 - 29 * MINUTE),
    }];
    assert_eq!(only(&sound(&snapshot)).waiting, WaitingIx(1));
}

#[test]
fn quota_is_sought_where_it_can_come_from() {
    // Any number of gangs elsewhere are cheaper, and would free nothing that counts here.
    const STRANGERS: u32 = 1_100;
    let mut snapshot = short_of_quota();
    snapshot.flavors.push(Flavor {
        name: "other".into(),
        worth: 1,
    });
    let mut pool = snapshot.pools[0].clone();
    (pool.name, pool.flavor) = ("strangers".into(), FlavorIx(1));
    let looks = |free| Shape {
        free,
        ..pool.shapes[0].clone()
    };
    pool.shapes = vec![Shape {
        hosts: STRANGERS,
        ..looks(Resources::default())
    }];
    snapshot.pools.push(pool);
    snapshot.tenants[0].quotas[0].measure = Measure::Gpus {
        flavor: Some(FlavorIx(0)),
        region: None,
    };
    for number in 0..STRANGERS {
        let mut held = snapshot.held[0].clone();
        let host = HostIx(u32::try_from(snapshot.hosts.len()).expect("a small table"));
        held.gang = gang_id(10_000 + u128::from(number));
        (held.flavor, held.pool) = (FlavorIx(1), Some(PoolIx(1)));
        held.standing.seats[0].host = host;
        snapshot.hosts.push(HostRow {
            pool: PoolIx(1),
            shape: 0,
        });
        snapshot.held.push(held);
    }
    let accepted = Accepted {
        flavor: FlavorIx(0),
        speed: 1000,
    };
    snapshot.waiting[0].flavors = vec![accepted].into();
    assert_eq!(names(&snapshot, only(&sound(&snapshot))), ["a"]);
}

#[test]
fn who_is_not_seen_anywhere_is_asked_nothing() {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("seen", 8)], &[("unseen", 8)], &[]])
        .gang("seen", |gang| gang.class = PROD)
        .asks("urgent", role(1, 8), |_| {})
        .build();
    snapshot.tenants[0].quotas = vec![quota(16, Some(0))];
    let unseen = find(&snapshot, "unseen");
    snapshot.held[unseen.index()].standing.seats.clear();
    let plan = sound(&snapshot);
    assert_eq!((plan.placements.len(), plan.preemptions.len()), (0, 0));
}

/// What the checker says of a plan for the room that `change` makes of a sound one.
fn blames(mut snapshot: Snapshot, change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
    let plan = sound(&snapshot);
    assert_eq!(plan.preemptions.len(), 1);
    change(&mut snapshot);
    let wrong = check(&snapshot, &plan);
    let unjust = wrong.into_iter().filter(|it| it.invariant == "S14");
    unjust.map(|it| it.message).collect()
}

#[test]
fn the_checker_knows_the_rules_by_itself() {
    let lent = || {
        let mut snapshot = Ground::new()
            .cluster("c1")
            .pool("main", &[&[("a", 8)]])
            .gang("a", |gang| {
                gang.class = LONG;
                gang.rows = borrowed(8, 1);
            })
            .asks("own", role(1, 8), |gang| {
                gang.tenant = TenantIx(1);
                gang.class = BATCH;
            })
            .build();
        snapshot.tenants = vec![tenant("borrower", None), tenant("lender", None)];
        snapshot.tenants[0].quotas = vec![quota(0, None)];
        snapshot.tenants[1].quotas = vec![quota(8, None)];
        snapshot
    };
    // A borrower takes from no borrower of a higher class.
    let said = blames(lent(), |snapshot| snapshot.tenants[1].quotas[0].nominal = 0);
    assert!(said[0].contains("may not be taken"), "{said:?}");
    // Who lent nothing does not take it back.
    let said = blames(lent(), |snapshot| snapshot.held[0].rows[0].lender = None);
    assert!(said[0].contains("nothing that was lent"), "{said:?}");
    let lower = || {
        Ground::new()
            .cluster("c1")
            .pool("main", &[&[("a", 8)]])
            .asks("next", role(1, 8), |gang| gang.class = ELASTIC)
            .build()
    };
    let said = blames(lower(), |snapshot| {
        snapshot.tenants[0].lost = 8_000 * 900;
    });
    assert!(said[0].contains("lost enough"), "{said:?}");
    let said = blames(lower(), |snapshot| {
        snapshot.held[0].standing.seats.clear();
    });
    assert!(said[0].contains("not known to stand"), "{said:?}");
}
