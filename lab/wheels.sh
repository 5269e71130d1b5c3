#!/bin/sh
# Fetches what `pip install '.[all]'` fetches into a directory: wheels.sh DIRECTORY.
# Tests type that command in namespaces without a network. Done once for a pyproject.toml and a Python.
set -eu

python=.venv/bin/python
wheels=$1/wheels
if ! [ -x $python ]; then
    echo "the wheels are left out: make venv comes first" >&2
    exit 0
fi
wanted="$($python --version) $(sha256sum <pyproject.toml)"
[ "$(cat "$wheels/made-for" 2>/dev/null)" != "$wanted" ] || exit 0
echo "+ pip wheel .[all] (once)" >&2
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
if $python -m pip wheel --quiet --disable-pip-version-check --wheel-dir "$fetched" '.[all]' 'hatchling>=1.24'; then
    rm -rf "$fetched"/flannelette-*.whl "$wheels"
    mkdir -p "$wheels"
    cp "$fetched"/*.whl "$wheels"
    echo "$wanted" >"$wheels/made-for"
else
    echo "the wheels are left out: pip wheel failed, see above" >&2
fi
