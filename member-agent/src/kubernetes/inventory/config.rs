//! What an operator says of his cluster: pools, topology levels, taints and conditions.
//!
//! Owns the form and its checks. Everything has a default that suits a cluster whose nodes carry
//! the labels of their vendor and their cloud. Never says what a GPU is: that is the table's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use meridian_api::kinds::gpu_pool::HOST_LEVEL;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::flavors::{BETWEEN, bad_name};

/// Longest name of a pool that a label or a rule gives; what is left of 63 characters when a
/// flavor and the hyphens before it are added.
pub(super) const MAX_POOL_CHARS: usize = 31;
/// Most levels of a pool: region, zone, building, fabric, block, rack, NVLink domain, and one.
const MAX_LEVELS: usize = 8;
/// Stands for every pool that is not named.
pub(super) const ANY_POOL: &str = "*";
/// Effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// How nodes become pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InventoryConfig {
    /// Which nodes form which pool; the first rule that a node fits decides. A node's own label
    /// `meridian.dev/pool` goes before them, its flavor's name after.
    pub pools: Vec<PoolRule>,
    /// Topology levels of pools; a pool that is not named has the levels of the well-known labels.
    pub levels: Vec<PoolLevels>,
    /// Taints that do not close a node, beside those of the vendors. Pods of gangs tolerate them.
    pub tolerated_taints: Vec<TaintRule>,
    /// Conditions of a node that close it to gangs while they are `True`, such as one that a
    /// health check of GPUs sets. `Ready` needs no mention.
    pub closing_conditions: Vec<String>,
}

/// Nodes with all these labels form this pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolRule {
    /// Name of the pool.
    pub pool: String,
    /// Labels that a node must have; at least one.
    pub node_selector: BTreeMap<String, String>,
}

/// The levels of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolLevels {
    /// Name of the pool; `*` is every pool that is not named.
    pub pool: String,
    /// From the widest inward, without the host; empty = the pool has none.
    pub levels: Vec<LevelLabel>,
}

/// A level and where nodes say their domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LevelLabel {
    /// Name of the level, such as `rack`.
    pub name: String,
    /// Key of the label whose value is the domain.
    pub label: String,
}

/// A taint, as a toleration names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintRule {
    /// Its key.
    pub key: String,
    /// Its value; absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct BadInventoryConfig {
    /// Where, such as `pools[1].nodeSelector`.
    pub path: String,
    /// What, and what to do.
    pub message: String,
}

impl InventoryConfig {
    /// What can be known to be wrong before any node is seen.
    pub fn check(&self) -> Result<(), BadInventoryConfig> {
        let wrong = |path: String, message: String| Err(BadInventoryConfig { path, message });
        for (index, rule) in self.pools.iter().enumerate() {
            if let Some(message) = bad_pool(&rule.pool) {
                return wrong(format!("pools[{index}].pool"), message);
            }
            if rule.node_selector.is_empty() {
                let message = "is empty: name the labels that a node must have".to_owned();
                return wrong(format!("pools[{index}].nodeSelector"), message);
            }
        }
        for (index, pool) in self.levels.iter().enumerate() {
            let path = format!("levels[{index}]");
            let bad = (pool.pool != ANY_POOL)
                .then(|| bad_pool(&pool.pool))
                .flatten();
            if let Some(message) = bad {
                return wrong(format!("{path}.pool"), message);
            }
            if self.levels[..index]
                .iter()
                .any(|other| other.pool == pool.pool)
            {
                return wrong(
                    format!("{path}.pool"),
                    format!("{:?} is there twice", pool.pool),
                );
            }
            check_levels(&path, &pool.levels)?;
        }
        for (index, taint) in self.tolerated_taints.iter().enumerate() {
            let effect = taint.effect.as_deref();
            if effect.is_some_and(|effect| !EFFECTS.contains(&effect)) {
                let message = format!("must be one of {}", EFFECTS.join(", "));
                return wrong(format!("toleratedTaints[{index}].effect"), message);
            }
        }
        Ok(())
    }
}

fn check_levels(path: &str, levels: &[LevelLabel]) -> Result<(), BadInventoryConfig> {
    let wrong = |path: String, message: String| Err(BadInventoryConfig { path, message });
    if levels.len() > MAX_LEVELS {
        let message = format!("has {} levels, at most {MAX_LEVELS} fit", levels.len());
        return wrong(format!("{path}.levels"), message);
    }
    for (index, level) in levels.iter().enumerate() {
        let path = format!("{path}.levels[{index}]");
        if let Some(message) = bad_name(&level.name, MAX_POOL_CHARS) {
            return wrong(format!("{path}.name"), message);
        }
        if level.name == HOST_LEVEL {
            let message = format!("{HOST_LEVEL:?} is below every level already: leave it out");
            return wrong(format!("{path}.name"), message);
        }
        let twice = |other: &LevelLabel| other.name == level.name || other.label == level.label;
        if levels[..index].iter().any(twice) {
            return wrong(
                path,
                "repeats the name or the label of another level".to_owned(),
            );
        }
        if level.label.is_empty() {
            return wrong(format!("{path}.label"), "is empty".to_owned());
        }
    }
    Ok(())
}

