//! The training stand-in that real nodes run: it says who it is, writes down that it lives, keeps a
//! checkpoint, and behaves or misbehaves as its environment tells it.
//!
//! Owns the names of those variables and the loop. Talks to nobody but the agent that it was told
//! of.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;
use tokio::signal::unix::{SignalKind, signal};

use super::answer;
use super::truth::{Beat, Moment};

/// The variable with the pod's uid, from the downward API: its file of heartbeats is called so.
pub const POD_UID: &str = "MERIDIAN_POD_UID";
/// The variable with the pod's name.
pub const POD_NAME: &str = "MERIDIAN_POD_NAME";
/// The variable with the folder of heartbeats.
pub const HEARTBEAT_DIR: &str = "MERIDIAN_HEARTBEAT_DIR";
/// The variable with the milliseconds after which it ends; absent = it runs until it is stopped.
pub const RUN_FOR: &str = "TRAINER_RUN_FOR";
/// The variable with the code with which it then ends.
pub const EXIT_CODE: &str = "TRAINER_EXIT_CODE";
/// The variable that makes it crash at its start: `true`.
pub const CRASH: &str = "TRAINER_CRASH";
/// The variable that makes it ignore SIGTERM: `true`.
pub const IGNORE_TERM: &str = "TRAINER_IGNORE_TERM";
/// The variable with the milliseconds between two checkpoints.
pub const CHECKPOINT_EVERY: &str = "TRAINER_CHECKPOINT_EVERY";
/// The variable with the folder in which every placement of the gang has one for its checkpoints.
pub const CHECKPOINT_URI: &str = "MERIDIAN_CHECKPOINT_URI";
/// The variable with that of this placement.
pub const CHECKPOINT_PATH: &str = "MERIDIAN_CHECKPOINT_PATH";
/// The variable with the file that shows the pod's annotations, from the downward API.
pub const ANNOTATIONS: &str = "TRAINER_ANNOTATIONS";
/// The annotation that asks for a checkpoint; its value is the time by which it is wanted.
pub const CHECKPOINT_BY: &str = "meridian.dev/checkpoint-by";
/// What the last words of a container begin with when they tell of its newest checkpoint.
pub const CHECKPOINT: &str = "meridian.dev/checkpoint";
/// Where a kubelet reads the last words of a container.
const LAST_WORDS: &str = "/dev/termination-log";

/// Between two heartbeats, which is also how fine the ground truth is.
pub const BEAT_EVERY: Millis = Millis(200);
/// The code of a crash on demand: that of a panic.
const CRASH_CODE: u8 = 101;

/// What it is told, by variables of its environment.
#[derive(Clone, Debug, Args)]
pub struct TrainerOptions {
    /// Its job.
    #[arg(long, env = "MERIDIAN_JOB", default_value = "")]
    pub job: String,
    /// Its gang in the job.
    #[arg(long, env = "MERIDIAN_GANG", default_value = "0")]
    pub gang: String,
    /// The placement that it runs under.
    #[arg(long, env = "MERIDIAN_EPOCH", default_value_t = 0)]
    pub epoch: u64,
    /// Its rank in the gang.
    #[arg(long, env = "MERIDIAN_RANK", default_value_t = 0)]
    pub rank: u32,
    /// Ranks of the gang.
    #[arg(long, env = "MERIDIAN_WORLD_SIZE", default_value_t = 1)]
    pub world: u32,
    /// Its pod's uid.
    #[arg(long, env = POD_UID, default_value = "unknown")]
    pub pod_uid: String,
    /// Its pod's name.
    #[arg(long, env = POD_NAME, default_value = "")]
    pub pod_name: String,
    /// Folder of heartbeats; absent = it writes none.
    #[arg(long, env = HEARTBEAT_DIR)]
    pub heartbeats: Option<PathBuf>,
    /// Milliseconds after which it ends.
    #[arg(long, env = RUN_FOR)]
    pub run_for: Option<u64>,
    /// The code with which it then ends.
    #[arg(long, env = EXIT_CODE, default_value_t = 0)]
    pub exit_code: u8,
    /// Crashes at its start.
    #[arg(long, env = CRASH, default_value_t = false)]
    pub crash: bool,
    /// Ignores SIGTERM.
    #[arg(long, env = IGNORE_TERM, default_value_t = false)]
    pub ignore_term: bool,
    /// Milliseconds between two checkpoints.
    #[arg(long, env = CHECKPOINT_EVERY)]
    pub checkpoint_every: Option<u64>,
    /// Folder of the checkpoints of all placements, by their names; absent = there are no others.
    #[arg(long, env = CHECKPOINT_URI)]
    pub checkpoints: Option<String>,
    /// Folder of its own checkpoints; absent = it keeps none.
    #[arg(long, env = CHECKPOINT_PATH)]
    pub checkpoint_path: Option<String>,
    /// The agent's service for its pod; absent = it tells of checkpoints by its last words alone.
    #[arg(long, env = "MERIDIAN_AGENT_URL")]
    pub agent_url: Option<String>,
    /// By which the agent believes it.
    #[arg(long, env = "MERIDIAN_AGENT_TOKEN", default_value = "")]
    pub agent_token: String,
    /// File of the pod's annotations.
    #[arg(long, env = ANNOTATIONS, default_value = "/etc/meridian/annotations")]
    pub annotations: PathBuf,
}

