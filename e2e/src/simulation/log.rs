//! The log of one run: what two runs of a seed must agree on, byte for byte.
//!
//! Owns its digest and its newest lines. Every line begins with simulated time; nothing of the
//! machine gets in.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::units::UnixMillis;
use sha2::{Digest as _, Sha256};

use super::BEGIN;

/// Lines that a violation is shown with: some seconds of a busy run.
const TAIL: usize = 60;

/// Whether lines are printed as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// They are.
    Yes,
    /// Only their digest is kept, and the newest.
    No,
}

/// Where everybody writes what happens. Cheap to clone; all clones are one log.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Mutex<Inside>>);

#[derive(Debug)]
struct Inside {
    digest: Sha256,
    lines: u64,
    tail: VecDeque<String>,
    echo: Echo,
}

impl Log {
    pub(crate) fn new(echo: Echo) -> Self {
        Self(Arc::new(Mutex::new(Inside {
            digest: Sha256::new(),
            lines: 0,
            tail: VecDeque::new(),
            echo,
        })))
    }

    /// Writes one line.
    pub(crate) fn line(&self, now: UnixMillis, text: &str) {
        let line = format!("{:>7} {text}", now.since(BEGIN).0);
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.echo == Echo::Yes {
            println!("{line}");
        }
        inside.digest.update(&line);
        inside.digest.update(b"\n");
        inside.lines += 1;
        inside.tail.push_back(line);
        if inside.tail.len() > TAIL {
            inside.tail.pop_front();
        }
    }

    /// Number of lines, and the SHA-256 of all of them in hexadecimal.
    pub(crate) fn sum(&self) -> (u64, String) {
        let inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (inside.lines, hex(&inside.digest.clone().finalize()))
    }

    /// The newest lines.
    pub(crate) fn tail(&self) -> Vec<String> {
        let inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inside.tail.iter().cloned().collect()
    }
}

/// Bytes as hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A short fingerprint of a value.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..4])
}
