//! Discovery: which groups, versions and resources there are.
//!
//! Owns both forms: the legacy lists and the aggregated document (`apidiscovery.k8s.io`). Derived
//! from the kinds; holds nothing.

use serde_json::{Value, json};

use crate::core_group;
use crate::kind::{Kind, Registry, Scope};
use crate::negotiate::DiscoveryForm;
use crate::scale;

/// What can be done with objects of a kind.
const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// What can be done with their status, and with their scale.
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// A kind and what can be done with it.
pub(crate) struct Served<'a> {
    pub kind: &'a Kind,
    pub verbs: &'a [&'static str],
}

fn served(kind: &Kind) -> Served<'_> {
    Served {
        kind,
        verbs: &VERBS,
    }
}

/// `/api`
pub(crate) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`
pub(crate) fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = registry
        .groups()
        .iter()
        .map(|(group, versions)| group_entry(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`
pub(crate) fn group(registry: &Registry, group: &str) -> Option<Value> {
    let groups = registry.groups();
    let mut entry = group_entry(group, groups.get(group)?);
    entry["kind"] = Value::from("APIGroup");
    entry["apiVersion"] = Value::from("v1");
    Some(entry)
}

fn group_entry(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// `/apis/<group>/<version>`
pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let kinds: Vec<Served<'_>> = registry
        .of(group, version)
        .map(|kind| served(kind))
        .collect();
    if kinds.is_empty() {
        return None;
    }
    Some(resource_list(&format!("{group}/{version}"), &kinds))
}

/// `/api/v1`
pub(crate) fn core_resources() -> Value {
    let kinds = core_group::kinds();
    resource_list("v1", &core_group::served(&kinds))
}

fn resource_list(group_version: &str, kinds: &[Served<'_>]) -> Value {
    let mut resources = Vec::new();
    for Served { kind, verbs } in kinds {
        resources.push(json!({
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.scope == Scope::Namespaced,
            "kind": kind.kind,
            "verbs": verbs,
            "shortNames": kind.short_names,
            "categories": kind.categories,
        }));
        if kind.has_status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural),
                "singularName": "",
                "namespaced": kind.scope == Scope::Namespaced,
                "kind": kind.kind,
                "verbs": STATUS_VERBS,
            }));
        }
        if kind.scale.is_some() {
            resources.push(json!({
                "name": format!("{}/scale", kind.plural),
                "singularName": "",
                "namespaced": kind.scope == Scope::Namespaced,
                "group": scale::GROUP,
                "version": scale::VERSION,
                "kind": scale::KIND,
                "verbs": STATUS_VERBS,
            }));
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    })
}

/// `/apis`, everything at once.
pub(crate) fn aggregated_groups(registry: &Registry, form: DiscoveryForm) -> Value {
    let items: Vec<Value> = registry
        .groups()
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let kinds: Vec<_> = registry
                        .of(group, version)
                        .map(|kind| served(kind))
                        .collect();
                    aggregated_version(version, &kinds)
                })
                .collect();
            json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    aggregated(&items, form)
}

/// `/api`, everything at once.
pub(crate) fn aggregated_core(form: DiscoveryForm) -> Value {
    let kinds = core_group::kinds();
    let version = aggregated_version("v1", &core_group::served(&kinds));
    let metadata = json!({"creationTimestamp": null});
    aggregated(
        &[json!({"metadata": metadata, "versions": [version]})],
        form,
    )
}

fn aggregated(items: &[Value], form: DiscoveryForm) -> Value {
    let version = match form {
        DiscoveryForm::V2 => "v2",
        DiscoveryForm::V2Beta1 | DiscoveryForm::Legacy => "v2beta1",
    };
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_version(version: &str, kinds: &[Served<'_>]) -> Value {
    let resources: Vec<Value> = kinds
        .iter()
        .map(|Served { kind, verbs }| {
            let response = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
            let scope = match kind.scope {
                Scope::Namespaced => "Namespaced",
                Scope::Cluster => "Cluster",
            };
            let mut resource = json!({
                "resource": kind.plural,
                "responseKind": response,
                "scope": scope,
                "singularResource": kind.singular,
                "verbs": verbs,
                "shortNames": kind.short_names,
                "categories": kind.categories,
            });
            let mut subresources = Vec::new();
            if kind.has_status {
                subresources.push(json!({
                    "subresource": "status", "responseKind": response, "verbs": STATUS_VERBS,
                }));
            }
            if kind.scale.is_some() {
                let response = json!({
                    "group": scale::GROUP, "version": scale::VERSION, "kind": scale::KIND,
                });
                subresources.push(json!({
                    "subresource": "scale", "responseKind": response, "verbs": STATUS_VERBS,
                }));
            }
            if !subresources.is_empty() {
                resource["subresources"] = json!(subresources);
            }
            resource
        })
        .collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

/// `/version`
pub(crate) fn server_version() -> Value {
    // The Kubernetes release whose conventions are spoken: clients warn when theirs is far from
    // it.
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": concat!("v1.36.0+meridian-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}
