//! The summary as text for people.
//!
//! Owns its layout and how lengths of time are shortened. Never computes: every number is the
//! summary's.

use std::fmt::Write as _;

use crate::summary::{GpuHours, Group, Ratio, Spread, Summary};

/// A length of time in two units at most: `3d4h`, `12m5s`, `0s`.
fn span(millis: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let seconds = millis / 1000;
    let first = UNITS.iter().position(|(_, size)| seconds >= *size);
    let Some(first) = first else {
        return "0s".to_owned();
    };
    let (unit, size) = UNITS[first];
    let mut text = format!("{}{unit}", seconds / size);
    if let Some((unit, smaller)) = UNITS.get(first + 1) {
        let rest = seconds % size / smaller;
        if rest > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{rest}{unit}");
        }
    }
    text
}

fn percent(ratio: Ratio) -> String {
    format!("{}.{:02}%", ratio.0 / 100, ratio.0 % 100)
}

fn hours(hours: GpuHours) -> String {
    format!("{}.{:02}", hours.0 / 100, hours.0 % 100)
}

/// Columns side by side, the first to the left and the others to the right.
fn table(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = if line.is_empty() {
                write!(line, "{cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn spread(spread: &Spread) -> [String; 4] {
    [spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p99_ms].map(span)
}

fn groups(text: &mut String, title: &str, groups: &[&Group], extra: &[(&str, Vec<String>)]) {
    let mut head = vec![title.to_owned(), "JOBS".to_owned(), "STARTED".to_owned()];
    for name in ["MEAN", "P50", "P90", "P99"] {
        head.push(format!("WAIT {name}"));
    }
    head.extend(["JCT MEAN", "JCT P50"].map(str::to_owned));
    head.extend(extra.iter().map(|(name, _)| (*name).to_owned()));
    let mut rows = vec![head];
    for (position, group) in groups.iter().enumerate() {
        let mut row = vec![
            group.name.clone(),
            group.jobs.to_string(),
            group.started.to_string(),
        ];
        row.extend(spread(&group.wait));
        row.extend(spread(&group.completion).into_iter().take(2));
        row.extend(extra.iter().map(|(_, cells)| cells[position].clone()));
        rows.push(row);
    }
    text.push('\n');
    table(text, &rows);
}

impl Summary {
    /// The summary for people: the same input gives the same bytes.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let lines = [
            format!(
                "{} jobs on {} GPUs over {}: {} completed, {} never started, {} losses, \
                 {} preemptions",
                self.jobs,
                self.gpus,
                span(self.makespan_ms),
                self.completed,
                self.never_started,
                self.losses,
                self.preemptions,
            ),
            format!(
                "used        {} GPU hours, {} of the fleet, {} by worth, {} while something waited",
                hours(self.used_gpu_hours),
                percent(self.utilisation),
                percent(self.utilisation_by_worth),
                percent(self.utilisation_while_waiting),
            ),
            format!("lost        {} GPU hours", hours(self.lost_gpu_hours)),
            format!(
                "fragmented  {} of free GPUs are of no use to the usual pods",
                percent(self.fragmentation),
            ),
            format!(
                "fairness    the largest gap of a tenant is {} of the fleet",
                percent(self.fairness_gap),
            ),
            format!(
                "decisions   {} rounds for {} instants; at most {} gangs waited at once",
                self.rounds, self.instants, self.longest_queue,
            ),
        ];
        for line in lines.into_iter().chain(self.starts_to_text()) {
            text.push_str(&line);
            text.push('\n');
        }
        let all = Group {
            name: "all".to_owned(),
            jobs: self.jobs,
            started: self.jobs - self.never_started,
            wait: self.wait,
            completion: self.completion,
        };
        let classes: Vec<&Group> = self.by_class.iter().chain([&all]).collect();
        groups(&mut text, "CLASS", &classes, &[]);
        let sizes: Vec<&Group> = self.by_gpus.iter().collect();
        groups(&mut text, "GPUS", &sizes, &[]);
        self.tenants_to_text(&mut text);
        self.blocked_to_text(&mut text);
        self.sharing_to_text(&mut text);
        text
    }

    fn starts_to_text(&self) -> Option<String> {
        let starts = &self.starts;
        let told = starts.sooner + starts.within + starts.later;
        (told > 0).then(|| {
            format!(
                "told        {told} gangs when they may start: {} started then, {} sooner (by {} \
                 at p90), {} later (by {})",
                starts.within,
                starts.sooner,
                span(starts.sooner_by.p90_ms),
                starts.later,
                span(starts.later_by.p90_ms),
            )
        })
    }

    fn tenants_to_text(&self, text: &mut String) {
        let column = |of: fn(&crate::summary::TenantSummary) -> String| {
            self.tenants.iter().map(of).collect::<Vec<String>>()
        };
        let extra = [
            ("HELD GPUH", column(|tenant| hours(tenant.held_gpu_hours))),
            ("SHORT GPUH", column(|tenant| hours(tenant.short_gpu_hours))),
            ("GAP", column(|tenant| percent(tenant.fairness_gap))),
        ];
        let tenants: Vec<&Group> = self.tenants.iter().map(|tenant| &tenant.group).collect();
        groups(text, "TENANT", &tenants, &extra);
    }

    fn blocked_to_text(&self, text: &mut String) {
        if self.blocked.is_empty() {
            return;
        }
        let head = ["WAITED FOR", "GANG TIME", "GPUH", "NEVER STARTED"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in &self.blocked {
            rows.push(vec![
                row.reason.to_string(),
                span(row.wait_ms),
                hours(row.gpu_hours),
                row.never_started.to_string(),
            ]);
        }
        text.push('\n');
        table(text, &rows);
    }

    fn sharing_to_text(&self, text: &mut String) {
        let Some(sharing) = &self.sharing else {
            return;
        };
        let head = [
            "AGAINST ALONE",
            "OWN GPUS",
            "COMPARED",
            "ONLY SHARED",
            "LONGER",
            "WORST EXTRA",
            "MEAN SHARED",
            "MEAN ALONE",
            "WORST JOB",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for row in sharing {
            rows.push(vec![
                row.tenant.clone(),
                row.private_gpus.to_string(),
                row.compared.to_string(),
                row.only_shared.to_string(),
                row.waited_longer.to_string(),
                span(row.worst_extra_ms),
                span(row.shared_mean_ms),
                span(row.private_mean_ms),
                row.worst_job.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        text.push('\n');
        table(text, &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        let cases = [0, 999, 59_000, 60_000, 725_000, 3_600_000, 266_400_000];
        let texts = cases.map(span);
        assert_eq!(texts, ["0s", "0s", "59s", "1m", "12m5s", "1h", "3d2h"]);
    }
}
