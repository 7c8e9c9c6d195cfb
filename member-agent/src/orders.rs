//! The hub's orders, checked: from wire messages to what the agent acts on.
//!
//! Owns the checks of one placement intent and the pod templates of a session. What comes in is
//! never trusted: whatever is missing, malformed or unknown is an error that names it. Never
//! looks at fences (see `fences`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use meridian_api::units::{Millis, Resources};
use meridian_policies::model::{GangShape, RoleShape, SliceShape};
use meridian_proto::convert::{self, Malformed};
use meridian_proto::v1;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::backend::{
    Carried, Dependency, DependencyKind, GangKey, GangTerms, Origin, RoleOrder, Success, Workload,
};

/// Most pods of one gang: the largest jobs published ran on some 24,000 GPUs, with a pod per GPU.
const MAX_PODS: u64 = 32_768;
/// Most roles of one gang.
const MAX_ROLES: usize = 64;
/// Templates of one intent, in bytes: the limit of a message.
const MAX_TEMPLATE_BYTES: usize = 64 * 1024 * 1024;
/// From acceptance to running when the order does not say: images of tens of gigabytes come in.
const DEFAULT_PLACE_TIMEOUT: Millis = Millis::seconds(600);
/// From SIGTERM to SIGKILL when the order does not say, as in Kubernetes.
pub(crate) const DEFAULT_GRACE: Millis = Millis::seconds(30);

/// Longest notice that is given, as classes may name it.
const MAX_NOTICE: Millis = meridian_api::kinds::workload_class::MAX_NOTICE;

/// A gang to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunOrder {
    /// Which, under which epoch.
    pub(crate) key: GangKey,
    /// Its terms, pool included.
    pub(crate) terms: GangTerms,
    /// What must start together.
    pub(crate) shape: GangShape,
    /// Pods per role.
    pub(crate) pods: Vec<u32>,
    /// What the pods are made from.
    pub(crate) roles: Vec<RoleOrder>,
    /// From acceptance to running.
    pub(crate) place_timeout: Millis,
    /// Labels of every pod.
    pub(crate) labels: IndexMap<String, String>,
    /// What the job says beside its pods.
    pub(crate) workload: Workload,
    /// W3C trace context of the submit.
    pub(crate) traceparent: String,
    /// Role, host by number, and how many pods leave it first when they get fewer.
    pub(crate) leaves: Vec<(usize, u64, u32)>,
    /// Hosts that are kept for others, by number: it is not placed there.
    pub(crate) kept_hosts: BTreeSet<u64>,
}

/// What the hub wants of one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It runs.
    Run(Box<RunOrder>),
    /// It is stopped.
    Stop {
        /// Which, under which epoch.
        key: GangKey,
        /// From SIGTERM to SIGKILL, when other than the gang's own.
        grace: Option<Millis>,
        /// Why, from the closed list of reasons.
        reason: String,
        /// It may save its work for so long before it is stopped.
        notice: Millis,
    },
}

/// An order that cannot be understood. It has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadOrder {
    /// A part is missing or wrong.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A role's template did not come with the order.
    #[error("role {role:?} names template {hash}, which was not sent with it")]
    UnknownTemplate {
        /// The role.
        role: String,
        /// The hash, in hexadecimal.
        hash: String,
    },
    /// A template is not what its hash says.
    #[error("template {claimed} has hash {found}")]
    WrongHash {
        /// The hash that was sent.
        claimed: String,
        /// The hash of what was sent.
        found: String,
    },
    /// A template is not a JSON object.
    #[error("template {0} is not a JSON object")]
    NotAnObject(String),
    /// Too many or too large templates for one intent.
    #[error("templates of this intent exceed {MAX_TEMPLATE_BYTES} bytes")]
    TooManyTemplates,
    /// What the gang brings along did not come with the order.
    #[error("the gang carries document {0}, which was not sent with it")]
    UnknownCarried(String),
    /// What the gang brings along is not understood.
    #[error("the document {0} that the gang carries is wrong: {1}")]
    MalformedCarried(String, String),
    /// A rule names no role of the gang.
    #[error("a rule for role {0:?}, which the gang does not have")]
    UnknownRole(String),
}

