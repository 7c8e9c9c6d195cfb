//! `wait`: until a job is done, or anything else holds, by a watch that survives hub restarts.
//!
//! Owns what counts as reached and which exit code that is. Ctrl-C detaches; the work goes on.

use std::fmt::Write as _;
use std::str::FromStr;

use meridian_api::errors::ErrorCode;
use meridian_api::kinds::federated_job::status::Phase;
use meridian_api::units::BootMillis;
use meridian_client::{Change, ListOptions, Resource, WatchTarget};
use serde_json::Value;

use crate::args::WaitArgs;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::targets;
use crate::text::{self, or_dash, scalar};

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// A job ended, well or not.
    Finished,
    /// The object is gone.
    Deleted,
    /// A job is in this phase, or past it.
    Phase(Phase),
    /// A condition has this status.
    Condition {
        /// Its type.
        kind: String,
        /// `True`, `False` or `Unknown`.
        status: String,
    },
}

/// A text is not a goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no goal: write finished, delete, phase=PHASE or condition=TYPE[=STATUS]")]
pub(crate) struct NotAGoal(String);

const PHASES: [Phase; 7] = [
    Phase::Pending,
    Phase::Scheduled,
    Phase::Starting,
    Phase::Running,
    Phase::Stopping,
    Phase::Succeeded,
    Phase::Failed,
];

impl FromStr for Goal {
    type Err = NotAGoal;

    fn from_str(text: &str) -> Result<Self, NotAGoal> {
        let bad = || NotAGoal(text.to_owned());
        match text.split_once('=') {
            None if text == "finished" => Ok(Self::Finished),
            None if text == "delete" || text == "deleted" => Ok(Self::Deleted),
            Some(("phase", word)) => {
                let found = PHASES
                    .into_iter()
                    .find(|phase| phase.as_str().eq_ignore_ascii_case(word));
                found.map(Self::Phase).ok_or_else(bad)
            }
            Some(("condition", rest)) => {
                let (kind, status) = rest.split_once('=').unwrap_or((rest, "True"));
                let statuses = ["True", "False", "Unknown"];
                let status = statuses
                    .iter()
                    .find(|word| word.eq_ignore_ascii_case(status));
                match status {
                    Some(status) if !kind.is_empty() => Ok(Self::Condition {
                        kind: kind.to_owned(),
                        status: (*status).to_owned(),
                    }),
                    _ => Err(bad()),
                }
            }
            _ => Err(bad()),
        }
    }
}

/// The object that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Waited {
    /// `job nlp/llm-70b`.
    fn label(&self) -> String {
        match (self.resource == targets::jobs(), self.resource.namespaced) {
            (true, _) => format!("job {}/{}", self.namespace, self.name),
            (false, true) => format!("{} {}/{}", self.resource.kind, self.namespace, self.name),
            (false, false) => format!("{} {}", self.resource.kind, self.name),
        }
    }

    /// The words of a command about it: `job/llm-70b -n nlp`.
    fn words(&self) -> String {
        let kind = if self.resource == targets::jobs() {
            "job".to_owned()
        } else {
            self.resource.kind.to_lowercase()
        };
        let namespace = if self.resource.namespaced {
            format!(" -n {}", self.namespace)
        } else {
            String::new()
        };
        format!("{kind}/{}{namespace}", self.name)
    }
}

pub(crate) async fn run(context: &mut Context, args: WaitArgs) -> Result<Exit, Failure> {
    let mut waited = Vec::new();
    for word in &args.targets {
        let target = targets::one_or(word, targets::jobs())?;
        let needs_job = matches!(args.goal, Goal::Finished | Goal::Phase(_));
        if needs_job && target.resource != targets::jobs() {
            return Err(Failure::usage(
                format!("{word}: only jobs finish and have phases"),
                "say what to wait for: --for condition=TYPE or --for delete",
            ));
        }
        waited.push(Waited {
            resource: target.resource,
            namespace: context.namespace.clone(),
            name: target.name,
        });
    }
    let deadline = args.timeout.map(|span| context.clock.boot().after(span.0));
    let mut first = Exit::Done;
    for target in &waited {
        let exit = until(context, target, &args.goal, deadline).await?;
        if first == Exit::Done {
            first = exit;
        }
    }
    Ok(first)
}

