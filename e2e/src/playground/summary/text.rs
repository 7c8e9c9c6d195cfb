//! The summary as a table for people.
//!
//! Owns its layout. Never computes: every number is the summary's.

use std::fmt::{Display, Formatter, Result};

use super::{Group, Summary, Waits};

/// Violations that are shown; the rest is counted.
const VIOLATIONS_SHOWN: usize = 20;

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (jobs, lost, hub) = (&self.jobs, &self.lost_work, &self.hub);
        let (seed, load) = (self.seed, self.load_percent);
        writeln!(f, "Meridian playground, seed {seed}, load {load}%")?;
        writeln!(
            f,
            "submissions  {} .. {}",
            self.from, self.submissions_until
        )?;
        writeln!(f, "ended at     {}\n", self.until)?;
        writeln!(
            f,
            "jobs         {} submitted, {} placed: {} succeeded, {} failed, {} running, {} waiting",
            jobs.submitted, jobs.placed, jobs.succeeded, jobs.failed, jobs.running, jobs.waiting,
        )?;
        for reason in &self.waiting_reasons {
            writeln!(f, "  waiting    {:>6}  {}", reason.jobs, reason.reason)?;
        }
        writeln!(
            f,
            "wait         {} ({} jobs that started)",
            wait(&self.wait),
            self.wait.jobs
        )?;
        writeln!(
            f,
            "lost work    {:.1} GPU-hours in {} attempts; {} nodes failed",
            lost.gpu_hours, lost.attempts, lost.node_failures,
        )?;
        writeln!(
            f,
            "hub          {} decisions, {} placements, {} commits, {} preemptions\n",
            hub.decisions, hub.placements, hub.commits, hub.preemptions,
        )?;
        writeln!(
            f,
            "{:<12} {:<20} {:>5} {:>12} {:>12} {:>6}",
            "REGION", "TIME ZONE", "GPUS", "BUSY GPU-H", "AVAILABLE", "USED"
        )?;
        for region in &self.regions {
            writeln!(
                f,
                "{:<12} {:<20} {:>5} {:>12.1} {:>12.1} {:>5.1}%",
                region.name,
                region.time_zone,
                region.gpus,
                region.busy_gpu_hours,
                region.available_gpu_hours,
                region.utilisation_percent,
            )?;
        }
        groups(f, "CLASS", &self.classes)?;
        groups(f, "TENANT", &self.tenants)?;
        self.verdict(f)
    }
}

impl Summary {
    fn verdict(&self, f: &mut Formatter<'_>) -> Result {
        let checked = self.invariants.placements_checked;
        let violations = &self.invariants.violations;
        if violations.is_empty() {
            return writeln!(f, "\ninvariants: ok ({checked} placements checked)");
        }
        let count = violations.len();
        writeln!(
            f,
            "\ninvariants: BROKEN {count} times ({checked} placements checked)"
        )?;
        for violation in violations.iter().take(VIOLATIONS_SHOWN) {
            writeln!(f, "  {violation}")?;
        }
        if count > VIOLATIONS_SHOWN {
            writeln!(f, "  and {} more", count - VIOLATIONS_SHOWN)?;
        }
        Ok(())
    }
}

fn groups(f: &mut Formatter<'_>, title: &str, groups: &[Group]) -> Result {
    writeln!(
        f,
        "\n{title:<12} {:>5} {:>6} {:>6} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10}",
        "OWN", "JOBS", "DONE", "FAIL", "RUN", "WAIT", "WAIT P50", "WAIT P90", "GPU-H"
    )?;
    for group in groups {
        let own = group
            .nominal_gpus
            .map_or("-".to_owned(), |gpus| gpus.to_string());
        let jobs = &group.jobs;
        writeln!(
            f,
            "{:<12} {own:>5} {:>6} {:>6} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10.1}",
            group.name,
            jobs.submitted,
            jobs.succeeded,
            jobs.failed,
            jobs.running,
            jobs.waiting,
            span(group.wait.p50_seconds),
            span(group.wait.p90_seconds),
            group.gpu_hours,
        )?;
    }
    Ok(())
}

fn wait(wait: &Waits) -> String {
    format!(
        "p50 {}, p90 {}, max {}",
        span(wait.p50_seconds),
        span(wait.p90_seconds),
        span(wait.max_seconds)
    )
}

/// Seconds in the largest unit of which there are at least two.
fn span(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.1}s")
    } else if seconds < 7_200.0 {
        format!("{:.1}m", seconds / 60.0)
    } else {
        format!("{:.1}h", seconds / 3_600.0)
    }
}
