//! A recorded round: the snapshot, the plan that was made of it, and the code that made it.
//!
//! Owns the form of the file and the comparison with what `decide` makes of the same snapshot
//! here. Never reads or writes a file, and judges nothing: a plan that differs is shown, gang by
//! gang.
//!
//! ```text
//! {"meridianRound":1,"code":"0.1.0","sha256":"…of the second line…"}
//! {"snapshot":{…},"plan":{…}}
//! ```

use std::collections::BTreeMap;

use meridian_api::canonical::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::decide;
use crate::diagnosis::cards;
use crate::explain::cause_line;
use crate::model::{HeldIx, Placed, Plan, Regraded, Snapshot, Unplaced, WaitingIx};

/// Version of the form. Fields of snapshot and plan may be added without a new one.
pub const FORM: u32 = 1;
/// The code that decides here.
pub const CODE: &str = env!("CARGO_PKG_VERSION");
/// Longest first line that is looked for: three short fields.
const LONGEST_HEADER: usize = 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    meridian_round: u32,
    code: String,
    sha256: String,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    snapshot: &'a Snapshot,
    plan: &'a Plan,
}

#[derive(Debug, Deserialize)]
struct Read {
    snapshot: Snapshot,
    plan: Plan,
}

/// A round as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The code that made the plan.
    pub code: String,
    /// What it saw.
    pub snapshot: Snapshot,
    /// What it decided.
    pub plan: Plan,
}

/// A text that is no recorded round, or not the one that was written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its first line is not that of a round.
    #[error("this is no recorded round: its first line must say meridianRound, code and sha256")]
    NoRound,
    /// It is of a form that this code does not read.
    #[error(
        "the round is of form {found}, this code reads form {FORM}: use the code that wrote it"
    )]
    OtherForm {
        /// Its form.
        found: u32,
    },
    /// It was changed after it was written.
    #[error("the round was changed: its content has SHA-256 {found}, its first line says {said}")]
    Changed {
        /// Hash of the content.
        found: String,
        /// Hash that was written.
        said: String,
    },
    /// Its content cannot be understood, though nobody changed it.
    #[error("the round of code {code} cannot be read by code {CODE}")]
    Unreadable {
        /// The code that wrote it.
        code: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// The file of a round. Equal rounds of equal code give equal bytes.
pub fn write(snapshot: &Snapshot, plan: &Plan) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(&Written { snapshot, plan })?;
    let header = Header {
        meridian_round: FORM,
        code: CODE.to_owned(),
        sha256: hex(&Sha256::digest(&body).into()),
    };
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.reserve(body.len() + 2);
    bytes.push(b'\n');
    bytes.extend_from_slice(&body);
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads the file of a round.
///
/// # Errors
/// When it is none, was changed, or is of a form that this code does not know.
pub fn read(bytes: &[u8]) -> Result<Recorded, RecordError> {
    let head = &bytes[..bytes.len().min(LONGEST_HEADER)];
    let end = head.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or(RecordError::NoRound)?;
    let header: Header = serde_json::from_slice(&bytes[..end]).map_err(|_| RecordError::NoRound)?;
    if header.meridian_round != FORM {
        return Err(RecordError::OtherForm {
            found: header.meridian_round,
        });
    }
    let body = &bytes[end + 1..];
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    let found = hex(&Sha256::digest(body).into());
    if found != header.sha256 {
        return Err(RecordError::Changed {
            found,
            said: header.sha256,
        });
    }
    let read: Read = serde_json::from_slice(body).map_err(|source| RecordError::Unreadable {
        code: header.code.clone(),
        source,
    })?;
    Ok(Recorded {
        code: header.code,
        snapshot: read.snapshot,
        plan: read.plan,
    })
}

/// One gang of which the recorded plan and the one made here say different things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The gang, or what else differs.
    pub what: String,
    /// What was recorded; empty for nothing.
    pub recorded: Vec<String>,
    /// What is decided here; empty for nothing.
    pub here: Vec<String>,
}

impl Recorded {
    /// Decides once more and compares; empty when the plans are equal in every field.
    #[must_use]
    pub fn replay(&self) -> Vec<Difference> {
        self.compare(&decide(&self.snapshot))
    }

