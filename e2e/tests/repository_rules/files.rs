//! The files of the repository as text.
//!
//! Owns the walk. Never reads what is built or generated.

use std::path::{Path, PathBuf};

/// Folders that hold nothing of ours: what git, cargo and the set-up put there.
const SKIPPED: &[&str] = &[".git", ".cache", "target"];
/// Generated code, held fresh by tests of its own crates.
const GENERATED: &[&str] = &["proto/src/gen/", "e2e/src/member/gen/"];

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// Its text; empty when it is not UTF-8.
    pub(crate) text: String,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let e2e = Path::new(env!("CARGO_MANIFEST_DIR"));
    e2e.parent().expect("e2e lies in the repository").to_owned()
}

/// Every file of ours, in order of path.
pub(crate) fn all() -> Vec<File> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let read = |path: PathBuf| File {
        path: relative(&root, &path),
        text: std::fs::read_to_string(&path).unwrap_or_default(),
    };
    paths
        .into_iter()
        .map(read)
        .filter(|file| {
            let is_in = |folder: &&str| file.path.starts_with(*folder);
            !GENERATED.iter().any(is_in)
        })
        .collect()
}

/// Every file whose name ends so.
pub(crate) fn ending(suffix: &str) -> Vec<File> {
    let files: Vec<File> = all()
        .into_iter()
        .filter(|file| file.path.ends_with(suffix))
        .collect();
    assert!(
        !files.is_empty(),
        "no file ends with {suffix}: the walk is broken"
    );
    files
}

/// One file by its path.
pub(crate) fn one(path: &str) -> File {
    let text = std::fs::read_to_string(root().join(path));
    File {
        path: path.to_owned(),
        text: text.unwrap_or_else(|error| panic!("{path}: {error}")),
    }
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let entry = entry.expect("a readable entry");
        let kind = entry.file_type().expect("a kind of file");
        let name = entry.file_name();
        let skipped = SKIPPED.iter().any(|skipped| name == *skipped);
        if kind.is_dir() && !skipped {
            walk(&entry.path(), paths);
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
}

fn relative(root: &Path, path: &Path) -> String {
    let inside = path
        .strip_prefix(root)
        .expect("the walk starts at the root");
    inside.to_string_lossy().replace('\\', "/")
}
