//! One real node: namespaces of its own, containerd, a kubelet and fake GPUs.
//!
//! Owns their order: what starts later is ended first, and the node's first process last, with
//! which the kernel ends every container. Never binds a pod.

use std::path::{Path, PathBuf};

use meridian_api::units::Millis;
use rustix::process::{Pid, Signal};

use super::control_plane::{ControlPlane, MemoryUse, resident_kib};
use super::devices::FakeGpus;
use super::files::{kubeconfig, make, write};
use super::network::Subnet;
use super::place::{Place, marked_processes};
use super::{LOOK_EVERY, MemberError, MemberOptions, NODE_LIMIT, node_files};
use crate::process::{Harness, Process, ProcessSpec};
use crate::tools::Tool;

/// For commands that ask the kernel or containerd for one thing.
const COMMAND_LIMIT: Millis = Millis::seconds(60);

/// What a node is built on.
pub(super) struct Ground<'a> {
    pub(super) harness: &'a Harness,
    pub(super) place: &'a Place,
    pub(super) control_plane: &'a ControlPlane,
    pub(super) options: &'a MemberOptions,
}

/// A node that runs containers.
#[derive(Debug)]
pub struct RealNode {
    // In this order they go.
    kubelet: Process,
    containerd: Process,
    init: Process,
    gpus: FakeGpus,
    name: String,
    folder: PathBuf,
    subnet: Subnet,
}

impl RealNode {
    /// Starts node number `subnet.node()`. Its kubelet may not be Ready yet.
    pub(super) async fn start(ground: &Ground<'_>, subnet: Subnet) -> Result<Self, MemberError> {
        let Ground { harness, place, .. } = ground;
        let name = format!("node-{}", subnet.node());
        let folder = place.folder().join(&name);
        make(&folder)?;
        let mut init = harness.start(namespaces(&name, &folder))?;
        init.line(node_files::UP, NODE_LIMIT).await?;
        let id = init.id().ok_or_else(|| MemberError::Command {
            what: format!("making the namespaces of {name}"),
            output: init.lines().join("\n"),
        })?;
        run(harness, &shell("link", &node_files::host_link(subnet, id))).await?;
        let link = inside(id, shell("link", &node_files::node_link(subnet)));
        run(harness, &link).await?;
        let mut containerd = harness.start(inside(id, containerd(&folder, &name, subnet)?))?;
        answers(harness, &mut containerd, &folder).await?;
        let options = ground.options;
        let library = node_files::own_library(&folder);
        let (resource, count) = (&options.gpu_resource, options.gpus_per_node);
        let mut gpus = FakeGpus::new(&name, resource, count, &library);
        let kubelet = kubelet(ground, &folder, &name, subnet)?;
        let mut kubelet = harness.start(inside(id, kubelet))?;
        let registering = gpus.register(harness.clock());
        let taken = "it takes the GPUs";
        kubelet
            .unless_ended(taken, NODE_LIMIT, registering)
            .await??;
        Ok(Self {
            kubelet,
            containerd,
            init,
            gpus,
            name,
            folder,
            subnet,
        })
    }

