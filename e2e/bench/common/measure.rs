//! Measures of the machine: time, CPU, memory, and what a write to its disk costs.
//!
//! Owns the only reading of clocks finer than the runtime's milliseconds. Never interprets.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

/// Writes of one disk probe: enough for a steady median, half a second on the slowest disk.
const PROBES: usize = 128;

/// Measures one span of real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(f64);

impl Stopwatch {
    /// Begins to measure.
    pub(crate) fn start() -> Self {
        Self(seconds(ClockId::Monotonic))
    }

    /// Seconds since the start.
    pub(crate) fn seconds(self) -> f64 {
        seconds(ClockId::Monotonic) - self.0
    }

    /// Milliseconds since the start.
    pub(crate) fn millis(self) -> f64 {
        self.seconds() * 1000.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds since boot")]
fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU seconds that this process has used.
pub(crate) fn own_cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// CPU seconds of this process's living threads of that name.
pub(crate) fn threads_cpu(name: &str) -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return 0.0;
    };
    let of_thread = |thread: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
        if read("comm")?.trim() != name {
            return None;
        }
        // Nanoseconds on a CPU come first.
        let nanos: f64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
        Some(nanos / 1e9)
    };
    threads.flatten().filter_map(of_thread).sum()
}

/// Most memory that this process has held, MiB.
pub(crate) fn peak_rss_mib() -> u64 {
    kib_of("/proc/self/status", "VmHWM:") / 1024
}

/// Memory that this process holds, bytes.
pub(crate) fn rss_bytes() -> u64 {
    kib_of("/proc/self/status", "VmRSS:") * 1024
}

/// Memory that this machine can still give, bytes.
pub(crate) fn available_bytes() -> u64 {
    kib_of("/proc/meminfo", "MemAvailable:") * 1024
}

/// A line of such a file, in KiB; 0 when it is not there.
fn kib_of(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0)
}

/// Median milliseconds of a 4 KiB write and fdatasync in `folder`.
pub(crate) fn fdatasync_p50_ms(folder: &Path) -> std::io::Result<f64> {
    let path = folder.join("probe");
    let mut file = File::create(&path)?;
    file.write_all(&vec![0; 4096 * PROBES])?;
    file.sync_all()?;
    file.rewind()?;
    let mut samples = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let watch = Stopwatch::start();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        samples.push(watch.millis());
    }
    std::fs::remove_file(&path)?;
    Ok(median(&samples))
}

/// The middle one; of an even number the lower.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The smallest.
pub(crate) fn min(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The smallest sample that is not below the share `q` of all.
pub(crate) fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is a length"
    )]
    let rank = (super::float(sorted.len()) * q).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}
