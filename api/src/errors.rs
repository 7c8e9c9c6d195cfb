//! Errors that leave the hub: one closed list of codes, and what is wrong with each field.
//!
//! Owns `ErrorCode` with its numbers for HTTP and gRPC, `ApiError` and `FieldError`. Internal
//! errors are mapped to these at the edge; their text never travels.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::Millis;

/// Numbers of gRPC status codes, as the specification has them.
mod grpc {
    pub(super) const INVALID_ARGUMENT: u16 = 3;
    pub(super) const DEADLINE_EXCEEDED: u16 = 4;
    pub(super) const NOT_FOUND: u16 = 5;
    pub(super) const ALREADY_EXISTS: u16 = 6;
    pub(super) const PERMISSION_DENIED: u16 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(super) const FAILED_PRECONDITION: u16 = 9;
    pub(super) const ABORTED: u16 = 10;
    pub(super) const OUT_OF_RANGE: u16 = 11;
    pub(super) const UNIMPLEMENTED: u16 = 12;
    pub(super) const INTERNAL: u16 = 13;
    pub(super) const UNAVAILABLE: u16 = 14;
    pub(super) const UNAUTHENTICATED: u16 = 16;
}

macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $name:ident = $code:literal, $slug:literal, $http:literal, $grpc:ident;
    )*) => {
        /// What went wrong. A code never changes its meaning and is never used again.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code, as people and programs see it: `E1101`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The code in words, as in the documents' anchors: `unknown-field`.
            #[must_use]
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }

            /// Its HTTP status.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $http,)* }
            }

            /// Its gRPC status code.
            #[must_use]
            pub const fn grpc_code(self) -> u16 {
                match self { $(Self::$name => grpc::$grpc,)* }
            }
        }
    };
}