    /// Gives the node the images of an archive.
    pub(super) async fn import(
        &self,
        harness: &Harness,
        archive: &Path,
    ) -> Result<(), MemberError> {
        let import = ctr(&self.folder)?
            .args(["images", "import"])
            .args([archive]);
        run(harness, &import).await
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its GPUs, to break one.
    #[must_use]
    pub fn gpus(&self) -> &FakeGpus {
        &self.gpus
    }

    /// What its kubelet has logged.
    #[must_use]
    pub fn kubelet_log(&self) -> Vec<String> {
        self.kubelet.lines()
    }

    /// The end of what its kubelet has logged.
    pub(super) fn last_words(&self) -> String {
        self.kubelet.last_lines()
    }

    /// Kills its kubelet: containers run on, and the node falls silent.
    pub async fn kill_kubelet(&mut self) -> Result<(), MemberError> {
        // Who waits for it ends with it; the other way round, the two would not end at once.
        self.signal_kubelet(Signal::KILL)?;
        self.kubelet.ended(COMMAND_LIMIT).await?;
        Ok(())
    }

    /// Stops its kubelet where it stands: containers run on, and the node falls silent.
    pub fn pause_kubelet(&self) -> Result<(), MemberError> {
        self.signal_kubelet(Signal::STOP)
    }

    /// Its kubelet goes on after a pause.
    pub fn resume_kubelet(&self) -> Result<(), MemberError> {
        self.signal_kubelet(Signal::CONT)?;
        // Who waits for it stopped with it.
        Ok(self.kubelet.resume()?)
    }

    /// The kubelet is the child of who entered the node's namespaces.
    fn signal_kubelet(&self, signal: Signal) -> Result<(), MemberError> {
        let id = self.kubelet.id().unwrap_or_default();
        let path = PathBuf::from(format!("/proc/{id}/task/{id}/children"));
        let children = std::fs::read_to_string(&path);
        let children = children.map_err(MemberError::system("cannot read", &path))?;
        for child in children.split_whitespace() {
            let child = child.parse().ok().and_then(Pid::from_raw);
            if let Some(child) = child {
                let sent = rustix::process::kill_process(child, signal);
                sent.map_err(|error| MemberError::system("cannot signal", &path)(error.into()))?;
            }
        }
        Ok(())
    }

    /// Starts its kubelet again and gives it the GPUs.
    pub async fn start_kubelet(&mut self, harness: &Harness) -> Result<(), MemberError> {
        self.kubelet.start()?;
        self.gpus.register(harness.clock()).await
    }

    /// Cuts its link, or mends it: everything on the node runs on, out of reach.
    pub async fn set_linked(&self, harness: &Harness, is_linked: bool) -> Result<(), MemberError> {
        let state = if is_linked { "up" } else { "down" };
        let device = self.subnet.device();
        let change = format!("ip link set {device} {state}");
        run(harness, &shell("link", &change)).await?;
        if !is_linked {
            return Ok(());
        }
        // Routes go with a link that is down.
        let (pods, address) = (self.subnet.pods(), self.subnet.address());
        let route = format!("ip route replace {pods} via {address} dev {device}");
        run(harness, &shell("route", &route)).await
    }

    /// Loses the node: everything on it ends at once, as when its power is cut.
    pub async fn lose(&mut self) -> Result<(), MemberError> {
        Ok(self.init.kill().await?)
    }

    /// Resident memory of its kubelet and its containerd, which are children of ours.
    pub(super) fn memory(&self) -> Vec<MemoryUse> {
        let folder = self.folder.display().to_string();
        let Some(place) = self.folder.parent() else {
            return Vec::new();
        };
        let mut kubelet = 0;
        let mut runtime = 0;
        for pid in marked_processes(place) {
            let id = pid.as_raw_nonzero().get().unsigned_abs();
            let command = std::fs::read_to_string(format!("/proc/{id}/cmdline"));
            let command = command.unwrap_or_default();
            let program = command.split('\0').next().unwrap_or_default();
            match Path::new(program)
                .file_name()
                .and_then(|name| name.to_str())
            {
                Some("kubelet") if command.contains(&folder) => kubelet += resident_kib(id),
                Some("containerd" | "containerd-shim-runc-v2") if command.contains(&folder) => {
                    runtime += resident_kib(id);
                }
                _ => {}
            }
        }
        let of = |what: &str, kib| MemoryUse {
            process: format!("{} {what}", self.name),
            kib,
        };
        vec![of("kubelet", kubelet), of("containerd and shims", runtime)]
    }

    /// Ends the node and waits for it.
    pub(super) async fn stop(mut self) -> Result<(), MemberError> {
        for process in [&mut self.kubelet, &mut self.containerd, &mut self.init] {
            if process.id().is_some() {
                process.kill().await?;
            }
        }
        Ok(())
    }
}

/// New namespaces with a first process. Whoever kills it, or this harness, ends all within.
fn namespaces(name: &str, folder: &Path) -> ProcessSpec {
    ProcessSpec::new(format!("{name} namespaces"), "unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child=KILL"])
        .args(["--mount-proc", "sh", "-c", &node_files::init(folder)])
}

