//! Reservations beside each other: how many hosts of a pool are spoken for at once.
//!
//! Owns the sum over time. Pure: the caller has found the pools, the others and their windows.

use super::FOREVER;
use crate::kinds::time_window::Opening;
use crate::units::{Millis, UnixMillis};

/// How far ahead recurring reservations are compared: both changes of the clock are in it.
pub const HORIZON: Millis = Millis(371 * 24 * 3_600_000);

/// Hosts of one pool at set times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Name of the reservation.
    pub name: String,
    /// Its hosts.
    pub hosts: u32,
    /// When, in order, without overlap.
    pub spans: Vec<Opening>,
}

impl Claim {
    /// The span that holds at `at`.
    #[must_use]
    pub fn at(&self, at: UnixMillis) -> Option<Opening> {
        let after = self.spans.partition_point(|span| span.from <= at);
        let last = after.checked_sub(1).map(|before| self.spans[before])?;
        (last.until > at).then_some(last)
    }
}

/// The time at which most hosts are spoken for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Hosts of all claims that hold then.
    pub hosts: u64,
    /// From then on.
    pub from: UnixMillis,
    /// Until the first of them ends.
    pub until: UnixMillis,
    /// Their names, in order.
    pub names: Vec<String>,
}

/// The time within `spans` at which `others` speak for most hosts; the first such, and none of
/// them holds when the peak has no names.
#[must_use]
pub fn peak(spans: &[Opening], others: &[Claim]) -> Peak {
    let mut best = Peak {
        from: spans.first().map_or(UnixMillis::ZERO, |span| span.from),
        until: spans.first().map_or(FOREVER, |span| span.until),
        ..Peak::default()
    };
    for span in spans {
        // A sum grows only where a claim begins, or at the span's own beginning.
        let begins = others.iter().flat_map(|claim| {
            let inside = |other: &&Opening| other.from > span.from && other.from < span.until;
            claim.spans.iter().filter(inside).map(|other| other.from)
        });
        let mut points: Vec<UnixMillis> = begins.chain([span.from]).collect();
        points.sort_unstable();
        points.dedup();
        for at in points {
            let holding = others
                .iter()
                .filter_map(|claim| Some((claim, claim.at(at)?)));
            let holding: Vec<(&Claim, Opening)> = holding.collect();
            let hosts = holding
                .iter()
                .map(|(claim, _)| u64::from(claim.hosts))
                .sum();
            if hosts > best.hosts {
                let ends = holding.iter().map(|(_, opening)| opening.until);
                best = Peak {
                    hosts,
                    from: at,
                    until: ends.fold(span.until, UnixMillis::min),
                    names: holding
                        .iter()
                        .map(|(claim, _)| claim.name.clone())
                        .collect(),
                };
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(pairs: &[(i64, i64)]) -> Vec<Opening> {
        let span = |(from, until): &(i64, i64)| Opening {
            from: UnixMillis(*from),
            until: UnixMillis(*until),
        };
        pairs.iter().map(span).collect()
    }

    fn claim(name: &str, hosts: u32, pairs: &[(i64, i64)]) -> Claim {
        Claim {
            name: name.into(),
            hosts,
            spans: spans(pairs),
        }
    }

    #[test]
    fn those_that_follow_each_other_do_not_add_up() {
        let others = [claim("a", 4, &[(0, 10)]), claim("b", 5, &[(10, 20)])];
        let found = peak(&spans(&[(0, 30)]), &others);
        assert_eq!((found.hosts, found.names), (5, vec!["b".to_owned()]));
        assert_eq!((found.from, found.until), (UnixMillis(10), UnixMillis(20)));
    }

    #[test]
    fn those_that_overlap_do() {
        let others = [claim("a", 4, &[(0, 12)]), claim("b", 5, &[(10, 20)])];
        let found = peak(&spans(&[(0, 30)]), &others);
        assert_eq!((found.hosts, found.names.len()), (9, 2));
        assert_eq!((found.from, found.until), (UnixMillis(10), UnixMillis(12)));
        let apart = peak(&spans(&[(12, 15), (25, 30)]), &others);
        assert_eq!((apart.hosts, apart.until), (5, UnixMillis(15)));
        let alone = peak(&spans(&[(20, 30)]), &others);
        assert_eq!((alone.hosts, alone.names), (0, Vec::new()));
    }
}
