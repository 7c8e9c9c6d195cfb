//! Rules about crates and folders: the arrows of the architecture and the house they stand in.
//!
//! Owns the table of allowed arrows. Never knows what a crate does.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::files;
use crate::{Finding, none_found};

/// The folders of the house. Hidden ones and cargo's `target` may stand beside them.
const FOLDERS: &[&str] = &["api", "e2e", "hub", "member-agent", "policies", "proto"];

/// Every crate of the workspace with the crates of the workspace that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("meridian-api", &[]),
    ("meridian-proto", &["meridian-api"]),
    ("meridian-runtime", &["meridian-api"]),
    ("meridian-policies", &["meridian-api"]),
    ("meridian-sim", &["meridian-api", "meridian-policies"]),
    ("meridian-store", &["meridian-api", "meridian-runtime"]),
    // Generic over kinds: it knows the store's words, but no kind, no GPU and no decision.
    (
        "meridian-apiserver",
        &["meridian-runtime", "meridian-store"],
    ),
    (
        "meridian-hub",
        &[
            "meridian-api",
            "meridian-apiserver",
            "meridian-policies",
            "meridian-proto",
            "meridian-runtime",
            "meridian-store",
        ],
    ),
    (
        "meridian-agent",
        &[
            "meridian-api",
            "meridian-policies",
            "meridian-proto",
            "meridian-runtime",
        ],
    ),
    (
        "meridian-client",
        &["meridian-api", "meridian-proto", "meridian-runtime"],
    ),
    (
        "meridian-cli",
        // The simulator is pure: a question about "what if" needs no hub, and reaches none.
        &[
            "meridian-api",
            "meridian-client",
            "meridian-runtime",
            "meridian-sim",
        ],
    ),
    (
        "meridian-e2e",
        &[
            "meridian-agent",
            "meridian-api",
            "meridian-apiserver",
            "meridian-client",
            "meridian-hub",
            "meridian-policies",
            "meridian-proto",
            "meridian-runtime",
            "meridian-sim",
            "meridian-store",
        ],
    ),
];

/// Crates that neither decide nor name: nothing below a pure crate may bring one in.
const PURE: &[&str] = &["meridian-api", "meridian-policies", "meridian-sim"];
const IMPURE: &[&str] = &[
    "axum",
    "etcd-client",
    "hyper",
    "kube",
    "mio",
    "redb",
    "reqwest",
    "socket2",
    "tokio",
    "tonic",
];

/// One dependency of a crate of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// What ships: normal and build dependencies.
    Shipped,
    /// What only tests need.
    Tests,
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(files::root().join("Cargo.toml"));
    // One platform, or the answer would hold crates of systems that nothing is built for.
    let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"].map(str::to_owned);
    command.other_options([vec!["--locked".to_owned()], platform.to_vec()].concat());
    command.exec().expect("cargo metadata answers")
}

fn workspace_arrows(metadata: &Metadata) -> Vec<Arrow> {
    let members: BTreeSet<&str> = metadata
        .workspace_packages()
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let mut arrows = Vec::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            if members.contains(dependency.name.as_str()) {
                let kind = match dependency.kind {
                    DependencyKind::Development => Kind::Tests,
                    _ => Kind::Shipped,
                };
                let (from, to) = (package.name.to_string(), dependency.name.clone());
                arrows.push(Arrow { from, to, kind });
            }
        }
    }
    arrows
}

fn forbidden_arrows(arrows: &[Arrow]) -> Vec<Finding> {
    let table: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut findings = Vec::new();
    for Arrow { from, to, kind } in arrows {
        let allowed = match kind {
            Kind::Shipped => table
                .get(from.as_str())
                .is_some_and(|to_| to_.contains(&to.as_str())),
            // A test may look at anything below, but nothing depends on the proof.
            Kind::Tests => to != "meridian-e2e",
        };
        if !allowed {
            findings.push(Finding::new(from, 0, format!("must not depend on {to}")));
        }
    }
    findings
}

/// Below each crate, what ships with it: name to names.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn shipped_graph(metadata: &Metadata) -> Graph {
    let resolve = metadata
        .resolve
        .as_ref()
        .expect("metadata was asked with dependencies");
    let names: BTreeMap<&str, String> = metadata
        .packages
        .iter()
        .map(|package| (package.id.repr.as_str(), package.name.to_string()))
        .collect();
    let mut graph = Graph::new();
    for node in &resolve.nodes {
        let below = graph
            .entry(names[node.id.repr.as_str()].clone())
            .or_default();
        for dependency in &node.deps {
            let ships = |kind: &cargo_metadata::DepKindInfo| kind.kind == DependencyKind::Normal;
            if dependency.dep_kinds.iter().any(ships) {
                below.insert(names[dependency.pkg.repr.as_str()].clone());
            }
        }
    }
    graph
}

fn impure_below(graph: &Graph, pure: &str) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut next = vec![vec![pure.to_owned()]];
    let mut findings = Vec::new();
    while let Some(path) = next.pop() {
        let last = path.last().expect("a path begins with the crate");
        if IMPURE.contains(&last.as_str()) {
            findings.push(Finding::new(
                pure,
                0,
                format!("reaches {}", path.join(" → ")),
            ));
            continue;
        }
        for below in graph.get(last).into_iter().flatten() {
            if seen.insert(below.clone()) {
                next.push([path.clone(), vec![below.clone()]].concat());
            }
        }
    }
    findings
}