codes! {
    /// The text is not YAML or JSON.
    MalformedDocument = "E1001", "malformed-document", 400, INVALID_ARGUMENT;
    /// The text, or one object of it, is larger than its limit.
    TooLarge = "E1002", "too-large", 413, INVALID_ARGUMENT;
    /// The text is nested too deeply, or has too many values.
    TooDeep = "E1003", "too-deep", 400, INVALID_ARGUMENT;
    /// There is no such kind or version.
    UnknownKind = "E1004", "unknown-kind", 404, INVALID_ARGUMENT;
    /// A field that the kind does not have.
    UnknownField = "E1101", "unknown-field", 400, INVALID_ARGUMENT;
    /// A field is wrong, or fields contradict each other.
    InvalidObject = "E1102", "invalid-object", 422, INVALID_ARGUMENT;
    /// The field exists, and this release cannot do what it asks for.
    Unsupported = "E1103", "unsupported", 422, UNIMPLEMENTED;
    /// The field may not change once the object exists.
    ImmutableField = "E1104", "immutable-field", 422, FAILED_PRECONDITION;
    /// A gang that can never start, wherever it is placed.
    ImpossibleGang = "E2201", "impossible-gang", 422, INVALID_ARGUMENT;
    /// No cluster of the fleet could hold it even when empty.
    NeverPlaceable = "E2207", "never-placeable", 422, FAILED_PRECONDITION;
    /// There is no such object.
    NotFound = "E3001", "not-found", 404, NOT_FOUND;
    /// The name is taken.
    AlreadyExists = "E3002", "already-exists", 409, ALREADY_EXISTS;
    /// The object has changed since it was read.
    Conflict = "E3003", "conflict", 409, ABORTED;
    /// The idempotency key was used with another request.
    IdempotencyKeyReused = "E3004", "idempotency-key-reused", 409, FAILED_PRECONDITION;
    /// The object still holds work.
    InUse = "E3005", "in-use", 409, FAILED_PRECONDITION;
    /// That version is no longer kept: list again.
    Expired = "E3006", "expired", 410, OUT_OF_RANGE;
    /// The caller may not do that.
    Forbidden = "E4001", "forbidden", 403, PERMISSION_DENIED;
    /// A rule of the platform forbids it.
    Denied = "E4012", "denied-by-policy", 403, FAILED_PRECONDITION;
    /// The tenant tree or its quotas would contradict themselves.
    InvalidTree = "E4101", "invalid-tenant-tree", 422, FAILED_PRECONDITION;
    /// More than a quota or a limit of the tenant or class allows.
    LimitExceeded = "E4102", "limit-exceeded", 403, RESOURCE_EXHAUSTED;
    /// An agent speaks for a cluster that belongs to another.
    ClusterClaimed = "E5001", "cluster-claimed", 403, PERMISSION_DENIED;
    /// Agent and hub have no session protocol in common.
    AgentVersionMismatch = "E5002", "agent-version-mismatch", 400, FAILED_PRECONDITION;
    /// A younger life of the same agent is attached.
    AgentSuperseded = "E5003", "agent-superseded", 409, ABORTED;
    /// Whoever calls has no certificate of an agent, or no agent of that cluster has joined.
    AgentNotJoined = "E5010", "agent-not-joined", 401, UNAUTHENTICATED;
    /// The agent's certificate has ended.
    CertificateExpired = "E5011", "certificate-expired", 401, UNAUTHENTICATED;
    /// The agent's right to speak for its cluster was taken away.
    AgentRevoked = "E5012", "agent-revoked", 403, PERMISSION_DENIED;
    /// A certificate request that nothing is issued for: too large, badly signed, or of a kind of
    /// key that is not let in.
    BadCertificateRequest = "E5013", "bad-certificate-request", 400, INVALID_ARGUMENT;
    /// A join token that was never given out, or that a newer one has replaced.
    JoinTokenUnknown = "E5020", "join-token-unknown", 403, PERMISSION_DENIED;
    /// A join token that has let another agent in.
    JoinTokenUsed = "E5021", "join-token-used", 403, PERMISSION_DENIED;
    /// A join token whose time is over.
    JoinTokenExpired = "E5022", "join-token-expired", 403, PERMISSION_DENIED;
    /// The gang has no pods that could be read.
    NoLogs = "E5030", "no-logs", 409, FAILED_PRECONDITION;
    /// The cluster cannot be asked: its agent is not heard.
    ClusterUnreachable = "E5031", "cluster-unreachable", 503, UNAVAILABLE;
    /// This hub does not lead.
    NotLeader = "E6001", "not-leader", 503, UNAVAILABLE;
    /// The store does not answer.
    StoreUnavailable = "E6002", "store-unavailable", 503, UNAVAILABLE;
    /// The store has no room left.
    StoreFull = "E6003", "store-full", 507, RESOURCE_EXHAUSTED;
    /// More requests than the hub takes.
    Overloaded = "E6004", "overloaded", 429, RESOURCE_EXHAUSTED;
    /// It took longer than it may.
    TimedOut = "E6005", "timed-out", 504, DEADLINE_EXCEEDED;
    /// The hub does not answer at all.
    HubUnreachable = "E6006", "hub-unreachable", 503, UNAVAILABLE;
    /// A defect of the hub.
    Internal = "E9001", "internal", 500, INTERNAL;
}

impl ErrorCode {
    /// Where it is explained: an anchor of the documents' page of errors.
    #[must_use]
    pub fn docs_anchor(self) -> String {
        format!(
            "errors#{}-{}",
            self.as_str().to_ascii_lowercase(),
            self.slug()
        )
    }

    /// True when the same request may succeed later without being changed.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self.http_status(), 429 | 503 | 504 | 507)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text is not one of the codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an error code")]
pub struct UnknownCode(String);

impl std::str::FromStr for ErrorCode {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let found = Self::ALL.iter().copied().find(|code| code.as_str() == text);
        found.ok_or_else(|| UnknownCode(text.chars().take(64).collect()))
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// What is wrong with a field.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FieldReason {
    /// Must be given.
    Required,
    /// Given, and wrong.
    Invalid,
    /// Not of the type that it has.
    TypeInvalid,
    /// Not one of the words that exist.
    NotSupported,
    /// May not be given, or not here.
    Forbidden,
    /// May not change.
    Immutable,
    /// Too long or too many.
    TooMany,
    /// Appears twice.
    Duplicate,
    /// Names something that is not there.
    NotFound,
    /// No such field.
    Unknown,
    /// A gang that can never start.
    Impossible,
    /// Right, and more than this release does.
    Unsupported,
}

impl FieldReason {
    /// The word that Kubernetes clients know, as in `details.causes[].reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid | Self::Impossible | Self::Immutable => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden | Self::Unsupported => "FieldValueForbidden",
            Self::TooMany => "FieldValueTooMany",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Unknown => "FieldUnknown",
        }
    }
}

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// Where: `spec.roles[0].replicas`; empty for the whole object.
    pub path: String,
    /// What kind of wrong.
    pub reason: FieldReason,
    /// What is wrong, with the numbers, and what to do.
    pub message: String,
    /// What was most likely meant, to put in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl FieldError {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, reason: FieldReason, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason,
            message: message.into(),
            suggestion: None,
        }
    }

    /// The same with what was most likely meant.
    #[must_use]
    pub fn suggest(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, " (did you mean {suggestion:?}?)"),
            None => Ok(()),
        }
    }
}

