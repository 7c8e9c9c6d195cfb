//! `cluster`: adds clusters, lets their agents join, shows, closes, empties and opens them.
//!
//! Owns the short form of hosts. What a cluster then does is its agent's.

mod drain;
mod join;
mod show;

use std::str::FromStr;

use meridian_api::kinds::MemberCluster;
use meridian_api::kinds::member_cluster::{Backend, MemberClusterSpec, SimulatedHosts};
use meridian_api::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity};
use meridian_api::units::{Mebibytes, MilliCpus};
use meridian_client::{ClientError, Form};
use serde_json::Value;

use crate::args::{ClusterAddArgs, ClusterCommand, CordonArgs, Dry};
use crate::commands::{Bulk, check_here};
use crate::context::{Context, warn};
use crate::documents::Wanted;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::targets;

/// CPU of a simulated host for each card, in thousandths of a core: an 8-GPU server has about
/// 128 cores.
const CPU_PER_CARD: MilliCpus = MilliCpus(16_000);
/// Memory of a simulated host for each card, in MiB: an 8-GPU server has about 2 TiB.
const MEMORY_PER_CARD: Mebibytes = Mebibytes(256 * 1024);

/// `--pool`: hosts that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolArg(SimulatedHosts);

/// A text is not a description of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; write flavor=F,hosts=N,gpus-per-host=G[,pool=P][,cpu=C][,memory=M]")]
pub(crate) struct NotHosts(String);

impl FromStr for PoolArg {
    type Err = NotHosts;

    fn from_str(text: &str) -> Result<Self, NotHosts> {
        let mut hosts = SimulatedHosts {
            blocks: 1,
            racks_per_block: 1,
            ..SimulatedHosts::default()
        };
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| NotHosts(format!("{part:?} is not KEY=VALUE")))?;
            if seen.contains(&key) {
                return Err(NotHosts(format!("{key} is there twice")));
            }
            seen.push(key);
            set(&mut hosts, key, value)?;
        }
        for needed in ["flavor", "hosts", "gpus-per-host"] {
            if !seen.contains(&needed) {
                return Err(NotHosts(format!("{needed} is missing")));
            }
        }
        if hosts.pool.is_empty() {
            hosts.pool.clone_from(&hosts.flavor);
        }
        let cards = hosts.gpus_per_host.0.whole().max(1);
        let too_many = || NotHosts(format!("{cards} GPUs in one host are too many"));
        if !seen.contains(&"cpu") {
            hosts.cpu = CpuQuantity(CPU_PER_CARD.checked_mul(cards).ok_or_else(too_many)?);
        }
        if !seen.contains(&"memory") {
            let memory = MEMORY_PER_CARD.checked_mul(cards).ok_or_else(too_many)?;
            hosts.memory = MemoryQuantity(memory);
        }
        Ok(Self(hosts))
    }
}

fn set(hosts: &mut SimulatedHosts, key: &str, value: &str) -> Result<(), NotHosts> {
    let wrong = |error: &dyn std::fmt::Display| NotHosts(format!("{key}: {error}"));
    let count = || {
        let count: u32 = value.parse().map_err(|error| wrong(&error))?;
        match count {
            0 => Err(NotHosts(format!("{key} is 0"))),
            count => Ok(count),
        }
    };
    match key {
        "flavor" => value.clone_into(&mut hosts.flavor),
        "pool" => value.clone_into(&mut hosts.pool),
        "hosts" => hosts.hosts = count()?,
        "blocks" => hosts.blocks = count()?,
        "racks-per-block" => hosts.racks_per_block = count()?,
        "gpus-per-host" => {
            hosts.gpus_per_host = parse::<GpuQuantity>(value).map_err(|e| wrong(&e))?;
        }
        "cpu" => hosts.cpu = parse::<CpuQuantity>(value).map_err(|e| wrong(&e))?,
        "memory" => hosts.memory = parse::<MemoryQuantity>(value).map_err(|e| wrong(&e))?,
        _ => return Err(NotHosts(format!("there is no {key:?}"))),
    }
    Ok(())
}

fn parse<T: FromStr>(value: &str) -> Result<T, T::Err> {
    value.parse()
}

pub(crate) async fn run(context: &mut Context, command: ClusterCommand) -> Result<Exit, Failure> {
    match command {
        ClusterCommand::Add(args) => add(context, args).await,
        ClusterCommand::Join(args) => join::join(context, args).await,
        ClusterCommand::Manifests(args) => join::manifests(context, &args),
        ClusterCommand::Revoke(args) => join::revoke(context, args).await,
        ClusterCommand::List(args) => show::list(context, args).await,
        ClusterCommand::Describe(args) => show::describe(context, args).await,
        ClusterCommand::Drain(args) => drain::run(context, args).await,
        ClusterCommand::Cordon(args) => cordon(context, args, Door::Closed).await,
        ClusterCommand::Uncordon(args) => cordon(context, args, Door::Open).await,
    }
}

