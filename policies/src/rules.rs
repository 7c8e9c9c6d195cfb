//! A role's topology rule in one pool: its levels by depth, or why no pool like this can keep it.
//!
//! Owns what a rule means and which ones contradict themselves. Never looks at room.

use crate::model::{GangShape, RoleShape};
use crate::pick::{Scope, Want};

/// Name of the innermost level, which every pool has.
pub const HOST: &str = "host";

/// Why a rule cannot be kept, however empty the pool is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Impossible {
    #[error("needs one {level}, a level that the pool does not have")]
    NoLevel { level: String },
    #[error("needs slices within one {slice}, which is wider than the one {role} for all")]
    SliceOutside { slice: String, role: String },
    #[error("needs slices of {slice} pods, which {pods} pods do not make")]
    NotDivisible { pods: u32, slice: u32 },
}

/// Whether preferred levels are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wishes {
    Kept,
    Dropped,
}

impl Scope {
    /// Scope of a level by name; `None` when the pool has no such level.
    pub(crate) fn of(levels: &[String], level: Option<&str>) -> Option<Self> {
        match level {
            None => Some(Self::Pool),
            Some(HOST) => Some(Self::Host),
            Some(name) => {
                let position = levels.iter().position(|level| level == name)?;
                Some(Self::Domain(position + 1))
            }
        }
    }
}

/// What `pods` pods of the role ask for. A preferred level that the pool does not have is no
/// wish.
pub(crate) fn want(
    levels: &[String],
    role: &RoleShape,
    pods: u32,
    wishes: Wishes,
) -> Result<Want, Impossible> {
    let scope = |level: Option<&str>| {
        Scope::of(levels, level).ok_or_else(|| Impossible::NoLevel {
            level: level.unwrap_or_default().to_owned(),
        })
    };
    let required = scope(role.required.as_deref())?;
    let preferred = match wishes {
        Wishes::Kept => scope(role.preferred.as_deref()).unwrap_or(Scope::Pool),
        Wishes::Dropped => Scope::Pool,
    };
    let mut want = Want {
        per_pod: role.per_pod,
        pods,
        required,
        preferred,
        slice: 1,
        slice_in: Scope::Pool,
    };
    let Some(slice) = &role.slice else {
        return Ok(want);
    };
    let slice_in = scope(Some(&slice.level))?;
    if slice_in < required {
        return Err(Impossible::SliceOutside {
            slice: slice.level.clone(),
            role: role.required.clone().unwrap_or_default(),
        });
    }
    if slice.pods == 0 || !pods.is_multiple_of(slice.pods) {
        return Err(Impossible::NotDivisible {
            pods,
            slice: slice.pods,
        });
    }
    if slice_in > required {
        (want.slice, want.slice_in) = (slice.pods, slice_in);
    }
    Ok(want)
}

/// What each role of the gang asks for.
pub(crate) fn wants(
    levels: &[String],
    gang: &GangShape,
    pods: &[u32],
    wishes: Wishes,
) -> Result<Vec<Want>, Impossible> {
    let each = gang.roles.iter().zip(pods);
    each.map(|(role, &pods)| want(levels, role, pods, wishes))
        .collect()
}
