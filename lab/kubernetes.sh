#!/bin/sh
# Builds a real program of Kubernetes into a directory: kubernetes.sh kube-apiserver|kubectl DIRECTORY.
# k8s.io/kubernetes is no library: its go.mod points at its own staging directories, so each is pinned to its release.
# A cold build takes minutes and is done once; the second program shares most of it with the first.
# Where Go is missing or too old it says so and succeeds.
set -eu

version=1.34.4
name=$1
directory=$2
program=$directory/bin/$name

if [ -x "$program" ] && [ "$(cat "$program.version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
if ! command -v go >/dev/null || ! go version | grep -Eq 'go1\.(2[4-9]|[3-9][0-9])'; then
    echo "$name is left out: building it takes Go 1.24 or newer" >&2
    exit 0
fi
echo "+ go build $name $version (minutes, once)" >&2
mkdir -p "$directory/bin"
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
cd "$module"
export GOFLAGS="-mod=mod -buildvcs=false" GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0
printf 'module flannelette.invalid/kubernetes\n\ngo 1.24.0\n' >go.mod
sources=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
{
    echo "require k8s.io/kubernetes v$version"
    sed -n 's#^[[:space:]]*\(k8s\.io/[a-z-]*\) => \./staging/.*#replace \1 => \1 v0.'"${version#1.}"'#p' "$sources/go.mod"
    sed -n '/^godebug/,/^)/p' "$sources/go.mod"
} >>go.mod
if nice go build -p 2 -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" \
    -o "$program" "k8s.io/kubernetes/cmd/$name"; then
    echo "$version" >"$program.version"
else
    echo "$name is left out: go build failed, see above" >&2
fi
