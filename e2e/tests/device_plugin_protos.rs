//! The generated code of the device plugin API is what its `.proto` file says.
//!
//! Owns the only generator run: `MERIDIAN_WRITE_GENERATED=1 cargo test -p meridian-e2e --test
//! device_plugin_protos` writes `src/member/gen`, without it the test compares. Needs no protoc.

use std::path::{Path, PathBuf};

const FILE: &str = "deviceplugin.proto";
const GENERATED: &str = "v1beta1.rs";

fn generate(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/protos");
    let descriptors = protox::compile([FILE], [root]).expect("the proto is well formed");
    tonic_prost_build::configure()
        .out_dir(into)
        .btree_map(".")
        .compile_fds(descriptors)
        .expect("the proto generates");
}

#[test]
fn generated_code_is_fresh() {
    let folder = tempfile::tempdir().expect("a folder");
    generate(folder.path());
    let fresh = std::fs::read_to_string(folder.path().join(GENERATED)).expect("generated");
    let kept: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/member/gen")
        .join(GENERATED);
    if std::env::var_os("MERIDIAN_WRITE_GENERATED").is_some() {
        std::fs::write(&kept, &fresh).expect("the source folder is writable");
    }
    let kept = std::fs::read_to_string(&kept).unwrap_or_default();
    assert!(
        kept == fresh,
        "src/member/gen/{GENERATED} is out of date: run MERIDIAN_WRITE_GENERATED=1 \
         cargo test -p meridian-e2e --test device_plugin_protos"
    );
}
