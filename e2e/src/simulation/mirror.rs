//! A mirror of one hub's jobs: listed and watched as any Kubernetes client does, in the hub's own
//! process.
//!
//! Owns the reading of lists and watch events through the hub's router. Passes all of it to the
//! judge, which compares it with the store (S21). Never judges.

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::Empty;
use meridian_api::units::Millis;
use meridian_apiserver::{Resources, router};
use meridian_runtime::Clock;
use meridian_store::Revision;
use serde_json::Value;

use super::world::{Note, Notes};

/// Where jobs of all namespaces are.
const JOBS: &str = "/apis/meridian.dev/v1alpha1/federatedjobs";
/// Pause after a list or a watch that failed.
const PAUSE: Millis = Millis(500);
/// A watch ends after this and is opened again from its last revision: so that resuming, from the
/// cache or from the store's history, is exercised too.
const WATCH_SECONDS: u64 = 20;

/// Lists, watches, resumes, and lists again, for the life of the hub.
pub(crate) async fn follow(resources: Resources, clock: Clock, hub: usize, notes: Notes) {
    let mut mirror = Mirror {
        router: router(resources),
        hub,
        notes,
    };
    loop {
        if let Some(listed) = mirror.list().await {
            let mut from = Some(listed);
            while let Some(revision) = from {
                from = mirror.watch(revision).await;
                clock.sleep(Millis(50)).await;
            }
        }
        clock.sleep(PAUSE).await;
    }
}

struct Mirror<R> {
    router: R,
    hub: usize,
    notes: Notes,
}

type Body = Empty<Bytes>;

impl<R, B> Mirror<R>
where
    R: tonic::codegen::Service<Request<Body>, Response = http::Response<B>>,
    B: http_body_util::BodyExt<Data = Bytes> + Unpin,
{
    async fn ask(&mut self, path: &str) -> Option<http::Response<B>> {
        let request = Request::get(path).body(Body::new()).ok()?;
        let answer = self.router.call(request).await.ok()?;
        (answer.status() == StatusCode::OK).then_some(answer)
    }

    /// All jobs; the revision they are as of.
    async fn list(&mut self) -> Option<Revision> {
        let body = self.ask(JOBS).await?.into_body().collect().await.ok()?;
        let mut list: Value = serde_json::from_slice(&body.to_bytes()).ok()?;
        let revision = revision(&list)?;
        let items = match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        self.notes.push(Note::Listed {
            hub: self.hub,
            revision,
            items,
        });
        Some(revision)
    }

    /// Events after `from` until the watch ends; where to go on, or `None` to list again.
    async fn watch(&mut self, from: Revision) -> Option<Revision> {
        let path = format!(
            "{JOBS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}\
             &timeoutSeconds={WATCH_SECONDS}"
        );
        let mut body = self.ask(&path).await?.into_body();
        let (mut buffer, mut seen) = (BytesMut::new(), from);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.ok()?.into_data() {
                buffer.extend_from_slice(&data);
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                seen = self.event(&line)?.max(seen);
            }
        }
        Some(seen)
    }

    /// Passes one event on; its revision, or `None` after an error.
    fn event(&mut self, line: &[u8]) -> Option<Revision> {
        let mut event: Value = serde_json::from_slice(line).ok()?;
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        if kind == "ERROR" {
            return None;
        }
        let object = event["object"].take();
        let revision = revision(&object)?;
        self.notes.push(Note::Watched {
            hub: self.hub,
            kind,
            object,
        });
        Some(revision)
    }
}

/// The resource version of an object or list.
pub(crate) fn revision(object: &Value) -> Option<Revision> {
    let text = object["metadata"]["resourceVersion"].as_str()?;
    text.parse().ok().map(Revision)
}