/// Waits until the goal is reached or cannot be any more.
pub(crate) async fn until(
    context: &mut Context,
    waited: &Waited,
    goal: &Goal,
    deadline: Option<BootMillis>,
) -> Result<Exit, Failure> {
    let begun = context.clock.boot();
    let clock = context.clock.clone();
    let expired = async {
        match deadline {
            Some(deadline) => clock.sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let mut last = None;
    // In this order, so that Ctrl-C is listened for before anything is said.
    let exit = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            detach(waited);
            return Ok(Exit::Interrupted);
        }
        () = expired => {
            let now = context.clock.boot();
            return Err(too_late(waited, last.as_ref(), now, begun));
        }
        exit = follow(context, waited, goal, &mut last) => exit?,
    };
    let standing = last.map_or_else(|| "deleted".to_owned(), |object| standing(&object));
    context
        .out
        .line(&format!("{}: {standing}", waited.label()))?;
    Ok(exit)
}

/// Waits until a job has ended, and says how beside the data: what precedes it is data already.
pub(crate) async fn quietly(context: &mut Context, waited: &Waited) -> Result<Exit, Failure> {
    let mut last = None;
    let exit = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            detach(waited);
            return Ok(Exit::Interrupted);
        }
        exit = follow(context, waited, &Goal::Finished, &mut last) => exit?,
    };
    let standing = last.map_or_else(|| "deleted".to_owned(), |object| standing(&object));
    note(&format!("{}: {standing}", waited.label()));
    Ok(exit)
}

/// Follows one object until the goal is judged; `last` is how it looked last, `None` once it is
/// gone.
async fn follow(
    context: &Context,
    waited: &Waited,
    goal: &Goal,
    last: &mut Option<Value>,
) -> Result<Exit, Failure> {
    let target = WatchTarget {
        resource: waited.resource,
        namespace: Some(waited.namespace.clone()),
        options: ListOptions::named(&waited.name),
    };
    let about = |source| Failure::About {
        what: waited.label(),
        source,
    };
    let mut progress = context.progress();
    let mut watcher = context.client.watch(target).await.map_err(about)?;
    loop {
        let verdict = match watcher.next().await.map_err(about)? {
            Change::Set(object) => {
                progress.say(&format!("{}: {}", waited.label(), standing(&object)));
                judge(goal, Some(last.insert(object)))
            }
            Change::Gone(_) => {
                *last = None;
                judge(goal, None)
            }
            // Only the first list can find nothing: a later one tells it as gone.
            Change::Synced if last.is_none() => match goal {
                Goal::Deleted => judge(goal, None),
                Goal::Finished | Goal::Phase(_) | Goal::Condition { .. } => {
                    return Err(missing(waited));
                }
            },
            Change::Synced => None,
        };
        if let Some(exit) = verdict {
            return Ok(exit);
        }
    }
}

/// The exit code when waiting is over; `None` while it goes on. `None` as object = it is gone.
fn judge(goal: &Goal, object: Option<&Value>) -> Option<Exit> {
    let Some(object) = object else {
        return Some(match goal {
            Goal::Deleted => Exit::Done,
            Goal::Finished | Goal::Phase(_) | Goal::Condition { .. } => Exit::WorkCancelled,
        });
    };
    match goal {
        Goal::Deleted => None,
        Goal::Condition { kind, status } => {
            let conditions = object["status"]["conditions"].as_array()?;
            let found = conditions.iter().find(|found| found["type"] == **kind)?;
            (found["status"] == **status).then_some(Exit::Done)
        }
        Goal::Finished => match phase(object)? {
            Phase::Succeeded => Some(Exit::Done),
            Phase::Failed => Some(ended(object)),
            Phase::Pending
            | Phase::Scheduled
            | Phase::Starting
            | Phase::Running
            | Phase::Stopping => None,
        },
        Goal::Phase(wanted) => {
            let now = phase(object)?;
            // What ended well has started and run, even when nobody was watching.
            let passed = match wanted {
                Phase::Starting => matches!(now, Phase::Running | Phase::Succeeded),
                Phase::Running => now == Phase::Succeeded,
                Phase::Pending
                | Phase::Scheduled
                | Phase::Stopping
                | Phase::Succeeded
                | Phase::Failed => false,
            };
            match now {
                now if passed || now == *wanted => Some(Exit::Done),
                Phase::Failed => Some(ended(object)),
                // Any other goal can no longer be reached.
                Phase::Succeeded => Some(Exit::Error),
                Phase::Pending
                | Phase::Scheduled
                | Phase::Starting
                | Phase::Running
                | Phase::Stopping => None,
            }
        }
    }
}

