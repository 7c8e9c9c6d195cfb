//! One pod of a gang, from what the API shows to what the agent believes.
//!
//! Owns the table from pod status and node to [`PodPhase`]. A pod has ended only when its kubelet
//! said so or its machine is given up; silence is never an end. A pod that somebody asked to end
//! has not done its work, whatever its exit code. Never asks the cluster, and never reads a clock.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meridian_api::units::UnixMillis;

use super::names;
use crate::backend::{NODE_OFF, PodPhase};

/// Longest text that is passed on from the cluster; a kubelet's messages can be pages.
const MAX_WORDS: usize = 512;
/// Waiting reasons of a pod that is getting on: nothing to tell.
const ORDINARY: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Words of the control plane when it gives up a pod because its machine is gone.
const MACHINE_GONE: [&str; 2] = ["DeletionByPodGC", "NodeLost"];
/// The control plane's word when a pod is taken away by the Eviction API, as by `kubectl drain`.
const EVICTION: &str = "EvictionByEvictionAPI";
/// The kubelet's word when its machine shuts down, in the reasons of pods.
const SHUTDOWN: [&str; 3] = ["NodeShutdown", "Terminated", "Shutdown"];

/// What is known of the machine a pod is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// It is heard, or not yet deemed lost.
    Heard,
    /// Not heard for so long that its pods are deemed lost.
    Lost,
    /// Its operator or its cloud took it away: that its pods ended will be proved in a while.
    Off,
}

/// What a pod shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// Where it is in its life.
    pub(super) phase: PodPhase,
    /// When user code started.
    pub(super) started: Option<UnixMillis>,
    /// When it ended.
    pub(super) ended: Option<UnixMillis>,
    /// What it waits for, when that is out of the ordinary.
    pub(super) waits_for: String,
}

/// What `pod` shows, given its machine.
pub(super) fn shown(pod: &Pod, machine: Machine) -> Shown {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let started = first_start(status);
    let phase = match status.phase.as_deref() {
        Some("Succeeded" | "Failed") if was_asked(pod, status) => taken(status),
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => failed(status),
        Some("Running") => running(status),
        // `Pending`, none yet, and `Unknown`, which no API server has written since 1.5.
        Some(_) | None if bound.is_none() || status.start_time.is_none() => PodPhase::Pending,
        Some(_) | None => PodPhase::Bound,
    };
    let phase = match machine {
        Machine::Lost if bound.is_some() && !phase.ended() => broken("NodeLost"),
        Machine::Off if bound.is_some() && !phase.ended() => broken(NODE_OFF),
        Machine::Heard | Machine::Lost | Machine::Off => phase,
    };
    let ended = phase.ended().then(|| last_end(pod, status)).flatten();
    let waits_for = match phase {
        PodPhase::Pending | PodPhase::Bound | PodPhase::Running => waiting(status),
        PodPhase::Broken { .. }
        | PodPhase::Rejected { .. }
        | PodPhase::Succeeded
        | PodPhase::Failed { .. } => String::new(),
    };
    Shown {
        phase,
        started,
        ended,
        waits_for,
    }
}

/// The newest checkpoint that the pod tells of.
pub(super) fn checkpoint(pod: &Pod) -> Option<UnixMillis> {
    let annotation = pod.metadata.annotations.as_ref();
    let annotation = annotation.and_then(|all| time(all.get(names::CHECKPOINT)?));
    let statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let last_words = statuses.filter_map(|status| {
        let message = terminated(status)?.message.as_ref()?;
        let mut lines = message.lines().filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            (name.trim() == names::CHECKPOINT).then_some(value)
        });
        time(lines.next_back()?)
    });
    annotation.into_iter().chain(last_words).max()
}

fn time(text: &str) -> Option<UnixMillis> {
    let time: jiff::Timestamp = text.trim().parse().ok()?;
    Some(UnixMillis(time.as_millisecond()))
}

fn broken(reason: &str) -> PodPhase {
    PodPhase::Broken {
        reason: reason.to_owned(),
    }
}

fn running(status: &PodStatus) -> PodPhase {
    let containers = status.container_statuses.iter().flatten();
    let unhealthy = containers
        .flat_map(|container| container.allocated_resources_status.iter().flatten())
        .flat_map(|resource| resource.resources.iter().flatten())
        .any(|device| device.health.as_deref() == Some("Unhealthy"));
    if unhealthy {
        broken("DeviceFailed")
    } else {
        PodPhase::Running
    }
}

