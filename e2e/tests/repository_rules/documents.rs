//! Rules about documents: links, paths and targets that are named exist; the map names each crate.
//!
//! Owns the reading of Markdown that this needs. Never judges wording.

use std::path::Path;

use crate::files::{self, File};
use crate::{Finding, none_found};

/// A newcomer reads it in one sitting.
const ARCHITECTURE_LINES: usize = 300;

/// What belongs to one machine, and to no repository. Written in halves, so that this file does
/// not break its own rule.
const PLACES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("proxy.", "golang.org"),
    concat!("deb.", "debian.org"),
];
/// Written by a tool: it names where its packages come from.
const NOT_OURS: &[&str] = &[
    "Cargo.lock",
    "e2e/kubernetes/go.sum",
    "e2e/kubernetes/kwok/go.sum",
    "e2e/kubernetes/node/go.sum",
];

/// Text of a document outside code blocks, by line from 1.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_block = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            lines.push((index + 1, line));
        }
    }
    lines
}

/// Targets of `[words](target)` in a line.
fn targets(line: &str) -> Vec<&str> {
    let after = |(at, _): (usize, &str)| {
        let rest = &line[at + 2..];
        rest.find(')').map(|end| &rest[..end])
    };
    line.match_indices("](").filter_map(after).collect()
}

/// What stands in backticks in a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// The anchor that a heading gets: lower case, blanks as hyphens, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.collect::<String>().to_lowercase()
}

fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text)
        .into_iter()
        .filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| anchor(line.trim_start_matches('#')))
        .collect()
}

fn dead_links(root: &Path, file: &File) -> Vec<Finding> {
    let folder = root.join(&file.path);
    let folder = folder.parent().expect("a file lies in a folder");
    let mut findings = Vec::new();
    for (line, text) in prose(&file.text) {
        for target in targets(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, wanted) = target.split_once('#').unwrap_or((target, ""));
            let linked = match path {
                "" => Some(file.text.clone()),
                _ => text_at(&folder.join(path)),
            };
            let what = match linked {
                None => format!("`{path}` does not exist"),
                Some(linked) if wanted.is_empty() || anchors(&linked).contains(&wanted.into()) => {
                    continue;
                }
                Some(_) => format!("`{target}` has no such heading"),
            };
            findings.push(Finding::new(&file.path, line, what));
        }
    }
    findings
}

/// Text of a file, empty for a folder or what is no text; `None` when there is nothing.
fn text_at(path: &Path) -> Option<String> {
    path.exists()
        .then(|| std::fs::read_to_string(path).unwrap_or_default())
}

