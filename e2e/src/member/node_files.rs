//! What a real node is told in files: containerd, its network and its kubelet.
//!
//! Owns their text. Never writes one.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::image::PAUSE_IMAGE;
use super::network::Subnet;

/// Pods of one node: more than any test binds to one, fewer than it has addresses for.
const PODS: u16 = 60;

/// Configuration of a node's own containerd. `tools` holds its helpers, `folder` is its own.
///
/// A shared one would let each kubelet kill the other's pods. `restrict_oom_score_adj`: without
/// `CAP_SYS_RESOURCE`, as in many build machines, runc could not start anything.
pub(super) fn containerd(folder: &Path, runc: &Path, plugins: &Path) -> String {
    let cri = "io.containerd.cri.v1";
    let runtime = format!("plugins.'{cri}.runtime'.containerd.runtimes.runc");
    format!(
        "version = 3\n\
         root = '{folder}/root'\n\
         state = '{folder}/state'\n\
         [grpc]\naddress = '{folder}/containerd.sock'\n\
         [plugins.'{cri}.images']\nsnapshotter = 'overlayfs'\n\
         [plugins.'{cri}.images'.pinned_images]\nsandbox = '{PAUSE_IMAGE}'\n\
         [plugins.'{cri}.runtime']\nrestrict_oom_score_adj = true\n\
         netns_mounts_under_state_dir = true\n\
         [plugins.'{cri}.runtime'.cni]\nbin_dirs = ['{plugins}']\nconf_dir = '{folder}/cni'\n\
         [{runtime}]\nruntime_type = 'io.containerd.runc.v2'\n\
         [{runtime}.options]\nBinaryName = '{runc}'\n\
         [plugins.'io.containerd.internal.v1.opt']\npath = '{folder}/opt'\n\
         [plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
        folder = folder.display(),
        runc = runc.display(),
        plugins = plugins.display(),
    )
}

/// How pods get addresses: a pair of links to their node, which routes.
pub(super) fn network(folder: &Path, subnet: Subnet) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "member",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": folder.join("addresses"),
                "ranges": [[{"subnet": subnet.pods()}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

/// Configuration of a kubelet, JSON being YAML. Several kubelets share the machine's cgroups, so
/// none may claim a hierarchy of its own.
pub(super) fn kubelet(folder: &Path, authority: &Path, subnet: Subnet) -> Value {
    let socket = folder.join("containerd/containerd.sock");
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": subnet.address(),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi"},
        "failCgroupV1": false,
        "failSwapOn": false,
        // A broken device is seen within a second instead of ten.
        "nodeStatusUpdateFrequency": "1s",
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        "maxPods": PODS,
        "oomScoreAdj": 0,
        "podLogsDir": folder.join("logs"),
        "readOnlyPort": 0,
        "resolvConf": "",
        "volumePluginDir": folder.join("volume-plugins"),
    })
}

/// The first process of a node's namespaces, as a shell script. It takes in what its containers
/// leave orphaned, and when it ends, the kernel ends the rest.
///
/// `/run` and the folders that kubelet and containerd use whatever they are told become the
/// node's own.
pub(super) fn init(folder: &Path) -> String {
    let mut script = "set -e\n".to_owned();
    for path in HOST_FOLDERS {
        let own = own(folder, path);
        let own = own.display();
        let _ = writeln!(script, "mkdir -p '{own}' '{path}'");
        let _ = writeln!(script, "mount --bind '{own}' '{path}'");
    }
    let _ = write!(
        script,
        "mount -t tmpfs run /run\nip link set lo up\necho {UP}\nsleep infinity &\nwait\n"
    );
    script
}

/// Where a folder of [`HOST_FOLDERS`] of the node lies on the machine.
fn own(folder: &Path, path: &str) -> PathBuf {
    folder.join("host").join(path.trim_start_matches('/'))
}

/// Where the node's own `/var/lib/kubelet` lies on the machine.
pub(super) fn own_library(folder: &Path) -> PathBuf {
    own(folder, HOST_FOLDERS[0])
}

/// What the first process says when the namespaces are as they should be.
pub(super) const UP: &str = "namespaces are up";

/// Folders that are compiled into kubelet (its device checkpoint, its links to logs) and into the
/// network library.
const HOST_FOLDERS: [&str; 3] = ["/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"];

/// The machine's end of a node's link, as a shell script; `init` is the node's first process.
pub(super) fn host_link(subnet: Subnet, init: u32) -> String {
    let device = subnet.device();
    format!(
        "set -e\n\
         ip link add {device} type veth peer name eth0 netns {init}\n\
         ip addr add {host}/30 dev {device}\n\
         ip link set {device} up\n\
         ip route add {pods} via {address} dev {device}\n\
         echo 1 >/proc/sys/net/ipv4/ip_forward\n",
        host = subnet.host(),
        pods = subnet.pods(),
        address = subnet.address(),
    )
}

/// The node's end of its link.
pub(super) fn node_link(subnet: Subnet) -> String {
    format!(
        "set -e\n\
         ip addr add {address}/30 dev eth0\n\
         ip link set eth0 up\n\
         ip route add default via {host}\n\
         echo 1 >/proc/sys/net/ipv4/ip_forward\n",
        host = subnet.host(),
        address = subnet.address(),
    )
}
