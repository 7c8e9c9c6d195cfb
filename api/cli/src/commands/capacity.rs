//! `capacity`: GPUs by flavor, region, cluster and pool, as last reported.
//!
//! Owns the question. The numbers are the agents'.

use crate::args::CapacityArgs;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;

pub(crate) async fn run(context: &mut Context, args: CapacityArgs) -> Result<Exit, Failure> {
    let flavor = args.flavor.as_deref().unwrap_or_default();
    let capacity = context.client.capacity(flavor, args.gangs).await?;
    let format = args.output.output;
    if let Some(printed) = context.print_value(format, &render::capacity::value(&capacity)) {
        printed?;
        return Ok(Exit::Done);
    }
    if capacity.pools.is_empty() {
        note("no pools: no agent has reported any GPUs");
        return Ok(Exit::Done);
    }
    let grid = if args.gangs {
        render::capacity::gangs(&capacity)
    } else {
        render::capacity::grid(&capacity, format == Format::Wide)
    };
    context.out.text(&grid.to_text(args.output.headers()))?;
    if let Some(footer) = render::capacity::footer(&capacity) {
        note(&footer);
    }
    Ok(Exit::Done)
}
