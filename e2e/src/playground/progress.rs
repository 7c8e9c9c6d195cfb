//! What is seen while the simulated week goes by.
//!
//! Owns the terminal: one bar per region with its local time, or plain lines. All of it goes to
//! stderr and none of it is part of the result. Never looks anything up by itself.

use std::io::IsTerminal as _;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use meridian_api::units::{Millis, UnixMillis};

/// Simulated time between two plain lines: some thirty for a week.
const LINE_EVERY: Millis = Millis::seconds(6 * 3_600);

/// Whether bars are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowProgress {
    /// On a terminal bars, else lines.
    Auto,
    /// Lines.
    Plain,
}

/// One region at one moment.
#[derive(Clone, Debug)]
pub(super) struct RegionMoment {
    pub(super) name: String,
    pub(super) time_zone: String,
    pub(super) gpus: u64,
    pub(super) busy: u64,
}

/// The fleet at one moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) at: UnixMillis,
    pub(super) regions: Vec<RegionMoment>,
    pub(super) submitted: usize,
    pub(super) waiting: usize,
    pub(super) running: usize,
}

impl Moment {
    fn done(&self) -> usize {
        self.submitted.saturating_sub(self.waiting + self.running)
    }
}

/// The view.
pub struct Progress(View);

enum View {
    Bars {
        all: MultiProgress,
        head: ProgressBar,
        regions: Vec<ProgressBar>,
    },
    Lines {
        next: Option<UnixMillis>,
    },
}

impl Progress {
    /// A view on stderr.
    #[must_use]
    pub fn new(show: ShowProgress) -> Self {
        let plain = show == ShowProgress::Plain
            || !std::io::stderr().is_terminal()
            || std::env::var_os("NO_COLOR").is_some();
        if plain {
            return Self(View::Lines { next: None });
        }
        let all = MultiProgress::new();
        let head = all.add(ProgressBar::no_length());
        head.set_style(style("{msg}"));
        Self(View::Bars {
            all,
            head,
            regions: Vec::new(),
        })
    }

    /// Shows a moment.
    pub(super) fn show(&mut self, moment: &Moment) {
        match &mut self.0 {
            View::Bars { all, head, regions } => {
                if regions.is_empty() {
                    let bar = |region: &RegionMoment| {
                        let bar = all.add(ProgressBar::new(region.gpus));
                        bar.set_style(style("{prefix:28} [{bar:40}] {pos:>3}/{len} GPUs"));
                        bar
                    };
                    regions.extend(moment.regions.iter().map(bar));
                }
                let done = moment.done();
                head.set_message(format!(
                    "{}   {} submitted, {} waiting, {} running, {done} done",
                    local(moment.at, "UTC"),
                    moment.submitted,
                    moment.waiting,
                    moment.running,
                ));
                head.tick();
                for (bar, region) in regions.iter().zip(&moment.regions) {
                    let time = local(moment.at, &region.time_zone);
                    bar.set_prefix(format!("{:12}{time}", region.name));
                    bar.set_position(region.busy);
                }
            }
            View::Lines { next } => {
                if next.is_some_and(|next| moment.at < next) {
                    return;
                }
                *next = Some(moment.at.after(LINE_EVERY));
                let region = |region: &RegionMoment| {
                    format!("{} {}/{}", region.name, region.busy, region.gpus)
                };
                let regions: Vec<String> = moment.regions.iter().map(region).collect();
                eprintln!(
                    "{}  {} submitted, {} waiting, {} running, {} done; GPUs {}",
                    local(moment.at, "UTC"),
                    moment.submitted,
                    moment.waiting,
                    moment.running,
                    moment.done(),
                    regions.join(", "),
                );
            }
        }
    }

    /// Takes the bars away.
    pub(super) fn finish(&self) {
        if let View::Bars { all, .. } = &self.0 {
            // A terminal that is gone is no reason to fail.
            drop(all.clear());
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style
        .expect("the templates above are well formed")
        .progress_chars("=> ")
}

/// Day and minute of an instant in a zone.
pub(super) fn local(at: UnixMillis, zone: &str) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).unwrap_or_default();
    match at.in_tz(zone) {
        Ok(zoned) => zoned.strftime("%a %d %H:%M").to_string(),
        Err(_) => at.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::BEGIN;
    use super::*;

    #[test]
    fn one_instant_is_another_hour_in_each_region() {
        assert_eq!(local(BEGIN, "UTC"), "Mon 23 00:00");
        assert_eq!(local(BEGIN, "America/Los_Angeles"), "Sun 22 17:00");
        assert_eq!(local(BEGIN, "Asia/Tokyo"), "Mon 23 09:00");
    }
}
