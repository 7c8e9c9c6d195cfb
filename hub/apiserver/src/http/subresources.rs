//! Requests to what is under an object: its status, and its scale.
//!
//! Owns their methods. What a scale is, is said in `crate::scale`.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::Value;

use super::{Answer, Call, Server, not_allowed};
use crate::body::{Format, decode};
use crate::kind::{Kind, ScalePaths};
use crate::patch::{self, PatchType};
use crate::scale;
use crate::status::ApiStatus;

impl Server {
    pub(super) async fn status(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Answer, ApiStatus> {
        if call.reads() {
            return self.read_one(call, kind, namespace, name).await;
        }
        let written = if call.method == Method::PUT {
            let decoded = decode(&call.body, Format::of(call.content_type())?)?;
            let options = call.query.write_options(decoded.duplicates)?;
            let object = &decoded.value;
            let resources = &self.resources;
            resources
                .update_status(&call.request, kind, namespace, name, object, &options)
                .await?
        } else {
            self.patch(call, kind, namespace, name, Some("status"))
                .await?
        };
        self.written(call, kind, written, StatusCode::OK)
    }

    pub(super) async fn scale(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        paths: ScalePaths,
        (namespace, name): (Option<&str>, &str),
    ) -> Result<Answer, ApiStatus> {
        let resources = &self.resources;
        if call.reads() {
            let object = resources.get(kind, namespace, name).await?;
            return Ok(Answer::json(&scale::of(paths, &object)));
        }
        let (decoded, patch_type) = if call.method == Method::PUT {
            (decode(&call.body, Format::of(call.content_type())?)?, None)
        } else if call.method == Method::PATCH {
            let patch_type = PatchType::of(call.content_type())?;
            (decode(&call.body, Format::Json)?, Some(patch_type))
        } else {
            return Err(not_allowed(&call.method));
        };
        let options = call.query.write_options(decoded.duplicates)?;
        let body = &decoded.value;
        let wanted = |before: &Value| match patch_type {
            None => Ok(body.clone()),
            Some(patch_type) => patch::apply(patch_type, &scale::of(paths, before), body),
        };
        let of = (namespace, name);
        let written = resources
            .rescale(&call.request, kind, paths, of, &wanted, &options)
            .await?;
        let mut answer = Answer::json(&scale::of(paths, &written.object));
        (answer.code, answer.warnings) = (StatusCode::OK, written.warnings);
        Ok(answer)
    }
}
