//! Which etcd is sound enough.
//!
//! Owns the minimum: 3.5.28, 3.6.9 and everything from 3.7 on. Older ones could answer a
//! linearizable read with stale data after a pause (etcd issue 20418). Never looks at features.

use etcd_client::{Client, ConnectOptions};
use meridian_runtime::Clock;

use super::{CALL_LIMIT, OldVersions, within};
use crate::StoreError;

/// Asks every member that answers for its version.
pub(super) async fn check(
    endpoints: &[String],
    connection: &ConnectOptions,
    clock: &Clock,
    old_versions: OldVersions,
) -> Result<(), StoreError> {
    let mut silent = StoreError::Refused("no etcd endpoint is given".to_owned());
    let mut answered = 0_usize;
    for endpoint in endpoints {
        let ask = async {
            let client = Client::connect([endpoint], Some(connection.clone())).await?;
            Ok(client
                .maintenance_client()
                .status()
                .await?
                .version()
                .to_owned())
        };
        match Box::pin(within(clock, CALL_LIMIT, ask)).await {
            Ok(version) => {
                accept(endpoint, &version, old_versions)?;
                answered += 1;
            }
            Err(error) => {
                tracing::warn!(%endpoint, %error, "an etcd member does not answer");
                silent = error;
            }
        }
    }
    if answered == 0 { Err(silent) } else { Ok(()) }
}

fn accept(endpoint: &str, version: &str, old_versions: OldVersions) -> Result<(), StoreError> {
    if is_sound(version) {
        tracing::info!(%endpoint, version, "etcd answers");
        return Ok(());
    }
    match old_versions {
        OldVersions::Refuse => Err(StoreError::Refused(format!(
            "etcd {version} at {endpoint} can answer stale reads: use 3.5.28, 3.6.9 or newer"
        ))),
        OldVersions::Accept => {
            tracing::warn!(%endpoint, version, "this etcd can answer stale reads");
            Ok(())
        }
    }
}

fn is_sound(version: &str) -> bool {
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let mut numbers = numbers.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return false;
    };
    match (major, minor) {
        (3, 5) => patch >= 28,
        (3, 6) => patch >= 9,
        other => other >= (3, 7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_the_stale_read_are_known() {
        for version in [
            "3.5.28",
            "3.6.9",
            "3.6.14",
            "3.7.0",
            "3.7.1-rc.0",
            "3.10.2",
            "4.0.0",
        ] {
            assert!(is_sound(version), "{version}");
        }
        for version in ["3.4.42", "3.5.27", "3.6.8", "2.3.8", "", "3.7", "new"] {
            assert!(!is_sound(version), "{version}");
        }
    }

    #[test]
    fn an_old_etcd_is_refused_unless_told() {
        let refused = accept("http://e", "3.5.9", OldVersions::Refuse);
        assert!(matches!(refused, Err(StoreError::Refused(_))));
        assert_eq!(accept("http://e", "3.5.9", OldVersions::Accept), Ok(()));
    }
}
