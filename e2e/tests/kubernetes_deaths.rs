//! The agent dies after each step of a gang's life on real nodes, and jobs are deleted there.
//!
//! Owns the promise that whatever life of an agent began, the next one finishes or undoes: no gang
//! starts in part or twice, and nothing is left. The agent that dies is the real one with a fail
//! point; what is claimed is read from what the containers wrote and what the API server holds.

use meridian_agent::kubernetes::Step;
use meridian_e2e::deployment::{AgentPlan, Mortality};
use meridian_e2e::member::MemberOptions;
use meridian_e2e::real_nodes::RealNodes;

/// Steps of a start, in order.
const STARTS: [Step; 7] = [
    Step::Claimed,
    Step::Furnished,
    Step::PodMade,
    Step::PodsMade,
    Step::PodBound,
    Step::PodsBound,
    Step::GateOpened,
];
/// Steps after which a bind can be held: after the last nothing is left to be done again.
const HELD: [Step; 6] = [
    Step::Claimed,
    Step::Furnished,
    Step::PodMade,
    Step::PodsMade,
    Step::PodBound,
    Step::PodsBound,
];
/// Moments of a start at which the job is deleted while there is no agent.
const ALONE: [Step; 3] = [Step::PodMade, Step::PodsBound, Step::GateOpened];

#[tokio::test]
async fn what_one_life_of_an_agent_began_the_next_finishes_or_undoes() {
    let test = "what_one_life_of_an_agent_began_the_next_finishes_or_undoes";
    let options = MemberOptions {
        // Room for all gangs of a scene at once.
        gpus_per_node: 12,
        ..MemberOptions::default()
    };
    let agent = AgentPlan {
        mortality: Mortality::Asks,
        ..AgentPlan::default()
    };
    let Some(mut world) = RealNodes::start(test, options, &agent).await else {
        return;
    };
    dies_at_each_step(&mut world).await;
    deleted_while_it_starts(&world).await;
    deleted_without_an_agent(&mut world).await;
    world.end(&[]).await;
}

/// Each death meets the gangs that the deaths before it left half started.
async fn dies_at_each_step(world: &mut RealNodes) {
    let point = world.fleet.fail_point();
    let job = |step: Step| format!("dies-{}", format!("{step:?}").to_lowercase());
    for step in STARTS {
        point.dies_after(step);
        world.submit(world.job(&job(step), 2, 1)).await;
        world.revive_agent().await;
    }
    for step in STARTS {
        let runs = world.runs(&job(step), 2).await;
        assert_eq!(runs[0].epoch, runs[1].epoch, "{step:?}");
    }
    let [first, second, rest @ ..] = STARTS;
    for (step, death) in [(first, Step::StopMarked), (second, Step::PodsAsked)] {
        point.dies_after(death);
        world.ask_delete(&job(step)).await;
        world.revive_agent().await;
    }
    for step in rest {
        world.ask_delete(&job(step)).await;
    }
    for step in STARTS {
        world.gone(&job(step)).await;
    }
}

async fn deleted_while_it_starts(world: &RealNodes) {
    let point = world.fleet.fail_point();
    for step in HELD {
        let job = format!("held-{}", format!("{step:?}").to_lowercase());
        point.is_held_after(step);
        world.submit(world.job(&job, 2, 1)).await;
        let reached = async || point.is_reached().then_some(());
        world.until("the bind is held", reached).await;
        world.delete(&job).await;
        let truth = world.member.truth();
        assert!(truth.runs().iter().all(|run| run.job != job), "{step:?}");
        point.lift();
    }
}

async fn deleted_without_an_agent(world: &mut RealNodes) {
    let point = world.fleet.fail_point();
    for step in ALONE {
        let job = format!("alone-{}", format!("{step:?}").to_lowercase());
        point.dies_after(step);
        world.submit(world.job(&job, 2, 1)).await;
        let reached = async || point.is_reached().then_some(());
        world.until("the agent dies", reached).await;
        world.ask_delete(&job).await;
        world.revive_agent().await;
        world.gone(&job).await;
    }
}
