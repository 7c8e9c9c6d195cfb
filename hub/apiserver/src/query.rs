//! Query parameters: read once, with an error that names the parameter.
//!
//! Owns their names and defaults. Never does what they ask for.

use axum::extract::Query as Pairs;
use http::Uri;
use meridian_runtime::clock::Millis;
use meridian_store::Revision;

use crate::admission::DryRun;
use crate::read::{ListOptions, VersionMatch};
use crate::render::Rendering;
use crate::resources::{FieldValidation, Propagation, WriteOptions};
use crate::selectors::{EVENT_FIELDS, FieldSelector, LabelSelector, Selectors};
use crate::status::ApiStatus;
use crate::table::IncludeObject;
use crate::watch::{Initial, WatchOptions};

/// Longest field manager, as Kubernetes has it.
const MAX_MANAGER: usize = 128;

/// The parameters of one request, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Result<Self, ApiStatus> {
        match Pairs::<Vec<(String, String)>>::try_from_uri(uri) {
            Ok(Pairs(pairs)) => Ok(Self(pairs)),
            Err(error) => Err(ApiStatus::bad_request(format!(
                "the query cannot be read: {error}"
            ))),
        }
    }

    /// The first value of a parameter; an empty one counts as absent.
    fn text(&self, name: &str) -> Option<&str> {
        let found = self
            .0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, ApiStatus> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text
            .parse()
            .map_err(|_| bad(name, text, "a whole number"))?;
        Ok(Some(number))
    }

    fn flag(&self, name: &str) -> Result<bool, ApiStatus> {
        match self.text(name) {
            None | Some("false" | "False" | "0" | "f" | "F") => Ok(false),
            Some("true" | "True" | "1" | "t" | "T") => Ok(true),
            Some(other) => Err(bad(name, other, "true or false")),
        }
    }

    pub(crate) fn is_watch(&self) -> Result<bool, ApiStatus> {
        self.flag("watch")
    }

    pub(crate) fn dry_run(&self) -> Result<DryRun, ApiStatus> {
        match self.text("dryRun") {
            None => Ok(DryRun::No),
            Some("All") => Ok(DryRun::All),
            Some(other) => Err(bad("dryRun", other, "All")),
        }
    }

    pub(crate) fn propagation(&self) -> Result<Propagation, ApiStatus> {
        match self.text("propagationPolicy") {
            None => Ok(Propagation::default()),
            Some(text) => propagation(text),
        }
    }

    pub(crate) fn include_object(&self) -> Result<IncludeObject, ApiStatus> {
        match self.text("includeObject") {
            None | Some("Metadata") => Ok(IncludeObject::Metadata),
            Some("None") => Ok(IncludeObject::None),
            Some("Object") => Ok(IncludeObject::Object),
            Some(other) => Err(bad("includeObject", other, "None, Metadata or Object")),
        }
    }

    /// The version that a single get must not be older than.
    pub(crate) fn resource_version(&self) -> Result<Option<Revision>, ApiStatus> {
        Ok(self.number("resourceVersion")?.map(Revision))
    }

    pub(crate) fn write_options(&self, duplicates: Vec<String>) -> Result<WriteOptions, ApiStatus> {
        let field_validation = match self.text("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => return Err(bad("fieldValidation", other, "Strict, Warn or Ignore")),
        };
        let manager = self.text("fieldManager").unwrap_or_default();
        if manager.len() > MAX_MANAGER {
            return Err(bad("fieldManager", manager, "at most 128 bytes long"));
        }
        Ok(WriteOptions {
            dry_run: self.dry_run()?,
            field_validation,
            field_manager: manager.to_owned(),
            duplicates,
            ..WriteOptions::default()
        })
    }

    pub(crate) fn selectors(&self) -> Result<Selectors, ApiStatus> {
        Ok(Selectors {
            labels: LabelSelector::parse(self.text("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse(self.text("fieldSelector").unwrap_or_default())?,
        })
    }

    /// Selectors of events.
    pub(crate) fn event_selectors(&self) -> Result<Selectors, ApiStatus> {
        let fields = self.text("fieldSelector").unwrap_or_default();
        Ok(Selectors {
            labels: LabelSelector::parse(self.text("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse_over(fields, EVENT_FIELDS)?,
        })
    }

    pub(crate) fn list_options(&self, namespace: Option<String>) -> Result<ListOptions, ApiStatus> {
        let Selectors { labels, fields } = self.selectors()?;
        let resource_version = self.resource_version()?;
        let version_match = self.version_match()?;
        let continue_token = self.text("continue").map(str::to_owned);
        if version_match.is_some() && (resource_version.is_none() || continue_token.is_some()) {
            let message = "resourceVersionMatch is forbidden unless resourceVersion is given, and \
                           with a continue token";
            return Err(ApiStatus::bad_request(message));
        }
        let limit = self.number("limit")?;
        Ok(ListOptions {
            namespace,
            limit: limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            continue_token,
            resource_version,
            version_match: version_match.unwrap_or_default(),
            labels,
            fields,
        })
    }

    fn version_match(&self) -> Result<Option<VersionMatch>, ApiStatus> {
        match self.text("resourceVersionMatch") {
            None => Ok(None),
            Some("NotOlderThan") => Ok(Some(VersionMatch::NotOlderThan)),
            Some("Exact") => Ok(Some(VersionMatch::Exact)),
            Some(other) => Err(bad("resourceVersionMatch", other, "NotOlderThan or Exact")),
        }
    }

    pub(crate) fn watch_options(
        &self,
        namespace: Option<String>,
        rendering: Rendering,
    ) -> Result<WatchOptions, ApiStatus> {
        let after = self.resource_version()?.unwrap_or_default();
        let version_match = self.version_match()?;
        let initial = match (self.text("sendInitialEvents"), after) {
            (Some(_), _) if self.flag("sendInitialEvents")? => {
                if version_match != Some(VersionMatch::NotOlderThan) {
                    let message = "sendInitialEvents requires resourceVersionMatch=NotOlderThan";
                    return Err(ApiStatus::new(crate::StatusReason::Invalid, message));
                }
                Initial::SendAndMark
            }
            (None, Revision(0)) => Initial::Send,
            (_, Revision(0)) => {
                let message = "sendInitialEvents=false needs a resourceVersion to begin at";
                return Err(ApiStatus::new(crate::StatusReason::Invalid, message));
            }
            (_, _) => Initial::Skip,
        };
        Ok(WatchOptions {
            namespace,
            selectors: self.selectors()?,
            after,
            initial,
            bookmarks: self.flag("allowWatchBookmarks")?,
            timeout: self.timeout()?,
            rendering,
        })
    }

    pub(crate) fn timeout(&self) -> Result<Option<Millis>, ApiStatus> {
        Ok(self
            .number("timeoutSeconds")?
            .filter(|seconds| *seconds > 0)
            .map(Millis::seconds))
    }
}

/// Reads a propagation policy, from the query or from a body.
pub(crate) fn propagation(text: &str) -> Result<Propagation, ApiStatus> {
    match text {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => Err(bad(
            "propagationPolicy",
            other,
            "Background, Foreground or Orphan",
        )),
    }
}

fn bad(name: &str, value: &str, expected: &str) -> ApiStatus {
    let value: String = value.chars().take(64).collect();
    ApiStatus::bad_request(format!(
        "{name}: invalid value {value:?}: it must be {expected}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negotiate::Form;

    fn query(text: &str) -> Query {
        Query::of(&format!("/x?{text}").parse().unwrap()).unwrap()
    }

    fn watch(text: &str) -> Result<WatchOptions, u16> {
        let rendering = Rendering {
            form: Form::Object,
            include: IncludeObject::Metadata,
        };
        query(text)
            .watch_options(None, rendering)
            .map_err(|status| status.code())
    }

    #[test]
    fn a_watch_begins_with_what_is_there_unless_a_version_is_given() {
        assert_eq!(watch("watch=1").unwrap().initial, Initial::Send);
        assert_eq!(watch("resourceVersion=0").unwrap().initial, Initial::Send);
        assert_eq!(watch("resourceVersion=5").unwrap().initial, Initial::Skip);
        let list = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(watch(list).unwrap().initial, Initial::SendAndMark);
        assert_eq!(watch("sendInitialEvents=true").map(|_| ()), Err(422));
        assert_eq!(watch("sendInitialEvents=false").map(|_| ()), Err(422));
    }

    #[test]
    fn bad_parameters_are_named() {
        for (text, name) in [
            ("limit=x", "limit"),
            ("limit=-1", "limit"),
            ("resourceVersion=abc", "resourceVersion"),
            (
                "resourceVersion=1&resourceVersionMatch=Sometimes",
                "resourceVersionMatch",
            ),
            ("resourceVersionMatch=Exact", "resourceVersionMatch"),
        ] {
            let error = query(text).list_options(None).unwrap_err();
            assert_eq!(error.code(), 400);
            assert!(error.message.contains(name), "{}", error.message);
        }
        assert!(
            query("fieldValidation=Maybe")
                .write_options(Vec::new())
                .is_err()
        );
        assert!(query("dryRun=Some").dry_run().is_err());
    }

    #[test]
    fn values_are_decoded() {
        let query = query("labelSelector=app%20in%20%28a%2Cb%29&continue=");
        assert!(!query.selectors().unwrap().labels.is_empty());
        assert_eq!(query.list_options(None).unwrap().continue_token, None);
    }
}
