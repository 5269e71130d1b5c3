#!/bin/sh
# Builds every image, with the network of the machine, and lists their sizes: build.sh [TARGET...]
# BASE_IMAGE names another Debian to build on. Without it: Debian's own image, or, where no registry is reached, one
# made from its packages. PLATFORM=linux/arm64 builds for that, where the engine can.
set -eu
cd "$(dirname "$0")/../.."

registry_base=debian:bookworm-slim
local_base=flannelette-base:bookworm
[ $# -gt 0 ] || set -- lease dataplane masq cloud ctl all lab etcd charon

. deploy/progress.sh
progress_of $(($# + 1))
trap 'progress_stop; exit 130' INT TERM

has() { docker image inspect "$1" >/dev/null 2>&1; }
base_image() {
    if [ -n "${BASE_IMAGE:-}" ] || has "$local_base" || has "$registry_base" ||
        timeout 60 docker pull --quiet "$registry_base"; then
        return 0
    fi
    echo "$registry_base cannot be pulled: making $local_base from Debian's packages"
    exec sh deploy/images/base.sh "$local_base"
}
step "the base image" base_image
if [ -z "${BASE_IMAGE:-}" ]; then
    BASE_IMAGE=$registry_base
    ! has "$local_base" || BASE_IMAGE=$local_base
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || true)
created=$(date -u +%Y-%m-%dT%H:%M:%SZ)
! git rev-parse HEAD >/dev/null 2>&1 || created=$(git log -1 --format=%cI)
for target in "$@"; do
    step "the image flannelette-$target" docker build --network host --file deploy/images/Dockerfile --target "$target" \
        --tag "flannelette-$target" --tag "flannelette-$target:$version" \
        --build-arg "BASE_IMAGE=$BASE_IMAGE" --label "org.opencontainers.image.version=$version" \
        --label "org.opencontainers.image.revision=$revision" --label "org.opencontainers.image.created=$created" \
        --label "org.opencontainers.image.base.name=$BASE_IMAGE" ${PLATFORM:+--platform "$PLATFORM"} .
done
for target in "$@"; do
    docker image inspect --format "{{.Size}} flannelette-$target" "flannelette-$target"
done | awk '{printf "%-24s %4d MB\n", $2, $1 / 1e6}'