/// Trains until it is done, told to stop, or made to fail; the exit code.
pub async fn train(options: TrainerOptions, clock: &Clock) -> io::Result<u8> {
    let mut told: Vec<(String, String)> = std::env::vars()
        .filter(|(name, _)| name.starts_with("MERIDIAN_") || name.ends_with("VISIBLE_DEVICES"))
        .filter(|(name, _)| !name.ends_with("_TOKEN"))
        .collect();
    told.sort();
    for (name, value) in told {
        println!("{name}={value}");
    }
    if options.crash {
        println!("crashing at the start, as told");
        return Ok(CRASH_CODE);
    }
    let mut trainer = Trainer::start(options, clock)?;
    let mut term = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            biased;
            _ = term.recv() => {
                if trainer.stop()? {
                    return Ok(0);
                }
            }
            () = clock.sleep(BEAT_EVERY) => {
                if let Some(code) = trainer.step(clock.boot())? {
                    return Ok(code);
                }
            }
        }
    }
}

/// Waits for SIGTERM: what holds a pod's namespaces does no more.
pub async fn pause() -> io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    term.recv().await;
    Ok(())
}

/// A run of the stand-in.
#[derive(Debug)]
struct Trainer {
    options: TrainerOptions,
    heartbeats: Option<File>,
    clock: Clock,
    started: BootMillis,
    saved: BootMillis,
    step: u64,
    /// The last request for a checkpoint that it answered.
    answered: Option<String>,
}

impl Trainer {
    fn start(options: TrainerOptions, clock: &Clock) -> io::Result<Self> {
        let open = |folder: &PathBuf| {
            let path = folder.join(format!("{}.jsonl", options.pod_uid));
            OpenOptions::new().create(true).append(true).open(path)
        };
        let heartbeats = options.heartbeats.as_ref().map(open).transpose()?;
        let step = last_saved(&options)?;
        let now = clock.boot();
        let mut trainer = Self {
            options,
            heartbeats,
            clock: clock.clone(),
            started: now,
            saved: now,
            step,
            answered: None,
        };
        println!("training from step {step}");
        trainer.beat(Moment::Started)?;
        Ok(trainer)
    }

    /// One step; the exit code when it was the last.
    fn step(&mut self, now: BootMillis) -> io::Result<Option<u8>> {
        self.step += 1;
        self.beat(Moment::Beat)?;
        let every = self.options.checkpoint_every.map(Millis);
        if every.is_some_and(|every| now.since(self.saved) >= every) {
            self.save(now)?;
        }
        if let Some(request) = self.request()
            && self.answered.as_ref() != Some(&request)
        {
            self.save(now)?;
            println!(
                "checkpoint wanted by {request}: written at step {}",
                self.step
            );
            self.answered = Some(request);
        }
        let run_for = self.options.run_for.map(Millis);
        if run_for.is_some_and(|limit| now.since(self.started) >= limit) {
            self.beat(Moment::Ended)?;
            return Ok(Some(self.options.exit_code));
        }
        Ok(None)
    }

    /// SIGTERM: true when it obeys.
    fn stop(&mut self) -> io::Result<bool> {
        if self.options.ignore_term {
            println!("SIGTERM is ignored, as told");
            return Ok(false);
        }
        self.save(self.clock.boot())?;
        self.beat(Moment::Ended)?;
        println!("stopped at step {}", self.step);
        Ok(true)
    }

