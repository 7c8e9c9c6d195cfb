//! The watches of a cluster, as one stream of changes.
//!
//! Owns the watches of nodes, pods, the owner objects of gangs and what makes others' pods (see
//! `makers`), and the chores that follow from them. A watch that the API server ends in good order
//! goes on where it was; one that breaks,
//! or is too old to go on (410), ends the stream. Never decides what runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DynamicObject, WatchEvent, WatchParams};
use meridian_api::units::{BootMillis, Millis};
use serde::de::DeserializeOwned;

use super::client::{Trouble, trouble};
use super::gate::Chore;
use super::index::Index;
use super::makers::MakerKind;
use super::names::{self, Part};
use super::{KubernetesBackend, Look};
use crate::backend::{ClusterEvent, Observation};

/// A chore that failed is done again after this: an API server that restarts takes seconds.
const RETRY: Millis = Millis::seconds(1);
/// Chores under way at once; the others wait for the next change.
const MAX_CHORES: usize = 16;

/// Changes taken in before a gang is put together again, so that a burst of its pods costs one
/// look and not one each.
const MAX_WORDS_AT_ONCE: usize = 256;

/// One change of one object.
pub(super) enum Word {
    Node(Box<Node>),
    NodeGone(Box<Node>),
    Pod(Box<Pod>),
    PodGone(Box<Pod>),
    Config(Box<ConfigMap>),
    ConfigGone(Box<ConfigMap>),
    Maker(MakerKind, Box<DynamicObject>),
    MakerGone(MakerKind, Box<DynamicObject>),
}

/// A word, or the end of a watch.
pub(super) type Words = BoxStream<'static, Result<Word, Trouble>>;

/// Selects the owner objects of gangs.
pub(super) fn ours() -> String {
    format!(
        "{}={},{}={}",
        names::MANAGED_BY,
        names::MANAGER,
        names::PART,
        Part::Owner.label()
    )
}

/// A snapshot and every change after it.
pub(super) fn observation(backend: KubernetesBackend, look: Look) -> Observation {
    let cluster = &backend.cluster;
    let mut words: Vec<Words> = vec![
        follow(
            cluster.global::<Node>(),
            WatchParams::default(),
            look.nodes,
            |node| Word::Node(Box::new(node)),
            |node| Word::NodeGone(Box::new(node)),
        ),
        follow(
            cluster.everywhere::<Pod>(),
            WatchParams::default(),
            look.pods,
            |pod| Word::Pod(Box::new(pod)),
            |pod| Word::PodGone(Box::new(pod)),
        ),
        follow(
            cluster.everywhere::<ConfigMap>(),
            WatchParams::default().labels(&ours()),
            look.configs,
            |config| Word::Config(Box::new(config)),
            |config| Word::ConfigGone(Box::new(config)),
        ),
    ];
    let makers = look.makers.into_iter();
    words.extend(makers.map(|(kind, version)| backend.follow_makers(kind, version)));
    let snapshot = look.index.snapshot();
    let watch = Watch {
        backend,
        index: look.index,
        words: futures::stream::select_all(words),
        ready: VecDeque::new(),
        under_way: FuturesUnordered::new(),
        busy: BTreeSet::new(),
        later: BTreeMap::new(),
    };
    let changes = futures::stream::unfold(watch, Watch::next);
    Observation {
        snapshot,
        changes: changes.boxed(),
    }
}

/// The state of one observation.
struct Watch {
    backend: KubernetesBackend,
    index: Index,
    words: SelectAll<Words>,
    ready: VecDeque<ClusterEvent>,
    under_way: FuturesUnordered<BoxFuture<'static, (Chore, Result<(), Trouble>)>>,
    busy: BTreeSet<Chore>,
    /// Chores that failed, and when they are tried again.
    later: BTreeMap<Chore, BootMillis>,
}

