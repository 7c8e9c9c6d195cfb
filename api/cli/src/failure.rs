//! Why a command failed, and how that is said: what, which field, the numbers, what to do.
//!
//! Owns the form of errors on the terminal. Never writes one.

use std::fmt::Write as _;
use std::io;

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_client::{ClientError, Failure as Refusal};

use crate::exit::Exit;

/// Advice and documentation share a line up to this many columns.
const WIDTH: usize = 90;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A call to the hub failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A call to the hub about one thing failed.
    #[error("{what}")]
    About {
        /// The thing: `bad.yaml:3: FederatedJob nlp/x`.
        what: String,
        /// Why.
        source: ClientError,
    },
    /// A document cannot be understood.
    #[error("{origin}")]
    Document {
        /// Where it is: `jobs.yaml:12`.
        origin: String,
        /// What is wrong with it.
        source: Box<ApiError>,
    },
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The path as it was given.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The command line asks for something that makes no sense.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to write instead.
        fix: String,
    },
    /// Something ended otherwise than was asked for.
    #[error("{message}")]
    Ended {
        /// Its stable code, when it has one.
        code: Option<ErrorCode>,
        /// What happened.
        message: String,
        /// What to do.
        fix: String,
        /// The code to end with.
        exit: Exit,
    },
    /// Everything has been said already; the process only has to end so.
    #[error("already reported")]
    Reported(Exit),
    /// Whoever read the output has gone: not an error.
    #[error("nobody reads the output")]
    ClosedPipe,
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Usage {
            message: message.into(),
            fix: fix.into(),
        }
    }

    /// The code to end with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Client(error) | Self::About { source: error, .. } => Exit::of(error),
            Self::Document { .. } | Self::Unreadable { .. } | Self::Output(_) => Exit::Error,
            Self::Usage { .. } => Exit::Usage,
            Self::Ended { exit, .. } | Self::Reported(exit) => *exit,
            Self::ClosedPipe => Exit::Done,
        }
    }

    /// The text for standard error, or `None` when there is nothing left to say.
    pub(crate) fn report(&self, server: &str) -> Option<String> {
        let said = match self {
            Self::Reported(_) | Self::ClosedPipe => return None,
            Self::Client(error) => said_by_client(error, server),
            Self::About { what, source } => {
                let mut said = said_by_client(source, server);
                said.message = format!("{what}: {}", said.message);
                said
            }
            Self::Document { origin, source } => {
                let mut said = Said::of_api(source);
                said.message = format!("{origin}: {}", said.message);
                said
            }
            Self::Unreadable { path, source } => {
                Said::plain(format!("cannot read {path}: {source}"), "")
            }
            Self::Usage { message, fix } => Said::plain(message.clone(), fix),
            Self::Ended {
                code, message, fix, ..
            } => Said {
                code: code.map_or_else(String::new, |code| code.to_string()),
                ..Said::plain(message.clone(), fix)
            },
            Self::Output(error) => Said::plain(format!("cannot write the output: {error}"), ""),
        };
        Some(said.to_text())
    }
}

/// One error, ready to be laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    code: String,
    message: String,
    /// Path of a field, and what is wrong with it.
    fields: Vec<(String, String)>,
    fix: String,
}

impl Said {
    fn plain(message: String, fix: &str) -> Self {
        Self {
            message,
            fix: fix.to_owned(),
            ..Self::default()
        }
    }

    /// What the hub answered.
    pub(crate) fn of_refusal(refusal: &Refusal) -> Self {
        let mut fix = refusal.help.clone();
        if let Some(after) = refusal.retry_after {
            let separator = if fix.is_empty() { "" } else { "; " };
            let after = meridian_api::quantity::Span(after);
            let _ = write!(fix, "{separator}try again in {after}");
        }
        Self {
            code: refusal.code.clone(),
            message: refusal.message.clone(),
            fields: refusal
                .causes
                .iter()
                .map(|cause| (cause.field.clone(), cause.message.clone()))
                .collect(),
            fix,
        }
    }

    fn of_api(error: &ApiError) -> Self {
        let field = |cause: &meridian_api::errors::FieldError| {
            let mut message = cause.message.clone();
            if let Some(suggestion) = &cause.suggestion {
                let _ = write!(message, " (did you mean {suggestion:?}?)");
            }
            (cause.path.clone(), message)
        };
        Self {
            code: error.code.to_string(),
            message: error.message.clone(),
            fields: error.causes.iter().map(field).collect(),
            fix: error.help.clone(),
        }
    }