    fn request(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.options.annotations).ok()?;
        requested(&text)
    }

    fn save(&mut self, now: BootMillis) -> io::Result<()> {
        let Some(uri) = &self.options.checkpoint_path else {
            return Ok(());
        };
        let folder = path(uri);
        std::fs::create_dir_all(folder)?;
        // A rename is whole or not at all: a kill in between leaves the older one.
        // Ranks of one placement share the folder.
        let part = folder.join(format!("step.{}.part", self.options.rank));
        let whole = folder.join("step");
        std::fs::write(&part, self.step.to_string())?;
        std::fs::rename(&part, &whole)?;
        self.saved = now;
        let time = jiff::Timestamp::from_millisecond(self.clock.wall().0);
        let time = time.map_err(io::Error::other)?;
        // Absent outside of a pod.
        let _ = std::fs::write(LAST_WORDS, format!("{CHECKPOINT}: {time}\n"));
        if let Some(url) = &self.options.agent_url {
            let told = answer::saved(url, &self.options.agent_token, &time.to_string());
            println!("the agent says: {told:?}");
        }
        self.beat(Moment::Saved)
    }

    fn beat(&mut self, what: Moment) -> io::Result<()> {
        let Some(file) = &mut self.heartbeats else {
            return Ok(());
        };
        let options = &self.options;
        let beat = Beat {
            at: self.clock.boot(),
            what,
            pod: options.pod_uid.clone(),
            name: options.pod_name.clone(),
            job: options.job.clone(),
            gang: options.gang.clone(),
            epoch: options.epoch,
            rank: options.rank,
            world: options.world,
            step: self.step,
        };
        // In one write, so that a reader never sees half a line of a killed one and then another.
        file.write_all(beat.line().as_bytes())
    }
}

/// The folder that a URI names, or that is named as it is.
fn path(uri: &str) -> &Path {
    Path::new(uri.strip_prefix("file://").unwrap_or(uri))
}

/// The step of its own checkpoint, else of the newest that another placement left, else 0.
fn last_saved(options: &TrainerOptions) -> io::Result<u64> {
    let own = options.checkpoint_path.as_deref().map(path);
    if let Some(step) = own.map(load).transpose()?.flatten() {
        return Ok(step);
    }
    let all = options.checkpoints.as_deref().map(path);
    let others = all.map(std::fs::read_dir).and_then(Result::ok);
    let mut others: Vec<PathBuf> = others
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    // Folders of placements are named so that the youngest is the last.
    others.sort();
    for folder in others.iter().rev() {
        if let Some(step) = load(folder)? {
            return Ok(step);
        }
    }
    Ok(0)
}

/// The step of the checkpoint in `folder`; `None` when there is none.
fn load(folder: &Path) -> io::Result<Option<u64>> {
    match std::fs::read_to_string(folder.join("step")) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The request in a downward API file of annotations: lines of `name="value"`.
fn requested(annotations: &str) -> Option<String> {
    let value = |line: &str| {
        let rest = line.strip_prefix(CHECKPOINT_BY)?.strip_prefix("=\"")?;
        Some(rest.strip_suffix('"')?.to_owned())
    };
    annotations.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_from_the_pods_annotations() {
        let file = "kubernetes.io/config.source=\"api\"\nmeridian.dev/checkpoint-by=\"t7\"\n";
        assert_eq!(requested(file), Some("t7".to_owned()));
        assert_eq!(requested("meridian.dev/checkpoint-bye=\"t7\""), None);
    }

    #[test]
    fn a_later_run_goes_on_from_the_newest_checkpoint() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |epoch: u32| {
            folder
                .path()
                .join(format!("{epoch:020}"))
                .display()
                .to_string()
        };
        let options = TrainerOptions {
            job: "job".into(),
            gang: "0".into(),
            epoch: 1,
            rank: 0,
            world: 1,
            pod_uid: "uid".into(),
            pod_name: "pod".into(),
            heartbeats: None,
            run_for: Some(0),
            exit_code: 4,
            crash: false,
            ignore_term: false,
            checkpoint_every: Some(0),
            checkpoints: Some(format!("file://{}", folder.path().display())),
            checkpoint_path: Some(of(9)),
            agent_url: None,
            agent_token: String::new(),
            annotations: folder.path().join("none"),
        };
        let clock = Clock::real();
        let mut first = Trainer::start(options.clone(), &clock).expect("starts");
        assert_eq!(first.step(clock.boot()).expect("steps"), Some(4));
        let again = Trainer::start(options.clone(), &clock).expect("starts");
        assert_eq!(again.step, 1, "its own");
        let checkpoint_path = Some(of(10));
        let options = TrainerOptions {
            checkpoint_path,
            ..options
        };
        let younger = Trainer::start(options, &clock).expect("starts");
        assert_eq!(younger.step, 1, "that of an older placement");
    }
}
