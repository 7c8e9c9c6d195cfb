//! Error bodies: `metav1.Status` with reason, code, details and causes.
//!
//! Owns the closed list of reasons and their HTTP codes, and the wording of the errors that any
//! kind can raise. Each says what, where and what to do. Never decides when one is due.

use std::fmt;

use meridian_store::StoreError;
use serde_json::{Value, json};

use crate::kind::{FieldError, Kind};

/// Most causes in one answer: what a person reads at once; the rest is counted.
const MAX_CAUSES: usize = 64;
/// How long a client is asked to wait before it tries again, in seconds: longer than a fail-over
/// of the store's leader, which is what most often makes it silent.
const RETRY_AFTER_SECONDS: u64 = 2;

/// Machine-readable reasons, as in `k8s.io/apimachinery` `StatusReason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReason {
    /// 400: the request cannot be understood.
    BadRequest,
    /// 401: no one knows who asks.
    Unauthorized,
    /// 403: understood and refused.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 406: no answer in a form that the client accepts.
    NotAcceptable,
    /// 409: the name is taken.
    AlreadyExists,
    /// 409: changed meanwhile, or a precondition does not hold.
    Conflict,
    /// 410: the revision is no longer kept.
    Expired,
    /// 413.
    RequestEntityTooLarge,
    /// 415: a body in a form that is not read here.
    UnsupportedMediaType,
    /// 422: understood, and wrong.
    Invalid,
    /// 429: later.
    TooManyRequests,
    /// 500: a defect of ours.
    InternalError,
    /// 503: the store cannot be reached.
    ServiceUnavailable,
    /// 504: not done in time.
    Timeout,
}

impl StatusReason {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
        }
    }

    /// The HTTP code.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// What a failed request was about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Group of the kind.
    pub group: String,
    /// Plural of the kind, as Kubernetes fills `details.kind` for most errors.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

/// Why a request failed: everything that goes into a `metav1.Status`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiStatus {
    /// The reason; the HTTP code follows from it.
    pub reason: StatusReason,
    /// One sentence for a person: what, where, what to do.
    pub message: String,
    /// The object it is about.
    pub about: Option<Box<About>>,
    /// Field by field.
    pub causes: Vec<FieldError>,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl ApiStatus {
    /// An error without details.
    pub fn new(reason: StatusReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            about: None,
            causes: Vec::new(),
            retry_after: None,
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusReason::BadRequest, message)
    }

    /// Says which object it is about.
    #[must_use]
    pub fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.about = Some(Box::new(About {
            group: kind.group.clone(),
            kind: kind.plural.clone(),
            name: name.to_owned(),
        }));
        self
    }

    /// 404 for an object.
    #[must_use]
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.resource());
        Self::new(StatusReason::NotFound, message).about(kind, name)
    }

    /// 409 for a name that is taken.
    #[must_use]
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.resource());
        Self::new(StatusReason::AlreadyExists, message).about(kind, name)
    }

    /// 409; `why` completes "operation cannot be fulfilled on ...:".
    #[must_use]
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let resource = kind.resource();
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(StatusReason::Conflict, message).about(kind, name)
    }

    /// 409 for an object that changed since the caller read it.
    #[must_use]
    pub fn changed(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(kind, name, why)
    }

    /// 422 with one cause per field.
    #[must_use]
    pub fn invalid(kind: &Kind, name: &str, causes: Vec<FieldError>) -> Self {
        let list: Vec<String> = causes
            .iter()
            .take(MAX_CAUSES)
            .map(ToString::to_string)
            .collect();
        let list = match list.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let more = match causes.len().saturating_sub(MAX_CAUSES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = if kind.group.is_empty() {
            kind.kind.clone()
        } else {
            format!("{}.{}", kind.kind, kind.group)
        };
        let message = format!("{what} \"{name}\" is invalid: {list}{more}");
        let mut status = Self::new(StatusReason::Invalid, message).about(kind, name);
        if let Some(about) = &mut status.about {
            about.kind.clone_from(&kind.kind);
        }
        status.causes = causes;
        status.causes.truncate(MAX_CAUSES);
        status
    }

    /// 410 for a revision that is no longer kept.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusReason::Expired, message)
    }

    /// 504 for a revision that is not there yet, in the words by which clients know it.
    #[must_use]
    pub fn too_large_version(requested: u64, newest: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {newest}");
        let mut status = Self::new(StatusReason::Timeout, message);
        status.causes = vec![FieldError {
            path: String::new(),
            reason: crate::kind::FieldReason::ResourceVersionTooLarge,
            message: "Too large resource version".to_owned(),
        }];
        status.retry_after = Some(1);
        status
    }

    /// The HTTP code.
    #[must_use]
    pub const fn code(&self) -> u16 {
        self.reason.code()
    }

    /// The `metav1.Status`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason.as_str(),
        });
        let mut details = serde_json::Map::new();
        if let Some(about) = &self.about {
            for (field, text) in [
                ("name", &about.name),
                ("group", &about.group),
                ("kind", &about.kind),
            ] {
                if !text.is_empty() {
                    details.insert(field.to_owned(), Value::from(text.as_str()));
                }
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(FieldError::to_cause).collect();
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        if let Some(seconds) = self.retry_after {
            details.insert("retryAfterSeconds".to_owned(), Value::from(seconds));
        }
        if !details.is_empty() {
            status["details"] = Value::Object(details);
        }
        status["code"] = Value::from(self.code());
        status
    }
}

