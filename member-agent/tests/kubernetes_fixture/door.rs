//! A door in front of an API server, which a test may shut.
//!
//! Owns a TCP proxy. Shut, it refuses and cuts every connection; one way, it takes requests and
//! keeps the answers until it is open again. Never looks into what passes.

use meridian_runtime::Tasks;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Everything.
    Open,
    /// Requests.
    Requests,
    /// Nothing.
    Shut,
}

/// The door.
pub struct Door {
    port: u16,
    way: watch::Sender<Way>,
}

impl Door {
    /// A door to the server at `port` of this machine.
    pub async fn open(port: u16, tasks: &Tasks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("bound").port();
        let (way, seen) = watch::channel(Way::Open);
        let group = tasks.clone();
        tasks.spawn_finite("door", async move {
            while let Ok((caller, _)) = listener.accept().await {
                if *seen.borrow() == Way::Shut {
                    continue;
                }
                let way = seen.clone();
                group.spawn_finite("door-connection", async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                        pass(caller, server, way).await;
                    }
                });
            }
        });
        Self { port: own, way }
    }

    /// Where it is.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What passes from here on.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn pass(caller: TcpStream, server: TcpStream, way: watch::Receiver<Way>) {
    let (from_caller, to_caller) = caller.into_split();
    let (from_server, to_server) = server.into_split();
    let mut shut = way.clone();
    tokio::select! {
        () = copy(from_caller, to_server, None) => {}
        () = copy(from_server, to_caller, Some(way)) => {}
        _ = shut.wait_for(|way| *way == Way::Shut) => {}
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut held: Option<watch::Receiver<Way>>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Some(length) = read(&mut from, &mut piece).await {
        if let Some(way) = &mut held
            && way.wait_for(|way| *way != Way::Requests).await.is_err()
        {
            return;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin), piece: &mut [u8]) -> Option<usize> {
    from.read(piece).await.ok().filter(|length| *length > 0)
}
