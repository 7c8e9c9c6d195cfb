//! URLs: which resource a path names.
//!
//! Owns the reading of paths, strict to the segment. Never looks at methods or bodies.

use std::sync::Arc;

use crate::kind::{Kind, Registry, ScalePaths, Scope};
use crate::metadata;
use crate::status::{ApiStatus, StatusReason};

/// What a path names.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// `/version`
    ServerVersion,
    /// `/api`
    CoreVersions,
    /// `/api/v1`
    CoreResources,
    /// `/api/v1/namespaces[/<name>]`
    Namespaces(Option<String>),
    /// `/api/v1[/namespaces/<namespace>]/events[/<name>]`
    Events(EventPath),
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/apis/<group>/<version>`
    Resources(String, String),
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/<document>`
    OpenApi(String),
    /// Every object of a kind, or of a kind in a namespace.
    Collection(Arc<Kind>, Option<String>),
    /// One object.
    Item(Arc<Kind>, Option<String>, String),
    /// Its status.
    Status(Arc<Kind>, Option<String>, String),
    /// Its scale.
    Scale(Arc<Kind>, ScalePaths, Option<String>, String),
}

/// Reads a path.
pub(crate) fn parse(registry: &Registry, path: &str) -> Result<Route, ApiStatus> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let found = match segments.as_slice() {
        ["version"] => Some(Route::ServerVersion),
        ["api"] => Some(Route::CoreVersions),
        ["api", "v1", rest @ ..] => core(rest),
        ["apis"] => Some(Route::Groups),
        ["apis", group] => Some(Route::Group((*group).to_owned())),
        ["apis", group, version] => {
            Some(Route::Resources((*group).to_owned(), (*version).to_owned()))
        }
        ["apis", group, version, rest @ ..] => object(registry, group, version, rest),
        ["openapi", "v2"] => Some(Route::OpenApiV2),
        ["openapi", "v3"] => Some(Route::OpenApiIndex),
        ["openapi", "v3", document @ ..] => Some(Route::OpenApi(document.join("/"))),
        _ => None,
    };
    found.ok_or_else(no_such_resource)
}

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventPath {
    /// Those of one namespace.
    pub namespace: Option<String>,
    /// One event.
    pub name: Option<String>,
}

/// 404 for a path that names nothing.
pub(crate) fn no_such_resource() -> ApiStatus {
    let message = "the server could not find the requested resource: /apis lists what there is";
    ApiStatus::new(StatusReason::NotFound, message)
}

fn core(rest: &[&str]) -> Option<Route> {
    Some(match rest {
        [] => Route::CoreResources,
        ["namespaces"] => Route::Namespaces(None),
        ["namespaces", name] => Route::Namespaces(Some((*name).to_owned())),
        ["events"] => Route::Events(EventPath::default()),
        ["namespaces", namespace, "events"] => Route::Events(EventPath {
            namespace: Some((*namespace).to_owned()),
            name: None,
        }),
        ["namespaces", namespace, "events", name] => Route::Events(EventPath {
            namespace: Some((*namespace).to_owned()),
            name: Some((*name).to_owned()),
        }),
        _ => return None,
    })
}

fn object(registry: &Registry, group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    let (namespace, rest) = match rest {
        // `namespaces/<ns>/<plural>`: a kind may itself be called namespaces only in the core.
        ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let (plural, rest) = rest.split_first()?;
    let kind = registry.plural(plural)?;
    if kind.group != group || kind.version != version {
        return None;
    }
    let in_namespace = namespace.as_deref().is_some_and(metadata::is_label);
    let fits = match (kind.scope, &namespace) {
        (Scope::Namespaced, Some(_)) => in_namespace,
        (Scope::Namespaced, None) => rest.is_empty(),
        (Scope::Cluster, namespace) => namespace.is_none(),
    };
    if !fits {
        return None;
    }
    let kind = Arc::clone(kind);
    match rest {
        [] => Some(Route::Collection(kind, namespace)),
        [name] => Some(Route::Item(kind, namespace, named(name)?)),
        [name, "status"] if kind.has_status => Some(Route::Status(kind, namespace, named(name)?)),
        [name, "scale"] => {
            let paths = kind.scale?;
            Some(Route::Scale(kind, paths, namespace, named(name)?))
        }
        _ => None,
    }
}

fn named(name: &str) -> Option<String> {
    metadata::is_subdomain(name).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_to_the_segment() {
        let mut gadget = crate::kind::tests::widget();
        gadget.plural = "gadgets".into();
        gadget.scope = Scope::Cluster;
        gadget.has_status = false;
        gadget.scale = Some(ScalePaths {
            spec: "/spec/replicas",
            status: "/status/ready",
        });
        let registry = Registry::new(vec![crate::kind::tests::widget(), gadget]).unwrap();
        let read = |path: &str| {
            parse(&registry, path)
                .ok()
                .map(|route| format!("{route:?}"))
        };
        for (path, starts) in [
            ("/apis/test.dev/v1/widgets", "Collection"),
            ("/apis/test.dev/v1/namespaces/n/widgets/", "Collection"),
            ("/apis/test.dev/v1/namespaces/n/widgets/a", "Item"),
            ("/apis/test.dev/v1/namespaces/n/widgets/a/status", "Status"),
            ("/apis/test.dev/v1/gadgets/a", "Item"),
            ("/apis/test.dev/v1/gadgets/a/scale", "Scale"),
            ("/api/v1/namespaces/n/events", "Events"),
            ("/api/v1/namespaces/n", "Namespaces"),
            (
                "/openapi/v3/apis/test.dev/v1",
                "OpenApi(\"apis/test.dev/v1\")",
            ),
            ("/version", "ServerVersion"),
        ] {
            assert!(
                read(path).is_some_and(|route| route.starts_with(starts)),
                "{path}"
            );
        }
        for path in [
            "/",
            "/apis/test.dev/v2/widgets",
            "/apis/test.dev/v1/widgets/a",
            "/apis/test.dev/v1/namespaces/n/gadgets",
            "/apis/test.dev/v1/gadgets/a/status",
            "/apis/test.dev/v1/namespaces/n/widgets/a/scale",
            "/apis/test.dev/v1/namespaces/N/widgets",
            "/apis/test.dev/v1/namespaces/n/widgets/%2e%2e",
            "/apis/test.dev/v1/namespaces/n/widgets//status",
            "/metrics",
        ] {
            assert!(read(path).is_none(), "{path}");
        }
    }
}
