//! Golden plans: what is decided and said in the cases that people meet, as text.

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::explain::render;
use meridian_policies::model::{
    Accepted, ClassIx, ClusterIx, Contact, Flavor, FlavorIx, Lacking, RoleShape,
};

use crate::builders::{World, hosts, quota, role};

pub(crate) fn golden(name: &str, world: &World) {
    let plan = decide(&world.0);
    assert_eq!(check(&world.0, &plan), []);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, render(&world.0, &plan)));
}

#[test]
fn five_hundred_hosts_with_one_gpu_each_hold_no_pod_of_eight() {
    let world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(500, &["r1"], 1)]);
    golden(
        "fragmented",
        &world.job("big", role(1, 8)).job("small", role(3, 1)),
    );
}

#[test]
fn a_full_quota_waits_and_one_that_is_too_small_never_does() {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(8, &["r1"], 8)])
        .held(0, 20);
    world.0.tenants[0].quotas = vec![quota(32, None)];
    world.0.tenants[0].gpus_per_job = Some(MilliGpus::cards(48));
    golden(
        "quota",
        &world
            .job("later", role(2, 8))
            .job("never", role(5, 8))
            .job("fits", role(1, 8))
            .job("too-large", role(7, 8)),
    );
}

#[test]
fn closed_clusters_say_so() {
    let shapes = || vec![hosts(2, &["r1"], 8)];
    let mut world = World::new()
        .cluster("c1")
        .pool("main", shapes())
        .cluster("c2")
        .pool("main", shapes())
        .cluster("c3")
        .pool("main", vec![hosts(1, &["r1"], 8)])
        .cluster("c4")
        .pool("main", shapes());
    world.0.clusters[0].cordoned = true;
    world.0.clusters[1].contact = Contact::Unreachable;
    world.0.pools[3].classes = vec![ClassIx(1)];
    golden("closed", &world.job("two-hosts", role(2, 8)));
}

#[test]
fn class_goes_before_age_and_priority_stays_inside_its_tenant() {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(3, &["r1"], 8)]);
    world.0.tenants.push(crate::builders::tenant("zeta", None));
    let world = world
        .job("old-batch", role(1, 8))
        .job_with("zeta-batch", role(1, 8), |gang| {
            gang.tenant = meridian_policies::model::TenantIx(1);
        })
        .job_with("new-prod", role(1, 8), |gang| gang.class = ClassIx(1))
        .job_with("urgent-batch", role(1, 8), |gang| gang.priority = 5);
    golden("class_order", &world);
}

#[test]
fn an_elastic_gang_shrinks_to_what_is_there() {
    let world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(5, &["r1"], 8)]);
    let elastic = RoleShape {
        max: 16,
        step: 2,
        ..role(2, 8)
    };
    golden("elastic", &world.job("elastic", elastic));
}

#[test]
fn a_required_rack_holds_the_whole_role() {
    let racks = vec![
        hosts(3, &["b1", "r1"], 8),
        hosts(4, &["b1", "r2"], 8),
        hosts(3, &["b2", "r3"], 8),
    ];
    let world = World::new().cluster("c1").pool("main", racks);
    let rack = |pods| RoleShape {
        required: Some("rack".into()),
        ..role(pods, 8)
    };
    let wish = RoleShape {
        preferred: Some("block".into()),
        ..role(4, 8)
    };
    golden(
        "required_rack",
        &world
            .job("four", rack(4))
            .job("four-more", rack(4))
            .job("wish", wish),
    );
}

#[test]
fn what_no_pool_can_hold_is_told_at_once() {
    let world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(4, &["r1"], 2)]);
    let mut world = world.cluster("c2").pool("main", vec![hosts(2, &["r1"], 8)]);
    world.0.flavors.push(Flavor {
        name: "t4".into(),
        worth: 100,
    });
    let t4 = Accepted {
        flavor: FlavorIx(1),
        speed: 1000,
    };
    golden(
        "never",
        &world
            .job("sixteen-per-pod", role(1, 16))
            .job("six-hosts", role(6, 8))
            .job_with("other-flavor", role(1, 1), |gang| {
                gang.flavors = vec![t4].into();
            }),
    );
}

#[test]
fn room_that_others_took_is_named() {
    let world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(2, &["r1"], 8)]);
    let world = world
        .job("second", role(1, 8))
        .job_with("suspended", role(1, 1), |gang| gang.suspended = true)
        .job_with("first", role(2, 8), |gang| gang.class = ClassIx(1));
    golden("behind", &world);
}

#[test]
fn a_slot_is_kept_for_the_oldest_and_says_so() {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(3, &["r1"], 8), hosts(1, &["r1"], 0)])
        .held(0, 8)
        .job("big", role(4, 8))
        .job_with("backfills", role(1, 8), |gang| {
            gang.max_runtime = Some(Millis::seconds(1800));
        })
        .job("small", role(1, 8));
    world.0.now = UnixMillis(3_600_000);
    world.0.held[0].ends = Some(UnixMillis(7_200_000));
    for gang in &mut world.0.waiting[1..] {
        gang.submitted = UnixMillis(3_500_000);
    }
    golden("slot", &world);
}

#[test]
fn a_cluster_that_lacks_a_dependency_is_no_candidate() {
    let shapes = || vec![hosts(2, &["r1"], 8)];
    let missing = |cluster| Lacking {
        reason: Reason::DependencyMissing,
        cluster: ClusterIx(cluster),
        message: "Secret \"hub-token\" is not in namespace research".to_owned(),
    };
    let world = World::new()
        .cluster("c1")
        .pool("main", shapes())
        .cluster("c2")
        .pool("main", shapes())
        .job_with("second-has-it", role(1, 8), |job| {
            job.lacking = vec![missing(0)].into();
        })
        .job_with("nobody-has-it", role(1, 8), |job| {
            job.lacking = vec![missing(0), missing(1)].into();
        });
    golden("dependencies", &world);
}
