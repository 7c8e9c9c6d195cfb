//! Snapshots, tried on a small model: what a decision sees of it.

use std::sync::Arc;

use meridian_api::units::MicroMoney;
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Measure, Role};
use meridian_proto::v1;
use serde_json::json;

use super::*;
use crate::fixture_tests::{FIRST, Fixture, JOB, NOW, gang, record};

fn free(fixture: &Fixture) -> u64 {
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    shapes::free(&snapshot.pools[0].shapes).gpus.whole()
}

#[test]
fn what_is_decided_and_not_yet_shown_is_taken_out_once() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({}), &json!({}));
    assert_eq!(free(&fixture), 32);
    fixture.place(0, FIRST, State::Starting);
    assert_eq!(free(&fixture), 24, "decided, not shown: subtracted here");
    let held = v1::DomainHold {
        domains: vec!["b0".into()],
        hosts: 1,
        held: None,
        each: Vec::new(),
    };
    let seen = v1::GangObservation {
        gang: Some(gang(0).into()),
        epoch: FIRST.0,
        step: v1::GangStep::Bound.into(),
        holds: vec![held],
        ..v1::GangObservation::default()
    };
    let size = |gpus| {
        Some(v1::Resources {
            milli_gpus: gpus,
            milli_cpus: 96_000,
            memory_mib: 1 << 20,
        })
    };
    let shape = |free, hosts| v1::Shape {
        domains: vec!["b0".into()],
        allocatable: size(8_000),
        free: size(free),
        hosts,
    };
    let pool = v1::Pool {
        name: "h100".into(),
        flavor: "h100-80gb".into(),
        levels: vec!["block".into()],
        shapes: vec![shape(8_000, 3), shape(0, 1)],
        out_milli_gpus: 0,
        ..v1::Pool::default()
    };
    fixture.digest(&v1::Digest {
        full: true,
        pools: vec![pool],
        gangs: vec![seen],
        ..v1::Digest::default()
    });
    assert_eq!(
        free(&fixture),
        24,
        "shown by the digest: not subtracted twice"
    );
}

#[test]
fn a_job_that_names_nothing_there_is_troubled_not_lost() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({"tenant": "nobody"}), &json!({}));
    let labelled = fixture.model.snapshot(Fixture::situation());
    assert!(labelled.snapshot.waiting.is_empty());
    let (troubled, trouble) = &labelled.troubled[0];
    assert_eq!(
        (*troubled, trouble.reason),
        (gang(0), Reason::Misconfigured)
    );
    assert!(trouble.message.contains("nobody"), "{}", trouble.message);
}

#[test]
fn a_gang_that_failed_to_start_rests() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({}), &json!({}));
    let mut progress = crate::progress::JobProgress::default();
    progress
        .tried
        .entry(0)
        .or_default()
        .again(FIRST, false, NOW, crate::progress::PAUSE);
    fixture.put(&format!("progress/{JOB}"), &progress.to_json());
    let labelled = fixture.model.snapshot(Fixture::situation());
    assert_eq!(labelled.troubled[0].1.reason, Reason::PendingEvaluation);
    let later = Situation {
        now: NOW.after(meridian_api::units::Millis(1_000)),
        ..Fixture::situation()
    };
    let labelled = fixture.model.snapshot(later);
    assert!(labelled.snapshot.waiting[0].next_epoch > FIRST);
}

#[test]
fn a_question_about_a_job_leaves_no_trace() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({"copies": 3}), &json!({}));
    let job = fixture
        .model
        .job(JOB)
        .expect("it is there")
        .object()
        .clone();
    let before = fixture.model.snapshot(Fixture::situation()).snapshot;
    let asked = fixture.model.hypothetical(Fixture::situation(), &job);
    let (labelled, uid) = asked.expect("it names what is there");
    let ours = labelled
        .snapshot
        .waiting
        .iter()
        .filter(|row| row.gang.job == uid);
    assert_eq!((before.waiting.len(), ours.count()), (3, 3));
    assert_eq!(
        fixture.model.snapshot(Fixture::situation()).snapshot,
        before
    );
}

