//! Why a gang with a hold still waits, and who makes room for whom, in words.
//!
//! Owns the texts on both sides of a preemption. Never decides.

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, UnixMillis};

use super::given_up;
use crate::decide::Round;
use crate::diagnosis::cards;
use crate::model::{
    Amounts, Cause, Estimate, PoolIx, Preemption, Snapshot, Victim, WaitingIx, Yield,
};

/// Victims that are named; a reader of more reads the plan.
const NAMED: usize = 3;

impl Round<'_> {
    /// Why a gang for which room is made waits, and when it may start; `None` for any other.
    pub(crate) fn waits_for(&self, ix: WaitingIx) -> Option<(Cause, Estimate)> {
        let snapshot = self.snapshot;
        if let Some(made) = self.preemptions.made.iter().find(|made| made.waiting == ix) {
            let names = made.victims.iter().map(|victim| name(snapshot, victim));
            let freed = made.victims.iter().map(|victim| freed(snapshot, victim));
            let freed = freed.fold(MilliGpus::ZERO, MilliGpus::saturating_add);
            let words = Words {
                pool: made.pool,
                need: made.gpus,
                freed,
                until: made.until,
                is_reclaim: made.is_reclaim(),
            };
            return Some(words.tell(snapshot, &names.collect::<Vec<_>>()));
        }
        let hold = &snapshot.holds[self.preemptions.hold_of(ix)?.index()];
        let there = hold.victims.iter();
        let names = there
            .clone()
            .map(|it| snapshot.held[it.held.index()].standing.job.clone());
        let freed = there.map(|it| it.resources.gpus);
        let words = Words {
            pool: hold.pool?,
            need: hold.resources.gpus,
            freed: freed.fold(MilliGpus::ZERO, MilliGpus::saturating_add),
            until: hold.until,
            is_reclaim: hold.is_reclaim,
        };
        Some(words.tell(snapshot, &names.collect::<Vec<_>>()))
    }
}

struct Words {
    pool: PoolIx,
    need: MilliGpus,
    freed: MilliGpus,
    until: UnixMillis,
    is_reclaim: bool,
}

impl Words {
    fn tell(&self, snapshot: &Snapshot, names: &[String]) -> (Cause, Estimate) {
        let pool = &snapshot.pools[self.pool.index()];
        let cluster = &snapshot.clusters[pool.cluster.index()].name;
        let left = self.until.since(snapshot.now).0.div_ceil(1000);
        let who = list(names);
        let message = format!(
            "pool {} of {cluster} is held for it: {who} give up {}; placed within {left} s",
            pool.name,
            cards(self.freed),
        );
        let reason = if self.is_reclaim {
            Reason::WaitingForReclaim
        } else {
            Reason::WaitingForPreemption
        };
        let cause = Cause {
            reason,
            cluster: Some(pool.cluster),
            flavor: Some(pool.flavor),
            amounts: Some(Amounts {
                need: self.need,
                free: MilliGpus::ZERO,
                limit: self.freed,
            }),
            message: message.into(),
        };
        let start = Estimate {
            earliest: snapshot.now,
            latest: Some(self.until),
        };
        (cause, start)
    }
}

/// The first few names, and how many more.
fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match names.len() {
        0 => "others, who have left,".to_owned(),
        all if all > NAMED => format!("{} and {} more", shown.join(", "), all - NAMED),
        _ => shown.join(", "),
    }
}

fn name(snapshot: &Snapshot, victim: &Victim) -> String {
    let held = &snapshot.held[victim.held.index()];
    format!("{} gang {}", held.standing.job, held.gang.index)
}

fn freed(snapshot: &Snapshot, victim: &Victim) -> MilliGpus {
    given_up(&snapshot.held[victim.held.index()], &victim.does).gpus
}

/// One victim on one line: who, what it does, by which rule, and what is lost.
#[must_use]
pub fn victim_line(snapshot: &Snapshot, victim: &Victim) -> String {
    let does = match &victim.does {
        Yield::Evict => "goes".to_owned(),
        Yield::Move(next) => {
            let pool = &snapshot.pools[next.pool.index()];
            let cluster = &snapshot.clusters[pool.cluster.index()].name;
            format!("goes on in {cluster}/{}", pool.name)
        }
        Yield::Shrink { pods, .. } => format!("goes on with {pods:?} pods"),
    };
    format!(
        "{}: {does}, {} come free, {}; {} lost, cost {}",
        name(snapshot, victim),
        cards(freed(snapshot, victim)),
        victim.rule.words(),
        work(victim.lost),
        work(victim.cost),
    )
}

/// The whole decision on a few lines.
#[must_use]
pub fn lines(snapshot: &Snapshot, made: &Preemption) -> Vec<String> {
    let pool = &snapshot.pools[made.pool.index()];
    let cluster = &snapshot.clusters[pool.cluster.index()].name;
    let gang = &snapshot.waiting[made.waiting.index()];
    let left = made.until.since(snapshot.now).0.div_ceil(1000);
    let first = format!(
        "{} gang {} <- {cluster}/{}, {}, cost {}, held for {left} s",
        gang.job,
        gang.gang.index,
        pool.name,
        cards(made.gpus),
        work(made.cost),
    );
    let victims = made.victims.iter();
    let victims = victims.map(|victim| format!("  {}", victim_line(snapshot, victim)));
    let room = made.room.iter().map(|room| {
        let place = match room.domains.as_slice() {
            [] => "the pool".to_owned(),
            domains => domains.join("/"),
        };
        let need = cards(room.need.gpus);
        format!("  held: {need} on each of {} hosts in {place}", room.hosts)
    });
    std::iter::once(first).chain(victims).chain(room).collect()
}

/// Work in hours of the reference card, with two places.
#[must_use]
pub fn work(amount: u64) -> String {
    let hundredths = amount / 36_000;
    format!("{}.{:02} GPU-h", hundredths / 100, hundredths % 100)
}
