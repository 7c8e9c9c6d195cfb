//! Real processes under test: started, watched, paused, killed and started again.
//!
//! Owns their life, their folders and their logs; none outlives its test. Each wait is for an
//! event with a deadline, and fails at once when the process has ended. Never knows what a
//! process is for.

mod log;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Tasks};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};

use self::log::Log;

/// For SIGKILL and SIGSTOP, which no process can refuse: a busy kernel needs a moment.
const KERNEL_LIMIT: Millis = Millis::seconds(10);
/// Between two looks at what cannot be waited for: short beside any start or stop.
const ASK_EVERY: Millis = Millis(20);

/// Why a process did not do what a test waited for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started, signalled or waited for.
    #[error("{name}: {what}")]
    System {
        /// Which process.
        name: String,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It ended while something else was waited for.
    #[error("{name} ended ({status}) before {wanted}; its log ends:\n{log}")]
    Ended {
        /// Which process.
        name: String,
        /// How.
        status: ExitStatus,
        /// What was waited for.
        wanted: String,
        /// Its last lines.
        log: String,
    },
    /// The deadline passed.
    #[error("{name}: not within {limit}: {wanted}; its log ends:\n{log}")]
    TooLate {
        /// Which process.
        name: String,
        /// The deadline.
        limit: Millis,
        /// What was waited for.
        wanted: String,
        /// Its last lines.
        log: String,
    },
}

/// What processes of one test share: a clock, the tasks that read their logs, and a folder that
/// goes with it.
#[derive(Debug)]
pub struct Harness {
    clock: Clock,
    tasks: Tasks,
    folder: tempfile::TempDir,
    bond: Option<Bond>,
}

/// How processes of a harness are kept from outliving it, even when it is killed.
#[derive(Clone, Debug)]
struct Bond {
    /// A variable by which leftovers are known.
    marker: (OsString, OsString),
}

impl Harness {
    /// A harness on the machine's clock. Call within a runtime.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self {
            clock: Clock::real(),
            tasks: Tasks::new(),
            folder,
            bond: None,
        }
    }

    /// A harness whose processes the kernel kills when the thread that started them ends, however
    /// it ends, and that carry `marker` in their environment. Call within a runtime, and start
    /// processes from a thread that lives as long as they shall: the test's own or a worker's.
    #[must_use]
    pub fn bonded(marker: (&str, &Path)) -> Self {
        let marker = (marker.0.into(), marker.1.as_os_str().to_owned());
        Self {
            bond: Some(Bond { marker }),
            ..Self::new()
        }
    }

    /// The machine's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A folder of that name, made when it is not there, removed with the harness.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder can be made in a folder of ours");
        path
    }

    /// Starts a process; it is killed when the returned handle is dropped.
    pub fn start(&self, spec: ProcessSpec) -> Result<Process, ProcessError> {
        let mut process = Process {
            spec: spec.bonded(self.bond.as_ref()),
            child: None,
            last: None,
            log: Log::new(),
            life_begins: 0,
            clock: self.clock.clone(),
            tasks: self.tasks.clone(),
        };
        process.start()?;
        Ok(process)
    }

    /// Runs a program to its end and returns what it printed.
    pub async fn output(&self, spec: &ProcessSpec, limit: Millis) -> Result<Output, ProcessError> {
        let mut command = spec.command();
        let run = self.clock.timeout(limit, command.output()).await;
        let system = |source| spec.system("run it", source);
        run.map_err(|_| spec.too_late(limit, "its end", String::new()))?
            .map_err(system)
    }
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

/// How to start a process.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

