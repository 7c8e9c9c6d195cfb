//! What can go wrong between a client and a hub, as one closed set.
//!
//! Owns reading `metav1.Status` bodies and gRPC statuses into one [`Failure`]. Never prints.

use http::StatusCode;
use meridian_api::errors::{ErrorCode, FieldReason};
use meridian_proto::v1;
use meridian_runtime::clock::Millis;
use prost::Message as _;
use serde_json::Value;

use crate::transport::innermost;

/// Longest part of an unreadable answer that an error repeats.
const QUOTED_CHARS: usize = 200;

/// Why a call did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The hub answered that it will not or cannot.
    #[error("{}", .0.message)]
    Api(Box<Failure>),
    /// No hub at that address. Nothing was asked.
    #[error("no hub at {server}: {cause}")]
    Unreachable {
        /// `host:port` that was tried.
        server: String,
        /// Why there was no connection.
        cause: String,
    },
    /// The connection broke before the answer. A write may or may not have been done.
    #[error("connection to {server} lost before the answer: {cause}")]
    Lost {
        /// `host:port` of the hub.
        server: String,
        /// How it broke.
        cause: String,
    },
    /// No answer in time. A write may or may not have been done.
    #[error("{what}: no answer within {limit}")]
    TimedOut {
        /// What was asked.
        what: String,
        /// How long was waited.
        limit: Millis,
    },
    /// The answer is not one of a hub.
    #[error("answer not understood: {0}")]
    Protocol(String),
    /// The server is not given as it should be.
    #[error("{server:?} is no server address: expected {expected}")]
    BadServer {
        /// What was given.
        server: String,
        /// The form that is understood.
        expected: &'static str,
    },
}

impl ClientError {
    /// The hub's own answer, when it is one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Api(failure) => Some(failure),
            Self::Unreachable { .. }
            | Self::Lost { .. }
            | Self::TimedOut { .. }
            | Self::Protocol(_)
            | Self::BadServer { .. } => None,
        }
    }

    /// True when the hub answered with this kind of failure.
    #[must_use]
    pub fn is(&self, kind: FailureKind) -> bool {
        self.failure().is_some_and(|failure| failure.kind == kind)
    }
}

/// What kind of "no" a hub's answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The request or the object is wrong.
    Invalid,
    /// A rule or a quota forbids it.
    Denied,
    /// No such object.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// It changed meanwhile, or something stands against it.
    Conflict,
    /// The caller may not.
    NotAllowed,
    /// The revision is no longer kept: list again.
    Expired,
    /// Too much at once: later.
    Busy,
    /// The hub is there and cannot serve at the moment.
    Unavailable,
    /// The hub did not get it done in time.
    TimedOut,
    /// A defect of the hub.
    Internal,
}

/// The hub's answer when it says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of "no".
    pub kind: FailureKind,
    /// Stable code of the closed list of `meridian_api::errors`; a newer hub may send others.
    pub code: String,
    /// One sentence: what, where, the numbers.
    pub message: String,
    /// Field by field.
    pub causes: Vec<Cause>,
    /// What to do about it; empty when the message says it.
    pub help: String,
    /// After how long a retry may succeed.
    pub retry_after: Option<Millis>,
}

/// What is wrong with one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Path of the field: `spec.roles[1].replicas`; empty for the whole object.
    pub field: String,
    /// In one word.
    pub reason: String,
    /// For a person.
    pub message: String,
}

/// Reads an HTTP answer that is not a success: `metav1.Status`, or whatever a proxy wrote.
pub(crate) fn from_http(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value["kind"] == "Status" => from_status(status.as_u16(), &value),
        _ => {
            let text = String::from_utf8_lossy(body);
            let short: String = text.trim().chars().take(QUOTED_CHARS).collect();
            let kind = kind_of(status.as_u16(), "");
            let message = match short.as_str() {
                "" => format!("the server answered {status}"),
                short => format!("the server answered {status}: {short}"),
            };
            ClientError::Api(Box::new(Failure {
                kind,
                code: default_code(kind, &[]).to_string(),
                message,
                causes: Vec::new(),
                help: String::new(),
                retry_after: None,
            }))
        }
    }
}

