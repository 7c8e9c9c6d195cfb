//! What starts an agent in a Kubernetes cluster, with the least rights that it needs.
//!
//! Owns the whole list of those rights: each line says what the agent does with it. Never asks a
//! cluster or a hub.

use meridian_api::canonical::hex;
use meridian_api::join::JoinToken;
use serde_json::{Value, json};

use crate::output;

/// Where the agent lives.
const NAMESPACE: &str = "meridian-system";
/// What everything of it is called.
const NAME: &str = "meridian-agent";
/// User and group of its process: nobody in particular, and not root.
const USER: u32 = 65_532;
/// Where its durable state is mounted.
const STATE: &str = "/var/lib/meridian-agent";
/// Where pods of gangs call it.
const ANSWERS: u16 = 7790;
/// Where its token is mounted.
const JOIN: &str = "/etc/meridian/join";

/// One agent to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installation {
    /// The cluster that it speaks for.
    pub(crate) cluster: String,
    /// Where it reaches the hub.
    pub(crate) hub: String,
    /// Whose hubs it believes.
    pub(crate) ca_hash: String,
    /// What it joins on.
    pub(crate) token: String,
    /// Its image.
    pub(crate) image: String,
}

/// The manifests as YAML documents, in the order in which they must be made.
pub(crate) fn yaml(installation: &Installation) -> String {
    let documents = documents(installation);
    let documents = documents.iter().map(output::yaml);
    documents.collect::<Vec<_>>().join("---\n")
}

fn documents(installation: &Installation) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": NAMESPACE,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": labels()},
            "rules": RULES.iter().map(Rule::value).collect::<Vec<_>>(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME, "labels": labels()},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": NAME,
            },
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": join_secret(), "namespace": NAMESPACE, "labels": labels()},
            "type": "Opaque",
            "stringData": {"token": installation.token},
        }),
        // Its key lives here: an agent that loses it must join again.
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata(),
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }),
        deployment(installation),
        // Where pods of gangs say that they have saved, each for itself alone.
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(),
            "spec": {
                "selector": {"app.kubernetes.io/name": NAME},
                "ports": [{"name": "answers", "port": ANSWERS, "targetPort": "answers"}],
            },
        }),
    ]
}

/// One right.
struct Rule {
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
}

impl Rule {
    const fn new(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resource,
            verbs,
        }
    }

    fn value(&self) -> Value {
        json!({
            "apiGroups": [self.group],
            "resources": [self.resource],
            "verbs": self.verbs,
        })
    }
}

/// Everything that the agent may do. No wildcard, and nothing that could raise its own rights.
const RULES: &[Rule] = &[
    // Its inventory.
    Rule::new("", "nodes", &["get", "list", "watch"]),
    // Members of gangs, and what others occupy. `patch` shows a pod to the API server before
    // anything is there (a dry run).
    Rule::new(
        "",
        "pods",
        &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ],
    ),
    // What makes the pods that others bring: how many there are to be, and whether it is over.
    Rule::new("batch", "jobs", &["list", "watch"]),
    Rule::new("jobset.x-k8s.io", "jobsets", &["list", "watch"]),
    Rule::new("kubeflow.org", "pytorchjobs", &["list", "watch"]),
    // It places pods itself.
    Rule::new("", "pods/binding", &["create"]),
    // `meridian logs`.
    Rule::new("", "pods/log", &["get"]),
    // The owner object of a gang, with its gate, and what a job carries along.
    Rule::new(
        "",
        "configmaps",
        &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ],
    ),
    // Names for members of a gang.
    Rule::new("", "services", &["get", "list", "create", "delete"]),
    // Priorities of pods that the cluster does not have yet.
    Rule::new("scheduling.k8s.io", "priorityclasses", &["get", "create"]),
    // Namespaces of jobs.
    Rule::new("", "namespaces", &["get", "create"]),
    // What happened to a gang, for whoever looks there.
    Rule::new("", "events", &["create"]),
    // Whether what a job names is there: asked by name, and for metadata alone. RBAC has no right
    // to metadata without the content, so this right could read a Secret whose name is known.
    Rule::new("", "secrets", &["get"]),
    Rule::new("", "serviceaccounts", &["get"]),
    Rule::new("", "persistentvolumeclaims", &["get"]),
];

