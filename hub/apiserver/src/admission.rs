//! Admission: where the owner of the meaning says yes or no to a change.
//!
//! Owns the seam between the generic write path and the hub's policies: what is told about a
//! change, and what may come back (a refusal, defaults filled in, warnings, and the compares and
//! puts that join the change's transaction). Never decides anything itself.

use async_trait::async_trait;
use meridian_store::keys::ObjectKey;
use meridian_store::{Compare, Op};
use serde_json::Value;

use crate::kind::{FieldError, Kind};
use crate::status::{ApiStatus, StatusReason};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// User name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl Actor {
    /// Somebody whom nobody has identified.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
        }
    }
}

impl Default for Actor {
    fn default() -> Self {
        Self::anonymous()
    }
}

/// The circumstances of a call. An HTTP layer in front of [`crate::router`] puts the `Actor` it
/// has identified into the request's extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub actor: Actor,
}

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// It comes to be.
    Create,
    /// Its metadata or spec changes.
    Update,
    /// Its status changes.
    UpdateStatus,
    /// It goes, or is marked to go when its finalizers are done.
    Delete,
}

/// Whether a change is for real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// It is stored.
    #[default]
    No,
    /// Everything but storing: `dryRun=All`.
    All,
}

/// A change that asks to be admitted.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Who asks.
    pub actor: &'a Actor,
    /// What is done.
    pub operation: Operation,
    /// The kind.
    pub kind: &'a Kind,
    /// The object.
    pub key: &'a ObjectKey,
    /// As stored; `None` for a create.
    pub before: Option<&'a Value>,
    /// As it would be; `None` for a delete.
    pub after: Option<&'a Value>,
    /// How often it was tried before, because something that was read had changed by the time of
    /// the commit. Above zero, what admission has kept from earlier may be what is old.
    pub attempt: usize,
    /// Whether it is for real.
    pub dry_run: DryRun,
}

/// A change may be done.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// For the person, as `Warning` headers.
    pub warnings: Vec<String>,
    /// The object with defaults filled in, when that changed it.
    pub object: Option<Value>,
    /// Everything that the decision read, compared in the change's transaction.
    pub compares: Vec<Compare>,
    /// What is written with it.
    pub puts: Vec<Op>,
}

/// A change may not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The HTTP code follows from it.
    pub reason: StatusReason,
    /// For a person: what, where, the numbers, what to do, and the stable code.
    pub message: String,
    /// Field by field.
    pub causes: Vec<FieldError>,
}

impl Denial {
    /// A refusal by a rule: 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self {
            reason: StatusReason::Forbidden,
            message: message.into(),
            causes: Vec::new(),
        }
    }

    /// As an answer about one object.
    pub(crate) fn into_status(self, kind: &Kind, name: &str) -> ApiStatus {
        if self.reason == StatusReason::Invalid && self.message.is_empty() {
            return ApiStatus::invalid(kind, name, self.causes);
        }
        let message = format!(
            "{} \"{name}\" is refused: {}",
            kind.resource(),
            self.message
        );
        let mut status = ApiStatus::new(self.reason, message).about(kind, name);
        status.causes = self.causes;
        status
    }
}

/// Says yes or no to every change of a user object. Called again, with what is then stored, when
/// the transaction finds that something it read has changed.
#[async_trait]
pub trait Admission: Send + Sync + 'static {
    /// Admits a change or says why not.
    async fn admit(&self, change: &Change<'_>) -> Result<Admitted, Denial>;
}

/// Admits everything: for tests and examples.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

#[async_trait]
impl Admission for AllowAll {
    async fn admit(&self, _change: &Change<'_>) -> Result<Admitted, Denial> {
        Ok(Admitted::default())
    }
}
