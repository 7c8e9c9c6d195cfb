//! What is odd about a cluster's nodes, in words for a person.
//!
//! Owns the list of oddities and their texts. A finding never stops anything by itself: what is
//! offered already is on the safe side.

use std::collections::BTreeMap;
use std::fmt;

use meridian_api::validate::MAX_GPUS_PER_HOST;

use super::strings::Name;

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

/// A reason and its text.
pub(super) type Word = (&'static str, String);

/// Names that a text gives; the number says how many there are.
const NAMED: usize = 3;

pub(super) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The first few names, and how many more there are.
pub(super) fn named<'a>(names: impl ExactSizeIterator<Item = &'a Name>) -> String {
    let all = names.len();
    let first: Vec<&str> = names.take(NAMED).map(|name| &**name).collect();
    let text = first.join(", ");
    match all.checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{text} and {more} more"),
        Some(_) | None => text,
    }
}

/// Numbers of nodes per something.
pub(super) fn per_node_counts(counts: &BTreeMap<Name, usize>) -> String {
    let each = counts.iter();
    let each = each.map(|(what, nodes)| format!("{what} on {}", counted(*nodes, "node")));
    each.collect::<Vec<_>>().join(", ")
}

/// What is odd about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// An amount that no machine has.
    Absurd { what: Name, text: Box<str> },
    /// More is allocatable than there is.
    AboveCapacity {
        what: Name,
        allocatable: u64,
        capacity: u64,
    },
    /// More cards than a host can have.
    TooMany { resource: Name, cards: u64 },
    /// The plugin sees fewer cards than the labels say.
    FewerCards {
        resource: Name,
        labelled: u64,
        capacity: u64,
    },
    /// The resource counts more than the cards of the labels: not whole cards of one model.
    NotWhole {
        resource: Name,
        labelled: u64,
        capacity: u64,
    },
    /// The vendor's labels say that the resource does not count whole free cards.
    Withheld { resource: Name, because: Name },
    /// Parts of cards, which are not offered.
    Parts { resource: Name, parts: u64 },
    /// Cards of which nothing says what they are.
    UnknownHardware { resource: Name, cards: u64 },
    /// A product that the table does not name.
    UnknownProduct { flavor: Name, product: Name },
    /// Labels name cards that no plugin offers.
    NoPlugin { resource: Name, flavor: Name },
    /// Cards of several flavors.
    SeveralFlavors { flavors: Name },
    /// A taint or a condition keeps gangs away.
    Closed { by: Name },
    /// The label of a pool holds no name of a pool.
    BadPool { because: Name },
}

impl Oddity {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Absurd { .. } => "AbsurdQuantity",
            Self::AboveCapacity { .. } => "AllocatableAboveCapacity",
            Self::TooMany { .. } => "TooManyGpus",
            Self::FewerCards { .. } => "FewerGpusThanLabelled",
            Self::NotWhole { .. } => "NotWholeGpus",
            Self::Withheld { .. } => "GpusWithheld",
            Self::Parts { .. } => "SlicesNotOffered",
            Self::UnknownHardware { .. } => "UnknownHardware",
            Self::UnknownProduct { .. } => "UnknownProduct",
            Self::NoPlugin { .. } => "NoDevicePlugin",
            Self::SeveralFlavors { .. } => "SeveralFlavors",
            Self::Closed { .. } => "Closed",
            Self::BadPool { .. } => "BadPoolName",
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            Self::Absurd { what, text } => {
                format!("{what} is {text:?}, which is no amount; it counts as nothing")
            }
            Self::AboveCapacity {
                what,
                allocatable,
                capacity,
            } => format!("{what}: {allocatable} allocatable of {capacity}; {capacity} count"),
            Self::TooMany { resource, cards } => format!(
                "{resource} is {cards}, no host has more than {MAX_GPUS_PER_HOST}; none are offered"
            ),
            Self::FewerCards {
                resource,
                labelled,
                capacity,
            } => format!(
                "{resource} is {capacity}, the labels say {labelled}: look whether GPUs are lost"
            ),
            Self::NotWhole {
                resource,
                labelled,
                capacity,
            } => format!(
                "{resource} is {capacity}, the labels say {labelled} GPUs of one product: they are \
                 shared or of several products; none are offered"
            ),
            Self::Withheld { resource, because } => {
                format!("{resource}: {because}; none are offered")
            }
            Self::Parts { resource, parts } => {
                format!("{parts} of {resource} are parts of GPUs, which are not offered")
            }
            Self::UnknownHardware { resource, cards } => format!(
                "{cards} of {resource}, and no label says what they are; none are offered: run the \
                 vendor's feature discovery, or name the node's labels in a file of flavors"
            ),
            Self::UnknownProduct { flavor, product } => format!(
                "the table has no flavor for product {product:?}; it is offered as {flavor:?}"
            ),
            Self::NoPlugin { resource, flavor } => format!(
                "its labels say {flavor}, but {resource} is not there: look at the device plugin"
            ),
            Self::SeveralFlavors { flavors } => format!(
                "it has {flavors}; each is a node of its own pool, with a share of CPU and memory \
                 by its number of GPUs"
            ),
            Self::Closed { by } => {
                format!("closed to gangs by {by}; if it should not be, name it in toleratedTaints")
            }
            Self::BadPool { because } => {
                format!("its pool's name {because}; it is in the pool of its flavor")
            }
        }
    }
}
