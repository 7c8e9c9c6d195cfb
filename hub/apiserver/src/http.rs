//! HTTP: requests to operations, results to answers.
//!
//! Owns the router, limits on bodies and time, status codes and headers. Every error leaves as a
//! `metav1.Status`. Never touches the store: all goes through [`Resources`].

mod subresources;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use meridian_runtime::clock::Millis;
use meridian_runtime::telemetry;
use serde_json::{Value, json};

use tracing::Instrument as _;

use crate::admission::{Actor, Request};
use crate::body::{Format, decode, whole};
use crate::kind::Kind;
use crate::negotiate::{self, DiscoveryForm};
use crate::openapi::Documents;
use crate::patch::PatchType;
use crate::query::{self, Query};
use crate::render::Rendering;
use crate::resources::{DeleteOptions, Deleted, Resources, Written};
use crate::route::{self, EventPath, Route};
use crate::status::{self, ApiStatus, StatusReason};
use crate::{checks, core_group, discovery, metadata};

/// Largest body of a request: the largest value that can be stored, more than twice over, for
/// JSON that is spread out; what etcd and Kubernetes refuse too.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// How long a request other than a watch may take, as in Kubernetes.
const REQUEST_TIMEOUT: Millis = Millis::seconds(60);
/// Most bytes of one warning, and most warnings of one answer: Kubernetes' own limits.
const MAX_WARNING: usize = 1_024;
const MAX_WARNINGS: usize = 32;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The routes: `/api`, `/apis`, `/openapi/v3` and `/version`. Health, metrics and authentication
/// belong to whoever serves it; an [`Actor`] in the request's extensions is who asks.
pub fn router(resources: Resources) -> Router {
    let documents = Documents::new(resources.registry());
    let server = Arc::new(Server {
        resources,
        documents,
    });
    let paths = [
        "/api",
        "/api/{*rest}",
        "/apis",
        "/apis/{*rest}",
        "/openapi/{*rest}",
        "/version",
    ];
    let mut router = Router::new();
    for path in paths {
        router = router.route(path, any(serve));
    }
    router.with_state(server)
}

struct Server {
    resources: Resources,
    documents: Documents,
}

/// One request, taken apart.
struct Call {
    method: Method,
    query: Query,
    headers: HeaderMap,
    body: Bytes,
    request: Request,
}

impl Call {
    fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn accept(&self) -> Option<&str> {
        self.header(header::ACCEPT)
    }

    fn content_type(&self) -> Option<&str> {
        self.header(header::CONTENT_TYPE)
    }

    fn rendering(&self) -> Result<Rendering, ApiStatus> {
        let include = self.query.include_object()?;
        Ok(Rendering {
            form: negotiate::form(self.accept())?,
            include,
        })
    }

    /// GET and HEAD read; the body of a HEAD is dropped on the way out.
    fn reads(&self) -> bool {
        [Method::GET, Method::HEAD].contains(&self.method)
    }

    fn only_reads(&self) -> Result<(), ApiStatus> {
        if self.reads() {
            Ok(())
        } else {
            Err(not_allowed(&self.method))
        }
    }
}

/// One answer, before it is HTTP.
struct Answer {
    code: StatusCode,
    content_type: HeaderValue,
    body: Body,
    warnings: Vec<String>,
}

impl Answer {
    fn json(value: &Value) -> Self {
        Self::bytes(value.to_string().into())
    }

    fn bytes(body: Bytes) -> Self {
        Self {
            code: StatusCode::OK,
            content_type: JSON,
            body: Body::from(body),
            warnings: Vec::new(),
        }
    }

    /// kubectl asks version 2 about a kind that version 3 does not have, only as protobuf: an empty
    /// message lets it go on to say that there is no such kind.
    fn no_openapi_v2() -> Self {
        Self {
            content_type: HeaderValue::from_static(
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            ),
            ..Self::bytes(Bytes::new())
        }
    }

    fn stream(lines: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        let body = Body::from_stream(lines.map(Ok::<Bytes, Infallible>));
        Self {
            code: StatusCode::OK,
            content_type: JSON,
            body,
            warnings: Vec::new(),
        }
    }

    fn failure(failure: &ApiStatus) -> Self {
        let mut answer = Self::json(&failure.to_json());
        let broken = StatusCode::INTERNAL_SERVER_ERROR;
        answer.code = StatusCode::from_u16(failure.code()).unwrap_or(broken);
        answer
    }
}

