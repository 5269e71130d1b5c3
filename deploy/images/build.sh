#!/bin/sh
# Builds every image, with the network of the machine, and lists their sizes: build.sh [TARGET...]
# BASE_IMAGE names another Debian to build on. Without it: Debian's own image, or, where no registry is reached, one
# made from its packages. PLATFORM=linux/arm64 (or linux/amd64) builds for that: where it is not the engine's own, by
# emulation, and the images are flannelette-TARGET:arm64, so that nothing takes one for the machine's.
set -eu
cd "$(dirname "$0")/../.."

registry_base=debian:bookworm-slim
architecture= # where it is not the engine's
case ${PLATFORM:-} in
'' | "$(docker version --format '{{.Server.Os}}/{{.Server.Arch}}')") ;;
linux/amd64) architecture=amd64 registry_base=amd64/$registry_base ;;
linux/arm64) architecture=arm64 registry_base=arm64v8/$registry_base ;;
*) echo "PLATFORM is linux/amd64 or linux/arm64, not $PLATFORM" >&2 && exit 2 ;;
esac
local_base=flannelette-base:bookworm${architecture:+-$architecture}
tag=${architecture:-latest}
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
    exec sh deploy/images/base.sh "$local_base" $architecture
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
        --tag "flannelette-$target:$tag" --tag "flannelette-$target:$version${architecture:+-$architecture}" \
        --build-arg "BASE_IMAGE=$BASE_IMAGE" --label "org.opencontainers.image.version=$version" \
        --label "org.opencontainers.image.revision=$revision" --label "org.opencontainers.image.created=$created" \
        --label "org.opencontainers.image.base.name=$BASE_IMAGE" ${PLATFORM:+--platform "$PLATFORM"} .
done
for target in "$@"; do
    docker image inspect --format "{{.Size}} flannelette-$target${architecture:+:$architecture}" "flannelette-$target:$tag"
done | awk '{printf "%-28s %4d MB\n", $2, $1 / 1e6}'
