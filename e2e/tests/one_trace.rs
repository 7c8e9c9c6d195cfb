//! One trace from submit to gang: hub and agent export spans of the same trace over OTLP.
//!
//! Owns a collector of a few lines, and the promise that a person can follow one job with it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_e2e::deployment::{Deployment, DeploymentPlan, JobBuilder, LONG};
use meridian_runtime::Tasks;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Text;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span, as far as the test reads it.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    name: String,
    trace: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    fn spans(&self) -> Vec<Span> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Traces that have a span of that name from that service.
    fn traces(&self, service: &str, name: &str) -> BTreeSet<Vec<u8>> {
        let its = |span: &Span| span.service == service && span.name == name;
        self.spans()
            .into_iter()
            .filter(its)
            .map(|span| span.trace)
            .collect()
    }
}

fn service(of: &ResourceSpans) -> String {
    let attributes = of.resource.iter().flat_map(|resource| &resource.attributes);
    let mut named = attributes.filter(|attribute| attribute.key == "service.name");
    let value = named
        .next()
        .and_then(|attribute| attribute.value.clone()?.value);
    match value {
        Some(Text::StringValue(name)) => name,
        other => panic!("a service without a name: {other:?}"),
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let service = service(&resource);
            let spans = resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            let spans = spans.map(|span| Span {
                service: service.clone(),
                name: span.name,
                trace: span.trace_id,
            });
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test]
async fn submit_decision_and_gang_start_share_one_trace() {
    let collector = Collector::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let tasks = Tasks::new();
    tasks.spawn("collector", async move {
        server.await.expect("the collector serves");
        Ok::<(), Infallible>(())
    });

    let plan = DeploymentPlan {
        otlp: Some(format!("http://{address}")),
        ..DeploymentPlan::default()
    };
    let fleet = Deployment::start(plan).await;
    let submitted = fleet.submitter();
    let jobs = ["one", "two"]
        .map(|name| JobBuilder::new(name).build())
        .to_vec();
    submitted.acknowledged(jobs).await;
    fleet.jobs_succeeded(2).await;

    let whole = async || {
        let submitted = collector.traces("meridian-hub", "submit job");
        let decided = collector.traces("meridian-hub", "place gang");
        let bound = collector.traces("meridian-agent", "bind");
        let shared = submitted
            .iter()
            .filter(|trace| decided.contains(*trace) && bound.contains(*trace));
        (shared.count() == 2).then_some(())
    };
    let seen = fleet.until("each job has a trace of hub and agent", LONG, whole);
    let seen = fleet.harness().clock().timeout(LONG, seen).await;
    assert!(seen.is_ok(), "{:#?}", collector.spans());
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}
