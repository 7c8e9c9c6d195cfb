//! The public tables that ship with the simulator, each as a fleet, policies and jobs.
//!
//! Owns what a table does not say and a simulation needs: gang shapes, classes, quotas, hosts. Each
//! such choice is told where it is made. Where the tables come from and under which licence is in
//! `data/README.md`. Never changes what a table says.

pub mod helios;
pub mod openb;
pub mod philly;

use std::collections::BTreeMap;
use std::io::Read as _;

use meridian_api::document;
use meridian_api::kinds::tenant::TenantSpec;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::rules::{self, Rules};
use crate::table::TableError;
use crate::trace::{HostsUp, Job};

/// A table with everything that a simulation of it needs.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its name, for errors.
    pub name: &'static str,
    /// Tenants, quotas and classes.
    pub rules: Rules,
    /// Where its jobs run.
    pub fleet: Fleet,
    /// Its jobs, by submission.
    pub jobs: Vec<Job>,
    /// Hosts that go and come, as far as it tells.
    pub hosts: Vec<HostsUp>,
}

/// The text of a packed table.
fn unpack(file: &str, packed: &[u8]) -> Result<Vec<u8>, TableError> {
    let mut text = Vec::new();
    let read = flate2::read::GzDecoder::new(packed).read_to_end(&mut text);
    read.map_err(|error| TableError::Malformed {
        file: file.to_owned(),
        line: 0,
        message: error.to_string(),
    })?;
    Ok(text)
}

/// The classes that ship, and a tree of one root that owns `fleet` cards with these tenants below
/// it, each with its nominal quota in whole cards. Who has no work lends everything, and a borrower
/// may borrow everything.
fn rules(root: &str, fleet: u64, nominal: &BTreeMap<String, u64>) -> Rules {
    let shipped = include_bytes!("../../defaults/classes.yaml");
    let shipped = document::parse(shipped).expect("the defaults are tested");
    let named = shipped.iter().map(|document| ("classes", &document.value));
    let mut rules = Rules::read(named).expect("the defaults are tested");
    let mut add = |tenant: &str, spec: &Value, nominal: u64| {
        rules
            .tenants
            .push(rules::object::<TenantSpec>(tenant, spec));
        let quota = json!({"tenant": tenant, "resources": [{"nominal": nominal}]});
        rules
            .quotas
            .push(rules::object::<TenantQuotaSpec>(tenant, &quota));
    };
    add(root, &json!({}), fleet);
    for (tenant, cards) in nominal {
        add(tenant, &json!({"parent": root}), *cards);
    }
    rules
        .tenants
        .sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    rules
        .quotas
        .sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    rules
}
