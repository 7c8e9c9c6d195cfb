//! A round of which every part may be carried out.
//!
//! Owns what happens when the decision panics or the independent check finds fault with its plan:
//! the job that it is about is looked for and left out for a while, and the others are decided
//! without it. Never carries out a part of a plan that is not sound.

use std::sync::Arc;

use meridian_api::ids::Uid;
use meridian_api::units::Millis;
use meridian_policies::culprit::{Fault, culprit};
use meridian_policies::model::{Plan, Snapshot};

use crate::execution::Execution;
use crate::model::{Labelled, Model, Situation};

/// Jobs that are looked for in one round. Each takes some tens of decisions; those that are left
/// are looked for in the next.
const MOST: usize = 4;
/// Time for which a job is left out: the search for it delays everybody, so it is tried again as
/// seldom as people look at what they were told.
const REST: Millis = Millis::seconds(600);

/// How rounds are decided.
#[derive(Clone, Copy)]
pub(super) struct Round {
    /// The decision with its check.
    pub(super) decide: fn(&Snapshot) -> Result<Plan, Fault>,
    /// Where it runs.
    pub(super) execution: Execution,
}

/// What a round came to.
pub(super) struct Found {
    /// What was decided on.
    pub(super) labelled: Arc<Labelled>,
    /// What to carry out.
    pub(super) plan: Plan,
    /// Jobs that have been left out since the last round.
    pub(super) left_out: Vec<Uid>,
    /// Decisions that were not sound.
    pub(super) faults: u64,
}

impl Round {
    /// Decides on what `model` holds, and again without the jobs with which that goes wrong. When
    /// none of them is to blame, nothing is placed, and what waits keeps its reasons.
    pub(super) async fn find(self, model: &mut Model, situation: Situation) -> Found {
        let mut found = Found {
            labelled: Arc::default(),
            plan: Plan::default(),
            left_out: Vec::new(),
            faults: 0,
        };
        loop {
            found.labelled = Arc::new(model.snapshot(situation));
            let fault = match self.decided(&found.labelled).await {
                Ok(plan) => {
                    found.plan = plan;
                    return found;
                }
                Err(fault) => fault,
            };
            found.faults += 1;
            tracing::error!(%fault, "a plan is thrown away");
            let blamed = if found.left_out.len() < MOST {
                self.blamed(&found.labelled).await
            } else {
                None
            };
            let Some((job, why)) = blamed else {
                found.plan = only_reasons(fault);
                return found;
            };
            model.leave_out(job, why.to_string(), situation.now.after(REST));
            found.left_out.push(job);
        }
    }

    async fn decided(self, labelled: &Arc<Labelled>) -> Result<Plan, Fault> {
        let labelled = Arc::clone(labelled);
        let work = move || (self.decide)(&labelled.snapshot);
        let done = self.execution.run(work).await;
        done.unwrap_or_else(|ended| Err(Fault::Panicked(ended.to_string())))
    }

    async fn blamed(self, labelled: &Arc<Labelled>) -> Option<(Uid, Fault)> {
        let labelled = Arc::clone(labelled);
        let work = move || culprit(&labelled.snapshot, self.decide);
        self.execution.run(work).await.unwrap_or_default()
    }
}

/// Of what a plan would write, nothing; what waits keeps its reasons.
fn only_reasons(fault: Fault) -> Plan {
    match fault {
        Fault::Panicked(_) => Plan::default(),
        Fault::Broken { plan, .. } => Plan {
            unplaced: plan.unplaced,
            ..Plan::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::reasons::Reason;
    use meridian_policies::decide_soundly;
    use serde_json::json;

    use super::*;
    use crate::fixture_tests::Fixture;

    /// Nobody can decide about a gang with that many pods.
    const POISON: u32 = 3;

    fn poisoned(snapshot: &Snapshot) -> Result<Plan, Fault> {
        let is_poison = |count: u32| count == POISON;
        let mut roles = snapshot.waiting.iter().flat_map(|row| &row.shape.roles);
        if roles.any(|role| is_poison(role.max)) {
            return Err(Fault::Panicked("three is too many".to_owned()));
        }
        decide_soundly(snapshot)
    }

    fn always(_: &Snapshot) -> Result<Plan, Fault> {
        Err(Fault::Panicked("whoever waits".to_owned()))
    }

    fn round(decide: fn(&Snapshot) -> Result<Plan, Fault>) -> Round {
        Round {
            decide,
            execution: Execution::Inline,
        }
    }

    #[tokio::test]
    async fn a_job_that_nobody_can_decide_about_is_left_out_and_the_others_go_on() {
        let mut fixture = Fixture::new(4);
        let uid = |at: u128| Uid(at).to_string();
        for (at, name, replicas) in [(1, "first", 1), (2, "poison", POISON), (3, "last", 2)] {
            let role = json!({"name": "worker", "replicas": replicas, "gpus": 4, "template": {}});
            let metadata = json!({"uid": uid(at)});
            fixture.job_named(name, &json!({"roles": [role]}), &metadata);
        }
        let situation = Fixture::situation();
        let found = round(poisoned).find(&mut fixture.model, situation).await;
        assert_eq!(found.plan.placements.len(), 2);
        assert_eq!((found.left_out.len(), found.faults), (1, 1));
        let [(gang, trouble)] = found.labelled.troubled.as_slice() else {
            panic!("one is troubled: {:?}", found.labelled.troubled);
        };
        assert_eq!(gang.job, found.left_out[0]);
        assert_eq!(trouble.reason, Reason::PendingEvaluation);
        assert!(trouble.message.contains("three is too many"), "{trouble:?}");

        let again = round(poisoned).find(&mut fixture.model, situation).await;
        assert_eq!(
            (again.left_out.len(), again.faults),
            (0, 0),
            "still left out"
        );
        let mut later = situation;
        later.now = situation.now.after(REST);
        assert_eq!(fixture.model.next_try(situation.now), Some(later.now));
        let again = round(poisoned).find(&mut fixture.model, later).await;
        assert_eq!(again.faults, 1, "tried again, in vain");
    }

    #[tokio::test]
    async fn nobody_is_left_out_for_what_is_not_their_fault() {
        let mut fixture = Fixture::new(4);
        fixture.job(&json!({}), &json!({}));
        let found = round(always)
            .find(&mut fixture.model, Fixture::situation())
            .await;
        assert_eq!((found.left_out.len(), found.plan.placements.len()), (0, 0));
        assert_eq!(found.faults, 1);
    }
}
