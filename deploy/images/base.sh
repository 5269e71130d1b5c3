#!/bin/sh
# Makes a base image from Debian's packages, for machines that reach no image registry: base.sh NAME [ARCHITECTURE]
#
# ARCHITECTURE, where it is not the engine's (amd64, arm64), takes an emulator that the kernel knows: deploy/check.sh.
# What makes this machine's package installations work (certificate authorities it trusts, its pip.conf) goes into the
# image: it is for builds on this machine. Do not push it.
set -eu

name=$1
suite=bookworm
architecture=${2:-$(docker version --format '{{.Server.Arch}}')}
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends debootstrap; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
echo "+ debootstrap --variant=minbase --arch=$architecture $suite" >&2
# Without MIRROR debootstrap's own, which it writes into the sources.
# shellcheck disable=SC2086  # one word or none
debootstrap --variant=minbase --arch="$architecture" --include=ca-certificates "$suite" "$root" ${MIRROR:-}
mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$root/etc/apt/sources.list" | head -n 1)

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

# Not `docker import`: engines before 23 write their own architecture into it.
tar -C "$root" -cf "$scratch/layer.tar" .
rm -rf "$root"
layer=sha256:$(sha256sum "$scratch/layer.tar" | cut -d' ' -f1)
cat >"$scratch/config.json" <<END
{"architecture": "$architecture", "os": "linux", "created": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
 "config": {"Cmd": ["bash"]}, "rootfs": {"type": "layers", "diff_ids": ["$layer"]}}
END
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" >"$scratch/manifest.json"
tar -C "$scratch" -c manifest.json config.json layer.tar | docker load --quiet >/dev/null
