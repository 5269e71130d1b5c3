#!/bin/sh
# Fetches the development tools that pip does not have, into a directory: tools.sh buf|grpcurl|kube-apiserver DIRECTORY.
# Where npm or Go is missing it says so and succeeds: what needs the tool says so too.
set -eu

buf_version=1.75.0
grpcurl_version=v1.9.4
tool=$1
directory=$2
[ "$tool" != kube-apiserver ] || exec sh "$(dirname "$0")/kube_apiserver.sh" "$directory"

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
grpcurl)
    if ! command -v go >/dev/null; then
        echo "grpcurl is left out: Go, which builds it, is not installed" >&2
        exit 0
    fi
    echo "+ go install grpcurl@$grpcurl_version" >&2
    GOBIN="$directory/bin" CGO_ENABLED=0 GOFLAGS=-mod=mod go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version" ||
        echo "grpcurl is left out: go install failed, see above" >&2
    ;;
esac
