//! Taking the hub's orders in: fences first, disk second, action last.
//!
//! Owns what each message of a session changes in the agent's memory and records. A refused order
//! changes nothing; one placement that is refused does not spoil the others of its intent. Never
//! asks the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::{Epoch, Incarnation};
use meridian_api::units::Millis;
use meridian_proto::v1::{self, hub_message::Body};
use tokio::sync::oneshot;

use crate::backend::GangKey;
use crate::executor::{Executor, Stopped};
use crate::fences::{self, RefusalReason, Refused};
use crate::gangs::{Desired, Gang, Phase, Record};
use crate::making_room::Leaving;
use crate::orders::{self, RunOrder, Templates, Wish};
use crate::report::Session;
use crate::uplink::ToExecutor;

impl Executor {
    pub(crate) async fn hear(&mut self, message: ToExecutor) -> Result<(), Stopped> {
        match message {
            ToExecutor::Hello(reply) => self.hello = Some(reply),
            ToExecutor::Attached {
                welcome,
                session,
                reply,
            } => {
                self.attach(&welcome, *session, reply).await?;
            }
            ToExecutor::Order(body) => self.order(*body).await?,
            ToExecutor::Detached => self.detached(),
        }
        Ok(())
    }

    async fn attach(
        &mut self,
        welcome: &v1::Welcome,
        session: Session,
        reply: oneshot::Sender<Result<(), Refused>>,
    ) -> Result<(), Stopped> {
        let checked = fences::check_fence(welcome.fence, self.state.fence());
        let verdict = checked.and_then(|fence| {
            let (issued, highest) = (Incarnation(welcome.incarnation), self.state.incarnation());
            if issued > highest {
                return Ok((fence, issued));
            }
            let message = format!("incarnation {issued} is not above {highest}");
            Err(Refused::new(RefusalReason::StaleIncarnation, message))
        });
        let answer = match verdict {
            Ok((fence, incarnation)) => {
                self.state.raise_session(fence, incarnation);
                self.commit().await?;
                self.attached(session);
                Ok(())
            }
            Err(refused) => Err(refused),
        };
        // An uplink that is gone has nothing to do with the answer.
        drop(reply.send(answer));
        Ok(())
    }

    async fn order(&mut self, body: Body) -> Result<(), Stopped> {
        match body {
            Body::Intent(intent) => return self.intent(intent).await,
            Body::HeartbeatAck(ack) => self.acknowledged(ack.sequence),
            Body::CheckpointRequest(request) => self.checkpoint(&request),
            Body::DigestRequest(_) => self.full_digest_wanted(),
            Body::Reserve(reserve) => {
                let key = reserve.placement.as_ref().and_then(|p| orders::key(p).ok());
                self.unsupported(key, "two-phase start");
            }
            Body::Commit(commit) => {
                self.unsupported(
                    gang_key(commit.gang.as_ref(), commit.epoch),
                    "two-phase start",
                );
            }
            Body::Abort(abort) => {
                self.unsupported(
                    gang_key(abort.gang.as_ref(), abort.epoch),
                    "two-phase start",
                );
            }
            Body::Lease(_) => self.unsupported(None, "run leases"),
            // The uplink answers it: it changes nothing.
            Body::LogRequest(_) => {}
            Body::Welcome(_) => {
                let refused = Refused::new(RefusalReason::Malformed, "a second Welcome");
                self.refuse(None, &refused);
            }
        }
        Ok(())
    }

    fn unsupported(&mut self, key: Option<GangKey>, what: &str) {
        let message = format!("this agent does not speak {what}");
        self.refuse(key, &Refused::new(RefusalReason::Unsupported, message));
    }

