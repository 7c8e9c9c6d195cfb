//! Answers in the form that a client wants: objects, their metadata, or tables.
//!
//! Owns the choice among the forms and the number of them, which the watch cache keys its
//! serialised events by. Never reads or writes objects.

use bytes::Bytes;
use meridian_runtime::clock::UnixMillis;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::merge::ObjectEvent;
use crate::negotiate::Form;
use crate::read::List;
use crate::table::{self, IncludeObject};

/// One form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rendering {
    pub form: Form,
    pub include: IncludeObject,
}

impl Rendering {
    /// How many there are.
    pub(crate) const COUNT: usize = 5;

    /// A number of its own for each, below [`Self::COUNT`].
    pub(crate) const fn index(self) -> usize {
        match (self.form, self.include) {
            (Form::Object, _) => 0,
            (Form::Metadata, _) => 1,
            (Form::Table, IncludeObject::None) => 2,
            (Form::Table, IncludeObject::Metadata) => 3,
            (Form::Table, IncludeObject::Object) => 4,
        }
    }

    /// One object.
    pub(crate) fn one(self, kind: &Kind, object: Value, now: UnixMillis) -> Value {
        match self.form {
            Form::Object => object,
            Form::Metadata => table::partial(&object),
            Form::Table => {
                let metadata = table::single_metadata(&object);
                table::table(kind, vec![object], &metadata, self.include, now)
            }
        }
    }

    /// A list.
    pub(crate) fn list(self, kind: &Kind, list: List, now: UnixMillis) -> Value {
        let mut whole = list.into_json(kind);
        if self.form == Form::Object {
            return whole;
        }
        let items = match whole.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        };
        let metadata = whole["metadata"].take();
        match self.form {
            Form::Table => table::table(kind, items, &metadata, self.include, now),
            Form::Object | Form::Metadata => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items.iter().map(table::partial).collect::<Vec<_>>(),
            }),
        }
    }

    /// The object of a watch event, serialised once for all watchers of this form.
    pub(crate) fn event(self, event: &ObjectEvent, now: UnixMillis) -> &Bytes {
        event.rendered(self, || {
            Bytes::from(self.one(&event.kind, event.object(), now).to_string())
        })
    }

    /// The object of a bookmark.
    pub(crate) fn bookmark(self, kind: &Kind, revision: &str, initial_end: bool) -> Value {
        let mut metadata = json!({"resourceVersion": revision, "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata,
        });
        match self.form {
            Form::Object => object,
            Form::Metadata => table::partial(&object),
            Form::Table => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision},
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": table::partial(&object)}],
            }),
        }
    }
}
