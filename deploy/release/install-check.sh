#!/bin/sh
# Installs the wheel with each extra, and the source distribution, into empty environments, runs their programs outside of
# the checkout, and prints what each takes; the Debian package into an empty Debian, where that can be made. Needs a package
# index, and for masq a compiler. install-check.sh [EXTRA | deb | sdist]...
set -eu

cd "$(dirname "$0")/../.."
python=$(command -v "${PYTHON:-python3}")
for module in pip venv ensurepip; do
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" || missing="${missing:-}${missing:+ and }$module"
done
if [ -n "${missing:-}" ]; then
    echo "install-check: $python lacks $missing: apt-get install python3-pip python3-venv, or name another one with PYTHON=" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

"$python" -m venv "$scratch/tools"
pip --python "$scratch/tools/bin/python" install build
# From the source distribution the wheel is made.
"$scratch/tools/bin/python" -m build --outdir "$scratch/dist" . >"$scratch/said" 2>&1 || { cat "$scratch/said" && exit 1; }
wheel=$(echo "$scratch"/dist/*.whl) sources=$(echo "$scratch"/dist/*.tar.gz)

# check NAME REQUIREMENT PROGRAM...: installs it and runs the programs, outside of the checkout.
check() {
    name=$1 requirement=$2 place="$scratch/$1"
    shift 2
    "$python" -m venv --without-pip "$place"
    start=$(date +%s)
    pip --python "$place/bin/python" install "$requirement"
    took=$(($(date +%s) - start))
    for program in "$@"; do
        (cd / && "$place/bin/$program" --version) >"$scratch/said" 2>&1 || { cat "$scratch/said" && exit 1; }
        (cd / && "$place/bin/$program" --help) >/dev/null
    done
    for file in man/man1/flannelette.1 man/man8/flannelette-lease.8 bash-completion/completions/flannelette; do
        test -s "$place/share/$file" || { echo "$name: there is no share/$file" && exit 1; }
    done
    printf '%-24s %4s MB in %3s s   %s\n' "$name" "$(du -sm "$place" | cut -f1)" "$took" "$*"
    rm -rf "$place"
}

# lacks EXTRA SENTENCE PROGRAM [ARGUMENT...]: with this extra alone, the program names the extra that it needs.
lacks() {
    place="$scratch/lacking" sentence=$2 program=$3
    "$python" -m venv --without-pip "$place"
    pip --python "$place/bin/python" install "$wheel$1"
    shift 3
    ! (cd / && "$place/bin/$program" "$@" --socket-dir="$scratch") >"$scratch/said" 2>&1 || { echo "$program ends well without what it needs" && exit 1; }
    ! grep -q Traceback "$scratch/said" && grep -q "$sentence" "$scratch/said" || { cat "$scratch/said" && exit 1; }
    rm -rf "$place"
}

deb() {
    if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
        echo "deb                      not checked: that takes root on Debian"
        return
    fi
    sh deploy/debian/build.sh "$scratch/deb" >"$scratch/said" 2>&1 || { cat "$scratch/said" && exit 1; }
    sh deploy/debian/check.sh "$(echo "$scratch"/deb/*.deb)"
}

[ $# -gt 0 ] || set -- lease kubernetes dataplane masq ctl all sdist deb
for extra in "$@"; do
    case $extra in
    ctl)
        check "wheel[ctl]" "$wheel[ctl]" flannelette
        lacks "" "pip install 'flannelette\[ctl\]'" flannelette status
        ;;
    lease)
        check "wheel[lease]" "$wheel[lease]" flannelette-lease
        lacks "[lease]" "pip install 'flannelette\[kubernetes\]'" flannelette-lease --store=kube --kube-api-url=http://127.0.0.1:1
        ;;
    kubernetes)
        check "wheel[kubernetes]" "$wheel[kubernetes]" flannelette-lease
        lacks "[kubernetes]" "pip install 'flannelette\[lease\]'" flannelette-lease --store=etcd
        ;;
    dataplane)
        check "wheel[dataplane]" "$wheel[dataplane]" flannelette-dataplane
        lacks "" "pip install 'flannelette\[dataplane\]'" flannelette-dataplane
        ;;
    all) check "wheel[all]" "$wheel[all]" flannelette flannelette-lease flannelette-dataplane flannelette-masq ;;
    sdist) check "sdist[ctl]" "$sources[ctl]" flannelette ;;
    deb) deb ;;
    *) check "wheel[$extra]" "$wheel[$extra]" "flannelette-$extra" ;;
    esac
done
