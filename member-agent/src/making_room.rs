//! A gang that makes room for another: it saves its work and goes, or goes on smaller.
//!
//! Owns when that is due. Never asks the cluster for anything, and never chooses who makes room:
//! the hub does.

use meridian_api::units::UnixMillis;
use serde::{Deserialize, Serialize};

use crate::gangs::{Desired, Gang, Phase, Record, Sight, is_failed, is_lost, started};

/// A gang that was asked to save its work and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Leaving {
    /// It is stopped then, saved or not, by this machine's wall clock.
    pub(crate) by: UnixMillis,
    /// Its newest checkpoint when it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) saved_before: Option<UnixMillis>,
}

/// True when the hub wants it smaller than it is, and it is whole.
pub(crate) fn may_get_smaller(gang: &Gang, phase: Phase, sight: &Sight<'_>) -> bool {
    let (Some(own), Some(smaller)) = (sight.own, &gang.smaller) else {
        return false;
    };
    let roles = smaller.shape.roles.iter().zip(&smaller.pods);
    let mut too_many = roles.map(|(role, pods)| {
        let members = own.members().filter(|pod| pod.role == role.name).count();
        members > *pods as usize
    });
    phase == Phase::Live
        && gang.record.desired == Desired::Run
        && gang.record.leave.is_none()
        && !sight.in_flight
        && own.complete
        && !own.stopping
        && own.members().all(|pod| !is_lost(pod) && !is_failed(pod))
        && too_many.any(|too_many| too_many)
}

/// True when a gang that was asked to go has saved its work, has none, or has no time left.
pub(crate) fn must_leave(record: &Record, sight: &Sight<'_>, now: UnixMillis) -> bool {
    let Some(leave) = record.leave else {
        return false;
    };
    match sight.own {
        None => true,
        Some(own) => {
            now >= leave.by || own.checkpoint > leave.saved_before || started(own).is_none()
        }
    }
}