    /// Where `plan` differs from the recorded one, gang by gang in the order of the queue.
    #[must_use]
    pub fn compare(&self, plan: &Plan) -> Vec<Difference> {
        if self.plan == *plan {
            return Vec::new();
        }
        let (recorded, here) = (answers(&self.plan), answers(plan));
        let gangs = recorded.keys().chain(here.keys());
        let gangs: std::collections::BTreeSet<WaitingIx> = gangs.copied().collect();
        let mut found = Vec::new();
        for gang in gangs {
            let (was, is) = (recorded.get(&gang), here.get(&gang));
            if was != is {
                found.push(Difference {
                    what: name(&self.snapshot, gang),
                    recorded: lines(&self.snapshot, was),
                    here: lines(&self.snapshot, is),
                });
            }
        }
        if self.plan.regraded != plan.regraded {
            found.push(Difference {
                what: "quota that placements stand on".to_owned(),
                recorded: regraded(&self.snapshot, &self.plan),
                here: regraded(&self.snapshot, plan),
            });
        }
        if (&self.plan.preemptions, &self.plan.lapsed) != (&plan.preemptions, &plan.lapsed) {
            found.push(Difference {
                what: "who makes room for whom".to_owned(),
                recorded: making_room(&self.snapshot, &self.plan),
                here: making_room(&self.snapshot, plan),
            });
        }
        if self.plan.returning != plan.returning {
            let gangs = |plan: &Plan| {
                let gang = |held: &HeldIx| self.snapshot.held.get(held.index());
                let gangs = plan.returning.iter().filter_map(gang);
                gangs.map(|held| format!("gang {}", held.gang)).collect()
            };
            found.push(Difference {
                what: "what goes back to an earlier group".to_owned(),
                recorded: gangs(&self.plan),
                here: gangs(plan),
            });
        }
        if found.is_empty() {
            // The same for every gang, told or decided in another order.
            found.push(Difference {
                what: "order".to_owned(),
                recorded: order(&self.snapshot, &self.plan),
                here: order(&self.snapshot, plan),
            });
        }
        found
    }
}

/// What a plan says of each gang; more than one answer for a gang is a defect that shows.
type Answers<'a> = BTreeMap<WaitingIx, (Vec<&'a Placed>, Vec<&'a Unplaced>)>;

fn answers(plan: &Plan) -> Answers<'_> {
    let mut answers = Answers::new();
    for placed in &plan.placements {
        answers.entry(placed.waiting).or_default().0.push(placed);
    }
    for unplaced in &plan.unplaced {
        answers
            .entry(unplaced.waiting)
            .or_default()
            .1
            .push(unplaced);
    }
    answers
}

fn name(snapshot: &Snapshot, ix: WaitingIx) -> String {
    match snapshot.waiting.get(ix.index()) {
        Some(gang) => format!("{} gang {}", gang.job, gang.gang.index),
        None => format!("gang {} of {}", ix.0, snapshot.waiting.len()),
    }
}

fn lines(snapshot: &Snapshot, answer: Option<&(Vec<&Placed>, Vec<&Unplaced>)>) -> Vec<String> {
    let mut lines = Vec::new();
    let Some((placed, unplaced)) = answer else {
        return lines;
    };
    for placed in placed {
        let pool = snapshot.pools.get(placed.pool.index());
        let cluster = pool.and_then(|pool| snapshot.clusters.get(pool.cluster.index()));
        let place = match (cluster, pool) {
            (Some(cluster), Some(pool)) => format!("{}/{}", cluster.name, pool.name),
            _ => format!("pool {}", placed.pool.0),
        };
        lines.push(format!("placed in {place}, {}", cards(placed.gpus)));
        lines.extend(placed.takes.iter().map(|take| {
            format!(
                "  role {}: {} x {} in {}, on {} free",
                take.role,
                take.hosts,
                take.pods_per_host,
                if take.domains.is_empty() {
                    "the pool".to_owned()
                } else {
                    take.domains.join("/")
                },
                cards(take.free.gpus),
            )
        }));
        lines.push(format!("  score {:?}", placed.score));
    }
    for unplaced in unplaced {
        let causes = unplaced.reasons.iter();
        lines.extend(causes.map(|cause| format!("waits: {}", cause_line(snapshot, cause))));
    }
    lines
}

fn regraded(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let line = |regraded: &Regraded| {
        let held = snapshot.held.get(regraded.held.index());
        let gang = held.map_or_else(
            || format!("placement {}", regraded.held.0),
            |held| format!("gang {}", held.gang),
        );
        format!("{gang}: {:?}", regraded.rows)
    };
    plan.regraded.iter().map(line).collect()
}

fn making_room(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let made = plan.preemptions.iter();
    let made = made.flat_map(|made| crate::preempt::words::lines(snapshot, made));
    let lapsed = plan.lapsed.iter();
    let lapsed = lapsed.map(|it| format!("hold {} ends: {:?}", it.hold.0, it.why));
    made.chain(lapsed).collect()
}

fn order(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let placed = plan.placements.iter().map(|placed| placed.waiting);
    let unplaced = plan.unplaced.iter().map(|unplaced| unplaced.waiting);
    placed
        .chain(unplaced)
        .map(|ix| name(snapshot, ix))
        .collect()
}