    /// An intent: everything it changes is one write, and nothing is done before that write.
    async fn intent(&mut self, intent: v1::Intent) -> Result<(), Stopped> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let (highest, processed) = (self.state.fence(), self.state.generation());
        let checked = fences::check_fence(intent.fence, highest).and_then(|fence| {
            // The session's Welcome is on disk; an order above it is of a leader unknown here.
            if fence != highest {
                let message = "the fence is above the one of this session's Welcome";
                return Err(Refused::new(RefusalReason::Malformed, message));
            }
            fences::check_intent(&intent, session.incarnation, processed)
        });
        let generation = match checked {
            Ok(generation) => generation,
            Err(refused) => {
                self.refuse(None, &refused);
                return Ok(());
            }
        };
        let mut templates = Templates::default();
        let taken = intent
            .templates
            .iter()
            .map(|template| templates.take(template));
        let bad: Vec<orders::BadOrder> = taken.filter_map(Result::err).collect();
        for error in bad {
            self.refuse(
                None,
                &Refused::new(RefusalReason::Malformed, error.to_string()),
            );
        }
        self.state.raise_generation(generation);
        for placement in &intent.placements {
            self.placement(placement, &templates);
        }
        self.commit().await
    }

    fn placement(&mut self, placement: &v1::PlacementIntent, templates: &Templates) {
        let key = orders::key(placement).ok();
        let wish = orders::wish(placement, templates)
            .map_err(|error| Refused::new(RefusalReason::Malformed, error.to_string()));
        let taken = wish.and_then(|wish| match wish {
            Wish::Run(order) => self.run_wish(*order),
            Wish::Stop {
                key,
                grace,
                reason,
                notice,
            } if notice > Millis::ZERO && self.may_be_warned(key) => {
                self.leave_wish(key, grace, &reason, notice)
            }
            Wish::Stop {
                key, grace, reason, ..
            } => self.stop_wish(key, grace, &reason),
        });
        if let Err(refused) = taken {
            if let Some(key) = key
                && refused.reason == RefusalReason::Malformed
                && self
                    .gangs
                    .get(&key.gang)
                    .is_some_and(|gang| gang.record.epoch == key.epoch)
            {
                // It is here: a refusal would let the hub start it elsewhere, too.
                self.reports.repeat(key.gang);
                return;
            }
            // The hub may place the gang elsewhere on the strength of a refusal: this epoch must
            // then never start here, whatever comes later.
            if let Some(key) = key.filter(|_| refused.reason == RefusalReason::Malformed)
                && self
                    .gangs
                    .get(&key.gang)
                    .is_none_or(|gang| gang.record.epoch < key.epoch)
            {
                self.state.is_over(key);
            }
            self.refuse(key, &refused);
        }
    }

    /// Refuses an epoch below the gang's own, or, when nothing is kept of it, below what ended.
    fn check_epoch(&self, key: GangKey) -> Result<(), Refused> {
        let record = self.gangs.get(&key.gang).map(|gang| gang.record.epoch);
        let highest = record.or(self.state.over(key.gang));
        fences::check_epoch(key.epoch, highest.unwrap_or(Epoch(0)))
    }

    fn run_wish(&mut self, order: RunOrder) -> Result<(), Refused> {
        let key = order.key;
        self.check_epoch(key)?;
        match self.gangs.get_mut(&key.gang) {
            Some(gang) if gang.record.epoch == key.epoch => {
                // A stop is final for its epoch; an end is, too, and stays listed.
                if gang.record.desired == Desired::Adopted {
                    gang.record.desired = Desired::Run;
                    gang.record.accepted = self.clock.wall();
                    gang.record.place_timeout = order.place_timeout;
                    self.state.put(&gang.record);
                }
                if gang.record.verdict.is_none() && gang.record.leave.take().is_some() {
                    tracing::info!(%key, "it may stay after all");
                    self.state.put(&gang.record);
                }
                let order = Arc::new(order);
                // After a restart its pods may be more than this order knows of.
                let own = gang.order.as_ref();
                let differs = own.is_none_or(|own| own.pods != order.pods);
                gang.smaller = differs.then(|| Arc::clone(&order));
                if own.is_none_or(|own| !differs && own.kept_hosts != order.kept_hosts) {
                    gang.order = Some(order);
                }
                self.arrive(key);
                self.reports.repeat(key.gang);
                return Ok(());
            }
            Some(_) | None if self.state.over(key.gang) >= Some(key.epoch) => {
                let message = format!("epoch {} has ended here, or was refused", key.epoch);
                return Err(Refused::new(RefusalReason::EpochOver, message));
            }
            Some(_) | None => {}
        }
        let record = Record {
            gang: key.gang,
            epoch: key.epoch,
            desired: Desired::Run,
            accepted: self.clock.wall(),
            place_timeout: order.place_timeout,
            grace: order.terms.grace,
            pool: order.terms.pool.clone(),
            verdict: None,
            ended: None,
            leave: None,
        };
        tracing::info!(%key, pool = record.pool, job = order.terms.job, "accepted");
        self.metrics.accepted.inc();
        self.replace(record, Some(Arc::new(order)));
        Ok(())
    }

    /// True for a gang that runs and was not told to stop yet: any other has nothing to save.
    fn may_be_warned(&self, key: GangKey) -> bool {
        let gang = self.gangs.get(&key.gang);
        gang.is_some_and(|gang| {
            gang.record.key() == key
                && gang.record.desired == Desired::Run
                && gang.record.verdict.is_none()
        })
    }

    /// It goes, but not before it could save its work. What it was told first stands.
    fn leave_wish(
        &mut self,
        key: GangKey,
        grace: Option<Millis>,
        reason: &str,
        notice: Millis,
    ) -> Result<(), Refused> {
        self.check_epoch(key)?;
        let saved = self.view.gang(key).and_then(|own| own.checkpoint);
        let by = self.clock.wall().after(notice);
        let Some(gang) = self.gangs.get_mut(&key.gang) else {
            return Ok(());
        };
        if gang.record.leave.is_none() {
            tracing::info!(%key, reason, %notice, "asked to save its work and go");
            gang.record.leave = Some(Leaving {
                by,
                saved_before: saved,
            });
            gang.record.grace = grace.unwrap_or(gang.record.grace);
            self.state.put(&gang.record);
            self.request_checkpoint(key, notice);
        }
        self.reports.repeat(key.gang);
        self.dirty.insert(key.gang);
        Ok(())
    }

    fn stop_wish(
        &mut self,
        key: GangKey,
        grace: Option<Millis>,
        reason: &str,
    ) -> Result<(), Refused> {
        self.check_epoch(key)?;
        if let Some(gang) = self
            .gangs
            .get_mut(&key.gang)
            .filter(|gang| gang.record.key() == key)
        {
            if gang.record.desired != Desired::Stop {
                tracing::info!(%key, reason, "stop ordered");
                gang.record.desired = Desired::Stop;
                gang.record.grace = grace.unwrap_or(gang.record.grace);
                self.state.put(&gang.record);
            }
            self.reports.repeat(key.gang);
            self.dirty.insert(key.gang);
            return Ok(());
        }
        // Nothing is known of this epoch. The cluster is asked for the proof all the same, and
        // whatever older epoch is there is stopped with it.
        let record = Record {
            gang: key.gang,
            epoch: key.epoch,
            desired: Desired::Stop,
            accepted: self.clock.wall(),
            place_timeout: Millis::ZERO,
            grace: grace.unwrap_or(orders::DEFAULT_GRACE),
            pool: String::new(),
            verdict: None,
            ended: None,
            leave: None,
        };
        self.replace(record, None);
        Ok(())
    }

    /// A higher epoch takes the place of whatever was known of its gang.
    fn replace(&mut self, record: Record, order: Option<Arc<RunOrder>>) {
        let key = record.key();
        self.clear_binding(key.gang);
        self.reports.forget(key.gang);
        self.gone.retain(|gone| gone.gang != key.gang);
        self.retries.remove(&key.gang);
        self.state.put(&record);
        let gang = Gang {
            record,
            order,
            phase: Phase::Waiting,
            attempt: 0,
            avoid: BTreeMap::new(),
            mended_by: None,
            smaller: None,
        };
        self.reports.look(&self.view, &gang);
        self.gangs.insert(key.gang, gang);
        self.digests.touch([], [key.gang]);
        self.arrivals.remove(&key.gang);
        self.arrive(key);
    }

    fn arrive(&mut self, key: GangKey) {
        self.arrived += 1;
        self.arrivals.entry(key.gang).or_insert(self.arrived);
        self.dirty.insert(key.gang);
    }

    fn checkpoint(&mut self, request: &v1::CheckpointRequest) {
        let key = gang_key(request.gang.as_ref(), request.epoch);
        let checked = fences::check_fence(request.fence, self.state.fence()).and_then(|_| {
            let key = key.ok_or_else(|| Refused::new(RefusalReason::Malformed, "no gang"))?;
            self.check_epoch(key).map(|()| key)
        });
        match checked {
            Ok(key) => self.request_checkpoint(key, Millis(request.deadline_ms)),
            Err(refused) => self.refuse(key, &refused),
        }
    }
}

fn gang_key(gang: Option<&v1::Gang>, epoch: u64) -> Option<GangKey> {
    let gang = meridian_proto::convert::gang(gang).ok()?;
    Some(GangKey {
        gang,
        epoch: meridian_proto::convert::epoch(epoch).ok()?,
    })
}
