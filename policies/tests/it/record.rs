//! Recorded rounds: what is written is read back, decides the same, and shows what was changed.

use meridian_policies::decide;
use meridian_policies::model::{Plan, Snapshot};
use meridian_policies::record::{CODE, RecordError, Recorded, read, write};
use proptest::prelude::*;

use crate::builders::{World, hosts, role};
use crate::random;

fn world() -> Snapshot {
    let world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(2, &["r1"], 8)]);
    world.job("fits", role(1, 8)).job("never", role(1, 16)).0
}

fn recorded(snapshot: &Snapshot, plan: &Plan) -> Recorded {
    let bytes = write(snapshot, plan).expect("a snapshot has a JSON form");
    read(&bytes).expect("it was just written")
}

proptest! {
    #[test]
    fn a_round_reads_back_and_replays_equal(snapshot in random::snapshot()) {
        let plan = decide(&snapshot);
        let read = recorded(&snapshot, &plan);
        prop_assert_eq!(&read.code, CODE);
        prop_assert_eq!(&read.snapshot, &snapshot);
        prop_assert_eq!(&read.plan, &plan);
        prop_assert_eq!(read.replay(), []);
    }
}

#[test]
fn a_changed_file_is_refused() {
    let snapshot = world();
    let bytes = write(&snapshot, &decide(&snapshot)).expect("JSON");
    let text = String::from_utf8(bytes).expect("JSON is text");
    let refused = |text: String| read(text.as_bytes()).expect_err("it was changed");
    let other = text.replace("\"hosts\":2", "\"hosts\":3");
    assert_ne!(other, text);
    assert!(matches!(refused(other), RecordError::Changed { .. }));
    let cut = text[..text.len() - 20].to_owned();
    assert!(matches!(refused(cut), RecordError::Changed { .. }));
    let newer = text.replacen("\"meridianRound\":1", "\"meridianRound\":2", 1);
    assert!(matches!(
        refused(newer),
        RecordError::OtherForm { found: 2 }
    ));
    assert!(matches!(refused(String::new()), RecordError::NoRound));
    assert!(matches!(
        refused("{}\n{}\n".to_owned()),
        RecordError::NoRound
    ));
}

#[test]
fn another_decision_is_shown_gang_by_gang() {
    let snapshot = world();
    let mut plan = decide(&snapshot);
    let all = plan.clone();
    let kept = plan.placements.remove(0);
    let differences = recorded(&snapshot, &plan).replay();
    let [only] = differences.as_slice() else {
        panic!("{differences:?}");
    };
    assert!(only.what.contains("fits"), "{only:?}");
    assert_eq!(only.recorded, Vec::<String>::new());
    assert!(
        only.here[0].starts_with("placed in c1/main, 8 GPUs"),
        "{only:?}"
    );

    let mut twice = all.clone();
    twice.placements.push(kept);
    assert_eq!(recorded(&snapshot, &twice).replay().len(), 1);
    assert_eq!(recorded(&snapshot, &all).compare(&Plan::default()).len(), 2);
}
