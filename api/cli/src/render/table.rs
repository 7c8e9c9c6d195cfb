//! The hub's tables (`meta.k8s.io/v1` `Table`) as columns of text.
//!
//! Owns which columns are shown and how rows are sorted. The cells are the hub's.

use meridian_client::{Listing, Resource};
use serde_json::Value;

use crate::failure::Failure;
use crate::output::Grid;

/// How a table is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// With the columns that are less often wanted.
    pub(crate) wide: bool,
    /// With a column of namespaces.
    pub(crate) namespaces: bool,
    /// With the kind before each name, because several kinds are shown.
    pub(crate) prefix: bool,
}

/// Titles and cells of a listing.
pub(crate) fn grid(listing: &Listing, resource: &Resource, layout: Layout) -> Grid {
    let shown: Vec<(usize, String)> = listing
        .columns
        .iter()
        .enumerate()
        .filter(|(_, column)| layout.wide || column["priority"].as_i64().unwrap_or(0) == 0)
        .map(|(at, column)| (at, title(column)))
        .collect();
    let namespaces = layout.namespaces && resource.namespaced;
    let mut grid = Grid::default();
    if namespaces {
        grid.titles.push("NAMESPACE".to_owned());
    }
    grid.titles
        .extend(shown.iter().map(|(_, title)| title.clone()));
    for row in &listing.items {
        let mut cells = Vec::with_capacity(grid.titles.len());
        if namespaces {
            cells.push(cell(&row["object"]["metadata"]["namespace"]));
        }
        for (position, (at, _)) in shown.iter().enumerate() {
            // A row of a vanished object has no cells: its name is all that is known.
            let value = match (&row["cells"][*at], position) {
                (Value::Null, 0) if row["cells"].is_null() => cell(&row["metadata"]["name"]),
                (value, _) => cell(value),
            };
            cells.push(if position == 0 && layout.prefix {
                format!("{}/{value}", resource.singular())
            } else {
                value
            });
        }
        grid.rows.push(cells);
    }
    grid
}

fn title(column: &Value) -> String {
    let name = column["name"].as_str().unwrap_or_default();
    name.to_uppercase().replace(' ', "-")
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Sorts the rows by a column: numbers by size, then text; equal ones keep their order.
pub(crate) fn sort(grid: &mut Grid, column: &str) -> Result<(), Failure> {
    let wanted = column.to_uppercase();
    let found = grid.titles.iter().position(|title| *title == wanted);
    let Some(at) = found else {
        return Err(Failure::usage(
            format!("there is no column {column:?}"),
            format!("columns are {}", grid.titles.join(", ")),
        ));
    };
    grid.rows.sort_by(|a, b| order(&a[at], &b[at]));
    Ok(())
}

/// Numbers before words, smaller before larger; a number keeps to its first digits (`5m` is 5).
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    let number = |text: &str| text.parse::<f64>().ok();
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Headers;
    use crate::targets;

    fn listing() -> Listing {
        let row = |name: &str, state: &str, gpus: &str, tenant: Value| {
            json!({
                "cells": [name, state, gpus, tenant, "5m"],
                "object": {"metadata": {"name": name, "namespace": "nlp"}}
            })
        };
        Listing {
            columns: vec![
                json!({"name": "Name", "priority": 0}),
                json!({"name": "State", "priority": 0}),
                json!({"name": "GPUs", "priority": 0}),
                json!({"name": "Tenant", "priority": 1}),
                json!({"name": "Age", "priority": 0}),
            ],
            items: vec![
                row("llm-70b", "Pending", "256", Value::Null),
                row("bert", "Running", "8", json!("research")),
                row("probe", "", "0.5", json!("nlp")),
            ],
            resource_version: String::new(),
        }
    }

    fn text(layout: Layout) -> String {
        grid(&listing(), &targets::jobs(), layout).to_text(Headers::Shown)
    }

    #[test]
    fn narrow_wide_all_namespaces_and_several_kinds() {
        insta::assert_snapshot!(text(Layout::default()), @r#"
        NAME      STATE     GPUS   AGE
        llm-70b   Pending   256    5m
        bert      Running   8      5m
        probe     -         0.5    5m
        "#);
        insta::assert_snapshot!(text(Layout { wide: true, ..Layout::default() }), @r#"
        NAME      STATE     GPUS   TENANT     AGE
        llm-70b   Pending   256    -          5m
        bert      Running   8      research   5m
        probe     -         0.5    nlp        5m
        "#);
        let all = Layout {
            namespaces: true,
            prefix: true,
            ..Layout::default()
        };
        insta::assert_snapshot!(text(all), @r#"
        NAMESPACE   NAME                                STATE     GPUS   AGE
        nlp         federatedjob.meridian.dev/llm-70b   Pending   256    5m
        nlp         federatedjob.meridian.dev/bert      Running   8      5m
        nlp         federatedjob.meridian.dev/probe     -         0.5    5m
        "#);
    }

    #[test]
    fn rows_sort_by_size_and_an_unknown_column_is_named() {
        let mut rows = grid(&listing(), &targets::jobs(), Layout::default());
        sort(&mut rows, "gpus").expect("a column");
        let order: Vec<&str> = rows.rows.iter().map(|row| row[2].as_str()).collect();
        assert_eq!(order, ["0.5", "8", "256"]);
        assert!(matches!(
            sort(&mut rows, "cost"),
            Err(Failure::Usage { .. })
        ));
    }

    #[test]
    fn a_tombstone_shows_its_name() {
        let mut gone = listing();
        gone.items = vec![json!({"metadata": {"name": "old", "namespace": "nlp"}})];
        let grid = grid(&gone, &targets::jobs(), Layout::default());
        assert_eq!(grid.rows, [["old", "-", "-", "-"]]);
    }
}
