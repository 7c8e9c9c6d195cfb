//! `cluster list` and `cluster describe`: what is declared, heard, reported and placed.
//!
//! Owns the questions. The numbers are the agents' and the hub's.

use meridian_client::{Form, ListOptions};

use crate::args::{ClusterDescribeArgs, ClusterListArgs};
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;
use crate::targets;

pub(super) async fn list(context: &mut Context, args: ClusterListArgs) -> Result<Exit, Failure> {
    let options = ListOptions {
        form: Form::Objects,
        ..ListOptions::default()
    };
    let clusters = targets::clusters();
    let listing = context.client.list(&clusters, None, &options).await?;
    let format = args.output.output;
    if let Some(printed) = context.print_objects(format, &listing.items, false) {
        printed?;
        return Ok(Exit::Done);
    }
    if listing.items.is_empty() {
        note("no clusters; add one with `meridian cluster add`");
        return Ok(Exit::Done);
    }
    let capacity = context.client.capacity("", false).await?;
    let now = context.clock.wall();
    let wide = format == Format::Wide;
    let grid = render::cluster::grid(&listing.items, &capacity, now, wide);
    context.out.text(&grid.to_text(args.output.headers()))?;
    Ok(Exit::Done)
}

pub(super) async fn describe(
    context: &mut Context,
    args: ClusterDescribeArgs,
) -> Result<Exit, Failure> {
    let cluster = context.client.cluster(&args.name, args.limit).await?;
    match args.output {
        Format::Name => {
            let label = targets::clusters().singular();
            context.out.line(&format!("{label}/{}", cluster.name))?;
        }
        Format::Json | Format::Yaml => {
            let value = render::cluster::value(&cluster);
            if let Some(printed) = context.print_value(args.output, &value) {
                printed?;
            }
        }
        Format::Table | Format::Wide => {
            let page = render::cluster::page(&cluster, context.clock.wall());
            context.out.text(&page)?;
        }
    }
    Ok(Exit::Done)
}
