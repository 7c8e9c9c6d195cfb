//! Jobs for tests.
//!
//! Owns a document that the defaults accept, with what a test varies. Never submits.

use meridian_agent::simulated::{EXIT_CODE, RUNTIME};
use serde_json::{Value, json};

/// Where jobs are made: the namespace that one of the default tenants has its name from.
pub const NAMESPACE: &str = "nlp";

/// One job, as its document.
#[derive(Clone, Debug)]
pub struct JobBuilder(Value);

impl JobBuilder {
    /// One pod with one GPU that ends well after a second.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": "FederatedJob",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"team": "nlp"}},
            "spec": {
                "workloadClass": "batch-short",
                "costAttribution": {
                    "team": "nlp", "project": "proof", "model": "none", "costCenter": "4711"
                },
                "roles": [{
                    "name": "worker", "replicas": 1, "gpus": 1,
                    "template": {
                        "metadata": {"annotations": {RUNTIME: "1s"}},
                        "spec": {"containers": [{
                            "name": "main", "image": "registry.example/train:1"
                        }]}
                    }
                }]
            }
        }))
    }

    /// So many pods, with so many GPUs each.
    #[must_use]
    pub fn pods(mut self, pods: u32, gpus: u32) -> Self {
        let role = &mut self.0["spec"]["roles"][0];
        (role["replicas"], role["gpus"]) = (json!(pods), json!(gpus));
        self
    }

    /// Each pod runs so long: `1500ms`, `10m`.
    #[must_use]
    pub fn runs(self, span: &str) -> Self {
        self.annotated(RUNTIME, span)
    }

    /// Each pod ends with that exit code.
    #[must_use]
    pub fn exits(self, code: i32) -> Self {
        self.annotated(EXIT_CODE, &code.to_string())
    }

    fn annotated(mut self, name: &str, value: &str) -> Self {
        let template = &mut self.0["spec"]["roles"][0]["template"];
        template["metadata"]["annotations"][name] = json!(value);
        self
    }

    /// One field of it, by JSON pointer.
    ///
    /// # Panics
    /// When the field's parent is not there.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
        let parent = self.0.pointer_mut(parent).expect("its parent is there");
        parent[field] = value;
        self
    }

    /// The document.
    #[must_use]
    pub fn build(self) -> Value {
        self.0
    }

    /// The document as text; JSON is YAML.
    #[must_use]
    pub fn text(self) -> String {
        format!("{:#}", self.0)
    }
}
