//! `top`: the fleet on one screen, once or again and again.
//!
//! Owns the questions and the pace. The numbers are the agents' and the hub's.

use std::io::IsTerminal as _;

use meridian_api::kinds::tenant::TenantSpec;
use meridian_api::units::Millis;
use meridian_client::{Form, ListOptions, Resource};

use crate::args::{TopArgs, TopRows};
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render::top::{self, Fleet};

/// Time between two screens: agents beat as often, so that more would show nothing more.
const EVERY: Millis = Millis::seconds(2);
/// To the top left, and everything below goes.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

pub(crate) async fn run(context: &mut Context, args: TopArgs) -> Result<Exit, Failure> {
    let clears = args.watch && std::io::stdout().is_terminal() && is_table(args.output.output);
    loop {
        let fleet = ask(context).await?;
        if clears {
            context.out.raw(CLEAR)?;
        }
        show(context, &args, &fleet)?;
        if !args.watch {
            return Ok(Exit::Done);
        }
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
            () = context.clock.sleep(EVERY) => {}
        }
        if !clears && is_table(args.output.output) {
            context.out.line("")?;
        }
    }
}

const fn is_table(format: Format) -> bool {
    matches!(format, Format::Table | Format::Wide)
}

async fn ask(context: &Context) -> Result<Fleet, Failure> {
    let options = ListOptions {
        form: Form::Objects,
        ..ListOptions::default()
    };
    let tenants = Resource::of::<TenantSpec>();
    let capacity = context.client.capacity("", false).await?;
    let tenants = context.client.list(&tenants, None, &options).await?;
    Ok(Fleet {
        pools: capacity.pools,
        tenants: tenants.items,
    })
}

fn show(context: &mut Context, args: &TopArgs, fleet: &Fleet) -> Result<(), Failure> {
    let format = args.output.output;
    if let Some(printed) = context.print_value(format, &top::value(fleet)) {
        return printed;
    }
    if fleet.pools.is_empty() {
        note("no pools: no agent has reported any GPUs");
    }
    let all = [TopRows::Cluster, TopRows::Pool, TopRows::Tenant];
    let wanted = all
        .into_iter()
        .filter(|rows| args.by.is_none_or(|by| by == *rows));
    let mut first = true;
    for rows in wanted {
        let grid = top::grid(fleet, rows, format == Format::Wide);
        if grid.rows.is_empty() {
            continue;
        }
        if !std::mem::take(&mut first) {
            context.out.line("")?;
        }
        context.out.text(&grid.to_text(args.output.headers()))?;
    }
    Ok(())
}
