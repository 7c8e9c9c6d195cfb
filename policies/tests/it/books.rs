//! Whose quota placements stand on: roles, lenders, and what a cut does.

use meridian_api::units::MilliGpus;
use meridian_policies::books::{borrowed_of, rows};
use meridian_policies::decide;
use meridian_policies::model::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::builders::{World, hosts, quota, role, tenant};

fn with_row(name: &str, parent: Option<u32>, row: Option<Quota>) -> Tenant {
    Tenant {
        quotas: row.into_iter().collect(),
        ..tenant(name, parent)
    }
}

/// org 100 = research 60 (nlp 40, vision 20) + serving 40, each with the lending limit given.
fn tree(lending: [Option<u64>; 4]) -> World {
    let mut world = World::new().cluster("c1");
    let row = |nominal: u64, lends: Option<u64>| {
        Some(Quota {
            lending_limit: lends.map(|gpus| gpus * 1000),
            ..quota(nominal, None)
        })
    };
    world.0.tenants = vec![
        with_row("org", None, row(100, None)),
        with_row("research", Some(0), row(60, lending[0])),
        with_row("nlp", Some(1), row(40, lending[1])),
        with_row("vision", Some(1), row(20, lending[2])),
        with_row("serving", Some(0), row(40, lending[3])),
    ];
    world
}

/// Each held row as `own 8` or `nlp 4`; `-` for what nobody lends.
fn shown(world: &World) -> Vec<String> {
    let name = |row: &LedgerRow| match (row.role, row.lender) {
        (Role::Own, _) => "own",
        (Role::Borrowed, None) => "-",
        (Role::Borrowed, Some(lender)) => world.0.tenants[lender.index()].name.as_str(),
    };
    let words = |rows: &Vec<LedgerRow>| {
        let rows = rows
            .iter()
            .map(|row| format!("{} {}", name(row), row.gpus.whole()));
        rows.collect::<Vec<_>>().join(", ")
    };
    rows(&world.0, &[], &[], &[]).iter().map(words).collect()
}

#[test]
fn the_nearest_neighbour_lends_first_then_those_further_up() {
    let world = tree([None; 4]).held(3, 18).held(3, 30).held(3, 36);
    // vision has 20: the first two thirds of the rest come from nlp, what is beyond from serving.
    assert_eq!(
        shown(&world),
        ["own 18", "own 2, nlp 28", "nlp 12, serving 24"]
    );
}

#[test]
fn a_lender_gives_no_more_than_its_limit() {
    let world = tree([None, Some(5), None, Some(10)]).held(3, 40);
    assert_eq!(shown(&world), ["own 20, - 5, nlp 5, serving 10"]);
}

#[test]
fn a_cut_quota_kills_nothing_and_makes_the_newest_borrowed() {
    let mut world = tree([None; 4]).held(2, 20).held(2, 20);
    assert_eq!(shown(&world), ["own 20", "own 20"]);
    world.0.tenants[2].quotas[0].nominal = 24_000;
    // What nlp lost is the department's own rest again, which lends it.
    assert_eq!(shown(&world), ["own 20", "own 4, vision 16"]);
    let plan = decide(&world.0);
    assert_eq!(plan.regraded.len(), 1);
    assert_eq!(plan.regraded[0].held, HeldIx(1));
}

#[test]
fn a_lender_that_was_written_down_stays() {
    let mut world = tree([None; 4]).held(2, 40).held(2, 10);
    assert_eq!(shown(&world)[1], "vision 10");
    let loan = |lender, gpus| LedgerRow {
        role: Role::Borrowed,
        lender: Some(TenantIx(lender)),
        gpus: MilliGpus::cards(gpus),
    };
    world = world.held(4, 35);
    world.0.held[1].rows = vec![loan(3, 10)];
    world.0.tenants[3].quotas[0].nominal = 4_000;
    world.0.tenants[1].quotas[0].nominal = 44_000;
    // vision has only 4 to lend, org has the 16 that research lost and serving 5.
    assert_eq!(shown(&world)[1], "org 6, vision 4");
}

#[test]
fn lent_gpus_are_missed_by_nobody_who_is_under_nominal() {
    // Scenario 6: vision borrows all that nlp leaves; what nlp then takes is its own.
    let world = tree([None; 4]).held(3, 60).held(2, 30);
    assert_eq!(shown(&world), ["own 20, nlp 10, serving 30", "own 30"]);
}

#[test]
fn a_spent_budget_blocks_borrowing_only() {
    let mut world = tree([None; 4]).pool("p", vec![hosts(8, &[], 8)]);
    world.0.tenants[3].budget = Some(Budget {
        spent: meridian_api::units::MicroMoney(5_000_000),
        limit: meridian_api::units::MicroMoney(5_000_000),
        on_exhausted: meridian_api::kinds::tenant::OnExhausted::BlockBorrowing,
    });
    let of_vision = |gang: &mut Waiting| gang.tenant = TenantIx(3);
    let world =
        world
            .job_with("own", role(2, 8), of_vision)
            .job_with("borrowed", role(1, 8), of_vision);
    let plan = decide(&world.0);
    assert_eq!(plan.placements.len(), 1);
    let reason = &plan.unplaced[0].reasons[0];
    assert_eq!(
        (reason.reason.as_str(), reason.message.to_string().as_str()),
        (
            "BudgetExhausted",
            "tenant vision has spent 5.00 of 5.00: only its own quota is left to it"
        )
    );
}