/// The code of a job that ended otherwise than well, from its reason.
fn ended(object: &Value) -> Exit {
    match object["status"]["reason"].as_str().unwrap_or_default() {
        "Cancelled" | "Deleted" => Exit::WorkCancelled,
        "Preempted" => Exit::WorkPreempted,
        _ => Exit::WorkFailed,
    }
}

fn phase(object: &Value) -> Option<Phase> {
    match object["status"]["phase"].as_str() {
        None => Some(Phase::Pending),
        Some(word) => PHASES.into_iter().find(|phase| phase.as_str() == word),
    }
}

/// How an object stands, on one line: a job by its phase, anything else by its conditions.
fn standing(object: &Value) -> String {
    let status = &object["status"];
    if object["kind"] != targets::jobs().kind {
        let conditions = status["conditions"].as_array().map(Vec::as_slice);
        let words: Vec<String> = conditions
            .unwrap_or_default()
            .iter()
            .map(|found| format!("{}={}", scalar(&found["type"]), scalar(&found["status"])))
            .collect();
        return or_dash(&words.join(", "));
    }
    let word = |name: &str| status[name].as_str().unwrap_or_default();
    let mut line = phase(object).map_or("unknown", Phase::as_str).to_owned();
    let counts = &status["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    let gangs: u64 = [
        "waiting",
        "starting",
        "running",
        "stopping",
        "succeeded",
        "failed",
    ]
    .iter()
    .map(|name| count(name))
    .sum();
    if gangs > 1 {
        let (running, done) = (count("running"), count("succeeded"));
        let _ = write!(line, ", gangs {running} running, {done} done of {gangs}");
    }
    if !word("cluster").is_empty() {
        let _ = write!(line, ", on {}", word("cluster"));
    }
    if let Some(position) = status["position"].as_u64() {
        let _ = write!(line, ", {position} in the queue");
    }
    match word("reason") {
        "" => {}
        reason => {
            let _ = write!(line, ", {reason}");
        }
    }
    match word("message") {
        "" => {}
        message => {
            let separator = if word("reason").is_empty() { "," } else { ":" };
            let _ = write!(line, "{separator} {message}");
        }
    }
    line
}

fn missing(waited: &Waited) -> Failure {
    Failure::Ended {
        code: Some(ErrorCode::NotFound),
        message: format!("there is no {}", waited.label()),
        fix: "look with `meridian get`, and check -n".into(),
        exit: Exit::NotFound,
    }
}

fn too_late(waited: &Waited, last: Option<&Value>, now: BootMillis, begun: BootMillis) -> Failure {
    let standing = last.map_or_else(|| "never seen".to_owned(), standing);
    let verb = if waited.resource == targets::jobs() {
        "why"
    } else {
        "describe"
    };
    Failure::Ended {
        code: Some(ErrorCode::TimedOut),
        message: format!(
            "waited {} for {}: {standing}",
            text::span(now.since(begun)),
            waited.label()
        ),
        fix: format!("see `meridian {verb} {}`", waited.words()),
        exit: Exit::TimedOut,
    }
}

