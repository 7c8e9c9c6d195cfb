//! What a person means by `job`, `jobs,clusters` or `job/llm-70b`.
//!
//! Owns the natural names of kinds and the forms in which objects are named. Never asks the hub.

use meridian_api::fields::nearest;
use meridian_api::kinds::{self, KindInfo};
use meridian_client::Resource;

use crate::failure::Failure;

/// Words for kinds that are no name of theirs, singular and plural.
const NATURAL: [(&str, &str); 14] = [
    ("job", "FederatedJob"),
    ("jobs", "FederatedJob"),
    ("service", "FederatedService"),
    ("services", "FederatedService"),
    ("cluster", "MemberCluster"),
    ("clusters", "MemberCluster"),
    ("pool", "GPUPool"),
    ("pools", "GPUPool"),
    ("class", "WorkloadClass"),
    ("classes", "WorkloadClass"),
    ("quota", "TenantQuota"),
    ("quotas", "TenantQuota"),
    ("window", "TimeWindow"),
    ("windows", "TimeWindow"),
];
const CORE: [(&str, Resource); 6] = [
    ("event", Resource::EVENTS),
    ("events", Resource::EVENTS),
    ("ev", Resource::EVENTS),
    ("namespace", Resource::NAMESPACES),
    ("namespaces", Resource::NAMESPACES),
    ("ns", Resource::NAMESPACES),
];

/// The resource of a kind of ours.
pub(crate) fn resource(info: &KindInfo) -> Resource {
    Resource::meridian(info.kind, info.plural, info.namespaced)
}

/// Jobs, which most commands are about.
pub(crate) fn jobs() -> Resource {
    Resource::of::<meridian_api::kinds::federated_job::FederatedJobSpec>()
}

/// Member clusters.
pub(crate) fn clusters() -> Resource {
    Resource::of::<meridian_api::kinds::member_cluster::MemberClusterSpec>()
}

/// The kind that a word means.
pub(crate) fn kind(word: &str) -> Result<Resource, Failure> {
    let lower = word.to_ascii_lowercase();
    let bare = lower.strip_suffix(".meridian.dev").unwrap_or(&lower);
    let natural = NATURAL.iter().find(|(name, _)| *name == bare);
    let ours = natural.map_or_else(
        || kinds::by_any_name(bare),
        |(_, kind)| kinds::by_kind(kind),
    );
    if let Some(info) = ours {
        return Ok(resource(info));
    }
    if let Some((_, resource)) = CORE.iter().find(|(name, _)| *name == bare) {
        return Ok(*resource);
    }
    let known: Vec<&str> = words().collect();
    let fix = match nearest(bare, known.iter().copied()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("kinds are {}", known.join(", ")),
    };
    let short: String = word.chars().take(64).collect();
    Err(Failure::usage(format!("there is no kind {short:?}"), fix))
}

/// The words that help and completion offer, one for each kind.
pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    let ours = kinds::ALL.iter().map(|info| {
        let natural = NATURAL.iter().rev().find(|(_, kind)| *kind == info.kind);
        natural.map_or(info.plural, |(word, _)| *word)
    });
    ours.chain(["events", "namespaces"])
}

/// One object by kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) name: String,
}

/// What the words of a command name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    /// Whole kinds.
    Kinds(Vec<Resource>),
    /// Single objects.
    Objects(Vec<Target>),
}

/// Reads `KIND[,KIND]`, `KIND NAME...` or `KIND/NAME...`.
pub(crate) fn parse(words: &[String]) -> Result<Targets, Failure> {
    if words.iter().any(|word| word.contains('/')) {
        return words
            .iter()
            .map(|word| slashed(word))
            .collect::<Result<_, _>>()
            .map(Targets::Objects);
    }
    let Some((first, names)) = words.split_first() else {
        return Err(Failure::usage(
            "no kind is named",
            format!("kinds are {}", self::words().collect::<Vec<_>>().join(", ")),
        ));
    };
    let resources: Vec<Resource> = first.split(',').map(kind).collect::<Result<_, _>>()?;
    match (resources.as_slice(), names) {
        (_, []) => Ok(Targets::Kinds(resources)),
        ([resource], names) => Ok(Targets::Objects(
            names
                .iter()
                .map(|name| Target {
                    resource: *resource,
                    name: name.clone(),
                })
                .collect(),
        )),
        (_, [_, ..]) => Err(Failure::usage(
            "names of several kinds at once are not told apart",
            "write KIND/NAME for each",
        )),
    }
}

fn slashed(word: &str) -> Result<Target, Failure> {
    match word.split_once('/') {
        Some((of, name)) if !name.is_empty() && !name.contains('/') => Ok(Target {
            resource: kind(of)?,
            name: name.to_owned(),
        }),
        _ => Err(Failure::usage(
            format!("{word:?} does not name one object"),
            "write KIND/NAME for each, as in job/llm-70b",
        )),
    }
}

/// Reads `job/NAME` or just `NAME`, which is a job too.
pub(crate) fn job(word: &str) -> Result<Target, Failure> {
    let target = one_or(word, jobs())?;
    if target.resource == jobs() {
        return Ok(target);
    }
    Err(Failure::usage(
        format!("{word:?} is no job"),
        "this command is about jobs: write job/NAME",
    ))
}

/// Reads `KIND/NAME`, or `NAME` of the kind `assumed`.
pub(crate) fn one_or(word: &str, assumed: Resource) -> Result<Target, Failure> {
    if word.contains('/') {
        return slashed(word);
    }
    Ok(Target {
        resource: assumed,
        name: word.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn every_word_for_a_kind_is_understood() {
        for info in kinds::ALL {
            for word in [info.kind, info.plural, info.singular] {
                assert_eq!(kind(word).expect(word).kind, info.kind);
            }
            let full = format!("{}.meridian.dev", info.plural);
            assert_eq!(kind(&full).expect("full name").kind, info.kind);
        }
        for (word, means) in NATURAL {
            assert_eq!(kind(word).expect(word).kind, means);
        }
        for word in super::words() {
            assert!(kind(word).is_ok(), "{word}");
        }
        assert_eq!(kind("NS").expect("a namespace"), Resource::NAMESPACES);
    }

    #[test]
    fn a_slip_of_the_pen_is_answered_with_what_was_meant() {
        let failure = kind("clutsers").expect_err("no such kind");
        let text = failure.report("x").expect("a report");
        assert!(text.contains("did you mean \"clusters\"?"), "{text}");
    }

    #[test]
    fn objects_are_named_in_two_ways() {
        let object = |kind_word: &str, name: &str| Target {
            resource: kind(kind_word).expect("a kind"),
            name: name.into(),
        };
        let cases = [
            ("job a b", vec![object("job", "a"), object("job", "b")]),
            (
                "job/a cluster/b",
                vec![object("job", "a"), object("cluster", "b")],
            ),
        ];
        for (text, want) in cases {
            assert_eq!(parse(&words(text)).expect(text), Targets::Objects(want));
        }
        let kinds = parse(&words("jobs,clusters")).expect("two kinds");
        assert_eq!(
            kinds,
            Targets::Kinds(vec![
                kind("job").expect("a kind"),
                kind("cluster").expect("a kind")
            ])
        );
        for wrong in ["", "job/", "job/a/b", "jobs,clusters a", "job/a b", "x/y"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(job("a").expect("a job"), object("job", "a"));
        assert!(job("cluster/a").is_err());
    }
}
