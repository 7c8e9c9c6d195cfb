//! Random transactions against a small model: every store gives the model's answers.

use std::collections::BTreeMap;

use meridian_api::ids::Revision;
use meridian_store::{Compare, KeyValue, Op, Operation, Txn, TxnResponse};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};

use crate::suite::{Bench, bytes, follow, text, under};

const KEYS: [&str; 5] = ["k/a", "k/b", "k/c", "k/d", "k/e"];

/// A step of a random run. Revisions are guesses about the key, made real by the model, so that
/// compares hold about half of the time.
#[derive(Clone, Debug)]
struct Step {
    compares: Vec<(usize, bool, bool)>,
    success: Vec<(usize, Action)>,
    failure: Vec<(usize, Action)>,
}

#[derive(Clone, Debug)]
enum Action {
    Put(u8),
    Delete,
    Get,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => any::<u8>().prop_map(Action::Put),
        2 => Just(Action::Delete),
        1 => Just(Action::Get),
    ]
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let branch = || prop::collection::vec((0..KEYS.len(), action()), 0..5);
    let compares = prop::collection::vec(
        (0..KEYS.len(), any::<bool>(), prop::bool::weighted(0.8)),
        0..3,
    );
    let step = (compares, branch(), branch()).prop_map(|(compares, success, failure)| Step {
        compares,
        success,
        failure,
    });
    prop::collection::vec(step, 1..most)
}

/// What a store should be: every key's state at every revision.
struct Model {
    revisions: Vec<BTreeMap<String, KeyValue>>,
}

impl Model {
    fn new() -> Self {
        Self {
            revisions: vec![BTreeMap::new()],
        }
    }

    /// Revision 1 is the first state.
    fn revision(&self) -> Revision {
        Revision(self.revisions.len() as u64)
    }

    fn now(&self) -> &BTreeMap<String, KeyValue> {
        &self.revisions[self.revisions.len() - 1]
    }

    fn txn(&self, step: &Step) -> Txn {
        let compares = step.compares.iter().map(|(key, modified, true_guess)| {
            let kv = self.now().get(KEYS[*key]);
            let is = kv.map_or(0, |kv| {
                if *modified {
                    kv.mod_revision.0
                } else {
                    kv.create_revision.0
                }
            });
            let guess = Revision(if *true_guess { is } else { is + 1 });
            let key = bytes(KEYS[*key]);
            if *modified {
                Compare::ModRevision(key, guess)
            } else {
                Compare::CreateRevision(key, guess)
            }
        });
        let branch = |actions: &[(usize, Action)]| {
            let mut written = Vec::new();
            let once = actions.iter().filter(|(key, action)| {
                matches!(action, Action::Get)
                    || (!written.contains(key) && {
                        written.push(*key);
                        true
                    })
            });
            once.map(|(key, action)| match (bytes(KEYS[*key]), action) {
                (key, Action::Put(value)) => Op::Put {
                    key,
                    value: vec![*value].into(),
                    lease: None,
                },
                (key, Action::Delete) => Op::Delete { key },
                (key, Action::Get) => Op::Get { key },
            })
            .collect::<Vec<Op>>()
        };
        Txn {
            compares: compares.collect(),
            success: branch(&step.success),
            failure: branch(&step.failure),
        }
    }

    fn apply(&mut self, step: &Step, txn: &Txn) -> TxnResponse {
        let succeeded = step.compares.iter().all(|(_, _, true_guess)| *true_guess);
        let next = Revision(self.revision().0 + 1);
        let mut state = self.now().clone();
        let (mut reads, mut changed) = (Vec::new(), false);
        for op in if succeeded {
            &txn.success
        } else {
            &txn.failure
        } {
            let name = text(op.key());
            match op {
                Op::Get { .. } => reads.push(state.get(&name).cloned()),
                Op::Delete { .. } => changed |= state.remove(&name).is_some(),
                Op::Put { key, value, lease } => {
                    let before = state.get(&name);
                    let current = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: before.map_or(next, |kv| kv.create_revision),
                        mod_revision: next,
                        version: before.map_or(0, |kv| kv.version) + 1,
                        lease: *lease,
                    };
                    state.insert(name, current);
                    changed = true;
                }
            }
        }
        if changed {
            self.revisions.push(state);
        }
        TxnResponse {
            succeeded,
            revision: self.revision(),
            reads,
        }
    }
}

/// Runs the steps on the store; every answer, every past state and the watch must be the model's.
async fn run(bench: &Bench, steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        let txn = model.txn(step);
        let expected = model.apply(step, &txn);
        assert_eq!(bench.txn(txn.clone()).await, expected, "{txn:?}");
    }
    for (index, state) in model.revisions.iter().enumerate() {
        let at = Revision(index as u64 + 1);
        let page = bench
            .store
            .range(Operation::Probe, under("k/"), 100, Some(at))
            .await;
        let expected: Vec<KeyValue> = state.values().cloned().collect();
        assert_eq!(page.expect("readable").entries, expected, "at {at}");
    }
    assert_eq!(follow(bench, "k/", model.revision()).await, *model.now());
    if let Some(below) = model.revision().0.checked_div(2).filter(|below| *below > 0) {
        bench
            .store
            .compact(Revision(below))
            .await
            .expect("compacted");
        for at in below..=model.revision().0 {
            let state = &model.revisions[usize::try_from(at).expect("small") - 1];
            let page = bench
                .store
                .range(Operation::Probe, under("k/"), 100, Some(Revision(at)))
                .await;
            let expected: Vec<KeyValue> = state.values().cloned().collect();
            assert_eq!(
                page.expect("readable").entries,
                expected,
                "at {at}, compacted"
            );
        }
    }
}

fn on_paused_time(work: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(work);
}

proptest! {
    #![proptest_config(Config { cases: 64, ..Config::default() })]

    #[test]
    fn the_memory_store_is_the_model(steps in steps(40)) {
        on_paused_time(async { run(&crate::memory(), &steps).await });
    }

    #[test]
    fn the_embedded_store_is_the_model(steps in steps(40)) {
        let folder = crate::folder();
        on_paused_time(async {
            let bench = crate::embedded(&folder, crate::simulated_clock(), crate::SIMULATED);
            run(&bench, &steps).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_the_model() {
    let config = Config::default();
    let mut runner = TestRunner::new_with_rng(
        config.clone(),
        TestRng::deterministic_rng(config.rng_algorithm),
    );
    for _ in 0..3 {
        let Some((_server, bench)) = crate::etcd::bench().await else {
            return;
        };
        let steps = steps(120).new_tree(&mut runner).expect("steps").current();
        run(&bench, &steps).await;
    }
}
