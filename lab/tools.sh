#!/bin/sh
# Fetches the development tools that pip does not have, into a directory: tools.sh TOOL DIRECTORY, where
# TOOL is buf, flanneld, grpcurl, helm, promtool, kubectl or kube-apiserver.
# Where npm or Go is missing it says so and succeeds: what needs the tool says so too.
set -eu

buf_version=1.75.0
grpcurl_version=v1.9.4
helm_version=v3.19.5
tool=$1
directory=$2
case $tool in
kube*) exec sh "$(dirname "$0")/kubernetes.sh" "$tool" "$directory" ;;
flanneld) exec sh "$(dirname "$0")/flanneld.sh" "$directory" ;;
esac

go_install() {
    if ! command -v go >/dev/null; then
        echo "$tool is left out: Go, which builds it, is not installed" >&2
        exit 0
    fi
    echo "+ go install $1" >&2
    GOBIN="$directory/bin" CGO_ENABLED=0 GOFLAGS=-mod=mod nice go install -trimpath -ldflags "-s -w" "$1" ||
        echo "$tool is left out: go install failed, see above" >&2
}

if [ -x "$directory/bin/$tool" ]; then
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
    download="apt-get -qq -o APT::Sandbox::User=root download prometheus"
    if cd "$fetched" && { $download 2>/dev/null || { apt-get -qq update && $download; }; } &&
        dpkg-deb --extract ./*.deb .; then
        cp "$fetched/usr/bin/promtool" "$directory/bin/promtool"
    else
        echo "promtool is left out: Debian's package prometheus cannot be fetched here" >&2
    fi
    ;;
grpcurl) go_install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version" ;;
helm) go_install "helm.sh/helm/v3/cmd/helm@$helm_version" ;;
esac
