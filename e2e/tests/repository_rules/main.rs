//! The rules of this repository, held by tests: what reviewers would otherwise have to repeat.
//!
//! Owns the rules about sources (`source`), crates and folders (`manifests`) and documents
//! (`documents`). Each is a pure function of text, tried on a bad sample as well as on the
//! repository. Never changes a file.

mod documents;
mod files;
mod manifests;
mod rust_text;
mod source;

use std::fmt;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the root of the repository.
    pub(crate) file: String,
    /// Line, from 1; 0 = the file as a whole.
    pub(crate) line: usize,
    /// What is wrong there.
    pub(crate) what: String,
}

impl Finding {
    /// A finding at `line` of `file`.
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Fails with every finding and with what to do about them.
#[track_caller]
pub(crate) fn none_found(mut findings: Vec<Finding>, fix: &str) {
    findings.sort();
    let list: Vec<String> = findings
        .iter()
        .map(|finding| format!("  {finding}"))
        .collect();
    assert!(
        findings.is_empty(),
        "{} broken:\n{}\nfix: {fix}",
        list.len(),
        list.join("\n")
    );
}