#[test]
fn quotas_prices_and_ledger_rows_come_from_what_was_written() {
    let mut fixture = Fixture::new(4);
    let quota = json!({
        "tenant": "nlp",
        "cpu": {"nominal": "64", "lendingLimit": "500m"},
        "resources": [{"flavor": "h100-80gb", "region": "eu", "nominal": 8, "lendingLimit": 2}],
    });
    fixture.object("tenantquotas/-/nlp", "TenantQuota", &quota);
    let prices = json!({"currency": "EUR", "flavors": [{"flavor": "h100-80gb", "worth": "1.5"}]});
    fixture.object("pricebooks/-/prices", "PriceBook", &prices);
    let mut row = record(0, FIRST, State::Running);
    row.ledger = Arc::new(vec![StoredRow {
        role: Role::Borrowed,
        lender: Some("nlp".to_owned()),
        gpus: row.gpus,
    }]);
    let key = format!("placements/{JOB}/0");
    fixture.put(&key, &row.to_json());
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    assert_eq!(snapshot.flavors[0].worth, 1500);
    let quotas = &snapshot.tenants[0].quotas;
    let flavor = Some(FlavorIx(0));
    let region = Some(RegionIx(0));
    assert_eq!(quotas[0].measure, Measure::Gpus { flavor, region });
    assert_eq!(
        (quotas[0].nominal, quotas[0].lending_limit),
        (8_000, Some(2_000))
    );
    assert_eq!(quotas[1].measure, Measure::Cpu);
    assert_eq!(
        (quotas[1].nominal, quotas[1].lending_limit),
        (64_000, Some(500))
    );
    let held = &snapshot.held[0];
    assert_eq!(held.rows[0].lender, Some(TenantIx(0)));
    assert_eq!(
        (held.rows[0].gpus, held.resources.gpus),
        (row.gpus, row.gpus)
    );
}

#[test]
fn wishes_and_facts_become_rows_and_equal_wishes_one() {
    let mut fixture = Fixture::new(4);
    let region = json!({
        "timeZone": "Europe/Dublin", "jurisdiction": "EU", "egressPricePerGB": "0.02",
        "gpuHourPrice": {"h100-80gb": "2.60"},
    });
    fixture.object("regions/-/eu", "Region", &region);
    fixture.object(
        "regions/-/us",
        "Region",
        &json!({"timeZone": "America/New_York"}),
    );
    let prices = json!({
        "currency": "EUR", "egress": [{"from": "eu", "to": "us", "perGB": "0.05"}],
        "flavors": [{"flavor": "h100-80gb", "gpuHour": "9",
                     "prices": [{"capacity": "Borrowed", "gpuHour": "1"}]}],
    });
    fixture.object("pricebooks/-/prices", "PriceBook", &prices);
    fixture.cluster(&json!({"zone": "eu-1", "dataSets": ["corpus"]}));
    let pool = json!({
        "cluster": "euw-a", "pool": "h100", "flavor": "h100-80gb",
        "fabric": {"kind": "RoCE", "gbps": 400},
    });
    fixture.object("gpupools/-/h100", "GPUPool", &pool);
    let asks = json!({
        "copies": 2, "expectedRuntime": "5h",
        "placement": {"jurisdiction": "EU", "regions": {"anyOf": ["us", "eu"]}},
    });
    fixture.job(&asks, &json!({}));
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    let facts = &snapshot.region_facts[0];
    assert_eq!(facts.jurisdiction.as_deref(), Some("EU"));
    let cents = |cents: i64| Some(MicroMoney(cents * 10_000));
    assert_eq!(facts.egress, [cents(2), cents(5)]);
    assert_eq!(snapshot.region_facts[1].egress, [None, None]);
    let pool = &snapshot.pools[0].facts;
    assert_eq!(
        pool.price,
        cents(260),
        "the region's, where the book names no region"
    );
    assert_eq!(pool.fabric.map(|fabric| fabric.gbps), Some(400));
    assert_eq!(snapshot.clusters[0].facts.zone.as_deref(), Some("eu-1"));
    assert_eq!(
        snapshot.choices.len(),
        2,
        "nothing, and what both copies ask for"
    );
    let asked = &snapshot.choices[1];
    assert_eq!(asked.jurisdiction.as_deref(), Some("EU"));
    assert_eq!(asked.groups[0].regions, [RegionIx(1), RegionIx(0)]);
    let five_hours = meridian_api::units::Millis::seconds(5 * 3600);
    assert_eq!(snapshot.waiting[0].expected.runtime, Some(five_hours));
}

