//! `quota fit`: what tenants and quotas would change, before they are applied.
//!
//! Owns the question and its exit code. The answer is the hub's.

use serde_json::Value;

use crate::args::{QuotaCommand, QuotaFitArgs};
use crate::context::Context;
use crate::documents;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render;

pub(crate) async fn run(context: &mut Context, command: QuotaCommand) -> Result<Exit, Failure> {
    match command {
        QuotaCommand::Fit(args) => fit(context, args).await,
    }
}

async fn fit(context: &mut Context, args: QuotaFitArgs) -> Result<Exit, Failure> {
    let wanted = documents::load(&args.files)?;
    let other = |each: &&documents::Wanted| !matches!(each.resource.kind, "Tenant" | "TenantQuota");
    if let Some(other) = wanted.iter().find(other) {
        let message = format!("{} is no Tenant and no TenantQuota", other.what());
        return Err(Failure::usage(
            message,
            "name only files of these two kinds",
        ));
    }
    let documents: Vec<Value> = wanted.into_iter().map(|each| each.value).collect();
    let fit = context.client.fit_quota(&documents).await?;
    let value = render::tenancy::fit_value(&fit);
    if let Some(printed) = context.print_value(args.output.output, &value) {
        printed?;
    } else {
        let text = render::tenancy::fit(&fit, args.output.headers());
        context.out.text(&text)?;
    }
    Ok(if fit.causes.is_empty() {
        Exit::Done
    } else {
        Exit::Denied
    })
}
