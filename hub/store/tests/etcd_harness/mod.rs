//! Real etcd processes for tests: on free loopback ports, in a folder of their own.
//!
//! Owns finding the binary, starting, killing and restarting members. Every process ends with its
//! test, also with one that panics.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use etcd_client::Client;
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use tempfile::TempDir;

const BINARY: &str = "MERIDIAN_ETCD";
/// Longest wait for a member: a cold start on a busy machine.
const START_LIMIT: Millis = Millis::seconds(60);

/// Members of one cluster.
pub(crate) struct Etcd {
    pub(crate) members: Vec<Member>,
    _folder: TempDir,
}

/// One member, alive or killed.
pub(crate) struct Member {
    pub(crate) url: String,
    binary: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Etcd {
    /// A new cluster of `size` members, ready for calls. `None`, and said aloud, when there is
    /// no etcd on this machine; in CI that fails the test.
    pub(crate) async fn start(size: usize, more_arguments: &[&str]) -> Option<Self> {
        let binary = binary()?;
        let folder = tempfile::tempdir().expect("a folder");
        let ports: Vec<(u16, u16)> = (0..size).map(|_| (free_port(), free_port())).collect();
        let peer = |n: usize| format!("http://127.0.0.1:{}", ports[n].1);
        let cluster: Vec<String> = (0..size).map(|n| format!("m{n}={}", peer(n))).collect();
        let member = |n: usize| {
            let url = format!("http://127.0.0.1:{}", ports[n].0);
            let data = folder.path().join(format!("m{n}"));
            let mut arguments = vec![
                format!("--name=m{n}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls={}", peer(n)),
                format!("--initial-advertise-peer-urls={}", peer(n)),
                format!("--initial-cluster={}", cluster.join(",")),
                "--log-level=error".to_owned(),
            ];
            arguments.extend(more_arguments.iter().map(|&argument| argument.to_owned()));
            Member {
                url,
                binary: binary.clone(),
                arguments,
                child: None,
            }
        };
        let mut members: Vec<Member> = (0..size).map(member).collect();
        for member in &mut members {
            member.start();
        }
        for member in &members {
            member.is_ready().await;
        }
        Some(Self {
            members,
            _folder: folder,
        })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| member.url.clone())
            .collect()
    }

    /// Index of the member that leads.
    pub(crate) async fn leader(&self) -> usize {
        for (index, member) in self.members.iter().enumerate() {
            let client = Client::connect([&member.url], None)
                .await
                .expect("connected");
            let status = client
                .maintenance_client()
                .status()
                .await
                .expect("its status");
            let id = status.header().expect("a header").member_id();
            if id == status.leader() {
                return index;
            }
        }
        panic!("nobody leads");
    }
}

impl Member {
    /// Starts the process; its data is what it was.
    pub(crate) fn start(&mut self) {
        let mut command = Command::new(&self.binary);
        let command = command
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().expect("etcd starts"));
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// SIGSTOP, and waits until no thread of it runs.
    pub(crate) async fn freeze(&self) {
        let id = self.signal("STOP");
        let is_stopped = |thread: std::fs::DirEntry| {
            let status = std::fs::read_to_string(thread.path().join("status"));
            status.is_ok_and(|status| status.contains("State:\tT"))
        };
        let clock = Clock::real();
        let frozen = async {
            let threads = || std::fs::read_dir(format!("/proc/{id}/task")).expect("its threads");
            while !threads().flatten().all(is_stopped) {
                clock.sleep(Millis(1)).await;
            }
        };
        clock
            .timeout(START_LIMIT, frozen)
            .await
            .expect("etcd stands still in time");
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) -> u32 {
        let id = self.child.as_ref().expect("alive").id();
        let sent = Command::new("kill")
            .args(["-s", name, &id.to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "signal {name}");
        id
    }

    /// Waits until it answers, which it does when its cluster has a leader.
    pub(crate) async fn is_ready(&self) {
        let clock = Clock::real();
        let ready = async {
            loop {
                let asked = Box::pin(async {
                    let mut client = Client::connect([&self.url], None).await?;
                    client.get("ready", None).await
                });
                if let Ok(Ok(_)) = clock.timeout(Millis::seconds(2), asked).await {
                    return;
                }
                clock.sleep(Millis(20)).await;
            }
        };
        clock
            .timeout(START_LIMIT, ready)
            .await
            .expect("etcd is ready in time");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn binary() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kube-tools/etcd");
    let binary = std::env::var_os(BINARY).map_or(built, PathBuf::from);
    if binary.is_file() {
        return Some(binary);
    }
    let how = format!(
        "no etcd at {}: build it with e2e/kubernetes/build.sh, or name one in {BINARY}",
        binary.display()
    );
    assert!(std::env::var_os("CI").is_none(), "{how}");
    eprintln!("SKIPPED, this test wants a real etcd: {how}");
    None
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}
