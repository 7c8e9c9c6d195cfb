//! `tenant tree`: what each tenant has, uses, borrows and lends.
//!
//! Owns the question. The sums are the hub's.

use crate::args::{TenantCommand, TenantTreeArgs};
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;

pub(crate) async fn run(context: &mut Context, command: TenantCommand) -> Result<Exit, Failure> {
    match command {
        TenantCommand::Tree(args) => tree(context, args).await,
    }
}

async fn tree(context: &mut Context, args: TenantTreeArgs) -> Result<Exit, Failure> {
    let tenant = args.tenant.as_deref().unwrap_or_default();
    let tree = context.client.tenants(tenant).await?;
    let format = args.output.output;
    if format == Format::Name {
        for node in &tree.tenants {
            context.out.line(&format!("tenant/{}", node.name))?;
        }
        return Ok(Exit::Done);
    }
    if let Some(printed) = context.print_value(format, &render::tenancy::tree_value(&tree)) {
        printed?;
        return Ok(Exit::Done);
    }
    if tree.tenants.is_empty() {
        note("no tenants: apply some");
        return Ok(Exit::Done);
    }
    let grid = render::tenancy::tree(&tree, format == Format::Wide);
    context.out.text(&grid.to_text(args.output.headers()))?;
    Ok(Exit::Done)
}
