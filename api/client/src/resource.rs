//! Where a kind lives in the HTTP API, and the paths of its objects.
//!
//! Owns paths and their escaping. Never asks the hub which kinds exist.

use std::fmt::Write as _;

use meridian_api::meta::{GROUP, Spec, VERSION};

/// A kind as the HTTP API addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Name of the kind: `FederatedJob`.
    pub kind: &'static str,
    /// Lower-case plural, as in paths: `federatedjobs`.
    pub plural: &'static str,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
}

impl Resource {
    /// Events of the core group: what happened to objects.
    pub const EVENTS: Self = Self {
        group: "",
        version: "v1",
        kind: "Event",
        plural: "events",
        namespaced: true,
    };

    /// Namespaces of the core group.
    pub const NAMESPACES: Self = Self {
        group: "",
        version: "v1",
        kind: "Namespace",
        plural: "namespaces",
        namespaced: false,
    };

    /// The resource of one of our kinds.
    #[must_use]
    pub const fn of<S: Spec>() -> Self {
        Self::meridian(S::KIND, S::PLURAL, S::NAMESPACED)
    }

    /// A kind of the group `meridian.dev`.
    #[must_use]
    pub const fn meridian(kind: &'static str, plural: &'static str, namespaced: bool) -> Self {
        Self {
            group: GROUP,
            version: VERSION,
            kind,
            plural,
            namespaced,
        }
    }

    /// What `apiVersion` says in its documents.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `federatedjob.meridian.dev`, as commands print it before a name.
    #[must_use]
    pub fn singular(&self) -> String {
        let kind = self.kind.to_ascii_lowercase();
        if self.group.is_empty() {
            kind
        } else {
            format!("{kind}.{}", self.group)
        }
    }

    /// Path of the collection, or of the object `name`. `namespace` is left out for
    /// cluster-scoped kinds; `None` addresses all namespaces.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(&escape(namespace));
        }
        path.push('/');
        path.push_str(self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&escape(name));
        }
        path
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// `?a=b&c=d` of the pairs that have a value; empty when none has.
pub(crate) fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given: Vec<String> = pairs
        .iter()
        .filter_map(|(key, value)| value.map(|value| format!("{key}={}", escape(value))))
        .collect();
    if given.is_empty() {
        String::new()
    } else {
        format!("?{}", given.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::kinds::federated_job::FederatedJobSpec;
    use meridian_api::kinds::region::RegionSpec;

    use super::*;

    #[test]
    fn paths_follow_the_kubernetes_conventions() {
        let jobs = Resource::of::<FederatedJobSpec>();
        let prefix = "/apis/meridian.dev/v1alpha1";
        assert_eq!(jobs.path(None, None), format!("{prefix}/federatedjobs"));
        assert_eq!(
            jobs.path(Some("nlp"), Some("llm-70b")),
            format!("{prefix}/namespaces/nlp/federatedjobs/llm-70b")
        );
        let regions = Resource::of::<RegionSpec>();
        assert_eq!(
            regions.path(Some("nlp"), Some("eu-west")),
            format!("{prefix}/regions/eu-west")
        );
        assert_eq!(
            Resource::EVENTS.path(Some("nlp"), None),
            "/api/v1/namespaces/nlp/events"
        );
    }

    #[test]
    fn a_name_cannot_leave_its_segment() {
        let jobs = Resource::of::<FederatedJobSpec>();
        assert!(
            jobs.path(Some("a"), Some("../x?y#z"))
                .ends_with("/federatedjobs/..%2Fx%3Fy%23z")
        );
        assert_eq!(
            query(&[("a", Some("x=1,y in (z)")), ("b", None)]),
            "?a=x%3D1%2Cy%20in%20%28z%29"
        );
        assert_eq!(query(&[("b", None)]), "");
    }
}
