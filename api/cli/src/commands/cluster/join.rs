//! `cluster join`, `manifests` and `revoke`: the way of an agent to its hub, and its end.
//!
//! Owns the line that starts an agent. The token in it is shown once; the hub keeps its hash.

use std::net::IpAddr;

use meridian_api::kinds::MemberCluster;
use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::units::Millis;
use meridian_client::{ClientError, DryRun, FailureKind, Form, v1};
use serde_json::{Value, json};

use crate::args::{ClusterJoinArgs, ClusterManifestsArgs, ClusterRevokeArgs, Dry, JoinFormat};
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::manifests::{self, Installation};
use crate::targets;

/// Stands for the token where none is made.
const NO_TOKEN: &str = "TOKEN";
/// Stands for what only the hub knows where it is not asked.
const NO_HASH: &str = "CA-HASH";

pub(super) async fn join(context: &mut Context, args: ClusterJoinArgs) -> Result<Exit, Failure> {
    let label = format!("{}/{}", targets::clusters().singular(), args.name);
    let about = |source| Failure::About {
        what: label.clone(),
        source,
    };
    let known = known(context, &args.name).await.map_err(about)?;
    match &known {
        Some(cluster) => check_region(&args, cluster)?,
        None => declare(context, &args, &label).await?,
    }
    let invited = if args.dry_run == Dry::None || (args.dry_run == Dry::Server && known.is_some()) {
        let ttl = args.ttl.map(|ttl| ttl.0);
        let dry_run = args.dry_run.on_the_hub();
        let invited = context.client.invite_agent(&args.name, ttl, dry_run).await;
        invited.map_err(about)?
    } else {
        // A cluster that is not there cannot be asked about.
        v1::InviteResponse::default()
    };
    let installation = installation(&args, &invited);
    tell(context, &args, &installation, Millis(invited.ttl_ms))
}

