//! `version`: of this command and of the hub.
//!
//! Owns noticing that the two differ. Never refuses to work because of it.

use serde_json::{Value, json};

use crate::args::VersionArgs;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;

/// Version of this command.
const CLIENT: &str = env!("CARGO_PKG_VERSION");

pub(crate) async fn run(context: &mut Context, args: VersionArgs) -> Result<Exit, Failure> {
    let hub = if args.client {
        Ok(None)
    } else {
        context.client.version().await.map(Some)
    };
    let known = hub.as_ref().ok().and_then(Option::as_ref);
    let value = json!({
        "apiVersion": meridian_api::meta::API_VERSION,
        "kind": "VersionInfo",
        "client": CLIENT,
        "hub": known.cloned().unwrap_or(Value::Null),
    });
    if let Some(printed) = context.print_value(args.output, &value) {
        printed?;
    } else {
        context.out.line(&format!("client  {CLIENT}"))?;
        if let Some(hub) = known {
            let version = hub["gitVersion"].as_str().unwrap_or("unknown");
            let at = context.client.address().to_owned();
            context.out.line(&format!("hub     {version} at {at}"))?;
            if !version.contains(CLIENT) {
                note("warning: command and hub are of different versions");
            }
        }
    }
    hub?;
    Ok(Exit::Done)
}
