//! Typical shapes: what the fleet's pods usually ask for, and the free room they could not use.
//!
//! Owns the measure of fragmentation: the GPUs of a host that are free and yet of no use to the
//! pods that are likely to come, after "Beware of Fragmentation" (Weng et al., ATC 2023). All in
//! integers. Never looks at a placement.

use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Resources};

/// Weights of all shapes together.
const WEIGHT: u64 = 1000;

/// Shapes that count. Popularity falls off steeply (35 kinds make up 95 % of the pods of the
/// paper's trace), and each is looked at for each kind of host.
const MOST_SHAPES: usize = 16;

/// Kinds of pods that are counted: the differing requests of a fleet, twenty times over. Further
/// ones wait until one of these is gone.
const MOST_COUNTED: usize = 1024;

/// Cards of a host up to which whole ones are looked up: the largest hosts in use have 16.
const CARDS: usize = 17;

/// Share of the pods that the typical shapes make up, in thousandths (the paper's 95 %).
const COVERED: u128 = 950;

/// What pods usually ask for, each with its weight; the weights sum to at most 1000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typical {
    shapes: Vec<(Resources, u64)>,
    /// Of hosts with so many whole cards free, where nothing but GPUs is asked for: what a typical
    /// pod could not use is asked for each kind of host that a search looks at.
    by_cards: Option<[u64; CARDS]>,
}

impl Default for Typical {
    /// Pods of 8, 4, 2 and 1 GPUs at 62 : 13 : 13 : 12. Jobs of 8 and more GPUs use 62 % of the
    /// GPU-hours of the Philly trace; the rest is taken as spread evenly.
    fn default() -> Self {
        let pod = |gpus, weight| {
            let request = Resources {
                gpus: MilliGpus::cards(gpus),
                ..Resources::default()
            };
            (request, weight)
        };
        Self::new(vec![pod(8, 620), pod(4, 130), pod(2, 130), pod(1, 120)])
    }
}

impl Typical {
    fn new(shapes: Vec<(Resources, u64)>) -> Self {
        let mut own = Self {
            shapes,
            by_cards: None,
        };
        let is_gpus = |(it, _): &(Resources, u64)| (it.cpu.0, it.memory.0) == (0, 0);
        if own.shapes.iter().all(is_gpus) {
            let mut known = [0; CARDS];
            for (cards, unusable) in (0..).zip(&mut known) {
                *unusable = own.unusable(Resources {
                    gpus: MilliGpus::cards(cards),
                    ..Resources::default()
                });
            }
            own.by_cards = Some(known);
        }
        own
    }

    /// GPUs (thousandths) of a host with `free` room that a typical pod could not use, times 1000:
    /// for each shape what is left over once as many as fit are there, by weight. A shape without
    /// GPUs uses none.
    #[must_use]
    pub fn unusable(&self, free: Resources) -> u64 {
        let gpus = free.gpus.0;
        if gpus == 0 {
            return 0;
        }
        if let Some(known) = &self.by_cards
            && gpus.is_multiple_of(1000)
            && let Some(known) = usize::try_from(gpus / 1000)
                .ok()
                .and_then(|it| known.get(it))
        {
            return *known;
        }
        self.shapes.iter().fold(0, |sum, &(shape, weight)| {
            let used = if shape.gpus.0 == 0 {
                0
            } else {
                free.times(shape) * shape.gpus.0
            };
            sum + (gpus - used).saturating_mul(weight)
        })
    }
}

/// Pods that run or wait, by what each asks for: the source of the typical shapes, kept as pods
/// come and go.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pods: BTreeMap<Resources, u64>,
}

impl Asked {
    /// Counts `pods` pods that ask for `request` each.
    pub fn add(&mut self, request: Resources, pods: u64) {
        if self.pods.len() < MOST_COUNTED || self.pods.contains_key(&request) {
            let counted = self.pods.entry(request).or_default();
            *counted = counted.saturating_add(pods);
        }
    }

    /// Takes back what was counted.
    pub fn remove(&mut self, request: Resources, pods: u64) {
        if let Some(counted) = self.pods.get_mut(&request) {
            *counted = counted.saturating_sub(pods);
            if *counted == 0 {
                self.pods.remove(&request);
            }
        }
    }

    /// The most asked for until 95 % of the pods are covered, at most 16, weighted by their
    /// number; the default when nothing is counted.
    #[must_use]
    pub fn typical(&self) -> Typical {
        let mut ranked: Vec<(u64, Resources)> = self.pods.iter().map(|(it, n)| (*n, *it)).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let sum =
            |rows: &[(u64, Resources)]| rows.iter().map(|row| u128::from(row.0)).sum::<u128>();
        let all = sum(&ranked);
        let enough = (1..=ranked.len()).find(|&n| sum(&ranked[..n]) * 1000 >= all * COVERED);
        ranked.truncate(enough.unwrap_or(0).min(MOST_SHAPES));
        let chosen = sum(&ranked);
        if chosen == 0 {
            return Typical::default();
        }
        let weigh = |(pods, shape): (u64, Resources)| {
            let weight = u128::from(pods) * u128::from(WEIGHT) / chosen;
            (shape, u64::try_from(weight).unwrap_or(WEIGHT))
        };
        Typical::new(ranked.into_iter().map(weigh).collect())
    }
}

#[cfg(test)]
mod tests {
    use meridian_api::units::{Mebibytes, MilliCpus};

    use super::*;

    fn room(gpus: u64, cpu: u64) -> Resources {
        Resources {
            gpus: MilliGpus::cards(gpus),
            cpu: MilliCpus(cpu),
            memory: Mebibytes(0),
        }
    }

    #[test]
    fn a_whole_host_is_of_use_to_all_and_an_odd_card_to_few() {
        let typical = Typical::default();
        assert_eq!(typical.unusable(room(8, 0)), 0);
        assert_eq!(typical.unusable(room(0, 9)), 0);
        // Three cards: none for 8 and 4, one left by a pair.
        let three = 3000 * 620 + 3000 * 130 + 1000 * 130;
        assert_eq!(typical.unusable(room(3, 0)), three);
    }

    #[test]
    fn cards_without_cpu_are_of_no_use() {
        let mut asked = Asked::default();
        asked.add(room(1, 8), 10);
        assert_eq!(asked.typical().unusable(room(4, 16)), 2000 * WEIGHT);
    }

    #[test]
    fn rare_shapes_do_not_count() {
        let mut asked = Asked::default();
        asked.add(room(1, 0), 960);
        asked.add(room(8, 0), 40);
        assert_eq!(asked.typical().shapes, [(room(1, 0), WEIGHT)]);
        asked.remove(room(1, 0), 960);
        assert_eq!(asked.typical().shapes, [(room(8, 0), WEIGHT)]);
        asked.remove(room(8, 0), 40);
        assert_eq!(asked.typical(), Typical::default());
    }
}
