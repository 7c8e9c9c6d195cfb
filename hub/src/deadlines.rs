//! Deadlines: what is said of a job with a `finishBy`, before it is missed.
//!
//! Owns the words: a condition that reads add, an event when a miss is foreseen, and what `why` and
//! the queue show. What was told is noted in the job's progress, so that a new leader does not tell
//! it again. When work is expected to be done is `meridian_policies::deadlines`'. Never holds
//! anything back.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::conditions;
use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::federated_job::status::FINISHES_IN_TIME;
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::{Span, Time};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::deadlines::{Forecast, Stands, forecast};
use meridian_proto::v1;
use serde_json::{Value, json};

use crate::explanations::Explained;
use crate::journal::{Gravity, JournalEntry};
use crate::model::{Job, Model};

/// What is said of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// Of the gang that is expected to be done last.
    forecast: Forecast,
    /// In words.
    message: String,
}

impl Outlook {
    /// What is said of a job; `None` when it has no `finishBy` or is over.
    #[must_use]
    pub(crate) fn of(
        model: &Model,
        explained: &Explained,
        job: &Job,
        now: UnixMillis,
    ) -> Option<Self> {
        let finish_by = job.spec().finish_by?.0;
        let runtime = model.max_runtime(job);
        let gangs = (0..job.gang_count()).filter(|index| !job.progress().is_over(*index));
        let each = gangs.map(|index| {
            let gang = GangId {
                job: job.uid,
                index,
            };
            let stands = match model.placement(gang) {
                Some(row) => Stands::Placed(row.record.ends()),
                None => Stands::Waits(explained.start(gang)),
            };
            (forecast(finish_by, runtime, stands, now), stands)
        });
        let (forecast, stands) = each.max_by_key(|(forecast, _)| *forecast)?;
        Some(Self {
            forecast,
            message: words(forecast, stands, runtime, now),
        })
    }

    /// For the wire, when the job is expected to be late.
    #[must_use]
    pub(crate) fn late(&self) -> Option<v1::Late> {
        self.forecast.late()?;
        Some(v1::Late {
            finish_by_ms: self.forecast.finish_by.0,
            done_ms: self.forecast.done.0,
            is_certain: self.forecast.is_certain,
            message: self.message.clone(),
        })
    }

    fn condition(&self) -> Condition {
        let (status, reason) = match (self.forecast.late(), self.forecast.is_certain) {
            (None, _) => (ConditionStatus::True, "TimeToSpare"),
            (Some(_), false) => (ConditionStatus::False, "MissForeseen"),
            (Some(_), true) => (ConditionStatus::False, "TooLate"),
        };
        Condition {
            kind: FINISHES_IN_TIME.to_owned(),
            status,
            reason: reason.to_owned(),
            message: self.message.clone(),
            ..Condition::default()
        }
    }
}

/// The numbers in words, in whole seconds.
fn words(forecast: Forecast, stands: Stands, runtime: Option<Millis>, now: UnixMillis) -> String {
    let span = |span: Millis| Span(Millis(span.0 / 1000 * 1000));
    let finish_by = Time(forecast.finish_by);
    let Some(late) = forecast.late() else {
        let spare = span(forecast.finish_by.since(forecast.done));
        return format!("{spare} to spare before finishBy ({finish_by})");
    };
    let late = span(late);
    let runs = span(runtime.unwrap_or_default());
    match stands {
        Stands::Placed(Some(ends)) if ends > now => {
            let left = span(ends.since(now));
            format!("may run for another {left}: done {late} after finishBy ({finish_by})")
        }
        Stands::Waits(_) if forecast.done <= now => {
            format!("waits, and finishBy ({finish_by}) was {late} ago")
        }
        Stands::Placed(_) => format!("runs, and finishBy ({finish_by}) was {late} ago"),
        Stands::Waits(_) if forecast.done == now.after(runtime.unwrap_or_default()) => {
            format!("may take {runs}: done {late} after finishBy ({finish_by}) if it starts now")
        }
        Stands::Waits(_) => {
            let wait = span(forecast.done.since(now.after(runtime.unwrap_or_default())));
            format!(
                "may start in {wait} at the earliest and take {runs}: done {late} after finishBy \
                 ({finish_by})"
            )
        }
    }
}

/// What is said of every job that has a `finishBy`, for readers on any task. Empty on a follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines(Arc<RwLock<BTreeMap<Uid, Known>>>);

/// What is said of a job, and since when it is so.
#[derive(Debug)]
struct Known {
    conditions: Vec<Condition>,
}

/// A job of which another thing is expected than was told.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Which.
    pub(crate) job: Uid,
    /// What to tell, when it is expected to be late; nobody is told that it is not any more.
    pub(crate) told: Option<JournalEntry>,
}

