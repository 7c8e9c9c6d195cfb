//! The table of flavors: which extended resource and labels are which hardware of the fleet.
//!
//! Owns the form of the table, its checks and its look-ups. The shipped table is `flavors.yaml`;
//! a user's document of the same form goes before it. Never knows a node's state.

/// What is wrong with a table of flavors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlavorError {
    /// Not YAML of this form.
    #[error("not a table of flavors: {0}")]
    Malformed(String),
}

/// Vendors and flavors.
#[derive(Clone, Debug)]
pub struct FlavorTable {}

impl FlavorTable {
    /// The table that ships.
    #[must_use]
    pub fn shipped() -> Self {
        Self {}
    }

    /// This table with a user's document before it: his flavors are looked at first, and a vendor
    /// that he names replaces the one of that resource.
    pub fn extended_by(self, yaml: &str) -> Result<Self, FlavorError> {
        let _ = yaml;
        Ok(self)
    }

    /// The extended resource of a flavor.
    #[must_use]
    pub fn resource_of(&self, flavor: &str) -> Option<&str> {
        let _ = flavor;
        None
    }
}
