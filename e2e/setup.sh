#!/usr/bin/env bash
# Brings what the build and the tests need and this machine lacks. Safe to run again: it takes a
# second when nothing is missing.
#
#   e2e/setup.sh build   the compilers' needs: what `make demo` needs
#   e2e/setup.sh         those, and the real tools of etcd and Kubernetes: what `make test` needs
#
# Where it may (root, or sudo without a password) it installs Debian packages; elsewhere it says
# exactly what to install and stops.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

stop() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# Runs a command as root, or fails at once when this user may not.
as_root() {
    if [[ "$(id -u)" -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Installs Debian packages, quietly unless that fails.
apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    echo "setup: installing $*"
    local log
    log="$(mktemp)"
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >"$log" 2>&1 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@" >>"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

need_rust() {
    command -v cargo >/dev/null ||
        stop "cargo is missing: install rustup from https://rustup.rs; it reads rust-toolchain.toml"
}

# aws-lc and zstd are C.
need_c_compiler() {
    command -v cc >/dev/null || apt_install gcc libc6-dev ||
        stop "a C compiler is missing: apt-get install gcc libc6-dev (or your system's)"
}

# etcd-client's build script calls protoc and imports google/protobuf/*.proto.
protoc_works() {
    local folder status=0
    folder="$(mktemp -d)"
    printf 'syntax = "proto3";\nimport "google/protobuf/empty.proto";\n%s\n' \
        'message Probe { google.protobuf.Empty empty = 1; }' >"$folder/probe.proto"
    "${PROTOC:-protoc}" -I "$folder" "$folder/probe.proto" -o "$folder/probe.pb" \
        >/dev/null 2>&1 || status=1
    rm -rf "$folder"
    return "$status"
}

need_protoc() {
    protoc_works && return
    [[ -z "${PROTOC:-}" ]] ||
        stop "PROTOC=$PROTOC does not compile a file that imports google/protobuf/empty.proto"
    apt_install protobuf-compiler libprotobuf-dev && protoc_works && return
    stop "protoc with the google/protobuf files is missing; one of:" \
        "  apt-get install protobuf-compiler libprotobuf-dev     (Debian, Ubuntu)" \
        "  dnf install protobuf-compiler protobuf-devel          (Fedora)" \
        "  brew install protobuf                                 (macOS)" \
        "  cargo install protox --features bin --version 0.10.0;" \
        "  export PROTOC=~/.cargo/bin/protox                     (anywhere)"
}

# runc is built with seccomp, and build.sh says so when it cannot be.
need_libseccomp() {
    command -v pkg-config >/dev/null && pkg-config --exists libseccomp && return
    apt_install libseccomp-dev pkg-config ||
        stop "libseccomp's headers are missing: apt-get install libseccomp-dev pkg-config" \
            "(or your system's)"
}

# Real nodes live in namespaces of their own.
need_namespace_tools() {
    local tool
    for tool in ip nsenter setpriv unshare; do
        command -v "$tool" >/dev/null || apt_install iproute2 util-linux ||
            stop "$tool is missing: apt-get install iproute2 util-linux (or your system's)"
    done
}

main() {
    case "${1:-all}" in
    build | all) ;;
    *) stop "usage: setup.sh [build]" ;;
    esac
    need_rust
    need_c_compiler
    need_protoc
    if [[ "${1:-all}" == all ]]; then
        need_libseccomp
        need_namespace_tools
        "$root/e2e/kubernetes/build.sh"
    fi
}

main "$@"
