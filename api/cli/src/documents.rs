//! Documents from files, folders or standard input.
//!
//! Owns finding and reading them, and saying where each came from. Never judges a spec.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use meridian_api::document::{self, MAX_TEXT_BYTES};
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::kinds;
use meridian_client::Resource;
use serde_json::Value;

use crate::failure::Failure;
use crate::targets;

/// Ends of the names of files that are read from a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// One object that a person wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// `jobs.yaml:12`.
    pub(crate) origin: String,
    pub(crate) resource: Resource,
    pub(crate) value: Value,
}

impl Wanted {
    pub(crate) fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// `jobs.yaml:12: FederatedJob x`, as errors name it.
    pub(crate) fn what(&self) -> String {
        format!("{}: {} {}", self.origin, self.resource.kind, self.name())
    }
}

/// Every document of every source: a file, a folder (its files by name), or `-`.
pub(crate) fn load(sources: &[PathBuf]) -> Result<Vec<Wanted>, Failure> {
    let mut wanted = Vec::new();
    for source in sources {
        if source.as_os_str() == "-" {
            let text = read(std::io::stdin().lock(), "standard input")?;
            parse(&text, "-", &mut wanted)?;
            continue;
        }
        for file in files(source)? {
            let name = file.display().to_string();
            let opened = std::fs::File::open(&file).map_err(|error| unreadable(&file, error))?;
            parse(&read(opened, &name)?, &name, &mut wanted)?;
        }
    }
    if wanted.is_empty() {
        return Err(Failure::usage(
            "no documents found",
            "name a file or folder with YAML or JSON by -f, or - for standard input",
        ));
    }
    Ok(wanted)
}

fn files(source: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !source.is_dir() {
        return Ok(vec![source.to_owned()]);
    }
    let entries = std::fs::read_dir(source).map_err(|error| unreadable(source, error))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| unreadable(source, error))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_file() && extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, source: std::io::Error) -> Failure {
    Failure::Unreadable {
        path: path.display().to_string(),
        source,
    }
}

/// Reads one byte more than may be there, so that what is too large is noticed and not cut.
fn read(source: impl std::io::Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_TEXT_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    source
        .take(limit)
        .read_to_end(&mut text)
        .map_err(|source| Failure::Unreadable {
            path: name.to_owned(),
            source,
        })?;
    Ok(text)
}

/// Reads the documents of one text, lists opened.
fn parse(text: &[u8], name: &str, wanted: &mut Vec<Wanted>) -> Result<(), Failure> {
    let wrong = |origin: &str, error: ApiError| Failure::Document {
        origin: origin.to_owned(),
        source: Box::new(error),
    };
    for document in document::parse(text).map_err(|error| wrong(name, error))? {
        let origin = format!("{name}:{}", document.line);
        for value in opened(document.value) {
            let resource = resource_of(&value).map_err(|error| wrong(&origin, error))?;
            wanted.push(Wanted {
                origin: origin.clone(),
                resource,
                value,
            });
        }
    }
    Ok(())
}

/// The items of a list, or the document itself.
fn opened(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items,
        Some(items) => {
            document["items"] = items;
            vec![document]
        }
        None => vec![document],
    }
}

fn resource_of(value: &Value) -> Result<Resource, ApiError> {
    if value["apiVersion"] == "v1" && value["kind"] == Resource::NAMESPACES.kind {
        return Ok(Resource::NAMESPACES);
    }
    kinds::of(value).map(targets::resource)
}

/// The namespace of a document: its own, or `fallback`. An explicit `asked` that differs from the
/// document's own is an error, because one of the two is a mistake.
pub(crate) fn namespace<'a>(
    wanted: &'a Wanted,
    asked: Option<&'a str>,
    fallback: &'a str,
) -> Result<&'a str, Failure> {
    let own = wanted.value["metadata"]["namespace"].as_str();
    match (own, asked) {
        (Some(own), Some(asked)) if own != asked && wanted.resource.namespaced => {
            Err(Failure::usage(
                format!(
                    "{}: its namespace is {own:?}, the command says {asked:?}",
                    wanted.what()
                ),
                "leave out -n, or change the document",
            ))
        }
        (own, asked) => Ok(own.or(asked).unwrap_or(fallback)),
    }
}

/// Demands that every document is a job.
pub(crate) fn only_jobs(wanted: &[Wanted]) -> Result<(), Failure> {
    let other = wanted.iter().find(|each| each.resource != targets::jobs());
    other.map_or(Ok(()), |other| {
        let message = format!("{} is {}, no job", other.name(), other.resource.kind);
        Err(Failure::Document {
            origin: other.origin.clone(),
            source: Box::new(
                ApiError::new(ErrorCode::UnknownKind, message)
                    .help("only jobs are submitted: use `meridian apply` for other kinds"),
            ),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str =
        "apiVersion: meridian.dev/v1alpha1\nkind: FederatedJob\nmetadata: {name: a}\n";

    #[test]
    fn a_folder_is_read_by_name_and_lists_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("b.yml", JOB);
        write(
            "a.yaml",
            &format!(
                "{JOB}---\n# nothing\n---\n{}",
                JOB.replace("name: a", "name: b")
            ),
        );
        write(
            "c.json",
            r#"{"kind": "List", "apiVersion": "v1", "items": [
            {"apiVersion": "meridian.dev/v1alpha1", "kind": "Region", "metadata": {"name": "r"}},
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}]}"#,
        );
        write("notes.txt", "not a document");
        let wanted = load(&[folder.path().to_owned()]).expect("documents");
        let names: Vec<&str> = wanted.iter().map(Wanted::name).collect();
        assert_eq!(names, ["a", "b", "a", "r", "n"]);
        assert!(
            wanted[1].origin.ends_with("a.yaml:7"),
            "{}",
            wanted[1].origin
        );
        assert_eq!(wanted[4].resource, Resource::NAMESPACES);
    }

    #[test]
    fn what_is_wrong_names_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("x.yaml");
        std::fs::write(&file, JOB.replace("FederatedJob", "FederatedJbo")).expect("written");
        let failure = load(std::slice::from_ref(&file)).expect_err("no such kind");
        let text = failure.report("x").expect("a report");
        assert!(
            text.contains("x.yaml:1: there is no kind \"FederatedJbo\""),
            "{text}"
        );
        assert!(text.contains("did you mean FederatedJob"), "{text}");

        assert!(matches!(
            load(&[folder.path().join("none.yaml")]),
            Err(Failure::Unreadable { .. })
        ));
        std::fs::write(&file, "").expect("written");
        assert!(matches!(load(&[file]), Err(Failure::Usage { .. })));
    }

    #[test]
    fn two_different_namespaces_are_a_mistake() {
        let mut wanted = Vec::new();
        let text = JOB.replace("{name: a}", "{name: a, namespace: nlp}");
        parse(text.as_bytes(), "x", &mut wanted).expect("a job");
        assert_eq!(
            namespace(&wanted[0], None, "default").expect("its own"),
            "nlp"
        );
        assert_eq!(
            namespace(&wanted[0], Some("nlp"), "d").expect("the same"),
            "nlp"
        );
        assert!(namespace(&wanted[0], Some("vision"), "d").is_err());
        wanted.clear();
        parse(JOB.as_bytes(), "x", &mut wanted).expect("a job");
        assert_eq!(
            namespace(&wanted[0], Some("vision"), "d").expect("asked"),
            "vision"
        );
        assert_eq!(namespace(&wanted[0], None, "d").expect("the usual"), "d");
    }
}
