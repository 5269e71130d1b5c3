#!/bin/sh
# Makes a base image from Debian's packages, for machines that reach no image registry: base.sh NAME
#
# What makes this machine's package installations work (certificate authorities it trusts, its pip.conf) goes into the
# image: it is for builds on this machine. Do not push it.
set -eu

name=$1
suite=bookworm
mirror=${MIRROR:-http://deb.debian.org/debian}
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends debootstrap; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "+ debootstrap --variant=minbase $suite" >&2
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror"

cat >"$root/etc/apt/sources.list" <<END
deb $mirror $suite main
deb $mirror $suite-updates main
deb ${SECURITY_MIRROR:-$mirror-security} $suite-security main
END
for file in /etc/apt/apt.conf.d/99* /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -f "$file" ] || cp "$file" "$root$file"
done
rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root/var/log" "$root/usr/share/doc" \
    "$root/usr/share/man" "$root/usr/share/locale" "$root/var/cache/debconf"
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial" "$root/var/log/apt" \
    "$root/var/cache/debconf"
tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - "$name" >/dev/null
