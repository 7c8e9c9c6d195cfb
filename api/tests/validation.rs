//! What is refused, and in which words: each error says what, where, the numbers, what to do.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use meridian_api::document;
use meridian_api::errors::{ApiError, ErrorCode, FieldReason};
use meridian_api::kinds::{self, FederatedJob};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources};
use meridian_api::validate::from_value;
use serde_json::{Value, json};

/// A valid job: a launcher and 4 workers of 8 GPUs.
fn job() -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "FederatedJob",
        "metadata": {"name": "train", "namespace": "nlp"},
        "spec": {
            "workloadClass": "batch-long",
            "roles": [
                {"name": "launcher", "replicas": 1, "resources": {"cpu": "500m", "memory": "1Gi"}},
                {"name": "worker", "replicas": 4, "gpus": 8,
                 "resources": {"cpu": 64, "memory": "512Gi"},
                 "template": {"spec": {"containers": [{"name": "main"}]}}},
            ],
        },
    })
}

/// The job with values put in at JSON pointers; objects on the way are made.
fn job_with(changes: &[(&str, Value)]) -> Value {
    let mut job = job();
    for (pointer, value) in changes {
        let mut at = &mut job;
        for part in pointer.split('/').skip(1) {
            at = match part.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[part],
            };
        }
        *at = value.clone();
    }
    job
}