impl ProcessSpec {
    /// A process that failures call `name`.
    pub fn new(name: impl Into<String>, program: impl AsRef<Path>) -> Self {
        let program = program.as_ref().to_owned();
        Self {
            name: name.into(),
            program,
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment, which is otherwise the test's.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The name that failures call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same, started by `program`, which gets `arguments` and then this program with its own.
    #[must_use]
    pub fn wrapped<A: Into<OsString>>(
        self,
        program: impl AsRef<Path>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let own = std::iter::once(self.program.into_os_string()).chain(self.arguments);
        let arguments = arguments.into_iter().map(Into::into).chain(own).collect();
        Self {
            program: program.as_ref().to_owned(),
            arguments,
            ..self
        }
    }

    /// Wrapped in a program that asks the kernel for the bond and then becomes this one.
    fn bonded(self, bond: Option<&Bond>) -> Self {
        let Some(Bond { marker }) = bond else {
            return self;
        };
        let (name, value) = marker;
        self.wrapped("setpriv", ["--pdeathsig", "KILL", "--"])
            .env(name, value)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn system(&self, what: &'static str, source: io::Error) -> ProcessError {
        ProcessError::System {
            name: self.name.clone(),
            what,
            source,
        }
    }

    fn too_late(&self, limit: Millis, wanted: &str, log: String) -> ProcessError {
        ProcessError::TooLate {
            name: self.name.clone(),
            limit,
            wanted: wanted.to_owned(),
            log,
        }
    }
}

/// A process, running or not. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    spec: ProcessSpec,
    child: Option<Child>,
    /// How its last life ended.
    last: Option<ExitStatus>,
    log: Log,
    /// Lines logged before its present life.
    life_begins: u64,
    clock: Clock,
    tasks: Tasks,
}

impl Process {
    /// Starts it again, with the same arguments, after it has ended.
    ///
    /// # Panics
    /// When it still runs.
    pub fn start(&mut self) -> Result<(), ProcessError> {
        assert!(self.child.is_none(), "{} still runs", self.spec.name);
        let mut command = self.spec.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let system = |source| self.spec.system("start it", source);
        let mut child = command.spawn().map_err(system)?;
        self.life_begins = self.log.count();
        if let Some(stdout) = child.stdout.take() {
            self.keep_lines("stdout", stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            self.keep_lines("stderr", stderr);
        }
        self.child = Some(child);
        Ok(())
    }

    fn keep_lines(&self, stream: &str, from: impl AsyncRead + Send + Unpin + 'static) {
        let log = self.log.clone();
        let name = format!("{stream} of {}", self.spec.name);
        self.tasks.spawn_finite(name, log.keep(from));
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Waits until it prints a line that contains `wanted` in its present life.
    pub async fn line(&mut self, wanted: &str, limit: Millis) -> Result<String, ProcessError> {
        let (log, from) = (self.log.clone(), self.life_begins);
        let said = format!("it says {wanted:?}");
        self.unless_ended(&said, limit, async move { log.line(from, wanted).await })
            .await
    }

    /// Waits until an HTTP GET of `url` answers with success, and returns the body.
    pub async fn answers(&mut self, url: &str, limit: Millis) -> Result<Bytes, ProcessError> {
        let clock = self.clock.clone();
        let asking = async move {
            loop {
                if let Some(body) = get(url).await {
                    return body;
                }
                clock.sleep(ASK_EVERY).await;
            }
        };
        self.unless_ended(&format!("{url} answers"), limit, asking)
            .await
    }

    /// Waits for its end, and until its last lines are read; at once when it has ended already.
    pub async fn ended(&mut self, limit: Millis) -> Result<ExitStatus, ProcessError> {
        let Some(child) = self.child.as_mut() else {
            let never = || self.not_running("wait for its end");
            return self.last.ok_or_else(never);
        };
        match self.clock.timeout(limit, child.wait()).await {
            Err(_) => Err(self.spec.too_late(limit, "its end", self.log.tail())),
            Ok(Err(source)) => Err(self.spec.system("wait for its end", source)),
            Ok(Ok(status)) => {
                (self.child, self.last) = (None, Some(status));
                self.log.drained(&self.clock).await;
                Ok(status)
            }
        }
    }

    fn not_running(&self, what: &'static str) -> ProcessError {
        self.spec.system(what, io::Error::other("it does not run"))
    }

    /// SIGKILL, and waits until the kernel has let it go.
    pub async fn kill(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::KILL)?;
        self.ended(KERNEL_LIMIT).await.map(|_| ())
    }

    /// SIGTERM, and waits for its end.
    pub async fn terminate(&mut self, limit: Millis) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::TERM)?;
        self.ended(limit).await
    }

    /// SIGSTOP, and waits until it has stopped: it is there, and does nothing.
    pub async fn pause(&self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP)?;
        let stopped = async {
            while !self.has_stopped()? {
                self.clock.sleep(ASK_EVERY).await;
            }
            Ok(())
        };
        let stopped = self.clock.timeout(KERNEL_LIMIT, stopped).await;
        stopped.map_err(|_| {
            self.spec
                .too_late(KERNEL_LIMIT, "its stop", self.log.tail())
        })?
    }

    fn has_stopped(&self) -> Result<bool, ProcessError> {
        let system = |source| self.spec.system("wait for its stop", source);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = rustix::process::waitid(WaitId::Pid(self.pid().map_err(system)?), options);
        Ok(status.map_err(|error| system(error.into()))?.is_some())
    }

