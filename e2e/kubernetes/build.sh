#!/usr/bin/env bash
# Builds the real Kubernetes and etcd tools that tests use, from the modules that go.mod pins,
# into .cache/kube-tools. Does nothing for a tool whose stamp matches.
#
#   e2e/kubernetes/build.sh                 etcd and kubectl: what `make test` needs
#   e2e/kubernetes/build.sh kube-apiserver  that one; any of the names below
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$(cd "$here/../.." && pwd)/.cache/kube-tools"
kubernetes_version="$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$here/go.mod")"

# `gitVersion` is what a client tells a server, and `kubectl version` a person.
version_package=k8s.io/component-base/version
ldflags="-s -w -X $version_package.gitVersion=$kubernetes_version"
ldflags+=" -X $version_package.gitMajor=$(cut -d. -f1 <<<"${kubernetes_version#v}")"
ldflags+=" -X $version_package.gitMinor=$(cut -d. -f2 <<<"$kubernetes_version")"

package_of() {
    case "$1" in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    etcdctl) echo go.etcd.io/etcd/etcdctl/v3 ;;
    kubectl | kubelet | kube-apiserver | kube-controller-manager | kube-scheduler)
        echo "k8s.io/kubernetes/cmd/$1"
        ;;
    *)
        echo "build.sh: no tool is called '$1'; there are: etcd etcdctl kubectl kubelet" \
            "kube-apiserver kube-controller-manager kube-scheduler" >&2
        exit 2
        ;;
    esac
}

# A tool is fresh when modules, flags and compiler are those it was built with.
stamp_of() {
    { cat "$here/go.mod" "$here/go.sum" && echo "$ldflags" && go env GOVERSION GOOS GOARCH; } |
        sha256sum | cut -d' ' -f1
}

build() {
    local name="$1" package="$2" stamp="$3" started=$SECONDS
    if [[ -x "$out/$name" && "$(cat "$out/$name.stamp" 2>/dev/null)" == "$stamp" ]]; then
        return
    fi
    echo "building $name ($package)"
    # The name changes only when the file is whole, so that an interrupted build leaves no stub.
    (cd "$here" && CGO_ENABLED=0 go build -trimpath -mod=readonly -ldflags "$ldflags" \
        -o "$out/.$name.new" "$package")
    mv "$out/.$name.new" "$out/$name"
    echo "$stamp" >"$out/$name.stamp"
    echo "built $name in $((SECONDS - started)) s"
}

main() {
    local names=("$@") name package
    if [[ ${#names[@]} -eq 0 ]]; then
        names=(etcd kubectl)
    fi
    for name in "${names[@]}"; do
        package_of "$name" >/dev/null
    done
    command -v go >/dev/null || {
        echo "build.sh: go is not installed: get Go 1.26 or later from https://go.dev/dl/" >&2
        exit 1
    }
    mkdir -p "$out"
    # Two builds at once would write the same files.
    exec 9>"$out/.lock"
    flock 9
    local stamp
    stamp="$(stamp_of)"
    for name in "${names[@]}"; do
        package="$(package_of "$name")"
        build "$name" "$package" "$stamp"
    done
}

main "$@"
