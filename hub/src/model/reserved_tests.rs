//! Reservations as a decision sees them, tried on a small model.

use meridian_policies::lifecycle::State;
use meridian_policies::model::PoolIx;
use serde_json::json;

use super::*;
use crate::fixture_tests::{FIRST, Fixture, NOW};

/// Four hosts; the fixture happens at 00:16:40 on 1970-01-01, a Thursday.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new(4);
    let night = json!([{"days": ["Thu", "Fri"], "start": "22:00", "end": "02:00"}]);
    let spec = json!({"timeZone": "UTC", "open": night});
    fixture.object("timewindows/-/nights", "TimeWindow", &spec);
    let spec = json!({
        "tenant": "nlp", "schedule": {"window": "nights"},
        "capacity": {"flavor": "h100-80gb", "hosts": 3, "cluster": "euw-a", "pool": "h100"},
    });
    fixture.object("reservations/-/nightly", "Reservation", &spec);
    fixture
}

fn hour(hour: i64) -> UnixMillis {
    UnixMillis(hour * 3_600_000)
}

#[test]
fn one_that_recurs_has_a_row_for_this_opening_and_the_next() {
    let fixture = fixture();
    let rows = fixture
        .model
        .snapshot(Fixture::situation())
        .snapshot
        .reserved;
    let spans: Vec<_> = rows.iter().map(|row| (row.from, row.until)).collect();
    assert_eq!(spans, [(hour(22), hour(26)), (hour(46), hour(50))]);
    assert!(
        rows.iter()
            .all(|row| row.pool == PoolIx(0) && row.hosts == 3)
    );
    // Its hosts are empty ten minutes before, and those in the way are told a minute before that,
    // as no class gives a notice.
    let told = UnixMillis(hour(22).0 - 660_000);
    assert_eq!(fixture.model.next_try(NOW), Some(told));
    assert_eq!(fixture.model.next_try(told), Some(hour(22)));
    assert_eq!(fixture.model.next_try(hour(22)), Some(hour(26)));
}

#[test]
fn its_status_says_when_it_begins_and_who_is_in_the_way() {
    let mut fixture = fixture();
    let status = |fixture: &Fixture| {
        let mut all = fixture.model.reservation_statuses(Fixture::situation());
        all.remove("nightly").expect("it has one")
    };
    let before = status(&fixture);
    assert_eq!(before.phase, ReservationPhase::Pending);
    assert_eq!(before.start, Some(Time(hour(22))));
    assert_eq!(before.next_start, Some(Time(hour(46))));
    assert_eq!((before.hosts.ready, before.hosts.used), (3, 0));
    assert!(conditions::holds(&before.conditions, WHOLE));

    // Two pods of another tenant that never end: on two of the four hosts at most.
    fixture.object("tenants/-/others", "Tenant", &json!({}));
    fixture.job(&json!({"tenant": "others"}), &json!({}));
    let mut record = crate::fixture_tests::record(0, FIRST, State::Running);
    record.tenant = "others".into();
    fixture.put(
        &format!("placements/{}/0", crate::fixture_tests::JOB),
        &record.to_json(),
    );
    let after = status(&fixture);
    assert_eq!(after.hosts.ready, 3, "one host is touched, three are empty");
    std::sync::Arc::make_mut(&mut record.roles)[0].pods = 8;
    record.gpus = meridian_api::units::MilliGpus::cards(32);
    fixture.put(
        &format!("placements/{}/0", crate::fixture_tests::JOB),
        &record.to_json(),
    );
    let after = status(&fixture);
    assert_eq!(after.hosts.ready, 0);
    let whole = conditions::get(&after.conditions, WHOLE).expect("it is there");
    assert_eq!(whole.status, ConditionStatus::False);
    assert_eq!(
        whole.message,
        "0 of 3 hosts are certain; in the way: nlp/train"
    );
}

#[test]
fn a_window_says_when_it_opens() {
    let fixture = fixture();
    let statuses = fixture.model.window_statuses(hour(23));
    let night = &statuses["nights"];
    assert!(night.open);
    assert_eq!(night.closes_at, Some(Time(hour(26))));
    assert_eq!(night.next_open, Some(Time(hour(46))));
}
