//! Orders, tried on a small model: what a cluster is told, and what it is never told.

use std::collections::BTreeSet;

use meridian_policies::lifecycle::{DrainReason, State};
use serde_json::json;

use super::*;
use crate::fixture_tests::{FIRST, Fixture, gang};

fn orders(fixture: &Fixture) -> Orders {
    let clusters = BTreeSet::from(["euw-a".to_owned()]);
    orders_of(&fixture.model, &clusters)
        .remove("euw-a")
        .expect("asked for")
}

#[test]
fn a_placement_is_run_and_a_draining_one_stopped() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({"copies": 2}), &json!({}));
    fixture.place(0, FIRST, State::Starting);
    fixture.place(1, FIRST, State::Draining(DrainReason::Deleted));
    let all = orders(&fixture);
    assert!(matches!(all.orders[&(gang(0), FIRST)], Order::Run(..)));
    assert_eq!(all.orders[&(gang(1), FIRST)], Order::Stop("Deleted"));
}

#[test]
fn what_runs_without_a_row_is_left_alone_and_what_ended_is_forgotten() {
    let mut fixture = Fixture::new(4);
    fixture.saw(0, FIRST, v1::GangStep::Running, "");
    fixture.saw(1, FIRST, v1::GangStep::Succeeded, "");
    let all = orders(&fixture);
    assert!(!all.orders.contains_key(&(gang(0), FIRST)));
    assert_eq!(all.orders[&(gang(1), FIRST)], Order::Stop("Ended"));
}

#[test]
fn gangs_are_told_in_the_order_in_which_they_were_decided() {
    let mut fixture = Fixture::new(8);
    fixture.job(&json!({"copies": 4}), &json!({}));
    for index in [2, 0, 3] {
        fixture.place(index, FIRST, State::Starting);
    }
    fixture.place(1, FIRST, State::Draining(DrainReason::Deleted));
    let all = orders(&fixture);
    let told = all.since(&Orders::default());
    let told: Vec<u32> = told.iter().map(|(gang, ..)| gang.index).collect();
    assert_eq!(
        told,
        [1, 2, 0, 3],
        "the stop first, then by decision, not by name"
    );
}

#[test]
fn only_news_is_sent() {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({}), &json!({}));
    fixture.place(0, FIRST, State::Starting);
    let first = orders(&fixture);
    assert_eq!(first.since(&Orders::default()).len(), 1);
    fixture.place(0, FIRST, State::Running);
    let running = orders(&fixture);
    assert!(
        running.since(&first).is_empty(),
        "the agent reported that itself"
    );
    fixture.place(0, FIRST, State::Draining(DrainReason::Suspended));
    let stopping = orders(&fixture);
    let news = stopping.since(&running);
    assert_eq!(news, [(gang(0), FIRST, &Order::Stop("Suspended"))]);
}
