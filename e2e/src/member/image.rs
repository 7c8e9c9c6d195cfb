//! The images of a real node: a training stand-in and what holds a pod's namespaces, both one
//! program.
//!
//! Owns their packing into one archive that containerd imports; no registry is asked. The program
//! comes with the shared libraries that this machine would load for it, so that cargo's own build
//! of it is the one that runs.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::MemberError;

/// What pods name.
pub const TRAINER_IMAGE: &str = "meridian.dev/trainer:1";
/// What a node's containerd starts first in each pod.
pub(super) const PAUSE_IMAGE: &str = "meridian.dev/pause:1";

/// Where the program lies in its image.
const PROGRAM: &str = "/trainer";

/// Packs both images around `program` and returns the archive, a file in `folder`.
pub(super) fn pack(program: &Path, folder: &Path) -> Result<PathBuf, MemberError> {
    let archive = folder.join("images.tar");
    let failed = |path: &Path| MemberError::system("cannot pack an image", path);
    let layer = layer(program).map_err(failed(program))?;
    let file = File::create(&archive).map_err(failed(&archive))?;
    let mut tar = tar::Builder::new(file);
    let mut manifest = Vec::new();
    let images = [(TRAINER_IMAGE, "train"), (PAUSE_IMAGE, "pause")];
    for (name, command) in images {
        let config = config(command, &layer).to_string();
        let file = format!("{}.json", hex(&Sha256::digest(&config)));
        append(&mut tar, &file, config.as_bytes()).map_err(failed(&archive))?;
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
    }
    let manifest = Value::from(manifest).to_string();
    append(&mut tar, "layer.tar", &layer).map_err(failed(&archive))?;
    append(&mut tar, "manifest.json", manifest.as_bytes()).map_err(failed(&archive))?;
    let written = tar.into_inner().and_then(|mut file| file.flush());
    written.map_err(failed(&archive))?;
    Ok(archive)
}

fn config(command: &str, layer: &[u8]) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let layer = format!("sha256:{}", hex(&Sha256::digest(layer)));
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [PROGRAM, command]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [],
    })
}

/// The program and what it loads, each where the loader looks for it.
fn layer(program: &Path) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    append(
        &mut tar,
        PROGRAM.trim_start_matches('/'),
        &std::fs::read(program)?,
    )?;
    let listed = Command::new("ldd").arg(program).output()?;
    for library in libraries(&String::from_utf8_lossy(&listed.stdout)) {
        append(
            &mut tar,
            library.trim_start_matches('/'),
            &std::fs::read(library)?,
        )?;
    }
    tar.into_inner()
}

/// Paths in what `ldd` prints: `libc.so.6 => /lib/libc.so.6 (0x…)` or `/lib64/ld.so (0x…)`.
fn libraries(listed: &str) -> Vec<&str> {
    let lines = listed.lines();
    lines
        .filter_map(|line| line[line.find('/')?..].split_whitespace().next())
        .collect()
}

fn append(
    tar: &mut tar::Builder<impl std::io::Write>,
    path: &str,
    data: &[u8],
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(0o755);
    // The same program gives the same archive, whenever it is packed.
    header.set_mtime(0);
    tar.append_data(&mut header, path, data)
}

fn hex(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in digest {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_loads_is_found() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries(listed), found);
        assert_eq!(libraries("\tstatically linked\n"), Vec::<&str>::new());
    }

    #[test]
    fn an_archive_names_both_images_over_one_layer() {
        let folder = tempfile::tempdir().expect("a folder");
        let archive = pack(Path::new("/bin/sh"), folder.path()).expect("packed");
        let mut archive = tar::Archive::new(File::open(archive).expect("there"));
        let names = archive.entries().expect("an archive").map(|entry| {
            let entry = entry.expect("an entry");
            entry.path().expect("a path").display().to_string()
        });
        let names: Vec<String> = names.collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(names[2..], ["layer.tar", "manifest.json"]);
    }
}
