//! JSON paths of table columns: the small part of the language that columns use.
//!
//! Owns `.field`, `['field']`, `[index]`, `[*]` and `[?(@.field=="text")]`. A path that cannot be
//! read finds nothing.

use serde_json::Value;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    Every,
    Where { field: String, equals: String },
}

/// The first value at `path`, if any.
pub(crate) fn first<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut found = vec![object];
    for step in parse(path)? {
        let mut next = Vec::new();
        for value in found {
            match &step {
                Step::Field(name) => next.extend(value.get(name)),
                Step::Index(index) => next.extend(value.get(*index)),
                Step::Every => next.extend(value.as_array().into_iter().flatten()),
                Step::Where { field, equals } => {
                    let items = value.as_array().into_iter().flatten();
                    next.extend(items.filter(|item| {
                        item.get(field).and_then(Value::as_str) == Some(equals.as_str())
                    }));
                }
            }
        }
        found = next;
    }
    found.first().copied()
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}');
    rest = rest.strip_prefix('$').unwrap_or(rest);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = after.split_once(']')?;
            steps.push(bracket(inside.trim())?);
            rest = after;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            if !name.is_empty() {
                steps.push(Step::Field(name.to_owned()));
            } else if !after.starts_with('[') {
                return None;
            }
            rest = after;
        }
    }
    Some(steps)
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::Every);
    }
    if let Some(name) = quoted(inside) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(condition) = inside
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let (field, equals) = condition.trim().strip_prefix("@.")?.split_once("==")?;
        return Some(Step::Where {
            field: field.trim().to_owned(),
            equals: quoted(equals.trim())?.to_owned(),
        });
    }
    inside.parse().ok().map(Step::Index)
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_step_that_columns_use() {
        let object = json!({
            "spec": {"a.b": 1, "list": [{"n": "x"}, {"n": "y"}]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "Done", "status": "False"},
            ]},
        });
        for (path, value) in [
            (".spec['a.b']", json!(1)),
            (".spec.list[1].n", json!("y")),
            (".spec.list[*].n", json!("x")),
            (
                ".status.conditions[?(@.type==\"Done\")].status",
                json!("False"),
            ),
            (
                "{.status.conditions[?(@.type=='Ready')].status}",
                json!("True"),
            ),
        ] {
            assert_eq!(first(&object, path), Some(&value), "{path}");
        }
        for path in [
            ".spec.none",
            "spec",
            ".spec.list[",
            ".spec.list[9]",
            "..a",
            ".a[?(x)]",
        ] {
            assert_eq!(first(&object, path), None, "{path}");
        }
    }
}
