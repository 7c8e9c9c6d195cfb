//! Offers, tried on a small model: which become jobs, which are held, and when a job goes.

use meridian_api::units::MilliGpus;
use meridian_proto::v1;
use serde_json::json;

use super::*;
use crate::fixture_tests::Fixture;

fn offer(uid: &str, namespace: &str, class: &str) -> v1::OfferedGang {
    v1::OfferedGang {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        name: "tune.v2".to_owned(),
        workload_class: class.to_owned(),
        roles: vec![v1::RoleIntent {
            name: "worker".to_owned(),
            pods: 2,
            per_pod: Some(v1::Resources {
                milli_gpus: 8_000,
                milli_cpus: 4_000,
                memory_mib: 1_024,
            }),
            ..v1::RoleIntent::default()
        }],
        flavors: vec!["h100-80gb".to_owned()],
        ..v1::OfferedGang::default()
    }
}

fn id(uid: &str) -> OfferId {
    ("euw-a".to_owned(), uid.to_owned())
}

fn told(offers: Vec<v1::OfferedGang>) -> Fixture {
    let mut fixture = Fixture::new(4);
    tell(&mut fixture, true, offers, &[]);
    let cluster = fixture.model.fleet.clusters.get_mut("euw-a");
    cluster.expect("it is there").tells_offers = true;
    fixture
}

fn tell(fixture: &mut Fixture, full: bool, offers: Vec<v1::OfferedGang>, removed: &[&str]) {
    fixture.digest(&v1::Digest {
        full,
        offers,
        removed_offers: removed.iter().map(|uid| (*uid).to_owned()).collect(),
        ..v1::Digest::default()
    });
}

fn made(fixture: &Fixture, uid: &str) -> FederatedJob {
    match wish(&fixture.model, &id(uid), None) {
        Wish::Make(job) => *job,
        other => panic!("made, not {other:?}"),
    }
}

/// Stores the job of an offer as the API server would, under the fixture's UID.
fn store(fixture: &mut Fixture, job: &FederatedJob) {
    let origin = serde_json::to_value(&job.spec.origin).expect("plain");
    let clusters = json!({"clusters": ["euw-a"]});
    fixture.job(
        &json!({"origin": origin, "placement": clusters}),
        &json!({}),
    );
}

#[test]
fn an_offer_becomes_a_job_of_its_own_cluster_and_tenant() {
    let fixture = told(vec![offer("u-1", "nlp", "batch")]);
    let job = made(&fixture, "u-1");
    assert_eq!(job.metadata.namespace.as_deref(), Some("nlp"));
    assert!(
        job.metadata.name.starts_with("tune-v2-"),
        "{}",
        job.metadata.name
    );
    assert_eq!(job.spec.placement.clusters, ["euw-a"]);
    assert_eq!(job.spec.tenant.as_deref(), Some("nlp"));
    assert_eq!(job.total_gpus().map(MilliGpus::whole), Some(16));
    let object = serde_json::to_value(&job).expect("plain");
    let kind = meridian_api::kinds::by_kind("FederatedJob").expect("a kind");
    assert_eq!(
        (kind.validate)(&object),
        [],
        "it passes the checks of any job"
    );
    let other = told(vec![offer("u-2", "nlp", "batch")]);
    assert_ne!(made(&other, "u-2").metadata.name, job.metadata.name);
}

#[test]
fn what_cannot_be_queued_says_why_until_it_can() {
    let held = |namespace: &str, class: &str, default: Option<&str>| {
        let fixture = told(vec![offer("u-1", namespace, class)]);
        match wish(&fixture.model, &id("u-1"), default) {
            Wish::Hold(why) => why,
            other => format!("{other:?}"),
        }
    };
    assert!(held("nlp", "", None).contains("offeredClass"));
    assert!(held("nlp", "gold", None).contains("\"gold\""));
    assert!(held("nobody", "batch", None).contains("Tenant \"nobody\""));
    assert!(held("nlp", "", Some("batch")).starts_with("Make"));
    let mut fixture = told(vec![offer("u-1", "nobody", "batch")]);
    fixture.model.take_offered();
    let cluster = fixture.model.fleet.clusters.get_mut("euw-a");
    let offers = &mut cluster.expect("it is there").offers;
    assert!(offers.note("u-1", Some("no tenant".to_owned())), "news");
    assert!(
        !offers.note("u-1", Some("no tenant".to_owned())),
        "told once"
    );
    fixture.cluster(&json!({"cordoned": true}));
    let again = fixture.model.take_offered();
    assert!(
        again.contains(&id("u-1")),
        "looked at again after any change of policy"
    );
}

#[test]
fn one_offer_has_one_job_however_often_it_is_told() {
    let mut fixture = told(vec![offer("u-1", "nlp", "batch")]);
    let job = made(&fixture, "u-1");
    store(&mut fixture, &job);
    assert_eq!(wish(&fixture.model, &id("u-1"), None), Wish::Nothing);
    tell(&mut fixture, true, vec![offer("u-1", "nlp", "batch")], &[]);
    fixture.model.start_term();
    assert!(fixture.model.take_offered().contains(&id("u-1")));
    assert_eq!(wish(&fixture.model, &id("u-1"), None), Wish::Nothing);
}

#[test]
fn a_job_goes_when_its_offer_is_said_to_be_gone() {
    let gone = |how: &dyn Fn(&mut Fixture)| {
        let mut fixture = told(vec![offer("u-1", "nlp", "batch")]);
        let job = made(&fixture, "u-1");
        store(&mut fixture, &job);
        fixture.model.take_offered();
        how(&mut fixture);
        let looked_at = fixture.model.take_offered().contains(&id("u-1"));
        looked_at && matches!(wish(&fixture.model, &id("u-1"), None), Wish::Drop(_))
    };
    assert!(gone(&|fixture| tell(fixture, false, vec![], &["u-1"])));
    assert!(gone(&|fixture| tell(fixture, true, vec![], &[])));
    assert!(
        !gone(&|fixture| tell(fixture, false, vec![], &[])),
        "absence in a delta"
    );
    assert!(!gone(&|fixture| {
        tell(fixture, true, vec![], &[]);
        let cluster = fixture.model.fleet.clusters.get_mut("euw-a");
        cluster.expect("it is there").tells_offers = false;
    }));
    assert!(!gone(&|fixture| {
        tell(fixture, true, vec![], &[]);
        let cluster = fixture.model.fleet.clusters.get_mut("euw-a");
        cluster.expect("it is there").heard = None;
    }));
}

#[test]
fn an_offer_that_makes_no_sense_is_passed_over() {
    let mut strange = offer("", "nlp", "batch");
    assert!(Offer::read(&strange).is_none());
    strange.uid = "u-1".to_owned();
    assert!(Offer::read(&strange).is_some());
    strange.roles.clear();
    assert!(Offer::read(&strange).is_none());
}
