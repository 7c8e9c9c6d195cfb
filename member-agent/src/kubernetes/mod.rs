//! A real member cluster behind the Kubernetes API.

pub mod inventory;
