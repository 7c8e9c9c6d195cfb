//! An admission webhook as clusters have them: over HTTPS, with an authority of its own.
//!
//! Owns the server and what it says of each pod. Ends with the tasks that it was started in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::ByteString;
use meridian_runtime::network::Tcp;
use meridian_runtime::tls::{self, Identity, ServerCertificate};
use meridian_runtime::{Clock, Network as _, Tasks};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

/// The name by which the API server tells of it.
pub(crate) const NAME: &str = "gatekeeper.example.com";
/// Seconds that the API server waits for an answer.
const PATIENCE: u32 = 2;

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// Every pod is let in.
    Yes,
    /// No pod is, for this reason.
    No(&'static str),
    /// The pod of the gang's second member is not, for this reason; the others are.
    NotTheSecond(&'static str),
    /// Nothing.
    Nothing,
}

/// A webhook that is served.
#[derive(Clone)]
pub(crate) struct Gatekeeper {
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicUsize>,
    address: String,
    authority: String,
}

impl Gatekeeper {
    /// Serves on a port of this machine until `tasks` end.
    pub(crate) async fn open(tasks: &Tasks, says: Says) -> Self {
        let (authority, identity) = certificates();
        let clock = Clock::real();
        let shown = ServerCertificate::new(&identity).expect("a certificate and its key");
        // It asks nobody for a certificate: whoever shows one would need to be of its authority.
        let authorities = tls::certificates(&authority).expect("just made");
        let config = tls::server_config(&clock, shown, &authorities).expect("usable");
        let listener = Tcp.listen("127.0.0.1:0").await.expect("a free port");
        let gatekeeper = Self {
            says: Arc::new(Mutex::new(says)),
            asked: Arc::default(),
            address: listener.address().to_owned(),
            authority,
        };
        let listener = tls::over_tls(listener, clock, config);
        let router = Router::new().route("/", post(answer));
        let router = router.with_state(gatekeeper.clone());
        tasks.spawn_finite("gatekeeper", async move {
            axum::serve(listener, router).await.expect("it goes on");
        });
        gatekeeper
    }

    /// The configuration that makes an API server ask it about pods with this label.
    pub(crate) fn configuration(&self, label: &str) -> Value {
        let authority = ByteString(self.authority.clone().into_bytes());
        let url = format!("https://{}/", self.address);
        json!({"metadata": {"name": "gatekeeper"}, "webhooks": [{
            "name": NAME,
            "clientConfig": {"url": url, "caBundle": authority},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                       "operations": ["CREATE"]}],
            "objectSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": PATIENCE}]})
    }

    /// What it says from here on.
    pub(crate) fn set(&self, says: Says) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
        self.asked.store(0, Ordering::SeqCst);
    }

    /// Times that it was asked since it last changed its mind.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn now(&self) -> Says {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let says = self.says.lock().unwrap_or_else(PoisonError::into_inner);
        says.clone()
    }
}

async fn answer(State(gatekeeper): State<Gatekeeper>, Json(review): Json<Value>) -> Json<Value> {
    let labels = &review["request"]["object"]["metadata"]["labels"];
    let is_second = labels["meridian.dev/rank"] == "1";
    let why = match gatekeeper.now() {
        Says::Yes => None,
        Says::No(why) => Some(why),
        Says::NotTheSecond(why) => is_second.then_some(why),
        Says::Nothing => std::future::pending().await,
    };
    let mut response = json!({"uid": review["request"]["uid"], "allowed": why.is_none()});
    if let Some(why) = why {
        response["status"] = json!({"code": 403, "message": why});
    }
    Json(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    }))
}

/// A new authority's certificate, and what it signed for this machine.
fn certificates() -> (String, Identity) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a good form");
    let key = KeyPair::generate().expect("a key");
    let server = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let server = server.signed_by(&key, &authority).expect("a good form");
    let identity = Identity::from_pem(&server.pem(), &key.serialize_pem());
    (authority.pem(), identity.expect("just made"))
}
