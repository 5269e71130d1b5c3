#!/bin/sh
# Makes .venv ready: system packages, virtual environment, Python packages.
# Quiet, and done in an instant, when nothing is missing. PYTHON= chooses the Python.
set -eu

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
header_of() { "$1" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'; }

PATH="$PATH:/usr/sbin:/sbin" # Debian's ordinary users lack them
stamp=.venv/.installed

python=
for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer is needed (looked for: ${PYTHON:-python3.11 python3 python3.12 python3.13}); name yours with make PYTHON=..."
    exit 1
fi

packages=
has ip || packages="$packages iproute2"
has iptables || packages="$packages iptables" # with it come the libraries that python-iptables loads
has nft || packages="$packages nftables"      # and with it libnftables
if [ ! -e "$stamp" ]; then                    # what only the installation needs
    has cc || packages="$packages gcc libc6-dev"
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    [ -e "$(header_of "$python")" ] || packages="$packages $version-dev"
    "$python" -c 'import venv, ensurepip' 2>/dev/null || packages="$packages $version-venv"
fi
if [ -n "$packages" ]; then
    install="apt-get install --yes --no-install-recommends$packages"
    if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
        say "System packages are missing. Install them, then try again:"
        say "    sudo $install"
        exit 1
    fi
    say "+ $install"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    # shellcheck disable=SC2086  # a list of words
    $install -qq </dev/null >/dev/null
fi

if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    say "+ $python -m venv .venv && pip install --editable .[dev] (a minute or more, once)"
    "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[dev]'
    touch "$stamp"
fi