/// Runs a program within the namespaces of the `unshare` that has that id.
fn inside(id: u32, spec: ProcessSpec) -> ProcessSpec {
    let namespaces = [
        ("net", "net"),
        ("mount", "mnt"),
        ("pid", "pid_for_children"),
    ];
    let namespaces = namespaces.map(|(flag, name)| format!("--{flag}=/proc/{id}/ns/{name}"));
    // The one that enters stays outside and waits: when it is killed, so is who went in.
    let bond = ["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned);
    spec.wrapped("nsenter", namespaces.into_iter().chain(bond))
}

fn shell(name: &str, script: &str) -> ProcessSpec {
    ProcessSpec::new(name, "sh").args(["-c", script])
}

fn containerd(folder: &Path, name: &str, subnet: Subnet) -> Result<ProcessSpec, MemberError> {
    let own = folder.join("containerd");
    let plugins = [Tool::Ptp, Tool::HostLocal, Tool::Loopback].map(Tool::locate);
    let mut plugin_folder = PathBuf::new();
    for plugin in plugins {
        plugin_folder = folder_of(&plugin?);
    }
    let config = own.join("config.toml");
    let text = node_files::containerd(&own, &Tool::Runc.locate()?, &plugin_folder);
    write(&config, &text)?;
    let network = node_files::network(&own, subnet);
    write(&own.join("cni/10-member.conflist"), &network.to_string())?;
    let shim = folder_of(&Tool::Shim.locate()?);
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(
        ProcessSpec::new(format!("{name} containerd"), Tool::Containerd.locate()?)
            .args(["--config".as_ref(), config.as_os_str()])
            .args(["--log-level", "warn"])
            .env("PATH", format!("{}:{path}", shim.display())),
    )
}

fn folder_of(program: &Path) -> PathBuf {
    program.parent().map(Path::to_owned).unwrap_or_default()
}

fn ctr(folder: &Path) -> Result<ProcessSpec, MemberError> {
    let socket = folder.join("containerd/containerd.sock");
    Ok(ProcessSpec::new("ctr", Tool::Ctr.locate()?)
        .args(["--address".as_ref(), socket.as_os_str()])
        .args(["--namespace", "k8s.io"]))
}

/// Waits until containerd answers.
async fn answers(
    harness: &Harness,
    containerd: &mut Process,
    folder: &Path,
) -> Result<(), MemberError> {
    let ask = ctr(folder)?.args(["version"]);
    let asking = async {
        loop {
            let answer = harness.output(&ask, COMMAND_LIMIT).await?;
            if answer.status.success() {
                return Ok(());
            }
            harness.clock().sleep(LOOK_EVERY).await;
        }
    };
    let said = "it answers";
    containerd.unless_ended(said, NODE_LIMIT, asking).await?
}

fn kubelet(
    ground: &Ground<'_>,
    folder: &Path,
    name: &str,
    subnet: Subnet,
) -> Result<ProcessSpec, MemberError> {
    let authority = ground.control_plane.authority();
    let user = format!("system:node:{name}");
    let client = authority.client(name, &user, "system:nodes")?;
    let (config, access) = (folder.join("kubelet.json"), folder.join("kubeconfig"));
    let server = ground.control_plane.url_for(subnet);
    write(
        &access,
        &kubeconfig(&server, &authority.certificate(), &client),
    )?;
    let text = node_files::kubelet(folder, &authority.certificate(), subnet);
    write(&config, &text.to_string())?;
    let labels = ground.options.labels_of(usize::from(subnet.node()));
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let flags = [
        ("config", config.display().to_string()),
        ("kubeconfig", access.display().to_string()),
        ("root-dir", folder.join("kubelet").display().to_string()),
        (
            "cert-dir",
            folder.join("certificates").display().to_string(),
        ),
        ("hostname-override", name.to_owned()),
        ("node-ip", subnet.address().to_string()),
        ("node-labels", labels.join(",")),
    ];
    let flags = flags.map(|(name, value)| format!("--{name}={value}"));
    let program = Tool::Kubelet.locate()?;
    Ok(ProcessSpec::new(format!("{name} kubelet"), program).args(flags))
}

/// Runs a command to its end.
async fn run(harness: &Harness, spec: &ProcessSpec) -> Result<(), MemberError> {
    let output = harness.output(spec, COMMAND_LIMIT).await?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(MemberError::Command {
        what: spec.name().to_owned(),
        output: String::from_utf8_lossy(&text).trim().to_owned(),
    })
}