/// Most ConfigMaps that a job may carry, and most things that it may depend on: more than any
/// job's author would write by hand.
const MAX_NAMED: usize = 128;

/// Pod templates of one intent, by SHA-256 of their canonical JSON.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    known: BTreeMap<[u8; 32], Arc<Value>>,
    bytes: usize,
}

impl Templates {
    /// Takes one; the same again changes nothing.
    pub(crate) fn take(&mut self, template: &v1::Template) -> Result<(), BadOrder> {
        let found: [u8; 32] = Sha256::digest(&template.json).into();
        if template.sha256.as_ref() != found {
            let (claimed, found) = (hex(&template.sha256), hex(&found));
            return Err(BadOrder::WrongHash { claimed, found });
        }
        if self.known.contains_key(&found) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(template.json.len());
        if self.bytes > MAX_TEMPLATE_BYTES {
            return Err(BadOrder::TooManyTemplates);
        }
        let value: Value = serde_json::from_slice(&template.json)
            .map_err(|_| BadOrder::NotAnObject(hex(&found)))?;
        if !value.is_object() {
            return Err(BadOrder::NotAnObject(hex(&found)));
        }
        self.known.insert(found, Arc::new(value));
        Ok(())
    }

    fn get(&self, role: &v1::RoleIntent) -> Result<Arc<Value>, BadOrder> {
        let known = self.document(&role.template_sha256);
        known.ok_or_else(|| BadOrder::UnknownTemplate {
            role: role.name.clone(),
            hash: hex(&role.template_sha256),
        })
    }

    fn document(&self, hash: &[u8]) -> Option<Arc<Value>> {
        let hash = <[u8; 32]>::try_from(hash).ok()?;
        self.known.get(&hash).cloned()
    }

    /// What a gang brings along.
    fn carried(&self, hash: &[u8]) -> Result<Vec<Carried>, BadOrder> {
        if hash.is_empty() {
            return Ok(Vec::new());
        }
        let document = self.document(hash);
        let document = document.ok_or_else(|| BadOrder::UnknownCarried(hex(hash)))?;
        let carried: CarriedDocument = serde_json::from_value(Value::clone(&document))
            .map_err(|error| BadOrder::MalformedCarried(hex(hash), error.to_string()))?;
        at_most(carried.config_maps.len(), "placement.carried")?;
        Ok(carried.config_maps)
    }
}

/// The gang and epoch that an intent is about.
pub(crate) fn key(placement: &v1::PlacementIntent) -> Result<GangKey, Malformed> {
    Ok(GangKey {
        gang: convert::gang(placement.gang.as_ref())?,
        epoch: convert::epoch(placement.epoch)?,
    })
}

/// Checks one placement intent.
pub(crate) fn wish(
    placement: &v1::PlacementIntent,
    templates: &Templates,
) -> Result<Wish, BadOrder> {
    let key = key(placement)?;
    let grace = nonzero(placement.grace_ms);
    match placement.desired() {
        v1::Desired::Run => {
            let grace = grace.unwrap_or(DEFAULT_GRACE);
            run(key, grace, placement, templates).map(|order| Wish::Run(Box::new(order)))
        }
        v1::Desired::Stop => Ok(Wish::Stop {
            key,
            grace,
            reason: placement.stop_reason.clone(),
            notice: Millis(placement.notice_ms).min(MAX_NOTICE),
        }),
        v1::Desired::Unspecified => Err(Malformed::Missing("desired").into()),
    }
}

/// Fewest pods that a role goes on with: all of them, unless the order says otherwise.
fn least(role: &v1::RoleIntent) -> Result<u32, BadOrder> {
    if role.step == 0 {
        return Ok(role.pods);
    }
    let fits =
        role.min > 0 && role.min <= role.pods && (role.pods - role.min).is_multiple_of(role.step);
    if fits {
        return Ok(role.min);
    }
    let wrong = Malformed::Wrong {
        what: "placement.roles.min",
        found: format!("{} in steps of {}", role.min, role.step),
        expected: "a size from 1 from which the steps lead to the role's pods",
    };
    Err(wrong.into())
}