fn labels() -> Value {
    json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "meridian"})
}

fn metadata() -> Value {
    json!({"name": NAME, "namespace": NAMESPACE, "labels": labels()})
}

fn answers_url() -> String {
    format!("http://{NAME}.{NAMESPACE}.svc:{ANSWERS}")
}

fn join_secret() -> String {
    format!("{NAME}-join")
}

fn deployment(installation: &Installation) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(),
        "spec": {
            "replicas": 1,
            // Two agents of one cluster would fence each other.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": {
                "metadata": {
                    "labels": labels(),
                    // Another token starts the agent anew, which then joins on it.
                    "annotations": {"meridian.dev/join-token": fingerprint(&installation.token)},
                },
                "spec": pod(installation),
            },
        },
    })
}

fn pod(installation: &Installation) -> Value {
    json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "agent",
            "image": installation.image,
            "env": [
                {"name": "MERIDIAN_AGENT_BACKEND", "value": "kubernetes"},
                {"name": "MERIDIAN_AGENT_HUB", "value": installation.hub},
                {"name": "MERIDIAN_AGENT_CA_HASH", "value": installation.ca_hash},
                {"name": "MERIDIAN_AGENT_JOIN_TOKEN_FILE", "value": format!("{JOIN}/token")},
                {"name": "MERIDIAN_AGENT_STATE_DIR", "value": STATE},
                {"name": "MERIDIAN_AGENT_ANSWERS_LISTEN", "value": format!("0.0.0.0:{ANSWERS}")},
                {"name": "MERIDIAN_AGENT_ANSWERS_URL", "value": answers_url()},
                {"name": "MERIDIAN_AGENT_LOG", "value": "json"},
            ],
            "ports": [{"name": "answers", "containerPort": ANSWERS}],
            "resources": {
                "requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"memory": "1Gi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "state", "mountPath": STATE},
                {"name": "join", "mountPath": JOIN, "readOnly": true},
            ],
        }],
        "volumes": [
            {"name": "state", "persistentVolumeClaim": {"claimName": NAME}},
            {"name": "join", "secret": {"secretName": join_secret(), "defaultMode": 0o440}},
        ],
    })
}

/// Tells one token from another and nothing else.
fn fingerprint(token: &str) -> String {
    let known = token.parse::<JoinToken>();
    let hash = known.map_or_else(|_| hex(&[0; 32]), |token| token.secret_sha256());
    hash.chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation() -> Installation {
        Installation {
            cluster: "euw-a".to_owned(),
            hub: "hub.example.com:7443".to_owned(),
            ca_hash: format!("sha256:{}", "a5".repeat(32)),
            token: JoinToken::new("euw-a", [0xc3; 32]).reveal(),
            image: "meridian-agent:1".to_owned(),
        }
    }

    #[test]
    fn the_manifests_are_these() {
        insta::assert_snapshot!(yaml(&installation()));
    }

    #[test]
    fn no_right_is_a_wildcard_or_raises_rights() {
        for rule in RULES {
            let words = [&[rule.group, rule.resource], rule.verbs].concat();
            assert!(!words.iter().any(|word| word.contains('*')), "{words:?}");
            for verb in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!rule.verbs.contains(&verb), "{words:?}");
            }
            assert_ne!(rule.group, "rbac.authorization.k8s.io");
            assert!(rule.resource != "secrets" || rule.verbs == ["get"]);
        }
        let mut seen: Vec<_> = RULES
            .iter()
            .map(|rule| (rule.group, rule.resource))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), RULES.len(), "each resource has one line");
    }

    #[test]
    fn the_token_stands_in_its_secret_alone() {
        let installation = installation();
        let documents = documents(&installation);
        let with = documents
            .iter()
            .filter(|document| document.to_string().contains(&installation.token));
        let kinds: Vec<_> = with.map(|document| document["kind"].clone()).collect();
        assert_eq!(kinds, ["Secret"]);
    }

    #[test]
    fn another_token_starts_the_agent_anew() {
        let other = JoinToken::new("euw-a", [0xc4; 32]).reveal();
        assert_ne!(fingerprint(&installation().token), fingerprint(&other));
    }
}