/// Ctrl-C: says how to come back and how to cancel.
fn detach(waited: &Waited) {
    let (label, words) = (waited.label(), waited.words());
    note(&format!(
        "detached from {label}; it goes on\n  \
         reattach: meridian wait {words}\n  \
         cancel:   meridian delete {words}"
    ));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(phase: &str, reason: &str) -> Value {
        json!({"status": {"phase": phase, "reason": reason}})
    }

    #[test]
    fn goals_are_read_as_kubectl_writes_them() {
        let condition = |kind: &str, status: &str| Goal::Condition {
            kind: kind.into(),
            status: status.into(),
        };
        let cases = [
            ("finished", Goal::Finished),
            ("delete", Goal::Deleted),
            ("phase=running", Goal::Phase(Phase::Running)),
            ("condition=Placed", condition("Placed", "True")),
            ("condition=Placed=false", condition("Placed", "False")),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Goal>(), Ok(want), "{text}");
        }
        for wrong in [
            "",
            "phase=",
            "phase=Done",
            "condition=",
            "condition=A=maybe",
            "x=y",
        ] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_finished_job_ends_the_wait_with_its_own_code() {
        let cases = [
            ("Pending", "WaitingForCapacity", None),
            ("Running", "", None),
            ("Stopping", "", None),
            ("Succeeded", "", Some(Exit::Done)),
            ("Failed", "PodFailed", Some(Exit::WorkFailed)),
            ("Failed", "Cancelled", Some(Exit::WorkCancelled)),
            ("Failed", "Preempted", Some(Exit::WorkPreempted)),
        ];
        for (phase, reason, want) in cases {
            assert_eq!(
                judge(&Goal::Finished, Some(&job(phase, reason))),
                want,
                "{phase}"
            );
        }
        assert_eq!(judge(&Goal::Finished, None), Some(Exit::WorkCancelled));
        assert_eq!(
            judge(&Goal::Finished, Some(&json!({}))),
            None,
            "no status yet"
        );
    }

    #[test]
    fn every_pair_of_phase_and_goal_is_judged() {
        use Phase::{Failed, Pending, Running, Scheduled, Starting, Stopping, Succeeded};
        for wanted in PHASES {
            for now in PHASES {
                let got = judge(&Goal::Phase(wanted), Some(&job(now.as_str(), "")));
                let want = match (wanted, now) {
                    (wanted, now) if wanted == now => Some(Exit::Done),
                    (Starting, Running | Succeeded) | (Running, Succeeded) => Some(Exit::Done),
                    (_, Failed) => Some(Exit::WorkFailed),
                    (_, Succeeded) => Some(Exit::Error),
                    (_, Pending | Scheduled | Starting | Running | Stopping) => None,
                };
                assert_eq!(got, want, "{wanted} {now}");
            }
        }
    }

    #[test]
    fn conditions_and_deletion() {
        let goal: Goal = "condition=Placed".parse().expect("a goal");
        let object = |status: &str| {
            let condition = json!({"type": "Placed", "status": status});
            json!({"status": {"conditions": [condition]}})
        };
        assert_eq!(judge(&goal, Some(&object("True"))), Some(Exit::Done));
        assert_eq!(judge(&goal, Some(&object("False"))), None);
        assert_eq!(judge(&goal, Some(&json!({}))), None);
        assert_eq!(judge(&goal, None), Some(Exit::WorkCancelled));
        assert_eq!(judge(&Goal::Deleted, Some(&json!({}))), None);
        assert_eq!(judge(&Goal::Deleted, None), Some(Exit::Done));
    }

    #[test]
    fn how_a_job_stands_fits_on_a_line() {
        let object = json!({"kind": "FederatedJob", "status": {
            "phase": "Pending", "reason": "WaitingForCapacity", "position": 3,
            "message": "256 needed, 34 free", "counts": {"waiting": 2, "running": 1}
        }});
        assert_eq!(
            standing(&object),
            "Pending, gangs 1 running, 0 done of 3, 3 in the queue, WaitingForCapacity: \
             256 needed, 34 free"
        );
        let cluster = json!({"kind": "MemberCluster", "status": {"conditions": [
            {"type": "Connected", "status": "False"}, {"type": "Ready", "status": "True"}
        ]}});
        assert_eq!(standing(&cluster), "Connected=False, Ready=True");
    }
}