impl Watch {
    /// The next change, or `None` when a watch broke.
    async fn next(mut self) -> Option<(ClusterEvent, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((event, self));
            }
            let clock = self.backend.cluster.clock().clone();
            self.start_chores(clock.boot());
            let alarm = self.next_alarm(clock.boot());
            let alarm = async {
                match alarm {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some((chore, done)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.finished(chore, done, clock.boot());
                }
                word = self.words.next() => self.take_all(word, clock.boot())?,
                () = alarm => self.index.tick(clock.boot()),
            }
            let news = self.index.news(clock.boot());
            self.ready.extend(news);
        }
    }

    /// Takes a word and those that are there already. `None` when a watch broke.
    fn take_all(&mut self, first: Option<Result<Word, Trouble>>, now: BootMillis) -> Option<()> {
        let mut next = Some(first);
        for _ in 0..MAX_WORDS_AT_ONCE {
            match next {
                Some(Some(Ok(word))) => self.take(word, now),
                Some(Some(Err(trouble))) => {
                    tracing::warn!(?trouble, "a watch of the cluster broke");
                    return None;
                }
                Some(None) => return None,
                None => break,
            }
            next = self.words.next().now_or_never();
        }
        Some(())
    }

    fn take(&mut self, word: Word, now: BootMillis) {
        let index = &mut self.index;
        let events = match word {
            Word::Node(node) => index.apply_node(&node, now),
            Word::NodeGone(node) => index.remove_node(&node, now),
            Word::Pod(pod) => {
                note_shown(&self.backend, &pod);
                index.apply_pod(&pod)
            }
            Word::PodGone(pod) => {
                note_shown(&self.backend, &pod);
                index.remove_pod(&pod)
            }
            Word::Config(config) => {
                index.apply_config(&config);
                Vec::new()
            }
            Word::ConfigGone(config) => {
                index.remove_config(&config);
                Vec::new()
            }
            Word::Maker(kind, object) => {
                index.apply_maker(kind, *object);
                Vec::new()
            }
            Word::MakerGone(kind, object) => {
                index.remove_maker(kind, *object);
                Vec::new()
            }
        };
        self.ready.extend(events);
    }

    fn start_chores(&mut self, now: BootMillis) {
        self.later.retain(|_, at| *at > now);
        for chore in self.index.chores() {
            let waits = self.busy.contains(chore) || self.later.contains_key(chore);
            if waits || self.busy.len() >= MAX_CHORES {
                continue;
            }
            let chore = chore.clone();
            self.busy.insert(chore.clone());
            let backend = self.backend.clone();
            let opening = chore.opens().and_then(|key| self.index.opening(key));
            let work = async move {
                let done = backend.attend(&chore, opening).await;
                (chore, done)
            };
            self.under_way.push(work.boxed());
        }
    }

    fn finished(&mut self, chore: Chore, done: Result<(), Trouble>, now: BootMillis) {
        self.busy.remove(&chore);
        if let Err(trouble) = done {
            tracing::warn!(?chore, ?trouble, "trying again");
        }
        // A chore that was done shows in the watch before this; if not, it is looked at again.
        self.later.insert(chore, now.after(RETRY));
    }

    fn next_alarm(&self, now: BootMillis) -> Option<BootMillis> {
        let later = self.later.values().copied();
        later.chain(self.index.next_tick(now)).min()
    }
}

/// What is listed from here on is not older.
fn note_shown(backend: &KubernetesBackend, pod: &Pod) {
    if let Some(version) = &pod.metadata.resource_version {
        backend.cluster.pods_shown(version);
    }
}

/// Follows one kind of object from a version on.
pub(super) fn follow<K>(
    api: Api<K>,
    params: WatchParams,
    version: String,
    is: fn(K) -> Word,
    gone: fn(K) -> Word,
) -> Words
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let state = Follow {
        api,
        params,
        version: Some(version),
        stream: None,
        is,
        gone,
    };
    futures::stream::unfold(state, Follow::next).boxed()
}

struct Follow<K> {
    api: Api<K>,
    params: WatchParams,
    /// The newest version that was seen; `None` when the watch broke.
    version: Option<String>,
    stream: Option<BoxStream<'static, Result<WatchEvent<K>, kube::Error>>>,
    is: fn(K) -> Word,
    gone: fn(K) -> Word,
}

impl<K> Follow<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(mut self) -> Option<(Result<Word, Trouble>, Self)> {
        loop {
            let version = self.version.clone()?;
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => match self.api.watch(&self.params, &version).await {
                    Ok(stream) => self.stream.insert(stream.boxed()),
                    Err(error) => return Some(self.broken(trouble(&error))),
                },
            };
            let event = match stream.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Some(self.broken(trouble(&error))),
                // The API server ends each watch after some minutes: it goes on from here.
                None => {
                    self.stream = None;
                    continue;
                }
            };
            let word = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.seen(&object);
                    (self.is)(object)
                }
                WatchEvent::Deleted(object) => {
                    self.seen(&object);
                    (self.gone)(object)
                }
                WatchEvent::Bookmark(mark) => {
                    self.version = Some(mark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => {
                    let words = format!("{} {}", status.code, status.message);
                    return Some(self.broken(Trouble::Away(words)));
                }
            };
            return Some((Ok(word), self));
        }
    }

    fn seen(&mut self, object: &K) {
        if let Some(version) = &object.meta().resource_version {
            self.version = Some(version.clone());
        }
    }

    fn broken(mut self, trouble: Trouble) -> (Result<Word, Trouble>, Self) {
        self.version = None;
        self.stream = None;
        (Err(trouble), self)
    }
}
