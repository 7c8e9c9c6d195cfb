//! Programs that tests start: the real tools that the set-up builds, and our own binaries.
//!
//! Owns where they are, and what happens when one is missing: an error in CI, a named skip on a
//! developer's machine. Never builds one.

use std::path::{Path, PathBuf};

/// A tool that `make setup` builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// The store's server.
    Etcd,
    /// The client that people use.
    Kubectl,
    /// A member cluster's API.
    ApiServer,
    /// Its controllers.
    ControllerManager,
    /// Its scheduler, for tests of a race with it.
    Scheduler,
    /// Runs pods on a real node.
    Kubelet,
    /// Plays nodes that are not there.
    Kwok,
    /// Runs containers for a kubelet.
    Containerd,
    /// Stands between containerd and one pod.
    Shim,
    /// Containerd's command.
    Ctr,
    /// Makes a container.
    Runc,
    /// Connects a pod to its node.
    Ptp,
    /// Gives pods their addresses.
    HostLocal,
    /// Raises a pod's loopback.
    Loopback,
}

impl Tool {
    /// Its file's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// The variable that names another one to use.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        self.names().1
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Etcd => ("etcd", "MERIDIAN_ETCD"),
            Self::Kubectl => ("kubectl", "MERIDIAN_KUBECTL"),
            Self::ApiServer => ("kube-apiserver", "MERIDIAN_KUBE_APISERVER"),
            Self::ControllerManager => (
                "kube-controller-manager",
                "MERIDIAN_KUBE_CONTROLLER_MANAGER",
            ),
            Self::Scheduler => ("kube-scheduler", "MERIDIAN_KUBE_SCHEDULER"),
            Self::Kubelet => ("kubelet", "MERIDIAN_KUBELET"),
            Self::Kwok => ("kwok", "MERIDIAN_KWOK"),
            Self::Containerd => ("containerd", "MERIDIAN_CONTAINERD"),
            Self::Shim => ("containerd-shim-runc-v2", "MERIDIAN_CONTAINERD_SHIM"),
            Self::Ctr => ("ctr", "MERIDIAN_CTR"),
            Self::Runc => ("runc", "MERIDIAN_RUNC"),
            Self::Ptp => ("ptp", "MERIDIAN_CNI_PTP"),
            Self::HostLocal => ("host-local", "MERIDIAN_CNI_HOST_LOCAL"),
            Self::Loopback => ("loopback", "MERIDIAN_CNI_LOOPBACK"),
        }
    }

    /// True for what other projects' tests take from `KUBEBUILDER_ASSETS` too.
    const fn may_be_brought(self) -> bool {
        matches!(self, Self::Etcd | Self::ApiServer | Self::Kubectl)
    }

    /// Where it is: where its variable says, else in `KUBEBUILDER_ASSETS` when that holds it, else
    /// where the set-up puts it.
    pub fn locate(self) -> Result<PathBuf, MissingTool> {
        let named = std::env::var_os(self.variable()).map(PathBuf::from);
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|_| self.may_be_brought());
        let brought = assets
            .map(|assets| Path::new(&assets).join(self.name()))
            .filter(|path| path.is_file());
        let built = repository().join(".cache/kube-tools");
        find(named.or(brought), &built, self)
    }

    /// The tool, or `None` after saying which test is skipped for want of it.
    ///
    /// # Panics
    /// When it is missing and `CI` is set: there, a skipped test would be a lie.
    #[must_use]
    pub fn or_skip(self, test: &str) -> Option<PathBuf> {
        match self.locate() {
            Ok(path) => Some(path),
            Err(missing) => {
                assert!(std::env::var_os("CI").is_none(), "{test}: {missing}");
                eprintln!("SKIPPED {test}: {missing}");
                None
            }
        }
    }
}

/// A tool is not where it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} is not at {at}: run `make setup`, or set {variable} to one")]
pub struct MissingTool {
    /// Its name.
    pub tool: &'static str,
    /// Where it was looked for.
    pub at: String,
    /// The variable that names another one.
    pub variable: &'static str,
}

fn find(named: Option<PathBuf>, built: &Path, tool: Tool) -> Result<PathBuf, MissingTool> {
    let path = named.unwrap_or_else(|| built.join(tool.name()));
    if path.is_file() {
        return Ok(path);
    }
    let at = path.display().to_string();
    Err(MissingTool {
        tool: tool.name(),
        at,
        variable: tool.variable(),
    })
}

/// One of our own binaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binary {
    /// The hub.
    Hub,
    /// The agent of one member cluster.
    Agent,
    /// The agent, which dies where a test says.
    MortalAgent,
    /// The `meridian` command.
    Cli,
    /// What real nodes run in place of training.
    Trainer,
    /// One real member cluster, until it is told to stop.
    TestCluster,
}

impl Binary {
    const fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub-under-test",
            Self::Agent => "agent-under-test",
            Self::MortalAgent => "mortal-agent",
            Self::Cli => "cli-under-test",
            Self::Trainer => "meridian-trainer",
            Self::TestCluster => "meridian-test-cluster",
        }
    }

    /// Where cargo put it: beside the folder of the test that runs.
    ///
    /// # Panics
    /// When it is not there, which means that cargo was not asked for a test of this crate.
    #[must_use]
    pub fn path(self) -> PathBuf {
        let test = std::env::current_exe().expect("a running test has a file");
        let mut folders = test
            .ancestors()
            .skip(1)
            .map(|folder| folder.join(self.name()));
        let found = folders.by_ref().take(2).find(|path| path.is_file());
        found.unwrap_or_else(|| panic!("{} is not beside {}", self.name(), test.display()))
    }
}

/// The root of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("e2e lies in the repository")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_says_where_and_what_to_do() {
        let missing = find(None, Path::new("nowhere"), Tool::Etcd).expect_err("not there");
        let words = "etcd is not at nowhere/etcd: run `make setup`, or set MERIDIAN_ETCD to one";
        assert_eq!(missing.to_string(), words);
    }

    #[test]
    fn a_named_tool_goes_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let (named, built) = (folder.path().join("mine"), folder.path().join("kubectl"));
        for path in [&named, &built] {
            std::fs::write(path, "").expect("writable");
        }
        assert_eq!(
            find(Some(named.clone()), folder.path(), Tool::Kubectl),
            Ok(named)
        );
        assert_eq!(find(None, folder.path(), Tool::Kubectl), Ok(built));
    }
}
