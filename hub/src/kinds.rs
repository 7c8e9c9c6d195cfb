//! The kinds that this hub serves: the nouns of `meridian-api`, as the API server wants them.
//!
//! Owns the glue between the two, which know nothing of each other. Never decides.

use std::sync::Arc;

use meridian_api::errors as nouns;
use meridian_api::kinds::{ALL, KindInfo};
use meridian_apiserver::{
    Column, FieldError, FieldReason, Kind, KindHooks, Registry, RegistryError, ScalePaths, Scope,
};
use meridian_store::keys::ObjectKey;
use serde_json::Value;

use crate::admission;
use crate::explanations::Explanations;
use crate::model::{JOBS, SERVICES};
use crate::views::Views;

/// Every kind, ready to be served.
pub(crate) fn registry(
    explanations: &Explanations,
    views: &Views,
) -> Result<Registry, RegistryError> {
    let kind = |info: &KindInfo| {
        let (explanations, views) = (explanations.clone(), views.clone());
        kind(
            *info,
            Arc::new(Hooks {
                info: *info,
                explanations,
                views,
            }),
        )
    };
    Registry::new(ALL.iter().map(kind).collect())
}

fn kind(info: KindInfo, hooks: Arc<dyn KindHooks>) -> Kind {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let column = |column: &meridian_api::kinds::Column| Column {
        name: column.name.to_owned(),
        ty: column.kind.to_owned(),
        priority: column.priority,
        path: column.path.to_owned(),
        ..Column::default()
    };
    Kind {
        group: info.group.to_owned(),
        version: info.version.to_owned(),
        kind: info.kind.to_owned(),
        plural: info.plural.to_owned(),
        singular: info.singular.to_owned(),
        short_names: words(info.short_names),
        categories: words(info.categories),
        scope: if info.namespaced {
            Scope::Namespaced
        } else {
            Scope::Cluster
        },
        schema: Arc::new((info.schema)()),
        columns: info.columns.iter().map(column).collect(),
        hooks,
        has_status: info.has_status,
        scale: (info.plural == SERVICES).then_some(ScalePaths {
            spec: "/spec/replicas",
            status: "/status/ready",
        }),
    }
}

struct Hooks {
    info: KindInfo,
    explanations: Explanations,
    views: Views,
}

impl KindHooks for Hooks {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        (self.info.validate)(object)
            .into_iter()
            .map(field_error)
            .collect()
    }

    fn validate_update(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        (self.info.validate_update)(old, new)
            .into_iter()
            .map(field_error)
            .collect()
    }

    fn complete(&self, key: &ObjectKey, object: &mut Value) {
        if [JOBS, SERVICES].contains(&self.info.plural) {
            admission::complete(key, object);
        }
    }

    fn decorate(&self, key: &ObjectKey, object: &mut Value) {
        if self.info.plural == JOBS {
            self.explanations.decorate(object);
        } else {
            self.views.decorate(self.info.plural, &key.name, object);
        }
    }
}

/// A field error of the nouns in the words of the API server.
#[must_use]
pub(crate) fn field_error(error: nouns::FieldError) -> FieldError {
    let message = match &error.suggestion {
        Some(suggestion) => format!("{} (did you mean {suggestion:?}?)", error.message),
        None => error.message,
    };
    FieldError::new(error.path, field_reason(error.reason), message)
}

const fn field_reason(reason: nouns::FieldReason) -> FieldReason {
    match reason {
        nouns::FieldReason::Required => FieldReason::Required,
        nouns::FieldReason::Invalid
        | nouns::FieldReason::Immutable
        | nouns::FieldReason::Impossible => FieldReason::Invalid,
        nouns::FieldReason::TypeInvalid => FieldReason::TypeInvalid,
        nouns::FieldReason::NotSupported => FieldReason::NotSupported,
        nouns::FieldReason::Forbidden | nouns::FieldReason::Unsupported => FieldReason::Forbidden,
        nouns::FieldReason::TooMany => FieldReason::TooMany,
        nouns::FieldReason::Duplicate => FieldReason::Duplicate,
        nouns::FieldReason::NotFound => FieldReason::NotFound,
        nouns::FieldReason::Unknown => FieldReason::Unknown,
    }
}
