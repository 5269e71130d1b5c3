#!/bin/sh
# Installs a Debian package into an empty Debian, runs the services with the users and rights of their units, purges the
# package, and fails if anything stays: check.sh DEB. Needs root. The empty Debian is kept in the cache.
set -eu

if [ "${1:-}" != apart ]; then # in namespaces of its own, so that nothing reaches the machine, or outlives this script
    exec unshare --mount --pid --fork --kill-child --mount-proc sh "$0" apart "$@"
fi
package=$2
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flannelette}/debian
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
PATH=$PATH:/usr/sbin:/sbin
export DEBIAN_FRONTEND=noninteractive

scratch=$(mktemp -d)
trap '! mountpoint -q "$scratch/root/proc" || umount "$scratch/root/proc"; rm -rf --one-file-system "$scratch"' EXIT
root=$scratch/root
quietly() { "$@" >"$scratch/said" 2>&1 || { tail -n 50 "$scratch/said" && exit 1; }; }
command -v ip >/dev/null || quietly apt-get install -y --no-install-recommends iproute2
if [ ! -s "$cache/$suite.tar" ]; then
    command -v debootstrap >/dev/null || quietly apt-get install -y --no-install-recommends debootstrap
    mkdir -p "$cache"
    # shellcheck disable=SC2086  # one word or none
    quietly debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${MIRROR:-}
    tar -C "$root" -cf "$cache/$suite.tar.new" .
    mv "$cache/$suite.tar.new" "$cache/$suite.tar"
else
    mkdir "$root"
    tar -C "$root" -xf "$cache/$suite.tar"
fi
# What apt-get needs here.
for file in /etc/resolv.conf /etc/hosts /etc/apt/apt.conf.d/99* /etc/ssl/certs/ca-certificates.crt; do
    [ ! -f "$file" ] || cp "$file" "$root$file"
done
mount -t proc proc "$root/proc"
cp "$package" "$root/tmp/flannelette.deb"
cp "$(dirname "$0")/check-inside.sh" "$root/tmp"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
# All but what apt and dpkg note of any package, copies of /etc/passwd before the last change, the lock of every iptables,
# and what systemd keeps in /run.
listing() {
    (cd "$root" && find . -xdev \( -path './proc/*' -o -path './tmp/*' -o -path './var/cache/*' -o -path './var/log/*' -o \
        -path './var/lib/dpkg/*' -o -path './etc/*-' -o -path './run/xtables.lock' -o -path './run/systemd/*' \) \
        -prune -o -print | sort)
    cat "$root/etc/passwd" "$root/etc/group"
}
taken() { du -smx --exclude="$root/proc" "$root" | cut -f1; }

quietly inside apt-get update
start=$(date +%s)
quietly inside apt-get satisfy -y --no-install-recommends "$(dpkg-deb --field "$package" Depends)"
listing >"$scratch/before"
before=$(taken)
middle=$(date +%s)
quietly inside dpkg --install /tmp/flannelette.deb
end=$(date +%s)
size=$(($(taken) - before))
unshare --net sh -ec '
    ip link set lo up
    ip link add eth0 type veth peer name eth1
    ip address add 192.0.2.1/24 dev eth0
    ip link set eth0 up
    ip link set eth1 up
    exec "$@"' sh chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh /tmp/check-inside.sh
quietly inside dpkg --purge flannelette
listing >"$scratch/after"
diff "$scratch/before" "$scratch/after" || { echo "dpkg --purge leaves what is listed above" && exit 1; }
printf '%-24s %4s MB in %3s s   after %s s for what it needs of Debian; purged, nothing is left\n' \
    "deb" "$size" $((end - middle)) $((middle - start))