fn run(
    key: GangKey,
    grace: Millis,
    placement: &v1::PlacementIntent,
    templates: &Templates,
) -> Result<RunOrder, BadOrder> {
    check_size(placement)?;
    let mut shapes = Vec::new();
    let mut roles = Vec::new();
    for role in &placement.roles {
        let request: Resources = role
            .per_pod
            .ok_or(Malformed::Missing("placement.roles.per_pod"))?
            .into();
        roles.push(RoleOrder {
            name: role.name.clone(),
            request,
            template: templates.get(role)?,
        });
        shapes.push(RoleShape {
            name: role.name.clone(),
            per_pod: request,
            min: least(role)?,
            max: role.pods,
            step: role.step.max(1),
            required: None,
            preferred: None,
            slice: None,
        });
    }
    for rule in &placement.topology {
        let shape = shapes.iter_mut().find(|shape| shape.name == rule.role);
        let shape = shape.ok_or_else(|| BadOrder::UnknownRole(rule.role.clone()))?;
        let level = |name: &String| (!name.is_empty()).then(|| name.clone());
        (shape.required, shape.preferred) = (level(&rule.required), level(&rule.preferred));
        shape.slice = level(&rule.slice_required)
            .filter(|_| rule.slice_size > 0)
            .map(|level| SliceShape {
                pods: rule.slice_size,
                level,
            });
    }
    Ok(RunOrder {
        key,
        terms: GangTerms {
            pool: placement.pool.clone(),
            namespace: placement.namespace.clone(),
            job: placement.job.clone(),
            grace,
            max_runtime: nonzero(placement.max_runtime_ms),
            success: success(placement)?,
        },
        shape: GangShape { roles: shapes },
        pods: placement.roles.iter().map(|role| role.pods).collect(),
        roles,
        place_timeout: nonzero(placement.place_timeout_ms).unwrap_or(DEFAULT_PLACE_TIMEOUT),
        labels: placement.labels.clone().into_iter().collect(),
        workload: workload(placement, templates)?,
        traceparent: placement.traceparent.clone(),
        leaves: leaves(placement)?,
        kept_hosts: kept_hosts(placement)?,
    })
}

fn kept_hosts(placement: &v1::PlacementIntent) -> Result<BTreeSet<u64>, Malformed> {
    let hosts = &placement.kept_hosts;
    if hosts.len() as u64 > MAX_PODS {
        return Err(Malformed::Wrong {
            what: "placement.kept_hosts",
            found: hosts.len().to_string(),
            expected: "at most 32768",
        });
    }
    Ok(hosts.iter().copied().collect())
}

/// Where pods leave first when a role gets smaller.
fn leaves(placement: &v1::PlacementIntent) -> Result<Vec<(usize, u64, u32)>, Malformed> {
    let roles = placement.roles.iter().enumerate();
    let all = roles.flat_map(|(at, role)| role.leaves.iter().map(move |it| (at, it.host, it.pods)));
    let all: Vec<(usize, u64, u32)> = all.collect();
    if all.len() as u64 > MAX_PODS {
        return Err(Malformed::Wrong {
            what: "placement.roles.leaves",
            found: all.len().to_string(),
            expected: "at most 32768",
        });
    }
    Ok(all)
}

/// What the job says beside its pods.
fn workload(placement: &v1::PlacementIntent, templates: &Templates) -> Result<Workload, BadOrder> {
    let checkpoint = placement.checkpoint.clone().unwrap_or_default();
    let dependencies = placement.dependencies.iter().map(dependency);
    at_most(placement.dependencies.len(), "placement.dependencies")?;
    Ok(Workload {
        tenant: placement.tenant.clone(),
        class: placement.workload_class.clone(),
        priority: placement.priority,
        flavor: placement.flavor.clone(),
        checkpoint_uri: checkpoint.uri,
        resume_env: checkpoint.resume_env,
        stop_signal: checkpoint.signal,
        dependencies: dependencies.collect::<Result<_, Malformed>>()?,
        carried: templates.carried(&placement.carried_sha256)?,
        origin: placement.origin.as_ref().map(|origin| Origin {
            uid: origin.uid.clone(),
            namespace: origin.namespace.clone(),
            name: origin.name.clone(),
        }),
    })
}

