//! kubectl as people type it: a table of commands with how they end and what they say.
//!
//! Owns the promise that the hub feels like any API server. The rows run in order, against one
//! hub without clusters, so that nothing changes by itself.

use meridian_e2e::deployment::{
    self, Deployment, DeploymentPlan, JobBuilder, LONG, SOON, fleet_document,
};
use meridian_e2e::tools::Tool;
use serde_json::json;

/// Rows name files in braces.
type Row = deployment::Row<'static>;

const DISCOVERY: &[Row] = &[
    (
        "version",
        0,
        &["Client Version", "Server Version", "meridian"],
    ),
    ("api-versions", 0, &["meridian.dev/v1alpha1"]),
    (
        "api-resources --api-group=meridian.dev",
        0,
        &[
            "federatedjobs",
            "fj",
            "FederatedJob",
            "memberclusters",
            "workloadclasses",
            "true",
            "false",
        ],
    ),
    (
        "api-resources -o name --namespaced=true",
        0,
        &["federatedjobs.meridian.dev", "events"],
    ),
    (
        "explain fj",
        0,
        &["KIND:       FederatedJob", "spec", "status"],
    ),
    (
        "explain federatedjob.spec.roles.gpus",
        0,
        &["FIELD: gpus", "DESCRIPTION"],
    ),
    (
        "explain federatedjob --recursive",
        0,
        &["roles", "replicas", "template", "conditions"],
    ),
    (
        "explain fj.spec.nosuch",
        1,
        &["field \"nosuch\" does not exist"],
    ),
    ("get --raw /readyz", 0, &["ok"]),
    ("get --raw /livez", 0, &["ok"]),
    (
        "get nosuchkind",
        1,
        &["doesn't have a resource type \"nosuchkind\""],
    ),
];

const APPLY: &[Row] = &[
    (
        "apply -f {fleet}",
        0,
        &["region.meridian.dev/eu-west created"],
    ),
    (
        "apply -f {defaults}/classes.yaml -f {defaults}/tenants.yaml",
        0,
        &["batch-short created"],
    ),
    (
        "apply -f {defaults}/classes.yaml",
        0,
        &["batch-short unchanged"],
    ),
    (
        "apply -f {train} --dry-run=client",
        0,
        &["train created (dry run)"],
    ),
    (
        "apply -f {train} --dry-run=server",
        0,
        &["train created (server dry run)"],
    ),
    ("get fj", 0, &["No resources found in nlp namespace"]),
    ("diff -f {train}", 1, &["+kind: FederatedJob"]),
    (
        "apply -f {train}",
        0,
        &["federatedjob.meridian.dev/train created"],
    ),
    (
        "apply -f {train}",
        0,
        &["federatedjob.meridian.dev/train unchanged"],
    ),
    ("diff -f {train}", 0, &[]),
    (
        "create -f {train}",
        1,
        &["AlreadyExists", "\"train\" already exists"],
    ),
    (
        "apply -f {train-labelled}",
        0,
        &["federatedjob.meridian.dev/train configured"],
    ),
    (
        "get fj -l tier=gold -o name",
        0,
        &["federatedjob.meridian.dev/train"],
    ),
    (
        "replace -f {train}",
        0,
        &["federatedjob.meridian.dev/train replaced"],
    ),
    (
        "apply --server-side -f {train}",
        1,
        &["Server-side apply not available"],
    ),
    (
        "create -f {other} --save-config",
        0,
        &["federatedjob.meridian.dev/other created"],
    ),
];

const READ: &[Row] = &[
    (
        "get fj",
        0,
        &["NAME", "CLASS", "STATE", "train", "batch-short", "Pending"],
    ),
    ("get fj -o wide", 0, &["TENANT", "PRIO", "nlp"]),
    ("get fj -A", 0, &["NAMESPACE", "nlp"]),
    (
        "get fj,tn,wc",
        0,
        &[
            "tenant.meridian.dev/nlp",
            "workloadclass.meridian.dev/batch-short",
        ],
    ),
    (
        "get fj train other -o name",
        0,
        &["federatedjob.meridian.dev/train\nfederatedjob.meridian.dev/other"],
    ),
    (
        "get fj/train -o yaml",
        0,
        &["kind: FederatedJob", "resourceVersion:", "uid:"],
    ),
    ("get fj/train -o json", 0, &["\"kind\": \"FederatedJob\""]),
    (
        "get fj train -o jsonpath='{.spec.roles[0].gpus}'",
        0,
        &["8"],
    ),
    (
        "get fj -o custom-columns=N:.metadata.name,G:.spec.roles[0].gpus --no-headers",
        0,
        &["other   1", "train   8"],
    ),
    (
        "get wc --sort-by=.spec.priority -o name",
        0,
        &["batch-long\nworkloadclass.meridian.dev/fine-tuning"],
    ),
    (
        "get wc --chunk-size=2 -o name",
        0,
        &["batch-long", "fine-tuning", "interactive"],
    ),
    (
        "get fj -l team=nlp,tier!=gold -o name",
        0,
        &["train", "other"],
    ),
    (
        "get fj -l 'team in (cv, audio)'",
        0,
        &["No resources found"],
    ),
    ("get fj -l '((' ", 1, &["unable to parse"]),
    (
        "get fj --field-selector metadata.name=other -o name",
        0,
        &["federatedjob.meridian.dev/other"],
    ),
    (
        "get fj --field-selector spec.colour=red",
        1,
        &["field label not supported: spec.colour"],
    ),
    ("get fj --show-labels", 0, &["team=nlp"]),
    (
        "get fj nothere",
        1,
        &["(NotFound)", "\"nothere\" not found"],
    ),
    ("get fj nothere --ignore-not-found", 0, &[]),
    (
        "describe fj train",
        0,
        &["Name:         train", "Spec:", "Status:", "Events:"],
    ),
    ("describe tenant nlp", 0, &["Parent:  research"]),
    ("get ns", 0, &["nlp"]),
    ("create ns team-a", 0, &["namespace/team-a created"]),
    ("get events", 0, &[]),
];

