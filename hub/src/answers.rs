//! Answers to callers: what the API server and the store say, in the closed list of codes.
//!
//! Owns that one mapping. Internal texts that help nobody stay inside.

use meridian_api::errors::{ApiError, ErrorCode, FieldError, FieldReason};
use meridian_apiserver::{ApiStatus, FieldReason as Theirs, StatusReason};
use meridian_proto::status;
use meridian_store::StoreError;
use tonic::Status;

/// An answer of the API server.
pub(crate) fn from_api_status(status: ApiStatus) -> ApiError {
    let given = status
        .causes
        .iter()
        .find(|cause| cause.reason == Theirs::ErrorCode);
    let given = given.and_then(|cause| cause.message.parse::<ErrorCode>().ok());
    let causes: Vec<FieldError> = status
        .causes
        .into_iter()
        .filter_map(|cause| {
            let reason = field_reason(cause.reason)?;
            Some(FieldError::new(cause.path, reason, cause.message))
        })
        .collect();
    let code = given.unwrap_or_else(|| code(status.reason, &causes));
    ApiError {
        causes,
        ..ApiError::new(code, status.message)
    }
}

fn code(reason: StatusReason, causes: &[FieldError]) -> ErrorCode {
    let unknown = |cause: &FieldError| cause.reason == FieldReason::Unknown;
    match reason {
        StatusReason::AlreadyExists => ErrorCode::AlreadyExists,
        StatusReason::NotFound => ErrorCode::NotFound,
        StatusReason::Conflict => ErrorCode::Conflict,
        StatusReason::Expired => ErrorCode::Expired,
        StatusReason::Forbidden | StatusReason::Unauthorized => ErrorCode::Forbidden,
        StatusReason::Invalid | StatusReason::BadRequest
            if !causes.is_empty() && causes.iter().all(unknown) =>
        {
            ErrorCode::UnknownField
        }
        StatusReason::Invalid | StatusReason::BadRequest => ErrorCode::InvalidObject,
        StatusReason::RequestEntityTooLarge => ErrorCode::TooLarge,
        StatusReason::TooManyRequests => ErrorCode::Overloaded,
        StatusReason::ServiceUnavailable => ErrorCode::StoreUnavailable,
        StatusReason::Timeout => ErrorCode::TimedOut,
        StatusReason::MethodNotAllowed
        | StatusReason::NotAcceptable
        | StatusReason::UnsupportedMediaType => ErrorCode::Unsupported,
        StatusReason::InternalError => ErrorCode::Internal,
    }
}

/// `None` for what is not about a field.
fn field_reason(reason: Theirs) -> Option<FieldReason> {
    Some(match reason {
        Theirs::Required => FieldReason::Required,
        Theirs::Invalid | Theirs::ResourceVersionTooLarge => FieldReason::Invalid,
        Theirs::TypeInvalid => FieldReason::TypeInvalid,
        Theirs::NotSupported => FieldReason::NotSupported,
        Theirs::Forbidden => FieldReason::Forbidden,
        Theirs::TooMany => FieldReason::TooMany,
        Theirs::Duplicate => FieldReason::Duplicate,
        Theirs::NotFound => FieldReason::NotFound,
        Theirs::Unknown => FieldReason::Unknown,
        Theirs::ErrorCode | Theirs::Help => return None,
    })
}

/// A failure of the store, as an error.
#[expect(clippy::needless_pass_by_value, reason = "used as a mapping of errors")]
pub(crate) fn store_error(error: StoreError) -> ApiError {
    let code = match error {
        StoreError::Compacted { .. } => ErrorCode::Expired,
        StoreError::FutureRevision { .. } => ErrorCode::InvalidObject,
        StoreError::Refused(_) => ErrorCode::TooLarge,
        StoreError::Full(_) => ErrorCode::StoreFull,
        StoreError::Unavailable(_) | StoreError::LeaseNotFound(_) => ErrorCode::StoreUnavailable,
        StoreError::Corrupt(_) | StoreError::Unsupported { .. } => ErrorCode::Internal,
    };
    ApiError::new(code, error.to_string())
}

/// A failure of the store, as a gRPC status.
pub(crate) fn store_status(error: StoreError) -> Status {
    status::to_status(&store_error(error))
}

#[cfg(test)]
mod tests {
    use meridian_apiserver::FieldError as Cause;

    use super::*;

    #[test]
    fn a_code_that_is_given_counts() {
        let mut status = ApiStatus::new(StatusReason::Conflict, "in use");
        status.causes = vec![Cause::new("", Theirs::ErrorCode, "E3005")];
        let error = from_api_status(status);
        assert_eq!(error.code, ErrorCode::InUse);
        assert!(error.causes.is_empty());
    }

    #[test]
    fn nothing_but_unknown_fields_has_its_own_code() {
        let mut status = ApiStatus::new(StatusReason::BadRequest, "unknown");
        status.causes = vec![Cause::new("spec.a", Theirs::Unknown, "no such field")];
        assert_eq!(
            from_api_status(status.clone()).code,
            ErrorCode::UnknownField
        );
        status
            .causes
            .push(Cause::new("spec.b", Theirs::Required, "must be given"));
        assert_eq!(from_api_status(status).code, ErrorCode::InvalidObject);
    }
}
