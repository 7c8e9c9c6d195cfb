//! The etcd store: production, highly available.
//!
//! Owns the connection, the deadline of every call and the prefix under which everything lives.
//! A read is tried again on another member; a write is sent once, unless it is certain that it
//! never left. Never relies on a read to decide: that is what transactions are for.

mod convert;
mod version;
mod watch;

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, Identity, KvClient, TlsOptions,
};
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::Clock;

use self::convert::{Prefix, never_left, to_store_error};
use self::watch::WatchLimits;
use crate::feed::BOOKMARK_EVERY;
use crate::mvcc::FIRST_REVISION;
use crate::{
    KeyRange, KeyValue, LeaseId, Operation, Page, Store, StoreError, Txn, TxnResponse, WatchStream,
    lease, mvcc,
};

/// Longest time of one call, tries included: half of the leader's lease, so that a hub whose etcd
/// is silent knows it before its lease ends.
const CALL_LIMIT: Millis = Millis::seconds(5);
/// Longest time of one try of a call that may be tried again on another member.
const TRY_LIMIT: Millis = Millis::seconds(2);
/// Pause between two tries: a member that has just died is not asked in a tight loop.
const TRY_PAUSE: Millis = Millis(50);
/// HTTP/2 ping while a connection is used; without it a frozen member is never noticed.
const PING_EVERY: Duration = Duration::from_secs(3);
/// Time to answer a ping. With the interval: a frozen member is left after 5 s.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// Time to connect to one member.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Keys of one request of a range read. Small pages are slow: etcd counts what is left of the
/// range at each.
const PAGE_KEYS: usize = 2_000;
/// Largest answer: a page of the largest values that are allowed.
const MAX_ANSWER_BYTES: usize = PAGE_KEYS * (crate::MAX_VALUE_BYTES + 1024);
/// Most keys that one range call gathers, so that a wrong limit does not fill the memory.
const MAX_RANGE_KEYS: usize = 1_000_000;

/// Mutual TLS to etcd, all in PEM.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Authorities that sign the members' certificates.
    pub ca: String,
    /// Our certificate and its key, where etcd asks for one.
    pub identity: Option<(String, String)>,
}

/// What to do with an etcd whose version is known to answer stale reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldVersions {
    /// Do not start.
    #[default]
    Refuse,
    /// Start, and say so in the log.
    Accept,
}

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Everything lives under this prefix, which must not be empty.
    pub prefix: String,
    /// TLS; without it the connection is plain.
    pub tls: Option<EtcdTls>,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// What to do with an etcd that is too old.
    pub old_versions: OldVersions,
    /// How often a quiet watch says how far it is.
    pub bookmark_every: Millis,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            prefix: "/meridian/".to_owned(),
            tls: None,
            user: None,
            old_versions: OldVersions::Refuse,
            bookmark_every: BOOKMARK_EVERY,
        }
    }
}

/// A handle to etcd; clones share its connections.
#[derive(Clone)]
pub struct EtcdStore {
    client: Client,
    kv: KvClient,
    prefix: Prefix,
    clock: Clock,
    bookmark_every: Millis,
}

impl EtcdStore {
    /// Connects to the members at `endpoints` (URLs), of which at least one must answer, and
    /// checks the version of each that does.
    ///
    /// # Errors
    /// `Refused` for an endpoint that is no URL or an etcd that is too old; `Unavailable` when
    /// no member answers.
    pub async fn connect(
        endpoints: &[String],
        clock: Clock,
        options: EtcdOptions,
    ) -> Result<Self, StoreError> {
        if options.prefix.is_empty() {
            return Err(StoreError::Refused(
                "an empty key prefix for etcd".to_owned(),
            ));
        }
        let connection = connect_options(&options);
        version::check(endpoints, &connection, &clock, options.old_versions).await?;
        let connecting = Box::pin(Client::connect(endpoints, Some(connection)));
        let client = within(&clock, CALL_LIMIT, connecting).await?;
        let kv = client
            .kv_client()
            .max_decoding_message_size(MAX_ANSWER_BYTES);
        let prefix = Prefix::new(options.prefix);
        Ok(Self {
            client,
            kv,
            prefix,
            clock,
            bookmark_every: options.bookmark_every,
        })
    }

