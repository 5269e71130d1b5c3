#!/bin/sh
# Installs the wheel with each extra, and the source distribution, into empty environments, runs their programs outside of
# the checkout, and prints what each takes. Needs a package index, and for masq a compiler. install-check.sh [EXTRA...]
set -eu

cd "$(dirname "$0")/../.."
python=$(command -v "${PYTHON:-python3}")
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

[ $# -gt 0 ] || set -- lease dataplane masq ctl all
for extra in "$@"; do
    case $extra in
    ctl) check "wheel[ctl]" "$wheel[ctl]" flannelette ;;
    all) check "wheel[all]" "$wheel[all]" flannelette flannelette-lease flannelette-dataplane flannelette-masq ;;
    *) check "wheel[$extra]" "$wheel[$extra]" "flannelette-$extra" ;;
    esac
done
check "sdist[ctl]" "$sources[ctl]" flannelette