    /// `error[E4012] what`, the fields below it in two columns, then what to do.
    pub(crate) fn to_text(&self) -> String {
        let mut text = match self.code.as_str() {
            "" => format!("error: {}", self.message),
            code => format!("error[{code}] {}", self.message),
        };
        // A cause that the message repeats word for word says nothing twice.
        let fields: Vec<_> = self
            .fields
            .iter()
            .filter(|(_, message)| self.fields.len() > 1 || !self.message.ends_with(message))
            .collect();
        let width = fields.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
        for (path, message) in fields {
            let path = if path.is_empty() { "(object)" } else { path };
            let _ = write!(text, "\n  {path:width$}  {message}");
        }
        let docs = self.code.parse::<ErrorCode>().ok();
        let docs = docs.map(|code| format!("docs: {}", code.docs_anchor()));
        let fix = (!self.fix.is_empty()).then(|| format!("fix: {}", self.fix));
        let advice: Vec<String> = [fix, docs].into_iter().flatten().collect();
        let one_line = advice.join("    ");
        if one_line.chars().count() > WIDTH {
            let _ = write!(text, "\n  {}", advice.join("\n  "));
        } else if !one_line.is_empty() {
            let _ = write!(text, "\n  {one_line}");
        }
        text
    }
}

fn said_by_client(error: &ClientError, server: &str) -> Said {
    let hub = |message: String, fields, fix: &str| Said {
        code: ErrorCode::HubUnreachable.to_string(),
        message,
        fields,
        fix: fix.to_owned(),
    };
    match error {
        ClientError::Api(refusal) => Said::of_refusal(refusal),
        ClientError::Unreachable { server: at, cause } => hub(
            format!("no hub answers at {at}"),
            vec![
                ("tried".to_owned(), server.to_owned()),
                ("cause".to_owned(), cause.clone()),
            ],
            "start one with `meridian playground --serve`, or name one with --server or \
             MERIDIAN_SERVER",
        ),
        ClientError::Lost { server: at, cause } => hub(
            format!("connection to {at} lost before the answer"),
            vec![
                ("tried".to_owned(), server.to_owned()),
                ("cause".to_owned(), cause.clone()),
            ],
            "a change may or may not have been made: look with `meridian get`, then try again",
        ),
        ClientError::TimedOut { what, limit } => Said {
            code: ErrorCode::TimedOut.to_string(),
            message: format!(
                "no answer within {}: {what}",
                meridian_api::quantity::Span(*limit)
            ),
            fields: vec![("tried".to_owned(), server.to_owned())],
            fix: "allow more time with --request-timeout".to_owned(),
        },
        ClientError::Protocol(what) => Said::plain(
            format!("the server at {server} does not answer like a hub: {what}"),
            "check --server, and that hub and command are of one version: `meridian version`",
        ),
        ClientError::BadServer { .. } => Said::plain(error.to_string(), "see --server"),
    }
}

#[cfg(test)]
mod tests {
    use meridian_client::{Cause, FailureKind};

    use super::*;

    fn refusal(message: &str, causes: &[(&str, &str)], help: &str) -> ClientError {
        let cause = |(field, message): &(&str, &str)| Cause {
            field: (*field).into(),
            reason: String::new(),
            message: (*message).into(),
        };
        ClientError::Api(Box::new(Refusal {
            kind: FailureKind::Invalid,
            code: "E1102".into(),
            message: message.into(),
            causes: causes.iter().map(cause).collect(),
            help: help.into(),
            retry_after: None,
        }))
    }

    fn text(failure: &Failure) -> String {
        failure
            .report("http://127.0.0.1:7080 (the default)")
            .expect("something to say")
    }

    #[test]
    fn fields_line_up_and_advice_comes_last() {
        let causes = [
            ("spec.roles[0].gpus", "is 0"),
            ("", "needs a role"),
            ("spec.x", "unknown"),
        ];
        let failure = Failure::from(refusal("job a is refused", &causes, "give it GPUs"));
        insta::assert_snapshot!(text(&failure), @r#"
        error[E1102] job a is refused
          spec.roles[0].gpus  is 0
          (object)            needs a role
          spec.x              unknown
          fix: give it GPUs    docs: errors#e1102-invalid-object
        "#);
    }

    #[test]
    fn a_single_cause_is_not_said_twice() {
        let said = "job a is refused: spec.x: no such field";
        let failure = Failure::from(refusal(said, &[("spec.x", "no such field")], ""));
        insta::assert_snapshot!(text(&failure), @r#"
        error[E1102] job a is refused: spec.x: no such field
          docs: errors#e1102-invalid-object
        "#);
    }

    #[test]
    fn a_lost_connection_says_that_the_outcome_is_unknown() {
        let failure = Failure::from(ClientError::Lost {
            server: "127.0.0.1:7080".into(),
            cause: "connection reset".into(),
        });
        insta::assert_snapshot!(text(&failure), @r#"
        error[E6006] connection to 127.0.0.1:7080 lost before the answer
          tried  http://127.0.0.1:7080 (the default)
          cause  connection reset
          fix: a change may or may not have been made: look with `meridian get`, then try again
          docs: errors#e6006-hub-unreachable
        "#);
        assert_eq!(failure.exit(), Exit::Unreachable);
    }

    #[test]
    fn a_code_of_a_newer_hub_is_shown_without_an_anchor() {
        let said = Said {
            code: "E4999".into(),
            message: "something new".into(),
            ..Said::default()
        };
        assert_eq!(said.to_text(), "error[E4999] something new");
    }
}