/// True when user code ran and ended after somebody had asked the pod to end. Times of the API
/// are whole seconds: what ended within that second counts as asked, and runs once more.
fn was_asked(pod: &Pod, status: &PodStatus) -> bool {
    let Some(by) = pod.metadata.deletion_timestamp.as_ref().map(millis) else {
        return false;
    };
    // The time that is written is that by which it shall be gone.
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let asked = by.0.saturating_sub(grace.saturating_mul(1000));
    let ends = all_containers(status).filter_map(terminated);
    let ends = ends.filter_map(|end| end.finished_at.as_ref().map(millis));
    ends.max().is_some_and(|end| end.0 >= asked)
}

/// Somebody else took it away.
fn taken(status: &PodStatus) -> PodPhase {
    let mut conditions = status.conditions.iter().flatten();
    let evicted = conditions.any(|condition| {
        condition.type_ == "DisruptionTarget" && condition.reason.as_deref() == Some(EVICTION)
    });
    let codes = all_containers(status).filter_map(terminated);
    let code = codes.map(|end| end.exit_code).find(|code| *code != 0);
    PodPhase::Failed {
        exit_code: code.unwrap_or(0),
        reason: if evicted { "Evicted" } else { "Removed" }.to_owned(),
    }
}

fn failed(status: &PodStatus) -> PodPhase {
    let reason = status.reason.as_deref().unwrap_or_default();
    let failed = |exit_code, reason: &str| PodPhase::Failed {
        exit_code,
        reason: reason.to_owned(),
    };
    let conditions = status.conditions.iter().flatten();
    let given_up = conditions
        .filter(|condition| condition.type_ == "DisruptionTarget")
        .filter_map(|condition| condition.reason.as_deref())
        .chain([reason])
        .any(|reason| MACHINE_GONE.contains(&reason));
    if given_up {
        return failed(0, "NodeLost");
    }
    if SHUTDOWN.contains(&reason) {
        return failed(0, "NodeShutdown");
    }
    let containers = all_containers(status);
    let mut ends: Vec<_> = containers.filter_map(terminated).collect();
    let ran = !ends.is_empty() || all_containers(status).any(|c| c.restart_count > 0);
    if !ran && !reason.is_empty() {
        // No container was ever made: the kubelet turned the pod away.
        return PodPhase::Rejected {
            reason: reason.to_owned(),
        };
    }
    // The first that failed is the cause; what fell after it is the consequence.
    ends.retain(|end| end.exit_code != 0);
    ends.sort_by_key(|end| end.finished_at.as_ref().map(millis));
    let end = ends.first();
    let exit_code = end.map_or(0, |end| end.exit_code);
    let word = end.and_then(|end| end.reason.as_deref());
    let word = Some(reason).filter(|reason| !reason.is_empty()).or(word);
    failed(exit_code, word.unwrap_or("Error"))
}

/// What keeps the first container that waits from getting on.
fn waiting(status: &PodStatus) -> String {
    let mut waits = all_containers(status).filter_map(|container| {
        let state = container.state.as_ref()?.waiting.as_ref()?;
        let reason = state.reason.as_deref()?;
        if ORDINARY.contains(&reason) {
            return None;
        }
        let message = state.message.as_deref().unwrap_or_default();
        Some(format!("container {}: {reason} {message}", container.name))
    });
    let words = waits.next().unwrap_or_default();
    words.trim_end().chars().take(MAX_WORDS).collect()
}

fn all_containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

fn terminated(
    status: &ContainerStatus,
) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// When the first container of user code started, the init containers aside.
fn first_start(status: &PodStatus) -> Option<UnixMillis> {
    let begun = |state: &ContainerState| {
        let running = state.running.as_ref().and_then(|s| s.started_at.as_ref());
        let ended = state
            .terminated
            .as_ref()
            .and_then(|s| s.started_at.as_ref());
        running.or(ended).map(millis)
    };
    let containers = status.container_statuses.iter().flatten();
    containers
        .flat_map(|container| [&container.last_state, &container.state])
        .filter_map(|state| begun(state.as_ref()?))
        .filter(|at| at.0 > 0)
        .min()
}

/// When it ended: the last container's end, or the newest time in the status.
fn last_end(pod: &Pod, status: &PodStatus) -> Option<UnixMillis> {
    let ends = all_containers(status).filter_map(terminated);
    let ends = ends.filter_map(|end| end.finished_at.as_ref().map(millis));
    let conditions = status.conditions.iter().flatten();
    let conditions = conditions.filter_map(|c| c.last_transition_time.as_ref().map(millis));
    let start = status.start_time.as_ref().map(millis);
    let made = pod.metadata.creation_timestamp.as_ref().map(millis);
    ends.max().or_else(|| conditions.max().max(start)).or(made)
}