    /// SIGCONT: goes on after a pause.
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)
    }

    /// Everything it has printed in all its lives, as far as it is kept.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Its last lines, for a failure that it may explain.
    #[must_use]
    pub fn last_lines(&self) -> String {
        self.log.tail()
    }

    /// Lines of level ERROR: each means that a person must look, so a test expects none.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        let is_error = |line: &String| line.contains(" ERROR ") || line.contains("\"ERROR\"");
        self.lines().into_iter().filter(is_error).collect()
    }

    fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let kill = |pid| rustix::process::kill_process(pid, signal).map_err(io::Error::from);
        self.pid()
            .and_then(kill)
            .map_err(|source| self.spec.system("signal it", source))
    }

    fn pid(&self) -> io::Result<Pid> {
        let raw = self
            .child
            .as_ref()
            .and_then(Child::id)
            .and_then(|id| i32::try_from(id).ok());
        raw.and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("it does not run"))
    }

    /// The output of `event`, unless the process ends or the deadline passes before. What it
    /// printed before its end counts.
    pub async fn unless_ended<T>(
        &mut self,
        wanted: &str,
        limit: Millis,
        event: impl Future<Output = T>,
    ) -> Result<T, ProcessError> {
        let Some(child) = self.child.as_mut() else {
            return Err(self.not_running("wait for it"));
        };
        tokio::pin!(event);
        let first = async {
            tokio::select! {
                biased;
                output = &mut event => Ok(output),
                status = child.wait() => Err(status),
            }
        };
        match self.clock.timeout(limit, first).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(Ok(status))) => {
                (self.child, self.last) = (None, Some(status));
                let drained = self.log.drained(&self.clock);
                tokio::select! {
                    biased;
                    output = event => Ok(output),
                    () = drained => {
                        let (name, wanted) = (self.spec.name.clone(), wanted.to_owned());
                        Err(ProcessError::Ended { name, status, wanted, log: self.log.tail() })
                    }
                }
            }
            Ok(Err(Err(source))) => Err(self.spec.system("wait for it", source)),
            Err(_) => Err(self.spec.too_late(limit, wanted, self.log.tail())),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of {} ends:\n{}", self.spec.name, self.log.tail());
        }
    }
}

/// The body of a successful answer.
async fn get(url: &str) -> Option<Bytes> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(url.parse().ok()?).await.ok()?;
    let is_success = answer.status().is_success();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    is_success.then_some(body)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn shell(script: &str) -> ProcessSpec {
        ProcessSpec::new("shell", "/bin/sh").args(["-c", script])
    }

    const SOON: Millis = Millis::seconds(20);

    #[tokio::test]
    async fn a_line_is_waited_for_in_each_life() {
        let harness = Harness::new();
        let mut process = harness
            .start(shell("echo ready; exec cat /dev/zero >&-"))
            .expect("sh");
        assert_eq!(process.line("ready", SOON).await.expect("said"), "ready");
        let _ = process
            .ended(SOON)
            .await
            .expect("cat cannot write to a closed stdout");
        process.start().expect("starts again");
        assert_eq!(
            process.line("ready", SOON).await.expect("said again"),
            "ready"
        );
    }

    #[tokio::test]
    async fn after_its_end_every_line_is_there() {
        let harness = Harness::new();
        for _ in 0..50 {
            let mut process = harness.start(shell("echo last words")).expect("sh");
            assert!(process.ended(SOON).await.expect("ends").success());
            assert_eq!(process.lines(), ["last words"]);
        }
    }

    #[tokio::test]
    async fn an_early_end_is_told_with_the_log() {
        let harness = Harness::new();
        let mut process = harness
            .start(shell("echo no room >&2; exit 3"))
            .expect("starts");
        let error = process
            .line("ready", SOON)
            .await
            .expect_err("it ended")
            .to_string();
        assert!(error.contains("shell ended (exit status: 3)"), "{error}");
        assert!(error.contains("no room"), "{error}");
    }

    #[tokio::test]
    async fn a_paused_process_goes_on_when_told() {
        let harness = Harness::new();
        let mut process = harness
            .start(shell("echo up; exec tail -f /dev/null"))
            .expect("starts");
        process.line("up", SOON).await.expect("said");
        process.pause().await.expect("stopped");
        assert!(
            process.terminate(Millis(50)).await.is_err(),
            "a stopped process cannot end"
        );
        process.resume().expect("signalled");
        let status = process.ended(SOON).await.expect("ends");
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    }

    #[tokio::test]
    async fn a_killed_process_is_gone() {
        let harness = Harness::new();
        let mut process = harness
            .start(shell("echo up; exec tail -f /dev/null"))
            .expect("starts");
        process.line("up", SOON).await.expect("said");
        process.kill().await.expect("killed");
        assert!(process.pause().await.is_err(), "there is nothing to signal");
    }

    #[tokio::test]
    async fn output_is_what_was_printed() {
        let harness = Harness::new();
        let spec = shell("echo \"$WORD\"; exit 4").env("WORD", "hello");
        let output = harness.output(&spec, SOON).await.expect("ran");
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(4), &b"hello\n"[..])
        );
    }
}
