#!/bin/sh
# Downloads what a list of versions names, and no file whose hash is not in the list: fetch.sh LIST DIRECTORY
# PYTHON names the Python that has pip. What builds install comes from such a directory, by PIP_NO_INDEX=1 and
# PIP_FIND_LINKS=DIRECTORY: pip checks no hash of what it takes from an index to build a source distribution.
set -eu
unset PIP_NO_INDEX PIP_FIND_LINKS PIP_CONSTRAINT
export PIP_ROOT_USER_ACTION=ignore

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pip() { "${PYTHON:-python3}" -m pip "$@" --quiet --disable-pip-version-check --require-hashes --no-deps; }

# A source distribution is asked for its name by what builds it: by these, and not by what an index has.
grep -E '^(packaging|setuptools|wheel)==' "$1" >"$scratch/builders"
pip install --only-binary :all: --target "$scratch/lib" --requirement "$scratch/builders"
PYTHONPATH=$scratch/lib pip download --no-build-isolation --dest "$2" --requirement "$1"