/// One failed request, as it is told to whoever made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct ApiError {
    /// What kind of failure.
    pub code: ErrorCode,
    /// What failed, with the object and the numbers.
    pub message: String,
    /// Each thing that is wrong, when it is the request's fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<FieldError>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Millis>,
}

impl ApiError {
    /// A failure without more to say.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let (causes, help) = (Vec::new(), String::new());
        Self {
            code,
            message: message.into(),
            causes,
            help,
            retry_after: None,
        }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// The same with a time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, after: Millis) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// What is wrong with the object that `what` names (`federatedjob nlp/train`). The code is
    /// the one that says most about the causes.
    pub fn from_fields(what: &str, causes: Vec<FieldError>) -> Self {
        let any = |reason| causes.iter().any(|cause| cause.reason == reason);
        let all = |reason| causes.iter().all(|cause| cause.reason == reason);
        let code = if any(FieldReason::Impossible) {
            ErrorCode::ImpossibleGang
        } else if all(FieldReason::Unknown) {
            ErrorCode::UnknownField
        } else if all(FieldReason::Unsupported) {
            ErrorCode::Unsupported
        } else if all(FieldReason::Immutable) {
            ErrorCode::ImmutableField
        } else {
            ErrorCode::InvalidObject
        };
        let message = match causes.as_slice() {
            [only] => format!("{what} is refused: {only}"),
            many => format!("{what} is refused: {} fields are wrong", many.len()),
        };
        Self {
            causes,
            ..Self::new(code, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_reads_back_and_is_its_own() {
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(serde_json::from_str::<ErrorCode>(&json).unwrap(), *code);
            assert!((400..600).contains(&code.http_status()), "{code}");
            assert!((1..=16).contains(&code.grpc_code()), "{code}");
        }
        let codes: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        let slugs: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.slug()).collect();
        assert_eq!(
            (codes.len(), slugs.len()),
            (ErrorCode::ALL.len(), ErrorCode::ALL.len())
        );
        assert!("E0000".parse::<ErrorCode>().is_err());
    }

    #[test]
    fn the_code_says_most_about_the_causes() {
        let cause = |reason| FieldError::new("spec", reason, "wrong");
        let code = |reasons: &[FieldReason]| {
            ApiError::from_fields("job", reasons.iter().copied().map(cause).collect()).code
        };
        assert_eq!(code(&[FieldReason::Unknown]), ErrorCode::UnknownField);
        assert_eq!(
            code(&[FieldReason::Unknown, FieldReason::Invalid]),
            ErrorCode::InvalidObject
        );
        let impossible = [FieldReason::Unknown, FieldReason::Impossible];
        assert_eq!(code(&impossible), ErrorCode::ImpossibleGang);
        assert_eq!(code(&[FieldReason::Unsupported]), ErrorCode::Unsupported);
        assert_eq!(code(&[FieldReason::Immutable]), ErrorCode::ImmutableField);
    }

    #[test]
    fn errors_survive_json() {
        let causes = vec![
            FieldError::new("spec.role", FieldReason::Unknown, "no such field")
                .suggest(Some("roles".into())),
        ];
        let error = ApiError::from_fields("job", causes)
            .help("see `meridian explain`")
            .retry_after(Millis::seconds(2));
        let json = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<ApiError>(&json).unwrap(), error);
        assert!(
            error.message.contains("did you mean \"roles\"?"),
            "{}",
            error.message
        );
    }
}