const CHANGE: &[Row] = &[
    ("label fj train tier=gold", 0, &["train labeled"]),
    (
        "label fj train tier=silver",
        1,
        &["already has a value (gold)"],
    ),
    (
        "label fj train tier=silver --overwrite",
        0,
        &["train labeled"],
    ),
    ("label fj train tier-", 0, &["train unlabeled"]),
    ("annotate fj train note=hello", 0, &["train annotated"]),
    (
        "patch fj train --type=merge -p '{\"metadata\":{\"labels\":{\"a\":\"b\"}}}'",
        0,
        &["train patched"],
    ),
    (
        "patch fj train --type=merge -p '{\"metadata\":{\"labels\":{\"a\":\"b\"}}}'",
        0,
        &["(no change)"],
    ),
    (
        "patch fj train --type=json -p '[{\"op\":\"remove\",\"path\":\"/metadata/labels/a\"}]'",
        0,
        &["train patched"],
    ),
    (
        r#"patch fj train --type=json -p '[{"op":"test","path":"/metadata/name","value":"x"}]'"#,
        1,
        &["operation 0", "/metadata/name"],
    ),
    (
        "patch fj train -p '{\"metadata\":{\"labels\":{\"a\":\"b\"}}}'",
        1,
        &["merge-patch+json"],
    ),
    (
        "patch fj train --type=merge -p '{\"spec\":{\"workloadClass\":\"interactive\"}}'",
        1,
        &["spec.workloadClass", "may not change"],
    ),
    (
        "patch wc batch-short --type=merge -p '{\"spec\":{\"priority\":501}}'",
        0,
        &["patched"],
    ),
    (
        "get wc batch-short -o jsonpath='{.metadata.generation}'",
        0,
        &["2"],
    ),
];

const WRONG: &[Row] = &[
    (
        "apply -f {typo}",
        1,
        &[
            "unknown field \"spec.workloadClas\" (did you mean \"workloadClass\"?)",
            "roles[0].replica\"",
        ],
    ),
    (
        "create -f {extra} --validate=strict",
        1,
        &["unknown field \"spec.roles[0].colour\""],
    ),
    (
        "create -f {extra} --validate=warn",
        0,
        &["Warning: unknown field", "extra created"],
    ),
    (
        "replace -f {extra} --validate=ignore",
        0,
        &["extra replaced"],
    ),
    (
        "create -f {unit}",
        1,
        &["spec.maxRuntime", "\"3 parsecs\"", "1h30m"],
    ),
    (
        "create -f {class}",
        0,
        &[
            "Warning: spec.workloadClass",
            "no WorkloadClass \"nosuch\" yet",
            "class created",
        ],
    ),
    ("create -f {malformed}", 1, &["error parsing"]),
    (
        "create -f {kind}",
        1,
        &["no matches for kind \"FederatedJobb\""],
    ),
    ("patch fj nothere --type=merge -p '{}'", 1, &["NotFound"]),
    ("delete tenant research", 1, &["research"]),
];

const DELETE: &[Row] = &[
    (
        "delete fj train --dry-run=server",
        0,
        &["\"train\" deleted", "(server dry run)"],
    ),
    ("get fj train -o name", 0, &["train"]),
    ("delete fj train", 0, &["\"train\" deleted"]),
    ("wait --for=delete fj/train --timeout=30s", 0, &[]),
    ("delete fj train", 1, &["NotFound"]),
    ("delete fj train --ignore-not-found", 0, &[]),
    ("delete fj -l team=nlp", 0, &["\"other\" deleted"]),
    (
        "delete rg eu-west",
        1,
        &["(Conflict)", "clusters are in it: eu-a"],
    ),
    ("delete mc eu-a", 0, &["\"eu-a\" deleted"]),
    ("delete rg eu-west", 0, &["\"eu-west\" deleted"]),
    ("get mc,rg", 0, &["No resources found"]),
];

