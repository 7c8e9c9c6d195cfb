//! `cluster drain`: closes a cluster and empties it; what ran there goes elsewhere.
//!
//! Owns the question before it and the waiting after it. Which gangs move, and where to, is the
//! hub's.

use meridian_api::errors::ErrorCode;
use meridian_api::units::{BootMillis, Millis};
use meridian_client::v1::ClusterResponse;
use meridian_client::{ClientError, DryRun};
use serde_json::json;

use crate::args::{ClusterDrainArgs, Dry};
use crate::commands::agree;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render;
use crate::targets;
use crate::text::{gpus, plural, span};

/// Gangs that are listed before the question: what a person reads.
const SHOWN: u32 = 10;
/// Time between two looks at what is left: a gang takes its own grace to stop, which is seconds.
const LOOK_EVERY: Millis = Millis::seconds(2);

pub(super) async fn run(context: &mut Context, args: ClusterDrainArgs) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let label = format!("{}/{name}", targets::clusters().singular());
    let about = |source| Failure::About {
        what: label.clone(),
        source,
    };
    let cluster = context.client.cluster(name, SHOWN).await.map_err(about)?;
    tell(context, &cluster);
    let asks = cluster.gangs_total > 0 && !cluster.drained && args.dry_run == Dry::None;
    if asks && !args.yes {
        let what = format!("drain {name}, which stops {}", left(&cluster));
        agree(context, &what, "nothing was changed")?;
    }
    if let Some(grace) = args.grace.filter(|_| args.dry_run == Dry::None) {
        turn(context, name, true, false, Dry::None)
            .await
            .map_err(about)?;
        context.out.line(&format!("{label} cordoned"))?;
        let until = context.clock.boot().after(grace.0);
        let waited = until_empty(context, name, Some(until)).await?;
        if let Waited::Interrupted = waited {
            note(&format!(
                "{name} is cordoned; drain it with `meridian cluster drain {name}`"
            ));
            return Ok(Exit::Interrupted);
        }
    }
    turn(context, name, true, true, args.dry_run)
        .await
        .map_err(about)?;
    let already = if cluster.drained { "already " } else { "" };
    let suffix = args.dry_run.suffix();
    context
        .out
        .line(&format!("{label} {already}drained{suffix}"))?;
    if args.dry_run != Dry::None {
        return Ok(Exit::Done);
    }
    note(&format!("undo it with `meridian cluster uncordon {name}`"));
    if args.wait {
        wait(context, &args).await
    } else {
        Ok(Exit::Done)
    }
}

/// What will move.
fn tell(context: &Context, cluster: &ClusterResponse) {
    if cluster.gangs_total == 0 {
        note(&format!("nothing is placed in {}", cluster.name));
        return;
    }
    let now = context.clock.wall();
    let grid = render::cluster::gangs(cluster, now);
    note(grid.to_text(crate::output::Headers::Shown).trim_end());
    let listed = u32::try_from(cluster.gangs.len()).unwrap_or(u32::MAX);
    let more = cluster.gangs_total.saturating_sub(listed);
    let more = if more > 0 {
        format!(", {more} of them not listed")
    } else {
        String::new()
    };
    note(&format!(
        "{} stand in {}{more}",
        left(cluster),
        cluster.name
    ));
}

/// `3 gangs with 24 GPUs`.
fn left(cluster: &ClusterResponse) -> String {
    let gangs = plural(cluster.gangs_total as usize, "gang");
    format!("{gangs} with {} GPUs", gpus(cluster.milli_gpus_total))
}

/// Sets whether a cluster is closed and whether it is emptied.
pub(super) async fn turn(
    context: &Context,
    name: &str,
    cordoned: bool,
    drained: bool,
    dry: Dry,
) -> Result<(), ClientError> {
    let dry_run = match dry {
        Dry::Client => return Ok(()),
        Dry::None => DryRun::No,
        Dry::Server => DryRun::Server,
    };
    let patch = json!({"spec": {"cordoned": cordoned, "drained": drained}});
    let clusters = targets::clusters();
    let patched = context
        .client
        .merge_patch(&clusters, "", name, &patch, dry_run);
    patched.await.map(drop)
}

/// How waiting ended.
enum Waited {
    Empty,
    Late(ClusterResponse),
    Interrupted,
}

async fn wait(context: &mut Context, args: &ClusterDrainArgs) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let deadline = args
        .timeout
        .map(|limit| context.clock.boot().after(limit.0));
    match until_empty(context, name, deadline).await? {
        Waited::Empty => {
            let label = targets::clusters().singular();
            context.out.line(&format!("{label}/{name} empty"))?;
            Ok(Exit::Done)
        }
        Waited::Interrupted => {
            note(&format!(
                "detached; the drain of {name} goes on\n  \
                 see:  meridian cluster describe {name}\n  \
                 undo: meridian cluster uncordon {name}"
            ));
            Ok(Exit::Interrupted)
        }
        Waited::Late(cluster) => {
            let limit = args.timeout.map_or(Millis::ZERO, |limit| limit.0);
            Err(Failure::Ended {
                code: Some(ErrorCode::TimedOut),
                message: format!("after {} {} stand in {name}", span(limit), left(&cluster)),
                fix: format!("see `meridian cluster describe {name}`; the drain goes on"),
                exit: Exit::TimedOut,
            })
        }
    }
}

/// Waits until nothing is placed there, showing what is left.
async fn until_empty(
    context: &Context,
    name: &str,
    deadline: Option<BootMillis>,
) -> Result<Waited, Failure> {
    let mut progress = context.progress();
    loop {
        let cluster = context.client.cluster(name, 1).await?;
        if cluster.gangs_total == 0 {
            return Ok(Waited::Empty);
        }
        progress.say(&format!("{name}: {} left", left(&cluster)));
        let now = context.clock.boot();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Waited::Late(cluster));
        }
        let next = now.after(LOOK_EVERY);
        let next = deadline.map_or(next, |deadline| deadline.min(next));
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(Waited::Interrupted),
            () = context.clock.sleep_until(next) => {}
        }
    }
}
