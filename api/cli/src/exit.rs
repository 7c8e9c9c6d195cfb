//! Exit codes: one closed list, so that scripts can rely on them.
//!
//! Owns the numbers and which failure gets which. Never ends the process.

use meridian_client::{ClientError, FailureKind};

/// How a command ended. The numbers never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done; for `plan --detailed-exitcode`: starts now; for `wait`: succeeded.
    Done = 0,
    /// Failed in a way that has no number of its own.
    Error = 1,
    /// The command line itself is wrong.
    Usage = 2,
    /// Nothing had to change; only with `--error-unchanged`.
    Unchanged = 3,
    /// A rule or a quota forbids it.
    Denied = 4,
    /// There is no such object.
    NotFound = 5,
    /// The object changed meanwhile, or something stands against it.
    Conflict = 6,
    /// Not done in time.
    TimedOut = 7,
    /// No hub answers, or it cannot serve at the moment: try again later.
    Unreachable = 8,
    /// The caller may not do that.
    NotAllowed = 9,
    /// `plan --detailed-exitcode`: it will queue.
    WillQueue = 20,
    /// `plan --detailed-exitcode`: it can never be placed.
    NeverPlaced = 22,
    /// `wait`: the work failed.
    WorkFailed = 30,
    /// `wait`: the work was cancelled or deleted.
    WorkCancelled = 31,
    /// `wait`: the work was preempted and not queued again.
    WorkPreempted = 32,
    /// `replay`: the same snapshot gives another plan here.
    Differs = 40,
    /// Detached by Ctrl-C: 128 and the signal's number, as shells have it.
    Interrupted = 130,
}

impl Exit {
    /// The number.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// The code for a call that failed.
    pub(crate) fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Api(failure) => match failure.kind {
                FailureKind::Invalid | FailureKind::Expired | FailureKind::Internal => Self::Error,
                FailureKind::Denied => Self::Denied,
                FailureKind::NotFound => Self::NotFound,
                FailureKind::AlreadyExists | FailureKind::Conflict => Self::Conflict,
                FailureKind::NotAllowed => Self::NotAllowed,
                FailureKind::Busy | FailureKind::Unavailable => Self::Unreachable,
                FailureKind::TimedOut => Self::TimedOut,
            },
            ClientError::Unreachable { .. } | ClientError::Lost { .. } => Self::Unreachable,
            ClientError::TimedOut { .. } => Self::TimedOut,
            ClientError::Protocol(_) => Self::Error,
            ClientError::BadServer { .. } => Self::Usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::units::Millis;
    use meridian_client::Failure;

    use super::*;

    #[test]
    fn every_failure_of_a_call_has_its_code() {
        let cases = [
            (FailureKind::Invalid, 1),
            (FailureKind::Denied, 4),
            (FailureKind::NotFound, 5),
            (FailureKind::AlreadyExists, 6),
            (FailureKind::Conflict, 6),
            (FailureKind::NotAllowed, 9),
            (FailureKind::Expired, 1),
            (FailureKind::Busy, 8),
            (FailureKind::Unavailable, 8),
            (FailureKind::TimedOut, 7),
            (FailureKind::Internal, 1),
        ];
        for (kind, code) in cases {
            let error = ClientError::Api(Box::new(Failure {
                kind,
                code: String::new(),
                message: String::new(),
                causes: Vec::new(),
                help: String::new(),
                retry_after: None,
            }));
            assert_eq!(Exit::of(&error).code(), code, "{kind:?}");
        }
        let (server, cause) = (String::new(), String::new());
        let late = ClientError::TimedOut {
            what: String::new(),
            limit: Millis(1),
        };
        assert_eq!(
            Exit::of(&ClientError::Unreachable { server, cause }),
            Exit::Unreachable
        );
        assert_eq!(Exit::of(&late), Exit::TimedOut);
        assert_eq!(Exit::of(&ClientError::Protocol(String::new())), Exit::Error);
    }
}
