//! `queue`: the order in which waiting gangs go.
//!
//! Owns the question. The order is the hub's.

use crate::args::QueueArgs;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;
use crate::targets;

pub(crate) async fn run(context: &mut Context, args: QueueArgs) -> Result<Exit, Failure> {
    let tenant = args.tenant.as_deref().unwrap_or_default();
    let queue = context.client.queue(args.limit, tenant).await?;
    let format = args.output.output;
    if format == Format::Name {
        for entry in &queue.entries {
            let label = targets::jobs().singular();
            context.out.line(&format!("{label}/{}", entry.name))?;
        }
        return Ok(Exit::Done);
    }
    let value = render::queue::value(&queue);
    if let Some(printed) = context.print_value(format, &value) {
        printed?;
        return Ok(Exit::Done);
    }
    if !queue.entries.is_empty() {
        let shown = render::queue::Shown {
            wide: format == Format::Wide,
            eta: args.eta,
        };
        let grid = render::queue::grid(&queue, context.clock.wall(), shown);
        context.out.text(&grid.to_text(args.output.headers()))?;
    }
    note(&render::queue::footer(&queue));
    Ok(Exit::Done)
}
