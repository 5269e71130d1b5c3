#!/bin/sh
# Makes .venv ready: system packages, virtual environment, Python packages. prepare.sh [LEVEL], where LEVEL is
# lab (what `make lab` runs; with STORE=etcd an etcd, too; `lab CACHE` fetches what BACKEND=aws-vpc needs into CACHE), kube-lab,
# or dev (the default): everything, for tests.
# Quiet, and done in an instant, when nothing is missing. PYTHON= chooses the Python.
set -eu

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
header_of() { "$1" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'; }
installed() { [ -e "$1" ] && ! [ pyproject.toml -nt "$1" ]; }

PATH="$PATH:/usr/sbin:/sbin" # Debian's ordinary users lack them
all=.venv/.installed
level=${1:-dev}
[ "$level${STORE:-}" != labetcd ] || level=kube-lab
case $level in
lab) extras=dataplane,ctl stamp=.venv/.lab ;;
kube-lab) extras=dataplane,ctl,lab-etcd stamp=.venv/.lab-etcd ;;
dev) extras=dev stamp=$all ;;
*) say "prepare.sh: $level is none of lab, kube-lab, dev" && exit 2 ;;
esac
ready=
for each in "$stamp" .venv/.lab-etcd "$all"; do
    case $level:$each in dev:.venv/.lab-etcd) continue ;; esac
    if installed "$each"; then ready=yes; fi
done

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

compiles=$([ "$level" = dev ] && echo yes || true)
case $(iptables -V 2>/dev/null) in
*legacy*) # a lab needs python-iptables, which is compiled, for this kind of iptables only
    compiles=yes
    [ "$level" = dev ] || extras=$extras,masq
    ;;
esac

packages=
has ip || packages="$packages iproute2"
has iptables || packages="$packages iptables" # with it come the libraries that python-iptables loads
has nft || packages="$packages nftables"      # and with it libnftables
if [ "$level" = dev ]; then                   # what tests type, and minimal systems lack
    has sysctl && has ps || packages="$packages procps"
    has ipset || packages="$packages ipset"
    has openssl || packages="$packages openssl"
fi
if [ -z "$ready" ]; then                      # what only the installation needs
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    if [ -n "$compiles" ]; then
        has cc || packages="$packages gcc libc6-dev"
        [ -e "$(header_of "$python")" ] || packages="$packages $version-dev"
    fi
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

if [ -z "$ready" ]; then
    cache=
    [ -d "${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}" ] || cache=--no-cache-dir # who has none gets none
    say "+ $python -m venv .venv && pip install --editable .[$extras] (once)"
    "$python" -m venv .venv
    .venv/bin/python -m pip install $cache --disable-pip-version-check --use-pep517 --editable ".[$extras]" >&2
    touch "$stamp"
fi
[ "$level:${BACKEND:-}" != lab:aws-vpc ] || exec sh lab/tools.sh cloud "$2"