async fn known(context: &Context, name: &str) -> Result<Option<Value>, ClientError> {
    let (client, resource) = (&context.client, targets::clusters());
    match client.get(&resource, "", name, Form::Objects).await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if error.is(FailureKind::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A cluster does not move.
fn check_region(args: &ClusterJoinArgs, cluster: &Value) -> Result<(), Failure> {
    let is = cluster["spec"]["region"].as_str().unwrap_or_default();
    match args.region.as_deref() {
        Some(asked) if asked != is => Err(Failure::usage(
            format!("cluster {} is in region {is}, not {asked}", args.name),
            "leave --region out, or join it under another name",
        )),
        Some(_) | None => Ok(()),
    }
}

async fn declare(
    context: &mut Context,
    args: &ClusterJoinArgs,
    label: &str,
) -> Result<(), Failure> {
    let Some(region) = args.region.clone() else {
        return Err(Failure::usage(
            format!(
                "there is no cluster {}, and no region to add it to",
                args.name
            ),
            format!("meridian cluster join {} --region REGION", args.name),
        ));
    };
    let cluster = MemberCluster::new(
        &args.name,
        MemberClusterSpec {
            region,
            ..MemberClusterSpec::default()
        },
    );
    let cluster = serde_json::to_value(cluster)
        .map_err(|error| Failure::Client(ClientError::Protocol(error.to_string())))?;
    if args.dry_run != Dry::Client {
        let dry_run = args.dry_run.on_the_hub();
        let resource = targets::clusters();
        let created = context.client.create(&resource, "", &cluster, dry_run);
        created.await.map_err(|source| Failure::About {
            what: label.to_owned(),
            source,
        })?;
    }
    // Beside the data, which is the line alone.
    note(&format!("{label} created{}", args.dry_run.suffix()));
    Ok(())
}

fn installation(args: &ClusterJoinArgs, invited: &v1::InviteResponse) -> Installation {
    let or = |text: &str, other: &str| match text {
        "" => other.to_owned(),
        text => text.to_owned(),
    };
    Installation {
        cluster: args.name.clone(),
        hub: args
            .hub
            .clone()
            .unwrap_or_else(|| or(&invited.hub, "HOST:PORT")),
        ca_hash: or(&invited.ca_hash, NO_HASH),
        token: or(&invited.token, NO_TOKEN),
        image: args.image.image.clone(),
    }
}

fn tell(
    context: &mut Context,
    args: &ClusterJoinArgs,
    installation: &Installation,
    ttl: Millis,
) -> Result<Exit, Failure> {
    let line = line(installation);
    match args.output {
        JoinFormat::Line => {
            context.out.line(&line)?;
            if args.dry_run == Dry::None {
                let ttl = meridian_api::quantity::Span(ttl);
                note(&format!(
                    "run this line where kubectl reaches the member cluster; the token in it lets \
                     one agent join, once, within {ttl}, and is not shown again"
                ));
            }
        }
        JoinFormat::Json => context.out.json(&json!({
            "cluster": installation.cluster,
            "hub": installation.hub,
            "caHash": installation.ca_hash,
            "token": installation.token,
            "ttlMs": ttl.0,
            "line": line,
        }))?,
        JoinFormat::Yaml => context.out.text(&manifests::yaml(installation))?,
    }
    if is_here_only(&installation.hub) {
        note(&format!(
            "warning: {} reaches a hub on the same machine only; give --hub HOST:PORT, or set \
             agentsAdvertise in the hub's configuration",
            installation.hub
        ));
    }
    Ok(Exit::Done)
}

/// One line, so that it can be pasted. Nothing in it needs quotes.
fn line(installation: &Installation) -> String {
    let Installation {
        hub,
        ca_hash,
        token,
        image,
        ..
    } = installation;
    format!(
        "meridian cluster manifests --hub {hub} --ca-hash {ca_hash} --token {token} \
         --image {image} | kubectl apply -f -"
    )
}

fn is_here_only(hub: &str) -> bool {
    let host = hub.rsplit_once(':').map_or(hub, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let unreachable = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    host == "localhost" || host.parse().is_ok_and(unreachable)
}

pub(super) fn manifests(
    context: &mut Context,
    args: &ClusterManifestsArgs,
) -> Result<Exit, Failure> {
    let installation = Installation {
        cluster: args.token.cluster().to_owned(),
        hub: args.hub.clone(),
        ca_hash: args.ca_hash.to_string(),
        token: args.token.reveal(),
        image: args.image.image.clone(),
    };
    context.out.text(&manifests::yaml(&installation))?;
    Ok(Exit::Done)
}

pub(super) async fn revoke(
    context: &mut Context,
    args: ClusterRevokeArgs,
) -> Result<Exit, Failure> {
    let label = format!("{}/{}", targets::clusters().singular(), args.name);
    let about = |source| Failure::About {
        what: label.clone(),
        source,
    };
    let changed = match args.dry_run {
        Dry::Client => true,
        Dry::None | Dry::Server => {
            let dry_run: DryRun = args.dry_run.on_the_hub();
            let revoked = context.client.revoke_agent(&args.name, dry_run).await;
            revoked.map_err(about)?
        }
    };
    let (word, suffix) = (
        if changed { "revoked" } else { "had no agent" },
        args.dry_run.suffix(),
    );
    context.out.line(&format!("{label} {word}{suffix}"))?;
    if changed && args.dry_run == Dry::None {
        note("its session ends within seconds; what runs in the cluster goes on");
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_one_line_with_everything_in_it() {
        let installation = Installation {
            cluster: "euw-a".to_owned(),
            hub: "hub.example.com:7443".to_owned(),
            ca_hash: "sha256:00".to_owned(),
            token: "mj1.euw-a.00".to_owned(),
            image: "meridian-agent:1".to_owned(),
        };
        assert_eq!(
            line(&installation),
            "meridian cluster manifests --hub hub.example.com:7443 --ca-hash sha256:00 --token \
             mj1.euw-a.00 --image meridian-agent:1 | kubectl apply -f -"
        );
    }

    #[test]
    fn a_hub_that_only_this_machine_reaches_is_told() {
        for hub in ["127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1"] {
            assert!(is_here_only(hub), "{hub}");
        }
        assert!(!is_here_only("10.0.0.7:7443") && !is_here_only("hub.example.com:7443"));
    }
}
