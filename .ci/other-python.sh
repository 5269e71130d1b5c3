#!/bin/sh
# The unit and contract tests with another Python than that of .venv: other-python.sh VERSION SUITE, such as 3.13 trixie.
# That Python is one of the PATH or of pyenv; else, as root, that of a minimal Debian SUITE, kept in the cache, in which
# lab/prepare.sh installs what it takes. 125: it can be had in neither way, which one line says.
set -eu

cd "$(dirname "$0")/.."
version=$1 suite=$2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/flannelette
tests="tests/unit tests/contract --ignore=tests/contract/kubernetes --ignore=tests/contract/cloud"
pytest="exec .venv/bin/pytest -n 4 --dist loadfile --quiet -rf $tests"

# copy DIRECTORY: this checkout as it is, with its history.
copy() {
    mkdir -p "$1"
    find "$1" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    git clone --quiet --no-hardlinks --no-checkout . "$1/clone"
    mv "$1/clone/.git" "$1"
    rmdir "$1/clone"
    git ls-files -z --cached --others --exclude-standard | xargs -0 -r sh -c 'for each; do [ ! -e "$each" ] || printf "%s\n" "$each"; done' sh |
        tar -cf - --files-from=- | tar -C "$1" -xf -
    git -C "$1" reset --quiet
}

for python in "python$version" "$HOME/.pyenv/versions/$version".*/bin/"python$version"; do
    python=$(command -v "$python") || continue
    "$python" -c 'import sqlite3, ssl, venv' 2>/dev/null || continue
    place=$cache/python$version
    copy "$place"
    cd "$place"
    PYTHON=$python sh lab/prepare.sh
    sh -c "$pytest"
    exit
done

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "there is no Python $version here, and no root on Debian, who gets Debian $suite's" >&2
    exit 125
fi
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends debootstrap >/dev/null; }
root=$cache/debian/$suite
if [ ! -e "$root/etc/debian_version" ]; then
    rm -rf "$root" "$root.new"
    mkdir -p "$root.new"
    packages=ca-certificates,git,make,python3,python3-venv
    # shellcheck disable=SC2086  # one word or none
    debootstrap --variant=minbase --include=$packages "$suite" "$root.new" ${MIRROR:-} >"$root.log" 2>&1 ||
        { tail -n 3 "$root.log" >&2 && echo "Debian $suite cannot be had here, see $root.log" >&2 && exit 125; }
    mv "$root.new" "$root"
fi
copy "$root/src"
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do cp "$file" "$root$file"; done
export root pytest
exec unshare --mount --pid --fork --kill-child sh -euc '
    mount --make-rprivate /
    for each in sys dev; do mount --rbind /$each "$root/$each"; done
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    exec chroot "$root" env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin ${PIP_CERT:+PIP_CERT=$PIP_CERT} \
        sh -euc "cd /src; git config --global --replace-all safe.directory /src; sh lab/prepare.sh; $pytest"'