fn errors(value: &Value) -> Vec<String> {
    kinds::of(value)
        .unwrap()
        .check(value)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[track_caller]
fn refused(changes: &[(&str, Value)], want: &str) {
    let found = errors(&job_with(changes));
    assert!(
        found.iter().any(|error| error.contains(want)),
        "{want:?} is not in {found:#?}"
    );
}

#[track_caller]
fn accepted(changes: &[(&str, Value)]) -> FederatedJob {
    let job = job_with(changes);
    assert_eq!(errors(&job), Vec::<String>::new());
    from_value(&job).unwrap()
}

#[test]
fn units_are_explained() {
    let memory = "/spec/roles/1/resources/memory";
    refused(
        &[(memory, json!("16GB"))],
        "spec.roles[1].resources.memory: \"16GB\" is not a quantity of memory: use Mi or Gi, for \
         example 16Gi",
    );
    refused(&[(memory, json!("512m"))], "for example 512Mi");
    refused(
        &[("/spec/maxRuntime", json!("2 hours"))],
        "spec.maxRuntime: \"2 hours\" is not a span",
    );
    refused(&[("/spec/maxRuntime", json!(7200))], "spec.maxRuntime");
    refused(
        &[("/spec/roles/1/gpus", json!("8x"))],
        "spec.roles[1].gpus: \"8x\" is not a number of",
    );
    refused(
        &[("/spec/roles/1/gpus", json!(-1))],
        "\"-1\" is not a number of GPUs",
    );
    refused(&[("/spec/finishBy", json!("tomorrow"))], "use RFC 3339");
}

#[test]
fn unknown_fields_types_and_words_are_explained() {
    refused(
        &[("/spec/roles/0/replica", json!(1))],
        "spec.roles[0].replica: there is no such field (did you mean \"replicas\"?)",
    );
    refused(
        &[("/spec/roles/0/replicas", json!("two"))],
        "spec.roles[0].replicas: invalid type",
    );
    refused(
        &[("/spec/placement/objective", json!("cheapest"))],
        "is not one of Cheapest, Soonest, Balanced (did you mean \"Cheapest\"?)",
    );
    refused(
        &[("/spec/workloadClass", json!(null))],
        "spec.workloadClass: must be given",
    );
    refused(
        &[
            ("/apiVersion", json!("meridian.dev/v1alpha1")),
            ("/metadata/name", json!("No_")),
        ],
        "metadata.name: \"No_\" is not a name",
    );
    refused(
        &[("/metadata/name", json!("x".repeat(64)))],
        "has 64 characters, at most 63 fit",
    );
}

#[test]
fn impossible_gangs_are_refused() {
    let gang =
        |roles: Value, min: Value| json!([{"name": "all", "roles": roles, "minMember": min}]);
    let both = json!(["launcher", "worker"]);
    refused(
        &[("/spec/gangs", gang(both.clone(), json!(6)))],
        "spec.gangs[0].minMember: is 6, more than the 5 pods of its roles",
    );
    refused(
        &[("/spec/gangs", gang(both.clone(), json!(2)))],
        "fewer than the 5 pods",
    );
    refused(
        &[("/spec/gangs", gang(json!(["worker"]), json!(4)))],
        "\"launcher\" is in no gang",
    );
    refused(
        &[(
            "/spec/gangs",
            gang(json!(["launcher", "workers"]), json!(null)),
        )],
        "there is no role \"workers\": it has launcher, worker (did you mean \"worker\"?)",
    );
    let twice = json!([{"name": "a", "roles": both}, {"name": "b", "roles": ["worker"]}]);
    refused(&[("/spec/gangs", twice)], "\"worker\" is in gang \"a\" too");
    refused(
        &[("/spec/roles/1/replicas", json!(0))],
        "spec.roles[1].replicas: is 0",
    );
    refused(&[("/spec/roles", json!([]))], "spec.roles: is empty");
    refused(&[("/spec/copies", json!(0))], "spec.copies: is 0");
    refused(
        &[("/spec/copies", json!(5_001))],
        "5001 gangs, at most 5000",
    );
    refused(
        &[("/spec/roles/1/replicas", json!(20_000))],
        "a gang of 20001 pods, at most 16384",
    );
    refused(
        &[("/spec/roles/1/gpus", json!(65))],
        "is 65 in each pod, no host has more than 64",
    );
    let value = job_with(&[("/spec/roles/1/replicas", json!(0))]);
    let causes = kinds::of(&value).unwrap().check(&value);
    assert_eq!(causes[0].reason, FieldReason::Impossible);
    assert_eq!(
        ApiError::from_fields("job", causes).code,
        ErrorCode::ImpossibleGang
    );
}

#[test]
fn elasticity_is_checked() {
    let elastic = |min: u32, max: u32, step: u32| {
        let role = "worker";
        json!({"role": role, "min": min, "max": max, "step": step})
    };
    let at = "/spec/elasticity";
    refused(
        &[(at, elastic(5, 3, 1))],
        "spec.elasticity.min: is 5, more than max 3",
    );
    refused(&[(at, elastic(1, 4, 2))], "never reaches max 4");
    refused(&[(at, elastic(1, 3, 1))], "does not contain the 4 replicas");
    refused(&[(at, elastic(0, 4, 1))], "keeps at least 1 pod");
    refused(&[(at, elastic(2, 4, 0))], "spec.elasticity.step: is 0");
    refused(
        &[(at, json!({"role": "wroker", "min": 1, "max": 4}))],
        "did you mean \"worker\"",
    );
}

#[test]
fn gangs_are_counted_per_copy() {
    let gangs = json!([
        {"name": "head", "roles": ["launcher"]},
        {"name": "body", "roles": ["worker"], "placeTimeout": "10m", "minMember": 3},
    ]);
    let job = accepted(&[
        ("/spec/gangs", gangs),
        ("/spec/copies", json!(3)),
        (
            "/spec/elasticity",
            json!({"role": "worker", "min": 2, "max": 6, "step": 2}),
        ),
        (
            "/spec/topology",
            json!([{"role": "worker", "required": "block", "preferred": "rack"}]),
        ),
        (
            "/spec/checkpoint",
            json!({"uri": "s3://a/b", "onPreempt": {"grace": "2m"}}),
        ),
    ]);
    assert_eq!(job.gang_count(), 6);
    assert_eq!(job.total_gpus(), Some(MilliGpus::cards(3 * 6 * 8)));
    let body = job.gang(5).unwrap();
    assert_eq!(
        (body.name, body.copy, body.grace),
        ("body", 2, Millis::seconds(120))
    );
    assert_eq!(body.place_timeout, Some(Millis::seconds(600)));
    let worker = &body.roles[0];
    assert_eq!(
        (worker.name, worker.min, worker.max, worker.step),
        ("worker", 4, 6, 2)
    );
    assert_eq!(
        (worker.required, worker.preferred),
        (Some("block"), Some("rack"))
    );
    let per_pod = Resources {
        gpus: MilliGpus::cards(8),
        cpu: MilliCpus(64_000),
        memory: Mebibytes(512 * 1024),
    };
    assert_eq!(worker.per_pod, per_pod);
    assert_eq!(job.gang(0).unwrap().roles.len(), 1);
    assert!(job.gang(6).is_none());
}

#[test]
fn equal_templates_have_equal_hashes() {
    let one = json!({"spec": {"a": 1, "b": 2}});
    let other: Value = serde_json::from_str(r#"{"spec": {"b": 2, "a": 1}}"#).unwrap();
    let hash = |template: &Value| {
        let job = accepted(&[("/spec/roles/1/template", template.clone())]);
        job.template_hash("worker", "h100", None).unwrap()
    };
    assert_eq!(hash(&one), hash(&other));
    assert_ne!(hash(&one), hash(&json!({"spec": {"a": 1}})));
    assert_eq!(accepted(&[]).template_hash("nobody", "h100", None), None);
}

#[test]
fn zones_crons_and_places_are_checked() {
    let schedule = |cron: &str, zone: &str| json!({"cron": cron, "timeZone": zone});
    let at = "/spec/schedule";
    refused(
        &[(at, schedule("30 2 * * *", "Europe/Dublni"))],
        "did you mean \"Europe/Dublin\"",
    );
    refused(
        &[(at, schedule("30 25 * * *", "Europe/Dublin"))],
        "spec.schedule.cron",
    );
    refused(
        &[(at, json!({"cron": "30 2 * * *"}))],
        "spec.schedule.timeZone: must be given",
    );
    refused(&[(at, json!({}))], "give either cron or window");
    refused(
        &[("/spec/checkpoint", json!({"uri": "bucket"}))],
        "use a URI such as s3://",
    );
    let regions = json!({"ordered": ["a"], "anyOf": ["b"]});
    refused(
        &[("/spec/placement/regions", regions)],
        "give either ordered",
    );
    let limits = json!({"limits": {"nvidia.com/gpu": 8}});
    refused(
        &[("/spec/roles/1/template/spec/containers/0/resources", limits)],
        "resources.limits[nvidia.com/gpu]: ask for GPUs in the role's gpus",
    );
}

#[test]
fn what_surrounds_pods_is_checked() {
    let maps = |maps: Value| json!({"configMaps": maps});
    let twice = json!([{"name": "conf"}, {"name": "conf"}]);
    refused(&[("/spec/carried", maps(twice))], "\"conf\" is there twice");
    let large = json!([{"name": "conf", "data": {"a": "x".repeat(200_000)}}]);
    refused(&[("/spec/carried", maps(large))], "holds 200001 bytes");
    let strange = json!([{"name": "conf", "data": {"../etc": "x"}}]);
    refused(&[("/spec/carried", maps(strange))], "is no file name");
    let leader = json!({"rule": "Leader", "role": "drivr"});
    refused(
        &[("/spec/successPolicy", leader)],
        "there is no role \"drivr\"",
    );
    let all = json!({"rule": "All", "role": "worker"});
    refused(&[("/spec/successPolicy", all)], "use rule Leader");
    let causes = json!({"causes": [
        {"cause": "Evicted", "action": "Fail"},
        {"cause": "Evicted", "action": "Restart"},
    ]});
    refused(&[("/spec/retry", causes)], "Evicted is there twice");
    let wait = json!({"backOff": {"initial": "1m", "limit": "10s"}});
    refused(&[("/spec/retry", wait)], "spec.retry.backOff.limit");
}

#[test]
fn slices_share_the_pods_without_remainder() {
    let rule = |size: u32| json!([{"role": "worker", "sliceSize": size, "sliceRequired": "rack"}]);
    let alone = json!([{"role": "worker", "sliceSize": 2}]);
    refused(&[("/spec/topology", alone)], "belong together");
    refused(&[("/spec/topology", rule(0))], "must be at least 1 pod");
    refused(
        &[("/spec/topology", rule(1000))],
        "some would be in no slice",
    );
    accepted(&[("/spec/topology", rule(1))]);
}

#[test]
fn a_flavor_changes_the_first_container_of_its_pods() {
    let flavors = json!([
        {"name": "h100"},
        {"name": "mi300x", "image": "rocm:1", "command": ["run"], "env": {"HIP": "1", "MODE": "b"}},
    ]);
    let env = json!([{"name": "MODE", "value": "a"}, {"name": "KEEP", "value": "k"}]);
    let job = accepted(&[
        ("/spec/placement/flavors", flavors),
        ("/spec/roles/1/template/spec/containers/0/env", env),
    ]);
    let plain = job.template_on("worker", "h100").unwrap();
    assert_eq!(*plain, job.spec.roles[1].template);
    let changed = job.template_on("worker", "mi300x").unwrap();
    let container = changed.pointer("/spec/containers/0").unwrap();
    assert_eq!(container["image"], "rocm:1");
    assert_eq!(container["command"], json!(["run"]));
    let env = json!([
        {"name": "KEEP", "value": "k"},
        {"name": "HIP", "value": "1"},
        {"name": "MODE", "value": "b"},
    ]);
    assert_eq!(container["env"], env);
    assert_ne!(
        job.template_hash("worker", "h100", None),
        job.template_hash("worker", "mi300x", None)
    );
}

#[test]
fn what_cannot_be_done_is_refused() {
    refused(
        &[("/spec/roles/1/gpus", json!(0.5))],
        "is 0.5: this release places whole cards only",
    );
    refused(
        &[("/spec/placement/capacity", json!(["Borrowed"]))],
        "nothing is placed on others' capacity alone",
    );
    refused(
        &[("/spec/runLease", json!("2m"))],
        "run leases are not renewed",
    );
    let split = json!({"maxClusters": 2, "minPerCluster": 1});
    let changes = [
        ("/spec/placement/clusterSpan", json!("Split")),
        ("/spec/placement/split", split),
    ];
    refused(&changes, "gangs are not split over clusters");
    let job: FederatedJob = from_value(&job_with(&changes)).unwrap();
    let found = kinds::federated_job::unsupported(&job);
    assert_eq!(found[0].reason, FieldReason::Unsupported);
    assert_eq!(
        ApiError::from_fields("job", found).code,
        ErrorCode::Unsupported
    );
}

#[test]
fn what_runs_keeps_its_shape() {
    let info = kinds::by_kind("FederatedJob").unwrap();
    let update = |changes: &[(&str, Value)]| (info.validate_update)(&job(), &job_with(changes));
    assert_eq!(
        update(&[("/spec/suspend", json!(true)), ("/spec/priority", json!(7))]),
        []
    );
    assert_eq!(update(&[("/spec/placement/clusters", json!(["a"]))]), []);
    // The same in other words is no change.
    assert_eq!(
        update(&[
            ("/spec/copies", json!(1)),
            ("/spec/roles/1/gpus", json!("8"))
        ]),
        []
    );
    let found = update(&[
        ("/spec/roles/1/replicas", json!(5)),
        ("/spec/tenant", json!("vision")),
    ]);
    let paths: Vec<&str> = found.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["spec.tenant", "spec.roles"]);
    assert!(
        found
            .iter()
            .all(|error| error.reason == FieldReason::Immutable)
    );
}

#[track_caller]
fn yaml_refused(text: &str, want: &str) {
    let value = document::parse_one(text.as_bytes()).unwrap();
    let found = errors(&value);
    assert!(
        found.iter().any(|error| error.contains(want)),
        "{want:?} is not in {found:#?}"
    );
}

fn yaml(kind: &str, spec: &str) -> String {
    format!(
        "apiVersion: meridian.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
    )
}

#[test]
fn windows_are_checked() {
    let window = |open: &str| yaml("TimeWindow", &format!("{{timeZone: UTC, open: [{open}]}}"));
    yaml_refused(
        &window(r#"{days: [Mon], start: "22:00", end: "22:00"}"#),
        "are both 22:00",
    );
    yaml_refused(
        &window(r#"{from: "Fri 20:00", to: "Fri 20:00"}"#),
        "both Fri 20:00",
    );
    yaml_refused(
        &window(r#"{days: [Mon], start: "22:00"}"#),
        "spec.open[0].end: must be given",
    );
    yaml_refused(
        &window(r#"{days: [Mon], from: "Fri 20:00"}"#),
        "give either days",
    );
    yaml_refused(
        &window(r#"{days: [mon], start: "22:00", end: "06:00"}"#),
        "did you mean \"Mon\"",
    );
    yaml_refused(
        &window(r#"{days: [Mon], start: "25:00", end: "06:00"}"#),
        "24-hour HH:MM",
    );
    yaml_refused(&window(""), "never opens");
}

#[test]
fn the_other_kinds_are_checked() {
    yaml_refused(
        &yaml("Tenant", "{budget: {currency: eur, monthly: 1}}"),
        "ISO 4217",
    );
    yaml_refused(
        &yaml("Tenant", "{budget: {currency: EUR, monthly: 1e3 EUR}}"),
        "plain decimal",
    );
    yaml_refused(
        &yaml("Tenant", "{budget: {currency: EUR, monthly: -5}}"),
        "is -5.00, must be",
    );
    let row = |row: &str| yaml("TenantQuota", &format!("{{tenant: x, resources: [{row}]}}"));
    yaml_refused(
        &row("{nominal: -1}"),
        "spec.resources[0].nominal: \"-1\" is not a number of",
    );
    yaml_refused(
        &row("{nominal: 8, lendingLimit: 9}"),
        "is 9, more than nominal 8",
    );
    yaml_refused(
        &row("{nominal: 8, hardCap: 7}"),
        "is 7, less than nominal 8",
    );
    yaml_refused(&row("{nominal: 8}, {nominal: 9}"), "has two rows");
    let twice = "{nominal: 8, region: a}, {nominal: 9, region: a}";
    yaml_refused(&row(twice), "has two rows");
    let cpu = yaml(
        "TenantQuota",
        "{tenant: x, cpu: {nominal: 4, lendingLimit: 4500m}}",
    );
    yaml_refused(&cpu, "spec.cpu.lendingLimit: is 4500m, more than nominal 4");
    let floor = "{priority: 1, preemption: Requeue, floorPercent: 10}";
    yaml_refused(
        &yaml("WorkloadClass", floor),
        "means nothing with preemption Requeue",
    );
    yaml_refused(
        &yaml("Region", "{timeZone: Mars/Olympus}"),
        "is no IANA time zone",
    );
    yaml_refused(
        &yaml("GPUPool", "{cluster: a, flavor: b, topologyLevels: [rack]}"),
        "must end",
    );
    let hosts =
        "{pool: p, flavor: h100, hosts: 2, gpusPerHost: 8, cpu: 64, memory: 1Ti, blocks: 3}";
    let cluster = format!("{{region: eu, backend: Simulated, simulated: [{hosts}]}}");
    yaml_refused(&yaml("MemberCluster", &cluster), "3 racks for 2 hosts");
    let silent = "{region: eu, unreachableAfter: 10m, lostAfter: 60s}";
    yaml_refused(
        &yaml("MemberCluster", silent),
        "is 10m, must be shorter than lostAfter 1m",
    );
    let placed = yaml("Region", "{timeZone: UTC}").replace("name: x", "name: x, namespace: y");
    yaml_refused(&placed, "this kind is in no namespace");
}

#[test]
fn reservations_are_checked() {
    let reservation = |rest: &str, capacity: &str| {
        let spec = format!("{{tenant: nlp, capacity: {{flavor: h100, {capacity}}}{rest}}}");
        yaml("Reservation", &spec)
    };
    let whole = reservation(
        r#", classes: [batch-long], leadTime: 45m, schedule: {from: "2026-12-07T08:00:00Z",
           until: "2026-12-11T20:00:00Z", window: nights},
           unused: {lendTo: [batch-short], within: 30m}"#,
        "hosts: 8, region: eu-west, cluster: euw-a, pool: train",
    );
    let value = document::parse_one(whole.as_bytes()).unwrap();
    assert_eq!(errors(&value), [] as [String; 0]);
    yaml_refused(&reservation("", "hosts: 0"), "nothing would be reserved");
    yaml_refused(&reservation("", "hosts: 20000"), "at most 16384");
    yaml_refused(
        &reservation("", "hosts: 1, pool: train"),
        "spec.capacity.cluster: must be given with pool",
    );
    let back = r#", schedule: {from: "2026-12-11T20:00:00Z", until: "2026-12-07T08:00:00Z"}"#;
    yaml_refused(&reservation(back, "hosts: 1"), "it would never hold");
    let long = r#", schedule: {from: "2026-12-07T20:00:00Z", until: "2028-12-07T08:00:00Z"}"#;
    yaml_refused(&reservation(long, "hosts: 1"), "leave until out");
    yaml_refused(
        &reservation(", unused: {lendTo: [], within: 5m}", "hosts: 1"),
        "spec.unused.lendTo: is empty",
    );
    yaml_refused(
        &reservation(", unused: {lendTo: [a], within: 2d}", "hosts: 1"),
        "must be from 1s to",
    );
}

#[test]
fn prices_are_checked() {
    let prices = |row: &str| yaml("PriceBook", &format!("{{currency: EUR, flavors: [{row}]}}"));
    yaml_refused(
        &prices("{flavor: l4, worth: 0}"),
        "is 0, must be from 0.001",
    );
    yaml_refused(&prices("{flavor: l4}, {flavor: l4}"), "has two rows");
    yaml_refused(
        &prices("{flavor: l4, gpuHour: -1}"),
        "spec.flavors[0].gpuHour: is -1.00, must be",
    );
    yaml_refused(
        &prices("{flavor: l4, prices: [{gpuHour: 1}]}"),
        "names no region and no capacity",
    );
    let twice = "{flavor: l4, prices: [{region: a, gpuHour: 1}, {region: a, gpuHour: 2}]}";
    yaml_refused(&prices(twice), "have two prices");
}

#[test]
fn kinds_are_found_and_guessed() {
    let error = kinds::of(&json!({"apiVersion": "meridian.dev/v1alpha1", "kind": "FederateJob"}));
    let error = error.unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownKind);
    assert!(
        error.help.contains("did you mean FederatedJob"),
        "{}",
        error.help
    );
    assert!(kinds::of(&json!({})).is_err());
    assert_eq!(
        kinds::by_any_name("FJ").map(|info| info.kind),
        Some("FederatedJob")
    );
    let mut names: Vec<&str> = Vec::new();
    for info in kinds::ALL {
        names.extend(info.short_names);
        names.extend([info.plural, info.singular]);
        assert_eq!(info.singular, info.kind.to_lowercase());
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two kinds share a name");
}

/// Every node of a schema is of a kind that Kubernetes takes as structural.
fn assert_structural(schema: &Value, path: &str) {
    let fields = schema
        .as_object()
        .unwrap_or_else(|| panic!("{path} is {schema}"));
    let known = [
        "type",
        "description",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "enum",
        "format",
        "minimum",
        "maximum",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "nullable",
    ];
    for keyword in fields.keys() {
        assert!(
            known.contains(&keyword.as_str()),
            "{path} has {keyword}: {schema}"
        );
    }
    let typed = fields.contains_key("type") || fields.contains_key("x-kubernetes-int-or-string");
    assert!(typed, "{path} has no type: {schema}");
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        assert_structural(inner, &format!("{path}.{name}"));
        assert!(
            inner.get("description").is_some(),
            "{path}.{name} has no description"
        );
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get(nested) {
            assert_structural(inner, &format!("{path}[]"));
        }
    }
}

#[test]
fn schemas_are_structural_and_described() {
    for info in kinds::ALL {
        assert_structural(&(info.schema)(), info.kind);
    }
    let schema = (kinds::by_kind("FederatedJob").unwrap().schema)();
    let phase = &schema["properties"]["status"]["properties"]["phase"];
    assert_eq!(phase["enum"][0], "Pending");
    assert_eq!(phase["type"], "string");
    assert_eq!(schema["required"], json!(["apiVersion", "kind", "spec"]));
}

#[test]
fn columns_point_into_the_schema() {
    for info in kinds::ALL {
        let schema = (info.schema)();
        for column in info.columns {
            let mut at = &schema;
            for part in column.path.trim_start_matches('.').split('.') {
                let name = part.split('[').next().unwrap();
                at = &at["properties"][name];
                assert!(at.is_object(), "{} {}", info.kind, column.path);
                if part.contains('[') {
                    break;
                }
            }
            assert!(!column.name.contains(' '), "{}", column.name);
        }
    }
}

#[test]
fn rules_of_placement_that_say_nothing_or_too_much_are_refused() {
    let place = |field: &str, value: Value| (format!("/spec/placement/{field}"), value);
    let refused_placement = |field: &str, value: Value, words: &str| {
        let (path, value) = place(field, value);
        refused(&[(path.as_str(), value)], words);
    };
    let rule = |operator: &str, values: Value| {
        let rule = json!({"key": "tier", "operator": operator, "values": values});
        json!({"required": [rule]})
    };
    refused_placement(
        "affinity",
        rule("In", json!([])),
        "must be given with In and NotIn",
    );
    refused_placement(
        "affinity",
        rule("Exists", json!(["a"])),
        "means nothing with Exists",
    );
    refused_placement(
        "tolerations",
        json!([{"value": "x"}]),
        "must be given: leave it out only",
    );
    refused_placement(
        "tolerations",
        json!([{"key": "k", "operator": "Exists", "value": "x"}]),
        "means nothing with operator Exists",
    );
    let early = json!([{
        "key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5,
    }]);
    refused_placement("tolerations", early, "only with effect NoExecute");
    refused_placement(
        "fabric",
        json!({}),
        "says nothing: give kinds, minGbps or both",
    );
    refused_placement(
        "fabric",
        json!({"minGbps": 0}),
        "is 0, must be from 1 to 16000",
    );
    refused_placement("groups", json!([{"name": "home"}]), "names no cluster");
    let nobody = json!([{"rule": "Apart", "topologyKey": "cluster", "matchLabels": {}}]);
    refused_placement(
        "jobAffinity",
        nobody,
        "must be given, for example {app: indexer}",
    );
    refused_placement("overflow", json!("Return"), "give at least two groups");
    let both = [
        ("/spec/placement/regions", json!({"anyOf": ["eu"]})),
        (
            "/spec/placement/groups",
            json!([{"name": "home", "regions": ["eu"]}]),
        ),
    ];
    refused(&both, "regions and groups both order clusters");
}

#[test]
fn a_spread_of_too_few_copies_is_refused_with_the_numbers() {
    let spread = |rule: Value| ("/spec/placement/spread", json!([rule]));
    let wide = spread(json!({"topologyKey": "region", "minDomains": 3, "minPerDomain": 2}));
    refused(
        &[("/spec/copies", json!(5)), wide.clone()],
        "needs 3 domains with 2 copies each, 6 in all, and there are 5: raise copies to 6",
    );
    accepted(&[("/spec/copies", json!(6)), wide]);
    refused(
        &[spread(json!({"topologyKey": "region"}))],
        "says nothing: give minDomains",
    );
    refused(
        &[spread(json!({"topologyKey": "region", "maxSkew": 0}))],
        "is 0, must be at least 1",
    );
    let rules = json!([
        {"topologyKey": "region", "maxSkew": 1}, {"topologyKey": "zone", "maxSkew": 1},
    ]);
    refused(
        &[("/spec/placement/spread", rules)],
        "has 2 rules: this release keeps one",
    );
    let division = |value: Value| [("/spec/placement/division", value)];
    refused(
        &division(json!({"rule": "Weighted"})),
        "must be given with rule Weighted",
    );
    let weights = json!([{"regions": ["eu"], "weight": 0}]);
    refused(
        &division(json!({"rule": "Weighted", "weights": weights})),
        "are all 0, so no cluster would get a copy",
    );
    let weights = json!([{"regions": ["eu"], "weight": 1}]);
    refused(
        &division(json!({"rule": "Dynamic", "weights": weights})),
        "mean nothing with rule Dynamic",
    );
}

#[test]
fn an_override_names_its_clusters_and_changes_something() {
    let overrides = |row: Value| [("/spec/overrides", json!([row]))];
    refused(
        &overrides(json!({"storageClass": "fast"})),
        "names no cluster",
    );
    refused(
        &overrides(json!({"regions": ["eu"]})),
        "changes nothing: give imageRegistry",
    );
    refused(
        &overrides(json!({"regions": ["eu"], "imageRegistry": "a b"})),
        "is no registry such as",
    );
    let job = accepted(&overrides(
        json!({"regions": ["eu"], "env": {"SITE": "eu"}}),
    ));
    assert_eq!(
        (job.override_at("a", "eu"), job.override_at("a", "us")),
        (Some(0), None)
    );
    let plain = job.template_hash("worker", "h100", None);
    let there = job.template_hash("worker", "h100", Some(0));
    assert!(plain.is_some() && there.is_some() && plain != there);
    let template = job.template_at("worker", "h100", Some(0)).unwrap();
    let env = template.pointer("/spec/containers/0/env");
    assert_eq!(env, Some(&json!([{"name": "SITE", "value": "eu"}])));
    assert_eq!(job.template_at("worker", "h100", Some(1)), None);
}
