#!/bin/sh
# Makes the Debian package of this machine's release and architecture: build.sh DIRECTORY. Fails on an error of lintian.
# DEBFULLNAME and DEBEMAIL, as for Debian's tools, are the maintainer. Needs a package index.
set -eu

mkdir -p "${1:?build.sh DIRECTORY}"
target=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
needed="build-essential debhelper lintian python3-dev python3-pip python3-venv"
installed=$(dpkg-query --show --showformat='${db:Status-Abbrev}${Package}\n')
missing=$(for each in $needed; do
    echo "$installed" | grep -qx "ii $each" || echo "$each"
done)
if [ -n "$missing" ]; then
    [ "$(id -u)" -eq 0 ] || { printf 'missing: %s\n' "apt-get install $(echo "$missing" | xargs)" && exit 1; }
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends $missing >/dev/null
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/flannelette
mkdir -p "$tree/deploy/images"
cp -r LICENSE README.md pyproject.toml proto services "$tree"
cp -r deploy/completion deploy/man deploy/systemd "$tree/deploy"
cp deploy/images/constraints.txt deploy/images/fetch.sh deploy/images/prune.sh "$tree/deploy/images"
cp -r deploy/debian "$tree/debian"
find "$tree" -name __pycache__ -type d -prune -exec rm -rf {} +
# The package has our program as the system's Python runs it, whatever is in front on the PATH.
export PATH="/usr/sbin:/usr/bin:/sbin:/bin"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
maintainer="${DEBFULLNAME:-Flannelette} <${DEBEMAIL:-flannelette@example.org}>"
sed -i "s|@MAINTAINER@|$maintainer|" "$tree/debian/control"
SOURCE_DATE_EPOCH=$(date +%s)
! git rev-parse HEAD >/dev/null 2>&1 || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# That of a later Debian is another package, for another Python, and follows that of Debian 12 in an upgrade of the host.
release=$(. /etc/os-release && [ "${VERSION_ID:-12}" = 12 ] || echo "+deb$VERSION_ID")
cat >"$tree/debian/changelog" <<END
flannelette ($version-1$release) unstable; urgency=medium

  * Release $version: see CHANGELOG.md of the sources.

 -- $maintainer  $(date -R --date "@$SOURCE_DATE_EPOCH")
END
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign) >"$scratch/said" 2>&1 || { tail -n 50 "$scratch/said" && exit 1; }
lintian --fail-on error --tag-display-limit 0 "$scratch"/*.deb
cp "$scratch"/*.deb "$target"
for package in "$scratch"/*.deb; do
    size=$(dpkg-deb --field "$package" Installed-Size)
    megabytes=$(($(stat --format %s "$package") / 1000000))
    printf '%-32s %4d MB, installed %d MB\n' "$(basename "$package")" "$megabytes" $((size * 1024 / 1000000))
done