#[test]
fn a_group_of_an_unknown_cluster_is_misconfigured() {
    let mut fixture = Fixture::new(4);
    let groups = json!([{"name": "home", "clusters": ["nowhere"]}]);
    fixture.job(&json!({"placement": {"groups": groups}}), &json!({}));
    let labelled = fixture.model.snapshot(Fixture::situation());
    let trouble = &labelled.troubled[0].1;
    assert_eq!(trouble.reason, Reason::Misconfigured);
    assert!(trouble.message.contains("nowhere"), "{}", trouble.message);
}

#[test]
fn what_overflowed_and_wants_back_is_told_to_the_decision() {
    let mut fixture = Fixture::new(4);
    let ordered = json!({"ordered": ["us", "eu"]});
    fixture.object(
        "regions/-/us",
        "Region",
        &json!({"timeZone": "America/New_York"}),
    );
    fixture.job(
        &json!({"placement": {"regions": ordered, "overflow": "Return"}}),
        &json!({}),
    );
    fixture.place(0, FIRST, State::Running);
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    let row = &snapshot.overflowed[0];
    assert_eq!(row.gang.gang, snapshot.held[row.held.index()].gang);
    assert_eq!(row.gang.shape.roles[0].min, row.gang.shape.roles[0].max);
    fixture.job(&json!({"placement": {"regions": ordered}}), &json!({}));
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    assert!(snapshot.overflowed.is_empty());
}

#[test]
fn jobs_that_others_name_by_labels_are_found() {
    let mut fixture = Fixture::new(4);
    let rule = json!({"rule": "Apart", "topologyKey": "cluster", "matchLabels": {"app": "a"}});
    let apart = json!({"placement": {"jobAffinity": [rule]}, "copies": 2});
    fixture.job(&apart, &json!({"labels": {"app": "a", "tier": "b"}}));
    fixture.place(0, FIRST, State::Running);
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    let selector = &snapshot.selectors[0];
    assert_eq!((selector.held.len(), selector.waiting.len()), (1, 1));
    assert_eq!(snapshot.choices[1].jobs[0].selector, 0);
    fixture.job(&apart, &json!({"labels": {"app": "other"}}));
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    let selector = &snapshot.selectors[0];
    assert!(selector.held.is_empty() && selector.waiting.is_empty());
}

#[test]
fn a_class_is_shielded_while_its_windows_are_shut() {
    let mut fixture = Fixture::new(1);
    let class = json!({"priority": 5, "preemption": "Requeue",
                       "preemptionWindows": ["nights", "gone"]});
    fixture.object("workloadclasses/-/batch", "WorkloadClass", &class);
    let open = json!([{"days": ["Thu"], "start": "02:00", "end": "03:00"}]);
    let window = json!({"timeZone": "Europe/Dublin", "open": open});
    fixture.object("timewindows/-/nights", "TimeWindow", &window);
    // 1970 began on a Thursday, with Dublin an hour ahead of UTC.
    let opens = UnixMillis(3_600_000);
    let is_shielded = |at: i64| {
        let situation = Situation {
            now: UnixMillis(opens.0 + at),
            ..Fixture::situation()
        };
        fixture.model.snapshot(situation).snapshot.classes[0]
            .rule
            .is_shielded
    };
    assert_eq!(
        [-1, 0, 3_599_999, 3_600_000].map(is_shielded),
        [true, false, false, true]
    );
    assert_eq!(fixture.model.next_try(UnixMillis(0)), Some(opens));
}