/// A member's dependencies come from the workspace, and so do its lints.
fn uninherited(path: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut section, mut inherits_lints) = (String::new(), false);
    for (index, line) in manifest.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            line.trim_matches(['[', ']']).clone_into(&mut section);
        } else if section == "lints" && line == "workspace = true" {
            inherits_lints = true;
        } else if section.ends_with("dependencies") && !line.is_empty() && !line.starts_with('#') {
            let inherited =
                line.contains(".workspace = true") || line.contains("workspace = true,");
            if !inherited && !line.contains("workspace = true }") {
                let what = format!("`{line}` is not from [workspace.dependencies]");
                findings.push(Finding::new(path, index + 1, what));
            }
        }
    }
    if !inherits_lints {
        findings.push(Finding::new(path, 0, "has no `[lints] workspace = true`"));
    }
    findings
}

fn unknown_folders(folders: &[String]) -> Vec<Finding> {
    let strange = |name: &&String| {
        !FOLDERS.contains(&name.as_str()) && !name.starts_with('.') && *name != "target"
    };
    let finding = |name: &String| Finding::new(name, 0, "is no folder of the house");
    let missing = FOLDERS
        .iter()
        .filter(|name| !folders.contains(&(**name).to_owned()));
    let mut findings: Vec<Finding> = folders.iter().filter(strange).map(finding).collect();
    findings.extend(missing.map(|name| Finding::new(name, 0, "is missing")));
    findings
}

#[test]
fn arrows_point_one_way() {
    let arrows = workspace_arrows(&metadata());
    assert!(
        !arrows.is_empty(),
        "no arrow found: the reading of cargo metadata is broken"
    );
    let fix = "move the code to the crate that owns it; ARCHITECTURE.md says which";
    none_found(forbidden_arrows(&arrows), fix);
}

#[test]
fn every_crate_is_in_the_table_of_arrows() {
    let metadata = metadata();
    let members: BTreeSet<&str> = metadata
        .workspace_packages()
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let table: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        members, table,
        "a crate is made by deciding what it may depend on"
    );
}

#[test]
fn pure_crates_reach_no_input_or_output() {
    let graph = shipped_graph(&metadata());
    let findings = PURE
        .iter()
        .flat_map(|pure| impure_below(&graph, pure))
        .collect();
    none_found(
        findings,
        "a decision takes values and returns values; do the I/O in hub or agent",
    );
}

#[test]
fn crates_inherit_from_the_workspace() {
    let manifests = files::ending("/Cargo.toml");
    let findings = manifests
        .iter()
        .flat_map(|file| uninherited(&file.path, &file.text));
    none_found(
        findings.collect(),
        "list it once in the root Cargo.toml and write `x.workspace = true`",
    );
}

#[test]
fn the_house_has_six_folders() {
    let entries = std::fs::read_dir(files::root()).expect("a readable root");
    let entries = entries.map(|entry| entry.expect("a readable entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names: Vec<String> = folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    none_found(
        unknown_folders(&names),
        "everything has a room in one of the six",
    );
}

#[test]
fn each_folder_says_what_it_owns() {
    let missing = FOLDERS.iter().map(|folder| format!("{folder}/README.md"));
    let missing = missing.filter(|path| !files::root().join(path).is_file());
    let findings = missing
        .map(|path| Finding::new(&path, 0, "is missing"))
        .collect();
    none_found(findings, "write a short README: owns, never, how to test");
}

#[test]
fn the_arrow_rule_can_fail() {
    let arrow = |from: &str, to: &str, kind| Arrow {
        from: from.into(),
        to: to.into(),
        kind,
    };
    let good = [
        arrow("meridian-hub", "meridian-policies", Kind::Shipped),
        arrow("meridian-api", "meridian-policies", Kind::Tests),
    ];
    assert_eq!(forbidden_arrows(&good), []);
    let bad = [
        arrow("meridian-policies", "meridian-runtime", Kind::Shipped),
        arrow("meridian-apiserver", "meridian-policies", Kind::Shipped),
        arrow("meridian-agent", "meridian-hub", Kind::Shipped),
        arrow("meridian-hub", "meridian-e2e", Kind::Tests),
        arrow("unheard-of", "meridian-api", Kind::Shipped),
    ];
    assert_eq!(forbidden_arrows(&bad).len(), bad.len());
}

#[test]
fn the_purity_rule_can_fail() {
    let below = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut graph = Graph::new();
    graph.insert("meridian-policies".into(), below(&["serde"]));
    graph.insert("serde".into(), below(&[]));
    assert_eq!(impure_below(&graph, "meridian-policies"), []);
    graph.insert("serde".into(), below(&["tokio"]));
    let found = impure_below(&graph, "meridian-policies");
    assert_eq!(found[0].what, "reaches meridian-policies → serde → tokio");
}

#[test]
fn the_manifest_rule_can_fail() {
    let good = "[lints]\nworkspace = true\n[dependencies]\nserde.workspace = true\n";
    assert_eq!(uninherited("a/Cargo.toml", good), []);
    let features = "[lints]\nworkspace = true\n[dev-dependencies]\n\
                    tokio = { workspace = true, features = [\"net\"] }\n";
    assert_eq!(uninherited("a/Cargo.toml", features), []);
    assert_eq!(
        uninherited("a/Cargo.toml", "[dependencies]\nserde = \"1\"\n").len(),
        2
    );
}

#[test]
fn the_folder_rule_can_fail() {
    let mut folders: Vec<String> = FOLDERS.iter().map(|name| (*name).to_owned()).collect();
    folders.extend([".ci".to_owned(), "target".to_owned()]);
    assert_eq!(unknown_folders(&folders), []);
    folders[0] = "utils".to_owned();
    assert_eq!(unknown_folders(&folders).len(), 2);
}
