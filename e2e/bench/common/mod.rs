//! What every bench needs: arguments, a report, measures of the machine, and raw etcd as the peer.
//!
//! Owns the form of a report, whose last line is one JSON object. Never asserts a time: a bench
//! measures, and fails only when the work was done wrongly.

pub(crate) mod hub;
pub(crate) mod measure;
pub(crate) mod peer;

use serde_json::{Map, Value, json};

/// As in the hub's own process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How a bench is to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    /// Small sizes: shows that the bench works, its figures mean nothing.
    pub(crate) quick: bool,
    /// Timed runs.
    pub(crate) runs: usize,
}

impl Arguments {
    /// Reads the command line; `--bench`, which cargo adds, means nothing here.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let mut read = Self {
            quick: false,
            runs: 5,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bench" => {}
                "--quick" => (read.quick, read.runs) = (true, 1),
                "--runs" => {
                    let count = words.next().and_then(|count| count.parse().ok());
                    read.runs = count
                        .filter(|runs| *runs > 0)
                        .ok_or_else(|| anyhow::anyhow!("--runs takes a number from 1"))?;
                }
                other => anyhow::bail!("unknown argument {other}; known: --quick, --runs N"),
            }
        }
        Ok(read)
    }
}

/// What a bench has found.
pub(crate) struct Report {
    /// Its name, as `make bench NAME=` takes it.
    pub(crate) name: &'static str,
    /// Sizes of the work.
    pub(crate) work: Value,
    /// Milliseconds of each timed run.
    pub(crate) runs_ms: Vec<f64>,
    /// CPU seconds of the median run, of all processes that took part.
    pub(crate) cpu_s: f64,
    /// The physical limit it is up against: what, its figure, and how far away the result is.
    pub(crate) limit: Value,
    /// Whether the work was done right.
    pub(crate) valid: bool,
    /// The bench's own figures.
    pub(crate) figures: Map<String, Value>,
}

impl Report {
    /// Prints the figures for people, then the one line for machines.
    pub(crate) fn print(self) {
        let (median, min) = (measure::median(&self.runs_ms), measure::min(&self.runs_ms));
        let mut all = json!({
            "name": self.name,
            "work": self.work,
            "median_ms": round(median),
            "min_ms": round(min),
            "cpu_s": round(self.cpu_s),
            "rss_mib": measure::peak_rss_mib(),
            "limit": self.limit,
            "valid": self.valid,
        });
        if let Some(all) = all.as_object_mut() {
            all.extend(self.figures);
            println!();
            for (name, value) in &*all {
                println!("{name:>28}  {value}");
            }
        }
        println!("{all}");
    }
}

/// Three digits after the point are more than any of these figures is worth.
pub(crate) fn round(figure: f64) -> Value {
    json!((figure * 1000.0).round() / 1000.0)
}

/// A count as a figure to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
pub(crate) fn float(count: usize) -> f64 {
    count as f64
}