/// What makes it a success; a leader must be one of its roles.
fn success(placement: &v1::PlacementIntent) -> Result<Success, BadOrder> {
    let leader = placement.success.as_ref().map(|s| s.leader_role.as_str());
    let Some(leader) = leader.filter(|role| !role.is_empty()) else {
        return Ok(Success::All);
    };
    if !placement.roles.iter().any(|role| role.name == leader) {
        return Err(BadOrder::UnknownRole(leader.to_owned()));
    }
    Ok(Success::Leader {
        role: leader.to_owned(),
    })
}

fn dependency(dependency: &v1::Dependency) -> Result<Dependency, Malformed> {
    let kind = match dependency.kind() {
        v1::DependencyKind::ConfigMap => DependencyKind::ConfigMap,
        v1::DependencyKind::Secret | v1::DependencyKind::ImagePullSecret => DependencyKind::Secret,
        v1::DependencyKind::ServiceAccount => DependencyKind::ServiceAccount,
        v1::DependencyKind::PersistentVolumeClaim => DependencyKind::PersistentVolumeClaim,
        v1::DependencyKind::Unspecified => {
            return Err(Malformed::Missing("placement.dependencies.kind"));
        }
    };
    if dependency.name.is_empty() {
        return Err(Malformed::Missing("placement.dependencies.name"));
    }
    let name = dependency.name.clone();
    Ok(Dependency { kind, name })
}

fn at_most(count: usize, what: &'static str) -> Result<(), Malformed> {
    if count <= MAX_NAMED {
        return Ok(());
    }
    Err(Malformed::Wrong {
        what,
        found: count.to_string(),
        expected: "at most 128",
    })
}

/// The document of what a gang brings along.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct CarriedDocument {
    config_maps: Vec<Carried>,
}

fn check_size(placement: &v1::PlacementIntent) -> Result<(), Malformed> {
    let wrong = |what, found: String, expected| Malformed::Wrong {
        what,
        found,
        expected,
    };
    if placement.pool.is_empty() {
        return Err(Malformed::Missing("placement.pool"));
    }
    let pods: u64 = placement
        .roles
        .iter()
        .map(|role| u64::from(role.pods))
        .sum();
    if pods == 0 || pods > MAX_PODS {
        return Err(wrong(
            "placement.roles.pods",
            pods.to_string(),
            "1 to 32768 pods in all",
        ));
    }
    if placement.roles.len() > MAX_ROLES {
        let found = placement.roles.len().to_string();
        return Err(wrong("placement.roles", found, "at most 64"));
    }
    let mut names: Vec<&str> = placement
        .roles
        .iter()
        .map(|role| role.name.as_str())
        .collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(wrong(
            "placement.roles.name",
            pair[0].to_owned(),
            "named once",
        )),
        None => Ok(()),
    }
}

fn nonzero(millis: u64) -> Option<Millis> {
    (millis > 0).then_some(Millis(millis))
}

