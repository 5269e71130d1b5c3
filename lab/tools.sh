#!/bin/sh
# Fetches the development tools that pip does not have, into a directory: tools.sh TOOL DIRECTORY, where
# TOOL is buf, cnitool (with the CNI plugins of a node), flanneld, grpcurl, helm, promtool, kubectl, kube-apiserver,
# kube-router and kube-network-policies (engines of NetworkPolicies), containerd (of whose pods tests tell; with its shim and ctr), wheels (what pip installs), cloud (SDKs of clouds, and moto),
# compose (grpcurl and cloud), or tests: all that tests run, two at a time, with the
# progress on stderr and the rest in NAME.log. `tests DIRECTORY wanted` builds only what a test waits for, until it is ended.
# Where npm or Go is missing it says so and succeeds: what needs the tool says so too.
set -eu

buf_version=1.75.0
grpcurl_version=v1.9.4
helm_version=v3.19.5
helm_kubernetes=34 # the minor version of the client-go in its go.mod: what it takes a cluster for that it does not ask
cni_version=v1.3.0
plugins_version=v1.9.0
kube_router_version=v2.1.0
kube_network_policies_version=v0.8.0
containerd_version=v2.4.2
flannel_plugin_version=v0.9.1 # the last one that is among the plugins; since then flannel has it
tool=$1
directory=$2
case $tool in
tests) # tests wait for what is in tools.todo, while tools.lock is held, and say so in tools.wanted: see tests/tools.py
    [ -d "$directory/bin" ] || echo "tools: they stay in $directory; make clean-cache removes them" >&2
    mkdir -p "$directory"
    exec 9>"$directory/tools.lock"
    flock 9
    fetched="cloud wheels promtool" # from package indices; the others are compiled
    compiled="grpcurl helm cnitool flanneld kube-apiserver kubectl"
    rm -rf "$directory/tools.todo" "$directory/tools.new" "$directory/tools.wanted"
    mkdir "$directory/tools.new" "$directory/tools.wanted"
    for each in $fetched $compiled; do : >"$directory/tools.new/$each"; done
    mv "$directory/tools.new" "$directory/tools.todo" # whole at once: an empty one says that nothing is to be done
    build() {
        for each; do
            [ "${which:-all}" = all ] || until [ -e "$directory/tools.wanted/$each" ]; do sleep 1; done
            [ -e "$directory/bin/$each" ] || [ -e "$directory/$each" ] || echo "tools: $each ($directory/$each.log)" >&2
            sh "$0" "$each" "$directory" >"$directory/$each.log" 2>&1 || echo "tools: $each failed, see $directory/$each.log" >&2
            grep "is left out\|are left out" "$directory/$each.log" >&2 || true
            rm -f "$directory/tools.todo/$each"
        done
    }
    # Said once, and not by each: some 350 tests are skipped then.
    compile() {
        if lacking=$(sh "$(dirname "$0")/go.sh" 2>&1 >/dev/null); then
            "$@"
        else
            echo "tools: $compiled are left out, and tests that need one are skipped: $lacking" | sed 's/builds it/builds them/' >&2
            for each in $compiled; do rm -f "$directory/tools.todo/$each"; done
        fi
    }
    at_once() { for one; do build "$one" & done; wait; }
    which=${3:-all}
    # A build holds tools.lock as long as it runs. One in the background ignores SIGINT.
    trap 'trap - INT TERM; kill 0' INT TERM
    if [ "$which" = all ]; then
        build $fetched &
        compile build $compiled &
    else
        at_once $fetched &
        compile at_once $compiled &
    fi
    wait
    exit 0
    ;;
kubectl | kube-apiserver) exec sh "$(dirname "$0")/kubernetes.sh" "$directory" "$tool" ;;
flanneld) exec sh "$(dirname "$0")/flanneld.sh" "$directory" ;;
cloud) exec sh "$(dirname "$0")/cloud.sh" "$directory" ;;
wheels) exec sh "$(dirname "$0")/wheels.sh" "$directory" ;;
compose)
    sh "$0" grpcurl "$directory"
    exec sh "$0" cloud "$directory"
    ;;
