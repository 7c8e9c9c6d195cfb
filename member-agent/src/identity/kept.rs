//! The identity on disk: one record, replaced whole.
//!
//! Owns its form. Never sends it anywhere.

use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::Disk;
use serde::{Deserialize, Serialize};

use crate::state::StateError;

/// Name of the record on disk.
const RECORD: &str = "identity.json";
/// Version of its form.
const FORM: u32 = 1;

/// What an agent keeps of who it is.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kept {
    form: u32,
    /// Its certificate; absent until it has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) certified: Option<Certified>,
    /// A join under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<Pending>,
}

/// A certificate with everything to use it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Certified {
    /// The only cluster that it names.
    pub(super) cluster: String,
    /// PEM.
    pub(super) key: String,
    /// PEM: the certificate, then those that lead to its authority.
    pub(super) chain: String,
    /// PEM: whose word on hubs counts.
    pub(super) authorities: String,
    /// The agent's wall clock when it came.
    pub(super) received: UnixMillis,
    /// How long it was good from then on.
    pub(super) valid: Millis,
    /// SHA-256 of the secret of the token that it began with.
    pub(super) token_sha256: String,
}

/// A key that a token is being used for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pending {
    /// PEM.
    pub(super) key: String,
    /// SHA-256 of the token's secret.
    pub(super) token_sha256: String,
}

impl Kept {
    /// An agent that has joined.
    pub(super) fn of(certified: Certified) -> Self {
        Self {
            form: FORM,
            certified: Some(certified),
            pending: None,
        }
    }

    /// What is on disk; nothing in a new state folder.
    pub(super) async fn load(disk: &dyn Disk) -> Result<Self, StateError> {
        let Some(bytes) = disk.read(RECORD).await? else {
            return Ok(Self {
                form: FORM,
                certified: None,
                pending: None,
            });
        };
        let damaged = |why: String| StateError::Damaged {
            record: RECORD,
            why,
        };
        let kept: Self =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if kept.form != FORM {
            return Err(damaged(format!("form {} is not {FORM}", kept.form)));
        }
        Ok(kept)
    }

    /// Makes it durable.
    pub(super) async fn save(&self, disk: &dyn Disk) -> Result<(), StateError> {
        let bytes = serde_json::to_vec(self).expect("texts and numbers");
        Ok(disk.write(RECORD, bytes).await?)
    }
}
