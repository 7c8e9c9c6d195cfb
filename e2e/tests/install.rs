//! An agent installed by the printed line: what it may do in its cluster is enough, and no more.
//!
//! Owns the promise of the manifests, judged by a real API server that enforces them.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Api;
use kube::api::{ListParams, PostParams};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_client::{DryRun, Resource};
use meridian_e2e::deployment::{
    Deployment, INSTALLED_AS, INSTALLED_IN, JobBuilder, LONG, NAMESPACE,
};
use meridian_e2e::member::{MemberCluster, MemberOptions};
use meridian_e2e::tools::Tool;

/// What would let an agent, or who has taken it over, do more than place pods: verb, group,
/// resource, subresource.
const FORBIDDEN: &[(&str, &str, &str, &str)] = &[
    ("list", "", "secrets", ""),
    ("watch", "", "secrets", ""),
    ("create", "", "secrets", ""),
    ("delete", "", "nodes", ""),
    ("patch", "", "nodes", ""),
    ("create", "", "pods", "exec"),
    ("create", "", "pods", "attach"),
    ("create", "", "pods", "portforward"),
    ("create", "", "pods", "ephemeralcontainers"),
    ("create", "", "nodes", "proxy"),
    ("delete", "", "namespaces", ""),
    ("update", "", "namespaces", ""),
    ("create", "", "serviceaccounts", "token"),
    ("create", "", "serviceaccounts", ""),
    ("impersonate", "", "users", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", ""),
    (
        "create",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        "",
    ),
    ("update", "apps", "deployments", ""),
    ("delete", "batch", "jobs", ""),
    (
        "create",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "",
    ),
    ("approve", "certificates.k8s.io", "signers", ""),
    ("*", "*", "*", ""),
];

/// Whether the installed agent may do that in every namespace.
async fn may(member: &MemberCluster, asked: (&str, &str, &str, &str)) -> bool {
    let (verb, group, resource, subresource) = asked;
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!(
                "system:serviceaccount:{INSTALLED_IN}:{INSTALLED_AS}"
            )),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{INSTALLED_IN}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(member.client());
    let review = reviews.create(&PostParams::default(), &review).await;
    review
        .expect("reviewed")
        .status
        .is_some_and(|status| status.allowed)
}

/// How many objects of the agent's are left.
async fn made(member: &MemberCluster) -> usize {
    let of_agent = ListParams::default().labels("app.kubernetes.io/managed-by=meridian-agent");
    let client = member.client();
    let pods = Api::<Pod>::all(client.clone()).list(&of_agent).await;
    let services = Api::<Service>::all(client.clone()).list(&of_agent).await;
    let maps = Api::<ConfigMap>::all(client).list(&of_agent).await;
    pods.expect("listed").items.len()
        + services.expect("listed").items.len()
        + maps.expect("listed").items.len()
}

#[tokio::test]
async fn the_printed_line_gives_an_agent_what_it_needs_and_no_more() {
    let test = "the_printed_line_gives_an_agent_what_it_needs_and_no_more";
    let Some(options) = MemberOptions::default().or_skip(test) else {
        return;
    };
    let Some(kubectl) = Tool::Kubectl.or_skip(test) else {
        return;
    };
    let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
    let member = MemberCluster::start(options).await;
    let member = member.unwrap_or_else(|error| panic!("{error}"));
    let fleet = Box::pin(Deployment::installed(&member, &kubectl, gpus)).await;

    // A gang in a namespace that is not there yet, with a ConfigMap that it carries, to its end.
    let carried = serde_json::json!({"configMaps": [{"name": "settings", "data": {"lr": "0.1"}}]});
    let job = JobBuilder::new("installed")
        .pods(2, 8)
        .trains(&member, &[])
        .with("/spec/carried", carried);
    let file = fleet.file("installed.yaml", &job.text());
    let file = file.display().to_string();
    fleet.meridian(["submit", "-f", &file]).await.succeeded();
    let said = async || {
        let ran = fleet.meridian(["logs", "installed"]).await;
        ran.out.contains("MERIDIAN_RANK=").then_some(())
    };
    // Over TLS both ways: from the container through the agent and the hub.
    fleet.until("the gang says who it is", LONG, said).await;
    let whole = async || (member.truth().runs().len() == 2).then_some(());
    fleet.until("both ranks have run", LONG, whole).await;
    let kind = Resource::of::<FederatedJobSpec>();
    let client = fleet.client();
    let deleted = client.delete(&kind, NAMESPACE, "installed", None, DryRun::No);
    deleted.await.expect("deleted");
    let gone = async || (made(&member).await == 0).then_some(());
    fleet.until("nothing of the gang is left", LONG, gone).await;

    // It was never refused, so its rights are enough.
    let said = fleet.agents[0].process.lines();
    let refused: Vec<_> = said
        .iter()
        .filter(|line| line.contains("orbidden"))
        .collect();
    assert_eq!(refused, [] as [&String; 0]);
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
    assert!(may(&member, ("create", "", "pods", "binding")).await);
    for right in FORBIDDEN {
        assert!(!may(&member, *right).await, "{right:?}");
    }
    member.stop().await.expect("nothing is left");
}
