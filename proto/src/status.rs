//! Errors on the wire: the one mapping between the closed error codes and gRPC.
//!
//! Owns the details that travel in a gRPC status (`ErrorDetail`, encoded as it is), and the name of
//! the leader that a follower sends along. Never makes up an error.

use meridian_api::errors::{ApiError, ErrorCode, FieldError, FieldReason};
use meridian_api::units::Millis;
use prost::Message as _;
use tonic::{Code, Status};

use crate::v1;

/// Metadata key under which a follower names the leader's address.
pub const LEADER_KEY: &str = "meridian-leader";

/// As a message.
#[must_use]
pub fn to_detail(error: &ApiError) -> v1::ErrorDetail {
    let cause = |cause: &FieldError| v1::FieldCause {
        field: cause.path.clone(),
        reason: cause.reason.as_str().to_owned(),
        message: cause.to_string(),
    };
    v1::ErrorDetail {
        code: error.code.as_str().to_owned(),
        message: error.message.clone(),
        causes: error.causes.iter().map(cause).collect(),
        help: error.help.clone(),
        retry_after_ms: error.retry_after.map_or(0, |span| span.0),
    }
}

/// As a gRPC status.
#[must_use]
pub fn to_status(error: &ApiError) -> Status {
    let code = Code::from(i32::from(error.code.grpc_code()));
    let details = to_detail(error).encode_to_vec();
    Status::with_details(code, error.message.clone(), details.into())
}

/// A refusal by a follower, naming the leader when it is known.
#[must_use]
pub fn not_leader(leader: Option<&str>) -> Status {
    let message = match leader {
        Some(address) => format!("this hub does not lead, {address} does"),
        None => "no hub leads at the moment".to_owned(),
    };
    let error = ApiError::new(ErrorCode::NotLeader, message).help("ask the leader");
    let mut status = to_status(&error);
    if let Some(Ok(address)) = leader.map(str::parse) {
        status.metadata_mut().insert(LEADER_KEY, address);
    }
    status
}

/// The address of the leader that a follower's refusal names.
#[must_use]
pub fn leader_of(status: &Status) -> Option<String> {
    status
        .metadata()
        .get(LEADER_KEY)?
        .to_str()
        .ok()
        .map(str::to_owned)
}

/// Back from a gRPC status. A status without our details is told by its gRPC code alone.
#[must_use]
pub fn from_status(status: &Status) -> ApiError {
    let detail = v1::ErrorDetail::decode(status.details()).ok();
    if let Some(detail) = detail
        && let Ok(code) = detail.code.parse::<ErrorCode>()
    {
        return from_detail(code, detail);
    }
    ApiError::new(by_grpc_code(status.code()), status.message())
}

/// Back from the details of an error; an unknown code is told as a defect of whoever sent it.
#[must_use]
pub fn from_wire(detail: v1::ErrorDetail) -> ApiError {
    let code = detail.code.parse::<ErrorCode>();
    from_detail(code.unwrap_or(ErrorCode::Internal), detail)
}

fn from_detail(code: ErrorCode, detail: v1::ErrorDetail) -> ApiError {
    let mut error = ApiError::new(code, detail.message).help(detail.help);
    error.retry_after = (detail.retry_after_ms > 0).then_some(Millis(detail.retry_after_ms));
    let cause = |cause: v1::FieldCause| {
        // The message of a cause repeats its path for those who read only it.
        let message = cause.message.strip_prefix(&format!("{}: ", cause.field));
        let message = message.unwrap_or(&cause.message).to_owned();
        FieldError::new(cause.field, field_reason(&cause.reason), message)
    };
    error.causes = detail.causes.into_iter().map(cause).collect();
    error
}

fn field_reason(word: &str) -> FieldReason {
    match word {
        "FieldValueRequired" => FieldReason::Required,
        "FieldValueTypeInvalid" => FieldReason::TypeInvalid,
        "FieldValueNotSupported" => FieldReason::NotSupported,
        "FieldValueForbidden" => FieldReason::Forbidden,
        "FieldValueTooMany" => FieldReason::TooMany,
        "FieldValueDuplicate" => FieldReason::Duplicate,
        "FieldValueNotFound" => FieldReason::NotFound,
        "FieldUnknown" => FieldReason::Unknown,
        _ => FieldReason::Invalid,
    }
}

fn by_grpc_code(code: Code) -> ErrorCode {
    match code {
        Code::InvalidArgument => ErrorCode::MalformedDocument,
        Code::NotFound => ErrorCode::NotFound,
        Code::AlreadyExists => ErrorCode::AlreadyExists,
        Code::PermissionDenied | Code::Unauthenticated => ErrorCode::Forbidden,
        Code::ResourceExhausted => ErrorCode::Overloaded,
        Code::Aborted => ErrorCode::Conflict,
        Code::DeadlineExceeded => ErrorCode::TimedOut,
        Code::Unavailable => ErrorCode::HubUnreachable,
        Code::Unimplemented => ErrorCode::Unsupported,
        _ => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for code in ErrorCode::ALL {
            let cause = FieldError::new("spec.roles[0]", FieldReason::Required, "must be given");
            let mut error = ApiError::new(*code, "what happened").help("what to do");
            error.causes = vec![cause];
            error.retry_after = Some(Millis(250));
            let status = to_status(&error);
            assert_eq!(i32::from(status.code()), i32::from(code.grpc_code()));
            assert_eq!(from_status(&status), error);
        }
    }

    #[test]
    fn a_follower_names_the_leader() {
        let status = not_leader(Some("10.0.0.7:7443"));
        assert_eq!(leader_of(&status).as_deref(), Some("10.0.0.7:7443"));
        assert_eq!(from_status(&status).code, ErrorCode::NotLeader);
        assert_eq!(leader_of(&not_leader(None)), None);
    }

    #[test]
    fn a_foreign_status_is_told_by_its_code() {
        let error = from_status(&Status::deadline_exceeded("too slow"));
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode::TimedOut, "too slow")
        );
    }
}
