//! The documents that ship with the project are valid, and fit each other.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::{Path, PathBuf};

use meridian_api::document;
use meridian_api::kinds::{self, FederatedJob, Tenant, TenantQuota, WorkloadClass};
use meridian_api::validate::{Findings, from_value};
use meridian_api::{kinds::federated_job::admission, tree};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/defaults")
}

fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read(folder().join(name)).unwrap();
    let documents = document::parse(&text).unwrap();
    documents
        .into_iter()
        .map(|document| document.value)
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents
        .iter()
        .filter(|document| document["kind"] == kind)
        .collect()
}

#[test]
fn every_default_document_is_valid() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for value in documents(&name) {
            let found = kinds::of(&value).unwrap().check(&value);
            assert!(
                found.is_empty(),
                "{name} {}: {found:#?}",
                value["metadata"]["name"]
            );
            count += 1;
        }
    }
    assert!(count > 15, "only {count} documents");
}

#[test]
fn the_six_classes_are_there_in_order() {
    let documents = documents("classes.yaml");
    let classes = of_kind(&documents, "WorkloadClass").into_iter();
    let classes: Vec<WorkloadClass> = classes.map(|value| from_value(value).unwrap()).collect();
    let names: Vec<&str> = classes
        .iter()
        .map(|class| class.metadata.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "inference-online",
            "inference-degradable",
            "interactive",
            "batch-short",
            "fine-tuning",
            "batch-long"
        ]
    );
    assert!(classes.is_sorted_by(|a, b| a.spec.priority > b.spec.priority));
    let windows = of_kind(&documents, "TimeWindow");
    for window in classes
        .iter()
        .flat_map(|class| &class.spec.preemption_windows)
    {
        assert!(
            windows
                .iter()
                .any(|known| known["metadata"]["name"] == **window),
            "{window}"
        );
    }
}

#[test]
fn the_starter_tree_is_sound() {
    let documents = documents("tenants.yaml");
    let tenants = of_kind(&documents, "Tenant").into_iter();
    let tenants: Vec<Tenant> = tenants.map(|value| from_value(value).unwrap()).collect();
    let quotas = of_kind(&documents, "TenantQuota").into_iter();
    let quotas: Vec<TenantQuota> = quotas.map(|value| from_value(value).unwrap()).collect();
    assert_eq!(tree::check(&tenants, &quotas), []);
    assert_eq!(quotas.len(), tenants.len());
}

#[test]
fn the_example_job_fits_its_class() {
    let job: FederatedJob = from_value(&documents("example-job.yaml")[0]).unwrap();
    let classes = documents("classes.yaml");
    let class = classes
        .iter()
        .find(|class| class["metadata"]["name"] == *job.spec.workload_class);
    let class: WorkloadClass = from_value(class.unwrap()).unwrap();
    let mut found = Findings::default();
    admission::fits_class(&job, &class, &mut found);
    assert_eq!(found.list, []);
    assert_eq!(job.gang_count(), 1);
    assert_eq!(job.gang(0).unwrap().roles[0].max, 2);
}
