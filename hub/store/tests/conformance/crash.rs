//! What the embedded store survives: kill -9, power loss with torn writes, a full disk, and a
//! damaged file, which is refused.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::embedded::Medium;
use meridian_store::{
    EmbeddedOptions, EmbeddedStore, Execution, Op, Operation, Store as _, StoreError, Txn,
};
use redb::{BackendError, Builder, Database, DatabaseError, StorageBackend};

use crate::suite::{Bench, bytes, put, text, under};

const WHY: Operation = Operation::Probe;
const CHILD: &str = "MERIDIAN_STORE_CHILD";

fn two_puts(key: &str, value: &str) -> Txn {
    Txn {
        success: vec![
            put(&format!("a/{key}"), value),
            put(&format!("b/{key}"), value),
        ],
        ..Txn::default()
    }
}

/// Everything acknowledged is there, and every transaction is there whole or not at all.
async fn check(bench: &Bench, acknowledged: &BTreeMap<String, Revision>) {
    let read = |prefix: &'static str| async move {
        let page = bench
            .store
            .range(WHY, under(prefix), usize::MAX >> 1, None)
            .await
            .expect("readable");
        let entries = page.entries.into_iter();
        entries
            .map(|kv| (text(&kv.key)[2..].to_owned(), kv.mod_revision))
            .collect::<BTreeMap<_, _>>()
    };
    let (a, b) = (read("a/").await, read("b/").await);
    assert_eq!(a, b, "both keys of each transaction");
    for (key, revision) in acknowledged {
        assert_eq!(a.get(key), Some(revision), "{key} was acknowledged");
    }
    let newest = bench.store.revision().await.expect("readable");
    assert!(
        a.values()
            .chain(acknowledged.values())
            .all(|revision| *revision <= newest)
    );
    let state = crate::suite::follow(
        bench,
        "a/",
        a.values().max().copied().unwrap_or(Revision(1)),
    )
    .await;
    assert_eq!(state.len(), a.len(), "the log tells the same story");
}