/// Bytes in hexadecimal, at most a hash long.
fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(32)
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(json: &str) -> v1::Template {
        let sha256 = Sha256::digest(json).to_vec().into();
        v1::Template {
            sha256,
            json: json.as_bytes().to_vec().into(),
        }
    }

    fn placement(template: &v1::Template) -> v1::PlacementIntent {
        let per_pod = Some(v1::Resources {
            milli_gpus: 8000,
            milli_cpus: 1,
            memory_mib: 1,
        });
        v1::PlacementIntent {
            gang: Some(v1::Gang {
                job: vec![7; 16].into(),
                index: 0,
            }),
            epoch: 1,
            desired: v1::Desired::Run.into(),
            pool: "h100".to_owned(),
            roles: vec![v1::RoleIntent {
                name: "worker".to_owned(),
                pods: 4,
                per_pod,
                template_sha256: template.sha256.clone(),
                ..v1::RoleIntent::default()
            }],
            ..v1::PlacementIntent::default()
        }
    }

    #[test]
    fn a_whole_order_is_understood() {
        let (mut templates, json) = (Templates::default(), template("{\"spec\":{}}"));
        templates.take(&json).expect("its hash is right");
        let Ok(Wish::Run(order)) = wish(&placement(&json), &templates) else {
            panic!("understood")
        };
        assert_eq!((order.pods, order.terms.grace), (vec![4], DEFAULT_GRACE));
        assert_eq!(order.place_timeout, DEFAULT_PLACE_TIMEOUT);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (mut templates, json) = (Templates::default(), template("{}"));
        let unknown = wish(&placement(&json), &templates).expect_err("never sent");
        assert!(matches!(unknown, BadOrder::UnknownTemplate { .. }));
        let forged = v1::Template {
            json: b"{ }".to_vec().into(),
            ..json.clone()
        };
        assert!(matches!(
            templates.take(&forged),
            Err(BadOrder::WrongHash { .. })
        ));
        assert!(matches!(
            templates.take(&template("7")),
            Err(BadOrder::NotAnObject(_))
        ));
        templates.take(&json).expect("its hash is right");
        let bad = |change: fn(&mut v1::PlacementIntent)| {
            let mut placement = placement(&json);
            change(&mut placement);
            wish(&placement, &templates).expect_err("wrong").to_string()
        };
        assert_eq!(bad(|p| p.epoch = 0), "epoch is missing");
        assert_eq!(bad(|p| p.desired = 0), "desired is missing");
        assert_eq!(bad(|p| p.pool.clear()), "placement.pool is missing");
        assert!(bad(|p| p.roles[0].pods = 0).contains("1 to 32768"));
        assert!(bad(|p| p.roles.push(p.roles[0].clone())).contains("named once"));
        let rule = "a rule for role \"x\", which the gang does not have";
        let other = |p: &mut v1::PlacementIntent| {
            p.topology = vec![v1::TopologyRule {
                role: "x".to_owned(),
                ..Default::default()
            }];
        };
        assert_eq!(bad(other), rule);
    }

    #[test]
    fn what_surrounds_the_pods_is_understood_too() {
        let (mut templates, json) = (Templates::default(), template("{}"));
        let carried = template("{\"configMaps\":[{\"name\":\"a\",\"data\":{\"k\":\"v\"}}]}");
        let wrong = template("{\"configMaps\":7}");
        for template in [&json, &carried, &wrong] {
            templates.take(template).expect("its hash is right");
        }
        let mut placement = placement(&json);
        placement.success = Some(v1::Success {
            leader_role: "worker".to_owned(),
        });
        placement.dependencies = vec![v1::Dependency {
            kind: v1::DependencyKind::ImagePullSecret.into(),
            name: "registry".to_owned(),
        }];
        placement.carried_sha256 = carried.sha256.clone();
        placement.topology = vec![v1::TopologyRule {
            role: "worker".to_owned(),
            slice_size: 2,
            slice_required: "host".to_owned(),
            ..v1::TopologyRule::default()
        }];
        let Ok(Wish::Run(order)) = wish(&placement, &templates) else {
            panic!("understood")
        };
        let role = "worker".to_owned();
        assert_eq!(order.terms.success, Success::Leader { role });
        let slice = order.shape.roles[0].slice.as_ref().expect("it has some");
        assert_eq!((slice.pods, slice.level.as_str()), (2, "host"));
        let workload = &order.workload;
        assert_eq!(workload.dependencies[0].to_string(), "Secret registry");
        assert_eq!(workload.carried[0].data["k"], "v");
        let bad = |change: fn(&mut v1::PlacementIntent)| {
            let mut placement = placement.clone();
            change(&mut placement);
            wish(&placement, &templates).expect_err("wrong").to_string()
        };
        let unknown = bad(|p| p.carried_sha256 = vec![9; 32].into());
        assert!(unknown.contains("was not sent"), "{unknown}");
        let other = bad(|p| p.success.as_mut().expect("set").leader_role = "x".to_owned());
        assert!(other.contains("\"x\""), "{other}");
        assert!(bad(|p| p.dependencies[0].kind = 0).contains("dependencies.kind"));
        let many = bad(|p| p.dependencies = vec![p.dependencies[0].clone(); 129]);
        assert!(many.contains("129"), "{many}");
        placement.carried_sha256 = wrong.sha256;
        let wrong = wish(&placement, &templates).expect_err("wrong").to_string();
        assert!(wrong.contains("that the gang carries"), "{wrong}");
    }
}
