#!/bin/sh
# Builds a real flanneld into a directory, its manifest, its chart and mk-docker-opts.sh beside it: flanneld.sh DIRECTORY.
# Without the backend tencent-vpc, which pulls in a cloud's whole client; and without udp where there is no gcc, or no
# amd64: it is in C. A cold build takes a minute or two and is done once. Where Go is missing or too old it says so and
# succeeds.
set -eu

version=0.28.9
directory=$1
program=$directory/bin/flanneld
manifests=$directory/kube-flannel-$version
without='tencentvpc\|udp'
cgo=0
built=$version
if command -v gcc >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    without=tencentvpc cgo=1 built="$version with udp"
fi

if [ -x "$program" ] && [ "$(cat "$program.version" 2>/dev/null)" = "$built" ] && [ -e "$manifests/mk-docker-opts.sh" ]; then
    exit 0
fi
if ! place=$(sh "$(dirname "$0")/go.sh" 2>&1); then
    echo "flanneld is left out: $place" >&2
    exit 0
fi
PATH=$place:$PATH
echo "+ go build flanneld $version (a minute or two, once)" >&2
mkdir -p "$directory/bin"
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
trap 'exit 130' INT TERM
cd "$module"
export GOFLAGS="-mod=mod -buildvcs=false" GOTOOLCHAIN=auto GOWORK=off CGO_ENABLED=$cgo
package=github.com/flannel-io/flannel
printf 'module flannelette.invalid/flanneld\n\ngo 1.25.0\n\nrequire %s v%s\n' "$package" "$version" >go.mod
field_of() { printf '%s\n' "$2" | sed -n 's/^[[:space:]]*"'"$1"'": "\(.*\)",*$/\1/p'; }
if ! download=$(go mod download -json "$package@v$version"); then
    echo "flanneld is left out: go mod download failed: $(field_of Error "$download")" >&2
    exit 0
fi
sources=$(field_of Dir "$download")
if sed "/pkg\/backend\/\($without\)\"/d" "$sources/main.go" >main.go &&
    nice go build -p 2 -trimpath -ldflags "-s -w -X $package/pkg/version.Version=v$version" -o "$program.new" .; then
    mv "$program.new" "$program" # at once: another one may be running
    rm -rf "$manifests"
    cp -R --no-preserve=mode "$sources/chart/kube-flannel" "$manifests"
    cp -R --no-preserve=mode "$sources/Documentation/kustomization/kube-flannel" "$manifests/released"
    cp --no-preserve=mode "$sources/dist/mk-docker-opts.sh" "$manifests"
    echo "$built" >"$program.version"
else
    echo "flanneld is left out: go build failed, see above" >&2
fi
