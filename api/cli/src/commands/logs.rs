//! `logs`: what the containers of a gang write, from its cluster through the hub.
//!
//! Owns which pods are read and how their lines are told apart. The lines are the containers' own,
//! handed on as they are.

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt as _, stream};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_client::{ClientError, LogText, v1};

use crate::args::LogsArgs;
use crate::commands::wait::{self, Waited};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::targets;

/// Pods that are read at once: half of what a hub allows for one cluster, so that two people can.
const MAX_PODS: usize = 32;

/// One pod of the gang.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    role: String,
    rank: u32,
}

impl Pod {
    /// What its lines begin with.
    fn prefix(&self) -> String {
        format!("{}-{}: ", self.role, self.rank)
    }
}

pub(crate) async fn run(context: &mut Context, args: LogsArgs) -> Result<Exit, Failure> {
    let name = targets::job(&args.job)?.name;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
        read = read(context, &args, &name) => read?,
    }
    if !args.follow_exit {
        return Ok(Exit::Done);
    }
    let waited = Waited {
        resource: targets::jobs(),
        namespace: context.namespace.clone(),
        name,
    };
    wait::quietly(context, &waited).await
}

async fn read(context: &mut Context, args: &LogsArgs, name: &str) -> Result<(), Failure> {
    if args.all {
        return read_all(context, args, name).await;
    }
    let pod = Pod {
        role: args.role.clone().unwrap_or_default(),
        rank: args.rank,
    };
    let mut text = open(context, args, name, &pod).await?;
    while let Some(part) = text.next().await? {
        context.out.raw(&part)?;
    }
    Ok(())
}

async fn open(
    context: &Context,
    args: &LogsArgs,
    name: &str,
    pod: &Pod,
) -> Result<LogText, ClientError> {
    let query = v1::LogQuery {
        role: pod.role.clone(),
        rank: pod.rank,
        container: args.container.clone().unwrap_or_default(),
        follow: args.follow,
        tail_lines: args.tail.unwrap_or_default(),
        has_tail: args.tail.is_some(),
        previous: args.previous,
        since_ms: args.since.map_or(0, |since| since.0.0),
        timestamps: args.timestamps,
    };
    let request = v1::LogsRequest {
        namespace: context.namespace.clone(),
        name: name.to_owned(),
        gang: args.gang,
        query: Some(query),
    };
    context.client.logs(request).await
}

/// The parts of one pod's text, with the pod's number.
type Parts = BoxStream<'static, (usize, Result<Bytes, ClientError>)>;

fn parts(number: usize, text: LogText) -> Parts {
    let parts = stream::unfold(Some(text), |text| async move {
        let mut text = text?;
        match text.next().await {
            Ok(None) => None,
            Ok(Some(part)) => Some((Ok(part), Some(text))),
            Err(error) => Some((Err(error), None)),
        }
    });
    parts.map(move |part| (number, part)).boxed()
}

/// Whole lines of all pods, as they come.
async fn read_all(context: &mut Context, args: &LogsArgs, name: &str) -> Result<(), Failure> {
    let pods = pods(context, args, name).await?;
    let mut all: SelectAll<Parts> = SelectAll::new();
    for (number, pod) in pods.iter().enumerate() {
        all.push(parts(number, open(context, args, name, pod).await?));
    }
    let mut pending = vec![BytesMut::new(); pods.len()];
    while let Some((number, part)) = all.next().await {
        pending[number].extend_from_slice(&part?);
        let lines = whole_lines(&mut pending[number], &pods[number].prefix());
        context.out.raw(&lines)?;
    }
    for (rest, pod) in pending.iter_mut().zip(&pods) {
        if !rest.is_empty() {
            rest.extend_from_slice(b"\n");
            let lines = whole_lines(rest, &pod.prefix());
            context.out.raw(&lines)?;
        }
    }
    Ok(())
}

/// Takes the whole lines out of `text`, each behind `prefix`.
fn whole_lines(text: &mut BytesMut, prefix: &str) -> Vec<u8> {
    let mut lines = Vec::new();
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        lines.extend_from_slice(prefix.as_bytes());
        lines.extend_from_slice(&text.split_to(end + 1));
    }
    lines
}

/// The pods that `--all` means, in the job's order.
async fn pods(context: &Context, args: &LogsArgs, name: &str) -> Result<Vec<Pod>, Failure> {
    let namespace = context.namespace.as_str();
    let job = context.client.get_as::<FederatedJobSpec>(namespace, name);
    let job = job.await?;
    let gang = job.gang(args.gang);
    let roles = gang.iter().flat_map(|gang| &gang.roles);
    let named = |role: &str| args.role.as_deref().is_none_or(|wanted| wanted == role);
    // An elastic role has this many pods for certain; more of them are read by rank.
    let pods = roles.filter(|role| named(role.name)).flat_map(|role| {
        (0..role.min).map(|rank| Pod {
            role: role.name.to_owned(),
            rank,
        })
    });
    let pods: Vec<Pod> = pods.take(MAX_PODS + 1).collect();
    if pods.len() > MAX_PODS {
        return Err(Failure::usage(
            format!("gang {} of {name} has more than {MAX_PODS} pods", args.gang),
            "name one role with --role, or one pod with --rank",
        ));
    }
    if pods.is_empty() {
        let role = args.role.as_deref().unwrap_or_default();
        return Err(Failure::usage(
            format!("gang {} of {name} has no role {role:?}", args.gang),
            format!("see its roles with `meridian describe job/{name}`"),
        ));
    }
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart_and_halves_wait_for_their_end() {
        let mut text = BytesMut::from("step 1\nstep 2\nst");
        let lines = whole_lines(&mut text, "worker-0: ");
        assert_eq!(lines, b"worker-0: step 1\nworker-0: step 2\n");
        assert_eq!(&text[..], b"st");
        text.extend_from_slice(b"ep 3\n");
        assert_eq!(whole_lines(&mut text, "w: "), b"w: step 3\n");
        assert!(text.is_empty());
    }
}
