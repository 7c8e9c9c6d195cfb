//! The part of the core group that tools take for granted: namespaces and events.
//!
//! Owns virtual namespaces (a namespace needs no making: every valid name is one) and the list of
//! events that the server's owner gives, so that `kubectl -n`, `create namespace` and `describe`
//! work. Stores nothing.

use std::sync::Arc;

use meridian_store::keys::{self, ObjectKey};
use meridian_store::{KeyRange, Operation as StoreCall};
use serde_json::{Value, json};

use crate::discovery::Served;
use crate::kind::{Column, Kind, NoHooks, Scope};
use crate::metadata;
use crate::read::List;
use crate::resources::Resources;
use crate::selectors::Selectors;
use crate::status::{ApiStatus, StatusReason};

/// Most namespaces in one list; the list takes one small read for each.
const MAX_NAMESPACES: usize = 1_000;

/// `Namespace` and `Event`, in that order.
pub(crate) fn kinds() -> [Kind; 2] {
    let kind = |kind: &str, plural: &str, singular: &str, short: &str, scope| Kind {
        group: String::new(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: singular.to_owned(),
        short_names: vec![short.to_owned()],
        categories: Vec::new(),
        scope,
        schema: Arc::new(json!({
            "type": "object",
            "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        })),
        columns: if kind == "Event" {
            event_columns()
        } else {
            Vec::new()
        },
        hooks: Arc::new(NoHooks),
        has_status: false,
        scale: None,
    };
    [
        kind("Namespace", "namespaces", "namespace", "ns", Scope::Cluster),
        kind("Event", "events", "event", "ev", Scope::Namespaced),
    ]
}

/// As `kubectl get events` shows them everywhere.
fn event_columns() -> Vec<Column> {
    let column = |name: &str, ty: &str, path: &str| Column {
        name: name.to_owned(),
        ty: ty.to_owned(),
        path: path.to_owned(),
        ..Column::default()
    };
    vec![
        column("Last Seen", "date", ".lastTimestamp"),
        column("Type", "string", ".type"),
        column("Reason", "string", ".reason"),
        column("Object", "string", ".involvedObject.name"),
        column("Message", "string", ".message"),
    ]
}

/// The kinds and what can be done with them.
pub(crate) fn served(kinds: &[Kind; 2]) -> Vec<Served<'_>> {
    let [namespace, event] = kinds;
    vec![
        Served {
            kind: namespace,
            verbs: &["create", "get", "list", "patch", "update", "watch"],
        },
        Served {
            kind: event,
            verbs: &["get", "list", "watch"],
        },
    ]
}

/// A namespace as an object.
pub(crate) fn namespace(name: &str) -> Result<Value, ApiStatus> {
    if !metadata::is_label(name) {
        let message = format!(
            "namespaces \"{name:.64}\" not found: a namespace has at most {} lower-case letters, \
             digits or '-'",
            metadata::MAX_LABEL
        );
        return Err(ApiStatus::new(StatusReason::NotFound, message));
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/metadata.name": name},
            "resourceVersion": "1",
        },
        "spec": {},
        "status": {"phase": "Active"},
    }))
}

/// The name in the body of a create, in JSON or in the protobuf that typed Go clients send.
pub(crate) fn created_name(body: &[u8]) -> Option<String> {
    if let Some(message) = body.strip_prefix(b"k8s\0") {
        // runtime.Unknown.raw (2), Namespace.metadata (1), ObjectMeta.name (1)
        let raw = protobuf_field(message, 2)?;
        let metadata = protobuf_field(raw, 1)?;
        return String::from_utf8(protobuf_field(metadata, 1)?.to_vec()).ok();
    }
    let object: Value = serde_json::from_slice(body).ok()?;
    Some(metadata::text(&object, "name").to_owned()).filter(|name| !name.is_empty())
}

/// The first length-delimited field `wanted` of a protobuf message.
fn protobuf_field(mut message: &[u8], wanted: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => {
                varint(&mut message)?;
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let value = message.get(..length)?;
                if tag >> 3 == wanted {
                    return Some(value);
                }
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    None
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl Resources {
    /// The namespaces in which there is something, and `default`.
    pub(crate) async fn namespaces(&self, selectors: &Selectors) -> Result<List, ApiStatus> {
        let mut names = vec!["default".to_owned()];
        for kind in self
            .registry()
            .kinds()
            .filter(|kind| kind.scope == Scope::Namespaced)
        {
            let all = keys::objects(&kind.plural, None);
            let mut rest = all.clone();
            while names.len() < MAX_NAMESPACES {
                let page = self
                    .store()
                    .range(StoreCall::ListObjects, rest, 1, None)
                    .await?;
                let Some(entry) = page.entries.first() else {
                    break;
                };
                let Some((
                    ObjectKey {
                        namespace: Some(name),
                        ..
                    },
                    _,
                )) = ObjectKey::parse(&entry.key)
                else {
                    break;
                };
                // On to the first key behind all of this namespace.
                let behind = keys::objects(&kind.plural, Some(&name)).end;
                rest = KeyRange {
                    start: behind,
                    end: all.end.clone(),
                };
                names.push(name);
            }
        }
        names.sort();
        names.dedup();
        let revision = self.store().revision().await?;
        let items: Result<Vec<Value>, ApiStatus> =
            names.iter().map(|name| namespace(name)).collect();
        let mut items = items?;
        items.retain(|item| selectors.matches(item));
        Ok(List {
            items,
            revision,
            next: None,
        })
    }

    /// What happened lately.
    pub(crate) async fn events(
        &self,
        namespace: Option<&str>,
        selectors: &Selectors,
    ) -> Result<List, ApiStatus> {
        let revision = self.store().revision().await?;
        let mut items = self.shared().events.events(namespace);
        items.retain(|item| selectors.matches(item));
        Ok(List {
            items,
            revision,
            next: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_client_s_protobuf_names_its_namespace() {
        let field = |number: u8, value: &[u8]| {
            let mut bytes = vec![number << 3 | 2, u8::try_from(value.len()).unwrap()];
            bytes.extend_from_slice(value);
            bytes
        };
        let object = field(1, &field(1, b"team-a"));
        let mut body = b"k8s\0".to_vec();
        body.extend(field(
            1,
            &[field(1, b"v1"), field(2, b"Namespace")].concat(),
        ));
        body.extend(field(2, &object));
        assert_eq!(created_name(&body).as_deref(), Some("team-a"));
        assert_eq!(
            created_name(br#"{"metadata":{"name":"x"}}"#).as_deref(),
            Some("x")
        );
        for cut in 0..body.len() {
            // Never a panic, whatever is missing.
            let _ = created_name(&body[..cut]);
        }
        assert_eq!(created_name(b"nonsense"), None);
    }
}
