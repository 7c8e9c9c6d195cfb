//! Tables: what `kubectl get` prints (`meta.k8s.io/v1` `Table`).
//!
//! Owns column definitions, cells and ages. Never decides which columns a kind has.

use meridian_runtime::clock::{Millis, UnixMillis};
use serde_json::{Value, json};

use crate::jsonpath;
use crate::kind::{Column, Kind};
use crate::metadata;

/// How much of each object a row carries: `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

/// The objects as a table under `list_metadata`.
pub(crate) fn table(
    kind: &Kind,
    objects: Vec<Value>,
    list_metadata: &Value,
    include: IncludeObject,
    now: UnixMillis,
) -> Value {
    let columns = columns(kind);
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let cells: Vec<Value> = columns
                .iter()
                .map(|column| cell(column, &object, now))
                .collect();
            let mut row = json!({"cells": cells});
            match include {
                IncludeObject::None => {}
                IncludeObject::Metadata => row["object"] = partial(&object),
                IncludeObject::Object => row["object"] = object,
            }
            row
        })
        .collect();
    let definitions: Vec<Value> = columns.iter().map(definition).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

/// The object's metadata alone, as `PartialObjectMetadata`.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// The name, then the kind's own columns, or else the age.
fn columns(kind: &Kind) -> Vec<Column> {
    let name = Column {
        name: "Name".to_owned(),
        ty: "string".to_owned(),
        format: "name".to_owned(),
        description: "Name of the object, unique in its namespace".to_owned(),
        priority: 0,
        path: ".metadata.name".to_owned(),
    };
    let mut columns = vec![name];
    columns.extend(kind.columns.iter().cloned());
    if kind.columns.is_empty() {
        columns.push(Column {
            name: "Age".to_owned(),
            ty: "date".to_owned(),
            description: "Time since it was made".to_owned(),
            path: ".metadata.creationTimestamp".to_owned(),
            ..Column::default()
        });
    }
    columns
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.ty,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn cell(column: &Column, object: &Value, now: UnixMillis) -> Value {
    let Some(value) = jsonpath::first(object, &column.path) else {
        return Value::Null;
    };
    match (column.ty.as_str(), value) {
        ("date", Value::String(at)) => Value::from(age(at, now)),
        ("integer" | "number" | "boolean", value) => value.clone(),
        (_, Value::String(text)) => Value::from(text.as_str()),
        (_, Value::Array(items)) => {
            let text = |item: &Value| {
                item.as_str()
                    .map_or_else(|| item.to_string(), str::to_owned)
            };
            Value::from(items.iter().map(text).collect::<Vec<_>>().join(","))
        }
        (_, Value::Null) => Value::Null,
        (_, value) => Value::from(value.to_string()),
    }
}

/// Time since `at`, as kubectl writes it (`k8s.io/apimachinery` `HumanDuration`).
fn age(at: &str, now: UnixMillis) -> String {
    match at.parse::<jiff::Timestamp>() {
        Ok(at) => human(now.since(UnixMillis(at.as_millisecond()))),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// A span in at most two units, coarser as it grows.
fn human(span: Millis) -> String {
    let seconds = span.0 / 1000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: u64, unit: char, small: u64, sub: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{sub}")
        }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % 24, 'h')
    } else if days < 730 {
        format!("{days}d")
    } else if years < 8 {
        two(years, 'y', days % 365, 'd')
    } else {
        format!("{years}y")
    }
}

/// The metadata that a table of one object carries: its version alone.
pub(crate) fn single_metadata(object: &Value) -> Value {
    json!({"resourceVersion": metadata::text(object, "resourceVersion")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 300, "3h5m"),
            (10 * 3600, "10h"),
            (50 * 3600, "2d2h"),
            (30 * 86_400, "30d"),
            (3 * 365 * 86_400, "3y"),
        ] {
            assert_eq!(human(Millis::seconds(seconds)), text);
        }
    }

    #[test]
    fn a_row_has_one_cell_per_column() {
        let mut kind = crate::kind::tests::widget();
        let column = |name: &str, ty: &str, path: &str| Column {
            name: name.into(),
            ty: ty.into(),
            path: path.into(),
            ..Column::default()
        };
        kind.columns = vec![
            column("Size", "integer", ".spec.size"),
            column("Phase", "string", ".status.phase"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ];
        let object = json!({
            "metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:10Z"},
            "spec": {"size": 3},
        });
        let include = IncludeObject::Metadata;
        let table = table(&kind, vec![object], &json!({}), include, UnixMillis(70_000));
        assert_eq!(table["rows"][0]["cells"], json!(["a", 3, null, "60s"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["columnDefinitions"][3]["type"], "date");
    }
}