    /// Does a call that changes nothing, or the same when it is done twice: on any failure to
    /// reach a member it is tried again until its time is up.
    async fn again<T, F, C>(&self, call: C) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
        C: Fn() -> F,
    {
        let until = self.clock.boot().after(CALL_LIMIT);
        loop {
            let answer = within(&self.clock, TRY_LIMIT, call()).await;
            let out_of_time = self.clock.boot().after(TRY_PAUSE) >= until;
            match answer {
                Err(StoreError::Unavailable(why)) if !out_of_time => {
                    tracing::debug!(%why, "etcd did not answer, trying again");
                    self.clock.sleep(TRY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Does a call that must not be done twice: it is sent again only when no member had been
    /// reached at all.
    async fn once<T, F, C>(&self, call: C) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
        C: Fn() -> F,
    {
        let until = self.clock.boot().after(CALL_LIMIT);
        loop {
            let left = until.since(self.clock.boot());
            let answer = self.clock.timeout(left, call()).await;
            let out_of_time = self.clock.boot().after(TRY_PAUSE) >= until;
            match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if never_left(&error) && !out_of_time => {
                    self.clock.sleep(TRY_PAUSE).await;
                }
                Ok(Err(error)) => return Err(to_store_error(&error)),
                Err(late) => return Err(StoreError::Unavailable(late.to_string())),
            }
        }
    }

    /// One request of a range read.
    async fn page(
        &self,
        range: &KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        let (start, end) = self.prefix.range(range);
        let mut options = GetOptions::new()
            .with_range(end)
            .with_limit(convert::int(limit));
        if let Some(at) = at {
            options = options.with_revision(convert::signed(at));
        }
        let mut answer = self
            .again(|| {
                let (mut kv, start, options) = (self.kv.clone(), start.clone(), options.clone());
                async move { kv.get(start, Some(options)).await }
            })
            .await?;
        let now = convert::header_revision(answer.header())?;
        let more = answer.more();
        let entries: Result<Vec<KeyValue>, StoreError> = answer
            .take_kvs()
            .into_iter()
            .map(|kv| self.prefix.key_value(kv))
            .collect();
        Ok(Page {
            entries: entries?,
            more,
            revision: at.unwrap_or(now),
        })
    }

    /// Fills in what etcd does not say about a revision that it cannot read.
    async fn explain(&self, error: StoreError, requested: Revision) -> StoreError {
        match error {
            StoreError::Compacted { .. } => {
                let oldest = watch::oldest_after(self, requested).await;
                StoreError::Compacted { requested, oldest }
            }
            StoreError::FutureRevision { .. } => match self.revision().await {
                Ok(newest) => StoreError::FutureRevision { requested, newest },
                Err(error) => error,
            },
            other => other,
        }
    }

    /// Counts keys, or only asks for the revision when the range is one that holds none.
    async fn count_at_once(&self, range: &KeyRange) -> Result<(u64, Revision), StoreError> {
        let (start, end) = self.prefix.range(range);
        let options = GetOptions::new().with_range(end).with_count_only();
        let answer = self
            .again(|| {
                let (mut kv, start, options) = (self.kv.clone(), start.clone(), options.clone());
                async move { kv.get(start, Some(options)).await }
            })
            .await?;
        let count = u64::try_from(answer.count()).unwrap_or(0);
        Ok((count, convert::header_revision(answer.header())?))
    }
}

fn connect_options(options: &EtcdOptions) -> ConnectOptions {
    let mut connection = ConnectOptions::new()
        .with_keep_alive(PING_EVERY, PING_LIMIT)
        .with_keep_alive_while_idle(true)
        .with_connect_timeout(CONNECT_LIMIT)
        // A member that is cut off from its leader says so instead of waiting.
        .with_require_leader(true);
    if let Some(tls) = &options.tls {
        let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        connection = connection.with_tls(config);
    }
    if let Some((name, password)) = &options.user {
        connection = connection
            .with_user(name, password)
            .with_auto_token_refresh(true);
    }
    connection
}

async fn within<T>(
    clock: &Clock,
    limit: Millis,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, StoreError> {
    match clock.timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| to_store_error(&error)),
        Err(late) => Err(StoreError::Unavailable(late.to_string())),
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn get(&self, _: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        let page = self.page(&KeyRange::key(key), 1, None).await?;
        Ok(page.entries.into_iter().next())
    }

    async fn range(
        &self,
        _: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        if limit == 0 || range.is_empty() || at.is_some_and(|at| at < FIRST_REVISION) {
            let newest = self.revision().await?;
            let revision = mvcc::validate_read(limit, at, FIRST_REVISION, newest)?;
            return Ok(Page {
                entries: Vec::new(),
                more: false,
                revision,
            });
        }
        let limit = limit.min(MAX_RANGE_KEYS);
        let mut pages = match self.page(&range, limit.min(PAGE_KEYS), at).await {
            Ok(first) => first,
            Err(error) => return Err(self.explain(error, at.unwrap_or(FIRST_REVISION)).await),
        };
        while let Some(last) = pages.entries.last().filter(|_| pages.more) {
            let left = limit - pages.entries.len();
            if left == 0 {
                break;
            }
            let (rest, at) = (range.after(&last.key), pages.revision);
            match self.page(&rest, left.min(PAGE_KEYS), Some(at)).await {
                Ok(next) => {
                    pages.entries.extend(next.entries);
                    pages.more = next.more;
                }
                Err(error) => return Err(self.explain(error, at).await),
            }
        }
        Ok(pages)
    }

    async fn count(&self, _: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        if range.is_empty() {
            return Ok((0, self.revision().await?));
        }
        self.count_at_once(&range).await
    }

    async fn txn(&self, _: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        mvcc::validate(std::slice::from_ref(&txn))?;
        let request = self.prefix.txn(&txn);
        let call = || {
            let (mut kv, request) = (self.kv.clone(), request.clone());
            async move { kv.txn(request).await }
        };
        let answer = if txn.writes() {
            self.once(call).await
        } else {
            self.again(call).await
        };
        let answer = answer.map_err(|error| convert::name_lease(error, &[txn]))?;
        self.prefix.txn_response(&answer)
    }

    async fn txn_batch(
        &self,
        why: Operation,
        mut txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        mvcc::validate(&txns)?;
        match txns.len() {
            0 => return Ok(Vec::new()),
            1 => return Ok(vec![self.txn(why, txns.remove(0)).await?]),
            _ => {}
        }
        let request = self.prefix.batch(&txns);
        let call = || {
            let (mut kv, request) = (self.kv.clone(), request.clone());
            async move { kv.txn(request).await }
        };
        let writes = txns.iter().any(Txn::writes);
        let answer = if writes {
            self.once(call).await
        } else {
            self.again(call).await
        };
        let answer = answer.map_err(|error| convert::name_lease(error, &txns))?;
        self.prefix.batch_response(&answer)
    }

    async fn watch(
        &self,
        _: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        // etcd would wait for a revision far in the future without a word, and that is what a
        // caller asks for whose etcd has been restored from a backup.
        let newest = self.revision().await?;
        let from = mvcc::validate_watch(&range, from, FIRST_REVISION, newest)?;
        let limits = WatchLimits {
            bookmark_every: self.bookmark_every,
        };
        watch::open(self, &range, from, limits).await
    }

    /// etcd counts whole seconds, and no fewer than its election takes: the lease may be longer.
    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        lease::validate_ttl(ttl)?;
        let seconds = i64::try_from(ttl.0.div_ceil(1000)).unwrap_or(i64::MAX);
        let granted = self
            .once(|| {
                let mut leases = self.client.lease_client();
                async move { leases.grant(seconds, None).await }
            })
            .await?;
        Ok(LeaseId(granted.id()))
    }

    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        let renewed = self
            .again(|| {
                let mut leases = self.client.lease_client();
                async move {
                    match leases.keep_alive(lease.0).await {
                        Ok(_) => Ok(true),
                        // A dead lease is answered with no time left, not with an error.
                        Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                        Err(error) => Err(error),
                    }
                }
            })
            .await?;
        if renewed {
            Ok(())
        } else {
            Err(StoreError::LeaseNotFound(lease))
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        let revoked = self
            .once(|| {
                let mut leases = self.client.lease_client();
                async move { leases.revoke(lease.0).await }
            })
            .await;
        match revoked {
            Ok(_) => Ok(()),
            Err(StoreError::LeaseNotFound(_)) => Err(StoreError::LeaseNotFound(lease)),
            Err(error) => Err(error),
        }
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        let compacted = self
            .again(|| {
                let mut kv = self.kv.clone();
                async move { kv.compact(convert::signed(below), None).await }
            })
            .await;
        match compacted {
            Ok(_) | Err(StoreError::Compacted { .. }) => Ok(()),
            Err(error) => Err(self.explain(error, below).await),
        }
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self
            .count_at_once(&KeyRange::key(Bytes::from_static(b"\0")))
            .await?
            .1)
    }
}
