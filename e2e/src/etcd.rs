//! Real etcd on loopback: one member, or three of which some may be killed.
//!
//! Owns its members' processes, ports and data folders. Never hides a fault: a member that a test
//! kills stays dead until the test starts it.

use std::path::Path;

use meridian_api::units::Millis;

use crate::ports::free_address;
use crate::process::{Harness, Process, ProcessError, ProcessSpec};

/// A member answers within this of its start, also on a busy machine: an election takes one or
/// two seconds, a cold start of the binary one more.
const START_LIMIT: Millis = Millis::seconds(60);
/// Between two asks for a leader while there is none: small beside etcd's election of a second.
const ASK_EVERY: Millis = Millis(50);

/// How many members there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// One: restarted when killed, or nothing works.
    One,
    /// Three: any one may be missing.
    Three,
}

/// Whether etcd waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As in production. A test of durability needs it.
    Fsync,
    /// Faster; survives a kill of the process, not of the machine.
    NoFsync,
}

/// Why there is no leader.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A member's process failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The members that run did not agree in time.
    #[error("etcd has no leader within {0}")]
    NoLeader(Millis),
}

/// An etcd cluster under test.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    clock: meridian_runtime::Clock,
}

#[derive(Debug)]
struct Member {
    process: Process,
    url: String,
}

impl Etcd {
    /// Starts all members of `program` and waits until each answers.
    pub async fn start(
        harness: &Harness,
        program: &Path,
        members: Members,
        durability: Durability,
    ) -> Result<Self, EtcdError> {
        let count = match members {
            Members::One => 1,
            Members::Three => 3,
        };
        let places: Vec<Place> = (0..count).map(Place::new).collect();
        let cluster: Vec<String> = places
            .iter()
            .map(|place| format!("{}={}", place.name, place.peer))
            .collect();
        let mut started = Vec::new();
        for place in places {
            let data = harness.folder(&place.name);
            let spec = place.spec(program, &data, &cluster.join(","), durability);
            started.push(Member {
                process: harness.start(spec)?,
                url: place.client,
            });
        }
        let mut etcd = Self {
            members: started,
            clock: harness.clock().clone(),
        };
        for index in 0..etcd.members.len() {
            etcd.wait_ready(index).await?;
        }
        Ok(etcd)
    }

    /// Client addresses of all members, dead ones too: `http://127.0.0.1:20001`.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| member.url.clone())
            .collect()
    }

    /// Waits until the members that run have a leader, and says which one it is.
    pub async fn leader(&self, limit: Millis) -> Result<usize, EtcdError> {
        let asking = async {
            loop {
                for (index, member) in self.members.iter().enumerate() {
                    if leads(&member.url).await {
                        return index;
                    }
                }
                self.clock.sleep(ASK_EVERY).await;
            }
        };
        self.clock
            .timeout(limit, asking)
            .await
            .map_err(|_| EtcdError::NoLeader(limit))
    }

    /// The processes of all members, dead ones too.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.members.iter().map(|member| &member.process)
    }

    /// The process of a member, to pause, resume or terminate it.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn member(&mut self, index: usize) -> &mut Process {
        &mut self.members[index].process
    }

    /// Kills a member without warning.
    pub async fn kill(&mut self, index: usize) -> Result<(), EtcdError> {
        Ok(self.member(index).kill().await?)
    }

    /// Starts a member that was killed, on its old data, and waits until it answers.
    pub async fn start_again(&mut self, index: usize) -> Result<(), EtcdError> {
        self.member(index).start()?;
        self.wait_ready(index).await
    }

    async fn wait_ready(&mut self, index: usize) -> Result<(), EtcdError> {
        let Member { process, url } = &mut self.members[index];
        process
            .answers(&format!("{url}/readyz"), START_LIMIT)
            .await?;
        Ok(())
    }
}

/// True when the member at `url` says that it leads.
async fn leads(url: &str) -> bool {
    let Ok(mut client) = etcd_client::Client::connect([url], None).await else {
        return false;
    };
    let Ok(status) = client.status().await else {
        return false;
    };
    status
        .header()
        .is_some_and(|header| header.member_id() == status.leader())
}

/// Name and addresses of one member.
struct Place {
    name: String,
    client: String,
    peer: String,
}

impl Place {
    fn new(index: u8) -> Self {
        let url = || format!("http://{}", free_address());
        Self {
            name: format!("etcd-{index}"),
            client: url(),
            peer: url(),
        }
    }

    fn spec(&self, program: &Path, data: &Path, cluster: &str, wait: Durability) -> ProcessSpec {
        let data = data.display().to_string();
        let mut arguments = Vec::new();
        for (flag, value) in [
            ("--name", self.name.as_str()),
            ("--data-dir", &data),
            ("--listen-client-urls", &self.client),
            ("--advertise-client-urls", &self.client),
            ("--listen-peer-urls", &self.peer),
            ("--initial-advertise-peer-urls", &self.peer),
            ("--initial-cluster", cluster),
            ("--log-level", "warn"),
        ] {
            arguments.extend([flag.to_owned(), value.to_owned()]);
        }
        if wait == Durability::NoFsync {
            arguments.push("--unsafe-no-fsync".to_owned());
        }
        ProcessSpec::new(self.name.clone(), program).args(arguments)
    }
}