/// Two departments of two teams each: nominal of the teams, what each lends, what each holds.
type Teams = [(u64, Option<u64>, u64); 4];

fn teams() -> impl Strategy<Value = (Teams, [u64; 2])> {
    let team = || (0..8_u64, option::of(0..8_u64), 0..14_u64);
    let rest = [0..4_u64, 0..4_u64];
    ([team(), team(), team(), team()], rest)
}

/// org > a > (a1, a2), b > (b1, b2); a department has what its teams have, and a rest.
fn departments(teams: &Teams, rest: [u64; 2]) -> World {
    let mut world = World::new().cluster("c1");
    let nominal = |from: usize| teams[from].0 + teams[from + 1].0 + rest[from / 2];
    let row = |gpus: u64, lends: Option<u64>| {
        Some(Quota {
            lending_limit: lends.map(|lent| lent.min(gpus) * 1000),
            ..quota(gpus, None)
        })
    };
    world.0.tenants = vec![
        with_row("org", None, row(nominal(0) + nominal(2), None)),
        with_row("a", Some(0), row(nominal(0), None)),
        with_row("b", Some(0), row(nominal(2), None)),
    ];
    for ((gpus, lends, held), index) in teams.iter().zip(0_u32..) {
        let parent = if index < 2 { 1 } else { 2 };
        let name = format!("t{index}");
        world
            .0
            .tenants
            .push(with_row(&name, Some(parent), row(*gpus, *lends)));
        for _ in 0..*held {
            world = world.held(index + 3, 1);
        }
    }
    world
}

/// GPUs that can be lent at most, found by trying every split between near and far.
fn most_lent(teams: &Teams, rest: [u64; 2]) -> u64 {
    let unused = |(nominal, lends, held): (u64, Option<u64>, u64)| {
        nominal.saturating_sub(held).min(lends.unwrap_or(u64::MAX))
    };
    let wanted = |(nominal, _, held): (u64, Option<u64>, u64)| held.saturating_sub(nominal);
    let department = |from: usize| {
        let supply = unused(teams[from]) + unused(teams[from + 1]) + rest[from / 2];
        (supply, wanted(teams[from]) + wanted(teams[from + 1]))
    };
    let ((supply_a, wanted_a), (supply_b, wanted_b)) = (department(0), department(2));
    let mut best = 0;
    for near_a in 0..=supply_a.min(wanted_a) {
        for near_b in 0..=supply_b.min(wanted_b) {
            let far = (supply_b - near_b).min(wanted_a - near_a)
                + (supply_a - near_a).min(wanted_b - near_b);
            best = best.max(near_a + near_b + far);
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2500))]

    /// S33: rows add up, and as much is lent as can be.
    #[test]
    fn as_much_is_lent_as_can_be((teams, rest) in teams()) {
        let world = departments(&teams, rest);
        let rows = rows(&world.0, &[], &[], &[]);
        let mut lent = 0;
        for (held, rows) in world.0.held.iter().zip(&rows) {
            let sum: u64 = rows.iter().map(|row| row.gpus.0).sum();
            prop_assert_eq!(sum, held.resources.gpus.0);
            let backed = rows.iter().filter(|row| row.lender.is_some());
            lent += backed.map(|row| row.gpus.whole()).sum::<u64>();
        }
        let borrowed: u64 = rows.iter().map(|rows| borrowed_of(rows).whole()).sum();
        let over: u64 = teams.iter().map(|team| team.2.saturating_sub(team.0)).sum();
        prop_assert_eq!(borrowed, over);
        prop_assert_eq!(lent, most_lent(&teams, rest));
    }

    /// What is written down once is not written again: no churn.
    #[test]
    fn rows_that_were_written_down_stay((teams, rest) in teams()) {
        let mut world = departments(&teams, rest);
        let first = rows(&world.0, &[], &[], &[]);
        for (held, rows) in world.0.held.iter_mut().zip(&first) {
            held.rows.clone_from(rows);
        }
        prop_assert_eq!(rows(&world.0, &[], &[], &[]), first);
    }

    /// S4 against a model that holds every GPU by its own row of a plain list.
    #[test]
    fn no_grant_passes_what_is_there(
        (teams, rest) in teams(), asks in vec((0..4_u32, 1..6_u64), 1..12),
    ) {
        let mut nobody = teams;
        for team in &mut nobody {
            team.2 = 0;
        }
        let mut world = departments(&nobody, rest).pool("p", vec![hosts(100, &[], 8)]);
        for (index, (team, gpus)) in asks.iter().enumerate() {
            let name = format!("j{index}");
            world = world.job_with(&name, role(1, *gpus), |gang| gang.tenant = TenantIx(team + 3));
        }
        let plan = decide(&world.0);
        let mut used = nobody;
        for placed in &plan.placements {
            let tenant = world.0.waiting[placed.waiting.index()].tenant;
            used[tenant.index() - 3].2 += placed.gpus.whole();
        }
        let over: u64 = used.iter().map(|team| team.2.saturating_sub(team.0)).sum();
        prop_assert_eq!(most_lent(&used, rest), over, "{:?}", used);
        // And nobody who waits could have had what it asks for.
        for left in &plan.unplaced {
            let gang = &world.0.waiting[left.waiting.index()];
            let mut more = used;
            more[gang.tenant.index() - 3].2 += gang.job_gpus.whole();
            let over: u64 = more.iter().map(|team| team.2.saturating_sub(team.0)).sum();
            prop_assert!(most_lent(&more, rest) < over, "{:?} and {}", used, gang.job);
        }
    }
}
