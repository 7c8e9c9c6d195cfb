//! Fake GPUs: the device plugin of one real node, whose devices a test can break.
//!
//! Owns what the kubelet is told about them. A device that turns unhealthy is how an Xid is
//! rehearsed: the kubelet lowers what the node can give, and running pods stay.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use futures::Stream;
use hyper_util::rt::TokioIo;
use meridian_runtime::{Clock, Tasks};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use self::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use self::v1beta1::registration_client::RegistrationClient;
use self::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use super::{MemberError, NODE_LIMIT, until};

/// Generated from `e2e/kubernetes/protos`; held fresh by a test.
#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated code, documented in the .proto files"
)]
#[rustfmt::skip]
#[path = "gen/v1beta1.rs"]
mod v1beta1;

/// Name of our socket beside the kubelet's.
const SOCKET: &str = "gpus.sock";
/// The variable that tells a container which devices it was given, as NVIDIA's own plugin does.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The GPUs of one real node.
#[derive(Debug)]
pub struct FakeGpus {
    node: String,
    resource: String,
    /// The kubelet's folder of plugins, its own though every kubelet calls it the same.
    folder: PathBuf,
    /// Per device, in order of its number: true = healthy.
    health: watch::Sender<Vec<bool>>,
    /// Whether it gives what it offers.
    gives: watch::Sender<bool>,
    /// What serves the kubelet's present life.
    serving: Option<Tasks>,
}

impl FakeGpus {
    /// `count` devices called `resource`, all healthy; no kubelet knows of them yet. `library`: the
    /// node's own `/var/lib/kubelet`.
    pub(super) fn new(node: &str, resource: &str, count: u16, library: &Path) -> Self {
        Self {
            node: node.to_owned(),
            resource: resource.to_owned(),
            folder: library.join("device-plugins"),
            health: watch::Sender::new(vec![true; usize::from(count)]),
            gives: watch::Sender::new(true),
            serving: None,
        }
    }

    /// Waits until the kubelet listens, serves it and registers. After each start of the kubelet:
    /// it removes the sockets that it finds.
    ///
    /// The kubelet could also find the socket by itself in its `plugins_registry`, but there it
    /// names the path as the request's authority, which a server in Rust must refuse.
    pub(super) async fn register(&mut self, clock: &Clock) -> Result<(), MemberError> {
        let listens = format!("the kubelet of {} takes device plugins", self.node);
        let kubelet = self.folder.join("kubelet.sock");
        let channel = async || Ok(dial(kubelet.clone()).await);
        let channel = until(clock, listens, NODE_LIMIT, channel).await?;
        self.serve()?;
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: SOCKET.to_owned(),
            resource_name: self.resource.clone(),
            options: None,
        };
        let registered = RegistrationClient::new(channel).register(request).await;
        let refused = |status: Status| MemberError::Command {
            what: format!("registering the GPUs of {}", self.node),
            output: status.to_string(),
        };
        registered.map(|_| ()).map_err(refused)
    }

    fn serve(&mut self) -> Result<(), MemberError> {
        if let Some(before) = self.serving.take() {
            before.kill();
        }
        let socket = self.folder.join(SOCKET);
        // That of a kubelet's former life, unless its present one has removed it.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket);
        let listener = listener.map_err(MemberError::system("cannot listen on", &socket))?;
        let plugin = Plugin {
            node: self.node.clone(),
            health: self.health.subscribe(),
            gives: self.gives.subscribe(),
        };
        let tasks = Tasks::new();
        let stopped = tasks.cancelled();
        let serving = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                stopped.cancelled().await;
            });
        tasks.spawn(format!("GPUs of {}", self.node), serving);
        self.serving = Some(tasks);
        Ok(())
    }

    /// Breaks a device, or mends it. The node's allocatable GPUs follow within a second or two.
    ///
    /// # Panics
    /// When the node has no device of that number.
    pub fn set_healthy(&self, device: usize, is_healthy: bool) {
        self.health
            .send_modify(|devices| devices[device] = is_healthy);
    }

    /// Gives what it offers, or not: then the node lies about what can be had there, and its
    /// kubelet refuses every pod that asks for a device.
    pub fn set_giving(&self, gives: bool) {
        self.gives.send_replace(gives);
    }
}

impl Drop for FakeGpus {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.kill();
        }
    }
}

/// A connection to a socket that is listened on.
async fn dial(socket: PathBuf) -> Option<Channel> {
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The address is not looked at: the connector knows where to go.
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connect).await.ok()
}

/// What the kubelet talks to.
#[derive(Clone, Debug)]
struct Plugin {
    node: String,
    health: watch::Receiver<Vec<bool>>,
    gives: watch::Receiver<bool>,
}

impl Plugin {
    fn list(node: &str, health: &[bool]) -> ListAndWatchResponse {
        let device = |(number, is_healthy): (usize, &bool)| Device {
            id: format!("GPU-{node}-{number}"),
            health: if *is_healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        };
        let devices = health.iter().enumerate().map(device).collect();
        ListAndWatchResponse { devices }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let node = self.node.clone();
        let lists = WatchStream::new(self.health.clone());
        let lists = lists.map(move |health| Ok(Self::list(&node, &health)));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("every device is as good as another"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        if !*self.gives.borrow() {
            return Err(Status::internal("no such device"));
        }
        let containers = request.into_inner().container_requests.into_iter();
        let container_responses = containers
            .map(|container| ContainerAllocateResponse {
                envs: BTreeMap::from([(VISIBLE.to_owned(), container.devices_ids.join(","))]),
            })
            .collect();
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
