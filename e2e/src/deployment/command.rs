//! The commands of people, run to their end.
//!
//! Owns where they connect to and what they printed. Never checks what only one test knows.

use std::ffi::OsString;
use std::path::Path;

use super::{Deployment, LONG};
use crate::process::ProcessSpec;
use crate::tools::Binary;

/// A command as it is typed, with `'` for quotes, how it ends, and what it says.
pub type Row<'a> = (&'a str, i32, &'a [&'a str]);

/// Splits at blanks outside single quotes, which fall away.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.trim_end().chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("never empty").push(letter),
        }
    }
    words
}

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// As a person would type it.
    pub line: String,
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    /// What it complained about.
    pub err: String,
}

impl Ran {
    /// The same, when it ended with 0.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn succeeded(&self) -> &Self {
        self.ended_with(0)
    }

    /// The same, when it ended with that code.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn ended_with(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// How it differs from what was expected of it, if it does.
    fn differs(&self, code: i32, says: &[&str]) -> Option<String> {
        let said = |word: &&&str| self.out.contains(**word) || self.err.contains(**word);
        let unsaid: Vec<_> = says.iter().filter(|word| !said(word)).collect();
        let as_expected = self.code == Some(code) && unsaid.is_empty();
        (!as_expected).then(|| format!("expected {code}, not said {unsaid:?}: {self}"))
    }

    /// The same, when it said all of these, wherever.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn saying(&self, words: &[&str]) -> &Self {
        for word in words {
            let said = self.out.contains(word) || self.err.contains(word);
            assert!(said, "does not say {word:?}: {self}");
        }
        self
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, code, .. } = self;
        let (out, err) = (self.out.trim_end(), self.err.trim_end());
        write!(f, "$ {line}\n{out}\n{err}\nended with {code:?}")
    }
}

impl Deployment {
    /// Runs `meridian` with each row in order.
    ///
    /// # Panics
    /// When one does not do as its row says; all that do not are shown.
    pub async fn meridian_does(&self, rows: &[Row<'_>]) {
        let mut wrong = Vec::new();
        for (line, code, says) in rows {
            let ran = self.meridian(words(line)).await;
            wrong.extend(ran.differs(*code, says));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    /// Runs `kubectl`, a file, with each row in order.
    ///
    /// # Panics
    /// When one does not do as its row says; all that do not are shown.
    pub async fn kubectl_does(&self, program: &Path, rows: &[Row<'_>]) {
        let mut wrong = Vec::new();
        for (line, code, says) in rows {
            let ran = self.kubectl(program, words(line)).await;
            wrong.extend(ran.differs(*code, says));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    /// Runs `meridian` against the first hub.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn meridian<A: Into<OsString>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        let url = self.hubs[0].url();
        let spec = ProcessSpec::new("meridian", Binary::Cli.path())
            .env("MERIDIAN_SERVER", url)
            .env("MERIDIAN_NAMESPACE", super::NAMESPACE);
        self.run(spec, arguments).await
    }

    /// Runs `kubectl`, a file, against the first hub.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn kubectl<A: Into<OsString>>(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Ran {
        self.run(self.kubectl_spec(program), arguments).await
    }

    /// `kubectl apply -f` of a file or folder, to a good end.
    ///
    /// # Panics
    /// When it ends otherwise.
    pub async fn kubectl_apply(&self, program: &Path, documents: &Path) -> Ran {
        let arguments = [Path::new("apply"), Path::new("-f"), documents];
        let ran = self.kubectl(program, arguments).await;
        ran.succeeded();
        ran
    }

    /// How `kubectl`, a file, is started against the first hub.
    #[must_use]
    pub fn kubectl_spec(&self, program: &Path) -> ProcessSpec {
        // A discovery cache of its own, and no configuration of the machine's.
        let home = self.harness.folder("kubectl");
        ProcessSpec::new("kubectl", program)
            .env("HOME", &home)
            .env("KUBECONFIG", home.join("none"))
            .args(["--server", &self.hubs[0].url()])
            .args(["--namespace", super::NAMESPACE])
    }

    async fn run<A: Into<OsString>>(
        &self,
        spec: ProcessSpec,
        arguments: impl IntoIterator<Item = A>,
    ) -> Ran {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let words = arguments.iter().map(|word| word.to_string_lossy());
        let words: Vec<_> = words.collect();
        let line = words.join(" ");
        let spec = spec.args(arguments.clone());
        let output = self.harness.output(&spec, LONG).await;
        let output = output.unwrap_or_else(|error| panic!("$ {line}\n{error}"));
        Ran {
            line,
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
