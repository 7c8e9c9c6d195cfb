//! Files and folders of a member cluster, with errors that say which one.
//!
//! Owns nothing else.

use std::path::Path;

use super::MemberError;
use super::certificates::Pair;

/// Writes a file; its folder is made when it is not there.
pub(super) fn write(path: &Path, text: &str) -> Result<(), MemberError> {
    if let Some(folder) = path.parent() {
        make(folder)?;
    }
    std::fs::write(path, text).map_err(MemberError::system("cannot write a file", path))
}

/// Makes a folder and those above it.
pub(super) fn make(folder: &Path) -> Result<(), MemberError> {
    std::fs::create_dir_all(folder).map_err(MemberError::system("cannot make a folder", folder))
}

/// The text of a kubeconfig. It names files, so it is good as long as the cluster is.
pub(super) fn kubeconfig(server: &str, authority: &Path, client: &Pair) -> String {
    let Pair { certificate, key } = client;
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: member\n\
         clusters:\n- name: member\n  cluster:\n    server: {server}\n    \
         certificate-authority: {authority}\n\
         users:\n- name: member\n  user:\n    client-certificate: {certificate}\n    \
         client-key: {key}\n\
         contexts:\n- name: member\n  context: {{cluster: member, user: member}}\n",
        authority = authority.display(),
        certificate = certificate.display(),
        key = key.display(),
    )
}
