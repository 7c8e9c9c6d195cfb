//! What is odd about a cluster's nodes, in words for a person.
//!
//! Owns the list of oddities. A finding never stops anything by itself: what is offered already is
//! on the safe side.

use std::fmt;

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A pool.
    Pool(String),
    /// A node of the cluster.
    Node(String),
}

/// One oddity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// What it is about.
    pub subject: Subject,
    /// A word from a closed list, for metrics and filters.
    pub reason: &'static str,
    /// What, with numbers, and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.subject {
            Subject::Pool(name) => ("pool", name),
            Subject::Node(name) => ("node", name),
        };
        write!(f, "{kind} {name}: {} ({})", self.message, self.reason)
    }
}