impl Deadlines {
    /// Looks at every such job. Returns those that are newly expected to be late, or newly not.
    pub(crate) fn look(&self, model: &Model, explained: &Explained, now: UnixMillis) -> Vec<Turn> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (mut outlooks, mut turns) = (BTreeMap::new(), Vec::new());
        for job in model.jobs_with_deadline() {
            let Some(outlook) = Outlook::of(model, explained, job, now) else {
                continue;
            };
            let before = known.remove(&job.uid);
            let is_late = outlook.forecast.late().is_some();
            if is_late != job.progress().miss_told {
                turns.push(Turn {
                    job: job.uid,
                    told: is_late.then(|| entry(job, &outlook, now)),
                });
            }
            let mut conditions = before.map(|before| before.conditions).unwrap_or_default();
            let condition = Condition {
                observed_generation: job.marks.generation,
                ..outlook.condition()
            };
            conditions::set(&mut conditions, condition, now);
            outlooks.insert(job.uid, Known { conditions });
        }
        *known = outlooks;
        turns
    }

    /// This hub leads no more.
    pub(crate) fn clear(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Adds to the status of a job that is being read whether it will be done in time.
    pub(crate) fn decorate(&self, uid: Uid, job: &mut Value) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = known.get(&uid) else { return };
        let Some(object) = job.as_object_mut() else {
            return;
        };
        let status = object.entry("status").or_insert_with(|| json!({}));
        let Some(status) = status.as_object_mut() else {
            return;
        };
        let shown = status.entry("conditions").or_insert_with(|| json!([]));
        let Some(shown) = shown.as_array_mut() else {
            return;
        };
        shown.retain(|condition| condition["type"] != FINISHES_IN_TIME);
        shown.extend(known.conditions.iter().map(|condition| json!(condition)));
    }
}

fn entry(job: &Job, outlook: &Outlook, now: UnixMillis) -> JournalEntry {
    JournalEntry {
        number: 0,
        at: now,
        kind: "FederatedJob",
        namespace: job.namespace().to_owned(),
        name: job.name().to_owned(),
        uid: job.uid.to_string(),
        gravity: Gravity::Warning,
        reason: if outlook.forecast.is_certain {
            "TooLate"
        } else {
            "MissForeseen"
        },
        message: outlook.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use meridian_policies::lifecycle::State;
    use meridian_policies::model::Estimate;

    use super::*;
    use crate::fixture_tests::{FIRST, Fixture, JOB, NOW, gang};
    use crate::progress::JobProgress;

    fn minutes(minutes: u64) -> UnixMillis {
        NOW.after(Millis::seconds(minutes * 60))
    }

    /// A job that takes an hour and should be done in two.
    fn fixture() -> Fixture {
        let mut fixture = Fixture::new(2);
        let finish_by = Time(minutes(120)).to_string();
        let spec = json!({"maxRuntime": "1h", "finishBy": finish_by});
        fixture.job(&spec, &json!({}));
        fixture
    }

    fn starts_in(at: u64) -> Explained {
        let start = Estimate {
            earliest: minutes(at),
            latest: None,
        };
        Explained::of_one(gang(0), start)
    }

    fn read(deadlines: &Deadlines) -> Value {
        let mut job = json!({"status": {"conditions": [{"type": "Placed"}]}});
        deadlines.decorate(JOB, &mut job);
        job["status"]["conditions"].take()
    }

    #[test]
    fn a_miss_is_told_before_it_happens_and_once() {
        let (mut fixture, deadlines) = (fixture(), Deadlines::default());
        let look = |fixture: &Fixture, explained: &Explained, now| {
            let turns = deadlines.look(&fixture.model, explained, now).into_iter();
            turns.map(|turn| turn.told.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(look(&fixture, &starts_in(30), NOW), [] as [bool; 0]);
        let conditions = read(&deadlines);
        assert_eq!(conditions[1]["status"], "True");
        assert_eq!(
            conditions[1]["message"],
            "30m to spare before finishBy (1970-01-01T02:16:40Z)"
        );
        assert_eq!(look(&fixture, &starts_in(90), minutes(1)), [true]);
        let late = read(&deadlines)[1].clone();
        assert_eq!(
            (&late["status"], &late["reason"]),
            (&json!("False"), &json!("MissForeseen"))
        );
        assert_eq!(
            late["message"],
            "may start in 1h29m at the earliest and take 1h: done 30m after finishBy \
             (1970-01-01T02:16:40Z)"
        );
        let told = JobProgress {
            miss_told: true,
            ..JobProgress::default()
        };
        fixture.put(&format!("progress/{JOB}"), &told.to_json());
        let again = look(&fixture, &starts_in(90), minutes(2));
        assert_eq!(again, [] as [bool; 0], "the same miss is told once");
        assert_eq!(
            read(&deadlines)[1]["lastTransitionTime"],
            late["lastTransitionTime"]
        );
        assert_eq!(look(&fixture, &starts_in(30), minutes(3)), [false]);
        deadlines.clear();
        assert_eq!(read(&deadlines), json!([{"type": "Placed"}]));
    }

    #[test]
    fn what_runs_is_late_by_when_it_may_end() {
        let mut fixture = fixture();
        fixture.place(0, FIRST, State::Running);
        let of = |now| {
            let job = fixture.model.job(JOB).expect("it is there");
            Outlook::of(&fixture.model, &Explained::default(), job, now).expect("it has one")
        };
        assert_eq!(of(minutes(10)).late(), None);
        let late = of(minutes(130)).late().expect("it still runs");
        assert!(late.is_certain);
        assert_eq!(
            late.message,
            "runs, and finishBy (1970-01-01T02:16:40Z) was 10m ago"
        );
    }
}
