//! Label and field selectors.
//!
//! Owns their grammar (`k8s.io/apimachinery` `labels.Parse`, `fields.ParseSelector`) and matching.
//! Fields are those of the metadata that every kind has: name and namespace.

use serde_json::Value;

use crate::metadata;
use crate::status::ApiStatus;

/// Longest selector: a URL's usual limit.
const MAX_SELECTOR: usize = 8 * 1024;

/// All requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl LabelSelector {
    /// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        if text.len() > MAX_SELECTOR {
            let message = format!("a selector may have at most {MAX_SELECTOR} bytes");
            return Err(ApiStatus::bad_request(message));
        }
        let requirements: Result<_, _> = split_outside_parentheses(text)
            .into_iter()
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| {
                requirement(part).ok_or_else(|| {
                    ApiStatus::bad_request(format!(
                        "unable to parse label selector at {part:?}: write key=value, key!=value, \
                         key in (a,b), key notin (a,b), key or !key"
                    ))
                })
            })
            .collect();
        Ok(Self(requirements?))
    }

    /// True when everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when the object's labels fit.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object
            .get("metadata")
            .and_then(|metadata| metadata.get("labels"));
        let label = |key: &str| {
            labels
                .and_then(|labels| labels.get(key))
                .and_then(Value::as_str)
        };
        self.0.iter().all(|requirement| match requirement {
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
            Requirement::In(key, values) => {
                label(key).is_some_and(|is| values.iter().any(|value| value == is))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|is| values.iter().all(|value| value != is))
            }
        })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
    .collect()
}

fn requirement(text: &str) -> Option<Requirement> {
    let key = |text: &str| {
        let text = text.trim();
        metadata::is_qualified(&text.to_ascii_lowercase()).then(|| text.to_owned())
    };
    let value = |text: &str| {
        let text = text.trim();
        (text.is_empty() || metadata::is_label_value(text)).then(|| text.to_owned())
    };
    if let Some(rest) = text.strip_prefix('!') {
        return key(rest).map(Requirement::Absent);
    }
    if let Some((before, list)) = text.split_once('(') {
        let list = list.strip_suffix(')')?;
        let values: Option<Vec<String>> = list.split(',').map(value).collect();
        let (name, word) = before.trim().rsplit_once(char::is_whitespace)?;
        return match word {
            "in" => Some(Requirement::In(key(name)?, values?)),
            "notin" => Some(Requirement::NotIn(key(name)?, values?)),
            _ => None,
        };
    }
    if let Some((name, wanted)) = text.split_once("!=") {
        return Some(Requirement::NotIn(key(name)?, vec![value(wanted)?]));
    }
    if let Some((name, wanted)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Requirement::In(key(name)?, vec![value(wanted)?]));
    }
    key(text).map(Requirement::Exists)
}

/// Fields that every kind can be selected by.
const METADATA_FIELDS: &[&str] = &["metadata.name", "metadata.namespace"];
/// Fields that events can be selected by; `kubectl describe` asks by the object involved.
pub(crate) const EVENT_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.uid",
    "reason",
    "type",
];

/// Values that fields of an object must have, or must not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldRequirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: &'static str,
    pointer: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Reads `metadata.name=a,metadata.namespace!=b`.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        Self::parse_over(text, METADATA_FIELDS)
    }

    /// Reads a selector over the fields that `allowed` lists.
    pub(crate) fn parse_over(
        text: &str,
        allowed: &'static [&'static str],
    ) -> Result<Self, ApiStatus> {
        if text.len() > MAX_SELECTOR {
            let message = format!("a selector may have at most {MAX_SELECTOR} bytes");
            return Err(ApiStatus::bad_request(message));
        }
        let mut requirements = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let split = |mark: &str| part.split_once(mark);
            let unequal = split("!=").map(|(name, value)| (name, value, false));
            let equal = || {
                let (name, value) = split("==").or_else(|| split("="))?;
                Some((name, value, true))
            };
            let (name, value, equal) = unequal.or_else(equal).ok_or_else(|| {
                ApiStatus::bad_request(format!(
                    "unable to parse field selector at {part:?}: write field=value or \
                     field!=value"
                ))
            })?;
            let name = name.trim();
            let field = *allowed
                .iter()
                .find(|field| **field == name)
                .ok_or_else(|| {
                    let allowed = allowed.join(" or ");
                    ApiStatus::bad_request(format!(
                        "field label not supported: {name}: select by {allowed}"
                    ))
                })?;
            requirements.push(FieldRequirement {
                field,
                pointer: format!("/{}", field.replace('.', "/")),
                value: value.to_owned(),
                equal,
            });
        }
        Ok(Self(requirements))
    }

    /// True when everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when the object's fields fit.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|required| {
            let is = object.pointer(&required.pointer).and_then(Value::as_str);
            (is.unwrap_or_default() == required.value) == required.equal
        })
    }

    /// The one name that can match, when there is one.
    pub(crate) fn name(&self) -> Option<&str> {
        let by_name =
            |required: &&FieldRequirement| required.equal && required.field == "metadata.name";
        self.0
            .iter()
            .find(by_name)
            .map(|required| required.value.as_str())
    }
}

/// Both selectors of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selectors {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_of_label_requirement() {
        let object = json!({"metadata": {"labels": {"app": "web", "x.dev/tier": "front"}}});
        for (selector, fits) in [
            ("", true),
            ("app=web", true),
            ("app==web,x.dev/tier=front", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (web, db)", true),
            ("app notin (web,db)", false),
            ("app notin (db), x.dev/tier", true),
            ("other", false),
            ("!other", true),
            ("!app", false),
        ] {
            assert_eq!(
                LabelSelector::parse(selector).unwrap().matches(&object),
                fits,
                "{selector}"
            );
        }
    }

    #[test]
    fn nonsense_is_a_bad_request() {
        for selector in ["a b", "a in b", "a in (b", "=x", "a=b c", "!", "a has (b)"] {
            assert_eq!(
                LabelSelector::parse(selector).unwrap_err().code(),
                400,
                "{selector}"
            );
        }
        for selector in ["spec.size=1", "metadata.name"] {
            assert_eq!(
                FieldSelector::parse(selector).unwrap_err().code(),
                400,
                "{selector}"
            );
        }
    }

    #[test]
    fn fields_select_name_and_namespace() {
        let object = json!({"metadata": {"name": "a", "namespace": "n"}});
        let fits = |text: &str| FieldSelector::parse(text).unwrap().matches(&object);
        assert!(fits("metadata.name=a,metadata.namespace!=m"));
        assert!(!fits("metadata.name!=a"));
        assert_eq!(
            FieldSelector::parse("metadata.name=a").unwrap().name(),
            Some("a")
        );
        assert_eq!(
            FieldSelector::parse("metadata.name!=a").unwrap().name(),
            None
        );
    }
}
