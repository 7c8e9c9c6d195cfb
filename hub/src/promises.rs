//! Promises: what a plan said, as a token that a submit can hold the hub to.
//!
//! Owns the token's form and the comparison with what would happen now. Nothing is kept for it: a
//! token is made of the plan alone, and says nothing that its reader was not told.

use std::fmt;
use std::str::FromStr;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_proto::v1;
use meridian_proto::v1::Verdict;

/// First part of every token of this form.
const FORM: &str = "p1";

/// What a plan promised of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Hash of the job.
    job: String,
    /// It starts now; else it queues.
    starts_now: bool,
    /// By when it starts, in Unix milliseconds, where that could be said.
    latest: Option<i64>,
    /// What it costs at most, in millionths, where that could be said.
    cost: Option<i64>,
}

impl Promise {
    /// What `plan` promises of the job with this hash; nothing when it can never be placed.
    pub(crate) fn of(job: String, plan: &v1::PlanResponse) -> Option<Self> {
        let starts_now = match plan.verdict() {
            Verdict::StartsNow => true,
            Verdict::WillQueue => false,
            Verdict::Never | Verdict::Unspecified => return None,
        };
        let latest = plan.start.as_ref().map(|start| start.latest_ms);
        Some(Self {
            job,
            starts_now,
            latest: latest.filter(|latest| *latest > 0),
            cost: plan.cost.as_ref().map(|cost| cost.micros),
        })
    }

    /// An error unless it is about the job with this hash.
    pub(crate) fn is_of(&self, job: &str) -> Result<(), ApiError> {
        if self.job == job {
            return Ok(());
        }
        let message = "the plan token is of another job: a plan holds for what was planned";
        Err(ApiError::new(ErrorCode::InvalidObject, message).help(AGAIN))
    }

    /// An error that says what got worse, unless `now` is as good as what was promised.
    pub(crate) fn holds(&self, now: &v1::PlanResponse) -> Result<(), ApiError> {
        let Some(worse) = self.broken(now) else {
            return Ok(());
        };
        let message = format!("the fleet has moved since the plan: {worse}");
        Err(ApiError::new(ErrorCode::Conflict, message).help(AGAIN))
    }

    fn broken(&self, now: &v1::PlanResponse) -> Option<String> {
        let first = now.reasons.first();
        let because = first.map_or_else(String::new, |reason| format!(": {}", reason.message));
        let starts_now = match now.verdict() {
            Verdict::StartsNow => true,
            Verdict::WillQueue => false,
            Verdict::Never | Verdict::Unspecified => {
                return Some(format!("it can never be placed{because}"));
            }
        };
        if self.starts_now && !starts_now {
            return Some(format!("it was to start now and would queue{because}"));
        }
        if let (Some(promised), false) = (self.latest, starts_now) {
            let latest = now.start.as_ref().map_or(0, |start| start.latest_ms);
            if latest == 0 {
                return Some("when it starts cannot be said any more".to_owned());
            }
            if latest > promised {
                let seconds = (latest - promised) / 1000;
                return Some(format!("it would start up to {seconds} s later"));
            }
        }
        let cost = now.cost.as_ref().map(|cost| cost.micros);
        let dearer = self.cost.zip(cost).filter(|(was, is)| is > was);
        dearer.map(|(was, is)| {
            let money = |micros| meridian_api::quantity::Money(micros_of(micros)).to_string();
            format!("it costs at most {} and not {}", money(is), money(was))
        })
    }
}

const fn micros_of(micros: i64) -> meridian_api::units::MicroMoney {
    meridian_api::units::MicroMoney(micros)
}

const AGAIN: &str = "look at a new plan: meridian plan -f FILE";

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.starts_now { "now" } else { "queue" };
        let number = |value: Option<i64>| value.map_or("-".to_owned(), |value| value.to_string());
        let (latest, cost) = (number(self.latest), number(self.cost));
        write!(f, "{FORM}.{}.{verdict}.{latest}.{cost}", self.job)
    }
}

impl FromStr for Promise {
    type Err = ApiError;

    fn from_str(token: &str) -> Result<Self, ApiError> {
        let wrong = || {
            let message = "the plan token is none that this hub makes";
            ApiError::new(ErrorCode::InvalidObject, message).help(AGAIN)
        };
        let number = |part: &str| match part {
            "-" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| wrong()),
        };
        match token.split('.').collect::<Vec<_>>()[..] {
            [FORM, job, verdict @ ("now" | "queue"), latest, cost] => Ok(Self {
                job: job.to_owned(),
                starts_now: verdict == "now",
                latest: number(latest)?,
                cost: number(cost)?,
            }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(verdict: Verdict, latest_ms: i64, micros: Option<i64>) -> v1::PlanResponse {
        v1::PlanResponse {
            verdict: verdict.into(),
            start: (latest_ms > 0).then_some(v1::Start {
                earliest_ms: 1,
                latest_ms,
            }),
            cost: micros.map(|micros| v1::Cost {
                micros,
                currency: "EUR".into(),
            }),
            ..v1::PlanResponse::default()
        }
    }

    fn promise(plan: &v1::PlanResponse) -> Promise {
        let promise = Promise::of("abc".into(), plan).expect("it can be placed");
        let read: Promise = promise.to_string().parse().expect("reads back");
        assert_eq!(read, promise);
        read
    }

    #[test]
    fn a_promise_holds_until_something_gets_worse() {
        use Verdict::{Never, StartsNow, WillQueue};
        let table = [
            (plan(StartsNow, 0, None), plan(StartsNow, 0, None), ""),
            (
                plan(StartsNow, 0, None),
                plan(WillQueue, 9, None),
                "would queue",
            ),
            (plan(StartsNow, 0, Some(5)), plan(StartsNow, 0, Some(5)), ""),
            (
                plan(StartsNow, 0, Some(5)),
                plan(StartsNow, 0, Some(6)),
                "costs",
            ),
            (plan(WillQueue, 5_000, None), plan(StartsNow, 0, None), ""),
            (
                plan(WillQueue, 5_000, None),
                plan(WillQueue, 4_000, None),
                "",
            ),
            (
                plan(WillQueue, 5_000, None),
                plan(WillQueue, 9_000, None),
                "4 s later",
            ),
            (
                plan(WillQueue, 5_000, None),
                plan(WillQueue, 0, None),
                "cannot be said",
            ),
            (plan(WillQueue, 0, None), plan(WillQueue, 0, None), ""),
            (plan(WillQueue, 0, None), plan(Never, 0, None), "never"),
        ];
        for (then, now, words) in table {
            match promise(&then).holds(&now) {
                Ok(()) => assert_eq!(words, "", "{then:?} then {now:?}"),
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::Conflict);
                    assert!(
                        !words.is_empty() && error.message.contains(words),
                        "{error:?}"
                    );
                }
            }
        }
        assert_eq!(Promise::of("abc".into(), &plan(Never, 0, None)), None);
    }

    #[test]
    fn a_token_of_another_job_or_form_is_refused() {
        let promise = promise(&plan(Verdict::StartsNow, 0, None));
        assert!(promise.is_of("abc").is_ok() && promise.is_of("abd").is_err());
        for token in [
            "",
            "p1",
            "p2.abc.now.-.-",
            "p1.abc.soon.-.-",
            "p1.abc.now.x.-",
        ] {
            assert!(token.parse::<Promise>().is_err(), "{token}");
        }
    }
}
