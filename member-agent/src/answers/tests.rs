//! The answers' service over real connections, before an API server that only counts what it is
//! asked.

use axum::http::Uri;
use meridian_runtime::network::Tcp;
use meridian_runtime::{Network as _, Tasks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::kubernetes::KubernetesOptions;

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

#[test]
fn a_moment_is_read_or_refused_with_what_is_wrong() {
    assert_eq!(moment(b"", NOW), Ok(NOW));
    assert_eq!(moment(b"{}", NOW), Ok(NOW));
    let said = br#"{"at": "2023-11-14T22:13:19Z"}"#;
    assert_eq!(moment(said, NOW), Ok(UnixMillis(NOW.0 - 1000)));
    for (body, why) in [
        (&br#"{"at": "2023-11-14T22:13:21Z"}"#[..], "later than now"),
        (br#"{"at": "yesterday"}"#, "no instant"),
        (br#"{"step": 3}"#, "unknown field `step`"),
        (b"saved", "the body is"),
    ] {
        let refused = moment(body, NOW).expect_err("refused");
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn a_pod_calls_once_a_second_and_others_do_not_wait_for_it() {
    let last = Mutex::default();
    let who = |pod: usize| ("ml".to_owned(), format!("pod-{pod}"));
    let at = |millis: u64| BootMillis(1_000_000 + millis);
    assert!(admit(&last, &who(0), at(0)));
    assert!(!admit(&last, &who(0), at(999)));
    assert!(admit(&last, &who(1), at(999)));
    assert!(admit(&last, &who(0), at(1000)));
    for pod in 2..MAX_KNOWN {
        assert!(admit(&last, &who(pod), at(1000)));
    }
    assert!(
        !admit(&last, &who(MAX_KNOWN), at(1500)),
        "nobody can be forgotten"
    );
    assert!(admit(&last, &who(MAX_KNOWN), at(2000)));
}

#[test]
fn an_address_asks_so_often_and_others_do_not_wait_for_it() {
    let asked = Asked::default();
    let at = |millis: u64| BootMillis(1_000_000 + millis);
    for _ in 0..ASKS {
        assert!(may_ask(&asked, "10.0.0.1", at(0)));
    }
    assert!(!may_ask(&asked, "10.0.0.1", at(999)));
    assert!(may_ask(&asked, "10.0.0.2", at(999)));
    assert!(may_ask(&asked, "10.0.0.1", at(1000)));
    for address in 2..MAX_KNOWN {
        assert!(may_ask(&asked, &address.to_string(), at(1000)));
    }
    assert!(
        !may_ask(&asked, "one more", at(1500)),
        "nobody can be forgotten"
    );
    assert!(
        may_ask(&asked, "10.0.0.1", at(1500)),
        "who is known still may"
    );
    assert!(may_ask(&asked, "one more", at(2000)));
}

/// The service on a port of this machine, and what the API server was asked for.
struct Service {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    tasks: Tasks,
}

impl Service {
    async fn start() -> Self {
        let (tasks, clock) = (Tasks::new(), Clock::real());
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&asked);
        let secret = move |uri: Uri| async move {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(uri.to_string());
            // What a caller must not learn of.
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"hidden"}}"#
        };
        let api = Tcp.listen("127.0.0.1:0").await.expect("a free port");
        let uri = format!("http://{}", api.address()).parse().expect("a URI");
        tasks.spawn_finite("api", async move {
            let router: Router = Router::new().fallback(secret);
            axum::serve(api, router).await.expect("it goes on");
        });
        let client = kube::Client::try_from(kube::Config::new(uri)).expect("plain HTTP");
        let backend = KubernetesBackend::new(KubernetesOptions::new(client, clock.clone()));
        let listener = Tcp.listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.address().to_owned();
        let serving = serve(listener, backend, clock, tasks.cancelled());
        tasks.spawn_finite(
            "answers",
            async move { serving.await.expect("it ends well") },
        );
        Self {
            address,
            asked,
            tasks,
        }
    }

    /// The whole answer to a call; empty when the connection is closed before there is one.
    async fn call(&self, path: &str, token: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\nContent-Length: 0\r\n\r\n"
        );
        let mut answer = String::new();
        if stream.write_all(request.as_bytes()).await.is_ok() {
            drop(stream.read_to_string(&mut answer).await);
        }
        answer
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[tokio::test]
async fn only_names_and_tokens_reach_the_api_server() {
    let service = Service::start().await;
    let token = "0".repeat(TOKEN);
    for (namespace, pod) in [
        // As the agent would ask for it: another path, another kind of object, a query.
        ("ml", "..%2Fsecrets%2Fregistry"),
        ("ml%2Fsecrets%2Fregistry%3F", "p"),
        ("..", "p"),
        ("ml", "p%3Fwatch=true"),
        ("ml", "p%23"),
        ("ml", "%00"),
        ("ml", "P"),
        ("ml", "-p"),
        ("ml", "p%0Ax"),
    ] {
        let path = format!("/v1/pods/{namespace}/{pod}/checkpoint");
        let answer = service.call(&path, &token).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
    }
    for token in ["", "0", &"g".repeat(TOKEN), &"0".repeat(TOKEN + 1)] {
        let answer = service.call("/v1/pods/ml/p/checkpoint", token).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{token}: {answer}");
    }
    assert_eq!(service.asked(), [] as [String; 0]);

    // A name and a token are asked for; what the API server said stays inside.
    let answer = service.call("/v1/pods/ml/p/checkpoint", &token).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(!answer.contains("Secret"), "{answer}");
    assert_eq!(service.asked(), ["/api/v1/namespaces/ml/pods/p"]);
}

#[tokio::test]
async fn one_address_holds_only_so_many_connections() {
    let service = Service::start().await;
    let mut held = Vec::new();
    for _ in 0..MAX_OF_ONE {
        let stream = TcpStream::connect(&service.address).await;
        held.push(stream.expect("it listens"));
    }
    let token = "0".repeat(TOKEN);
    let mut over = TcpStream::connect(&service.address)
        .await
        .expect("it listens");
    let mut byte = [0];
    // Closed at once: its end, or a reset.
    assert!(matches!(over.read(&mut byte).await, Ok(0) | Err(_)));
    // Who goes makes room.
    let clock = Clock::real();
    let room = async {
        held.clear();
        loop {
            let answer = service.call("/v1/pods/ml/p/checkpoint", &token).await;
            if answer.starts_with("HTTP/1.1 ") {
                return;
            }
            clock.sleep(Millis(10)).await;
        }
    };
    let limit = Millis::seconds(30);
    Clock::real()
        .timeout(limit, room)
        .await
        .expect("there is room");
}

#[tokio::test]
async fn who_sends_nothing_is_sent_away() {
    let limits = door::Limits {
        open: 1,
        of_one: 1,
        stay: Millis(50),
    };
    let listener = Tcp.listen("127.0.0.1:0").await.expect("a free port");
    let address = listener.address().to_owned();
    let mut listener = door::guarded(listener, Clock::real(), limits);
    let _silent = TcpStream::connect(&address).await.expect("it listens");
    let mut connection = listener.accept().await.expect("accepted");
    let mut byte = [0];
    let read = connection.read(&mut byte).await;
    let read = read.expect_err("nothing came");
    assert_eq!(read.kind(), io::ErrorKind::TimedOut);
    drop(connection);
    let _next = TcpStream::connect(&address).await.expect("it listens");
    listener.accept().await.expect("its place is free again");
}