/// What keeps a text from being the name of a pool; `None` = nothing.
pub(super) fn bad_pool(name: &str) -> Option<String> {
    bad_name(name, MAX_POOL_CHARS)
}

/// The name of a pool whose plain name is that of nodes of another flavor.
pub(super) fn pool_beside(claim: &str, flavor: &str) -> String {
    format!("{claim}{BETWEEN}{flavor}")
}

impl TaintRule {
    /// True when this rule is for that taint.
    pub(super) fn is_for(&self, taint: &Taint) -> bool {
        let value = taint.value.as_deref().unwrap_or_default();
        self.key == taint.key
            && self.value.as_deref().is_none_or(|own| own == value)
            && self.effect.as_deref().is_none_or(|own| own == taint.effect)
    }

    /// The same as pods write it.
    pub(super) fn toleration(&self) -> Toleration {
        let operator = if self.value.is_some() {
            "Equal"
        } else {
            "Exists"
        };
        Toleration {
            key: Some(self.key.clone()),
            operator: Some(operator.to_owned()),
            value: self.value.clone(),
            effect: self.effect.clone(),
            toleration_seconds: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pool: &str) -> PoolRule {
        PoolRule {
            pool: pool.to_owned(),
            node_selector: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
        }
    }

    fn levels(pool: &str, levels: &[(&str, &str)]) -> PoolLevels {
        let level = |(name, label): &(&str, &str)| LevelLabel {
            name: (*name).to_owned(),
            label: (*label).to_owned(),
        };
        PoolLevels {
            pool: pool.to_owned(),
            levels: levels.iter().map(level).collect(),
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let good = InventoryConfig {
            pools: vec![rule("train")],
            levels: vec![
                levels("train", &[("row", "dc/row"), ("rack", "dc/rack")]),
                levels(ANY_POOL, &[]),
            ],
            ..InventoryConfig::default()
        };
        assert_eq!(good.check(), Ok(()));
        let fault = |change: fn(&mut InventoryConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().expect_err("wrong").to_string()
        };
        let text = fault(|config| config.pools[0].pool = "Train".into());
        assert!(text.starts_with("pools[0].pool: \"Train\""), "{text}");
        let text = fault(|config| config.pools[0].pool = "a--b".into());
        assert!(text.contains("separates"), "{text}");
        let text = fault(|config| config.pools[0].pool = "a".repeat(32));
        assert!(text.contains("32 characters, at most 31"), "{text}");
        let text = fault(|config| config.pools[0].node_selector.clear());
        assert!(text.starts_with("pools[0].nodeSelector"), "{text}");
        let text = fault(|config| config.levels[0].levels[1].name = "host".into());
        assert!(text.starts_with("levels[0].levels[1].name"), "{text}");
        let text = fault(|config| config.levels[0].levels[1].label = "dc/row".into());
        assert!(text.contains("repeats"), "{text}");
        let text = fault(|config| config.levels[1].pool = "train".into());
        assert!(text.contains("twice"), "{text}");
        let text = fault(|config| {
            config.tolerated_taints = vec![TaintRule {
                key: "a".into(),
                value: None,
                effect: Some("Never".into()),
            }];
        });
        assert!(
            text.contains("NoSchedule, PreferNoSchedule, NoExecute"),
            "{text}"
        );
    }

    #[test]
    fn a_rule_tolerates_what_its_toleration_does() {
        let taint = |value: Option<&str>, effect: &str| Taint {
            key: "sku".into(),
            value: value.map(str::to_owned),
            effect: effect.into(),
            time_added: None,
        };
        let any = TaintRule {
            key: "sku".into(),
            value: None,
            effect: None,
        };
        assert!(any.is_for(&taint(Some("gpu"), "NoSchedule")));
        assert_eq!(any.toleration().operator.as_deref(), Some("Exists"));
        let one = TaintRule {
            value: Some("gpu".into()),
            effect: Some("NoSchedule".into()),
            ..any.clone()
        };
        assert!(one.is_for(&taint(Some("gpu"), "NoSchedule")));
        assert!(!one.is_for(&taint(Some("cpu"), "NoSchedule")));
        assert!(!one.is_for(&taint(Some("gpu"), "NoExecute")));
        assert!(!one.is_for(&taint(None, "NoSchedule")));
        assert_eq!(one.toleration().operator.as_deref(), Some("Equal"));
    }
}