/// Paths in backticks that begin with one of our folders, and `make` targets, must exist.
fn dead_names(root: &Path, makefile: &str, file: &File) -> Vec<Finding> {
    let folders = [
        "api/",
        "e2e/",
        "hub/",
        "member-agent/",
        "policies/",
        "proto/",
        ".ci/",
    ];
    let mut findings = Vec::new();
    for (line, text) in prose(&file.text) {
        for name in quoted(text) {
            let is_plain = !name.contains([' ', '<', '>', '*', '{', '…', ':']);
            let is_path = is_plain && folders.iter().any(|folder| name.starts_with(folder));
            if is_path && !root.join(name).exists() {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{name}` does not exist"),
                ));
            }
            let target = name
                .strip_prefix("make ")
                .and_then(|rest| rest.split(' ').next());
            if let Some(target) = target
                && !makefile
                    .lines()
                    .any(|rule| rule.starts_with(&format!("{target}:")))
            {
                let what = format!("the Makefile has no target `{target}`");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    findings
}

fn places(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for place in PLACES {
            let names_it = line.match_indices(place).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '.')
            });
            if names_it {
                let what = format!("`{place}` belongs to one machine");
                findings.push(Finding::new(&file.path, index + 1, what));
            }
        }
    }
    findings
}

/// Lines of the section under `heading`, down to the next heading of its level.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let inside = text.lines().skip_while(|line| *line != heading).skip(1);
    inside.take_while(|line| !line.starts_with("## ")).collect()
}

/// Crates, as (name, folder), that the code map does not name together on a line.
fn missing_from_map(map: &[&str], crates: &[(String, String)]) -> Vec<Finding> {
    let named = |(name, folder): &(String, String)| {
        let (name, folder) = (format!("`{name}`"), format!("`{folder}/`"));
        map.iter()
            .any(|line| line.contains(&name) && line.contains(&folder))
    };
    let missing = crates.iter().filter(|entry| !named(entry));
    let what = |(name, folder): &(String, String)| {
        Finding::new(
            "ARCHITECTURE.md",
            0,
            format!("the code map lacks `{folder}/` with `{name}`"),
        )
    };
    missing.map(what).collect()
}

#[test]
fn no_link_is_dead() {
    let root = files::root();
    let findings = files::ending(".md")
        .iter()
        .flat_map(|file| dead_links(&root, file))
        .collect();
    none_found(findings, "correct the link, or write what it points to");
}

#[test]
fn what_documents_name_exists() {
    let (root, makefile) = (files::root(), files::one("Makefile").text);
    let documents = files::ending(".md");
    let findings = documents
        .iter()
        .flat_map(|file| dead_names(&root, &makefile, file))
        .collect();
    none_found(
        findings,
        "name what is there; a document follows the code in the same commit",
    );
}

#[test]
fn nothing_names_one_machine() {
    let files = files::all()
        .into_iter()
        .filter(|file| !NOT_OURS.contains(&file.path.as_str()));
    let findings = files.flat_map(|file| places(&file)).collect();
    none_found(
        findings,
        "use a path from the root of the repository, or a setting",
    );
}

#[test]
fn the_code_map_names_each_crate() {
    let architecture = files::one("ARCHITECTURE.md").text;
    let manifests = files::ending("/Cargo.toml");
    let name_of = |file: &File| {
        let line = file
            .text
            .lines()
            .find(|line| line.starts_with("name = "))
            .expect("a name");
        let folder = file.path.trim_end_matches("/Cargo.toml").to_owned();
        (
            line.trim_start_matches("name = ")
                .trim_matches('"')
                .to_owned(),
            folder,
        )
    };
    let crates: Vec<(String, String)> = manifests.iter().map(name_of).collect();
    let findings = missing_from_map(&section(&architecture, "## Code map"), &crates);
    none_found(findings, "add a row: crate, folder, owns, never");
}

#[test]
fn the_architecture_is_one_sitting() {
    let lines = files::one("ARCHITECTURE.md").text.lines().count();
    assert!(
        lines <= ARCHITECTURE_LINES,
        "{lines} lines: move detail to the README of its folder"
    );
}

#[test]
fn the_changelog_has_room_for_the_next_change() {
    let changelog = files::one("CHANGELOG.md").text;
    assert!(
        !section(&changelog, "## Unreleased").is_empty(),
        "it needs a section `## Unreleased`"
    );
}

fn document(text: &str) -> File {
    File {
        path: "README.md".to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn the_link_rule_can_fail() {
    let root = files::root();
    let good =
        "# A b: `c`\n[x](Makefile) [y](#a-b-c) [z](https://example.org/a)\n```\n[w](no)\n```\n";
    assert_eq!(dead_links(&root, &document(good)), []);
    let bad = "# A\n[x](no-such-file.md) [y](#b) [z](Makefile#c)\n";
    assert_eq!(dead_links(&root, &document(bad)).len(), 3);
}

#[test]
fn the_rule_about_names_can_fail() {
    let root = files::root();
    let good = "`e2e/Cargo.toml` `make demo ARGS=x` `hub/<name>` `objects/a`\n";
    assert_eq!(dead_names(&root, "demo: x\n", &document(good)), []);
    let bad = "`e2e/no-such-file.rs` and `make coffee`\n";
    assert_eq!(dead_names(&root, "demo: x\n", &document(bad)).len(), 2);
}

#[test]
fn the_rule_about_places_can_fail() {
    assert_eq!(
        places(&document("a net/work/b and ./work/c and net.work/d\n")),
        []
    );
    for place in PLACES {
        assert_eq!(
            places(&document(&format!("see {place}x\n"))).len(),
            1,
            "{place}"
        );
    }
}

#[test]
fn the_map_rule_can_fail() {
    let crates = [("meridian-hub".to_owned(), "hub".to_owned())];
    assert_eq!(
        missing_from_map(&["| `hub/` | `meridian-hub` |"], &crates),
        []
    );
    assert_eq!(
        missing_from_map(&["| `hub/` | the loops |"], &crates).len(),
        1
    );
    assert_eq!(section("# t\n## a\nx\n## b\ny\n", "## b"), ["y"]);
}