fn millis(time: &Time) -> UnixMillis {
    UnixMillis(time.0.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const T0: &str = "2026-11-29T10:00:00Z";
    const T1: &str = "2026-11-29T10:05:00Z";

    fn pod(status: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "creationTimestamp": T0},
            "spec": {"nodeName": "n", "containers": []},
        });
        pod["status"] = status;
        serde_json::from_value(pod).expect("a pod")
    }

    fn ended(name: &str, code: i32, reason: &str, at: &str) -> Value {
        let state = json!({"terminated": {
            "exitCode": code, "reason": reason, "startedAt": T0, "finishedAt": at,
        }});
        container(name, state)
    }

    fn container(name: &str, state: Value) -> Value {
        let mut container = json!({"name": name, "image": "i", "imageID": "", "ready": false,
                                   "restartCount": 0});
        container["state"] = state;
        container
    }

    fn phase(status: Value) -> PodPhase {
        shown(&pod(status), Machine::Heard).phase
    }

    fn failed(exit_code: i32, reason: &str) -> PodPhase {
        PodPhase::Failed {
            exit_code,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_pod_is_admitted_when_its_kubelet_has_taken_note_of_it() {
        assert_eq!(phase(json!({"phase": "Pending"})), PodPhase::Pending);
        assert_eq!(phase(json!({})), PodPhase::Pending);
        let taken = json!({"phase": "Pending", "startTime": T0});
        assert_eq!(phase(taken.clone()), PodPhase::Bound);
        let mut unbound = pod(taken);
        unbound.spec.as_mut().expect("it has one").node_name = None;
        assert_eq!(shown(&unbound, Machine::Heard).phase, PodPhase::Pending);
        assert_eq!(shown(&unbound, Machine::Lost).phase, PodPhase::Pending);
    }

    #[test]
    fn what_a_kubelet_turns_away_is_rejected_by_its_own_word() {
        let words = [
            "UnexpectedAdmissionError",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfnvidia.com/gpu",
            "NodeAffinity",
            "TopologyAffinityError",
            "Evicted",
        ];
        for reason in words {
            let away = PodPhase::Rejected {
                reason: reason.to_owned(),
            };
            let status = json!({"phase": "Failed", "reason": reason, "startTime": T0});
            let seen = shown(&pod(status), Machine::Heard);
            assert_eq!((seen.phase, seen.started), (away, None));
            assert!(seen.ended.is_some());
        }
    }

    #[test]
    fn an_end_says_the_first_cause() {
        let both = [ended("b", 143, "Error", T1), ended("a", 3, "OOMKilled", T0)];
        let status = json!({"phase": "Failed", "containerStatuses": both});
        let seen = shown(&pod(status), Machine::Heard);
        assert_eq!(seen.phase, failed(3, "OOMKilled"));
        let five_minutes = 300_000;
        let (started, end) = (seen.started.expect("it ran"), seen.ended.expect("it ended"));
        assert_eq!(end.0 - started.0, five_minutes);
        let with = |reason: &str| {
            json!({"phase": "Failed", "reason": reason,
                   "containerStatuses": [ended("a", 137, "Error", T1)]})
        };
        assert_eq!(phase(with("Evicted")), failed(137, "Evicted"));
        assert_eq!(
            phase(with("DeadlineExceeded")),
            failed(137, "DeadlineExceeded")
        );
        assert_eq!(phase(with("Terminated")), failed(0, "NodeShutdown"));
        assert_eq!(phase(with("NodeLost")), failed(0, "NodeLost"));
        let collected = json!({"phase": "Failed", "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]});
        assert_eq!(phase(collected), failed(0, "NodeLost"));
        let start = ended("a", 128, "StartError", T1);
        let status = json!({"phase": "Failed", "containerStatuses": [start]});
        assert_eq!(phase(status), failed(128, "StartError"));
    }

    #[test]
    fn what_ends_because_it_was_asked_has_not_done_its_work() {
        let with = |phase: &str, code, asked: &str| {
            let state = [ended("a", code, "", T1)];
            let mut pod = pod(json!({"phase": phase, "containerStatuses": state}));
            pod.metadata.deletion_timestamp = Some(Time(asked.parse().expect("a time")));
            pod.metadata.deletion_grace_period_seconds = Some(30);
            pod
        };
        let phase = |pod: &Pod| shown(pod, Machine::Heard).phase;
        // Asked 30 s before the time that is written: when it ended, and a second later.
        let at_its_end = with("Succeeded", 0, "2026-11-29T10:05:30Z");
        assert_eq!(phase(&at_its_end), failed(0, "Removed"));
        let after = with("Succeeded", 0, "2026-11-29T10:05:31Z");
        assert_eq!(phase(&after), PodPhase::Succeeded);
        let mut evicted = with("Failed", 143, "2026-11-29T10:05:20Z");
        let status = evicted.status.as_mut().expect("it has one");
        let condition = json!([{"type": "DisruptionTarget", "status": "True",
                                "reason": "EvictionByEvictionAPI"}]);
        status.conditions = serde_json::from_value(condition).expect("conditions");
        assert_eq!(phase(&evicted), failed(143, "Evicted"));
    }

    #[test]
    fn neither_silence_nor_an_operators_word_is_an_end() {
        for (machine, reason) in [(Machine::Lost, "NodeLost"), (Machine::Off, "NodeOff")] {
            for status in [
                json!({"phase": "Pending", "startTime": T0}),
                json!({"phase": "Running", "startTime": T0}),
            ] {
                let seen = shown(&pod(status), machine);
                assert_eq!(seen.phase, broken(reason));
                assert!(!seen.phase.ended() && seen.ended.is_none());
            }
            let over = json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0, "", T1)]});
            assert_eq!(shown(&pod(over), machine).phase, PodPhase::Succeeded);
        }
    }

    #[test]
    fn a_failed_device_is_told_while_the_pod_runs() {
        let with = |health: &str| {
            let devices = json!([{"name": "nvidia.com/gpu", "resources": [
                {"resourceID": "gpu-0", "health": "Healthy"},
                {"resourceID": "gpu-1", "health": health}]}]);
            let mut running = container("a", json!({"running": {"startedAt": T0}}));
            running["allocatedResourcesStatus"] = devices;
            json!({"phase": "Running", "containerStatuses": [running]})
        };
        assert_eq!(phase(with("Healthy")), PodPhase::Running);
        assert_eq!(phase(with("Unknown")), PodPhase::Running);
        assert_eq!(phase(with("Unhealthy")), broken("DeviceFailed"));
    }

    #[test]
    fn what_it_waits_for_is_told_when_it_is_out_of_the_ordinary() {
        let words = |reason: &str, message: &str| {
            let state = json!({"waiting": {"reason": reason, "message": message}});
            let status = json!({"phase": "Pending", "startTime": T0,
                                "containerStatuses": [container("main", state)]});
            shown(&pod(status), Machine::Heard).waits_for
        };
        assert_eq!(words("ContainerCreating", ""), "");
        assert_eq!(words("PodInitializing", ""), "");
        let told = "container main: ImagePullBackOff no such tag";
        assert_eq!(words("ImagePullBackOff", "no such tag"), told);
        for reason in [
            "ErrImagePull",
            "CrashLoopBackOff",
            "CreateContainerConfigError",
        ] {
            assert_eq!(words(reason, ""), format!("container main: {reason}"));
        }
        assert!(words("ErrImagePull", &"x".repeat(100_000)).len() <= MAX_WORDS);
    }

    #[test]
    fn a_checkpoint_is_read_from_the_annotation_or_the_last_words() {
        let mut answered = pod(json!({"phase": "Running"}));
        assert_eq!(checkpoint(&answered), None);
        let annotations = [(names::CHECKPOINT.to_owned(), T0.to_owned())];
        answered.metadata.annotations = Some(annotations.into());
        let first = checkpoint(&answered).expect("it answered");
        let mut end = ended("a", 0, "Completed", T1);
        end["state"]["terminated"]["message"] = json!(format!(
            "bye\nmeridian.dev/checkpoint: {T1}\nmeridian.dev/checkpoint: ?"
        ));
        let status = json!({"phase": "Succeeded", "containerStatuses": [end.clone()]});
        assert_eq!(
            checkpoint(&pod(status)),
            None,
            "the last line counts, and is no time"
        );
        end["state"]["terminated"]["message"] =
            json!(format!("bye\nmeridian.dev/checkpoint: {T1}\n"));
        let status = json!({"phase": "Succeeded", "containerStatuses": [end]});
        let last = checkpoint(&pod(status)).expect("it said so");
        assert_eq!(last.0 - first.0, 300_000);
    }
}
