//! What a container of a gang wrote, from its kubelet through the API server.
//!
//! Owns the choice of the pod and the passing on. Bounded by its reader: nothing is read ahead of
//! what he takes.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{AsyncBufRead, AsyncReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};

use super::KubernetesBackend;
use super::bind::slip;
use super::client::{Trouble, trouble};
use crate::backend::{BackendError, GangKey, LogQuery};

/// One piece of a log: some hundred lines.
const PIECE: usize = 16 * 1024;

impl KubernetesBackend {
    pub(super) async fn read_logs(
        &self,
        key: GangKey,
        query: LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, BackendError> {
        let pods = self.pods_of(key).await?;
        let pod = pods.iter().filter(|pod| is_asked_for(pod, &query));
        // A resize may have made a member again: the newest attempt is meant.
        let pod = pod.max_by_key(|pod| slip(pod).map(|slip| slip.attempt));
        let meta = pod.map(|pod| &pod.metadata);
        let meta = meta.ok_or(BackendError::NotFound(key))?;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let api: Api<Pod> = self.cluster.within(namespace);
        let params = params(query);
        let text = self.cluster.call(api.log_stream(&name, &params)).await;
        let text = text.map_err(|trouble| match trouble {
            Trouble::NotFound => BackendError::NotFound(key),
            other => other.into(),
        })?;
        Ok(pieces(Box::pin(text)))
    }
}

fn is_asked_for(pod: &Pod, query: &LogQuery) -> bool {
    slip(pod).is_some_and(|slip| {
        let role = slip.role == query.role || (query.role.is_empty() && slip.order == 0);
        role && slip.rank == query.rank
    })
}

fn params(query: LogQuery) -> LogParams {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    LogParams {
        container: Some(query.container).filter(|name| !name.is_empty()),
        follow: query.follow,
        previous: query.previous,
        since_seconds: query
            .since
            .map(|since| whole(since.0.div_ceil(1000).max(1))),
        tail_lines: query.tail.map(whole),
        timestamps: query.timestamps,
        ..LogParams::default()
    }
}

fn pieces(
    text: std::pin::Pin<Box<dyn AsyncBufRead + Send>>,
) -> BoxStream<'static, Result<Bytes, BackendError>> {
    let next = |text: Option<std::pin::Pin<Box<dyn AsyncBufRead + Send>>>| async move {
        let mut text = text?;
        let mut piece = vec![0; PIECE];
        match text.read(&mut piece).await {
            Ok(0) => None,
            Ok(length) => {
                piece.truncate(length);
                Some((Ok(Bytes::from(piece)), Some(text)))
            }
            Err(error) => {
                let error = trouble(&kube::Error::ReadEvents(error));
                Some((Err(error.into()), None))
            }
        }
    };
    futures::stream::unfold(Some(text), next).boxed()
}
