//! One kube-apiserver with its etcd, for a whole test binary.
//!
//! Owns both processes, their folder, ports and certificates. They end with this value, and with
//! the thread that started them. Never builds a tool: `e2e/kubernetes/build.sh` does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A cold start on a busy machine takes some ten seconds.
const START_LIMIT: Millis = Millis::seconds(120);
/// Between two looks whether it is ready.
const LOOK_EVERY: Millis = Millis(100);

/// A running server.
pub struct ApiServer {
    folder: tempfile::TempDir,
    port: u16,
    etcd: Child,
    server: Option<Child>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in self.server.iter_mut().chain([&mut self.etcd]) {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A tool's file, or `None` when it is not there.
fn tool(name: &str, variable: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/kube-tools");
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = named.unwrap_or_else(|| built.join(name));
    path.is_file().then_some(path)
}

/// A port that nobody listens at.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

impl ApiServer {
    /// Starts it, or says which test is skipped for want of its tools.
    ///
    /// # Panics
    /// When a tool is missing and `CI` is set: there, a skipped test would be a lie.
    pub async fn start_or_skip(test: &str) -> Option<Self> {
        let etcd = tool("etcd", "MERIDIAN_ETCD");
        let server = tool("kube-apiserver", "MERIDIAN_KUBE_APISERVER");
        let (Some(etcd), Some(server)) = (etcd, server) else {
            let how = "run e2e/kubernetes/build.sh etcd kube-apiserver";
            assert!(std::env::var_os("CI").is_none(), "{test}: no tools: {how}");
            eprintln!("SKIPPED {test}: no etcd or no kube-apiserver: {how}");
            return None;
        };
        Some(Self::start(&etcd, &server).await)
    }

    async fn start(etcd: &Path, server: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        certify(folder.path());
        let (port, clients, peers) = (free_port(), free_port(), free_port());
        let (clients, peers) = (
            format!("http://127.0.0.1:{clients}"),
            format!("http://127.0.0.1:{peers}"),
        );
        let etcd = bonded(etcd)
            .arg("--data-dir")
            .arg(folder.path().join("etcd"))
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--unsafe-no-fsync", "--log-level=error"])
            .stdout(Stdio::null())
            .stderr(log(folder.path(), "etcd.log"))
            .spawn()
            .expect("etcd starts");
        // Made before the server starts, so that etcd ends also when the rest fails.
        let mut this = Self {
            folder,
            port,
            etcd,
            server: None,
        };
        let child = this.command(server, &clients).spawn();
        this.server = Some(child.expect("kube-apiserver starts"));
        this.until_ready().await;
        this
    }

    fn command(&self, server: &Path, etcd: &str) -> Command {
        let folder = self.folder.path();
        let file = |name: &str| folder.join(name).display().to_string();
        let mut command = bonded(server);
        command
            .args(["--etcd-servers", etcd])
            .args(["--bind-address=127.0.0.1", "--authorization-mode=RBAC"])
            .args(["--secure-port", &self.port.to_string()])
            .args(["--tls-cert-file", &file("server.crt")])
            .args(["--tls-private-key-file", &file("server.key")])
            .args(["--client-ca-file", &file("ca.crt")])
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .args(["--service-account-key-file", &file("accounts.pub")])
            .args(["--service-account-signing-key-file", &file("accounts.key")])
            .args([
                "--service-cluster-ip-range=10.0.0.0/24",
                "--allow-privileged=true",
            ])
            .arg("--endpoint-reconciler-type=none")
            // No controller makes the accounts that it would insist on.
            .arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
            .stdout(Stdio::null())
            .stderr(log(folder, "kube-apiserver.log"));
        command
    }

    async fn until_ready(&mut self) {
        let (clock, client) = (Clock::real(), self.client(self.port));
        let Some(server) = &mut self.server else {
            return;
        };
        let ready = async {
            loop {
                let ask = http::Request::get("/readyz").body(Vec::new());
                if client.request_text(ask.expect("a request")).await.is_ok() {
                    return true;
                }
                if !matches!(server.try_wait(), Ok(None)) {
                    return false;
                }
                clock.sleep(LOOK_EVERY).await;
            }
        };
        if clock.timeout(START_LIMIT, ready).await != Ok(true) {
            let log = std::fs::read_to_string(self.folder.path().join("kube-apiserver.log"));
            panic!("kube-apiserver is not ready: {}", log.unwrap_or_default());
        }
    }

    /// Where it is on this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A kubeconfig of its administrator, by the given port of this machine.
    pub fn kubeconfig(&self, port: u16) -> String {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": file("ca.crt"),
            }}],
            "users": [{"name": "admin", "user": {
                "client-certificate": file("admin.crt"), "client-key": file("admin.key"),
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        })
        .to_string()
    }

    /// A client of its administrator.
    pub fn client(&self, port: u16) -> kube::Client {
        let config = Kubeconfig::from_yaml(&self.kubeconfig(port)).expect("written above");
        let options = KubeConfigOptions::default();
        let config =
            futures::executor::block_on(kube::Config::from_custom_kubeconfig(config, &options));
        kube::Client::try_from(config.expect("written above")).expect("a client")
    }
}

/// A program that the kernel kills when the test's thread ends, however it ends.
fn bonded(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn log(folder: &Path, name: &str) -> Stdio {
    std::fs::File::create(folder.join(name))
        .expect("a file")
        .into()
}

/// Makes an authority, and what it vouches for.
fn certify(folder: &Path) {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("room");
    let key = || KeyPair::generate().expect("entropy");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    authority
        .distinguished_name
        .push(DnType::CommonName, "test");
    let authority_key = key();
    let certificate = authority.self_signed(&authority_key).expect("its own key");
    write("ca.crt", certificate.pem());
    let issuer = Issuer::from_params(&authority, &authority_key);
    let vouch = |name: &str, names: &[&str], group: Option<&str>, usage| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![usage];
        let own = key();
        let certificate = params.signed_by(&own, &issuer).expect("a good request");
        write(&format!("{name}.crt"), certificate.pem());
        write(&format!("{name}.key"), own.serialize_pem());
    };
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    vouch("server", &["127.0.0.1", "localhost"], None, server);
    let user = ExtendedKeyUsagePurpose::ClientAuth;
    vouch("admin", &[], Some("system:masters"), user);
    let accounts = key();
    write("accounts.key", accounts.serialize_pem());
    write("accounts.pub", accounts.public_key_pem());
}
