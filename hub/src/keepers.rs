//! Keepers: what makes and deletes jobs because something asks for them.
//!
//! Owns their order in a round: runs of schedules, jobs of offers, replicas of services. Never
//! decides what any of them asks for.

use meridian_api::ids::Revision;
use meridian_api::units::UnixMillis;
use meridian_store::StoreError;

use crate::commit::Committer;
use crate::fence::Fence;
use crate::model::{Model, Situation};
use crate::offers::OfferKeeper;
use crate::runs::RunKeeper;
use crate::services::ServiceKeeper;

/// All of them.
pub(crate) struct Keepers {
    /// Makes runs of jobs that recur.
    pub(crate) runs: RunKeeper,
    /// Makes jobs of gangs that others made.
    pub(crate) offers: OfferKeeper,
    /// Makes, replaces and deletes replicas of services.
    pub(crate) services: ServiceKeeper,
}

impl Keepers {
    /// Lets each look at what changed. The model has what they wrote when it has taken in the
    /// returned revision.
    pub(crate) async fn settle(
        &mut self,
        model: &mut Model,
        committer: &Committer,
        fence: Fence,
        situation: Situation,
    ) -> Result<Revision, StoreError> {
        let offers = self.offers.settle(model, fence).await?;
        let runs = self.runs.settle(model, committer, fence).await?;
        let services = self.services.settle(model, fence, situation).await?;
        Ok(offers.max(runs).max(services))
    }

    /// When to look again though nothing happens.
    pub(crate) fn next_look(&self) -> Option<UnixMillis> {
        self.runs.next_look()
    }
}