/// The answer to something that was done and leaves no object behind.
#[must_use]
pub(crate) fn success(kind: &Kind, name: &str, uid: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": name, "group": kind.group, "kind": kind.plural, "uid": uid},
    })
}

impl From<StoreError> for ApiStatus {
    fn from(error: StoreError) -> Self {
        let reason = match &error {
            StoreError::Compacted { .. } => {
                let message = format!("{error}: list again without a resourceVersion");
                return Self::expired(message);
            }
            StoreError::FutureRevision { requested, newest } => {
                return Self::too_large_version(requested.0, newest.0);
            }
            StoreError::Refused(_) => StatusReason::RequestEntityTooLarge,
            StoreError::Full(_) => StatusReason::TooManyRequests,
            StoreError::Unavailable(_) => StatusReason::ServiceUnavailable,
            StoreError::LeaseNotFound(_)
            | StoreError::Corrupt(_)
            | StoreError::Unsupported { .. } => StatusReason::InternalError,
        };
        let advice = if reason == StatusReason::ServiceUnavailable {
            "; a write may or may not have been done: read the object before you repeat it"
        } else if reason == StatusReason::TooManyRequests {
            "; reads go on, an operator must make room"
        } else {
            ""
        };
        let mut status = Self::new(reason, format!("{error}{advice}"));
        if matches!(
            reason,
            StatusReason::ServiceUnavailable | StatusReason::TooManyRequests
        ) {
            status.retry_after = Some(RETRY_AFTER_SECONDS);
        }
        status
    }
}

impl fmt::Display for StatusReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::FieldReason;

    #[test]
    fn a_status_has_all_that_clients_read() {
        let kind = crate::kind::tests::widget();
        let cause = FieldError {
            path: "spec.size".into(),
            reason: FieldReason::Invalid,
            message: "must be at least 1".into(),
        };
        let status = ApiStatus::invalid(&kind, "a", vec![cause]).to_json();
        assert_eq!(status["code"], 422);
        assert_eq!(status["reason"], "Invalid");
        assert_eq!(status["details"]["kind"], "Widget");
        assert_eq!(status["details"]["causes"][0]["field"], "spec.size");
        assert_eq!(
            status["message"],
            "Widget.test.dev \"a\" is invalid: spec.size: must be at least 1"
        );
    }

    #[test]
    fn causes_are_bounded() {
        let kind = crate::kind::tests::widget();
        let cause = FieldError {
            path: "spec".into(),
            reason: FieldReason::Required,
            message: "must be given".into(),
        };
        let status = ApiStatus::invalid(&kind, "a", vec![cause; 100]);
        assert_eq!(status.causes.len(), MAX_CAUSES);
        assert!(
            status.message.ends_with("and 36 more"),
            "{}",
            status.message
        );
    }

    #[test]
    fn a_silent_store_asks_to_read_before_repeating() {
        let status = ApiStatus::from(StoreError::Unavailable("no answer".into()));
        assert_eq!(status.code(), 503);
        assert!(
            status.message.contains("read the object"),
            "{}",
            status.message
        );
        assert!(status.retry_after.is_some());
    }
}
