//! The agents' listener under TLS.
//!
//! Owns the hub's own certificate there: issued at the start, shown under the hub's role name and
//! its addresses, and replaced long before it ends without a restart. Never lets anybody in: the
//! handshake says who calls, each call says who may.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use meridian_api::units::Millis;
use meridian_runtime::network::Listener;
use meridian_runtime::tls::{self, ServerCertificate};
use meridian_runtime::{Clock, Tasks};
use tokio_util::sync::CancellationToken;

use super::Identities;
use super::authority::{Authority, AuthorityError};
use crate::config::HubConfig;

/// Before a certificate that could not be issued is tried again; a third of its life is left.
const RETRY: Millis = Millis::seconds(60);

/// Puts TLS over `listener`, and keeps its certificate fresh in a task of `tasks`.
pub(crate) fn secure(
    identities: &Identities,
    listener: Listener,
    config: &HubConfig,
    tasks: &Tasks,
) -> Result<Listener, AuthorityError> {
    let (authority, clock) = (Arc::clone(&identities.authority), identities.clock.clone());
    let hosts = hosts(config, listener.address());
    let shown = ServerCertificate::new(&authority.issue_hub(&hosts)?)?;
    let authorities = [authority.certificate().clone()];
    let tls = tls::server_config(&clock, shown.clone(), &authorities)?;
    let renewal = renew(authority, hosts, shown, clock.clone(), tasks.cancelled());
    tasks.spawn("agents' listener certificate", renewal);
    Ok(tls::over_tls(listener, clock, tls))
}

/// Names besides the role's, for clients that check the address they dial.
fn hosts(config: &HubConfig, listens: &str) -> Vec<String> {
    let advertised = config.agents_advertise.as_deref();
    let mut hosts = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    for address in [Some(listens), advertised].into_iter().flatten() {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let anywhere = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        if !host.is_empty() && !anywhere {
            hosts.push(host.to_owned());
        }
    }
    hosts.extend(config.agent_certificates.hub_names.iter().cloned());
    let mut seen = Vec::new();
    hosts.retain(|host| {
        !seen.contains(host) && {
            seen.push(host.clone());
            true
        }
    });
    hosts
}

async fn renew(
    authority: Arc<Authority>,
    hosts: Vec<String>,
    shown: ServerCertificate,
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let two_thirds = Millis(authority.terms().hub_validity.0 / 3 * 2);
    let mut pause = two_thirds;
    loop {
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let renewed = authority.issue_hub(&hosts);
        pause = match renewed.and_then(|identity| Ok(shown.replace(&identity)?)) {
            Ok(()) => {
                tracing::info!("the agents' listener has its next certificate");
                two_thirds
            }
            Err(error) => {
                tracing::error!(%error, "the agents' listener keeps its certificate");
                RETRY.min(two_thirds)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_answers_to_each_of_its_addresses_once() {
        let config = HubConfig {
            agents_advertise: Some("hub.example.com:443".to_owned()),
            ..HubConfig::default()
        };
        let fixed = ["localhost", "127.0.0.1", "::1"];
        let names = hosts(&config, "127.0.0.1:7443");
        assert_eq!(names, [&fixed[..], &["hub.example.com"]].concat());
        assert_eq!(hosts(&HubConfig::default(), "[::]:7443"), fixed);
    }
}
