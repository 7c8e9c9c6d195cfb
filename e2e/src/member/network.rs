//! Addresses of real nodes, derived from the place of their cluster so that clusters of parallel
//! tests never share one.
//!
//! Owns the ranges: 10.201.0.0/16 for links between the machine and its nodes, 10.202.0.0/14 for
//! pods. Never looks at the machine.

use std::net::Ipv4Addr;

/// Real nodes of one cluster: as many as the pods' ranges have room for.
pub(super) const NODES: u8 = 16;

/// Where one real node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subnet {
    place: u8,
    node: u8,
}

impl Subnet {
    /// Of node number `node` of the cluster at `place`.
    pub(super) const fn new(place: u8, node: u8) -> Self {
        Self { place, node }
    }

    /// The node's number.
    pub(super) const fn node(self) -> u8 {
        self.node
    }

    /// The machine's end of the link, a /30.
    pub(super) const fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 201, self.place, self.node * 4 + 1)
    }

    /// The node's end.
    pub(super) const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 201, self.place, self.node * 4 + 2)
    }

    /// Addresses of its pods: 62, more than a node of ours ever runs.
    pub(super) fn pods(self) -> String {
        let (third, last) = (self.node / 4, (self.node % 4) * 64);
        format!("10.{}.{}.{last}/26", 202 + third, self.place)
    }

    /// The machine's end as a device; at most 15 letters.
    pub(super) fn device(self) -> String {
        format!("{}{}", link_prefix(self.place), self.node)
    }
}

/// What names of the links of the cluster at `place` begin with, and no others.
pub(super) fn link_prefix(place: u8) -> String {
    format!("mm{place}n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_nodes_share_an_address() {
        let all = (0..=u8::MAX).flat_map(|place| (0..NODES).map(move |n| Subnet::new(place, n)));
        let all: Vec<Subnet> = all.collect();
        let of = |text: fn(&Subnet) -> String| all.iter().map(text).collect::<BTreeSet<_>>().len();
        assert_eq!(of(|subnet| subnet.host().to_string()), all.len());
        assert_eq!(of(|subnet| subnet.address().to_string()), all.len());
        assert_eq!(of(|subnet| subnet.pods()), all.len());
        assert_eq!(of(|subnet| subnet.device()), all.len());
        assert!(all.iter().all(|subnet| subnet.device().len() <= 15));
        assert_eq!(Subnet::new(3, 15).pods(), "10.205.3.192/26");
        assert_eq!(Subnet::new(3, 15).address(), Ipv4Addr::new(10, 201, 3, 62));
    }
}