/// Reads a `metav1.Status`. `http` stands in for a missing `code`.
pub(crate) fn from_status(http: u16, status: &Value) -> ClientError {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let code = status["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok())
        .unwrap_or(http);
    let reason = text(&status["reason"]);
    let details = &status["details"];
    let mut causes: Vec<Cause> = details["causes"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|cause| Cause {
            field: text(&cause["field"]),
            reason: text(&cause["reason"]),
            message: text(&cause["message"]),
        })
        .collect();
    let coded = take_named(&mut causes, ERROR_CODE_CAUSE);
    let help = take_named(&mut causes, HELP_CAUSE).unwrap_or_default();
    let retry = details["retryAfterSeconds"].as_u64();
    let kind = coded.as_deref().and_then(kind_of_code);
    let kind = kind.unwrap_or_else(|| kind_of(code, &reason));
    ClientError::Api(Box::new(Failure {
        kind,
        code: coded.unwrap_or_else(|| default_code(kind, &causes).to_string()),
        message: text(&status["message"]),
        causes,
        help,
        retry_after: retry.map(Millis::seconds),
    }))
}

/// Reason of the cause that carries the stable code in its message.
const ERROR_CODE_CAUSE: &str = "ErrorCode";
/// Reason of the cause that carries the advice in its message.
const HELP_CAUSE: &str = "Help";

fn take_named(causes: &mut Vec<Cause>, reason: &str) -> Option<String> {
    let at = causes.iter().position(|cause| cause.reason == reason)?;
    Some(causes.remove(at).message)
}

/// The stable code of a kind of failure whose answer carries none.
fn default_code(kind: FailureKind, causes: &[Cause]) -> ErrorCode {
    let unknown = |cause: &Cause| cause.reason == FieldReason::Unknown.as_str();
    match kind {
        FailureKind::Invalid if !causes.is_empty() && causes.iter().all(unknown) => {
            ErrorCode::UnknownField
        }
        FailureKind::Invalid => ErrorCode::InvalidObject,
        FailureKind::Denied => ErrorCode::Denied,
        FailureKind::NotFound => ErrorCode::NotFound,
        FailureKind::AlreadyExists => ErrorCode::AlreadyExists,
        FailureKind::Conflict => ErrorCode::Conflict,
        FailureKind::NotAllowed => ErrorCode::Forbidden,
        FailureKind::Expired => ErrorCode::Expired,
        FailureKind::Busy => ErrorCode::Overloaded,
        FailureKind::Unavailable => ErrorCode::StoreUnavailable,
        FailureKind::TimedOut => ErrorCode::TimedOut,
        FailureKind::Internal => ErrorCode::Internal,
    }
}

/// What kind of failure a code is. A code that this client does not know leaves it to the status.
fn kind_of_code(code: &str) -> Option<FailureKind> {
    let kind = match code.parse::<ErrorCode>().ok()? {
        ErrorCode::MalformedDocument
        | ErrorCode::TooLarge
        | ErrorCode::TooDeep
        | ErrorCode::UnknownKind
        | ErrorCode::UnknownField
        | ErrorCode::InvalidObject
        | ErrorCode::Unsupported
        | ErrorCode::ImmutableField
        | ErrorCode::ImpossibleGang
        | ErrorCode::NeverPlaceable
        | ErrorCode::BadCertificateRequest
        | ErrorCode::AgentVersionMismatch => FailureKind::Invalid,
        ErrorCode::NotFound => FailureKind::NotFound,
        ErrorCode::AlreadyExists => FailureKind::AlreadyExists,
        ErrorCode::Conflict
        | ErrorCode::IdempotencyKeyReused
        | ErrorCode::InUse
        | ErrorCode::NoLogs
        | ErrorCode::AgentSuperseded => FailureKind::Conflict,
        ErrorCode::Expired => FailureKind::Expired,
        ErrorCode::Forbidden
        | ErrorCode::ClusterClaimed
        | ErrorCode::AgentNotJoined
        | ErrorCode::CertificateExpired
        | ErrorCode::AgentRevoked
        | ErrorCode::JoinTokenUnknown
        | ErrorCode::JoinTokenUsed
        | ErrorCode::JoinTokenExpired => FailureKind::NotAllowed,
        ErrorCode::Denied | ErrorCode::InvalidTree | ErrorCode::LimitExceeded => {
            FailureKind::Denied
        }
        ErrorCode::NotLeader
        | ErrorCode::StoreUnavailable
        | ErrorCode::StoreFull
        | ErrorCode::ClusterUnreachable
        | ErrorCode::HubUnreachable => FailureKind::Unavailable,
        ErrorCode::Overloaded => FailureKind::Busy,
        ErrorCode::TimedOut => FailureKind::TimedOut,
        ErrorCode::Internal => FailureKind::Internal,
    };
    Some(kind)
}

fn kind_of(http: u16, reason: &str) -> FailureKind {
    match (http, reason) {
        (_, "AlreadyExists") => FailureKind::AlreadyExists,
        (_, "Expired") | (410, _) => FailureKind::Expired,
        (401 | 403, _) => FailureKind::NotAllowed,
        (404, _) => FailureKind::NotFound,
        (409 | 412, _) => FailureKind::Conflict,
        (408 | 504, _) => FailureKind::TimedOut,
        (429, _) => FailureKind::Busy,
        (502 | 503, _) => FailureKind::Unavailable,
        (400..=499, _) => FailureKind::Invalid,
        _ => FailureKind::Internal,
    }
}

/// Reads a gRPC status: the `ErrorDetail` in its details, else its code and message.
pub(crate) fn from_grpc(server: &str, status: &tonic::Status) -> ClientError {
    let transport = std::error::Error::source(status);
    if let Some(error) = transport.filter(|error| error.is::<tonic::transport::Error>()) {
        let (server, cause) = (server.to_owned(), innermost(error));
        return if status.code() == tonic::Code::Unavailable {
            ClientError::Unreachable { server, cause }
        } else {
            ClientError::Lost { server, cause }
        };
    }
    let kind = kind_of_grpc(status.code());
    match v1::ErrorDetail::decode(status.details()) {
        Ok(detail) if !detail.code.is_empty() => {
            ClientError::Api(Box::new(from_detail(kind, detail)))
        }
        Ok(_) | Err(_) if from_the_wire(status) => ClientError::Lost {
            server: server.to_owned(),
            cause: status.message().to_owned(),
        },
        Ok(_) | Err(_) => ClientError::Api(Box::new(Failure {
            kind,
            code: default_code(kind, &[]).to_string(),
            message: status.message().to_owned(),
            causes: Vec::new(),
            help: String::new(),
            retry_after: None,
        })),
    }
}

/// True for the statuses that tonic makes up when a stream breaks; their source is the h2 error.
fn from_the_wire(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// The wire's detail as a failure.
pub(crate) fn from_detail(kind: FailureKind, detail: v1::ErrorDetail) -> Failure {
    let retry = (detail.retry_after_ms > 0).then_some(Millis(detail.retry_after_ms));
    let kind = kind_of_code(&detail.code).unwrap_or(kind);
    Failure {
        kind,
        code: detail.code,
        message: detail.message,
        causes: detail
            .causes
            .into_iter()
            .map(|cause| Cause {
                message: without_path(&cause.field, &cause.message).to_owned(),
                field: cause.field,
                reason: cause.reason,
            })
            .collect(),
        help: detail.help,
        retry_after: retry,
    }
}

/// A message may begin with the path of its field, for those who read nothing else.
fn without_path<'a>(path: &str, message: &'a str) -> &'a str {
    let rest = message
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix(": "));
    rest.unwrap_or(message)
}