const SCALE: &[Row] = &[
    (
        "create -f {service}",
        0,
        &["federatedservice.meridian.dev/chat created"],
    ),
    (
        "scale federatedservice/chat --replicas=3",
        0,
        &["federatedservice.meridian.dev/chat scaled"],
    ),
    (
        "get federatedservice chat -o jsonpath={.spec.replicas}",
        0,
        &["3"],
    ),
    (
        "scale federatedservice/chat --replicas=5 --current-replicas=2",
        1,
        &["Expected replicas to be 2, was 3"],
    ),
    (
        "scale federatedservice/chat --replicas=5 --current-replicas=3",
        0,
        &["chat scaled"],
    ),
    (
        "scale federatedservice/chat --replicas=6 --dry-run=server",
        0,
        &["chat scaled (server dry run)"],
    ),
    (
        "get federatedservice chat --subresource=scale -o jsonpath={.kind}:{.spec.replicas}",
        0,
        &["Scale:5"],
    ),
    (
        "scale federatedservice/chat --replicas=1000000",
        1,
        &["spec.replicas"],
    ),
    (
        "scale workloadclass/batch-short --replicas=2",
        1,
        &["could not find the requested resource"],
    ),
    ("delete federatedservice chat", 0, &["\"chat\" deleted"]),
];

/// The files that rows name.
fn files(fleet: &Deployment) -> Vec<(&'static str, String)> {
    let job = || JobBuilder::new("train").pods(2, 8);
    let typo = job().text().replace("workloadClass", "workloadClas");
    let typo = typo.replace("\"replicas\"", "\"replica\"");
    let extra = JobBuilder::new("extra").with("/spec/roles/0/colour", json!("red"));
    let unit = JobBuilder::new("unit").with("/spec/maxRuntime", json!("3 parsecs"));
    let class = JobBuilder::new("class").with("/spec/workloadClass", json!("nosuch"));
    let kind = JobBuilder::new("kind").with("/kind", json!("FederatedJobb"));
    let roles = job().build()["spec"]["roles"].take();
    let service = JobBuilder::new("chat")
        .with("/kind", json!("FederatedService"))
        .with(
            "/spec",
            json!({"workloadClass": "inference-degradable", "replicas": 2, "roles": roles}),
        );
    let texts = [
        ("service", service.text()),
        ("fleet", fleet_document()),
        ("train", job().text()),
        (
            "train-labelled",
            job().with("/metadata/labels/tier", json!("gold")).text(),
        ),
        ("other", JobBuilder::new("other").text()),
        ("typo", typo),
        ("extra", extra.text()),
        ("unit", unit.text()),
        ("class", class.text()),
        ("malformed", "a: [1\nb: 2".to_owned()),
        ("kind", kind.text()),
    ];
    let written = texts.map(|(name, text)| {
        let file = fleet.file(&format!("{name}.yaml"), &text);
        (name, file.display().to_string())
    });
    let defaults = Deployment::defaults().display().to_string();
    written
        .into_iter()
        .chain([("defaults", defaults)])
        .collect()
}

#[tokio::test]
async fn commands_end_and_speak_as_they_do_everywhere() {
    let Some(kubectl) = Tool::Kubectl.or_skip("commands_end_and_speak_as_they_do_everywhere")
    else {
        return;
    };
    let fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let files = files(&fleet);
    for (line, code, says) in [DISCOVERY, APPLY, READ, CHANGE, WRONG, DELETE, SCALE].concat() {
        let mut typed = line.to_owned();
        for (name, path) in &files {
            typed = typed.replace(&format!("{{{name}}}"), path);
        }
        fleet.kubectl_does(&kubectl, &[(&typed, code, says)]).await;
    }
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_watch_shows_changes_as_they_come() {
    let Some(kubectl) = Tool::Kubectl.or_skip("a_watch_shows_changes_as_they_come") else {
        return;
    };
    let fleet = Deployment::start(DeploymentPlan::default()).await;
    let spec = fleet.kubectl_spec(&kubectl);
    let spec = spec.args(["get", "fj", "--watch", "--output-watch-events"]);
    let mut watch = fleet.harness().start(spec).expect("kubectl starts");
    let submitted = fleet.submitter();
    submitted
        .acknowledged(vec![JobBuilder::new("train").build()])
        .await;
    for wanted in ["Running", "Succeeded"] {
        let line = watch
            .line(wanted, LONG)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(line.contains("train") && line.contains("eu-a"), "{line}");
    }
    fleet
        .kubectl(&kubectl, ["delete", "fj", "train"])
        .await
        .succeeded();
    let line = watch
        .line("DELETED", SOON)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(line.contains("train"), "{line}");
    watch.kill().await.expect("killed");
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}
