#!/bin/sh
# Fills the package's directory, of the sources in this directory: environment.sh DIRECTORY
# A virtual environment of Debian's Python, with the versions of deploy/images/constraints.txt, goes into /usr/lib/flannelette.
set -eu

place=usr/lib/flannelette
environment=$1/$place
python=/usr/bin/python3
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Not the user's cache: that may have libraries in C that were built for another Python of the same version.
export PIP_CACHE_DIR="${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flannelette}/debian/pip"
pip() { "$python" -m pip --python "$environment/bin/python" "$@" --quiet; }

PYTHON=$python sh deploy/images/fetch.sh deploy/images/constraints.txt fetched
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/fetched" # from here on pip sees no index
"$python" -m venv --without-pip "$environment"
"$python" -m pip wheel --quiet --no-deps --wheel-dir wheel .
pip install --no-compile "$(echo wheel/*.whl)[all]"
sh deploy/images/prune.sh "$environment"
# Byte code is made by the installation; a path of this machine is nobody's.
find "$environment" \( -name __pycache__ -o -name direct_url.json \) -prune -exec rm -rf {} +
find "$environment/lib" -name '*.py' -perm /111 -exec chmod a-x {} +

# The environment works where it will be, and has no programs but ours.
find "$environment/bin" -type f ! -name 'flannelette*' -delete
rm -rf "$environment/include" "$environment/lib64" "$environment/bin/flannelette-cloud"
sed -i '/^command = /d' "$environment/pyvenv.cfg"
for program in "$environment"/bin/flannelette*; do
    module=$(sed -n 's/^from \(flannelette[a-z.]*\) import main$/\1/p' "$program")
    printf '#!/%s/bin/python\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' "$place" "${module:?}" >"$program"
done

share=$1/usr/share
mkdir -p "$1/usr/bin" "$1/usr/sbin"
ln -s ../lib/flannelette/bin/flannelette "$1/usr/bin/flannelette"
for service in lease dataplane masq; do
    ln -s "../lib/flannelette/bin/flannelette-$service" "$1/usr/sbin/flannelette-$service"
    install -D -m 0644 -t "$share/man/man8" "deploy/man/flannelette-$service.8"
done
install -D -m 0644 -t "$share/man/man1" deploy/man/flannelette.1
install -D -m 0644 deploy/completion/flannelette.bash "$share/bash-completion/completions/flannelette"
install -D -m 0644 -t "$share/zsh/vendor-completions" deploy/completion/_flannelette
install -D -m 0644 -t "$share/fish/vendor_completions.d" deploy/completion/flannelette.fish
rm -rf "${environment:?}/share"

# Debian 12's debhelper looks for units in /lib alone; later ones want them in /usr/lib, to which /lib is a link.
units=$1/usr/lib/systemd/system
! (. /etc/os-release && [ "${VERSION_ID:-}" = 12 ]) || units=$1/lib/systemd/system
for unit in deploy/systemd/*.service deploy/systemd/*.target; do
    install -D -m 0644 -t "$units" "$unit"
done
rm "$units/flannelette-cloud.service" # an SDK is in an environment of its own: docs/backends.md
sed -i -e 's|^ExecStart=/opt/flannelette/bin/|ExecStart=/usr/sbin/|' -e 's|sbin/flannelette |bin/flannelette |' "$units"/*.service
install -D -m 0644 -t "$1/usr/lib/sysusers.d" deploy/systemd/sysusers.d/flannelette.conf
install -D -m 0644 -t "$1/usr/lib/tmpfiles.d" deploy/systemd/tmpfiles.d/flannelette.conf
install -D -m 0644 -t "$1/etc/flannelette" debian/flannelette.env

# Libraries in C are for one version of Python.
"$python" -c 'import sys; print("python:Depends=python3 (>= %d.%d), python3 (<< %d.%d)" % (
    *sys.version_info[:2], sys.version_info[0], sys.version_info[1] + 1))' >debian/python.substvars
