//! The generated code is what the `.proto` files say.
//!
//! Owns the only generator run: `MERIDIAN_WRITE_GENERATED=1 cargo test -p meridian-proto` writes
//! `src/gen`, without it the test compares. Needs no protoc.

use std::path::{Path, PathBuf};

use prost::Message as _;

const FILES: [&str; 4] = [
    "meridian/v1/common.proto",
    "meridian/v1/agent.proto",
    "meridian/v1/federation.proto",
    "meridian/v1/join.proto",
];
const GENERATED: &str = "meridian.v1.rs";

fn generate(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES, [root]).expect("the protos are well formed");
    let fds = into.join("descriptors.bin");
    std::fs::write(&fds, descriptors.encode_to_vec()).expect("the folder is writable");
    tonic_prost_build::configure()
        .out_dir(into)
        .bytes(".")
        .btree_map(".")
        .compile_fds(descriptors)
        .expect("the protos generate");
}

#[test]
fn generated_code_is_fresh() {
    let folder = tempfile::tempdir().expect("a folder");
    generate(folder.path());
    let fresh = std::fs::read_to_string(folder.path().join(GENERATED)).expect("generated");
    let kept: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/gen")
        .join(GENERATED);
    if std::env::var_os("MERIDIAN_WRITE_GENERATED").is_some() {
        std::fs::write(&kept, &fresh).expect("the source folder is writable");
    }
    let kept = std::fs::read_to_string(&kept).unwrap_or_default();
    assert!(
        kept == fresh,
        "src/gen/{GENERATED} is out of date: \
         run MERIDIAN_WRITE_GENERATED=1 cargo test -p meridian-proto"
    );
}
