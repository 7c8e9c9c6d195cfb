//! Blocks of reservations that are about to begin: who goes for them, when, and who stays.

use meridian_api::kinds::reservation::FOREVER;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::*;

use crate::builders::{cards, gang_id, hosts, tenant};
use crate::ground::{Ground, NOW, PROD};

/// A host full of work of the first tenant beside one full of protected work, and a block of the
/// second tenant of `hosts` that begins in so many minutes.
fn about_to_begin(hosts: u32, seconds: i64) -> Snapshot {
    let mut snapshot = Ground::new()
        .cluster("c1")
        .pool(
            "main",
            &[&[("a", 4), ("b", 2)][..], &[("p0", 8)], &[("dear", 8)]],
        )
        .gang("p0", |gang| gang.class = PROD)
        .gang("a", |gang| gang.standing.saved = Some(NOW))
        .gang("b", |gang| gang.standing.saved = Some(NOW))
        .build();
    snapshot.tenants = vec![tenant("team", None), tenant("wing", None)];
    snapshot.reserved = vec![Reserved {
        from: UnixMillis(NOW.0 + seconds * 1000),
        until: FOREVER,
        name: "eval".into(),
        tenant: TenantIx(1),
        classes: Vec::new(),
        pool: PoolIx(0),
        hosts,
        lead: Millis::ZERO,
        lends: None,
    }];
    for held in &mut snapshot.held {
        held.pods = 1;
    }
    snapshot
}

fn goes(snapshot: &Snapshot) -> Vec<String> {
    let plan = decide(snapshot);
    assert_eq!(check(snapshot, &plan), []);
    let victims = plan.vacating.iter().flat_map(|it| &it.victims);
    let job = |victim: &Victim| &snapshot.held[victim.held.index()].standing.job;
    victims.map(|victim| job(victim).clone()).collect()
}

#[test]
fn who_is_in_the_way_of_a_block_goes_ahead_of_its_start() {
    // The longest notice is two minutes, and an agent has one to kill and report.
    assert!(goes(&about_to_begin(1, 181)).is_empty());
    let one = about_to_begin(1, 180);
    assert_eq!(
        goes(&one),
        ["research/a", "research/b"],
        "the cheapest host"
    );
    assert_eq!(goes(&about_to_begin(2, 180)).len(), 3);
    assert_eq!(
        goes(&about_to_begin(3, 180)).len(),
        3,
        "who is protected stays"
    );
    // Told once, and spared when the block is not wanted any more.
    let plan = decide(&one);
    let victims = plan.vacating[0].victims.iter();
    let mut next = one.clone();
    next.holds = vec![Hold {
        gang: gang_id(9),
        tenant: TenantIx(1),
        cluster: ClusterIx(0),
        flavor: FlavorIx(0),
        pool: Some(PoolIx(0)),
        pods: Vec::new(),
        resources: cards(0),
        room: Vec::new(),
        rows: Vec::new(),
        victims: victims
            .map(|it| Leaving {
                held: it.held,
                resources: one.held[it.held.index()].resources,
            })
            .collect(),
        since: one.now,
        until: plan.vacating[0].until,
        block: Some("eval".into()),
        is_reclaim: false,
    }];
    let why = |snapshot: &Snapshot| {
        let plan = decide(snapshot);
        assert_eq!(check(snapshot, &plan), []);
        assert_eq!(plan.vacating, []);
        plan.lapsed.iter().map(|it| it.why).collect::<Vec<_>>()
    };
    assert_eq!(why(&next), []);
    let gone = Snapshot {
        reserved: Vec::new(),
        ..next.clone()
    };
    assert_eq!(why(&gone), [Lapse::NotWanted]);
    next.holds[0].victims.clear();
    next.held.truncate(0);
    assert_eq!(why(&next), [Lapse::Done]);
}

#[test]
fn nobody_goes_for_a_block_who_need_not() {
    let none = |why: &str, change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = about_to_begin(1, 180);
        change(&mut snapshot);
        assert!(goes(&snapshot).is_empty(), "{why}");
    };
    none("they are its own", &|it| {
        it.reserved[0].tenant = TenantIx(0);
    });
    none("they end before", &|it| {
        for held in &mut it.held {
            held.ends = Some(it.reserved[0].from);
        }
    });
    none("a host is empty", &|it| {
        let row = hosts(1, &["r1"], 8);
        it.pools[0].shapes.push(row);
    });
    none("no class lets go", &|it| {
        for held in &mut it.held {
            held.class = PROD;
        }
    });
    none("it is over", &|it| {
        it.reserved[0].until = NOW;
    });
}
