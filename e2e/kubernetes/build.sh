#!/usr/bin/env bash
# Builds the real Kubernetes, etcd and container tools that tests use, from the modules that the
# go.mod files pin, into .cache/kube-tools. Does nothing for a tool whose stamp matches.
#
#   e2e/kubernetes/build.sh                 what `make test` needs: all but etcdctl
#   e2e/kubernetes/build.sh kube-apiserver  that one; any of the names below
#
# A tool that KUBEBUILDER_ASSETS holds is not built: tests take it from there.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$(cd "$here/../.." && pwd)/.cache/kube-tools"
kubernetes_version="$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$here/go.mod")"

# In this order: what the first tests need comes first.
default_tools=(etcd kubectl kube-apiserver kube-controller-manager kube-scheduler kubelet
    kwok containerd containerd-shim-runc-v2 ctr runc ptp loopback host-local)

# `gitVersion` is what a client tells a server, and `kubectl version` a person.
version_package=k8s.io/component-base/version
kubernetes_ldflags="-s -w -X $version_package.gitVersion=$kubernetes_version"
kubernetes_ldflags+=" -X $version_package.gitMajor=$(cut -d. -f1 <<<"${kubernetes_version#v}")"
kubernetes_ldflags+=" -X $version_package.gitMinor=$(cut -d. -f2 <<<"$kubernetes_version")"

# Sets module (the folder of its go.mod), package, ldflags, tags and cgo of one tool.
look_up() {
    module="$here" ldflags="-s -w" tags="" cgo=0
    case "$1" in
    etcd) package=go.etcd.io/etcd/server/v3 ldflags="$kubernetes_ldflags" ;;
    etcdctl) package=go.etcd.io/etcd/etcdctl/v3 ldflags="$kubernetes_ldflags" ;;
    kubectl | kubelet | kube-apiserver | kube-controller-manager | kube-scheduler)
        package="k8s.io/kubernetes/cmd/$1" ldflags="$kubernetes_ldflags"
        ;;
    kwok) module="$here/kwok" package=sigs.k8s.io/kwok/cmd/kwok ;;
    containerd | containerd-shim-runc-v2 | ctr)
        module="$here/node" package="github.com/containerd/containerd/v2/cmd/$1"
        # Snapshotters that tests do not use; each needs headers of its own.
        tags="no_btrfs no_devmapper no_zfs"
        ;;
    runc)
        # Kubelets ask for the default seccomp profile: a runc without it starts no sandbox.
        module="$here/node" package=github.com/opencontainers/runc tags=seccomp cgo=1
        ;;
    ptp | loopback)
        module="$here/node" package="github.com/containernetworking/plugins/plugins/main/$1"
        ;;
    host-local)
        module="$here/node" package="github.com/containernetworking/plugins/plugins/ipam/$1"
        ;;
    *)
        echo "build.sh: no tool is called '$1'; there are: ${default_tools[*]} etcdctl" >&2
        exit 2
        ;;
    esac
}

# A tool is fresh when modules, flags and compiler are those it was built with.
stamp() {
    {
        cat "$module/go.mod" "$module/go.sum"
        echo "$ldflags${tags:+ -tags $tags}"
        go env GOVERSION GOOS GOARCH
    } | sha256sum | cut -d' ' -f1
}

# True when the person brings this tool along, as tests of other projects expect it.
is_brought() {
    case "$1" in
    etcd | kube-apiserver | kubectl)
        [[ -n "${KUBEBUILDER_ASSETS:-}" && -x "$KUBEBUILDER_ASSETS/$1" ]]
        ;;
    *) false ;;
    esac
}

need_libseccomp() {
    command -v pkg-config >/dev/null && pkg-config --exists libseccomp && return
    echo "build.sh: runc needs the headers of libseccomp, found by pkg-config:" \
        "apt-get install libseccomp-dev pkg-config (or your system's)" >&2
    exit 1
}

build() {
    local name="$1" started=$SECONDS fresh
    local module package ldflags tags cgo
    look_up "$name"
    fresh="$(stamp)"
    if [[ -x "$out/$name" && "$(cat "$out/$name.stamp" 2>/dev/null)" == "$fresh" ]]; then
        return
    fi
    if [[ "$cgo" -eq 1 ]]; then
        need_libseccomp
    fi
    echo "building $name ($package)"
    # The name changes only when the file is whole, so that an interrupted build leaves no stub.
    (cd "$module" && CGO_ENABLED="$cgo" go build -trimpath -mod=readonly -buildvcs=false \
        -tags "$tags" -ldflags "$ldflags" -o "$out/.$name.new" "$package")
    mv "$out/.$name.new" "$out/$name"
    echo "$fresh" >"$out/$name.stamp"
    echo "built $name in $((SECONDS - started)) s"
}

main() {
    local names=("$@") name
    if [[ ${#names[@]} -eq 0 ]]; then
        names=("${default_tools[@]}")
    fi
    for name in "${names[@]}"; do
        (look_up "$name")
    done
    command -v go >/dev/null || {
        echo "build.sh: go is not installed: get Go 1.26 or later from https://go.dev/dl/" >&2
        exit 1
    }
    mkdir -p "$out"
    # Two builds at once would write the same files.
    exec 9>"$out/.lock"
    flock 9
    for name in "${names[@]}"; do
        is_brought "$name" || build "$name"
    done
}

main "$@"
