#!/bin/sh
# What the containers need and this machine lacks, before anything is built: check.sh build|lab, as for engine.sh.
# Each lack is one line that says what to install or do. Exit code 77: something is missing.
set -eu

purpose=$1
state=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flannelette}/engine
PATH="$PATH:/usr/sbin:/sbin"
missing=0
has() { command -v "$1" >/dev/null; }
lacks() {
    missing=$((missing + 1))
    printf 'missing: %s\n' "$*" >&2
}

# own_engine WHY: what engine.sh needs to start one, where none of the machine's answers.
own_engine() {
    if ! has dockerd; then
        lacks "a docker engine: $1, and there is no dockerd to start: apt-get install docker.io, or start the machine's own"
        return
    fi
    has containerd || lacks "containerd, which dockerd needs: apt-get install containerd"
    has runc || lacks "runc, which containerd needs: apt-get install runc"
    has ip || lacks "ip: apt-get install iproute2"
    [ "$purpose" = build ] || has iptables || lacks "iptables, which dockerd needs: apt-get install iptables"
    if [ "$(id -u)" -ne 0 ]; then
        lacks "a docker engine: $1, and only root can start one: run this as root, or start the machine's own"
        return
    fi
    network=--net
    [ "$purpose" != build ] || network=
    # shellcheck disable=SC2086  # nothing or one word
    why=$(unshare --mount $network true 2>&1) || lacks "namespaces for an engine of our own: $why: run this where root may make them"
    has debootstrap || has apt-get || lacks "debootstrap, to make a base image where no registry is reached: install it"
}

# room DIRECTORY MEGABYTES: that much is free where the directory is, or will be.
room() {
    place=$1
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    free=$(df -Pk "$place" | awk 'NR == 2 {print int($4 / 1024)}')
    [ "$free" -ge "$2" ] ||
        lacks "disk space: $free MB are free in $place, and the images take $2: free some, or set XDG_CACHE_HOME to another disk"
}

engine=own
if ! has docker; then
    lacks "docker: apt-get install docker.io"
elif [ "${FLANNELETTE_ENGINE:-}" != own ] && why=$(docker version 2>&1); then
    engine=machine
elif [ "${FLANNELETTE_ENGINE:-}" = own ]; then
    own_engine "FLANNELETTE_ENGINE=own wants one of its own"
else
    own_engine "none answers ($(printf '%s\n' "$why" | tail -n 1))"
fi
if [ "$purpose" = lab ] && ! docker compose version >/dev/null 2>&1 && ! has docker-compose; then
    lacks "docker compose: apt-get install docker-compose (version 1.29 and 2 will do)"
fi
if [ "$purpose" = lab ] && [ "${BACKEND:-}" = ipsec ] && why=$(unshare --map-root-user --net true 2>&1); then
    key=0x000102030405060708090a0b0c0d0e0f10111213 # of a state in a network namespace that ends with the probe
    state_words="src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x77 mode tunnel aead rfc4106(gcm(aes)) $key 128"
    # shellcheck disable=SC2086  # a list of words
    why=$(unshare --map-root-user --net ip xfrm state add $state_words 2>&1) ||
        lacks "IPsec in the kernel ($(printf '%s\n' "$why" | tail -n 1)): modprobe -a xfrm_user esp4, or another BACKEND, such as wireguard or vxlan"
    why=$(unshare --map-root-user --net ip link add probe type dummy 2>&1) ||
        lacks "dummy devices in the kernel, for ipsec ($(printf '%s\n' "$why" | tail -n 1)): modprobe dummy, or another BACKEND"
fi
# Programs of another architecture run in an emulator, which the kernel must know, and hold open (flag F), for a container
# has none. What the kernel of another machine's engine knows cannot be seen here.
if [ "$purpose" = build ] && [ -n "${PLATFORM:-}" ]; then
    case $PLATFORM in
    linux/amd64) processor=x86_64 ;;
    linux/arm64) processor=aarch64 ;;
    *) processor=$(uname -m) && lacks "a platform: PLATFORM is linux/amd64 or linux/arm64, not $PLATFORM" ;;
    esac
    kernel=$(uname -r)
    [ "$engine" != machine ] || kernel=$(docker info --format '{{.KernelVersion}}')
    if [ "$(uname -m)" != "$processor" ] && [ "$(uname -r)" = "$kernel" ]; then
        known=$(cat "/proc/sys/fs/binfmt_misc/qemu-$processor" 2>&1) || true
        case $known in
        enabled*flags:*F*) ;;
        *) lacks "an emulator for $PLATFORM: apt-get install qemu-user-static binfmt-support; update-binfmts --enable qemu-$processor" ;;
        esac
    fi
fi
if [ "$engine" = own ]; then
    most=${FLANNELETTE_DISK_MB:-3000}
    [ ! -d "$state/data/image" ] || most=$((most / 3)) # the images are there, or most of them
    room "$state" "$most"
fi
[ "$missing" -eq 0 ] || exit 77