/// The process that is killed. It prints each key when it has been acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run as a child by a_killed_process_loses_nothing_acknowledged"]
async fn child() {
    let (path, round) = std::env::var(CHILD)
        .expect("the file")
        .split_once('|')
        .map(|(path, round)| (path.to_owned(), round.to_owned()))
        .expect("file and round");
    let options = EmbeddedOptions::default();
    let store = EmbeddedStore::open(Path::new(&path), Clock::real(), &Tasks::new(), options);
    let store = &store.expect("opened");
    let writer = |writer: usize| {
        let round = round.clone();
        async move {
            for n in 0.. {
                let key = format!("{round}-{writer}-{n}");
                let done = store.txn(WHY, two_puts(&key, "v")).await.expect("written");
                let line = format!("ack {key} {}\n", done.revision);
                io::stdout()
                    .lock()
                    .write_all(line.as_bytes())
                    .expect("heard");
            }
        }
    };
    futures::future::join_all((0..8).map(writer)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_loses_nothing_acknowledged() {
    let folder = crate::folder();
    let path = folder.path().join("store");
    let mut acknowledged = BTreeMap::new();
    for round in 0..5_usize {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "crash::child", "--ignored", "--nocapture"])
            .env(CHILD, format!("{}|{round}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let (mut line, mut heard) = (String::new(), 0);
        while lines.read_line(&mut line).expect("readable") > 0 {
            if let Some((key, revision)) = line
                .strip_suffix('\n')
                .and_then(|line| line.split_once("ack ")?.1.split_once(' '))
            {
                acknowledged.insert(
                    key.to_owned(),
                    Revision(revision.parse().expect("a number")),
                );
                heard += 1;
                if heard == 100 * (round + 1) {
                    child.kill().expect("killed");
                }
            }
            line.clear();
        }
        child.wait().expect("ended");
        assert!(heard >= 100 * (round + 1), "it wrote until it was killed");
        let bench = crate::embedded(&folder, Clock::real(), EmbeddedOptions::default());
        check(&bench, &acknowledged).await;
        bench.close().await;
    }
}

#[tokio::test]
async fn a_second_hub_is_kept_out() {
    let folder = crate::folder();
    let path = folder.path().join("store");
    let open = || {
        EmbeddedStore::open(
            &path,
            Clock::real(),
            &Tasks::new(),
            EmbeddedOptions::default(),
        )
    };
    let first = open().expect("opened");
    let Err(StoreError::Refused(why)) = open().map(|_| ()) else {
        panic!("opened twice")
    };
    assert!(why.contains("another process"), "{why}");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn leases_begin_anew_after_a_restart() {
    let folder = crate::folder();
    let lease;
    {
        let bench = crate::embedded(&folder, crate::simulated_clock(), crate::SIMULATED);
        lease = bench
            .store
            .grant_lease(Millis::seconds(10))
            .await
            .expect("granted");
        let op = Op::Put {
            key: bytes("l"),
            value: bytes("v"),
            lease: Some(lease),
        };
        bench
            .txn(Txn {
                success: vec![op],
                ..Txn::default()
            })
            .await;
        bench.clock.sleep(Millis::seconds(9)).await;
        bench.close().await;
    }
    let bench = crate::embedded(&folder, crate::simulated_clock(), crate::SIMULATED);
    bench.clock.sleep(Millis::seconds(9)).await;
    assert!(bench.get("l").await.is_some(), "its time began again");
    let next = bench
        .store
        .grant_lease(Millis::seconds(10))
        .await
        .expect("granted");
    assert_ne!(next, lease, "no lease is given out twice");
    bench.clock.sleep(Millis::seconds(2)).await;
    assert!(bench.get("l").await.is_none(), "but it does end");
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let folder = crate::folder();
    let path = folder.path().join("store");
    {
        let bench = crate::embedded(&folder, Clock::real(), EmbeddedOptions::default());
        for n in 0..500 {
            bench.put(&format!("a/{n}"), &"v".repeat(500)).await;
        }
        bench.close().await;
    }
    let whole = std::fs::read(&path).expect("readable");
    let open = |image: &[u8]| {
        let damaged = folder.path().join("damaged");
        std::fs::write(&damaged, image).expect("written");
        EmbeddedStore::open(
            &damaged,
            Clock::real(),
            &Tasks::new(),
            EmbeddedOptions::default(),
        )
    };
    assert!(open(&whole).is_ok(), "a copy is as good");
    assert!(
        open(&whole[..whole.len() / 2]).is_err(),
        "half of it is gone"
    );
    let mut torn = whole.clone();
    let middle = whole.len() / 4;
    torn[middle..middle + 100_000].fill(0x5a);
    assert!(open(&torn).is_err(), "a part is garbage");
    assert!(open(&b"not a store at all".repeat(1000)).is_err());
}

/// A disk in memory that forgets what was not synced, in parts, when the power goes.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Platters>>);

#[derive(Debug, Default)]
struct Platters {
    durable: Vec<u8>,
    live: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Writes until the power goes; `None` for ever.
    writes_left: Option<u32>,
    room: Option<u64>,
}

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

impl Disk {
    fn with<T>(&self, work: impl FnOnce(&mut Platters) -> T) -> T {
        work(&mut self.0.lock().expect("unpoisoned"))
    }

    /// The disk after the power came back: of what was not synced, any write may have happened
    /// or not, and one may have stopped at any sector.
    fn after_power_loss(&self, random: &Random) -> Self {
        self.with(|platters| {
            let mut image = platters.durable.clone();
            for (offset, data) in &platters.unsynced {
                let sectors = data.len().div_ceil(SECTOR) as u64;
                let kept = match random.below(3) {
                    0 => 0,
                    1 => data.len(),
                    _ => {
                        let whole = usize::try_from(random.below(sectors + 1)).expect("small");
                        data.len().min(SECTOR * whole)
                    }
                };
                write_at(&mut image, *offset, &data[..kept]);
            }
            image.resize(image.len().max(platters.durable.len()), 0);
            let platters = Platters {
                durable: image.clone(),
                live: image,
                ..Platters::default()
            };
            Self(Arc::new(Mutex::new(platters)))
        })
    }
}

fn write_at(image: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).expect("small");
    if image.len() < start + data.len() {
        image.resize(start + data.len(), 0);
    }
    image[start..start + data.len()].copy_from_slice(data);
}

fn dark() -> io::Error {
    io::Error::other("the power is gone")
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|platters| platters.live.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|platters| {
            let start = usize::try_from(offset).expect("small");
            let found = platters.live.get(start..start + out.len());
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|platters| {
            if platters.writes_left == Some(0) {
                return Err(dark());
            }
            if platters.room.is_some_and(|room| len > room) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let len = usize::try_from(len).expect("small");
            platters.live.resize(len, 0);
            // The length itself is journalled by the file system.
            platters.durable.resize(len, 0);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|platters| {
            if platters.writes_left == Some(0) {
                return Err(dark());
            }
            platters.durable = platters.live.clone();
            platters.unsynced.clear();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|platters| {
            if platters.writes_left == Some(0) {
                return Err(dark());
            }
            platters.writes_left = platters.writes_left.map(|left| left - 1);
            write_at(&mut platters.live, offset, data);
            platters.unsynced.push((offset, data.to_vec()));
            Ok(())
        })
    }

    fn try_lock_range(
        &self,
        _: std::ops::Bound<u64>,
        _: std::ops::Bound<u64>,
    ) -> Result<bool, BackendError> {
        Err(BackendError::Unsupported)
    }
}

impl Medium for Disk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        builder.create_with_backend(self.clone())
    }
}

fn on_disk(disk: &Disk, clock: &Clock) -> Bench {
    let (medium, tasks) = (Box::new(disk.clone()), Tasks::new());
    let store = EmbeddedStore::open_on(medium, clock.clone(), &tasks, Execution::Inline);
    Bench {
        store: Arc::new(store.expect("opened")),
        clock: clock.clone(),
        tasks,
    }
}

#[tokio::test(start_paused = true)]
async fn power_loss_with_torn_writes_loses_nothing_acknowledged() {
    let clock = crate::simulated_clock();
    let random = Random::seeded(11);
    let mut disk = Disk::default();
    let mut acknowledged = BTreeMap::new();
    let mut lost_power = 0;
    for life in 0..40 {
        let bench = on_disk(&disk, &clock);
        check(&bench, &acknowledged).await;
        let writes_left = u32::try_from(random.below(400)).expect("small");
        disk.with(|platters| platters.writes_left = Some(writes_left));
        for n in 0..10 {
            // Several at once share one durable write.
            let keys: Vec<String> = (0..8).map(|w| format!("{life}-{n}-{w}")).collect();
            let value = "v".repeat(usize::try_from(random.below(2000)).expect("small"));
            let writes = keys
                .iter()
                .map(|key| bench.store.txn(WHY, two_puts(key, &value)));
            for (key, done) in keys.iter().zip(futures::future::join_all(writes).await) {
                match done {
                    Ok(done) => drop(acknowledged.insert(key.clone(), done.revision)),
                    Err(StoreError::Unavailable(_)) => lost_power += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
        disk = disk.after_power_loss(&random);
    }
    assert!(
        lost_power > 100 && acknowledged.len() > 100,
        "both happened"
    );
}

/// Writes until the disk is full; answers what the store said then.
async fn fill(bench: &Bench, acknowledged: &mut BTreeMap<String, Revision>) -> StoreError {
    loop {
        let key = acknowledged.len().to_string();
        match bench
            .store
            .txn(WHY, two_puts(&key, &"v".repeat(20_000)))
            .await
        {
            Ok(done) => drop(acknowledged.insert(key, done.revision)),
            Err(error) => return error,
        }
        assert!(acknowledged.len() < 1000, "the disk has an end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_stops_writes_but_not_reads() {
    let clock = crate::simulated_clock();
    let disk = Disk::default();
    let bench = on_disk(&disk, &clock);
    let mut acknowledged = BTreeMap::new();
    let lease = bench
        .store
        .grant_lease(Millis::seconds(60))
        .await
        .expect("granted");
    disk.with(|platters| platters.room = Some(platters.live.len() as u64 + 1_000_000));
    let mut stream = bench.watch("a/", Revision(2)).await;
    let full = fill(&bench, &mut acknowledged).await;
    assert!(matches!(full, StoreError::Full(_)), "{full:?}");
    assert!(!acknowledged.is_empty());
    check(&bench, &acknowledged).await;
    let revision = bench.store.revision().await.expect("readable");
    let read = Txn {
        success: vec![Op::Get { key: bytes("a/0") }],
        ..Txn::default()
    };
    assert!(
        bench.txn(read).await.reads[0].is_some(),
        "a reading transaction goes on"
    );
    bench
        .store
        .renew_lease(lease)
        .await
        .expect("renewals go on");
    let again = bench
        .store
        .txn(WHY, two_puts("again", &"v".repeat(20_000)))
        .await;
    assert!(matches!(again, Err(StoreError::Full(_))), "{again:?}");
    assert_eq!(
        bench.store.revision().await,
        Ok(revision),
        "nothing was done"
    );
    for _ in 0..acknowledged.len() {
        bench.next_events(&mut stream).await;
    }

    disk.with(|platters| platters.room = None);
    bench.clock.sleep(Millis::seconds(2)).await;
    let after = bench.txn(two_puts("after", "v")).await.revision;
    acknowledged.insert("after".to_owned(), after);
    assert_eq!(after, Revision(revision.0 + 1));
    assert_eq!(
        bench.next_events(&mut stream).await.revision,
        after,
        "watchers go on"
    );
    drop(stream);
    bench.close().await;
    check(&on_disk(&disk, &clock), &acknowledged).await;
}

/// The same on a real file system that ends, where the tests may mount one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_system_stops_writes_but_not_reads() {
    let mount = crate::folder();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(mount.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("SKIPPED: a_full_file_system_stops_writes_but_not_reads (may not mount a tmpfs)");
        return;
    }
    let _unmount = Unmount(mount.path());
    let bench = crate::embedded(&mount, Clock::real(), EmbeddedOptions::default());
    let mut acknowledged = BTreeMap::new();
    let full = fill(&bench, &mut acknowledged).await;
    assert!(matches!(full, StoreError::Full(_)), "{full:?}");
    assert!(acknowledged.len() > 10);
    check(&bench, &acknowledged).await;
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        // Lazily: the store may still have its file open.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
