//! The verbs, one file each: ask the hub, print what it says.
//!
//! Owns what several verbs share. Layout is in `render`.

pub(crate) mod apply;
pub(crate) mod capacity;
pub(crate) mod cluster;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod get;
pub(crate) mod logs;
pub(crate) mod plan;
pub(crate) mod playground;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod replay;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod tenant;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod why;

use std::io::Write as _;

use meridian_api::errors::ApiError;
use meridian_api::kinds;
use meridian_client::{ClientError, DryRun};

use crate::args::{Dry, OutputArgs};
use crate::context::{Context, note};
use crate::documents::Wanted;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Headers;

impl OutputArgs {
    pub(crate) fn headers(&self) -> Headers {
        if self.no_headers {
            Headers::Hidden
        } else {
            Headers::Shown
        }
    }
}

impl Dry {
    /// What the hub is told.
    pub(crate) const fn on_the_hub(self) -> DryRun {
        match self {
            Self::None => DryRun::No,
            Self::Client | Self::Server => DryRun::Server,
        }
    }

    /// Behind a line that says what was done.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// Several things done one after the other: an error of one is told at once and does not stop the
/// others; the first one's code ends the command.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    first: Option<Exit>,
}

impl Bulk {
    /// Tells a failure. One that every further call would meet again is passed on instead.
    pub(crate) fn tell(&mut self, context: &Context, failure: Failure) -> Result<(), Failure> {
        let is_general = match &failure {
            Failure::About { source, .. } | Failure::Client(source) => match source {
                ClientError::Unreachable { .. }
                | ClientError::Lost { .. }
                | ClientError::TimedOut { .. }
                | ClientError::Protocol(_)
                | ClientError::BadServer { .. } => true,
                ClientError::Api(_) => false,
            },
            Failure::ClosedPipe | Failure::Output(_) => true,
            Failure::Document { .. }
            | Failure::Unreadable { .. }
            | Failure::Usage { .. }
            | Failure::Ended { .. }
            | Failure::Reported(_) => false,
        };
        if is_general {
            return Err(failure);
        }
        if let Some(report) = failure.report(&context.server.described()) {
            note(&report);
        }
        self.first.get_or_insert(failure.exit());
        Ok(())
    }

    /// `exit`, unless something failed.
    pub(crate) fn end(self, exit: Exit) -> Result<Exit, Failure> {
        match self.first {
            Some(first) => Err(Failure::Reported(first)),
            None => Ok(exit),
        }
    }
}

/// Asks the person whether `what` is meant, or demands `-y` where there is none; `otherwise` says
/// what a no leaves behind.
pub(crate) fn agree(context: &Context, what: &str, otherwise: &str) -> Result<(), Failure> {
    if !context.interactive {
        return Err(Failure::usage(
            format!("this would {what}"),
            "repeat with -y if that is meant",
        ));
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{what}? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    let agreed = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if read.is_ok() && agreed {
        return Ok(());
    }
    Err(Failure::Ended {
        code: None,
        message: otherwise.to_owned(),
        fix: String::new(),
        exit: Exit::Error,
    })
}

/// Checks a document against the schema that this command knows.
pub(crate) fn check_here(wanted: &Wanted) -> Result<(), Failure> {
    let Some(info) = kinds::by_kind(wanted.resource.kind) else {
        return Ok(());
    };
    let found = info.check(&wanted.value);
    if found.is_empty() {
        return Ok(());
    }
    let what = format!("{} {}", info.singular, wanted.name());
    Err(Failure::Document {
        origin: wanted.origin.clone(),
        source: Box::new(ApiError::from_fields(&what, found)),
    })
}
