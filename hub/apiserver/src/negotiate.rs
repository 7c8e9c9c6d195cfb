//! Content negotiation: which form of an answer a client wants.
//!
//! Owns the reading of `Accept`, with the `as=`, `g=` and `v=` parameters of Kubernetes. Never
//! makes an answer.

use crate::status::{ApiStatus, StatusReason};

/// Longest `Accept` that is looked at; kubectl sends about 300 bytes.
const MAX_ACCEPT: usize = 4 * 1024;

/// What an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Form {
    /// Objects as they are.
    Object,
    /// `meta.k8s.io/v1` `PartialObjectMetadata`.
    Metadata,
    /// `meta.k8s.io/v1` `Table`.
    Table,
}

/// Which discovery document is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryForm {
    /// Group and resource lists, one request each.
    Legacy,
    /// Everything at once, `apidiscovery.k8s.io/v2`.
    V2,
    /// The same, `apidiscovery.k8s.io/v2beta1`.
    V2Beta1,
}

struct Offer<'a> {
    essence: &'a str,
    kind: &'a str,
    group: &'a str,
    version: &'a str,
}

fn offers(accept: &str) -> Vec<Offer<'_>> {
    accept
        .split(',')
        .map(|part| {
            let mut parts = part.split(';').map(str::trim);
            let essence = parts.next().unwrap_or_default();
            let mut offer = Offer {
                essence,
                kind: "",
                group: "",
                version: "",
            };
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("as", value)) => offer.kind = value,
                    Some(("g", value)) => offer.group = value,
                    Some(("v", value)) => offer.version = value,
                    _ => {}
                }
            }
            offer
        })
        .collect()
}

impl Offer<'_> {
    fn is_json(&self) -> bool {
        ["application/json", "application/*", "*/*", ""].contains(&self.essence)
    }
}

fn checked(accept: Option<&str>) -> &str {
    accept
        .filter(|accept| accept.len() <= MAX_ACCEPT)
        .unwrap_or("*/*")
}

fn not_acceptable() -> ApiStatus {
    let message = "only the following media types are accepted: application/json, \
                   application/json;as=Table;g=meta.k8s.io;v=v1, \
                   application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    ApiStatus::new(StatusReason::NotAcceptable, message)
}

/// The first form in the client's list that can be given.
pub(crate) fn form(accept: Option<&str>) -> Result<Form, ApiStatus> {
    for offer in offers(checked(accept))
        .iter()
        .filter(|offer| offer.is_json())
    {
        let meta = offer.group == "meta.k8s.io" && ["v1", "v1beta1"].contains(&offer.version);
        match offer.kind {
            "" => return Ok(Form::Object),
            "Table" if meta && offer.version == "v1" => return Ok(Form::Table),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if meta => {
                return Ok(Form::Metadata);
            }
            _ => {}
        }
    }
    Err(not_acceptable())
}

/// The first discovery document in the client's list that can be given.
pub(crate) fn discovery(accept: Option<&str>) -> Result<DiscoveryForm, ApiStatus> {
    for offer in offers(checked(accept))
        .iter()
        .filter(|offer| offer.is_json())
    {
        let aggregated =
            offer.group == "apidiscovery.k8s.io" && offer.kind == "APIGroupDiscoveryList";
        match (offer.kind, offer.version) {
            ("", _) => return Ok(DiscoveryForm::Legacy),
            (_, "v2") if aggregated => return Ok(DiscoveryForm::V2),
            (_, "v2beta1") if aggregated => return Ok(DiscoveryForm::V2Beta1),
            _ => {}
        }
    }
    Err(not_acceptable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_get_wants_a_table() {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                      application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(Some(accept)), Ok(Form::Table));
    }

    #[test]
    fn what_cannot_be_given_is_passed_over() {
        assert_eq!(form(None), Ok(Form::Object));
        assert_eq!(form(Some("*/*")), Ok(Form::Object));
        let protobuf = "application/vnd.kubernetes.protobuf, application/json";
        assert_eq!(form(Some(protobuf)), Ok(Form::Object));
        let alone = "application/vnd.kubernetes.protobuf";
        assert_eq!(form(Some(alone)).map_err(|error| error.code()), Err(406));
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(form(Some(metadata)), Ok(Form::Metadata));
    }

    #[test]
    fn discovery_is_aggregated_when_asked() {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                      application/json";
        assert_eq!(discovery(Some(accept)), Ok(DiscoveryForm::V2));
        assert_eq!(
            discovery(Some("application/json")),
            Ok(DiscoveryForm::Legacy)
        );
    }
}
