//! Progress on standard error: one live line on a terminal, one plain line a change elsewhere.
//!
//! Owns how progress looks. Never writes to standard output, and never says the same twice.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use meridian_api::quantity::Time;
use meridian_runtime::Clock;

use crate::context::note;

/// How often the live line turns: often enough to look alive, rarely enough to cost nothing.
const TICK: Duration = Duration::from_millis(120);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One line that changes in place.
    Live,
    /// One line for each change, with its time.
    Plain,
}

impl Mode {
    /// Live on a terminal, unless told otherwise by flag or `NO_COLOR`.
    pub(crate) fn choose(no_progress: bool) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if no_progress || no_color || !std::io::stderr().is_terminal() {
            Self::Plain
        } else {
            Self::Live
        }
    }
}

/// One line of progress; it disappears when dropped.
pub(crate) struct Progress {
    clock: Clock,
    line: Option<ProgressBar>,
    last: String,
}

impl Progress {
    pub(crate) fn new(mode: Mode, clock: Clock) -> Self {
        let line = (mode == Mode::Live).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}");
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        Self {
            clock,
            line,
            last: String::new(),
        }
    }

    /// Says how things stand, when that changed.
    pub(crate) fn say(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        text.clone_into(&mut self.last);
        match &self.line {
            Some(line) => line.set_message(text.to_owned()),
            None => note(&format!("{} {text}", Time(self.clock.wall()))),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
