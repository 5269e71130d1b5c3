#!/bin/sh
# Makes what nodes are made of, with a docker engine (deploy/engine.sh build): images.sh DIRECTORY nodes NAME... makes
# DIRECTORY/root, a node's root directory, and DIRECTORY/nodes.tar, the same as an image of these names, from
# DIRECTORY/context; images.sh DIRECTORY tree makes DIRECTORY/tree.tar, the images of this tree.
set -eu
cd "$(dirname "$0")/../.."

directory=$1
what=$2
shift 2
ours="lease dataplane masq ctl all"

# shellcheck disable=SC2086  # a list of words
tree() {
    sh deploy/images/build.sh $ours
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    names=
    for each in $ours; do names="$names flannelette-$each:$version"; done
    docker save --output "$directory/tree.tar" $names
}

nodes() {
    base=debian:bookworm-slim
    ! docker image inspect flannelette-base:bookworm >/dev/null 2>&1 || base=flannelette-base:bookworm
    docker build --network host --file lab/kubernetes/Dockerfile --tag flannelette-kube-lab \
        --build-arg "BASE_IMAGE=${BASE_IMAGE:-$base}" "$directory/context"
    for name in "$@"; do docker tag flannelette-kube-lab "$name"; done
    docker save --output "$directory/nodes.tar" "$@"
    container=$(docker create flannelette-kube-lab)
    rm -rf "$directory/root"
    mkdir "$directory/root"
    docker export "$container" | tar -x -C "$directory/root"
    docker rm "$container" >/dev/null
}

"$what" "$@"
