//! Logs, traces and their export.
//!
//! Owns the set-up of `tracing` and OpenTelemetry, and W3C trace context as text
//! (<https://www.w3.org/TR/trace-context/>), which is how one trace runs from a submit through
//! the store to a gang. Never decides what is logged.

use std::collections::BTreeMap;

use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, propagation::TextMapPropagator as _};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Name of the header, annotation and field that carries the trace context.
pub const TRACEPARENT: &str = "traceparent";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What to set up.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// `service.name` of the process.
    pub service: &'static str,
    /// How log lines look; they go to stderr.
    pub format: LogFormat,
    /// Filter in the syntax of `tracing-subscriber`: `info,meridian_hub=debug`.
    pub filter: String,
    /// OTLP over gRPC, `http://host:4317`; `None` exports nothing.
    pub otlp_endpoint: Option<String>,
}

/// Telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter has a mistake.
    #[error("log filter {filter:?} is malformed")]
    Filter {
        /// The filter.
        filter: String,
        /// The mistake.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The exporter's endpoint is unusable.
    #[error("OTLP endpoint {endpoint:?} is unusable")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// Something in this process set up logging before.
    #[error("logging is already set up")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Keeps the exporter alive; dropping it sends what is left.
#[derive(Debug)]
pub struct TelemetryGuard(Option<SdkTracerProvider>);

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(SdkTracerProvider::shutdown) {
            // A collector that is gone must not keep the process from ending.
            tracing::warn!(%error, "the last spans could not be exported");
        }
    }
}

/// Sets up logging and, when asked, the export of spans. Once per process, within a runtime.
pub fn init(options: &TelemetryOptions) -> Result<TelemetryGuard, TelemetryError> {
    let filter = EnvFilter::try_new(&options.filter).map_err(|source| TelemetryError::Filter {
        filter: options.filter.clone(),
        source,
    })?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    let lines = match options.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let provider = options
        .otlp_endpoint
        .as_deref()
        .map(|to| exporter(options.service, to));
    let provider = provider.transpose()?;
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer(options.service))
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(spans)
        .with(lines)
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok(TelemetryGuard(provider))
}

fn exporter(service: &'static str, endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TelemetryError::Exporter {
            endpoint: endpoint.to_owned(),
            source,
        })?;
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build())
}

/// The trace context of the current span as a `traceparent` value; `None` when no trace is on.
#[must_use]
pub fn traceparent(span: &tracing::Span) -> Option<String> {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = std::collections::HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes `span` a child of the remote span in `traceparent`. A malformed value is ignored, as
/// the W3C recommendation asks.
pub fn set_parent(span: &tracing::Span, traceparent: &str) {
    let carrier: std::collections::HashMap<String, String> =
        BTreeMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())])
            .into_iter()
            .collect();
    let context: Context = TraceContextPropagator::new().extract(&carrier);
    if context.span().span_context().is_valid() {
        // Fails only when no OpenTelemetry layer is set up: then there is no trace to join.
        let _ = span.set_parent(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_crosses_as_text() {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let here = tracing::info_span!("here");
            let carried = traceparent(&here).expect("a trace is on");
            let there = tracing::info_span!(parent: None, "there");
            set_parent(&there, &carried);
            let trace = |span: &tracing::Span| span.context().span().span_context().trace_id();
            assert_eq!(trace(&here), trace(&there));
        });
    }

    #[test]
    fn nonsense_joins_no_trace() {
        let span = tracing::info_span!("alone");
        set_parent(&span, "not-a-traceparent");
        assert_eq!(traceparent(&span), None);
    }
}