fn kind_of_grpc(code: tonic::Code) -> FailureKind {
    use tonic::Code;
    match code {
        Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented => {
            FailureKind::Invalid
        }
        Code::NotFound => FailureKind::NotFound,
        Code::AlreadyExists => FailureKind::AlreadyExists,
        Code::Aborted => FailureKind::Conflict,
        Code::PermissionDenied | Code::Unauthenticated => FailureKind::NotAllowed,
        Code::OutOfRange => FailureKind::Expired,
        Code::ResourceExhausted => FailureKind::Busy,
        Code::Unavailable => FailureKind::Unavailable,
        Code::DeadlineExceeded | Code::Cancelled => FailureKind::TimedOut,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => FailureKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure(error: &ClientError) -> &Failure {
        error.failure().expect("the hub's answer")
    }

    #[test]
    fn a_status_body_keeps_its_causes() {
        let body = json!({
            "kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "FederatedJob \"x\" is invalid",
            "details": {"causes": [
                {"field": "spec.roles", "reason": "FieldValueRequired", "message": "is missing"}
            ]}
        });
        let error = from_http(
            StatusCode::UNPROCESSABLE_ENTITY,
            body.to_string().as_bytes(),
        );
        let failure = failure(&error);
        assert_eq!(failure.kind, FailureKind::Invalid);
        assert_eq!(failure.code, "E1102");
        assert_eq!(failure.causes[0].field, "spec.roles");
        assert_eq!(error.to_string(), "FederatedJob \"x\" is invalid");
    }

    #[test]
    fn what_is_no_status_is_quoted_shortly() {
        let error = from_http(StatusCode::BAD_GATEWAY, "x".repeat(9_999).as_bytes());
        let failure = failure(&error);
        assert_eq!(failure.kind, FailureKind::Unavailable);
        assert_eq!(failure.code, "E6002");
        assert!(failure.message.len() < 300);
    }

    #[test]
    fn http_codes_and_reasons_give_the_kind() {
        let cases = [
            (409, "AlreadyExists", FailureKind::AlreadyExists),
            (409, "Conflict", FailureKind::Conflict),
            (410, "Expired", FailureKind::Expired),
            (404, "NotFound", FailureKind::NotFound),
            (403, "Forbidden", FailureKind::NotAllowed),
            (400, "BadRequest", FailureKind::Invalid),
            (413, "RequestEntityTooLarge", FailureKind::Invalid),
            (429, "TooManyRequests", FailureKind::Busy),
            (503, "ServiceUnavailable", FailureKind::Unavailable),
            (504, "Timeout", FailureKind::TimedOut),
            (500, "InternalError", FailureKind::Internal),
        ];
        for (code, reason, kind) in cases {
            assert_eq!(kind_of(code, reason), kind, "{code} {reason}");
        }
    }

    #[test]
    fn a_grpc_detail_wins_over_the_bare_status() {
        let detail = v1::ErrorDetail {
            code: "E4012".into(),
            message: "job nlp/llm-70b denied".into(),
            causes: vec![v1::FieldCause {
                field: "spec.checkpoint".into(),
                reason: "CheckpointRequired".into(),
                message: "spec.checkpoint: missing".into(),
            }],
            help: "add it".into(),
            retry_after_ms: 1500,
        };
        let details = detail.encode_to_vec();
        let status =
            tonic::Status::with_details(tonic::Code::FailedPrecondition, "x", details.into());
        let error = from_grpc("hub:1", &status);
        let failure = failure(&error);
        assert_eq!(failure.kind, FailureKind::Denied);
        assert_eq!(failure.code, "E4012");
        assert_eq!(failure.help, "add it");
        assert_eq!(failure.retry_after, Some(Millis(1500)));
        assert_eq!(failure.causes[0].reason, "CheckpointRequired");
        assert_eq!(failure.causes[0].message, "missing");

        let bare = from_grpc("hub:1", &tonic::Status::not_found("no job"));
        assert!(bare.is(FailureKind::NotFound));
        assert_eq!(bare.to_string(), "no job");
    }
}
