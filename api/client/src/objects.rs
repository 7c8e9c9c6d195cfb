//! Objects over HTTP: get, list, create, merge patch, delete.
//!
//! Owns paging and the forms of answers. Never keeps an object.

use bytes::Bytes;
use http::{HeaderMap, Method};
use meridian_api::meta::{Object, Spec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::Client;
use crate::errors::{self, ClientError, FailureKind};
use crate::resource::{Resource, query};
use crate::transport::{Ask, Reply};

/// Objects in one page of a list, as `kubectl` asks for.
const PAGE: &str = "500";
/// How often a list whose pages expired is begun again before that is an error. Each page takes
/// far less than the minutes that a revision is kept, so once is already rare.
const LIST_ATTEMPTS: u32 = 3;
/// Who changes objects, in their managed fields.
const FIELD_MANAGER: &str = "meridian";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// In which form objects are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The objects themselves.
    #[default]
    Objects,
    /// Columns and rows that the hub made for people (`meta.k8s.io/v1` `Table`).
    Table,
}

impl Form {
    pub(crate) const fn accept(self) -> &'static str {
        match self {
            Self::Objects => JSON,
            Self::Table => TABLE,
        }
    }

    /// Name of the list's field that holds what this form lists.
    pub(crate) const fn items(self) -> &'static str {
        match self {
            Self::Objects => "items",
            Self::Table => "rows",
        }
    }
}

/// Whether a write is stored or only checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// Stored.
    #[default]
    No,
    /// Checked by the hub in every way, and not stored.
    Server,
}

impl DryRun {
    const fn parameter(self) -> Option<&'static str> {
        match self {
            Self::No => None,
            Self::Server => Some("All"),
        }
    }
}

/// Which objects are listed or watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Label selector: `team=nlp,tier in (a,b)`.
    pub labels: Option<String>,
    /// Field selector: `metadata.name=x`.
    pub fields: Option<String>,
    /// In which form.
    pub form: Form,
}

impl ListOptions {
    /// Only the object of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            fields: Some(format!("metadata.name={name}")),
            ..Self::default()
        }
    }
}

/// A whole list, all pages of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Objects, or the rows of a table.
    pub items: Vec<Value>,
    /// Columns of a table; empty in the form of objects.
    pub columns: Vec<Value>,
    /// Revision of the list; a watch goes on from it.
    pub resource_version: String,
}

/// A stored object and what the hub had to say about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// The object as it is stored, or would be.
    pub object: Value,
    /// Things that are allowed and unwise.
    pub warnings: Vec<String>,
}

/// What became of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// It is gone.
    Gone,
    /// It goes when everything that holds on to it has let go; the object as it is until then.
    Started(Value),
}

