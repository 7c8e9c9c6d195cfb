//! `why`: every reason that a job waits, with numbers, or where it runs.
//!
//! Owns the question. The reasons are the hub's own.

use crate::args::WhyArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;
use crate::targets;

pub(crate) async fn run(context: &mut Context, args: WhyArgs) -> Result<Exit, Failure> {
    let name = targets::job(&args.job)?.name;
    let why = context.client.why(&context.namespace, &name).await?;
    let format = args.output.output;
    let value = render::why::value(&context.namespace, &name, &why);
    if format == Format::Name {
        context
            .out
            .line(&format!("{}/{name}", targets::jobs().singular()))?;
    } else if let Some(printed) = context.print_value(format, &value) {
        printed?;
    } else {
        let label = format!("{}/{name}", context.namespace);
        let now = context.clock.wall();
        let text = render::why::why(&label, &why, now, args.output.headers());
        context.out.text(&text)?;
    }
    Ok(Exit::Done)
}
