//! A trace: jobs as they were submitted, and hosts as they went and came.
//!
//! Owns both and their forms as tables. Never knows what becomes of a job.

use std::str::FromStr;

use meridian_api::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity, Span, Speed, Time};
use meridian_api::units::{Millis, Resources, UnixMillis};

use crate::table::{self, Columns, Row, TableError};

/// Pods of one gang: more than any public trace or fleet has in one job.
const MAX_PODS: u32 = 100_000;

/// One job: one gang of equal pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Line of the table, from 1.
    pub line: u64,
    /// Its name.
    pub name: String,
    /// When it was submitted.
    pub submit: UnixMillis,
    /// Who pays.
    pub tenant: String,
    /// Its workload class.
    pub class: String,
    /// How many pods.
    pub pods: u32,
    /// What each pod asks of a host.
    pub per_pod: Resources,
    /// How long it runs on a card of speed 1.
    pub duration: Millis,
    /// Flavors it accepts, best first, with the speed there in thousandths; empty accepts all.
    pub flavors: Vec<(String, u32)>,
    /// Regions it may run in, in order of preference; empty allows all.
    pub regions: Vec<String>,
    /// Priority inside its tenant.
    pub priority: i32,
    /// When it should be done.
    pub finish_by: Option<UnixMillis>,
    /// Most it may run, by its own word.
    pub max_runtime: Option<Millis>,
    /// How often it saves its work; `None` = never, so all is lost when it is stopped.
    pub checkpoint: Option<Millis>,
    /// Level that must hold all pods.
    pub required: Option<String>,
    /// Level that should.
    pub preferred: Option<String>,
}

/// From an instant on, so many hosts of a pool are up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsUp {
    /// Since when.
    pub at: UnixMillis,
    /// Cluster of the pool.
    pub cluster: String,
    /// The pool.
    pub pool: String,
    /// Hosts that are up; the last of the pool's hosts go first and come back last.
    pub up: u32,
}

const JOB_COLUMNS: Columns = Columns {
    required: &["submit", "tenant", "class", "gpus", "duration"],
    optional: &[
        "pods",
        "flavor",
        "name",
        "cpu",
        "memory",
        "region",
        "priority",
        "finishBy",
        "maxRuntime",
        "checkpoint",
        "required",
        "preferred",
    ],
};

/// An instant: seconds from the beginning of the trace, or RFC 3339.
struct Instant(UnixMillis);

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(seconds) = text.parse::<i64>() {
            let instant = seconds
                .checked_mul(1000)
                .ok_or("is too late to be counted")?;
            return Ok(Self(UnixMillis(instant)));
        }
        let wrong = |_| "no instant: write seconds from the beginning, or 2026-11-26T22:04:00Z";
        Ok(Self(text.parse::<Time>().map_err(wrong)?.0))
    }
}

/// A length of time: whole seconds, or `1h30m`.
struct Length(Millis);

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(seconds) = text.parse::<u64>() {
            return Ok(Self(Millis::seconds(seconds)));
        }
        let wrong = |_| "no length of time: write whole seconds, or 1h30m";
        Ok(Self(text.parse::<Span>().map_err(wrong)?.0))
    }
}

/// Reads a table of jobs and sorts them by submission; jobs of one instant keep the table's order.
///
/// Columns: `submit` (seconds from the beginning, or RFC 3339), `tenant`, `class`, `gpus` (of each
/// pod), `duration` (seconds, or `1h30m`), and, when given, `pods` (else 1), `flavor` (flavors
/// accepted, best first, as `h100=1|a100=0.45`; else all), `name` (else `job-LINE`), `cpu` and
/// `memory` of each pod (else none), `region` (joined by `|`; else all), `priority`, `finishBy`,
/// `maxRuntime`, `checkpoint` (how often it saves its work; else never), and the levels `required`
/// and `preferred` for all pods.
pub fn read_jobs(file: &str, text: &[u8]) -> Result<Vec<Job>, TableError> {
    let mut jobs = Vec::new();
    table::read(file, text, JOB_COLUMNS, |row| {
        jobs.push(job(row)?);
        Ok(())
    })?;
    // Stable: the table's order ends ties.
    jobs.sort_by_key(|job: &Job| job.submit);
    Ok(jobs)
}

