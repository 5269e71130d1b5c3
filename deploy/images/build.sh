#!/bin/sh
# Builds every image, with the network of the machine, and lists their sizes: build.sh [TARGET...]
# BASE_IMAGE names another Debian to build on. Without it: Debian's own image, or, where no registry is reached, one
# made from its packages.
set -eu
cd "$(dirname "$0")/../.."

registry_base=debian:bookworm-slim
local_base=flannelette-base:bookworm
[ $# -gt 0 ] || set -- lease dataplane masq ctl lab etcd

has() { docker image inspect "$1" >/dev/null 2>&1; }
if [ -z "${BASE_IMAGE:-}" ]; then
    if has "$local_base"; then
        BASE_IMAGE=$local_base
    elif has "$registry_base" || timeout 60 docker pull --quiet "$registry_base" >/dev/null 2>&1; then
        BASE_IMAGE=$registry_base
    else
        echo "$registry_base cannot be pulled: making $local_base from Debian's packages" >&2
        sh deploy/images/base.sh "$local_base"
        BASE_IMAGE=$local_base
    fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || true)
for target in "$@"; do
    echo "+ docker build --target $target (on $BASE_IMAGE)" >&2
    docker build --network host --file deploy/images/Dockerfile --target "$target" \
        --tag "flannelette-$target" --tag "flannelette-$target:$version" \
        --build-arg "BASE_IMAGE=$BASE_IMAGE" --label "org.opencontainers.image.version=$version" \
        --label "org.opencontainers.image.revision=$revision" . >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        exit 1
    }
done
for target in "$@"; do
    docker image inspect --format "{{.Size}} flannelette-$target" "flannelette-$target"
done | awk '{printf "%-24s %4d MB\n", $2, $1 / 1e6}'
