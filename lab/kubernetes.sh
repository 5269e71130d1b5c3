#!/bin/sh
# Builds real programs of Kubernetes into a directory: kubernetes.sh DIRECTORY PROGRAM..., where a PROGRAM is
# kube-apiserver, kube-controller-manager, kube-proxy, kube-scheduler, kubeadm, kubectl or kubelet.
# k8s.io/kubernetes is no library: its go.mod points at its own staging directories, so each is pinned to its release.
# A cold build takes minutes and is done once; the programs share most packages, so all that are missing are one build.
# Where Go is missing or too old it says so and succeeds.
set -eu

version=1.34.4
directory=$1
shift

missing= packages=
for program in "$@"; do
    if ! [ -x "$directory/bin/$program" ] || [ "$(cat "$directory/bin/$program.version" 2>/dev/null)" != "$version" ]; then
        missing="$missing${missing:+ }$program"
        packages="$packages k8s.io/kubernetes/cmd/$program"
    fi
done
[ -n "$missing" ] || exit 0
if ! place=$(sh "$(dirname "$0")/go.sh" 2>&1); then
    echo "$missing is left out: $place" >&2
    exit 0
fi
PATH=$place:$PATH
echo "+ go build $missing $version (minutes, once)" >&2
mkdir -p "$directory/bin"
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
trap 'exit 130' INT TERM
cd "$module"
export GOFLAGS="-mod=mod -buildvcs=false" GOTOOLCHAIN=auto GOWORK=off CGO_ENABLED=0
printf 'module flannelette.invalid/kubernetes\n\ngo 1.24.0\n' >go.mod
field_of() { printf '%s\n' "$2" | sed -n 's/^[[:space:]]*"'"$1"'": "\(.*\)",*$/\1/p'; }
if ! download=$(go mod download -json "k8s.io/kubernetes@v$version"); then
    printf '%s is left out: go mod download failed: %s\n' "$missing" "$(field_of Error "$download")" >&2
    exit 0
fi
sources=$(field_of Dir "$download")
{
    echo "require k8s.io/kubernetes v$version"
    sed -n 's#^[[:space:]]*\(k8s\.io/[a-z-]*\) => \./staging/.*#replace \1 => \1 v0.'"${version#1.}"'#p' "$sources/go.mod"
    sed -n '/^godebug/,/^)/p' "$sources/go.mod"
} >>go.mod
about=k8s.io/component-base/version
minor=${version#1.}
# kubeadm and kubelet read the numbers that are not in gitVersion too.
# shellcheck disable=SC2086  # a list of words
if nice go build -p 2 -trimpath -o "$module/bin/" \
    -ldflags "-s -w -X $about.gitVersion=v$version -X $about.gitMajor=1 -X $about.gitMinor=${minor%.*}" $packages; then
    for program in $missing; do
        mv "$module/bin/$program" "$directory/bin/$program"
        echo "$version" >"$directory/bin/$program.version"
    done
else
    echo "$missing is left out: go build failed, see above" >&2
fi