esac

# go_install BIN PACKAGE...: builds them into that directory.
go_install() {
    if ! place=$(sh "$(dirname "$0")/go.sh" 2>&1); then
        echo "$tool is left out: $place" >&2
        exit 0
    fi
    PATH=$place:$PATH
    bin=$1
    shift
    echo "+ go install $*" >&2
    GOBIN="$bin" CGO_ENABLED=0 GOFLAGS=-mod=mod GOTOOLCHAIN=auto nice go install -trimpath -ldflags "-s -w ${ldflags:-}" "$@" || {
        echo "$tool is left out: go install failed, see above" >&2
        exit 0
    }
}

if [ -x "$directory/bin/$tool" ] &&
    { [ "$tool" != helm ] || [ "$(cat "$directory/bin/helm.version" 2>/dev/null)" = "$helm_version" ]; }; then
    exit 0
fi
mkdir -p "$directory/bin"
case $tool in
buf)
    if ! command -v npm >/dev/null; then
        echo "buf is left out: npm, which fetches it, is not installed" >&2
        exit 0
    fi
    npm install --silent --no-audit --no-fund --prefix "$directory/buf" "@bufbuild/buf@$buf_version"
    ln -sf ../buf/node_modules/.bin/buf "$directory/bin/buf"
    ;;
promtool) # Debian's, out of its package: nothing is installed, and no Prometheus starts
    fetched=$(mktemp -d)
    trap 'rm -rf "$fetched"' EXIT
    fetch() { apt-get -qq -o APT::Sandbox::User=root download "$1"; }
    download() { fetch promtool || fetch prometheus; } # a package of its own since Debian 13
    if cd "$fetched" && { download 2>/dev/null || { apt-get -qq update && download; }; } &&
        dpkg-deb --extract ./*.deb .; then
        cp "$fetched/usr/bin/promtool" "$directory/bin/promtool"
    else
        echo "promtool is left out: Debian's package prometheus cannot be fetched here" >&2
    fi
    ;;
cnitool)
    plugins=github.com/containernetworking/plugins/plugins
    go_install "$directory/cni" "$plugins/meta/flannel@$flannel_plugin_version"
    go_install "$directory/cni" "$plugins/main/bridge@$plugins_version" "$plugins/ipam/host-local@$plugins_version" \
        "$plugins/meta/portmap@$plugins_version"
    go_install "$directory/bin" "github.com/containernetworking/cni/cnitool@$cni_version" # last: it stands for all
    ;;
grpcurl) go_install "$directory/bin" "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version" ;;
kube-router) go_install "$directory/bin" "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@$kube_router_version" ;;
containerd) # with what starts pods in it
    go_install "$directory/cni" "github.com/containernetworking/plugins/plugins/main/loopback@$plugins_version"
    commands=github.com/containerd/containerd/v2/cmd
    go_install "$directory/bin" "$commands/containerd-shim-runc-v2@$containerd_version" \
        "$commands/ctr@$containerd_version" "$commands/containerd@$containerd_version"
    ;;
kube-network-policies)
    go_install "$directory/bin/.new-$$" "sigs.k8s.io/kube-network-policies/cmd@$kube_network_policies_version"
    mv "$directory/bin/.new-$$/cmd" "$directory/bin/$tool" && rmdir "$directory/bin/.new-$$"
    ;;
helm) # as its Makefile builds it; else it takes every cluster for Kubernetes 1.20, which the chart does not support
    ldflags=
    for package in chartutil lint/rules; do
        variable=helm.sh/helm/v3/pkg/$package.k8sVersion
        ldflags="$ldflags -X ${variable}Major=1 -X ${variable}Minor=$helm_kubernetes"
    done
    go_install "$directory/bin" "helm.sh/helm/v3/cmd/helm@$helm_version"
    echo "$helm_version" >"$directory/bin/helm.version"
    ;;
esac
