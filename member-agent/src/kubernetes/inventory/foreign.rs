//! What pods of nobody's gang hold on one node.
//!
//! Owns the sums, kept by adding and taking off exact amounts, so that a change of one pod costs
//! one step and never leaves a rest.

use meridian_api::units::{MilliCpus, MilliGpus, Resources};

use super::host::Share;
use super::pods::Held;
use super::quantity::memory_ceil;

/// What foreign pods hold on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Foreign {
    /// Pods without GPUs.
    plain: Sum,
    /// Pods with GPUs, by vendor.
    by_vendor: Vec<(u8, Sum)>,
    /// Pods with resource claims.
    claims: u32,
}

/// Sums of exact amounts: a node has at most a few hundred pods of at most `u64` each, so they
/// never wrap, and what was added can be taken off again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    cards: u128,
    cpu: u128,
    memory: u128,
}

impl Foreign {
    /// Adds what a pod holds.
    pub(super) fn add(&mut self, held: &Held) {
        self.claims += u32::from(held.claims);
        self.each(held, |sum, part| {
            sum.cards += part.cards;
            sum.cpu += part.cpu;
            sum.memory += part.memory;
        });
    }

    /// Takes off what was added.
    pub(super) fn take_off(&mut self, held: &Held) {
        self.claims -= u32::from(held.claims);
        self.each(held, |sum, part| {
            sum.cards -= part.cards;
            sum.cpu -= part.cpu;
            sum.memory -= part.memory;
        });
        self.by_vendor.retain(|(_, sum)| *sum != Sum::default());
    }

    /// Does something with each sum that a pod is part of. Its CPU and memory are with its first
    /// cards, or plain when it has none.
    fn each(&mut self, held: &Held, mut then: impl FnMut(&mut Sum, Sum)) {
        let host = Sum {
            cards: 0,
            cpu: held.cpu.into(),
            memory: held.memory.into(),
        };
        if held.cards.is_empty() {
            then(&mut self.plain, host);
        }
        for (index, (vendor, cards)) in held.cards.iter().enumerate() {
            let part = Sum {
                cards: (*cards).into(),
                ..if index == 0 { host } else { Sum::default() }
            };
            let at = self.by_vendor.partition_point(|(known, _)| known < vendor);
            if self
                .by_vendor
                .get(at)
                .is_none_or(|(known, _)| known != vendor)
            {
                self.by_vendor.insert(at, (*vendor, Sum::default()));
            }
            then(&mut self.by_vendor[at].1, part);
        }
    }

    /// Pods whose devices nobody here can count.
    pub(super) fn claims(&self) -> u32 {
        self.claims
    }

    /// What falls to one of the shares of a host: what pods with its cards hold, and a part of
    /// what pods without any hold, rounded up. Where a pod has resource claims, all cards: it may
    /// hold any of them.
    pub(super) fn on(&self, shares: &[Share], index: usize) -> Resources {
        let is_here = |vendor: u8| shares.iter().any(|share| share.vendor == vendor);
        let (mut own, mut common) = (Sum::default(), self.plain);
        for (vendor, sum) in &self.by_vendor {
            let of = if *vendor == shares[index].vendor {
                own.cards += sum.cards;
                &mut own
            } else if is_here(*vendor) {
                continue;
            } else {
                &mut common
            };
            of.cpu += sum.cpu;
            of.memory += sum.memory;
        }
        let all: u128 = shares.iter().map(|share| u128::from(share.cards)).sum();
        let part = |amount: u128| match (all, index) {
            (0, 0) => amount,
            (0, _) => 0,
            _ => (amount * u128::from(shares[index].cards)).div_ceil(all),
        };
        if self.claims > 0 {
            own.cards = own.cards.max(shares[index].cards.into());
        }
        let fit = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        Resources {
            gpus: MilliGpus::cards(fit(own.cards)),
            cpu: MilliCpus(fit(own.cpu + part(common.cpu))),
            memory: memory_ceil(own.memory + part(common.memory)),
        }
    }
}
