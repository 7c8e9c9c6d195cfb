//! Sizes of elastic gangs: how many pods of each role, between the least and the most.
//!
//! Owns the steps between `min` and `max` and the search for the largest size that fits. Never
//! knows what "fits" means.

use meridian_api::units::{MilliGpus, Resources};

use crate::model::{GangShape, RoleShape};

impl RoleShape {
    /// How many steps there are above `min`; zero for a role that is not elastic.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.max.saturating_sub(self.min) / self.step.max(1)
    }

    /// Pods at `step` steps above `min`.
    #[must_use]
    pub fn at_step(&self, step: u32) -> u32 {
        self.min
            .saturating_add(step.saturating_mul(self.step.max(1)))
    }

    /// True when the role may run with `pods` pods.
    #[must_use]
    pub fn allows(&self, pods: u32) -> bool {
        pods >= self.min
            && pods <= self.max.max(self.min)
            && (pods - self.min).is_multiple_of(self.step.max(1))
    }
}

impl GangShape {
    /// Pods per role in its smallest size.
    #[must_use]
    pub fn least(&self) -> Vec<u32> {
        self.roles.iter().map(|role| role.min).collect()
    }

    /// Pods per role in its largest size.
    #[must_use]
    pub fn most(&self) -> Vec<u32> {
        self.roles
            .iter()
            .map(|role| role.at_step(role.steps()))
            .collect()
    }

    /// What `pods` pods per role ask for in all; stops at the largest amount of each unit.
    #[must_use]
    pub fn demand(&self, pods: &[u32]) -> Resources {
        let mut sum = Resources::default();
        for (role, &count) in self.roles.iter().zip(pods) {
            let count = u64::from(count);
            let add = |sum: u64, each: u64| sum.saturating_add(each.saturating_mul(count));
            sum.gpus.0 = add(sum.gpus.0, role.per_pod.gpus.0);
            sum.cpu.0 = add(sum.cpu.0, role.per_pod.cpu.0);
            sum.memory.0 = add(sum.memory.0, role.per_pod.memory.0);
        }
        sum
    }

    /// GPUs of `pods` pods per role.
    #[must_use]
    pub fn gpus(&self, pods: &[u32]) -> MilliGpus {
        self.demand(pods).gpus
    }
}

/// The largest size of `gang` that `attempt` accepts, with what it answered; `None` when it
/// refuses even the smallest. Roles grow in the order of the job, each by bisection, so `attempt`
/// is called O(roles x log steps) times. What is returned was accepted itself; it is the largest
/// when `attempt` accepts every size below one that it accepts.
pub fn largest<T>(
    gang: &GangShape,
    mut attempt: impl FnMut(&[u32]) -> Option<T>,
) -> Option<(Vec<u32>, T)> {
    let most = gang.most();
    if let Some(found) = attempt(&most) {
        return Some((most, found));
    }
    let least = gang.least();
    if least == most {
        return None;
    }
    let mut best = (least.clone(), attempt(&least)?);
    for (index, role) in gang.roles.iter().enumerate() {
        let (mut accepted, mut ceiling) = (0, role.steps());
        while accepted < ceiling {
            let middle = ceiling - (ceiling - accepted) / 2;
            let mut trial = best.0.clone();
            trial[index] = role.at_step(middle);
            if let Some(found) = attempt(&trial) {
                best = (trial, found);
                accepted = middle;
            } else {
                ceiling = middle - 1;
            }
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(ranges: &[(u32, u32, u32)]) -> GangShape {
        let role = |&(min, max, step): &(u32, u32, u32)| RoleShape {
            name: "worker".into(),
            per_pod: Resources {
                gpus: MilliGpus::cards(1),
                ..Resources::default()
            },
            min,
            max,
            step,
            required: None,
            preferred: None,
            slice: None,
        };
        GangShape {
            roles: ranges.iter().map(role).collect(),
        }
    }

    #[test]
    fn the_largest_size_below_a_bound_is_found() {
        for bound in 0..40 {
            let found = largest(&gang(&[(4, 30, 3)]), |pods| {
                (pods[0] <= bound).then_some(())
            });
            let expected = (0..=8)
                .map(|step| 4 + 3 * step)
                .rfind(|size| *size <= bound);
            assert_eq!(found.map(|(pods, ())| pods[0]), expected, "bound {bound}");
        }
    }

    #[test]
    fn a_rigid_gang_is_tried_once() {
        let mut calls = 0;
        let found = largest(&gang(&[(4, 4, 1)]), |_| {
            calls += 1;
            None::<()>
        });
        assert_eq!((found, calls), (None, 1));
    }

    #[test]
    fn earlier_roles_grow_first() {
        let sum = |pods: &[u32]| (pods.iter().sum::<u32>() <= 10).then_some(());
        let found = largest(&gang(&[(1, 8, 1), (1, 8, 1)]), sum);
        assert_eq!(found, Some((vec![8, 2], ())));
    }

    #[test]
    fn sizes_off_the_step_are_not_allowed() {
        let role = &gang(&[(4, 10, 3)]).roles[0];
        let allowed: Vec<u32> = (0..20).filter(|pods| role.allows(*pods)).collect();
        assert_eq!(allowed, [4, 7, 10]);
    }
}