/// The span of a request, in the trace that its caller began.
fn span(request: &HttpRequest) -> tracing::Span {
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("http request", %method, path);
    let parent = request.headers().get(telemetry::TRACEPARENT);
    if let Some(parent) = parent.and_then(|value| value.to_str().ok()) {
        telemetry::set_parent(&span, parent);
    }
    span
}

async fn serve(State(server): State<Arc<Server>>, request: HttpRequest) -> Response {
    let clock = server.resources.clock().clone();
    let head = request.method() == Method::HEAD;
    let span = span(&request);
    let handling = server.handle(request).instrument(span);
    let handled = clock.timeout(REQUEST_TIMEOUT, handling).await;
    let result = handled.unwrap_or_else(|timed_out| {
        let message = format!("the request was {timed_out}: a write may or may not have been done");
        Err(ApiStatus::new(StatusReason::Timeout, message))
    });
    let retry_after = result
        .as_ref()
        .err()
        .and_then(|failure| failure.retry_after);
    let answer = result.unwrap_or_else(|failure| {
        if failure.code() >= 500 {
            tracing::warn!(code = failure.code(), message = %failure.message, "request failed");
        }
        Answer::failure(&failure)
    });
    let mut response = Response::new(if head { Body::empty() } else { answer.body });
    *response.status_mut() = answer.code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, answer.content_type);
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    for warning in answer.warnings.iter().take(MAX_WARNINGS) {
        if let Some(value) = warning_header(warning) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

/// `299 - "text"` (RFC 7234, 5.5), in printable ASCII.
fn warning_header(text: &str) -> Option<HeaderValue> {
    let mut quoted = String::from("299 - \"");
    for c in text.chars() {
        if quoted.len() >= MAX_WARNING {
            break;
        }
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    HeaderValue::from_str(&quoted).ok()
}

fn not_allowed(method: &Method) -> ApiStatus {
    let message = format!("the server does not allow {method} on the requested resource");
    ApiStatus::new(StatusReason::MethodNotAllowed, message)
}

impl Server {
    async fn handle(&self, request: HttpRequest) -> Result<Answer, ApiStatus> {
        let (parts, body) = request.into_parts();
        let route = route::parse(self.resources.registry(), parts.uri.path())?;
        let body = whole(body).await?;
        let actor = parts.extensions.get::<Actor>().cloned().unwrap_or_default();
        let call = Call {
            method: parts.method,
            query: Query::of(&parts.uri)?,
            headers: parts.headers,
            body,
            request: Request { actor },
        };
        match route {
            Route::Collection(kind, namespace) => self.collection(&call, &kind, namespace).await,
            Route::Item(kind, namespace, name) => {
                self.item(&call, &kind, namespace.as_deref(), &name).await
            }
            Route::Status(kind, namespace, name) => {
                self.status(&call, &kind, namespace.as_deref(), &name).await
            }
            Route::Scale(kind, scaled, namespace, name) => {
                let of = (namespace.as_deref(), name.as_str());
                self.scale(&call, &kind, scaled, of).await
            }
            Route::Namespaces(name) => self.namespaces(&call, name.as_deref()).await,
            Route::Events(path) => self.events(&call, &path).await,
            Route::ServerVersion
            | Route::CoreVersions
            | Route::CoreResources
            | Route::Groups
            | Route::Group(_)
            | Route::Resources(..)
            | Route::OpenApiV2
            | Route::OpenApiIndex
            | Route::OpenApi(_) => self.document(&call, route),
        }
    }

    /// Documents about the server itself.
    fn document(&self, call: &Call, route: Route) -> Result<Answer, ApiStatus> {
        call.only_reads()?;
        let registry = self.resources.registry();
        let form = negotiate::discovery(call.accept()).unwrap_or(DiscoveryForm::Legacy);
        let found = match route {
            Route::CoreVersions => {
                return Ok(match form {
                    DiscoveryForm::Legacy => Answer::json(&discovery::core_versions()),
                    DiscoveryForm::V2 | DiscoveryForm::V2Beta1 => {
                        aggregated(&discovery::aggregated_core(form), form)
                    }
                });
            }
            Route::Groups => {
                return Ok(match form {
                    DiscoveryForm::Legacy => Answer::json(&discovery::groups(registry)),
                    DiscoveryForm::V2 | DiscoveryForm::V2Beta1 => {
                        aggregated(&discovery::aggregated_groups(registry, form), form)
                    }
                });
            }
            Route::OpenApi(name) => {
                return self
                    .documents
                    .get(&name)
                    .map(Answer::bytes)
                    .ok_or_else(route::no_such_resource);
            }
            Route::OpenApiV2 => return Ok(Answer::no_openapi_v2()),
            Route::OpenApiIndex => Some(self.documents.index()),
            Route::ServerVersion => Some(discovery::server_version()),
            Route::CoreResources => Some(discovery::core_resources()),
            Route::Group(group) => discovery::group(registry, &group),
            Route::Resources(group, version) => discovery::resources(registry, &group, &version),
            Route::Namespaces(_)
            | Route::Events(_)
            | Route::Collection(..)
            | Route::Item(..)
            | Route::Status(..)
            | Route::Scale(..) => None,
        };
        found
            .map(|document| Answer::json(&document))
            .ok_or_else(route::no_such_resource)
    }

    async fn collection(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        namespace: Option<String>,
    ) -> Result<Answer, ApiStatus> {
        if call.reads() {
            let rendering = call.rendering()?;
            if call.query.is_watch()? {
                let options = call.query.watch_options(namespace, rendering)?;
                return Ok(Answer::stream(self.resources.watch(kind, options).await?));
            }
            let options = call.query.list_options(namespace)?;
            let list = self.resources.list(kind, &options).await?;
            let now = self.resources.clock().wall();
            return Ok(Answer::json(&rendering.list(kind, list, now)));
        }
        checks::check_namespace(kind, namespace.as_deref())?;
        if call.method == Method::POST {
            let decoded = decode(&call.body, Format::of(call.content_type())?)?;
            let options = call.query.write_options(decoded.duplicates)?;
            let written = self
                .resources
                .create(
                    &call.request,
                    kind,
                    namespace.as_deref(),
                    decoded.value,
                    &options,
                )
                .await?;
            return self.written(call, kind, written, StatusCode::CREATED);
        }
        if call.method == Method::DELETE {
            let options = delete_options(call)?;
            let list = call.query.list_options(namespace)?;
            let gone = self
                .resources
                .delete_collection(&call.request, kind, list, &options)
                .await?;
            let now = self.resources.clock().wall();
            return Ok(Answer::json(&call.rendering()?.list(kind, gone, now)));
        }
        Err(not_allowed(&call.method))
    }

    async fn item(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Answer, ApiStatus> {
        if call.reads() {
            return self.read_one(call, kind, namespace, name).await;
        }
        if call.method == Method::DELETE {
            let options = delete_options(call)?;
            let deleted = self
                .resources
                .delete(&call.request, kind, namespace, name, &options)
                .await?;
            return Ok(match deleted {
                Deleted::Gone(object) => {
                    let uid = metadata::text(&object, "uid");
                    Answer::json(&status::success(kind, name, uid))
                }
                Deleted::Marked(object) => Answer::json(&object),
            });
        }
        let written = if call.method == Method::PUT {
            let decoded = decode(&call.body, Format::of(call.content_type())?)?;
            let options = call.query.write_options(decoded.duplicates)?;
            let object = &decoded.value;
            self.resources
                .update(&call.request, kind, namespace, name, object, &options)
                .await?
        } else {
            self.patch(call, kind, namespace, name, None).await?
        };
        self.written(call, kind, written, StatusCode::OK)
    }

    async fn patch(
        &self,
        call: &Call,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
    ) -> Result<Written, ApiStatus> {
        if call.method != Method::PATCH {
            return Err(not_allowed(&call.method));
        }
        let patch_type = PatchType::of(call.content_type())?;
        let decoded = decode(&call.body, Format::Json)?;
        // Paths of duplicates in a JSON patch are paths of the patch, not of the object.
        let options = call.query.write_options(decoded.duplicates)?;
        let patch = &decoded.value;
        self.resources
            .patch(
                &call.request,
                kind,
                namespace,
                name,
                subresource,
                patch_type,
                patch,
                &options,
            )
            .await
    }

    async fn read_one(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Answer, ApiStatus> {
        let rendering = call.rendering()?;
        if let Some(wanted) = call.query.resource_version()?.filter(|wanted| wanted.0 > 0) {
            let newest = self.resources.store().revision().await?;
            if wanted > newest {
                return Err(ApiStatus::too_large_version(wanted.0, newest.0));
            }
        }
        let object = self.resources.get(kind, namespace, name).await?;
        let now = self.resources.clock().wall();
        Ok(Answer::json(&rendering.one(kind, object, now)))
    }

    fn written(
        &self,
        call: &Call,
        kind: &Kind,
        written: Written,
        code: StatusCode,
    ) -> Result<Answer, ApiStatus> {
        let now = self.resources.clock().wall();
        let mut answer = Answer::json(&call.rendering()?.one(kind, written.object, now));
        answer.code = code;
        answer.warnings = written.warnings;
        Ok(answer)
    }

    async fn namespaces(&self, call: &Call, name: Option<&str>) -> Result<Answer, ApiStatus> {
        let [kind, _] = core_group::kinds();
        let rendering = call.rendering()?;
        let now = self.resources.clock().wall();
        match name {
            Some(name) if call.reads() || [Method::PATCH, Method::PUT].contains(&call.method) => {
                let object = core_group::namespace(name)?;
                Ok(Answer::json(&rendering.one(&kind, object, now)))
            }
            None if call.reads() => {
                if call.query.is_watch()? {
                    return self.quiet_watch(call, &kind);
                }
                let list = self.resources.namespaces(&call.query.selectors()?).await?;
                Ok(Answer::json(&rendering.list(&kind, list, now)))
            }
            None if call.method == Method::POST => {
                let name = core_group::created_name(&call.body).ok_or_else(|| {
                    ApiStatus::bad_request("the body must be a Namespace with metadata.name")
                })?;
                let object = core_group::namespace(&name)?;
                let mut answer = Answer::json(&rendering.one(&kind, object, now));
                answer.code = StatusCode::CREATED;
                let text = "a namespace needs no making here: every valid name is one";
                answer.warnings = vec![text.to_owned()];
                Ok(answer)
            }
            Some(_) | None => Err(not_allowed(&call.method)),
        }
    }

    async fn events(&self, call: &Call, path: &EventPath) -> Result<Answer, ApiStatus> {
        call.only_reads()?;
        let [_, kind] = core_group::kinds();
        if call.query.is_watch()? {
            return self.quiet_watch(call, &kind);
        }
        let selectors = call.query.event_selectors()?;
        let list = self
            .resources
            .events(path.namespace.as_deref(), &selectors)
            .await?;
        let now = self.resources.clock().wall();
        if let Some(name) = &path.name {
            let named = |event: &Value| metadata::text(event, "name") == name;
            let event = list.items.into_iter().find(named);
            let event = event.ok_or_else(|| ApiStatus::not_found(&kind, name))?;
            return Ok(Answer::json(&call.rendering()?.one(&kind, event, now)));
        }
        Ok(Answer::json(&call.rendering()?.list(&kind, list, now)))
    }

    /// A watch in which nothing ever happens.
    fn quiet_watch(&self, call: &Call, kind: &Kind) -> Result<Answer, ApiStatus> {
        let options = call.query.watch_options(None, call.rendering()?)?;
        Ok(Answer::stream(self.resources.quiet_watch(kind, &options)))
    }
}

fn aggregated(document: &Value, form: DiscoveryForm) -> Answer {
    let mut answer = Answer::json(document);
    answer.content_type = HeaderValue::from_static(match form {
        DiscoveryForm::V2 => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        DiscoveryForm::V2Beta1 => {
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        }
        DiscoveryForm::Legacy => "application/json",
    });
    answer
}

/// From the body, if there is one, and the query.
fn delete_options(call: &Call) -> Result<DeleteOptions, ApiStatus> {
    let mut options = DeleteOptions {
        dry_run: call.query.dry_run()?,
        propagation: call.query.propagation()?,
        ..DeleteOptions::default()
    };
    if call.body.is_empty() {
        return Ok(options);
    }
    let body = decode(&call.body, Format::of(call.content_type())?)?.value;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let preconditions = body.get("preconditions");
    options.preconditions.uid = text(preconditions.and_then(|wanted| wanted.get("uid")));
    options.preconditions.resource_version =
        text(preconditions.and_then(|wanted| wanted.get("resourceVersion")));
    if let Some(policy) = text(body.get("propagationPolicy")) {
        options.propagation = query::propagation(&policy)?;
    }
    match body.get("dryRun") {
        None | Some(Value::Null) => {}
        Some(list) if *list == json!([]) => {}
        Some(list) if *list == json!(["All"]) => options.dry_run = crate::DryRun::All,
        Some(_) => return Err(ApiStatus::bad_request("dryRun: it must be [\"All\"]")),
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted_and_bounded() {
        let header = warning_header("unknown field \"a\"\nüber").unwrap();
        assert_eq!(header, "299 - \"unknown field \\\"a\\\"??ber\"");
        let long = warning_header(&"x".repeat(10_000)).unwrap();
        assert!(long.len() <= MAX_WARNING + 2);
    }
}
