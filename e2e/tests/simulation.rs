//! A slice of the fault simulation, and that one seed is one run.
//!
//! Owns the number of seeds that every test run affords; `MERIDIAN_SEEDS=500` runs more of them.
//! Each run is a process of its own. What is checked is in `meridian_e2e::simulation`.

use std::process::{Command, Output};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 16;
/// Processes at once.
const AT_ONCE: &str = "2";

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meridian-simulate"))
        .args(arguments)
        .output()
        .expect("the simulation was built with this test")
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[test]
fn invariants_hold_under_faults() {
    let seeds = std::env::var("MERIDIAN_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| {
        seeds.parse().expect("MERIDIAN_SEEDS is a number")
    });
    let output = simulate(&["--seeds", &format!("0..{seeds}"), "--jobs", AT_ONCE]);
    let report = text(&output.stdout);
    println!("{report}");
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert!(
        report.contains(&format!("{seeds} of {seeds} seeds ok")),
        "{report}"
    );
}

#[test]
fn one_seed_is_one_run_byte_for_byte() {
    // With its whole log, which a difference can be read from.
    let run = || simulate(&["--seed", "7", "--seconds", "90", "--log"]);
    let (first, second) = (run(), run());
    assert!(first.status.success(), "{}", text(&first.stdout));
    assert!(first.stdout.len() > 10_000, "{}", text(&first.stdout));
    let differs = text(&first.stdout)
        .lines()
        .zip(text(&second.stdout).lines())
        .find(|(one, other)| one != other)
        .map(|(one, other)| format!("first difference:\n{one}\n{other}"));
    assert_eq!(differs, None);
    assert!(first.stdout == second.stdout, "one is longer");
    let other = simulate(&["--seed", "8", "--seconds", "90", "--log"]);
    assert!(other.stdout != first.stdout, "the seed changes nothing");
}