fn document(args: &ClusterAddArgs) -> Result<Value, Failure> {
    let cluster = MemberCluster::new(
        &args.name,
        MemberClusterSpec {
            region: args.region.clone(),
            backend: Backend::Simulated,
            simulated: args.pools.iter().map(|pool| pool.0.clone()).collect(),
            ..MemberClusterSpec::default()
        },
    );
    serde_json::to_value(cluster)
        .map_err(|error| Failure::Client(ClientError::Protocol(error.to_string())))
}

async fn add(context: &mut Context, args: ClusterAddArgs) -> Result<Exit, Failure> {
    let resource = targets::clusters();
    let wanted = Wanted {
        origin: "cluster add".into(),
        resource,
        value: document(&args)?,
    };
    let label = format!("{}/{}", resource.singular(), args.name);
    let object = if args.dry_run == Dry::Client {
        check_here(&wanted)?;
        wanted.value
    } else {
        let dry_run = args.dry_run.on_the_hub();
        let created = context.client.create(&resource, "", &wanted.value, dry_run);
        let written = created.await.map_err(|source| Failure::About {
            what: label.clone(),
            source,
        })?;
        warn(&label, &written.warnings);
        written.object
    };
    if let Some(printed) = context.print_objects(args.output, &[object], true) {
        printed?;
    } else {
        let suffix = args.dry_run.suffix();
        context.out.line(&format!("{label} created{suffix}"))?;
    }
    Ok(Exit::Done)
}

/// Whether new work comes to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    Closed,
}

impl Door {
    const fn word(self) -> &'static str {
        match self {
            Self::Open => "uncordoned",
            Self::Closed => "cordoned",
        }
    }
}

async fn cordon(context: &mut Context, args: CordonArgs, door: Door) -> Result<Exit, Failure> {
    let resource = targets::clusters();
    let mut bulk = Bulk::default();
    for name in &args.names {
        let label = format!("{}/{name}", resource.singular());
        match turn(context, name, door, args.dry_run).await {
            Ok(already) => {
                let (already, suffix) =
                    (if already { "already " } else { "" }, args.dry_run.suffix());
                let word = door.word();
                context
                    .out
                    .line(&format!("{label} {already}{word}{suffix}"))?;
            }
            Err(source) => bulk.tell(
                context,
                Failure::About {
                    what: label,
                    source,
                },
            )?,
        }
    }
    bulk.end(Exit::Done)
}

/// Returns whether it was so already.
async fn turn(context: &Context, name: &str, door: Door, dry: Dry) -> Result<bool, ClientError> {
    let (client, resource) = (&context.client, targets::clusters());
    let current = client.get(&resource, "", name, Form::Objects).await?;
    let is = |name: &str| current["spec"][name].as_bool().unwrap_or(false);
    let (cordoned, drained) = match door {
        // Closing does not end a drain.
        Door::Closed => (true, is("drained")),
        Door::Open => (false, false),
    };
    if (is("cordoned"), is("drained")) == (cordoned, drained) {
        return Ok(true);
    }
    drain::turn(context, name, cordoned, drained, dry).await?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_short_form() {
        let text = "flavor=h100-80gb,hosts=4,gpus-per-host=8,blocks=2";
        let PoolArg(hosts) = text.parse().expect("hosts");
        assert_eq!(hosts.pool, "h100-80gb");
        assert_eq!(
            (hosts.hosts, hosts.blocks, hosts.racks_per_block),
            (4, 2, 1)
        );
        assert_eq!(hosts.cpu.to_string(), "128");
        assert_eq!(hosts.memory.to_string(), "2048Gi");
        let PoolArg(own) = format!("{text},pool=train,cpu=64,memory=1Ti")
            .parse()
            .expect("hosts");
        assert_eq!(
            (own.pool.as_str(), own.cpu.to_string().as_str()),
            ("train", "64")
        );
    }

    #[test]
    fn what_is_wrong_with_hosts_is_named() {
        let cases = [
            ("flavor=a,hosts=4", "gpus-per-host is missing"),
            ("flavor=a,hosts=0,gpus-per-host=8", "hosts is 0"),
            ("flavor=a,hosts=x,gpus-per-host=8", "hosts:"),
            ("flavor=a,flavor=b", "flavor is there twice"),
            ("flavor=a,colour=red", "there is no \"colour\""),
            ("flavor", "not KEY=VALUE"),
            (
                "flavor=a,hosts=1,gpus-per-host=18446744073709551",
                "too many",
            ),
        ];
        for (text, want) in cases {
            let error = text.parse::<PoolArg>().expect_err(text).to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn an_added_cluster_passes_its_own_checks() {
        let args = ClusterAddArgs {
            name: "euw-a".into(),
            region: "eu-west".into(),
            pools: vec![
                "flavor=h100-80gb,hosts=4,gpus-per-host=8"
                    .parse()
                    .expect("hosts"),
            ],
            dry_run: Dry::None,
            output: crate::output::Format::Table,
        };
        let value = document(&args).expect("a document");
        assert_eq!(value["spec"]["backend"], "Simulated");
        let info = meridian_api::kinds::of(&value).expect("a kind");
        assert_eq!(info.check(&value), []);
    }
}
