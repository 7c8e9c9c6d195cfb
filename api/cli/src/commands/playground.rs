//! `playground`: hands over to `meridian-playground`, which runs a whole fleet in one process.
//!
//! Owns finding that program. Knows nothing of what it does.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit::Exit;
use crate::failure::Failure;

const PROGRAM: &str = "meridian-playground";

/// Becomes the playground; returns only when that fails.
pub(crate) fn run(args: &[OsString]) -> Result<Exit, Failure> {
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(program) = locate(own.as_deref(), &path) else {
        return Err(Failure::Ended {
            code: None,
            message: format!("{PROGRAM} is neither beside this command nor in PATH"),
            fix: format!("in a checkout: `cargo build --bin {PROGRAM}`, or `make demo`"),
            exit: Exit::Error,
        });
    };
    let source = Command::new(&program).args(args).exec();
    Err(Failure::Unreadable {
        path: program.display().to_string(),
        source,
    })
}

/// Beside the running program first, so that a checkout runs its own; then along `PATH`.
fn locate(own: Option<&Path>, path: &OsStr) -> Option<PathBuf> {
    let beside = own.and_then(Path::parent).map(Path::to_owned);
    beside
        .into_iter()
        .chain(std::env::split_paths(path))
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sibling_wins_over_the_path() {
        let (beside, along) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let own = beside.path().join("meridian");
        let path = along.path().as_os_str();
        assert_eq!(locate(Some(&own), path), None);
        std::fs::write(along.path().join(PROGRAM), "").expect("written");
        assert_eq!(locate(Some(&own), path), Some(along.path().join(PROGRAM)));
        std::fs::write(beside.path().join(PROGRAM), "").expect("written");
        assert_eq!(locate(Some(&own), path), Some(beside.path().join(PROGRAM)));
    }
}