fn job(row: &Row<'_>) -> Result<Job, TableError> {
    let pods: u32 = row.get("pods")?.unwrap_or(1);
    if !(1..=MAX_PODS).contains(&pods) {
        let message = format!("is {pods}, must be from 1 to {MAX_PODS}");
        return Err(row.wrong("pods", message));
    }
    let gpus: GpuQuantity = row.need("gpus")?;
    let cpu: Option<CpuQuantity> = row.get("cpu")?;
    let memory: Option<MemoryQuantity> = row.get("memory")?;
    let duration: Length = row.need("duration")?;
    let submit: Instant = row.need("submit")?;
    let max_runtime: Option<Length> = row.get("maxRuntime")?;
    let finish_by: Option<Instant> = row.get("finishBy")?;
    let checkpoint: Option<Length> = row.get("checkpoint")?;
    let checkpoint = checkpoint.map(|length| length.0);
    if checkpoint == Some(Millis::ZERO) {
        return Err(row.wrong(
            "checkpoint",
            "is 0: leave it out where nothing is saved".into(),
        ));
    }
    let flavors = row.list("flavor").map(|part| {
        let (name, speed) = part.split_once('=').unwrap_or((part, "1"));
        let speed: Speed = speed
            .trim()
            .parse()
            .map_err(|error| row.wrong("flavor", format!("{part:?}: {error}")))?;
        if speed.0 == 0 {
            return Err(row.wrong("flavor", format!("{part:?}: a speed is more than 0")));
        }
        Ok((name.trim().to_owned(), speed.0))
    });
    let flavors = flavors.collect::<Result<_, _>>()?;
    let name = row.text("name").map(str::to_owned);
    Ok(Job {
        line: row.line,
        name: name.unwrap_or_else(|| format!("job-{}", row.line)),
        submit: submit.0,
        tenant: row.need("tenant")?,
        class: row.need("class")?,
        pods,
        per_pod: Resources {
            gpus: gpus.0,
            cpu: cpu.unwrap_or_default().0,
            memory: memory.unwrap_or_default().0,
        },
        duration: duration.0,
        flavors,
        regions: row.list("region").map(str::to_owned).collect(),
        priority: row.get("priority")?.unwrap_or_default(),
        finish_by: finish_by.map(|at| at.0),
        max_runtime: max_runtime.map(|length| length.0),
        checkpoint,
        required: row.get("required")?,
        preferred: row.get("preferred")?,
    })
}

const HOST_COLUMNS: Columns = Columns {
    required: &["at", "cluster", "pool", "hosts"],
    optional: &[],
};

/// Reads a table of hosts that are up: from `at` on, `hosts` hosts of `cluster`/`pool`. Sorted by
/// instant; rows of one instant keep the table's order.
pub fn read_hosts(file: &str, text: &[u8]) -> Result<Vec<HostsUp>, TableError> {
    let mut steps = Vec::new();
    table::read(file, text, HOST_COLUMNS, |row| {
        let at: Instant = row.need("at")?;
        steps.push(HostsUp {
            at: at.0,
            cluster: row.need("cluster")?,
            pool: row.need("pool")?,
            up: row.need("hosts")?,
        });
        Ok(())
    })?;
    steps.sort_by_key(|step: &HostsUp| step.at);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use meridian_api::units::MilliGpus;

    use super::*;

    #[test]
    fn a_row_becomes_a_job() {
        let text = "submit,tenant,class,gpus,pods,duration,flavor,region,maxRuntime\n\
                    2026-11-26T00:00:00Z,nlp,batch,8,4,1h30m,h100=1|a100=0.45,eu,2h\n\
                    60,nlp,batch,0.5,,90,,,\n";
        let jobs = read_jobs("t.csv", text.as_bytes()).expect("jobs");
        assert_eq!(jobs[0].line, 3, "sorted by submission");
        assert_eq!(jobs[0].submit, UnixMillis(60_000));
        assert_eq!(jobs[0].per_pod.gpus, MilliGpus(500));
        assert_eq!((jobs[0].pods, jobs[0].duration), (1, Millis::seconds(90)));
        assert_eq!(jobs[1].duration, Millis::seconds(5400));
        let flavors = [("h100".to_owned(), 1000), ("a100".to_owned(), 450)];
        assert_eq!(jobs[1].flavors, flavors);
        assert_eq!(jobs[1].max_runtime, Some(Millis::seconds(7200)));
        assert_eq!(jobs[1].name, "job-2");
    }

    #[test]
    fn a_wrong_cell_is_named() {
        let cases = [
            (
                "soon,a,b,1,1,1,",
                "t.csv line 2, column submit: \"soon\": no instant: write seconds from the \
                 beginning, or 2026-11-26T22:04:00Z",
            ),
            (
                "1,a,b,1,0,1,",
                "t.csv line 2, column pods: is 0, must be from 1 to 100000",
            ),
            (
                "1,a,b,1,1,long,",
                "t.csv line 2, column duration: \"long\": no length of time: write whole seconds, \
                 or 1h30m",
            ),
            (
                "1,a,b,1,1,1,h100=0",
                "t.csv line 2, column flavor: \"h100=0\": a speed is more than 0",
            ),
        ];
        for (row, expected) in cases {
            let text = format!("submit,tenant,class,gpus,pods,duration,flavor\n{row}\n");
            let error = read_jobs("t.csv", text.as_bytes()).expect_err("it is wrong");
            assert_eq!(error.to_string(), expected);
        }
    }
}
