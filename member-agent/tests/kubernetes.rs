//! The backend of real clusters against a real API server, with machines that pretend.
//!
//! Owns the promises that only such a cluster can be asked for, beside the conformance suite. One
//! server serves each test, and each check finds it clean. Skipped by name where the server's
//! binaries are not built, an error in CI.

mod conformance;
mod kubernetes_fixture;
mod kubernetes_promises;

use kubernetes_fixture::Cluster;
use kubernetes_fixture::server::ApiServer;
use kubernetes_promises::theirs;

/// Runs checks one after the other, each on a clean cluster.
macro_rules! checks {
    ($server:expr, $module:ident: $($check:ident,)*) => {
        $(
            eprintln!("  {} ...", stringify!($check));
            let cluster = Cluster::new($server).await;
            $module::$check(&cluster).await;
            cluster.end();
        )*
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_what_every_backend_keeps() {
    let test = "keeps_what_every_backend_keeps";
    let Some(server) = ApiServer::start_or_skip(test).await else {
        return;
    };
    checks! { &server, conformance:
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_its_own_promises() {
    let test = "keeps_its_own_promises";
    let Some(server) = ApiServer::start_or_skip(test).await else {
        return;
    };
    checks! { &server, kubernetes_promises:
        a_bind_cut_short_anywhere_is_finished_or_undone,
        a_gate_left_shut_is_opened_by_another_life,
        a_stop_comes_before_the_gate,
        two_lives_cannot_both_have_a_gang,
        a_template_that_is_refused_leaves_nothing,
        a_policy_that_denies_is_named,
        what_is_missing_is_named,
        what_a_job_carries_goes_with_its_last_gang,
        pods_of_others_are_counted_and_left_alone,
        a_silent_machine_is_no_proof,
        a_pod_removed_by_hand_is_missed,
        a_namespace_is_made_when_it_may_be,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binds_what_others_made() {
    let test = "binds_what_others_made";
    let Some(server) = ApiServer::start_or_skip(test).await else {
        return;
    };
    checks! { &server, theirs:
        pods_of_a_job_are_bound_under_an_order,
        a_bind_of_theirs_cut_short_is_finished_or_undone,
        what_is_not_as_admitted_is_not_bound,
    }
}
