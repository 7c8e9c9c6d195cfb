//! Where an agent under test dies, or gets no further: a step of a gang's life, named in a file.
//!
//! Owns the form of that file, for the test that writes it and for the agent that obeys it. That
//! agent is a binary of its own (`mortal-agent`): the one that ships has nobody to ask and reads no
//! such file, whatever its environment and however it was built.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use meridian_agent::kubernetes::Step;

/// The variable that names the file.
pub const FAIL_POINT: &str = "MERIDIAN_FAIL_POINT";

/// The fail point of one agent.
#[derive(Clone, Debug)]
pub struct FailPoint {
    file: PathBuf,
}

impl FailPoint {
    /// The fail point in that file; none until it is written.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The agent dies by SIGKILL after the next such step, once.
    ///
    /// # Panics
    /// When that cannot be written down.
    pub fn dies_after(&self, step: Step) {
        self.write(Deed::Dies, step);
    }

    /// The agent's work on a gang ends after each such step as if the API had gone, until the
    /// fail point is lifted.
    ///
    /// # Panics
    /// When that cannot be written down.
    pub fn is_held_after(&self, step: Step) {
        self.write(Deed::IsHeld, step);
    }

    /// The agent goes on.
    pub fn lift(&self) {
        // Absent after a death.
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(reached(&self.file));
    }

    /// True when the step was passed since the fail point was written.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        reached(&self.file).exists()
    }

    fn write(&self, deed: Deed, step: Step) {
        self.lift();
        let part = self.file.with_extension("part");
        std::fs::write(&part, form(deed, step)).expect("a file in a folder of ours");
        std::fs::rename(&part, &self.file).expect("a file in a folder of ours");
    }
}

/// What befalls the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Dies,
    IsHeld,
}

fn form(deed: Deed, step: Step) -> String {
    format!("{deed:?} {step:?}")
}

fn reached(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(OsString::from(".reached"));
    PathBuf::from(name)
}

/// Whether the agent goes on after `step`: what the file says. Does not return when it says that
/// the agent dies.
#[must_use]
pub fn goes_on(file: &Path, step: Step) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else {
        return true;
    };
    let dies = text == form(Deed::Dies, step);
    if !dies && text != form(Deed::IsHeld, step) {
        return true;
    }
    // A test that waits for it finds it missing, and says so.
    let _ = std::fs::write(reached(file), "");
    if dies {
        let _ = std::fs::remove_file(file);
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_step_that_is_named_is_held() {
        let folder = tempfile::tempdir().expect("a folder");
        let point = FailPoint::new(folder.path().join("point"));
        assert!(goes_on(point.file(), Step::PodMade), "nobody wrote it");
        point.is_held_after(Step::PodMade);
        assert!(goes_on(point.file(), Step::PodsMade) && !point.is_reached());
        assert!(!goes_on(point.file(), Step::PodMade) && point.is_reached());
        point.lift();
        assert!(goes_on(point.file(), Step::PodMade) && !point.is_reached());
    }
}
