//! The simulated cluster keeps what every cluster backend keeps.
//!
//! Owns its fixture; the promises are the conformance suite's.

mod common;
mod conformance;

use std::sync::Arc;

use async_trait::async_trait;
use common::{BEGIN, HOST};
use conformance::{Fixture, Run};
use meridian_agent::Inventory;
use meridian_agent::backend::ClusterBackend;
use meridian_agent::simulated::{Api, Profile, SimulatedCluster, Truth};
use meridian_api::units::Millis;
use meridian_runtime::Clock;

struct Simulated {
    cluster: SimulatedCluster,
    clock: Clock,
}

impl Simulated {
    fn new() -> Self {
        let inventory = Inventory::uniform("h100", "h100-80gb-sxm", &[("rack", 1)], 3, HOST);
        let cluster = SimulatedCluster::new(&inventory, Profile::default(), 11, BEGIN);
        Self {
            cluster: cluster.expect("an inventory"),
            clock: Clock::simulated(BEGIN),
        }
    }
}

#[async_trait]
impl Fixture for Simulated {
    fn backend(&self) -> Arc<dyn ClusterBackend> {
        Arc::new(self.cluster.backend(self.clock.clone()))
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn api(&self, api: Api) {
        self.cluster.set_api(self.clock.wall(), api);
    }

    fn lose_answers(&self, lose: bool) {
        let lost_answers_per_mille = if lose { 1000 } else { 0 };
        let profile = Profile {
            lost_answers_per_mille,
            ..Profile::default()
        };
        self.cluster.set_profile(self.clock.wall(), profile);
    }

    async fn fail_node(&self, node: &str) {
        self.cluster.fail_node(self.clock.wall(), node);
    }

    fn occupy(&self, node: &str) {
        let all = HOST.into();
        self.cluster.hide_foreign(self.clock.wall(), node, all);
    }

    fn grace(&self) -> Millis {
        Millis::seconds(20)
    }

    async fn pause(&self) {
        self.clock.sleep(Millis::seconds(3600)).await;
    }

    fn ran(&self) -> Vec<Run> {
        let history = self.cluster.history(self.clock.wall());
        let starts = history.iter().filter(|event| event.what == Truth::Started);
        let run = |start: &meridian_agent::simulated::TruthEvent| {
            let ended = |event: &&meridian_agent::simulated::TruthEvent| {
                event.what == Truth::Ended && event.pod == start.pod
            };
            let end = history.iter().find(ended).map(|event| event.at);
            (start.node.clone(), start.devices.clone(), start.at, end)
        };
        starts.map(run).collect()
    }
}

macro_rules! conformance {
    ($($check:ident,)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $check() {
                conformance::$check(&Simulated::new()).await;
            }
        )*
    };
}

conformance! {
    shows_its_nodes,
    runs_a_whole_gang,
    binds_once,
    binds_all_or_nothing,
    a_full_node_turns_the_pod_away_and_nothing_starts,
    stops_with_proof,
    an_ended_gang_stays_until_it_is_stopped,
    another_life_finds_what_runs,
    without_its_api_everything_goes_on,
    a_lost_answer_is_found_out_by_asking_again,
    a_dead_node_takes_its_pods,
    resizes_by_members,
    shows_a_checkpoint,
}