impl Client {
    /// One object, or its table of one row. `namespace` is ignored for cluster-scoped kinds.
    ///
    /// [`FailureKind::NotFound`] when there is none.
    pub async fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        form: Form,
    ) -> Result<Value, ClientError> {
        let mut ask = Ask::get(resource.path(Some(namespace), Some(name)));
        ask.accept = form.accept();
        value(&self.transport.call(&ask).await?)
    }

    /// One object of a kind that is known at compile time.
    pub async fn get_as<S>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Object<S, S::Status>, ClientError>
    where
        S: Spec + DeserializeOwned,
        S::Status: DeserializeOwned,
    {
        let resource = Resource::of::<S>();
        let value = self.get(&resource, namespace, name, Form::Objects).await?;
        serde_json::from_value(value)
            .map_err(|error| ClientError::Protocol(format!("{} {name}: {error}", S::KIND)))
    }

    /// Everything that matches, in one namespace or (`None`) in all. Begun again when the hub
    /// forgets the revision between two pages.
    pub async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Listing, ClientError> {
        let mut attempt = 1;
        loop {
            match self.list_once(resource, namespace, options).await {
                Err(error) if error.is(FailureKind::Expired) && attempt < LIST_ATTEMPTS => {
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn list_once(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Listing, ClientError> {
        let mut listing = Listing::default();
        let mut resume = String::new();
        loop {
            let query = query(&[
                ("limit", Some(PAGE)),
                (
                    "continue",
                    Some(resume.as_str()).filter(|at| !at.is_empty()),
                ),
                ("labelSelector", options.labels.as_deref()),
                ("fieldSelector", options.fields.as_deref()),
            ]);
            let mut ask = Ask::get(resource.path(namespace, None) + &query);
            ask.accept = options.form.accept();
            let mut page = value(&self.transport.call(&ask).await?)?;
            let Some(items) = page[options.form.items()].as_array_mut() else {
                let (what, field) = (resource.plural, options.form.items());
                return Err(ClientError::Protocol(format!(
                    "list of {what} without {field}"
                )));
            };
            listing.items.append(items);
            if let Some(columns) = page["columnDefinitions"].as_array_mut()
                && listing.columns.is_empty()
            {
                listing.columns.append(columns);
            }
            let metadata = &page["metadata"];
            text(&metadata["resourceVersion"]).clone_into(&mut listing.resource_version);
            text(&metadata["continue"]).clone_into(&mut resume);
            if resume.is_empty() {
                return Ok(listing);
            }
        }
    }

    /// Stores a new object.
    ///
    /// [`FailureKind::AlreadyExists`] when its name is taken.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &Value,
        dry_run: DryRun,
    ) -> Result<Written, ClientError> {
        let path = resource.path(Some(namespace), None);
        self.write(Method::POST, path, JSON, object, dry_run).await
    }

    /// Merges `patch` into an object (RFC 7396).
    pub async fn merge_patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Value,
        dry_run: DryRun,
    ) -> Result<Written, ClientError> {
        let path = resource.path(Some(namespace), Some(name));
        self.write(Method::PATCH, path, MERGE_PATCH, patch, dry_run)
            .await
    }

    /// Replaces an object; its `resourceVersion`, when given, must be the stored one.
    pub async fn replace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        object: &Value,
        dry_run: DryRun,
    ) -> Result<Written, ClientError> {
        let path = resource.path(Some(namespace), Some(name));
        self.write(Method::PUT, path, JSON, object, dry_run).await
    }

    async fn write(
        &self,
        method: Method,
        path: String,
        content_type: &'static str,
        body: &Value,
        dry_run: DryRun,
    ) -> Result<Written, ClientError> {
        let query = query(&[
            ("fieldManager", Some(FIELD_MANAGER)),
            ("fieldValidation", Some("Strict")),
            ("dryRun", dry_run.parameter()),
        ]);
        let ask = Ask {
            method,
            path: path + &query,
            accept: JSON,
            body: Some((content_type, Bytes::from(body.to_string()))),
        };
        let reply = self.transport.call(&ask).await?;
        let warnings = warnings(&reply.headers);
        Ok(Written {
            object: value(&reply)?,
            warnings,
        })
    }

    /// Deletes an object. With `uid`, only that very object and not a later one of its name.
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        dry_run: DryRun,
    ) -> Result<Deletion, ClientError> {
        let query = query(&[("dryRun", dry_run.parameter())]);
        let body = uid.map(|uid| {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}
            });
            (JSON, Bytes::from(options.to_string()))
        });
        let ask = Ask {
            method: Method::DELETE,
            path: resource.path(Some(namespace), Some(name)) + &query,
            accept: JSON,
            body,
        };
        let answer = value(&self.transport.call(&ask).await?)?;
        let goes_on = answer["metadata"]["deletionTimestamp"].is_string();
        if answer["kind"] == "Status" || !goes_on {
            Ok(Deletion::Gone)
        } else {
            Ok(Deletion::Started(answer))
        }
    }

    /// What the hub says of its version (`/version` of a Kubernetes API).
    pub async fn version(&self) -> Result<Value, ClientError> {
        value(&self.transport.call(&Ask::get("/version".into())).await?)
    }
}

/// The body of a success as JSON; anything else as the error that it is.
fn value(reply: &Reply) -> Result<Value, ClientError> {
    if !reply.status.is_success() {
        return Err(errors::from_http(reply.status, &reply.body));
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| ClientError::Protocol(format!("not JSON: {error}")))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Texts of the `Warning: 299 - "text"` headers.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(http::header::WARNING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .filter_map(|value| {
            let quoted = value.split_once('"')?.1.rsplit_once('"')?.0;
            Some(quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn warnings_are_unquoted() {
        let mut headers = HeaderMap::new();
        headers.append(
            http::header::WARNING,
            HeaderValue::from_static(r#"299 - "unknown field \"spec.rolls\"""#),
        );
        headers.append(http::header::WARNING, HeaderValue::from_static("299 bare"));
        assert_eq!(warnings(&headers), ["unknown field \"spec.rolls\""]);
    }
}
